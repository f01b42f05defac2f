// Kernels of the composition family, for any instruction set.
#pragma once

#include "blocks.h"

namespace lps {
namespace {

template <class Isa, class S, MaskKind kind, bool streaming>
void compose_range(const S* w, const void* mask, const S* w_bar, S* out, int64_t begin, int64_t end) {
  using T = Compute<S>;
  for_blocks(begin, end, [&](int64_t i, auto n) {
    const auto kept = load<Isa>(w_bar + i, n);
    auto term = kept;
    if constexpr (kind == MaskKind::values) {
      term = Isa::mul(load<Isa>(static_cast<const S*>(mask) + i, n), kept);
    } else if constexpr (kind == MaskKind::boolean) {
      const uint8_t bits = nonzero_bits<Isa>(static_cast<const uint8_t*>(mask) + i, n);
      term = Isa::zero_unless(Isa::template mask<T>(bits), kept);
    } else {
      term = Isa::zero_unless(Isa::template mask<T>(static_cast<const uint8_t*>(mask)[i / kLanes]), kept);
    }
    const auto sum = Isa::add(load<Isa>(w + i, n), term);
    put<Isa, streaming>(out + i, sum, n);
  });
  if constexpr (streaming) Isa::stream_end();
}

template <class Isa, class S, MaskKind kind>
void compose_kernel(const void* w, const void* mask, const void* w_bar, void* out, int64_t begin, int64_t end,
                    bool stream) {
  const S *first = static_cast<const S*>(w), *second = static_cast<const S*>(w_bar);
  S* to = static_cast<S*>(out);
  if constexpr (std::is_floating_point_v<S>) {
    if (stream && aligned32(to)) {
      return compose_range<Isa, S, kind, true>(first, mask, second, to, begin, end);
    }
  }
  compose_range<Isa, S, kind, false>(first, mask, second, to, begin, end);
}

template <class Isa, class S, bool streaming>
void compose_owned_range(const S* v, const S* w_bar, const uint8_t* owner, S* out, int64_t begin, int64_t end) {
  using T = Compute<S>;
  for_blocks(begin, end, [&](int64_t i, auto n) {
    const auto free = free_lanes<Isa, T>(owner + i, n);
    const auto effective = masked_product<Isa>(free, load<Isa>(v + i, n), load<Isa>(w_bar + i, n));
    put<Isa, streaming>(out + i, effective, n);
  });
  if constexpr (streaming) Isa::stream_end();
}

template <class Isa, class S>
void compose_owned_kernel(const void* v, const void* w_bar, const uint8_t* owner, void* out, int64_t begin, int64_t end,
                          bool stream) {
  const S *first = static_cast<const S*>(v), *second = static_cast<const S*>(w_bar);
  S* to = static_cast<S*>(out);
  if constexpr (std::is_floating_point_v<S>) {
    if (stream && aligned32(to)) return compose_owned_range<Isa, S, true>(first, second, owner, to, begin, end);
  }
  compose_owned_range<Isa, S, false>(first, second, owner, to, begin, end);
}

template <class Isa, class S, bool streaming>
void task_weight_range(const S* w_bar, const uint8_t* owner, const uint8_t* bits, uint8_t task, S* out, int64_t begin,
                       int64_t end) {
  using T = Compute<S>;
  const auto write = [&](int64_t i, const auto& used, auto n) {
    const auto weight = Isa::zero_unless(used, load<Isa>(w_bar + i, n));
    put<Isa, streaming>(out + i, Isa::add(weight, Isa::template set<T>(0)), n);
  };
  int64_t i = begin;
  for (; i + 4 * kLanes <= end; i += 4 * kLanes) {
    uint32_t used;
    std::memcpy(&used, bits + i / kLanes, sizeof(used));
    used |= Isa::task_bits_of_four(owner + i, task);
    write(i, Isa::template mask_of_four<T, 0>(used), Full{});
    write(i + kLanes, Isa::template mask_of_four<T, 1>(used), Full{});
    write(i + 2 * kLanes, Isa::template mask_of_four<T, 2>(used), Full{});
    write(i + 3 * kLanes, Isa::template mask_of_four<T, 3>(used), Full{});
  }
  for_blocks(i, end, [&](int64_t j, auto n) {
    const uint8_t used = task_bits<Isa>(owner + j, task, n) | bits[j / kLanes];
    write(j, Isa::template mask<T>(used), n);
  });
  if constexpr (streaming) Isa::stream_end();
}

template <class Isa, class S>
void task_weight_kernel(const void* w_bar, const uint8_t* owner, const uint8_t* bits, uint8_t task, void* out,
                        int64_t begin, int64_t end, bool stream) {
  const S* from = static_cast<const S*>(w_bar);
  S* to = static_cast<S*>(out);
  if constexpr (std::is_floating_point_v<S>) {
    if (stream && aligned32(to)) return task_weight_range<Isa, S, true>(from, owner, bits, task, to, begin, end);
  }
  task_weight_range<Isa, S, false>(from, owner, bits, task, to, begin, end);
}

template <class Isa, class S>
void fill_compose(Kernels& table, DType dtype) {
  auto& row = table.compose[static_cast<int>(dtype)];
  row[static_cast<int>(MaskKind::values)] = compose_kernel<Isa, S, MaskKind::values>;
  row[static_cast<int>(MaskKind::boolean)] = compose_kernel<Isa, S, MaskKind::boolean>;
  row[static_cast<int>(MaskKind::bits)] = compose_kernel<Isa, S, MaskKind::bits>;
  table.compose_owned[static_cast<int>(dtype)] = compose_owned_kernel<Isa, S>;
  table.task_weight[static_cast<int>(dtype)] = task_weight_kernel<Isa, S>;
}

template <class Isa>
void fill_compose(Kernels& table) {
  fill_compose<Isa, float>(table, DType::f32);
  fill_compose<Isa, double>(table, DType::f64);
  fill_compose<Isa, bf16>(table, DType::bf16);
  fill_compose<Isa, f16>(table, DType::f16);
}

}  // namespace
}  // namespace lps
