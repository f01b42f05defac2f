// Launchers of bit packing.
#include "bits.cuh"
#include "launches.h"

namespace lps {

namespace {

unsigned blocks_of_bools(const Gpu& gpu, int64_t count) {
  return blocks_for(gpu, parts_of<int64_t>(count, kThreads * kBools));
}

bool aligned_bits(const uint8_t* bools, const uint8_t* bits) {
  return aligned_to(alignof(BoolPack), {bools}) && aligned_to(alignof(BitPack), {bits});
}

}  // namespace

void pack_bits(const Gpu& gpu, const uint8_t* bools, uint8_t* bits, int64_t count) {
  if (count == 0) return;
  const bool aligned = aligned_bits(bools, bits);
  LPS_LAUNCH(gpu, pack_bits_kernel, blocks_of_bools(gpu, count), kThreads, 0, bools, bits, count, aligned);
}

void unpack_bits(const Gpu& gpu, const uint8_t* bits, uint8_t* bools, int64_t count) {
  if (count == 0) return;
  const bool aligned = aligned_bits(bools, bits);
  LPS_LAUNCH(gpu, unpack_bits_kernel, blocks_of_bools(gpu, count), kThreads, 0, bits, bools, count, aligned);
}

}  // namespace lps
