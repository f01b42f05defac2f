// Kernels that score groups. Partial sums are cut by the sizes alone and added in a fixed order: the same bits always.
//
// Short runs, b < 32: the layer is a matrix of `a` rows and g * b columns; a thread sums one column of a band of rows.
// Threads stand side by side along the columns, and where these are few a block takes several bands.
// Long runs: a warp sums a piece of a run of b weights.
#pragma once

#include "layers.cuh"
#include "scores.h"

namespace lps {

constexpr int kWarp = 32;
constexpr int kWarps = kThreads / kWarp;
constexpr unsigned kAllLanes = 0xffffffffu;

constexpr int64_t kShortRun = kWarp;
constexpr int64_t kBandRows = 64;
constexpr int64_t kPiece = 2048;
constexpr int64_t kFewSums = 64;  // up to so many partial sums of a group are folded by one thread, more by a warp

// Squares that are summed in the dtype of computation before they go on in fp64, which many GPUs have little of.
constexpr int kTerms = 4;

struct GroupSum {
  double total[kRoles];
  uint32_t seen;  // bit s: there is a coordinate in slot s
};

// The terms of `count` coordinates, `stride` apart.
template <class T>
__device__ __forceinline__ GroupSum sum_terms(const ScoreJob& job, int64_t first, int64_t stride, int64_t count) {
  GroupSum sum{};
  for (int64_t k = 0; k < count; k += kTerms) {
    Coordinate<T> read[kTerms];
#pragma unroll
    for (int u = 0; u < kTerms; ++u) {
      read[u] = {0, kNoSlot};
      if (k + u < count) read[u] = read_coordinate<T>(job.source, first + (k + u) * stride);
    }
#pragma unroll
    for (int slot = 0; slot < kRoles; ++slot) {
      ValueOf<T> squares = 0;
      double halves = 0;
#pragma unroll
      for (int u = 0; u < kTerms; ++u) {
        if (read[u].slot != slot) continue;
        sum.seen |= 1u << slot;
        if (job.squares[slot] != 0) {
          squares = squares + read[u].value * read[u].value;
        } else {
          halves += static_cast<double>(read[u].value) - 0.5;
        }
      }
      sum.total[slot] += job.squares[slot] != 0 ? static_cast<double>(squares) : halves;
    }
  }
  return sum;
}

// The sum over all lanes of a warp, in every one of them.
__device__ __forceinline__ GroupSum sum_lanes(GroupSum sum) {
#pragma unroll
  for (int other = kWarp / 2; other > 0; other /= 2) {
#pragma unroll
    for (int slot = 0; slot < kRoles; ++slot) {
      sum.total[slot] += __shfl_xor_sync(kAllLanes, sum.total[slot], other);
    }
    sum.seen |= __shfl_xor_sync(kAllLanes, sum.seen, other);
  }
  return sum;
}

__device__ __forceinline__ void store_sum(const GroupSum& sum, int64_t at, double* sums, uint8_t* seen) {
#pragma unroll
  for (int slot = 0; slot < kRoles; ++slot) sums[at * kRoles + slot] = sum.total[slot];
  seen[at] = static_cast<uint8_t>(sum.seen);
}

// sums[first_sum + band * columns + column]
template <class T>
__device__ __forceinline__ void sum_columns(const ScoreJob& job, uint32_t tile, double* sums, uint8_t* seen) {
  const uint32_t width = static_cast<uint32_t>(job.width);
  const uint32_t strips = parts_of(static_cast<uint32_t>(job.columns), width);
  const int64_t column = tile % strips * width + threadIdx.x % width;
  const int64_t band = tile / strips * (kThreads / width) + threadIdx.x / width;
  if (column >= job.columns || band >= job.outer) return;
  const int64_t row = band * kBandRows, rows = min(job.a - row, kBandRows);
  const GroupSum sum = sum_terms<T>(job, row * job.columns + column, job.columns, rows);
  store_sum(sum, job.first_sum + band * job.columns + column, sums, seen);
}

// sums[first_sum + run * pieces + piece]
template <class T>
__device__ __forceinline__ void sum_runs(const ScoreJob& job, uint32_t tile, double* sums, uint8_t* seen) {
  const uint32_t pieces = static_cast<uint32_t>(job.inner);
  const uint32_t part = tile * kWarps + threadIdx.x / kWarp;
  if (part >= job.a * job.g * pieces) return;
  const int64_t offset = part % pieces * kPiece, lane = threadIdx.x % kWarp;
  const int64_t first = part / pieces * job.b + offset + lane, length = min(job.b - offset, kPiece);
  const GroupSum sum = sum_lanes(sum_terms<T>(job, first, kWarp, parts_of<int64_t>(length - lane, kWarp)));
  if (lane == 0) store_sum(sum, job.first_sum + part, sums, seen);
}

template <class T>
__global__ void __launch_bounds__(kThreads, kBlocks)
    score_parts_kernel(const ScoreJob* jobs, int job_count, int tiles, double* sums, uint8_t* seen) {
  LPS_SHARED(ScoreJob, job);
  for (int tile = static_cast<int>(blockIdx.x); tile < tiles; tile += static_cast<int>(gridDim.x)) {
    __syncthreads();  // the job of the tile before is no longer read
    if (threadIdx.x == 0) *job = jobs[layer_of(tile, job_count, [&](int i) { return jobs[i].first_tile; })];
    __syncthreads();
    const uint32_t of_job = static_cast<uint32_t>(tile - job->first_tile);
    if (job->by_column != 0) {
      sum_columns<T>(*job, of_job, sums, seen);
    } else {
      sum_runs<T>(*job, of_job, sums, seen);
    }
  }
}

// The partial sums of group g, of which a thread takes every `lanes`th.
__device__ __forceinline__ GroupSum fold_group(const ScoreJob& job, int64_t g, uint32_t lane, const double* sums,
                                               const uint8_t* seen) {
  const uint32_t inner = static_cast<uint32_t>(job.inner), count = static_cast<uint32_t>(job.outer) * inner;
  GroupSum sum{};
  for (uint32_t k = lane; k < count; k += static_cast<uint32_t>(job.fold_lanes)) {
    const int64_t at = job.first_sum + (k / inner * job.g + g) * inner + k % inner;
#pragma unroll
    for (int slot = 0; slot < kRoles; ++slot) sum.total[slot] += sums[at * kRoles + slot];
    sum.seen |= seen[at];
  }
  return sum;
}

__device__ __forceinline__ void store_score(const ScoreJob& job, int64_t g, const GroupSum& sum, uint64_t* keys) {
#pragma unroll
  for (int slot = 0; slot < kRoles; ++slot) {
    if (job.source.slot_of_free != slot && job.source.slot_of_owned != slot) continue;
    const double score = job.squares[slot] != 0 ? sqrt(sum.total[slot]) : sum.total[slot];
    const bool present = (sum.seen >> slot & 1) != 0;
    if (job.scores != nullptr) {
      job.scores[g] = present ? score : -INFINITY;
    } else {
      keys[job.first_key[slot] + g] = present ? order_key(score) : 0;
    }
  }
}

__global__ void __launch_bounds__(kThreads, kBlocks)
    score_fold_kernel(const ScoreJob* jobs, int job_count, int tiles, const double* sums, const uint8_t* seen,
                      uint64_t* keys) {
  LPS_SHARED(ScoreJob, job);
  for (int tile = static_cast<int>(blockIdx.x); tile < tiles; tile += static_cast<int>(gridDim.x)) {
    __syncthreads();  // the job of the tile before is no longer read
    if (threadIdx.x == 0) *job = jobs[layer_of(tile, job_count, [&](int i) { return jobs[i].first_fold; })];
    __syncthreads();
    const uint32_t lanes = static_cast<uint32_t>(job->fold_lanes), lane = threadIdx.x % lanes;
    const int64_t g = (tile - job->first_fold) * (kThreads / lanes) + threadIdx.x / lanes;
    if (g >= job->g) continue;  // where lanes are summed, g is that of the whole warp
    GroupSum sum = fold_group(*job, g, lane, sums, seen);
    if (lanes > 1) sum = sum_lanes(sum);
    if (lane == 0) store_score(*job, g, sum, keys);
  }
}

// Of one weight: the magnitude or the value itself.
struct SingleRow {
  const void* x;
  const uint8_t* owner;
  double* scores;
  int64_t count, first_chunk;
};

template <class T>
__global__ void __launch_bounds__(kThreads, kBlocks)
    single_scores_kernel(const SingleRow* rows, int row_count, int chunks, Score score, Region region) {
  LPS_SHARED(SingleRow, row);
  for (int chunk = static_cast<int>(blockIdx.x); chunk < chunks; chunk += static_cast<int>(gridDim.x)) {
    __syncthreads();  // the row of the chunk before is no longer read
    if (threadIdx.x == 0) *row = layer_of_chunk(rows, row_count, chunk);
    __syncthreads();
    const int64_t begin = (chunk - row->first_chunk) * kChunk, end = min(begin + kChunk, row->count);
    for (int64_t i = begin + threadIdx.x; i < end; i += kThreads) {
      const double value = static_cast<double>(widen(static_cast<const T*>(row->x)[i]));
      const bool inside = region == Region::all || is_free(row->owner[i]) == (region == Region::free);
      row->scores[i] = !inside ? -INFINITY : score == Score::l2 ? fabs(value) : value;
    }
  }
}

}  // namespace lps
