// Kernels of irregular weights, for any instruction set: examples or positions as vectors, or inputs for a few
// examples.
#pragma once

#include <algorithm>
#include <cstring>

#include "isa.h"

namespace lps {
namespace {

// out[k * out_step + r] = r < rows ? x[r * x_step + k] : 0, for k < depth and r < out_step (a multiple of 8).
template <class I>
void pack_transposed(const float* x, int64_t x_step, int64_t rows, int64_t depth, float* out, int64_t out_step) {
  int64_t k = 0;
  for (; k + 8 <= depth; k += 8) {
    for (int64_t r = 0; r < out_step; r += 8) {
      typename I::Eight block[8];
      for (int64_t i = 0; i < 8; ++i) block[i] = r + i < rows ? I::load8(x + (r + i) * x_step + k) : I::zero8();
      I::transpose8(block);
      for (int64_t i = 0; i < 8; ++i) I::store8(out + (k + i) * out_step + r, block[i]);
    }
  }
  for (; k < depth; ++k) {
    for (int64_t r = 0; r < out_step; ++r) out[k * out_step + r] = r < rows ? x[r * x_step + k] : 0.0f;
  }
}

// y[r * y_step + n] = finish(c[n * c_step + r] + bias[n]) for r < rows and n < count.
template <class I>
void finish_transposed(const float* c, int64_t c_step, int64_t rows, int64_t count, const float* bias, bool relu,
                       float* y, int64_t y_step) {
  const auto one = [&](int64_t r, int64_t n) {
    const float sum = c[n * c_step + r] + (bias == nullptr ? 0.0f : bias[n]);
    y[r * y_step + n] = relu && sum < 0 ? 0.0f : sum;
  };
  for (int64_t r = 0; r < rows; r += 8) {
    const int64_t some = rows - r < 8 ? rows - r : 8;
    int64_t n = 0;
    for (; n + 8 <= count; n += 8) {
      typename I::Eight block[8];
      for (int64_t i = 0; i < 8; ++i) block[i] = I::load8(c + (n + i) * c_step + r);
      I::transpose8(block);
      const auto shift = bias == nullptr ? I::zero8() : I::load8(bias + n);
      for (int64_t i = 0; i < some; ++i) {
        const auto sum = I::add8(block[i], shift);
        I::store8(y + (r + i) * y_step + n, relu ? I::relu8(sum) : sum);
      }
    }
    for (; n < count; ++n) {
      for (int64_t i = 0; i < some; ++i) one(r + i, n);
    }
  }
}

// Positions of the set bits of each of `rows` rows, one list behind the other, and how many each row has; returns how
// many there are.
template <class I>
int64_t decode_bits(const uint8_t* bits, int64_t rows, uint8_t* positions, uint8_t* counts) {
  int64_t total = 0;
  for (int64_t i = 0; i < rows; ++i) {
    const int64_t count = I::positions(bits + i * (kSparseDepth / 8), positions + total);
    counts[i] = static_cast<uint8_t>(count);
    total += count;
  }
  return total;
}

constexpr int kTogether = 4;  // weights of a row whose positions are read at a time

// c[targets[i], :] (+)= sum over the row's weights of value * tile[position, :], for `panels` panels of columns.
template <class I, int panels>
void sparse_block(const float* values, const uint8_t* positions, const uint8_t* counts, const uint8_t* targets,
                  int64_t rows, const float* tile, float* c, bool add) {
  constexpr int step = panels * kPanel, vectors = step / I::width, group = vectors <= 8 ? vectors : 4;
  // Eight sums, or four of single vectors, for as many multiply-adds are under way: a row's weights take turns.
  constexpr int turns = group >= 8 ? 1 : group >= 2 ? 8 / group : kTogether;
  static_assert(vectors % group == 0);
  for (int64_t i = 0; i < rows; ++i) {
    const int64_t count = counts[i];
    float* sums_at = c + targets[i] * step;
    for (int first = 0; first < vectors; first += group) {
      const float* columns = tile + first * I::width;
      typename I::V sums[turns][group];
#pragma GCC unroll 8
      for (int v = 0; v < group; ++v) {
        sums[0][v] = add ? I::load(sums_at + (first + v) * I::width) : I::zero();
#pragma GCC unroll 8
        for (int turn = 1; turn < turns; ++turn) sums[turn][v] = I::zero();
      }
      int64_t j = 0;
      for (; j + kTogether <= count; j += kTogether) {
        uint32_t four;  // positions, in one load: loads are what limits this loop
        std::memcpy(&four, positions + j, sizeof(four));
#pragma GCC unroll 4
        for (int t = 0; t < kTogether; ++t) {
          const auto weight = I::set(values[j + t]);
          const float* row = columns + (four >> (8 * t) & 255u) * static_cast<unsigned>(step);
          asm("" : "+r"(row));  // in a register of its own: with an index a multiply-add is two operations
#pragma GCC unroll 8
          for (int v = 0; v < group; ++v)
            sums[t % turns][v] = I::fma(weight, I::load(row + v * I::width), sums[t % turns][v]);
        }
      }
      for (; j < count; ++j) {
        const auto weight = I::set(values[j]);
        const float* row = columns + positions[j] * step;
#pragma GCC unroll 8
        for (int v = 0; v < group; ++v) sums[0][v] = I::fma(weight, I::load(row + v * I::width), sums[0][v]);
      }
#pragma GCC unroll 8
      for (int v = 0; v < group; ++v) {
#pragma GCC unroll 8
        for (int turn = 1; turn < turns; ++turn) sums[0][v] = I::add(sums[0][v], sums[turn][v]);
        I::store(sums_at + (first + v) * I::width, sums[0][v]);
      }
    }
    values += count;
    positions += count;
  }
}

constexpr int64_t kPrefetch = 512;  // floats

// Weights of a row in one block.
inline int64_t bits_set(const uint8_t* bits) {
  uint64_t words[kSparseDepth / 64];
  std::memcpy(words, bits, sizeof(words));
  return __builtin_popcountll(words[0]) + __builtin_popcountll(words[1]);
}

// For few examples: lanes run along the inputs. sums[targets[i], e, :] += spread weights of row i times x[e, :], the
// vectors of one block of kSparseDepth inputs. Returns whether the values end at `last` or before it, which nothing but
// the slack is read behind, and the targets are the rows, each once.
template <class I, int examples>
bool sparse_rows(const float* values, const float* last, const uint8_t* bits, const uint8_t* targets, int64_t rows,
                 const float* x, float* sums) {
  uint8_t seen[kSparseRows] = {};
  for (int64_t i = 0; i < rows; ++i) {
    // Only a row near the very last value has to be counted first.
    if (last - values < kSparseDepth && bits_set(bits + i * (kSparseDepth / 8)) > last - values) return false;
    seen[targets[i]] = 1;
    float* sums_at = sums + targets[i] * (examples * I::width);
    typename I::V sum[examples];
    const float* begin = values;
#pragma GCC unroll 4
    for (int e = 0; e < examples; ++e) sum[e] = I::load(sums_at + e * I::width);
#pragma GCC unroll 32
    for (int block = 0; block < kSparseDepth / I::width; ++block) {
      const auto weight = I::expand(values, bits + i * (kSparseDepth / 8), block);
#pragma GCC unroll 4
      for (int e = 0; e < examples; ++e)
        sum[e] = I::fma_where(weight, I::load(x + e * kSparseDepth + block * I::width), sum[e]);
    }
#pragma GCC unroll 4
    for (int e = 0; e < examples; ++e) I::store(sums_at + e * I::width, sum[e]);
    // Values come from beyond the caches, and the hardware alone does not run far enough ahead of them.
    for (; begin < values; begin += 16) __builtin_prefetch(begin + kPrefetch);
  }
  return std::memchr(seen, 0, static_cast<size_t>(rows)) == nullptr;
}

// The same where a row has few weights: lanes run along them, and the inputs that they meet are picked by position.
// For instruction sets that pick from registers: gathering from memory is no faster than spreading (AVX2 on Zen 5).
template <class I, int examples>
bool sparse_rows_picked(const float* values, const float* last, const uint8_t* bits, const uint8_t* targets,
                        int64_t rows, const float* x, float* sums) {
  constexpr int64_t together = 32;  // rows whose positions are written before they are read
  uint8_t seen[kSparseRows] = {}, counts[together], positions[together * kSparseDepth + 64];
  typename I::Inputs inputs[examples];
  for (int e = 0; e < examples; ++e) inputs[e] = I::inputs(x + e * kSparseDepth);
  for (int64_t first = 0; first < rows; first += together) {
    const int64_t some = std::min(rows - first, together);
    if (decode_bits<I>(bits + first * (kSparseDepth / 8), some, positions, counts) > last - values) return false;
    const uint8_t* at = positions;
    for (int64_t i = 0; i < some; ++i) {
      const int64_t count = counts[i];
      const uint8_t target = targets[first + i];
      seen[target] = 1;
      float* sums_at = sums + target * (examples * I::width);
      typename I::V sum[examples];
#pragma GCC unroll 4
      for (int e = 0; e < examples; ++e) sum[e] = I::load(sums_at + e * I::width);
      for (int64_t j = 0; j < count; j += I::width) {
        const auto places = I::places(at + j, count - j);
        const auto weight = I::load(values + j);
#pragma GCC unroll 4
        for (int e = 0; e < examples; ++e) sum[e] = I::fma_picked(weight, inputs[e], places, sum[e]);
      }
#pragma GCC unroll 4
      for (int e = 0; e < examples; ++e) I::store(sums_at + e * I::width, sum[e]);
      values += count;
      at += count;
    }
  }
  return std::memchr(seen, 0, static_cast<size_t>(rows)) == nullptr;
}

// y[e * y_step + n] = finish(the sum of the lanes of sums[n, e, :] + bias[n]) for n < count.
template <class I, int examples>
void finish_sparse_rows(const float* sums, int64_t count, const float* bias, bool relu, float* y, int64_t y_step) {
  for (int64_t n = 0; n < count; ++n) {
    for (int e = 0; e < examples; ++e) {
      const float sum = I::sum(I::load(sums + (n * examples + e) * I::width)) + (bias == nullptr ? 0.0f : bias[n]);
      y[e * y_step + n] = relu && sum < 0 ? 0.0f : sum;
    }
  }
}

}  // namespace
}  // namespace lps
