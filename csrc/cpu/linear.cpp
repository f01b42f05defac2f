// Drivers of linear layers: y[batch, outputs] = finish(x[batch, inputs] @ weight^T).
//
// Where columns are left out, a block of examples is packed first, by all threads; otherwise examples are read as they
// lie. A unit of work is then a tile of 64 outputs by a group of the examples: all of them where weights are masked,
// which is then done once, halves of them otherwise, more and smaller groups where outputs are few. A unit is summed
// over blocks of kDepth columns and finished.
#include <atomic>

#include "matrices.h"

namespace lps {

namespace {

constexpr int64_t kExamples = 22 * kRows;  // of a block: 132 x 384 floats stay in L2
constexpr int64_t kManyTiles = 8;          // whose halves are about equal
constexpr int64_t kUnits = 4;              // as many at least, for the sake of threads

// Examples in tiles of about equal height.
struct Tiles {
  int64_t examples, count;
  explicit Tiles(int64_t all) : examples(all), count(parts_of(all, kRows)) {}
  int64_t at(int64_t tile) const { return examples * tile / count; }
  int64_t rows(int64_t tile) const { return at(tile + 1) - at(tile); }
};

// Packed weights of one tile of outputs and one block of columns.
struct Panels {
  const float* first;
  int64_t step;  // from panel to panel
};

// How a layer reads x and how many outputs its weight has.
struct Reading {
  int64_t inputs;
  const int32_t* columns;
  int64_t depth, outputs;
  int64_t groups;  // of examples, where there are many; each reads all weights
};

// `panels(tile, k, depth, room)` gives the weights of a tile of outputs for columns [k, k + depth), in `room` if it has
// to make them; `finish(sums, examples, tile, example)` takes the sums of some examples.
template <class P, class F>
void run_block(const MatrixKernels& matrix, const Parallel& parallel, const float* x, int64_t examples,
               const Reading& reading, P&& panels, F&& finish) {
  const Tiles tiles(examples);
  const int64_t depth = reading.depth, outputs = reading.outputs;
  const bool gathers = reading.columns != nullptr;
  const Room<float> packed(gathers ? examples * depth + 8 * tiles.count : 0);
  // Tiles end 8 floats apart: packing one overwrites as many behind its own.
  const auto packed_at = [&](int64_t tile) { return packed.get() + tiles.at(tile) * depth + 8 * tile; };
  parallel(gathers ? tiles.count : 0, [&](int64_t begin, int64_t end) {
    for (int64_t tile = begin; tile < end; ++tile) {
      matrix.pack_rows(x + tiles.at(tile) * reading.inputs, reading.inputs, tiles.rows(tile), reading.columns, depth,
                       packed_at(tile));
    }
  });
  // At least one tile of outputs, so that outputs without any weight get their bias.
  const int64_t output_tiles = std::max<int64_t>(parts_of(outputs, kTile), 1);
  const int64_t wanted = tiles.count >= kManyTiles ? reading.groups : 1;
  const int64_t groups = std::min(tiles.count, std::max(wanted, parts_of(kUnits, output_tiles)));
  // With a single tile of examples nothing is used twice, so nothing needs to stay in a cache.
  const int64_t most = tiles.count == 1 ? std::max<int64_t>(depth, 1) : kDepth;
  parallel(output_tiles * groups, [&](int64_t begin, int64_t end) {
    const Room<float> sums(parts_of(tiles.count, groups) * kRows * kTile), room(kTile * std::min(most, depth));
    for (int64_t unit = begin; unit < end; ++unit) {
      const int64_t output = unit % output_tiles, group = unit / output_tiles;
      const int64_t first = tiles.count * group / groups, last = tiles.count * (group + 1) / groups;
      const int64_t count = parts_of(std::min<int64_t>(outputs - output * kTile, kTile), kPanel);
      for (int64_t k = 0; count > 0 && (k == 0 || k < depth); k += most) {
        const int64_t some = std::min(most, depth - k);
        const Panels weights = panels(output, k, some, room.get());
        for (int64_t tile = first; tile < last; ++tile) {
          const int64_t rows = tiles.rows(tile);
          float* to = sums.get() + (tiles.at(tile) - tiles.at(first)) * kTile;
          if (gathers) {
            matrix.dense_tile[rows - 1][count - 1](packed_at(tile) + k * rows, weights.first, kPanel, weights.step,
                                                   some, to, kTile, k > 0);
          } else {
            matrix.row_tile[rows - 1][count - 1](x + tiles.at(tile) * reading.inputs + k, reading.inputs, weights.first,
                                                 weights.step, some, to, kTile, k > 0);
          }
        }
      }
      finish(sums.get(), tiles.at(last) - tiles.at(first), output, tiles.at(first));
    }
  });
}

// All examples, block by block.
template <class P, class F>
void run(const MatrixKernels& matrix, const Parallel& parallel, const float* x, int64_t batch, const Reading& reading,
         P&& panels, F&& finish) {
  const int64_t blocks = parts_of(batch, kExamples);
  for (int64_t block = 0; block < blocks; ++block) {
    const int64_t begin = batch * block / blocks, end = batch * (block + 1) / blocks;
    run_block(matrix, parallel, x + begin * reading.inputs, end - begin, reading, panels,
              [&](const float* sums, int64_t examples, int64_t tile, int64_t example) {
                finish(sums, examples, tile, begin + example);
              });
  }
}

}  // namespace

template <>
void structured_linear(const Cpu& cpu, const float* x, int64_t batch, int64_t inputs, const Structured<float>& weight,
                       const Finish<float>& finish, float* y) {
  const Kernels& kernels = cpu.kernels;
  const Parallel& parallel = cpu.parallel;
  const int64_t depth = weight.column_count, rows = weight.row_count, outputs = weight.outputs;
  const MatrixKernels& matrix = kernels.matrix;
  const int64_t tiles = parts_of(rows, kTile);
  const auto panels = [&](int64_t tile, int64_t k, int64_t, float*) {
    return Panels{weight.weight + tile * kPanels * depth * kPanel + k * kPanel, depth * kPanel};
  };
  const auto write = [&](const float* sums, int64_t examples, int64_t tile, int64_t example) {
    const int64_t first = tile * kTile, count = std::min<int64_t>(rows - first, kTile);
    // A tile fills the outputs from its first row, or the very first, up to the next tile's first row.
    const bool all = weight.rows == nullptr;
    const int64_t from = all ? first : tile == 0 ? 0 : weight.rows[first];
    const int64_t until = all ? first + count : tile + 1 >= tiles ? outputs : weight.rows[first + kTile];
    matrix.finish_rows(sums, kTile, examples, count, all ? nullptr : weight.rows + first, from, until, finish.bias,
                       finish.relu, y + example * outputs, outputs);
  };
  // Halves of the examples are as large as each other, which halves of the outputs need not be.
  run(matrix, parallel, x, batch, {inputs, weight.columns, depth, rows, 2}, panels, write);
}

int64_t fma_burst(const Cpu& cpu, int64_t parts, int64_t steps) {
  const Kernels& kernels = cpu.kernels;
  const Parallel& parallel = cpu.parallel;
  std::atomic<int64_t> flops{0};
  parallel(parts, [&](int64_t begin, int64_t end) {
    for (int64_t part = begin; part < end; ++part) flops += kernels.matrix.fma_burst(steps, 0.5f);
  });
  return flops;
}

template <>
void masked_linear(const Cpu& cpu, const float* x, int64_t batch, const Masked<float>& weight,
                   const Finish<float>& finish, float* y) {
  const Kernels& kernels = cpu.kernels;
  const Parallel& parallel = cpu.parallel;
  const int64_t inputs = weight.inputs, outputs = weight.outputs, last_byte = (inputs * outputs + 7) / 8 - 1;
  const MatrixKernels& matrix = kernels.matrix;
  const auto panels = [&](int64_t tile, int64_t k, int64_t depth, float* room) {
    for (int64_t panel = 0; panel < kPanels && tile * kTile + panel * kPanel < outputs; ++panel) {
      const int64_t output = tile * kTile + panel * kPanel, at = output * inputs + k;
      matrix.pack_masked(weight.w_bar + at, weight.owner + at, weight.bits, last_byte, at, weight.task, inputs,
                         std::min<int64_t>(outputs - output, kPanel), depth, room + panel * depth * kPanel);
    }
    return Panels{room, depth * kPanel};
  };
  const auto write = [&](const float* sums, int64_t examples, int64_t tile, int64_t example) {
    const int64_t first = tile * kTile, count = std::min<int64_t>(outputs - first, kTile);
    matrix.finish_rows(sums, kTile, examples, count, nullptr, first, first + count, finish.bias, finish.relu,
                       y + example * outputs, outputs);
  };
  run(matrix, parallel, x, batch, {inputs, nullptr, inputs, outputs, 1}, panels, write);
}

}  // namespace lps
