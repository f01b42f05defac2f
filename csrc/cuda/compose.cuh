// Kernels of the composition family.
#pragma once

#include "vectors.cuh"

namespace lps {

// Weights that a thread takes at a time where there is a bit per weight: each byte of bits is then read once.
constexpr int kBitPack = 8;

// out = w + mask * w_bar, every operation rounded on its own
template <class T>
__global__ void __launch_bounds__(kThreads, kBlocks)
    compose_kernel(MaskKind kind, const T* w, const void* mask, const T* w_bar, T* out, int64_t count, bool aligned) {
  constexpr int N = kPack<T>;
  using Value = decltype(widen(T{}));
  const uint8_t* bytes = static_cast<const uint8_t*>(mask);
  for_packs<N>(count, aligned, [&](const PackPlace& place) {
    const Pack<T, N> first = load_pack<N>(w, place), second = load_pack<N>(w_bar, place);
    Value term[N];
    if (kind == MaskKind::values) {
      const Pack<T, N> factor = load_pack<N>(static_cast<const T*>(mask), place);
#pragma unroll
      for (int j = 0; j < N; ++j) term[j] = widen(factor.at[j]) * widen(second.at[j]);
    } else {
      // A pack is a byte of bits or half of one.
      const uint32_t bits = kind == MaskKind::bits ? bytes[place.first / 8] >> (place.first % 8) : 0;
      const Pack<uint8_t, N> bools = kind == MaskKind::bits ? Pack<uint8_t, N>{} : load_pack<N>(bytes, place);
#pragma unroll
      for (int j = 0; j < N; ++j) {
        const bool selected = bools.at[j] != 0 || (bits >> j & 1) != 0;
        term[j] = selected ? widen(second.at[j]) : Value{0};
      }
    }
    Pack<T, N> sum;
#pragma unroll
    for (int j = 0; j < N; ++j) narrow(widen(first.at[j]) + term[j], sum.at[j]);
    store_pack(out, place, sum);
  });
}

// out = free ? v : v * w_bar
template <class T>
__global__ void __launch_bounds__(kThreads, kBlocks)
    compose_owned_kernel(const T* v, const T* w_bar, const uint8_t* owner, T* out, int64_t count, bool aligned) {
  constexpr int N = kPack<T>;
  for_packs<N>(count, aligned, [&](const PackPlace& place) {
    const Pack<T, N> value = load_pack<N>(v, place), factor = load_pack<N>(w_bar, place);
    const Pack<uint8_t, N> owners = load_pack<N>(owner, place);
    Pack<T, N> effective = value;
#pragma unroll
    for (int j = 0; j < N; ++j) {
      if (!is_free(owners.at[j])) narrow(widen(value.at[j]) * widen(factor.at[j]), effective.at[j]);
    }
    store_pack(out, place, effective);
  });
}

// out = w_bar where the task owns the weight or its bit is set, else 0; plus 0.0, so that -0.0 becomes 0.0
template <class T>
__global__ void __launch_bounds__(kThreads, kBlocks)
    task_weight_kernel(const T* w_bar, const uint8_t* owner, const uint8_t* bits, uint8_t task, T* out, int64_t count,
                       bool aligned) {
  using Value = decltype(widen(T{}));
  for_packs<kBitPack>(count, aligned, [&](const PackPlace& place) {
    const Pack<T, kBitPack> value = load_pack<kBitPack>(w_bar, place);
    const Pack<uint8_t, kBitPack> owners = load_pack<kBitPack>(owner, place);
    const uint32_t selected = bits[place.first / 8];
    Pack<T, kBitPack> weight;
#pragma unroll
    for (int j = 0; j < kBitPack; ++j) {
      const bool used = is_owned_by(task, owners.at[j]) || (selected >> j & 1) != 0;
      narrow((used ? widen(value.at[j]) : Value{0}) + Value{0}, weight.at[j]);
    }
    store_pack(out, place, weight);
  });
}

}  // namespace lps
