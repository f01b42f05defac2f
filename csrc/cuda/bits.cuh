// Bit packing.
#pragma once

#include "vectors.cuh"

namespace lps {

constexpr int kBools = 16;  // that a thread packs or unpacks at a time: 128 bits, and two bytes of bits

using BoolPack = Pack<uint8_t, kBools>;
using BitPack = Pack<uint8_t, kBools / 8>;

// The bytes of the bits of a pack of bools.
__device__ __forceinline__ PackPlace bytes_of_bits(const PackPlace& bools) {
  return {bools.first / 8, parts_of(bools.existing, 8), bools.whole};
}

__global__ void __launch_bounds__(kThreads, kBlocks)
    pack_bits_kernel(const uint8_t* bools, uint8_t* bits, int64_t count, bool aligned) {
  for_packs<kBools>(count, aligned, [&](const PackPlace& place) {
    const BoolPack from = load_pack<kBools>(bools, place);
    BitPack to{};
#pragma unroll
    for (int j = 0; j < kBools; ++j) to.at[j / 8] |= static_cast<uint8_t>((from.at[j] != 0) << (j % 8));
    store_pack(bits, bytes_of_bits(place), to);
  });
}

__global__ void __launch_bounds__(kThreads, kBlocks)
    unpack_bits_kernel(const uint8_t* bits, uint8_t* bools, int64_t count, bool aligned) {
  for_packs<kBools>(count, aligned, [&](const PackPlace& place) {
    const BitPack from = load_pack<kBools / 8>(bits, bytes_of_bits(place));
    BoolPack to;
#pragma unroll
    for (int j = 0; j < kBools; ++j) to.at[j] = (from.at[j / 8] >> (j % 8)) & 1;
    store_pack(bools, place, to);
  });
}

}  // namespace lps
