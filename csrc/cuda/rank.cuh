// Ranks among the keys that a block looks at: sums over its threads, positions of a running count, radix select.
// Layers have fewer than 2^31 weights, so 32 bits count anything.
#pragma once

#include "layers.cuh"

namespace lps {

constexpr int kSelectThreads = 512;  // of the kernels that search, one block per selection
constexpr int kSelectBlocks = 2;
constexpr int kDigitBits = 11;  // that radix select looks at in one pass: 2048 counters of shared memory

// Where a running count reaches a number: the index, the count before it, and the count of that index alone.
struct RankPlace {
  uint32_t index, before, here;
};

struct RankShared {
  uint32_t bins[1 << kDigitBits];
  uint32_t sums[kSelectThreads / 32];
  RankPlace place;
};

struct BlockSum {
  uint32_t before, total;  // of the threads with lower numbers, and of all
};
__device__ __forceinline__ BlockSum sum_threads(RankShared* shared, uint32_t mine) {
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  uint32_t running = mine;
  for (uint32_t offset = 1; offset < 32; offset *= 2) {
    const uint32_t lower = __shfl_up_sync(0xffffffffu, running, offset);
    if (lane >= offset) running += lower;
  }
  __syncthreads();  // the sums of the call before are no longer read
  if (lane == 31) shared->sums[warp] = running;
  __syncthreads();
  BlockSum sum{running - mine, 0};
  for (uint32_t other = 0; other < kSelectThreads / 32; ++other) {
    if (other < warp) sum.before += shared->sums[other];
    sum.total += shared->sums[other];
  }
  return sum;
}

// The first index of [0, n) at which the running sum of count_at reaches `wanted`, which is at least 1.
template <class Count>
__device__ __forceinline__ RankPlace find_rank(RankShared* shared, uint32_t n, uint32_t wanted, const Count& count_at) {
  const uint32_t each = parts_of<uint32_t>(n, kSelectThreads);
  const uint32_t begin = min(threadIdx.x * each, n), end = min(begin + each, n);
  uint32_t mine = 0;
  for (uint32_t i = begin; i < end; ++i) mine += count_at(i);
  uint32_t before = sum_threads(shared, mine).before;
  if (before < wanted && wanted <= before + mine) {
    uint32_t i = begin, here = count_at(i);
    while (before + here < wanted) {
      before += here;
      here = count_at(++i);
    }
    shared->place = {i, before, here};
  }
  __syncthreads();
  return shared->place;
}

template <class Key>
struct RankedKey {
  Key key;
  uint32_t above, equal;  // how many keys are larger, and how many are the same
};

// The bits of a key above the lowest `bits`.
template <class Key>
__device__ __forceinline__ Key high_part(Key key, int bits) {
  return bits < static_cast<int>(8 * sizeof(Key)) ? key >> bits : Key{0};
}

// The key of rank `wanted` (the largest has rank 1) of those that visit(f) hands to f, spread over the threads. None
// lies above `high`, and the one that is looked for not below `low`; low < high.
template <class Key, class Visit>
__device__ __forceinline__ RankedKey<Key> radix_select(RankShared* shared, Key low, Key high, uint32_t wanted,
                                                       const Visit& visit) {
  int open = 0;  // lowest bits of the key that are not known yet
  for (Key apart = low ^ high; apart != 0; apart >>= 1) ++open;
  RankedKey<Key> found{high, 0, 0};
  while (open > 0) {
    const int digit = min(open, kDigitBits), rest = open - digit;
    const uint32_t bins = 1u << digit;
    for (uint32_t bin = threadIdx.x; bin < bins; bin += kSelectThreads) shared->bins[bin] = 0;
    __syncthreads();
    const Key known = high_part(found.key, open);
    visit([&](Key key) {
      if (high_part(key, open) == known) atomicAdd(&shared->bins[static_cast<uint32_t>(key >> rest) & (bins - 1)], 1u);
    });
    __syncthreads();
    const RankPlace place =
        find_rank(shared, bins, wanted - found.above, [&](uint32_t i) { return shared->bins[bins - 1 - i]; });
    found.key = (known << digit | (bins - 1 - place.index)) << rest;
    found.above += place.before;
    found.equal = place.here;
    open = rest;
  }
  return found;
}

}  // namespace lps
