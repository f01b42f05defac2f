// Drivers of linear layers: y[batch, outputs] = finish(x[batch, inputs] @ weight^T).
//
// A unit of work is a block of examples by a range of tiles of 64 outputs. Its examples are packed once, columns
// gathered on the way; then every tile of outputs is summed over blocks of kDepth columns and finished.
#include <atomic>

#include "matrices.h"

namespace lps {

namespace {

constexpr int64_t kExamples = 20 * kRows;  // a unit's examples: 120 x 256 floats stay in L2

struct Unit {
  int64_t examples_begin, examples_end, tiles_begin, tiles_end;
};

// Cut by sizes alone. Examples first, because a unit packs all of its own; outputs where the examples are few.
std::vector<Unit> units_of(int64_t batch, int64_t tiles, bool by_outputs) {
  const int64_t blocks = parts_of(batch, kExamples), least = 4;
  const int64_t example_parts = by_outputs ? blocks : std::max(blocks, std::min(least, batch / (2 * kRows)));
  const int64_t tile_parts = std::min(tiles, parts_of(least, std::max<int64_t>(example_parts, 1)));
  std::vector<Unit> units;
  for (int64_t t = 0; t < tile_parts; ++t) {
    for (int64_t e = 0; e < std::max<int64_t>(example_parts, 1); ++e) {
      const int64_t parts = std::max<int64_t>(example_parts, 1);
      units.push_back(
          {batch * e / parts, batch * (e + 1) / parts, tiles * t / tile_parts, tiles * (t + 1) / tile_parts});
    }
  }
  return units;
}

// Examples [begin, end) in tiles of about equal height.
struct Tiles {
  int64_t begin, count, tiles;
  Tiles(int64_t first, int64_t last) : begin(first), count(last - first), tiles(parts_of(last - first, kRows)) {}
  int64_t at(int64_t tile) const { return count * tile / tiles; }
  int64_t rows(int64_t tile) const { return at(tile + 1) - at(tile); }
};

// Packed weights of one tile of outputs and one block of columns.
struct Panels {
  const float* first;
  int64_t step;  // from panel to panel
};

// `panels(tile, k)` gives the weights of a tile of outputs from column k on; `finish(c, rows, tile, example)` takes the
// sums of some examples.
template <class P, class F>
void run_unit(const MatrixKernels& matrix, const Unit& unit, const float* x, int64_t inputs, const int32_t* columns,
              int64_t depth, int64_t outputs, P&& panels, F&& finish) {
  const Tiles tiles(unit.examples_begin, unit.examples_end);
  const Room<float> packed(tiles.count * depth + 8), sums(tiles.count * kTile);
  for (int64_t tile = 0; tile < tiles.tiles; ++tile) {
    const float* rows = x + (tiles.begin + tiles.at(tile)) * inputs;
    matrix.pack_rows(rows, inputs, tiles.rows(tile), columns, depth, packed.get() + tiles.at(tile) * depth);
  }
  for (int64_t output = unit.tiles_begin; output < unit.tiles_end; ++output) {
    const int64_t count = parts_of(std::min<int64_t>(outputs - output * kTile, kTile), kPanel);
    // With a single tile of examples nothing is used twice, so nothing needs to stay in a cache.
    const int64_t most = tiles.tiles == 1 ? std::max<int64_t>(depth, 1) : kDepth;
    for (int64_t k = 0; count > 0 && (k == 0 || k < depth); k += most) {
      const Panels weights = panels(output, k, std::min(most, depth - k));
      for (int64_t tile = 0; tile < tiles.tiles; ++tile) {
        const int64_t rows = tiles.rows(tile);
        matrix.dense_tile[rows - 1][count - 1](packed.get() + tiles.at(tile) * depth + k * rows, weights.first, kPanel,
                                               weights.step, std::min(most, depth - k),
                                               sums.get() + tiles.at(tile) * kTile, kTile, k > 0);
      }
    }
    finish(sums.get(), tiles.count, output, tiles.begin);
  }
}

}  // namespace

template <>
void structured_linear(const Kernels& kernels, const Parallel& parallel, const float* x, int64_t batch, int64_t inputs,
                       const Structured<float>& weight, const Finish<float>& finish, float* y) {
  const int64_t depth = weight.column_count, rows = weight.row_count, outputs = weight.outputs;
  const MatrixKernels& matrix = kernels.matrix;
  // At least one tile of outputs, so that outputs without any weight get their bias.
  const int64_t tiles = std::max<int64_t>(parts_of(rows, kTile), 1);
  const std::vector<Unit> units = units_of(batch, tiles, false);
  parallel(static_cast<int64_t>(units.size()), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const auto panels = [&](int64_t tile, int64_t k, int64_t) {
        return Panels{weight.weight + tile * kPanels * depth * kPanel + k * kPanel, depth * kPanel};
      };
      const auto write = [&](const float* sums, int64_t examples, int64_t tile, int64_t example) {
        const int64_t first = tile * kTile, count = std::min<int64_t>(rows - first, kTile);
        float* to = y + example * outputs;
        if (weight.rows == nullptr) {
          matrix.finish_rows(sums, kTile, examples, count, nullptr, first, first + count, finish.bias, finish.relu, to,
                             outputs);
        } else {
          // A tile fills the outputs from its first row, or the very first, up to the next tile's first row.
          const int64_t from = tile == 0 ? 0 : weight.rows[first];
          const int64_t until = tile + 1 == tiles ? outputs : weight.rows[first + kTile];
          matrix.finish_rows(sums, kTile, examples, count, weight.rows + first, from, until, finish.bias, finish.relu,
                             to, outputs);
        }
      };
      run_unit(matrix, units[static_cast<size_t>(i)], x, inputs, weight.columns, depth, rows, panels, write);
    }
  });
}

int64_t fma_burst(const Kernels& kernels, const Parallel& parallel, int64_t parts, int64_t steps) {
  std::atomic<int64_t> flops{0};
  parallel(parts, [&](int64_t begin, int64_t end) {
    for (int64_t part = begin; part < end; ++part) flops += kernels.matrix.fma_burst(steps, 0.5f);
  });
  return flops;
}

template <>
void masked_linear(const Kernels& kernels, const Parallel& parallel, const float* x, int64_t batch,
                   const Masked<float>& weight, const Finish<float>& finish, float* y) {
  const int64_t inputs = weight.inputs, outputs = weight.outputs, last_byte = (inputs * outputs + 7) / 8 - 1;
  const MatrixKernels& matrix = kernels.matrix;
  // By outputs, so that every weight is masked once for all examples of a block.
  const std::vector<Unit> units = units_of(batch, parts_of(outputs, kTile), true);
  parallel(static_cast<int64_t>(units.size()), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const Unit& unit = units[static_cast<size_t>(i)];
      const int64_t most = unit.examples_end - unit.examples_begin <= kRows ? inputs : std::min(inputs, kDepth);
      const Room<float> room(kTile * most);
      const auto panels = [&](int64_t tile, int64_t k, int64_t depth) {
        for (int64_t panel = 0; panel < kPanels && tile * kTile + panel * kPanel < outputs; ++panel) {
          const int64_t output = tile * kTile + panel * kPanel, at = output * inputs + k;
          matrix.pack_masked(weight.w_bar + at, weight.owner + at, weight.bits, last_byte, at, weight.task, inputs,
                             std::min<int64_t>(outputs - output, kPanel), depth, room.get() + panel * depth * kPanel);
        }
        return Panels{room.get(), depth * kPanel};
      };
      const auto write = [&](const float* sums, int64_t examples, int64_t tile, int64_t example) {
        const int64_t first = tile * kTile, count = std::min<int64_t>(outputs - first, kTile);
        matrix.finish_rows(sums, kTile, examples, count, nullptr, first, first + count, finish.bias, finish.relu,
                           y + example * outputs, outputs);
      };
      run_unit(matrix, unit, x, inputs, nullptr, inputs, outputs, panels, write);
    }
  });
}

}  // namespace lps
