// Drivers of convolutions: a tile of 64 output positions is packed, columns gathered on the way, and multiplied with
// the packed filters.
#include <atomic>

#include "positions.h"

namespace lps {

namespace {

// Cut by sizes alone: by tiles of positions and, where these are few, by groups of filters too.
struct Grid {
  int64_t tiles, groups;
  Grid(int64_t positions, int64_t parts)
      : tiles(positions), groups(std::max<int64_t>(1, std::min(parts, parts_of(4, std::max<int64_t>(positions, 1))))) {}
  int64_t units() const { return tiles * groups; }
};

// The tile that a thread is at, with what it packed of it: several units may be of one tile.
class PackedTile {
 public:
  PackedTile(const MatrixKernels& matrix, const Tiling& tiling, const float* x, const std::vector<ConvColumn>& columns)
      : matrix_(matrix),
        tiling_(tiling),
        x_(x),
        columns_(columns),
        packed_(tiling.pieces > 0 ? 0 : static_cast<int64_t>(columns.size()) * kTile) {}

  void go_to(int64_t tile) {
    if (tile == at_) return;
    at_ = tile;
    positions_.emplace(tiling_, tile);
    positions_->pack(matrix_, x_, columns_.data(), static_cast<int64_t>(columns_.size()), packed_.get());
  }
  const Positions& operator*() const { return *positions_; }
  const Positions* operator->() const { return &*positions_; }
  const float* packed() const { return packed_.get(); }

 private:
  const MatrixKernels& matrix_;
  const Tiling& tiling_;
  const float* x_;
  const std::vector<ConvColumn>& columns_;
  Room<float> packed_;
  std::optional<Positions> positions_;
  int64_t at_ = -1;
};

// Channels of a tile: `channels`, or from `first` on.
void finish_channels(const MatrixKernels& matrix, const Tiling& tiling, const Positions& tile, const float* sums,
                     int64_t step, int64_t rows, const int32_t* channels, int64_t first, const Finish<float>& finish,
                     float* y) {
  matrix.finish_positions(sums, step, tile.runs().data(), static_cast<int64_t>(tile.runs().size()), rows, channels,
                          first, tiling.plane, finish.bias, finish.residual, finish.relu, y);
}

// Output channels without any weight: what is left of them is their bias.
void finish_absent(const MatrixKernels& matrix, const Tiling& tiling, const Positions& tile,
                   const Structured<float>& weight, int64_t begin, int64_t end, const Finish<float>& finish, float* y) {
  static constexpr float zeros[kTile] = {};
  int64_t row = begin == 0 ? 0 : weight.rows[begin - 1] + 1;
  for (int64_t next = begin; next <= end; ++next) {
    // Those before the next one that is present, and behind the last of all those up to the end.
    if (next == end && next < weight.row_count) break;
    const int64_t stop = next < weight.row_count ? weight.rows[next] : weight.outputs;
    finish_channels(matrix, tiling, tile, zeros, 0, stop - row, nullptr, row, finish, y);
    row = stop + 1;
  }
}

}  // namespace

template <>
void structured_conv(const Cpu& cpu, const float* x, const ConvShape& shape, const Structured<float>& weight,
                     const Finish<float>& finish, float* y) {
  const Kernels& kernels = cpu.kernels;
  const Parallel& parallel = cpu.parallel;
  const MatrixKernels& matrix = kernels.matrix;
  const int64_t depth = weight.column_count;
  const std::vector<ConvColumn> columns = conv_columns(shape, weight.columns, depth);
  const int64_t panels = parts_of(weight.row_count, kFilters);
  const Tiling tiling(shape, weight.outputs, direct_pays(shape, weight.row_count));
  const Grid grid(tiling.tiles, panels);
  const int64_t blocks = std::max<int64_t>(parts_of(depth, kDepth), 1);
  parallel(grid.units(), [&](int64_t begin, int64_t end) {
    const int64_t most = parts_of(panels, grid.groups) * kFilters;
    const Room<float> sums((blocks == 1 ? kFilters : most) * kTile);
    PackedTile tile(matrix, tiling, x, columns);
    for (int64_t unit = begin; unit < end; ++unit) {
      tile.go_to(unit / grid.groups);
      const int64_t group = unit % grid.groups;
      const int64_t first = panels * group / grid.groups, last = panels * (group + 1) / grid.groups;
      const auto sums_of = [&](int64_t panel) {
        return sums.get() + (blocks == 1 ? 0 : (panel - first) * kFilters * kTile);
      };
      for (int64_t block = 0; block < blocks; ++block) {
        const int64_t k = block * kDepth, some = std::min(kDepth, depth - k);
        for (int64_t panel = first; panel < last; ++panel) {
          const int64_t row = panel * kFilters, rows = std::min<int64_t>(weight.row_count - row, kFilters);
          tile->multiply(matrix, weight.weight + row * depth + k * rows, rows, x, tile.packed(), columns.data(), k,
                         some, sums_of(panel), block > 0);
          if (block + 1 < blocks) continue;
          finish_channels(matrix, tiling, *tile, sums_of(panel), kTile, rows,
                          weight.rows == nullptr ? nullptr : weight.rows + row, row, finish, y);
        }
      }
      if (weight.rows != nullptr) {
        const int64_t stop = std::min(last * kFilters, weight.row_count);
        finish_absent(matrix, tiling, *tile, weight, std::min(first * kFilters, stop), stop, finish, y);
      }
    }
  });
}

template <>
bool sparse_conv(const Cpu& cpu, const float* x, const ConvShape& shape, const Sparse<float>& weight,
                 const Finish<float>& finish, float* y) {
  const Kernels& kernels = cpu.kernels;
  const Parallel& parallel = cpu.parallel;
  const MatrixKernels& matrix = kernels.matrix;
  const int64_t depth = weight.inputs;
  const int64_t blocks = parts_of(depth, kSparseDepth), panels = parts_of(weight.outputs, kSparseRows);
  const std::vector<ConvColumn> columns = conv_columns(shape, nullptr, depth);
  const Tiling tiling(shape, weight.outputs, false);
  const Grid grid(tiling.tiles, panels);
  if (!inputs_exist(weight)) return false;
  std::atomic<bool> sound{true};
  parallel(grid.units(), [&](int64_t begin, int64_t end) {
    const Room<float> sums(kSparseRows * kTile);
    const Room<uint8_t> positions(kPositions), counts(kSparseRows);
    PackedTile tile(matrix, tiling, x, columns);
    for (int64_t unit = begin; unit < end; ++unit) {
      tile.go_to(unit / grid.groups);
      const int64_t group = unit % grid.groups, step = tile->panels() * kPanel;
      for (int64_t panel = panels * group / grid.groups; panel < panels * (group + 1) / grid.groups; ++panel) {
        const int64_t row = panel * kSparseRows, rows = std::min<int64_t>(weight.outputs - row, kSparseRows);
        if (blocks == 0) std::fill(sums.get(), sums.get() + kSparseRows * kTile, 0.0f);
        for (int64_t block = 0; block < blocks; ++block) {
          const int64_t at = row * blocks + block * rows;
          const int64_t offset = weight.offsets[panel * blocks + block];
          const int64_t weights =
              matrix.decode_bits(weight.bits + at * (kSparseDepth / 8), rows, positions.get(), counts.get());
          if (weights > weight.count - offset || !are_rows(weight.targets + at, rows)) {
            sound = false;
            return;
          }
          matrix.sparse_block[tile->panels() - 1](weight.values + offset, positions.get(), counts.get(),
                                                  weight.targets + at, rows,
                                                  tile.packed() + block * kSparseDepth * step, sums.get(), block > 0);
        }
        finish_channels(matrix, tiling, *tile, sums.get(), step, rows, nullptr, row, finish, y);
      }
    }
  });
  return sound;
}

}  // namespace lps
