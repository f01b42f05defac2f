// Driver of linear layers with irregular weights. Examples are transposed to columns of a tile, so that one weight
// meets 64 of them; only a few examples run along the inputs instead, where the bytes of the weights are the limit.
#include <atomic>

#include "matrices.h"

namespace lps {

namespace {

constexpr int64_t kFewExamples = 4;

// Up to how many weights of the 128 of a row and block are picked rather than spread over all 128, for so many
// examples. Spreading costs the same for any number of weights, and little for a second example. Measured on Zen 5,
// where both take the same time at 70, 50, 35 and 20 %; less than that, because other cores spread faster.
constexpr int64_t most_picked(int64_t examples) { return 56 - 8 * examples; }

bool few_examples(const MatrixKernels& matrix, const Parallel& parallel, const float* x, int64_t batch,
                  const Sparse<float>& weight, const Finish<float>& finish, float* y) {
  const int64_t blocks = parts_of(weight.inputs, kSparseDepth), panels = parts_of(weight.outputs, kSparseRows);
  // Inputs by blocks, zeros behind the last: [blocks, batch, kSparseDepth].
  const Room<float> inputs(blocks * batch * kSparseDepth);
  for (int64_t block = 0; block < blocks; ++block) {
    for (int64_t example = 0; example < batch; ++example) {
      const float* from = x + example * weight.inputs + block * kSparseDepth;
      const int64_t count = std::min<int64_t>(weight.inputs - block * kSparseDepth, kSparseDepth);
      float* to = inputs.get() + (block * batch + example) * kSparseDepth;
      std::fill(std::copy(from, from + count, to), to + kSparseDepth, 0.0f);
    }
  }
  const auto spread = matrix.sparse_rows[batch - 1], picked = matrix.sparse_rows_picked[batch - 1];
  const auto kernel_of = [&](int64_t number, int64_t rows) {
    const int64_t end = number + 1 < panels * blocks ? weight.offsets[number + 1] : weight.count;
    const bool few = end - weight.offsets[number] <= rows * most_picked(batch);
    return picked != nullptr && few ? picked : spread;
  };
  std::atomic<bool> sound{true};
  parallel(panels, [&](int64_t begin, int64_t end) {
    const Room<float> sums(kSparseRows * batch * matrix.width);
    for (int64_t panel = begin; panel < end; ++panel) {
      const int64_t row = panel * kSparseRows, rows = std::min<int64_t>(weight.outputs - row, kSparseRows);
      std::fill(sums.get(), sums.get() + rows * batch * matrix.width, 0.0f);
      for (int64_t block = 0; block < blocks; ++block) {
        const int64_t at = row * blocks + block * rows, number = panel * blocks + block;
        const auto kernel = kernel_of(number, rows);
        if (!kernel(weight.values + weight.offsets[number], weight.values + weight.count,
                    weight.bits + at * (kSparseDepth / 8), weight.targets + at, rows,
                    inputs.get() + block * batch * kSparseDepth, sums.get())) {
          sound = false;
          return;
        }
      }
      matrix.finish_sparse_rows[batch - 1](sums.get(), rows, finish.bias == nullptr ? nullptr : finish.bias + row,
                                           finish.relu, y + row, weight.outputs);
    }
  });
  return sound;
}

bool many_examples(const MatrixKernels& matrix, const Parallel& parallel, const float* x, int64_t batch,
                   const Sparse<float>& weight, const Finish<float>& finish, float* y) {
  const int64_t depth = weight.inputs, outputs = weight.outputs;
  const int64_t blocks = parts_of(depth, kSparseDepth), panels = parts_of(outputs, kSparseRows);
  const int64_t tiles = parts_of(batch, kTile);
  const auto examples_of = [&](int64_t tile) { return std::min<int64_t>(batch - tile * kTile, kTile); };
  const auto panels_of = [&](int64_t tile) { return parts_of(examples_of(tile), kPanel); };
  // All examples by tiles: [tiles][depth][16 * panels]; packed by all threads, read by all.
  const Room<float> packed(tiles * depth * kTile);
  parallel(tiles * blocks, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t tile = i / blocks, k = i % blocks * kSparseDepth, step = panels_of(tile) * kPanel;
      matrix.pack_transposed(x + tile * kTile * depth + k, depth, examples_of(tile),
                             std::min<int64_t>(depth - k, kSparseDepth), packed.get() + tile * depth * kTile + k * step,
                             step);
    }
  });
  std::atomic<bool> sound{true};
  parallel(panels, [&](int64_t begin, int64_t end) {
    // As many panels at a time as have their sums in half a megabyte of L2: a tile of examples then stays in L1 for all
    // of their rows.
    const int64_t most = std::max<int64_t>(1, (1 << 19) / (tiles * kSparseRows * kTile * 4));
    const int64_t together = std::min(most, end - begin);
    const Room<float> sums(together * tiles * kSparseRows * kTile);
    const Room<uint8_t> positions(together * kPositions), counts(together * kSparseRows);
    for (int64_t first = begin; first < end; first += together) {
      const int64_t last = std::min(end, first + together);
      const auto rows_of = [&](int64_t panel) { return std::min<int64_t>(outputs - panel * kSparseRows, kSparseRows); };
      const auto sums_of = [&](int64_t panel, int64_t tile) {
        return sums.get() + ((panel - first) * tiles + tile) * kSparseRows * kTile;
      };
      if (blocks == 0) std::fill(sums.get(), sums.get() + together * tiles * kSparseRows * kTile, 0.0f);
      for (int64_t block = 0; block < blocks; ++block) {
        const auto at = [&](int64_t panel) { return panel * kSparseRows * blocks + block * rows_of(panel); };
        for (int64_t panel = first; panel < last; ++panel) {
          const int64_t weights = matrix.decode_bits(weight.bits + at(panel) * (kSparseDepth / 8), rows_of(panel),
                                                     positions.get() + (panel - first) * kPositions,
                                                     counts.get() + (panel - first) * kSparseRows);
          if (weights > weight.count - weight.offsets[panel * blocks + block] ||
              !are_rows(weight.targets + at(panel), rows_of(panel))) {
            sound = false;
            return;
          }
        }
        for (int64_t tile = 0; tile < tiles; ++tile) {
          const int64_t step = panels_of(tile) * kPanel;
          for (int64_t panel = first; panel < last; ++panel) {
            matrix.sparse_block[panels_of(tile) - 1](
                weight.values + weight.offsets[panel * blocks + block], positions.get() + (panel - first) * kPositions,
                counts.get() + (panel - first) * kSparseRows, weight.targets + at(panel), rows_of(panel),
                packed.get() + tile * depth * kTile + block * kSparseDepth * step, sums_of(panel, tile), block > 0);
          }
        }
      }
      for (int64_t panel = first; panel < last; ++panel) {
        for (int64_t tile = 0; tile < tiles; ++tile) {
          const int64_t row = panel * kSparseRows;
          matrix.finish_transposed(sums_of(panel, tile), panels_of(tile) * kPanel, examples_of(tile), rows_of(panel),
                                   finish.bias == nullptr ? nullptr : finish.bias + row, finish.relu,
                                   y + tile * kTile * outputs + row, outputs);
        }
      }
    }
  });
  return sound;
}

}  // namespace

template <>
bool sparse_linear(const Cpu& cpu, const float* x, int64_t batch, const Sparse<float>& weight,
                   const Finish<float>& finish, float* y) {
  const Kernels& kernels = cpu.kernels;
  const Parallel& parallel = cpu.parallel;
  if (!inputs_exist(weight)) return false;
  if (batch == 0) return true;
  return (batch <= kFewExamples ? few_examples : many_examples)(kernels.matrix, parallel, x, batch, weight, finish, y);
}

}  // namespace lps
