// Kernels of the matrix family, for any instruction set: the dense tile, what packs and finishes it.
// All of them work on floats, on one thread; the drivers (linear.cpp, convolution.cpp, sparse.cpp) cut the work.
#pragma once

#include "sparse_kernels.h"

namespace lps {
namespace {

// ---- the dense tile ----

// c[r, 16 p + j] (+)= sum over k of *left(k, r) * b[p][offset(k) + j], for r < rows and p < panels.
template <class I, int rows, int panels, class Left, class Offset>
void tile_product(Left&& left, const float* const* b, Offset&& offset, int64_t depth, float* c, int64_t c_step,
                  bool add) {
  constexpr int vectors = panels * kPanel / I::width, group = vectors < I::group ? vectors : I::group;
  static_assert(vectors % group == 0);
  constexpr int whole = kPanel / I::width;  // vectors of a panel
  for (int first = 0; first < vectors; first += group) {
    typename I::V sums[rows][group];
    const float* columns[group];
#pragma GCC unroll 4
    for (int v = 0; v < group; ++v) {
      columns[v] = b[(first + v) / whole] + (first + v) % whole * I::width;
#pragma GCC unroll 6
      for (int r = 0; r < rows; ++r) sums[r][v] = add ? I::load(c + r * c_step + (first + v) * I::width) : I::zero();
    }
    for (int64_t k = 0; k < depth; ++k) {
      const int64_t at = offset(k);
      typename I::V right[group];
#pragma GCC unroll 4
      for (int v = 0; v < group; ++v) right[v] = I::load(columns[v] + at);
#pragma GCC unroll 6
      for (int r = 0; r < rows; ++r) {
        const auto factor = I::set(*left(k, r));
#pragma GCC unroll 4
        for (int v = 0; v < group; ++v) sums[r][v] = I::fma(factor, right[v], sums[r][v]);
      }
    }
#pragma GCC unroll 6
    for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < group; ++v) I::store(c + r * c_step + (first + v) * I::width, sums[r][v]);
    }
  }
}

// Packed rows, panels of a packed matrix: `b_panel` from one to the next, `b_step` from one k to the next.
template <class I, int rows, int panels>
void dense_tile(const float* a, const float* b, int64_t b_step, int64_t b_panel, int64_t depth, float* c,
                int64_t c_step, bool add) {
  const float* all[panels];
  for (int p = 0; p < panels; ++p) all[p] = b + p * b_panel;
  const auto left = [&](int64_t k, int r) { return a + k * rows + r; };
  tile_product<I, rows, panels>(left, all, [&](int64_t k) { return k * b_step; }, depth, c, c_step, add);
}

// Rows as they lie in memory, `a_step` apart, times packed panels.
template <class I, int rows, int panels>
void row_tile(const float* a, int64_t a_step, const float* b, int64_t b_panel, int64_t depth, float* c, int64_t c_step,
              bool add) {
  const float *all[panels], *lines[rows];
  for (int p = 0; p < panels; ++p) all[p] = b + p * b_panel;
  for (int r = 0; r < rows; ++r) lines[r] = a + r * a_step;
  const auto left = [&](int64_t k, int r) { return lines[r] + k; };
  tile_product<I, rows, panels>(left, all, [&](int64_t k) { return k * kPanel; }, depth, c, c_step, add);
}

// Panels are 16 neighbouring places of the input of a convolution that does not pad, at `starts`.
template <class I, int rows, int panels>
void direct_tile(const float* a, const float* x, const int64_t* starts, const ConvColumn* columns, int64_t depth,
                 float* c, int64_t c_step, bool add) {
  const float* all[panels];
  for (int p = 0; p < panels; ++p) all[p] = x + starts[p];
  const auto left = [&](int64_t k, int r) { return a + k * rows + r; };
  tile_product<I, rows, panels>(left, all, [&](int64_t k) { return columns[k].shifted; }, depth, c, c_step, add);
}

// ---- linear layers: activations are the rows of a tile, packed weights its columns ----

// out[k * rows + r] = x[r * x_step + columns[k]]; up to 8 floats behind the last one are overwritten.
template <class I>
void pack_rows(const float* x, int64_t x_step, int64_t rows, const int32_t* columns, int64_t depth, float* out) {
  int64_t k = 0;
  for (; k + 8 <= depth; k += 8) {
    typename I::Eight block[8];
    for (int64_t r = 0; r < 8; ++r) {
      block[r] = I::gather8(x + (r < rows ? r : 0) * x_step, columns + k);
    }
    I::transpose8(block);
    for (int64_t i = 0; i < 8; ++i) I::store8(out + (k + i) * rows, block[i]);  // the next one overwrites the rest
  }
  for (; k < depth; ++k) {
    for (int64_t r = 0; r < rows; ++r) out[k * rows + r] = x[r * x_step + columns[k]];
  }
}

// The weights that a task runs with, for outputs [0, outputs) of at most 16 and inputs [0, depth), as one panel:
// out[k * 16 + n] = owned by the task or selected by its bit ? w_bar[n * inputs + k] : 0. `first` is the coordinate of
// w_bar[0], for its bit.
template <class I>
void pack_masked(const float* w_bar, const uint8_t* owner, const uint8_t* bits, int64_t last_byte, int64_t first,
                 uint8_t task, int64_t inputs, int64_t outputs, int64_t depth, float* out) {
  const auto chosen = [&](int64_t at) {
    const int64_t byte = (first + at) / 8, next = byte < last_byte ? byte + 1 : last_byte;
    return static_cast<uint8_t>((bits[byte] | bits[next] << 8) >> ((first + at) % 8));
  };
  for (int64_t half = 0; half < kPanel; half += 8) {
    int64_t k = 0;
    for (; k + 8 <= depth; k += 8) {
      typename I::Eight block[8];
      for (int64_t r = 0; r < 8; ++r) {
        const int64_t at = (half + r) * inputs + k;
        block[r] = half + r >= outputs ? I::zero8()
                                       : I::mask8(I::load8(w_bar + at), chosen(at) | I::equal_bits(owner + at, task));
      }
      I::transpose8(block);
      for (int64_t i = 0; i < 8; ++i) I::store8(out + (k + i) * kPanel + half, block[i]);
    }
    for (; k < depth; ++k) {
      for (int64_t r = 0; r < 8; ++r) {
        const int64_t at = (half + r) * inputs + k;
        const bool kept = half + r < outputs && ((owner[at] & kTaskBits) == task || (chosen(at) & 1) != 0);
        out[k * kPanel + half + r] = kept ? w_bar[at] : 0.0f;
      }
    }
  }
}

// y[r, n] = finish(c[r, n] + bias[n]) for n < count. Where `targets` is set, c[r, n] goes to y[r, targets[n]] instead
// and the outputs of [begin, end) that no n goes to hold their bias alone.
template <class I>
void finish_rows(const float* c, int64_t c_step, int64_t rows, int64_t count, const int32_t* targets, int64_t begin,
                 int64_t end, const float* bias, bool relu, float* y, int64_t y_step) {
  const auto finish = [&](typename I::V x) { return relu ? I::relu(x) : x; };
  const auto bias_at = [&](int64_t n, int64_t part) {
    return bias == nullptr ? I::zero() : part < I::width ? I::load_part(bias + n, part) : I::load(bias + n);
  };
  for (int64_t r = 0; r < rows; ++r) {
    float* row = y + r * y_step;
    const float* sums = c + r * c_step;
    for (int64_t n = begin; n < end; n += I::width) {
      const int64_t part = end - n;
      auto sum = bias_at(n, part);
      if (targets == nullptr) sum = I::add(sum, I::load(sums + n - begin));  // a tile's columns fill whole panels
      if (part < I::width) {
        I::store_part(row + n, finish(sum), part);
      } else {
        I::store(row + n, finish(sum));
      }
    }
    if (targets != nullptr) {
      for (int64_t n = 0; n < count; ++n) {
        const float sum = sums[n] + (bias == nullptr ? 0.0f : bias[targets[n]]);
        row[targets[n]] = relu && sum < 0 ? 0.0f : sum;
      }
    }
  }
}

// ---- convolutions: filters are the rows of a tile, positions its columns ----

template <class I>
void copy_floats(float* to, const float* from, int64_t count) {
  int64_t i = 0;
  for (; i + I::width <= count; i += I::width) I::store(to + i, I::load(from + i));
  if (i < count) I::store_part(to + i, I::load_part(from + i, count - i), count - i);
}

// out[k * out_step + j] = what the k-th column of the weight meets at the j-th position of the tile.
template <class I>
void pack_positions(const float* x, const ConvColumn* columns, int64_t depth, const TapCopies* taps, int64_t stride,
                    float* out, int64_t out_step) {
  for (int64_t k = 0; k < depth; ++k) {
    const TapCopies& tap = taps[columns[k].tap];
    const float* plane = x + columns[k].plane;
    float* row = out + k * out_step;
    if (tap.gaps) {
      for (int64_t j = 0; j < out_step; j += I::width) I::store(row + j, I::zero());
    }
    for (const Copy* copy = tap.begin; copy != tap.end; ++copy) {
      const float* from = plane + copy->from;
      if (stride == 1) {
        copy_floats<I>(row + copy->to, from, copy->count);
      } else {
        for (int64_t j = 0; j < copy->count; ++j) row[copy->to + j] = from[j * stride];
      }
    }
  }
}

// The output channels `channels[r]`, or first + r, at the positions of a tile: y = finish(sums + bias + residual). Runs
// lie in y as in residual.
template <class I>
void finish_positions(const float* sums, int64_t step, const Run* runs, int64_t count, int64_t rows,
                      const int32_t* channels, int64_t first, int64_t plane, const float* bias, const float* residual,
                      bool relu, float* y) {
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t channel = channels == nullptr ? first + r : channels[r];
    const auto shift = I::set(bias == nullptr ? 0.0f : bias[channel]);
    for (int64_t s = 0; s < count; ++s) {
      const float* from = sums + r * step + runs[s].column;
      const int64_t at = runs[s].position + channel * plane;
      int64_t j = 0;
      for (; j + I::width <= runs[s].count; j += I::width) {
        auto sum = I::add(I::load(from + j), shift);
        if (residual != nullptr) sum = I::add(sum, I::load(residual + at + j));
        I::store(y + at + j, relu ? I::relu(sum) : sum);
      }
      const int64_t part = runs[s].count - j;
      if (part > 0) {
        auto sum = I::add(I::load_part(from + j, part), shift);
        if (residual != nullptr) sum = I::add(sum, I::load_part(residual + at + j, part));
        I::store_part(y + at + j, relu ? I::relu(sum) : sum, part);
      }
    }
  }
}

// Independent multiply-adds in registers, to measure what the processor can do; returns how many flops they were.
template <class I>
int64_t fma_burst(int64_t steps, float seed) {
  constexpr int count = 6 * I::group;
  typename I::V sums[count];
  const auto factor = I::set(seed);
  for (int i = 0; i < count; ++i) sums[i] = I::set(seed + static_cast<float>(i));
  for (int64_t step = 0; step < steps; ++step) {
#pragma GCC unroll 24
    for (int i = 0; i < count; ++i) sums[i] = I::fma(sums[i], factor, factor);
  }
  auto all = sums[0];
  for (int i = 1; i < count; ++i) all = I::add(all, sums[i]);
  // The sum is used, so that nothing is left out; for a seed below 1 it is finite.
  return I::sum(all) == 0 ? 0 : steps * count * I::width * 2;
}

template <class I, int rows, int panels>
void fill_tile(MatrixKernels& table) {
  table.dense_tile[rows - 1][panels - 1] = dense_tile<I, rows, panels>;
  table.row_tile[rows - 1][panels - 1] = row_tile<I, rows, panels>;
  table.direct_tile[rows - 1][panels - 1] = direct_tile<I, rows, panels>;
}

template <class I, int rows>
void fill_tiles(MatrixKernels& table) {
  fill_tile<I, rows, 1>(table);
  fill_tile<I, rows, 2>(table);
  fill_tile<I, rows, 3>(table);
  fill_tile<I, rows, 4>(table);
}

template <class I, int examples>
void fill_sparse(MatrixKernels& table) {
  table.sparse_block[examples - 1] = sparse_block<I, examples>;
  table.sparse_rows[examples - 1] = sparse_rows<I, examples>;
  if constexpr (I::picks) table.sparse_rows_picked[examples - 1] = sparse_rows_picked<I, examples>;
  table.finish_sparse_rows[examples - 1] = finish_sparse_rows<I, examples>;
}

template <class I>
void fill_matrix(Kernels& kernels) {
  MatrixKernels& table = kernels.matrix;
  table.width = I::width;
  fill_tiles<I, 1>(table);
  fill_tiles<I, 2>(table);
  fill_tiles<I, 3>(table);
  fill_tiles<I, 4>(table);
  fill_tiles<I, 5>(table);
  fill_tiles<I, 6>(table);
  table.pack_rows = pack_rows<I>;
  table.pack_masked = pack_masked<I>;
  table.finish_rows = finish_rows<I>;
  table.pack_positions = pack_positions<I>;
  table.finish_positions = finish_positions<I>;
  table.pack_transposed = pack_transposed<I>;
  table.finish_transposed = finish_transposed<I>;
  table.decode_bits = decode_bits<I>;
  table.fma_burst = fma_burst<I>;
  fill_sparse<I, 1>(table);
  fill_sparse<I, 2>(table);
  fill_sparse<I, 3>(table);
  fill_sparse<I, 4>(table);
}

}  // namespace
}  // namespace lps
