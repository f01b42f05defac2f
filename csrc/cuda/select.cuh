// Exact top-k for a batch of layers of unequal size, in the same few launches for any number of layers.
//
// A sample of each layer brackets the key of its k-th best coordinate; one pass over all layers counts what lies above
// the bracket and collects the few keys inside it; radix select on those finds the exact key, and a scan of the chunk
// that holds the last tie its index. Where a bracket missed, the block that finds out selects from the whole layer:
// slow, but the result is always exact, and the same for any sample.
#pragma once

#include "rank.cuh"
#include "select.h"

namespace lps {

constexpr int kSample = 4096;  // coordinates drawn from a layer; the bracket then holds 5 to 8 % of its keys
constexpr int64_t kSmallLayer = 2 * kSample;  // up to this size every key is collected

// The selection that a block searches for, and its layer.
struct SearchShared {
  RankShared rank;
  SelectJob job;
  SelectLayer layer;
};
__device__ __forceinline__ void stage_search(const SelectBatch& batch, SearchShared* shared) {
  if (threadIdx.x == 0) {
    shared->job = batch.jobs[blockIdx.x];
    shared->layer = batch.layers[shared->job.layer];
  }
  __syncthreads();
}

template <class Key>
struct SampleShared {
  SearchShared search;
  Key keys[kSample];
};

// 0 where the coordinate belongs to another slot or does not take part.
template <class T>
__device__ __forceinline__ KeyOf<T> key_at(const SelectLayer& layer, const SelectJob& job, int64_t i) {
  const Coordinate<T> read = read_coordinate<T>(layer.source, i);
  const KeyOf<T> key = weight_key<T>(read.value, job.by_magnitude != 0);
  return read.slot == job.slot && key >= job.floor ? key : 0;
}

// Whether a job needs no search: all of its coordinates that take part survive, or none.
__device__ __forceinline__ bool is_trivial(const SelectJob& job) { return job.keep == 0 || job.keep >= job.g; }

// One coordinate of each of kSample stretches of a layer; a fixed sequence, so that every run does the same.
__device__ __forceinline__ int64_t drawn_coordinate(int draw, int64_t count) {
  const int64_t begin = draw * count / kSample, end = (draw + 1) * count / kSample;
  uint32_t random = static_cast<uint32_t>(draw) * 0x9e3779b9u;
  random = (random ^ random >> 16) * 0x85ebca6bu;
  random = (random ^ random >> 13) * 0xc2b2ae35u;
  return begin + (random ^ random >> 16) % static_cast<uint32_t>(end - begin);
}

template <class T>
__global__ void __launch_bounds__(kSelectThreads, kSelectBlocks) sample_kernel(SelectBatch batch) {
  using Key = KeyOf<T>;
  LPS_SHARED(SampleShared<Key>, shared);
  stage_search(batch, &shared->search);
  const SelectJob& job = shared->search.job;
  const SelectLayer& layer = shared->search.layer;
  RankShared* ranks = &shared->search.rank;
  if (job.grouped != 0) return;
  Key low = static_cast<Key>(job.floor), high = kHighestKey<T>;
  if (is_trivial(job)) {
    low = high;  // nothing is to be collected
  } else if (layer.count > kSmallLayer) {
    uint32_t mine = 0;
    for (int draw = static_cast<int>(threadIdx.x); draw < kSample; draw += kSelectThreads) {
      shared->keys[draw] = key_at<T>(layer, job, drawn_coordinate(draw, layer.count));
      mine += shared->keys[draw] != 0;
    }
    const uint32_t members = sum_threads(ranks, mine).total;
    const auto visit = [&](const auto& f) {
      for (int draw = static_cast<int>(threadIdx.x); draw < kSample; draw += kSelectThreads) {
        if (shared->keys[draw] != 0) f(shared->keys[draw]);
      }
    };
    // Where the k-th best should lie in the sample, and five deviations to each side, as neighbours may be alike.
    const double share = static_cast<double>(job.keep) / static_cast<double>(layer.count), rank = share * kSample;
    const double slack = 5 * sqrt(max(rank * (1 - share), 1.0)) + 8;
    const double few = rank - slack, many = rank + slack;
    if (many < members) low = radix_select(ranks, low, high, static_cast<uint32_t>(many), visit).key;
    if (few >= 1 && few <= members && low < high) {
      high = radix_select(ranks, low, high, static_cast<uint32_t>(few), visit).key;
    }
  }
  if (threadIdx.x == 0) batch.found[blockIdx.x] = {low, high, 0, 0};
}

template <class Key>
struct CollectShared {
  SelectLayer layer;
  Key floor[kRoles], low[kRoles], high[kRoles];  // floor <= low
  bool searched[kRoles], by_magnitude[kRoles];
  Tally tally[kRoles];
};

// By thread 0: what the block needs to know of a chunk. Slots without a search have no members.
template <class Key>
__device__ __forceinline__ void stage_chunk(const SelectBatch& batch, int chunk, CollectShared<Key>* shared) {
  shared->layer = layer_of_chunk(batch.layers, batch.layer_count, chunk);
  for (int slot = 0; slot < kRoles; ++slot) {
    shared->searched[slot] = false;
    shared->tally[slot] = {};
    const WeightSource& source = shared->layer.source;
    if (source.slot_of_free != slot && source.slot_of_owned != slot) continue;
    const SelectJob& job = batch.jobs[shared->layer.first_job + slot];
    if (job.grouped != 0 || is_trivial(job)) continue;
    const Found& found = batch.found[shared->layer.first_job + slot];
    shared->searched[slot] = true;
    shared->floor[slot] = static_cast<Key>(job.floor);
    shared->low[slot] = static_cast<Key>(found.low);
    shared->high[slot] = static_cast<Key>(found.high);
    shared->by_magnitude[slot] = job.by_magnitude != 0;
  }
}

__device__ __forceinline__ uint32_t sum_warp(uint32_t x) {
  for (int other = 16; other > 0; other /= 2) x += __shfl_xor_sync(0xffffffffu, x, other);
  return x;
}

// Calls write(j, at) for the keys j whose bits are set, with places `at` of their chunk's room: those of the warp side
// by side, slot 0 from the front and slot 1 from the back. In which order does not matter.
template <int N, class Write>
__device__ __forceinline__ void place_candidates(uint32_t bits, int slot, uint32_t* used, const Write& write) {
  const uint32_t lane = threadIdx.x % 32;
  uint32_t lanes[N], total = 0;
#pragma unroll
  for (int j = 0; j < N; ++j) {
    lanes[j] = __ballot_sync(0xffffffffu, bits >> j & 1);
    total += __popc(lanes[j]);
  }
  if (total == 0) return;
  uint32_t next = lane == 0 ? atomicAdd(used, total) : 0;
  next = __shfl_sync(0xffffffffu, next, 0);
#pragma unroll
  for (int j = 0; j < N; ++j) {
    const int64_t at = next + __popc(lanes[j] & ((1u << lane) - 1));
    if (bits >> j & 1) write(j, slot == 0 ? at : kChunk - 1 - at);
    next += __popc(lanes[j]);
  }
}

template <class T>
__device__ __forceinline__ void collect_chunk(CollectShared<KeyOf<T>>* shared, int64_t index, KeyOf<T>* candidates) {
  using Key = KeyOf<T>;
  constexpr int N = kPack<T>;
  const SelectLayer& layer = shared->layer;
  uint32_t above[kRoles] = {}, members[kRoles] = {};
  for_chunk_packs<N>(index, layer.count, layer.aligned != 0, [&](const PackPlace& place) {
    const Coordinates<T> read = read_coordinates<T>(layer.source, place);
#pragma unroll
    for (int slot = 0; slot < kRoles; ++slot) {
      if (!shared->searched[slot]) continue;
      const Key low = shared->low[slot], high = shared->high[slot];
      const uint32_t here = read.members(layer.source, place, slot);
      uint32_t inside = 0, taking_part = 0;
      Key keys[N];
#pragma unroll
      for (int j = 0; j < N; ++j) {
        keys[j] = weight_key<T>(read.value[j], shared->by_magnitude[slot]);
        above[slot] += (here >> j & 1) != 0 && keys[j] > high;
        inside |= static_cast<uint32_t>(keys[j] >= low && keys[j] <= high) << j;
        taking_part |= static_cast<uint32_t>(keys[j] >= shared->floor[slot]) << j;
      }
      members[slot] += __popc(here & taking_part);
      place_candidates<N>(inside & here, slot, &shared->tally[slot].inside, [&](int j, int64_t at) {
        // A bracket of one key needs no list of the keys inside it.
        if (low < high) candidates[at] = keys[j];
      });
    }
  });
  for (int slot = 0; slot < kRoles; ++slot) {
    if (!shared->searched[slot]) continue;
    const uint32_t above_here = sum_warp(above[slot]), members_here = sum_warp(members[slot]);
    if (threadIdx.x % 32 != 0) continue;
    atomicAdd(&shared->tally[slot].above, above_here);
    atomicAdd(&shared->tally[slot].members, members_here);
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads, kBlocks) collect_kernel(SelectBatch batch) {
  using Key = KeyOf<T>;
  LPS_SHARED(CollectShared<Key>, shared);
  for (int chunk = static_cast<int>(blockIdx.x); chunk < batch.chunks; chunk += static_cast<int>(gridDim.x)) {
    __syncthreads();  // what is known of the chunk before is no longer read
    if (threadIdx.x == 0) stage_chunk(batch, chunk, shared);
    __syncthreads();
    if (!shared->searched[0] && !shared->searched[1]) continue;
    Key* candidates = static_cast<Key*>(batch.candidates) + chunk * kChunk;
    collect_chunk<T>(shared, chunk - shared->layer.first_chunk, candidates);
    __syncthreads();
    if (threadIdx.x < kRoles) batch.tallies[chunk * kRoles + threadIdx.x] = shared->tally[threadIdx.x];
  }
}

}  // namespace lps
