// The tiled product of dense matrices: sum over k of a[m, k] b[n, k], finished into y[m, n].
//
// A block of 128 threads computes 64 x 64 sums, a warp 32 x 32 of them. The factors come in steps of 16 words of depth
// (16 floats or 32 half floats) through registers into shared memory; while one step is multiplied, the next is on its
// way, so shared memory holds two.
//
// A float has more digits than TF32: it is taken as the sum of two TF32 numbers, high and low, and the product of two
// floats as high high + (high low + low high). The second sum is kept apart: an Inf or NaN reaches the first, and then
// the second, where Inf - Inf or 0 Inf may come up, does not count.
//
// Tensor cores cut off what their sums have too many digits for, so a long sum that they go on with drifts towards
// zero. Of floats they sum eight products at a time; these are added up, and rounded, by the ordinary cores.
#pragma once

#include "results.cuh"

namespace lps {

constexpr int kTile = 64;          // rows of each factor in a tile
constexpr int kWords = 16;         // words of depth in a step
constexpr int kStep = 8;           // words of depth that one instruction of the tensor cores takes
constexpr int kTileThreads = 128;  // four warps, two by two
constexpr int kTileBlocks = 2;     // at a time on a multiprocessor: leaves a thread all registers that it can name
constexpr int kWarpTile = 32;
constexpr int kSlots = kTile * kWords / kTileThreads;  // words of a factor that a thread brings in a step
constexpr int kAcross = kWarpTile / 16, kAlong = kWarpTile / 8;

// Where a word of a factor's tile is in shared memory. Strides are such that the words of a fragment (eight rows, four
// words of depth) are in 32 different banks, and so are, about, the words that a warp stores.
template <class T, class Factor>
__device__ __forceinline__ int place(int row, int word) {
  constexpr int kRowStep = sizeof(Word<T>) == 8 ? kWords + 2 : kWords + 4;
  return Factor::kAlongDepth ? row * kRowStep + word : word * (kTile + 8) + row;
}
template <class T>
constexpr int kPlane = sizeof(Word<T>) == 8 ? kTile * (kWords + 2) : kTile * (kWords + 4);
static_assert(kPlane<double> >= kWords * (kTile + 8), "both layouts fit");
// The two factors, floats as high and low parts.
template <class T>
constexpr int kPlanes = sizeof(T) == 4 ? 4 : 2;

// The words of a factor's tile that a thread brings from global to shared memory. In place of rows behind the last it
// brings that one again: what becomes of it is not written. So loads depend on nothing and are all under way together.
template <class T, class Factor>
class Loader {
 public:
  __device__ Loader(const Factor& factor, int64_t first, int64_t rows) : factor_(factor), more_(0) {
    const int64_t row = first + row_in_tile(0), behind = rows - 1 - row;
    row_ = factor.row(behind > 0 ? row : rows - 1);
    if (behind > 0) more_ = static_cast<int>(min(behind, int64_t{kTile})) / kApart;
  }

  __device__ void load(int k) {
    typename Factor::Row row = row_;
    typename Factor::Column columns[kElements];
    if constexpr (Factor::kAlongDepth) find(columns, k);
#pragma unroll
    for (int slot = 0; slot < kSlots; ++slot) {
      if constexpr (!Factor::kAlongDepth) find(columns, k + slot * kApart * kElements);
#pragma unroll
      for (int i = 0; i < kElements; ++i) staged_[slot][i] = factor_.at(row, columns[i]);
      if constexpr (Factor::kAlongDepth) row = factor_.after(row, slot < more_ ? kApart : 0);
    }
  }

  // Floats for tensor cores are split here, once for all warps; the low parts follow a plane later.
  __device__ void store(Word<T>* plane, bool low) const {
#pragma unroll
    for (int slot = 0; slot < kSlots; ++slot) {
      Word<T>* to = plane + place<T, Factor>(row_in_tile(slot), word_in_step(slot));
      if constexpr (sizeof(T) == 4 && Words<T>::kTensorCores) {
        const float x = staged_[slot][0];
        const uint32_t high = to_tf32(x);
        *to = high;
        if (low) to[kPlane<T>] = rest_of_tf32(x, high);
      } else {
        *to = to_word<T>(staged_[slot]);
      }
    }
  }

 private:
  static constexpr int kElements = Words<T>::kElements;
  // Threads of a row of words or of a column of rows; the slots of a thread are so many rows or words apart.
  static constexpr int kLanes = Factor::kAlongDepth ? kWords : kTile, kApart = kTileThreads / kLanes;

  __device__ static int row_in_tile(int slot) {
    const int thread = static_cast<int>(threadIdx.x);
    return Factor::kAlongDepth ? thread / kLanes + slot * kApart : thread % kLanes;
  }
  __device__ static int word_in_step(int slot) {
    const int thread = static_cast<int>(threadIdx.x);
    return Factor::kAlongDepth ? thread % kLanes : thread / kLanes + slot * kApart;
  }
  __device__ void find(typename Factor::Column (&columns)[kElements], int k) const {
#pragma unroll
    for (int i = 0; i < kElements; ++i) columns[i] = factor_.column(k + word_in_step(0) * kElements + i);
  }

  const Factor& factor_;
  typename Factor::Row row_;  // of the first slot
  int more_;                  // slots after the first whose row is there
  Device<T> staged_[kSlots][kElements];
};

// The 32 sums of a thread: 2 x 4 fragments of mma.sync, of which it has two neighbours in each of two rows.
template <class T>
struct Sums {
  Compute<T> high[kAcross][kAlong][4] = {};
  __device__ Compute<T> get(int i, int j, int e) const { return high[i][j][e]; }
};
template <>
struct Sums<float> {
  float high[kAcross][kAlong][4] = {}, low[kAcross][kAlong][4] = {};
  __device__ float get(int i, int j, int e) const {
    return is_finite(high[i][j][e]) ? high[i][j][e] + low[i][j][e] : high[i][j][e];
  }
};

// A thread's place in its block's sums; it has rows `m` and m + 8 and columns `n` and n + 1 of each fragment.
struct Place {
  int lane, m_first, n_first;

  __device__ Place() {
    const int warp = static_cast<int>(threadIdx.x) / 32;
    lane = static_cast<int>(threadIdx.x) % 32;
    m_first = warp / 2 * kWarpTile;
    n_first = warp % 2 * kWarpTile;
  }
  __device__ int m(int i, int e) const { return m_first + 16 * i + lane / 4 + 8 * (e / 2); }
  __device__ int n(int j, int e) const { return n_first + 8 * j + lane % 4 * 2 + e % 2; }
};

template <class T, class A, class B, bool low>
__device__ __forceinline__ void multiply_on_tensor_cores(const Word<T>* a, const Word<T>* b, const Place& at,
                                                         Sums<T>& sums) {
  const int group = at.lane / 4, word = at.lane % 4;
  const auto a_part = [&](const Word<T>* plane, int k, int i, uint32_t (&part)[4]) {
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      part[r] = plane[place<T, A>(at.m_first + 16 * i + group + 8 * (r % 2), k + word + 4 * (r / 2))];
    }
  };
  const auto b_part = [&](const Word<T>* plane, int k, int j, uint32_t (&part)[2]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) part[r] = plane[place<T, B>(at.n_first + 8 * j + group, k + word + 4 * r)];
  };
#pragma unroll
  for (int k = 0; k < kWords; k += kStep) {
    uint32_t a_high[kAcross][4], a_low[kAcross][4];
#pragma unroll
    for (int i = 0; i < kAcross; ++i) {
      a_part(a, k, i, a_high[i]);
      if constexpr (low) a_part(a + kPlane<T>, k, i, a_low[i]);
    }
#pragma unroll
    for (int j = 0; j < kAlong; ++j) {
      uint32_t b_high[2], b_low[2];
      b_part(b, k, j, b_high);
      if constexpr (low) b_part(b + kPlane<T>, k, j, b_low);
#pragma unroll
      for (int i = 0; i < kAcross; ++i) {
        if constexpr (low) {
          float part[4] = {};
          multiply_add<T>(part, a_high[i], b_high);
#pragma unroll
          for (int e = 0; e < 4; ++e) sums.high[i][j][e] += part[e];
          multiply_add<T>(sums.low[i][j], a_high[i], b_low);
          multiply_add<T>(sums.low[i][j], a_low[i], b_high);
        } else {
          multiply_add<T>(sums.high[i][j], a_high[i], b_high);
        }
      }
    }
  }
}

template <class T, class A, class B>
__device__ __forceinline__ void multiply_plainly(const Word<T>* a, const Word<T>* b, const Place& at, Sums<T>& sums) {
#pragma unroll 4
  for (int k = 0; k < kWords; ++k) {
    Word<T> a_words[kAcross][2], b_words[kAlong][2];
#pragma unroll
    for (int i = 0; i < kAcross; ++i) {
#pragma unroll
      for (int e = 0; e < 2; ++e) a_words[i][e] = a[place<T, A>(at.m(i, 2 * e), k)];
    }
#pragma unroll
    for (int j = 0; j < kAlong; ++j) {
#pragma unroll
      for (int e = 0; e < 2; ++e) b_words[j][e] = b[place<T, B>(at.n(j, e), k)];
    }
#pragma unroll
    for (int element = 0; element < Words<T>::kElements; ++element) {
#pragma unroll
      for (int i = 0; i < kAcross; ++i) {
#pragma unroll
        for (int j = 0; j < kAlong; ++j) {
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            sums.high[i][j][e] = fused(element_of<T>(a_words[i][e / 2], element),
                                       element_of<T>(b_words[j][e % 2], element), sums.high[i][j][e]);
          }
        }
      }
    }
  }
}

template <class T, class A, class B>
__device__ __forceinline__ void multiply_step(const Word<T>* a, const Word<T>* b, const Place& at, bool low,
                                              Sums<T>& sums) {
  if constexpr (!Words<T>::kTensorCores) {
    multiply_plainly<T, A, B>(a, b, at, sums);
  } else if constexpr (sizeof(T) == 4) {
    if (low) {
      multiply_on_tensor_cores<T, A, B, true>(a, b, at, sums);
    } else {
      multiply_on_tensor_cores<T, A, B, false>(a, b, at, sums);
    }
  } else {
    multiply_on_tensor_cores<T, A, B, false>(a, b, at, sums);
  }
}

// How a product is cut into tiles: the shorter side first, so that blocks that run together read the same rows of the
// longer one.
struct Cut {
  int64_t m, n;
  unsigned m_tiles, n_tiles;
  bool low;  // floats are multiplied in two parts each
};

// Hands on the sums of a tile, through shared memory so that the lanes of a warp write neighbours: outputs of an
// example, or else positions.
template <class T>
__device__ void finish_tile(const Sums<T>& sums, const Place& at, Compute<T>* shared, const Result<T>& result,
                            const Parts<T>& parts, const Cut& cut, int64_t m, int64_t n) {
  constexpr int kStride = kTile + 1;
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kAcross; ++i) {
#pragma unroll
    for (int j = 0; j < kAlong; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) shared[at.m(i, e) * kStride + at.n(j, e)] = sums.get(i, j, e);
    }
  }
  __syncthreads();
  const bool along_outputs = result.planes.size == 1 && parts.count == 1;
  const int near = static_cast<int>(threadIdx.x) % kTile;
  const int64_t image = along_outputs ? 0 : result.planes.image(m + near);
  const int64_t place = along_outputs ? 0 : m + near - image * result.planes.size;
#pragma unroll 1
  for (int far = static_cast<int>(threadIdx.x) / kTile; far < kTile; far += kTileThreads / kTile) {
    const int m_at = along_outputs ? far : near, n_at = along_outputs ? near : far;
    if (m + m_at >= cut.m || n + n_at >= cut.n) continue;
    const Compute<T> sum = shared[m_at * kStride + n_at];
    if (parts.count > 1) {
      parts.at(result, n + n_at, m + m_at) = sum;
    } else {
      const int64_t output = result.output_of(n + n_at);
      result.put(result.at(along_outputs ? m + m_at : image, output, place), output, sum);
    }
  }
}

template <class T, class A, class B>
__global__ void __launch_bounds__(kTileThreads, kTileBlocks)
    matrix_product(const A a, const B b, const Result<T> result, const Parts<T> parts, const Cut cut) {
  LPS_SHARED(Word<T>, shared);
  constexpr int kBuffer = kPlanes<T> * kPlane<T>, kDepth = kWords * Words<T>::kElements;
  static_assert(2 * kBuffer * sizeof(Word<T>) >= kTile * (kTile + 1) * sizeof(Compute<T>), "the sums fit too");
  const bool m_first = cut.m_tiles < cut.n_tiles;
  const int64_t m = int64_t{m_first ? blockIdx.x % cut.m_tiles : blockIdx.x / cut.n_tiles} * kTile;
  const int64_t n = int64_t{m_first ? blockIdx.x / cut.m_tiles : blockIdx.x % cut.n_tiles} * kTile;
  const int begin = static_cast<int>(parts.begin()), end = static_cast<int>(parts.end());

  Loader<T, A> a_loader(a, m, cut.m);
  Loader<T, B> b_loader(b, n, cut.n);
  const auto load = [&](int step) {
    a_loader.load(step * kDepth);
    b_loader.load(step * kDepth);
  };
  const auto store = [&](Word<T>* buffer) {
    a_loader.store(buffer, cut.low);
    b_loader.store(buffer + kBuffer / 2, cut.low);
  };
  const Place at;
  const bool idle = m + at.m_first >= cut.m || n + at.n_first >= cut.n;  // all of the warp lies beyond the matrix
  Sums<T> sums;
  if (begin < end) {
    load(begin);
    store(shared);
  }
#pragma unroll 1
  for (int step = begin; step < end; ++step) {
    Word<T>* current = shared + (step - begin) % 2 * kBuffer;
    Word<T>* next = shared + (step + 1 - begin) % 2 * kBuffer;
    __syncthreads();
    if (step + 1 < end) load(step + 1);
    if (!idle) multiply_step<T, A, B>(current, current + kBuffer / 2, at, cut.low, sums);
    if (step + 1 < end) store(next);
  }
  finish_tile(sums, at, reinterpret_cast<Compute<T>*>(shared), result, parts, cut, m, n);
}

// All of y: the rows of the product a b^T, and the outputs that have none.
template <class T, class A, class B>
void multiply(const Gpu& gpu, const A& a, const B& b, int64_t depth, const Result<T>& result) {
  const int64_t m = result.positions(), n = result.row_count;
  if (m == 0 || result.outputs == 0) return;
  if (n < result.outputs) {
    LPS_LAUNCH(gpu, finish_absent<T>, finish_blocks(gpu, m * result.outputs), kFinishThreads, 0, result);
  }
  if (n == 0) return;
  const int64_t m_tiles = parts_of(m, int64_t{kTile}), n_tiles = parts_of(n, int64_t{kTile});
  const Cut cut{m, n, static_cast<unsigned>(m_tiles), static_cast<unsigned>(n_tiles), !gpu.tf32};
  const int64_t steps = parts_of(depth, int64_t{kWords * Words<T>::kElements});
  const Parts<T> parts(gpu, result, m_tiles * n_tiles, steps, 4);
  const dim3 grid(cut.m_tiles * cut.n_tiles, static_cast<unsigned>(parts.count));
  const size_t shared = 2 * kPlanes<T> * kPlane<T> * sizeof(Word<T>);
  LPS_LAUNCH(gpu, (matrix_product<T, A, B>), grid, kTileThreads, shared, a, b, result, parts, cut);
  if (parts.count > 1) {
    LPS_LAUNCH(gpu, add_parts<T>, finish_blocks(gpu, m * n), kFinishThreads, 0, result, parts);
  }
}

}  // namespace lps
