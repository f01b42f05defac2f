// Kernels of the optimiser step, for any instruction set.
#pragma once

#include <algorithm>
#include <limits>

#include "blocks.h"

namespace lps {
namespace {

template <class Isa, class T, class Mask, class N>
inline Mask moving_lanes(const uint8_t* owner, Moves moves, Mask free, N n) {
  if (moves == Moves::free) return free;
  return Isa::template mask<T>(moves == Moves::all ? existing(n) : Isa::bits(free) & kept_bits<Isa>(owner, n));
}

// (v - centre) * rho where free, (v - centre) * tau where owned
template <class Isa, class B, class Mask>
inline B pull(B v, B centre, Mask free, B rho, B tau) {
  return Isa::mul(Isa::sub(v, centre), Isa::select(free, rho, tau));
}

// The constants of a step of Adam, the same in every lane. Where `all` move, nothing is kept as it was.
template <class Isa, class T, bool all>
struct Adam {
  using Lanes = typename Isa::template Block<T>;
  Lanes beta1, rest1, beta2, rest2, eps, inverse_root, step_size, mask_step_size;

  static Lanes set(double x) { return Isa::template set<T>(static_cast<T>(x)); }
  explicit Adam(const AdamScalars& scalars)
      : beta1(set(scalars.beta1)),
        rest1(set(1 - scalars.beta1)),
        beta2(set(scalars.beta2)),
        rest2(set(1 - scalars.beta2)),
        eps(set(scalars.eps)),
        inverse_root(set(scalars.inverse_root)),
        step_size(set(scalars.step_size)),
        mask_step_size(set(scalars.mask_step_size)) {}

  template <class Mask>
  static Lanes moved(Mask moving, Lanes now, Lanes before) {
    if constexpr (all) {
      return now;
    } else {
      return Isa::select(moving, now, before);
    }
  }
  template <class Mask>
  Lanes size_of(Mask free) const {
    return Isa::select(free, step_size, mask_step_size);
  }
  // Stores the moments of a block and returns what v would move to.
  template <class Mask, class N>
  Lanes step(T* means, T* squares, Lanes v, Lanes grad, Lanes size, Mask moving, N n) const {
    const auto old_mean = load<Isa>(means, n), old_square = load<Isa>(squares, n);
    const auto mean = Isa::add(Isa::mul(old_mean, beta1), Isa::mul(grad, rest1));
    const auto square = Isa::add(Isa::mul(old_square, beta2), Isa::mul(Isa::mul(grad, grad), rest2));
    store<Isa>(means, moved(moving, mean, old_mean), n);
    store<Isa>(squares, moved(moving, square, old_square), n);
    const auto root = Isa::add(Isa::mul(Isa::sqrt(square), inverse_root), eps);
    return Isa::sub(v, Isa::mul(Isa::div(mean, root), size));
  }
};

enum class Pulled { no, by_gradient, by_step };

template <class Isa, class T, bool all, Pulled pulled, bool streaming>
void adam_range(const StepLayer& layer, Moves moves, const AdamScalars& scalars, int64_t begin, int64_t end) {
  using Step = Adam<Isa, T, all>;
  const Step adam(scalars);
  const auto set = Step::set;
  const auto rho = set(scalars.rho), tau = set(scalars.tau);
  const auto rest_of_free = set(1 / (1 + scalars.rho)), rest_of_owned = set(1 / (1 + scalars.tau));
  const auto share_of_free = set(scalars.rho / (1 + scalars.rho)),
             share_of_owned = set(scalars.tau / (1 + scalars.tau));
  const T *grads = static_cast<const T*>(layer.grad), *w_bars = static_cast<const T*>(layer.w_bar);
  const T* centres = static_cast<const T*>(layer.centre);
  T *effective = static_cast<T*>(layer.effective), *vs = static_cast<T*>(layer.v);
  T *means = static_cast<T*>(layer.exp_avg), *squares = static_cast<T*>(layer.exp_avg_sq);
  for_blocks(begin, end, [&](int64_t i, auto n) {
    const auto free = free_lanes<Isa, T>(layer.owner + i, n);
    const auto moving = moving_lanes<Isa, T>(layer.owner + i, moves, free, n);
    const auto w_bar = load<Isa>(w_bars + i, n), v = load<Isa>(vs + i, n);
    auto grad = masked_product<Isa>(free, load<Isa>(grads + i, n), w_bar);
    if constexpr (pulled == Pulled::by_gradient) {
      grad = Isa::add(grad, pull<Isa>(v, load<Isa>(centres + i, n), free, rho, tau));
    }
    auto moved = adam.step(means + i, squares + i, v, grad, adam.size_of(free), moving, n);
    if constexpr (pulled == Pulled::by_step) {
      const auto rest = Isa::select(free, rest_of_free, rest_of_owned);
      const auto share = Isa::select(free, share_of_free, share_of_owned);
      moved = Isa::add(Isa::mul(moved, rest), Isa::mul(load<Isa>(centres + i, n), share));
    }
    moved = Step::moved(moving, moved, v);
    store<Isa>(vs + i, moved, n);
    put<Isa, streaming>(effective + i, masked_product<Isa>(free, moved, w_bar), n);
  });
  if constexpr (streaming) Isa::stream_end();
}

template <class Isa, class T>
void adam_kernel(const StepLayer& layer, Moves moves, Pull pull, const AdamScalars& scalars, int64_t begin, int64_t end,
                 bool stream) {
  const auto run = [&](auto all, auto streaming) {
    if (layer.centre == nullptr) {
      adam_range<Isa, T, all.value, Pulled::no, streaming.value>(layer, moves, scalars, begin, end);
    } else if (pull == Pull::gradient) {
      adam_range<Isa, T, all.value, Pulled::by_gradient, streaming.value>(layer, moves, scalars, begin, end);
    } else {
      adam_range<Isa, T, all.value, Pulled::by_step, streaming.value>(layer, moves, scalars, begin, end);
    }
  };
  const bool past = stream && aligned32(layer.effective);
  if (moves == Moves::all) {
    past ? run(std::true_type{}, std::true_type{}) : run(std::true_type{}, std::false_type{});
  } else {
    past ? run(std::false_type{}, std::true_type{}) : run(std::false_type{}, std::false_type{});
  }
}

// A number for each role, the same in every lane; a lane takes that of its role.
template <class Isa, class T>
struct RoleBound {
  using Lanes = typename Isa::template Block<T>;
  Lanes free, owned;

  RoleBound(const RolePlan<T>* plans, T RolePlan<T>::* bound)
      : free(Isa::template set<T>(plans[0].*bound)), owned(Isa::template set<T>(plans[1].*bound)) {}
  template <class Mask>
  Lanes at(Mask is_free) const {
    return Isa::select(is_free, free, owned);
  }
};

// A bit for each weight of a unit, written by blocks and read eight bytes at a time. Bits behind the last weight are 0.
struct UnitBits {
  uint8_t bytes[kUnit / kLanes];

  static constexpr int64_t words(int64_t weights) { return (weights + 63) / 64; }
  explicit UnitBits(int64_t weights) {
    std::memset(bytes + weights / 64 * 8, 0, static_cast<size_t>((words(weights) - weights / 64) * 8));
  }
  uint64_t word(int64_t number) const {
    uint64_t bits;
    std::memcpy(&bits, bytes + number * 8, 8);
    return bits;
  }
};

// A weight that learns beside its score takes a step of Adam itself, with no gradient where it took no part in the
// forward pass. Stores its moments and returns what it becomes.
template <class Isa, class T, class B, class Mask, class N>
inline B learnt_weight(const StepLayer& layer, const Adam<Isa, T, false>& adam, int64_t i, B w_bar, B slope, Mask free,
                       N n) {
  const auto learning = Isa::template mask<T>(kept_bits<Isa>(layer.owner + i, n) & ~Isa::bits(free));
  const auto shown = Isa::at_least_or_nan(Isa::magnitude(load<Isa>(static_cast<const T*>(layer.effective) + i, n)),
                                          Isa::template set<T>(std::numeric_limits<T>::denorm_min()));
  T *means = static_cast<T*>(layer.weight_exp_avg) + i, *squares = static_cast<T*>(layer.weight_exp_avg_sq) + i;
  const auto moved = adam.step(means, squares, w_bar, Isa::zero_unless(shown, slope), adam.step_size, learning, n);
  return Isa::select(learning, moved, w_bar);
}

template <class Isa, class T, bool all, bool learning, bool writing, bool streaming>
void straight_range(const StepLayer& layer, Moves moves, const AdamScalars& scalars, double share_cost,
                    const RolePlan<T>* plans, int64_t begin, int64_t end, RoleFound<KeyOf<T>>* found) {
  using Bound = RoleBound<Isa, T>;
  const Bound floor(plans, &RolePlan<T>::floor), low(plans, &RolePlan<T>::low), beyond(plans, &RolePlan<T>::beyond);
  // Only owned weights have a floor. Where it is no bound of its own, what takes part is known without comparing.
  const bool floored = plans[1].floor != plans[1].beyond && plans[1].floor != -std::numeric_limits<T>::infinity();
  using Step = Adam<Isa, T, all>;
  const Step adam(scalars);
  const Adam<Isa, T, false> weight_adam(scalars);
  const auto cost = Step::set(share_cost);
  const T* grads = static_cast<const T*>(layer.grad);
  T *effective = static_cast<T*>(layer.effective), *vs = static_cast<T*>(layer.v);
  T *means = static_cast<T*>(layer.exp_avg), *squares = static_cast<T*>(layer.exp_avg_sq);
  T* w_bars = static_cast<T*>(layer.w_bar);
  UnitBits is_free(end - begin), is_above(end - begin), reaches_low(end - begin), takes_part(end - begin);
  for_blocks(begin, end, [&](int64_t i, auto n) {
    const int64_t byte = (i - begin) / kLanes;
    const auto free = free_lanes<Isa, T>(layer.owner + i, n);
    const auto moving = moving_lanes<Isa, T>(layer.owner + i, moves, free, n);
    auto w_bar = load<Isa>(w_bars + i, n);
    const auto v = load<Isa>(vs + i, n), slope = load<Isa>(grads + i, n);
    const auto grad = Isa::select(free, slope, Isa::add(Isa::mul(slope, w_bar), cost));
    const auto stepped = adam.step(means + i, squares + i, v, grad, adam.size_of(free), moving, n);
    const auto moved = Step::moved(moving, stepped, v);
    store<Isa>(vs + i, moved, n);
    if constexpr (learning) {
      w_bar = learnt_weight<Isa, T>(layer, weight_adam, i, w_bar, slope, free, n);
      store<Isa>(w_bars + i, w_bar, n);
    }

    const auto scores = Isa::select(free, Isa::magnitude(moved), moved);
    const auto survives = Isa::at_least_or_nan(scores, beyond.at(free));
    is_free.bytes[byte] = Isa::bits(free) & existing(n);
    is_above.bytes[byte] = Isa::bits(survives) & existing(n);
    reaches_low.bytes[byte] = Isa::bits(Isa::at_least(scores, low.at(free))) & existing(n);
    if (floored) takes_part.bytes[byte] = Isa::bits(Isa::at_least_or_nan(scores, floor.at(free))) & existing(n);
    if constexpr (writing) {
      put<Isa, streaming>(effective + i, Isa::zero_unless(survives, Isa::select(free, moved, w_bar)), n);
    }
  });
  if constexpr (streaming) Isa::stream_end();

  int64_t of_free = 0, taking_part = 0, above_of_free = 0, above_of_all = 0, listed[2] = {};
  uint64_t nans[2] = {};
  for (int64_t word = 0; word < UnitBits::words(end - begin); ++word) {
    const uint64_t free = is_free.word(word), above = is_above.word(word), low_or_above = reaches_low.word(word);
    of_free += __builtin_popcountll(free);
    above_of_free += __builtin_popcountll(above & free);
    above_of_all += __builtin_popcountll(above);
    if (floored) taking_part += __builtin_popcountll(takes_part.word(word));
    // What lies above a bracket but does not reach its lower end is NaN.
    nans[0] |= above & ~low_or_above & free;
    nans[1] |= above & ~low_or_above & ~free;
    for (uint64_t inside = low_or_above & ~above; inside != 0; inside &= inside - 1) {
      const int bit = __builtin_ctzll(inside);
      const int role = (free >> bit) & 1 ? 0 : 1;
      const int64_t at = std::min(listed[role]++, kBracketRoom), index = word * 64 + bit;
      const T score = role == 0 ? std::fabs(vs[begin + index]) : vs[begin + index];
      found[role].keys[at] = value_key(score);
      found[role].indices[at] = static_cast<int32_t>(index);
    }
  }
  if (!floored) taking_part = plans[1].floor == plans[1].beyond ? of_free + above_of_all - above_of_free : end - begin;
  found[0].band = {of_free, above_of_free, listed[0]};
  found[1].band = {taking_part - of_free, above_of_all - above_of_free, listed[1]};
  for (int role = 0; role < 2; ++role) found[role].nan = nans[role] != 0;
}

template <class Isa, class T>
void straight_kernel(const StepLayer& layer, Moves moves, const AdamScalars& scalars, double share_cost,
                     const RolePlan<T>* plans, int64_t begin, int64_t end, bool stream, RoleFound<KeyOf<T>>* found) {
  constexpr std::true_type yes{};
  constexpr std::false_type no{};
  const auto run = [&](auto all, auto learning, auto writing, auto streaming) {
    straight_range<Isa, T, all.value, learning.value, writing.value, streaming.value>(layer, moves, scalars, share_cost,
                                                                                      plans, begin, end, found);
  };
  const bool past = stream && aligned32(layer.effective);
  const auto run_moving = [&](auto all) {
    if (layer.weight_exp_avg != nullptr) {
      past ? run(all, yes, yes, yes) : run(all, yes, yes, no);
    } else if (layer.effective == nullptr) {
      run(all, no, no, no);
    } else {
      past ? run(all, no, yes, yes) : run(all, no, yes, no);
    }
  };
  moves == Moves::all ? run_moving(yes) : run_moving(no);
}

template <class Isa, class T, bool streaming>
void straight_write_range(const StepLayer& layer, const uint8_t* bits, int64_t begin, int64_t end) {
  const T *vs = static_cast<const T*>(layer.v), *w_bars = static_cast<const T*>(layer.w_bar);
  for_blocks(begin, end, [&](int64_t i, auto n) {
    const auto free = free_lanes<Isa, T>(layer.owner + i, n);
    const auto kept = Isa::template mask<T>(bits[(i - begin) / kLanes]);
    const auto weight = Isa::select(free, load<Isa>(vs + i, n), load<Isa>(w_bars + i, n));
    put<Isa, streaming>(static_cast<T*>(layer.effective) + i, Isa::zero_unless(kept, weight), n);
  });
  if constexpr (streaming) Isa::stream_end();
}

template <class Isa, class T>
void straight_write(const StepLayer& layer, const uint8_t* bits, int64_t begin, int64_t end, bool stream) {
  const bool past = stream && aligned32(layer.effective);
  past ? straight_write_range<Isa, T, true>(layer, bits, begin, end)
       : straight_write_range<Isa, T, false>(layer, bits, begin, end);
}

template <class Isa, class T>
void grad_kernel(const GradLayer& layer, Moves moves, double rho, double tau, int64_t begin, int64_t end) {
  const auto of_free = Isa::template set<T>(static_cast<T>(rho)), of_owned = Isa::template set<T>(static_cast<T>(tau));
  for_blocks(begin, end, [&](int64_t i, auto n) {
    const auto free = free_lanes<Isa, T>(layer.owner + i, n);
    auto grad = load<Isa>(static_cast<T*>(layer.grad) + i, n);
    if (layer.centre != nullptr) {
      const auto v = load<Isa>(static_cast<const T*>(layer.v) + i, n);
      const auto centre = load<Isa>(static_cast<const T*>(layer.centre) + i, n);
      grad = Isa::add(grad, pull<Isa>(v, centre, free, of_free, of_owned));
    }
    const auto moving = moving_lanes<Isa, T>(layer.owner + i, moves, free, n);
    store<Isa>(static_cast<T*>(layer.grad) + i, Isa::zero_unless(moving, grad), n);
  });
}

template <class Isa>
void fill_step(Kernels& table) {
  table.proximal_adam[0] = adam_kernel<Isa, float>;
  table.proximal_adam[1] = adam_kernel<Isa, double>;
  table.straight32 = straight_kernel<Isa, float>;
  table.straight64 = straight_kernel<Isa, double>;
  table.straight_write[0] = straight_write<Isa, float>;
  table.straight_write[1] = straight_write<Isa, double>;
  table.proximal_grad[0] = grad_kernel<Isa, float>;
  table.proximal_grad[1] = grad_kernel<Isa, double>;
}

}  // namespace
}  // namespace lps
