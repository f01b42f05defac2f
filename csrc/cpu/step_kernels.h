// Kernels of the optimiser step, for any instruction set.
#pragma once

#include "blocks.h"

namespace lps {
namespace {

template <class Isa, class N>
inline uint8_t moving_bits(const uint8_t* owner, Moves moves, uint8_t free, N n) {
  if (moves == Moves::all) return existing(n);
  return moves == Moves::free ? free : free & kept_bits<Isa>(owner, n);
}

// (v - centre) * rho where free, (v - centre) * tau where owned
template <class Isa, class T, class B>
inline B pull(B v, B centre, uint8_t free, B rho, B tau) {
  return Isa::mul(Isa::sub(v, centre), Isa::select(Isa::template mask<T>(free), rho, tau));
}

template <class Isa, class T, bool proximal, bool streaming>
void adam_range(const StepLayer& layer, Moves moves, const AdamScalars& scalars, int64_t begin, int64_t end) {
  const auto set = [](double x) { return Isa::template set<T>(static_cast<T>(x)); };
  const auto rho = set(scalars.rho), tau = set(scalars.tau);
  const auto beta1 = set(scalars.beta1), rest1 = set(1 - scalars.beta1);
  const auto beta2 = set(scalars.beta2), rest2 = set(1 - scalars.beta2);
  const auto eps = set(scalars.eps), step_size = set(scalars.step_size), inverse_root = set(scalars.inverse_root);
  const T *grads = static_cast<const T*>(layer.grad), *w_bars = static_cast<const T*>(layer.w_bar);
  const T* centres = static_cast<const T*>(layer.centre);
  T *effective = static_cast<T*>(layer.effective), *vs = static_cast<T*>(layer.v);
  T *means = static_cast<T*>(layer.exp_avg), *squares = static_cast<T*>(layer.exp_avg_sq);
  for_blocks(begin, end, [&](int64_t i, auto n) {
    const uint8_t free = free_bits<Isa>(layer.owner + i, n);
    const auto moving = Isa::template mask<T>(moving_bits<Isa>(layer.owner + i, moves, free, n));
    const auto w_bar = load<Isa>(w_bars + i, n), v = load<Isa>(vs + i, n);
    auto grad = masked_product<Isa, T>(free, load<Isa>(grads + i, n), w_bar);
    if constexpr (proximal) grad = Isa::add(grad, pull<Isa, T>(v, load<Isa>(centres + i, n), free, rho, tau));
    const auto old_mean = load<Isa>(means + i, n), old_square = load<Isa>(squares + i, n);
    const auto mean = Isa::add(Isa::mul(old_mean, beta1), Isa::mul(grad, rest1));
    const auto square = Isa::add(Isa::mul(old_square, beta2), Isa::mul(Isa::mul(grad, grad), rest2));
    const auto root = Isa::add(Isa::mul(Isa::sqrt(square), inverse_root), eps);
    const auto moved = Isa::select(moving, Isa::sub(v, Isa::mul(Isa::div(mean, root), step_size)), v);
    store<Isa>(means + i, Isa::select(moving, mean, old_mean), n);
    store<Isa>(squares + i, Isa::select(moving, square, old_square), n);
    store<Isa>(vs + i, moved, n);
    put<Isa, streaming>(effective + i, masked_product<Isa, T>(free, moved, w_bar), n);
  });
  if constexpr (streaming) Isa::stream_end();
}

template <class Isa, class T>
void adam_kernel(const StepLayer& layer, Moves moves, const AdamScalars& scalars, int64_t begin, int64_t end,
                 bool stream) {
  stream = stream && aligned32(layer.effective);
  if (layer.centre != nullptr) {
    stream ? adam_range<Isa, T, true, true>(layer, moves, scalars, begin, end)
           : adam_range<Isa, T, true, false>(layer, moves, scalars, begin, end);
  } else {
    stream ? adam_range<Isa, T, false, true>(layer, moves, scalars, begin, end)
           : adam_range<Isa, T, false, false>(layer, moves, scalars, begin, end);
  }
}

template <class Isa, class T>
void grad_kernel(const GradLayer& layer, Moves moves, double rho, double tau, int64_t begin, int64_t end) {
  const auto of_free = Isa::template set<T>(static_cast<T>(rho)), of_owned = Isa::template set<T>(static_cast<T>(tau));
  for_blocks(begin, end, [&](int64_t i, auto n) {
    const uint8_t free = free_bits<Isa>(layer.owner + i, n);
    auto grad = load<Isa>(static_cast<T*>(layer.grad) + i, n);
    if (layer.centre != nullptr) {
      const auto v = load<Isa>(static_cast<const T*>(layer.v) + i, n);
      const auto centre = load<Isa>(static_cast<const T*>(layer.centre) + i, n);
      grad = Isa::add(grad, pull<Isa, T>(v, centre, free, of_free, of_owned));
    }
    const auto moving = Isa::template mask<T>(moving_bits<Isa>(layer.owner + i, moves, free, n));
    store<Isa>(static_cast<T*>(layer.grad) + i, Isa::zero_unless(moving, grad), n);
  });
}

template <class Isa>
void fill_step(Kernels& table) {
  table.proximal_adam[0] = adam_kernel<Isa, float>;
  table.proximal_adam[1] = adam_kernel<Isa, double>;
  table.proximal_grad[0] = grad_kernel<Isa, float>;
  table.proximal_grad[1] = grad_kernel<Isa, double>;
}

}  // namespace
}  // namespace lps
