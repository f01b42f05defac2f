// The last step of a selection: one block finds the key of the last survivor and, among its ties, the last index.
#pragma once

#include "select.cuh"

namespace lps {

// What a search found, whether anything was cut off, and whether the threshold lay inside the bracket.
struct Resolved {
  Found found;
  bool cut_off, collected;
};

// One selection among coordinates, as the block that resolves it sees it.
template <class T>
struct WeightSearch {
  using Key = KeyOf<T>;
  const SelectBatch& batch;
  const SelectJob& job;
  const SelectLayer& layer;
  RankShared* shared;
  uint32_t count, chunks;  // of the layer's weights and chunks

  __device__ __forceinline__ Key key(uint32_t i) const { return key_at<T>(layer, job, i); }
  __device__ __forceinline__ Tally& tally(uint32_t chunk) const {
    return batch.tallies[(layer.first_chunk + chunk) * kRoles + job.slot];
  }
  __device__ __forceinline__ const Key& candidate(uint32_t chunk, uint32_t i) const {
    const Key* keys = static_cast<const Key*>(batch.candidates) + (layer.first_chunk + chunk) * kChunk;
    return keys[job.slot == 0 ? i : kChunk - 1 - i];
  }

  // How many threads go through a chunk with so many keys together: a warp, or eight, which read 32 bytes of fp32,
  // where keys are few; the whole block where there are fewer chunks than warps.
  __device__ __forceinline__ uint32_t team_for(uint32_t keys) const {
    return chunks < kSelectThreads / 32 ? kSelectThreads : keys < 128 ? 8 : 32;
  }

  // Calls body(chunk, member, members), a thread being one `member` of `members`.
  template <class Body>
  __device__ __forceinline__ void for_chunks(uint32_t team, const Body& body) const {
    for (uint32_t chunk = threadIdx.x / team; chunk < chunks; chunk += kSelectThreads / team) {
      body(chunk, threadIdx.x % team, team);
    }
  }

  // Calls f with every `step`th key from `first` on, but not with 0. Several are on their way from memory together.
  template <class F, class KeyAt>
  __device__ __forceinline__ static void visit_keys(uint32_t first, uint32_t end, uint32_t step, const F& f,
                                                    const KeyAt& key_at) {
    constexpr uint32_t kTogether = 4;
    for (uint32_t i = first; i < end; i += kTogether * step) {
      Key keys[kTogether];
#pragma unroll
      for (uint32_t u = 0; u < kTogether; ++u) keys[u] = i + u * step < end ? key_at(i + u * step) : Key{0};
#pragma unroll
      for (uint32_t u = 0; u < kTogether; ++u) {
        if (keys[u] != 0) f(keys[u]);
      }
    }
  }

  // The key of rank `wanted` among the candidates of all chunks, or among all coordinates.
  __device__ __forceinline__ RankedKey<Key> among_candidates(Key low, Key high, uint32_t wanted, uint32_t team) const {
    return radix_select(shared, low, high, wanted, [&](const auto& f) {
      for_chunks(team, [&](uint32_t chunk, uint32_t member, uint32_t members) {
        const uint32_t inside = tally(chunk).inside;
        visit_keys(member, inside, members, f, [&](uint32_t i) { return candidate(chunk, i); });
      });
    });
  }
  __device__ __forceinline__ RankedKey<Key> among_all(uint32_t wanted) const {
    return radix_select(shared, static_cast<Key>(job.floor), kHighestKey<T>, wanted, [&](const auto& f) {
      visit_keys(threadIdx.x, count, kSelectThreads, f, [&](uint32_t i) { return key(i); });
    });
  }

  // Ties that this thread finds in a chunk.
  __device__ __forceinline__ uint32_t ties(uint32_t chunk, uint32_t member, uint32_t members, Key threshold,
                                           bool collected) const {
    uint32_t found = 0;
    if (collected) {
      const uint32_t inside = tally(chunk).inside;
      for (uint32_t i = member; i < inside; i += members) found += candidate(chunk, i) == threshold;
    } else {
      const uint32_t begin = chunk * kChunk, end = min(begin + static_cast<uint32_t>(kChunk), count);
      for (uint32_t i = begin + member; i < end; i += members) found += key(i) == threshold;
    }
    return found;
  }

  // The index of tie number `wanted` (from 1). Where the bracket was one key, all that lie inside are ties; else they
  // are counted, among the candidates where these were collected.
  __device__ __forceinline__ int64_t last_tie(Key threshold, uint32_t wanted, bool collected, bool one_key,
                                              uint32_t team) const {
    for_chunks(team, [&](uint32_t chunk, uint32_t member, uint32_t) {
      if (member == 0) tally(chunk).ties = one_key ? tally(chunk).inside : 0;
    });
    __syncthreads();
    if (!one_key) {
      for_chunks(team, [&](uint32_t chunk, uint32_t member, uint32_t members) {
        const uint32_t found = ties(chunk, member, members, threshold, collected);
        if (found > 0) atomicAdd(&tally(chunk).ties, found);
      });
      __syncthreads();
    }
    const RankPlace chunk = find_rank(shared, chunks, wanted, [&](uint32_t i) { return tally(i).ties; });
    const uint32_t begin = chunk.index * kChunk, size = min(static_cast<uint32_t>(kChunk), count - begin);
    const RankPlace tie = find_rank(shared, size, wanted - chunk.before,
                                    [&](uint32_t i) { return key(begin + i) == threshold ? 1u : 0u; });
    return begin + tie.index;
  }

  __device__ __forceinline__ Resolved resolve(Key low, Key high) const {
    const uint32_t keep = static_cast<uint32_t>(job.keep);
    uint32_t above = 0, inside = 0, members = 0;
    for (uint32_t chunk = threadIdx.x; chunk < chunks; chunk += kSelectThreads) {
      above += tally(chunk).above;
      inside += tally(chunk).inside;
      members += tally(chunk).members;
    }
    above = sum_threads(shared, above).total;
    inside = sum_threads(shared, inside).total;
    members = sum_threads(shared, members).total;
    if (keep >= members) return {{0, 0, job.floor, count}, false, false};
    const bool collected = above < keep && keep <= above + inside, one_key = collected && low == high;
    const uint32_t team = team_for(collected ? inside / chunks : static_cast<uint32_t>(kChunk));
    RankedKey<Key> last{low, 0, inside};
    if (!collected) {
      last = among_all(keep);
    } else {
      if (!one_key) last = among_candidates(low, high, keep - above, team);
      last.above += above;
    }
    const uint32_t wanted = keep - last.above;
    const int64_t tie = wanted == last.equal ? count : last_tie(last.key, wanted, collected, one_key, team);
    return {{0, 0, last.key, tie}, true, collected};
  }
};

// Groups of several weights, by the keys of their scores. Writes one byte per group.
__device__ __forceinline__ void resolve_groups(const SelectBatch& batch, const SelectJob& job, RankShared* shared) {
  const uint64_t* keys = batch.keys + job.first_key;
  const uint32_t count = static_cast<uint32_t>(job.g), keep = static_cast<uint32_t>(job.keep);
  uint32_t mine = 0;
  for (uint32_t g = threadIdx.x; g < count; g += kSelectThreads) mine += keys[g] >= job.floor;
  const uint32_t present = sum_threads(shared, mine).total;
  // Of the groups that have the threshold for a key, those before the index `end` survive.
  uint64_t threshold = keep == 0 ? kHighestKey<double> : job.floor;
  uint32_t end = keep == 0 ? 0 : count;
  if (keep > 0 && keep < present) {
    const auto last = radix_select(shared, job.floor, kHighestKey<double>, keep, [&](const auto& f) {
      for (uint32_t g = threadIdx.x; g < count; g += kSelectThreads) {
        if (keys[g] >= job.floor) f(keys[g]);
      }
    });
    threshold = last.key;
    if (keep - last.above < last.equal) {
      const auto is_tie = [&](uint32_t g) { return keys[g] == threshold ? 1u : 0u; };
      end = find_rank(shared, count, keep - last.above, is_tie).index + 1;
    }
  }
  for (uint32_t g = threadIdx.x; g < count; g += kSelectThreads) {
    batch.groups[job.first_key + g] = keys[g] > threshold || (keys[g] == threshold && g < end);
  }
}

template <class T>
__global__ void __launch_bounds__(kSelectThreads, kSelectBlocks) resolve_kernel(SelectBatch batch) {
  using Key = KeyOf<T>;
  LPS_SHARED(SearchShared, shared);
  stage_search(batch, shared);
  const SelectJob& job = shared->job;
  const SelectLayer& layer = shared->layer;
  if (job.grouped != 0) return resolve_groups(batch, job, &shared->rank);
  // A threshold that no key passes, or that all reach that take part.
  Found found{0, 0, kHighestKey<T>, -1};
  if (job.keep >= job.g) {
    found = {0, 0, job.floor, layer.count};
  } else if (job.keep > 0) {
    const Found bracket = batch.found[blockIdx.x];
    const uint32_t count = static_cast<uint32_t>(layer.count), chunks = parts_of<uint32_t>(count, kChunk);
    const WeightSearch<T> search{batch, job, layer, &shared->rank, count, chunks};
    found = search.resolve(static_cast<Key>(bracket.low), static_cast<Key>(bracket.high)).found;
  }
  if (threadIdx.x == 0) batch.found[blockIdx.x] = found;
}

}  // namespace lps
