// Products with irregular weights. A block of threads takes 128 outputs, half a panel, by a tile of positions, and goes
// through the panel's blocks of 128 columns one by one: what the positions read there goes into shared memory, and so
// does, for each output, where its weights begin and which they are.
//
// A warp has eight neighbouring outputs. With many positions its lanes are positions: a weight meets 32 of them at a
// time. With few its lanes are columns, so that neighbours read neighbouring weights, and the sums of the lanes are
// added up at the end; that is for linear layers alone. Only stored weights are touched.
#pragma once

#include "results.cuh"

namespace lps {

constexpr int kSparseThreads = 512;
constexpr int kSparseWarps = kSparseThreads / 32;
constexpr int kWarpOutputs = 8;
constexpr int kSparseOutputs = kSparseWarps * kWarpOutputs;
static_assert(kSparseRows % kSparseOutputs == 0 && kSparseRows <= kSparseThreads, "rows of one panel");
constexpr unsigned kAllLanes = 0xffffffffu;

// Bits, starts and columns that a block of threads has in shared memory.
template <class T, int positions>
struct SparseTile {
  // Odd, so that lanes that store neighbours in depth go to different banks.
  static constexpr int kStride = positions | 1;
  uint4 bits[kSparseOutputs];  // of each output
  int starts[kSparseOutputs];  // of each output's values, from the first of the block of columns
  int totals[kSparseRows / 32];
  Compute<T> x[kSparseDepth * kStride];
};

// Positions of a tile of many: as many as 48 KiB of shared memory and 64 registers have room for.
template <class T>
constexpr int kManyPositions = sizeof(T) == 8 ? 32 : 64;
constexpr int kFewExamples = 4;   // up to which lanes are columns
constexpr int kSparseBlocks = 2;  // at a time on a multiprocessor, at least

// 128 bits, which begin at any byte.
__device__ __forceinline__ uint4 load_bits(const uint8_t* from) {
  if (reinterpret_cast<uintptr_t>(from) % sizeof(uint4) == 0) return *reinterpret_cast<const uint4*>(from);
  const auto word = [&](int first) {
    uint32_t result = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) result |= static_cast<uint32_t>(from[first + i]) << (8 * i);
    return result;
  };
  return {word(0), word(4), word(8), word(12)};
}

// What the tile's positions read from one block of columns; nothing behind the last position.
template <class T, class A, int positions>
__device__ void load_columns(const A& a, int64_t first, int64_t count, int k, SparseTile<T, positions>& tile) {
  constexpr int kLanes = A::kAlongDepth ? kSparseDepth : positions;
  const int near = static_cast<int>(threadIdx.x) % kLanes, far = static_cast<int>(threadIdx.x) / kLanes;
  if constexpr (A::kAlongDepth) {
    const auto column = a.column(k + near);
    for (int i = far; i < positions && first + i < count; i += kSparseThreads / kLanes) {
      tile.x[near * tile.kStride + i] = widen(a.at(a.row(first + i), column));
    }
  } else if (first + near < count) {
    const auto row = a.row(first + near);
#pragma unroll 2
    for (int i = far; i < kSparseDepth; i += kSparseThreads / kLanes) {
      tile.x[i * tile.kStride + near] = widen(a.at(row, a.column(k + i)));
    }
  }
}

// How a product is cut: by groups of outputs and tiles of positions. Steps of the depth are the blocks of columns.
struct SparseCut {
  unsigned groups;
  int64_t blocks, positions;
  __device__ int first_output() const { return static_cast<int>(blockIdx.x % groups) * kSparseOutputs; }
  __device__ int64_t tile() const { return blockIdx.x / groups; }
};

// Where each output's weights begin: a running sum over the panel's rows in their packed order. All threads call it;
// when it returns, the columns are in place, too.
template <class T, int positions>
__device__ void find_weights(const Sparse<T>& weight, const SparseCut& cut, int block, SparseTile<T, positions>& tile) {
  const int i = static_cast<int>(threadIdx.x), lane = i % 32;
  const int first = cut.first_output() / kSparseRows * kSparseRows;
  const int rows = min(static_cast<int>(weight.outputs) - first, kSparseRows);
  const int64_t at = first * cut.blocks + int64_t{block} * rows + i;
  uint4 bits{0, 0, 0, 0};
  int count = 0, end = 0;
  if (i < kSparseRows) {
    if (i < rows) bits = load_bits(weight.bits + at * (kSparseDepth / 8));
    count = __popc(bits.x) + __popc(bits.y) + __popc(bits.z) + __popc(bits.w);
    end = count;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const int before = __shfl_up_sync(kAllLanes, end, step);
      if (lane >= step) end += before;
    }
    if (lane == 31) tile.totals[i / 32] = end;
  }
  __syncthreads();
  if (i < rows) {
    int start = end - count;
#pragma unroll 1  // seven at most, and registers are scarce
    for (int warp = 0; warp < i / 32; ++warp) start += tile.totals[warp];
    const int output = weight.targets[at] - (cut.first_output() - first);
    if (output >= 0 && output < kSparseOutputs) {
      tile.bits[output] = bits;
      tile.starts[output] = start;
    }
  }
  __syncthreads();
}

// Calls `each(r, bits, values)` for the outputs of this thread's warp, block by block of columns.
template <class T, class A, int positions, class Each>
__device__ __forceinline__ void each_output(const A& a, const Sparse<T>& weight, const Parts<T>& parts,
                                            const SparseCut& cut, SparseTile<T, positions>& tile, const Each& each) {
  const int mine = static_cast<int>(threadIdx.x) / 32 * kWarpOutputs;
  const int outputs = static_cast<int>(weight.outputs) - cut.first_output() - mine;
  const int64_t* offsets = weight.offsets + cut.first_output() / kSparseRows * cut.blocks;
  const int end = static_cast<int>(parts.end());
#pragma unroll 1
  for (int block = static_cast<int>(parts.begin()); block < end; ++block) {
    load_columns<T>(a, cut.tile() * positions, cut.positions, block * kSparseDepth, tile);
    find_weights<T>(weight, cut, block, tile);
    const Device<T>* values = on_device(weight.values) + offsets[block];
#pragma unroll
    for (int r = 0; r < kWarpOutputs; ++r) {
      if (r < outputs) each(r, tile.bits[mine + r], values + tile.starts[mine + r]);
    }
    __syncthreads();
  }
}

// Hands on one sum. The position is number `place` of its image.
template <class T>
__device__ __forceinline__ void finish_sum(const Result<T>& result, const Parts<T>& parts, int64_t output,
                                           int64_t image, int64_t place, Compute<T> sum) {
  if (parts.count > 1) {
    parts.at(result, output, image * result.planes.size + place) = sum;
  } else {
    result.put(result.at(image, output, place), output, sum);
  }
}

template <class T, class A>
__global__ void __launch_bounds__(kSparseThreads, kSparseBlocks)
    sparse_many(const A a, const Sparse<T> weight, const Result<T> result, const Parts<T> parts, const SparseCut cut) {
  constexpr int kPositions = kManyPositions<T>, kLanePositions = kPositions / 32;
  using Tile = SparseTile<T, kPositions>;
  LPS_SHARED(Tile, tile);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  Compute<T> sums[kWarpOutputs][kLanePositions] = {};
  each_output<T>(a, weight, parts, cut, *tile, [&](int r, const uint4& bits, const Device<T>* values) {
#pragma unroll 1
    for (int word = 0; word < 4; ++word) {
      const Compute<T>* x = tile->x + 32 * word * Tile::kStride + lane;
#pragma unroll 1
      for (uint32_t left = reinterpret_cast<const uint32_t*>(&bits)[word]; left != 0; left &= left - 1) {
        const Compute<T> value = widen(*values++);
        const int column = __ffs(static_cast<int>(left)) - 1;
#pragma unroll
        for (int i = 0; i < kLanePositions; ++i) {
          sums[r][i] = fused(value, x[column * Tile::kStride + 32 * i], sums[r][i]);
        }
      }
    }
  });
  const int64_t first = cut.first_output() + static_cast<int>(threadIdx.x) / 32 * kWarpOutputs;
#pragma unroll
  for (int i = 0; i < kLanePositions; ++i) {
    const int64_t position = cut.tile() * kPositions + 32 * i + lane;
    if (position >= result.positions()) break;
    const int64_t image = result.planes.image(position), place = position - image * result.planes.size;
#pragma unroll
    for (int r = 0; r < kWarpOutputs; ++r) {
      if (first + r < result.outputs) finish_sum(result, parts, first + r, image, place, sums[r][i]);
    }
  }
}

// Lanes that are `half` apart share 2 half numbers between them, and so on down to one: each has a sum over 2 half
// lanes then, that of number lane % (2 half).
template <int half, class Number, int count>
__device__ __forceinline__ void share(Number (&numbers)[count], int lane) {
  if constexpr (half > 0) {
#pragma unroll
    for (int i = 0; i < half; ++i) {
      const bool upper = (lane & half) != 0;
      const Number given = upper ? numbers[i] : numbers[i + half];
      numbers[i] = (upper ? numbers[i + half] : numbers[i]) + __shfl_xor_sync(kAllLanes, given, half);
    }
    share<half / 2>(numbers, lane);
  }
}
// The sums of `count` numbers, a power of two, over the lanes of a warp: lane i gets that of number i % count.
template <class Number, int count>
__device__ __forceinline__ Number add_lanes(Number (&numbers)[count], int lane) {
  share<count / 2>(numbers, lane);
  Number sum = numbers[0];
#pragma unroll
  for (int step = count; step < 32; step *= 2) sum += __shfl_xor_sync(kAllLanes, sum, step);
  return sum;
}

template <class T, class A>
__global__ void __launch_bounds__(kSparseThreads, kSparseBlocks)
    sparse_few(const A a, const Sparse<T> weight, const Result<T> result, const Parts<T> parts, const SparseCut cut) {
  using Tile = SparseTile<T, 1>;
  LPS_SHARED(Tile, tile);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  Compute<T> sums[kWarpOutputs] = {};
  each_output<T>(a, weight, parts, cut, *tile, [&](int r, const uint4& bits, const Device<T>* values) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t word = reinterpret_cast<const uint32_t*>(&bits)[i];
      if ((word >> lane & 1) != 0) {
        const Compute<T> value = widen(values[__popc(word & ((1u << lane) - 1))]);
        sums[r] = fused(value, tile->x[(32 * i + lane) * Tile::kStride], sums[r]);
      }
      values += __popc(word);
    }
  });
  const Compute<T> sum = add_lanes(sums, lane);
  const int64_t output = cut.first_output() + static_cast<int>(threadIdx.x) / 32 * kWarpOutputs + lane;
  if (lane < kWarpOutputs && output < result.outputs) finish_sum(result, parts, output, cut.tile(), int64_t{0}, sum);
}

}  // namespace lps
