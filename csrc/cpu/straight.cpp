// The straight-through step.
//
// One pass moves v and writes the effective weight by the thresholds of the last step. It lists the keys near these;
// from them follow the exact thresholds, and the listed weights that were judged by the wrong one are set right. Where
// a threshold has moved too far, or there was none, or groups have several weights, the layer's survivors are searched
// for and its effective weight is written as in an ADMM update.
#include <array>
#include <cmath>

#include "lanes_scalar.h"
#include "select.h"

namespace lps {

namespace {

// One role of a layer.
template <class T>
struct Role {
  Selection selection;
  RolePlan<T> plan;

  std::vector<Chunk<KeyOf<T>>> chunks{};  // what the pass found
  int64_t taking_part = 0;
  bool nan = false;
  bool found = false;      // the exact threshold is known
  bool predicted = false;  // and the pass has judged all but the listed weights by it
};

// The weights that the pass listed in one unit, of one role.
template <class Key>
struct Listed {
  std::vector<Key> keys{};
  std::vector<int32_t> indices{};
};
template <class Key>
struct StraightUnit {
  size_t layer;
  int64_t begin, end;
  std::array<Listed<Key>, 2> listed{};
  std::array<RoleFound<Key>, 2> found{};
};

template <class T>
RolePlan<T> plan_for(const Selection& selection, const T* hint) {
  constexpr T infinity = std::numeric_limits<T>::infinity(), largest = std::numeric_limits<T>::max();
  const T floor = selection.above ? key_value<T>(floor_key<KeyOf<T>>(selection)) : -infinity;
  // Without a hint, all that take part are taken for survivors; where none may be, at least no number is.
  const T beyond = selection.keep == 0 ? infinity : floor;
  const RolePlan<T> without{floor, beyond, beyond};
  if (!selection.view.single() || selection.keep == 0 || selection.keep >= selection.view.g) return without;
  const T low = std::max(hint[0] - hint[1], floor), high = std::min(hint[0] + hint[1], largest);
  if (!(low <= hint[0] && hint[0] <= high)) return without;  // also where one is NaN
  return {floor, low, key_value<T>(value_key(high) + 1)};
}

// Finds the exact threshold from what the pass has counted and listed, where that is enough.
template <class T>
void settle(const SelectKernels<KeyOf<T>>& kernels, Role<T>& role) {
  using Key = KeyOf<T>;
  Selection& selection = role.selection;
  const RolePlan<T>& plan = role.plan;
  int64_t above = 0;
  bool overflows = false;
  for (const Chunk<Key>& chunk : role.chunks) {
    role.taking_part += chunk.band.region;
    above += chunk.band.above;
    overflows |= chunk.band.inside > kBracketRoom;
  }
  if (!selection.view.single()) return;
  selection.last_tie = selection.view.g;
  if (selection.keep == 0) {
    selection.threshold = kHighestKey<Key>;
    role.found = true;
    role.predicted = above == 0;
  } else if (role.taking_part <= selection.keep) {
    selection.threshold = floor_key<Key>(selection);
    role.found = true;
    role.predicted = plan.beyond == plan.floor;
  } else {
    const Key low = value_key(plan.low), high = value_key(plan.beyond) - 1;
    role.found = role.predicted =
        low <= high && !overflows && find_threshold(kernels, selection, low, high, role.chunks);
  }
}

// Writes the listed weights of a unit that do survive.
template <class T>
void correct(const StepLayer& layer, const Role<T>& role, const Listed<KeyOf<T>>& listed, int64_t begin) {
  const Selection& selection = role.selection;
  const T* source = static_cast<const T*>(selection.region == Region::free ? layer.v : layer.w_bar);
  for (size_t j = 0; j < listed.keys.size(); ++j) {
    const KeyOf<T> key = listed.keys[j];
    const int64_t i = begin + listed.indices[j];
    if (key < selection.threshold || (key == selection.threshold && i > selection.last_tie)) continue;
    static_cast<T*>(layer.effective)[i] = source[i];
  }
}

// As next_threshold in ops/straight_through.py.
template <class T>
void write_threshold(const Role<T>& role, T* hint) {
  const Selection& selection = role.selection;
  T weakest = NAN, distance = NAN;
  if (selection.view.single() && selection.keep > 0 && selection.keep < role.taking_part) {
    weakest = role.nan ? T(NAN) : key_value<T>(static_cast<KeyOf<T>>(selection.threshold));
    const T moved = std::fabs(weakest - hint[0]) * 4, shrunk = hint[1] * T(0.75);
    distance = std::isnan(hint[0]) || std::isnan(hint[1]) ? std::fabs(weakest) / 8 : moved < shrunk ? shrunk : moved;
  }
  hint[0] = weakest;
  hint[1] = distance;
}

template <class T>
void run(const Cpu& cpu, DType dtype, const SelectKernels<KeyOf<T>>& select, StraightPass<T, KeyOf<T>> pass,
         Moves moves, bool emerging, const AdamScalars& scalars, double share_cost, T* thresholds,
         const std::vector<StraightLayer>& layers) {
  using Key = KeyOf<T>;
  const Kernels& kernels = cpu.kernels;
  const Parallel& parallel = cpu.parallel;
  std::vector<Selection> selections;
  int64_t weights = 0;
  for (const StraightLayer& layer : layers) {
    const Source source{layer.step.v, nullptr, layer.step.owner};
    add_roles(selections, source, layer.view, layer.sharing_view, layer.keep_free, layer.keep_owned, emerging);
    weights += layer.step.count;
  }
  std::vector<Role<T>> roles;  // two a layer, in the order of the thresholds
  for (Selection& selection : selections) {
    selection.up_to = true;
    roles.push_back({selection, plan_for(selection, thresholds + 2 * selection.layer)});
  }
  // At least 37 bytes per weight in fp32, 73 in fp64.
  const bool stream = weights * (dtype == DType::f32 ? 37 : 73) > kStreamBytes;

  std::vector<StraightUnit<Key>> units;
  for (const Unit& unit : units_of(layers, [](const StraightLayer& layer) { return layer.step.count; })) {
    units.push_back({unit.layer, unit.begin, unit.end});
  }
  parallel_each(parallel, units, [&](StraightUnit<Key>& unit) {
    const StraightLayer& layer = layers[unit.layer];
    StepLayer step = layer.step;
    const bool single = layer.view.single() && layer.sharing_view.single();
    // Groups of several weights are written later; weights that learn read there which took part.
    if (!single && step.weight_exp_avg == nullptr) step.effective = nullptr;
    Key keys[2][kBracketRoom + 1];
    int32_t indices[2][kBracketRoom + 1];
    for (size_t r = 0; r < 2; ++r) unit.found[r] = {{}, false, keys[r], indices[r]};
    const RolePlan<T> plans[2] = {roles[2 * unit.layer].plan, roles[2 * unit.layer + 1].plan};
    pass(step, moves, scalars, share_cost, plans, unit.begin, unit.end, stream, unit.found.data());
    for (size_t r = 0; r < 2; ++r) {
      const int64_t count = std::min(unit.found[r].band.inside, kBracketRoom);
      unit.listed[r].keys.assign(keys[r], keys[r] + count);
      unit.listed[r].indices.assign(indices[r], indices[r] + count);
    }
  });
  for (StraightUnit<Key>& unit : units) {
    for (size_t r = 0; r < 2; ++r) {
      Role<T>& role = roles[2 * unit.layer + r];
      role.chunks.push_back({r, unit.begin, unit.end, unit.listed[r].keys.data(), unit.found[r].band});
      role.nan |= unit.found[r].nan;
    }
  }
  parallel_each(parallel, roles, [&](Role<T>& role) { settle(select, role); });

  std::vector<Selection> searched;
  for (const Role<T>& role : roles) {
    if (!role.found) searched.push_back(role.selection);
  }
  if (!searched.empty()) select_groups(kernels, parallel, dtype, searched);
  for (Selection& selection : searched) roles[selection.layer].selection = std::move(selection);

  const auto predicted = [&](size_t layer) { return roles[2 * layer].predicted && roles[2 * layer + 1].predicted; };
  parallel_each(parallel, units, [&](const StraightUnit<Key>& unit) {
    if (!predicted(unit.layer)) return;
    for (size_t r = 0; r < 2; ++r) {
      correct<T>(layers[unit.layer].step, roles[2 * unit.layer + r], unit.listed[r], unit.begin);
    }
  });
  std::vector<size_t> rewritten;
  for (size_t layer = 0; layer < layers.size(); ++layer) {
    if (!predicted(layer)) rewritten.push_back(layer);
  }
  const auto size = [&](size_t layer) { return layers[layer].step.count; };
  for_bit_blocks(parallel, rewritten, size, [&](size_t index, int64_t begin, int64_t end) {
    const size_t layer = rewritten[index];
    uint8_t bits[kBitBlock / kLanes];
    role_bits(kernels, dtype, roles[2 * layer].selection, roles[2 * layer + 1].selection, begin, end, bits);
    kernels.straight_write[static_cast<int>(dtype)](layers[layer].step, bits, begin, end, stream);
  });
  for (size_t i = 0; i < roles.size(); ++i) write_threshold(roles[i], thresholds + 2 * i);
}

}  // namespace

void straight_through_adam(const Cpu& cpu, DType dtype, Moves moves, bool emerging, const AdamScalars& scalars,
                           double share_cost, void* thresholds, const std::vector<StraightLayer>& layers) {
  if (dtype == DType::f64) {
    run(cpu, dtype, cpu.kernels.select64, cpu.kernels.straight64, moves, emerging, scalars, share_cost,
        static_cast<double*>(thresholds), layers);
  } else {
    run(cpu, dtype, cpu.kernels.select32[static_cast<int>(dtype)], cpu.kernels.straight32, moves, emerging, scalars,
        share_cost, static_cast<float*>(thresholds), layers);
  }
}

}  // namespace lps
