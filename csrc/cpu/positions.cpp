#include "positions.h"

namespace lps {

// Packing a column of 64 positions takes about as long as multiplying it with this many filters.
constexpr int64_t kPackingFilters = 15;

bool direct_pays(const ConvShape& shape, int64_t filters) {
  const bool unpadded = shape.padding_width == 0 && shape.padding_height == 0;
  const int64_t twice = parts_of(shape.out_width, kPanel) * kPanel - shape.out_width;
  return unpadded && shape.stride_width == 1 && shape.out_width >= kPanel &&
         twice * filters <= kPackingFilters * shape.out_width;
}

Tiling::Tiling(const ConvShape& of, int64_t channels, bool directly)
    : shape(of),
      outputs(channels),
      plane(of.out_height * of.out_width),
      pieces(directly ? parts_of(of.out_width, kPanel) : 0) {
  tiles = pieces > 0 ? parts_of(of.images * of.out_height * pieces, kPanels) : parts_of(of.images * plane, kTile);
}

struct Positions::Span {
  int64_t image, row, column, count, to;
};

Positions::Positions(const Tiling& tiling, int64_t tile) : stride_(tiling.shape.stride_width) {
  if (tiling.pieces > 0) {
    add_pieces(tiling, tile);
  } else {
    add_packed(tiling, tile);
  }
}

void Positions::add_packed(const Tiling& tiling, int64_t tile) {
  const ConvShape& shape = tiling.shape;
  const int64_t begin = tile * kTile, end = std::min(begin + kTile, shape.images * tiling.plane);
  panels_ = parts_of(end - begin, kPanel);
  std::vector<Span> spans;
  int64_t image = begin / tiling.plane, row = begin % tiling.plane / shape.out_width, column = begin % shape.out_width;
  for (int64_t at = begin; at < end;) {
    const int64_t count = std::min(end - at, shape.out_width - column);
    const int64_t position = (image * tiling.outputs) * tiling.plane + row * shape.out_width + column;
    if (!runs_.empty() && row > 0) {
      runs_.back().count += count;  // rows of one image follow each other
    } else {
      runs_.push_back({at - begin, position, count});
    }
    spans.push_back({image, row, column, count, at - begin});
    at += count;
    column = 0;
    if (++row == shape.out_height) {
      row = 0;
      ++image;
    }
  }
  const int64_t taps = shape.kernel_height * shape.kernel_width;
  std::vector<size_t> first(static_cast<size_t>(taps + 1), 0);
  taps_.resize(static_cast<size_t>(taps));
  copies_.reserve(static_cast<size_t>(taps) * spans.size());
  for (int64_t tap = 0; tap < taps; ++tap) {
    add_tap(shape, spans, tap);
    first[static_cast<size_t>(tap + 1)] = copies_.size();
  }
  for (size_t tap = 0; tap < taps_.size(); ++tap) {
    taps_[tap].begin = copies_.data() + first[tap];
    taps_[tap].end = copies_.data() + first[tap + 1];
  }
}

void Positions::add_pieces(const Tiling& tiling, int64_t tile) {
  const ConvShape& shape = tiling.shape;
  const int64_t all = shape.images * shape.out_height * tiling.pieces;
  const int64_t begin = tile * kPanels, end = std::min(begin + kPanels, all);
  panels_ = end - begin;
  for (int64_t piece = begin; piece < end; ++piece) {
    const int64_t row = piece / tiling.pieces % shape.out_height, image = piece / tiling.pieces / shape.out_height;
    const int64_t wanted = piece % tiling.pieces * kPanel, column = std::min(wanted, shape.out_width - kPanel);
    starts_.push_back((image * shape.channels * shape.height + row * shape.stride_height) * shape.width + column);
    // What the neighbour writes too is left to it.
    runs_.push_back({(piece - begin) * kPanel + wanted - column,
                     image * tiling.outputs * tiling.plane + row * shape.out_width + wanted, column + kPanel - wanted});
  }
}

void Positions::add_tap(const ConvShape& shape, const std::vector<Span>& spans, int64_t tap) {
  const int64_t down = tap / shape.kernel_width * shape.dilation_height - shape.padding_height;
  const int64_t right = tap % shape.kernel_width * shape.dilation_width - shape.padding_width;
  // Output columns whose input column lies in [0, width): the others meet padding.
  const int64_t stride = shape.stride_width, lowest = right >= 0 ? 0 : parts_of(-right, stride);
  const int64_t highest = shape.width - 1 - right < 0 ? 0 : (shape.width - 1 - right) / stride + 1;
  const size_t begin = copies_.size();
  int64_t met = 0;
  for (const Span& span : spans) {
    const int64_t from_row = span.row * shape.stride_height + down;
    const int64_t first = std::max(span.column, lowest), last = std::min(span.column + span.count, highest);
    if (from_row < 0 || from_row >= shape.height || first >= last) continue;
    const int64_t plane_row = span.image * shape.channels * shape.height + from_row;
    const int64_t source = plane_row * shape.width + first * stride + right, to = span.to + first - span.column;
    Copy* before = copies_.size() > begin ? &copies_.back() : nullptr;
    // Whole rows without padding or stride follow each other in the input too.
    if (before != nullptr && stride == 1 && before->from + before->count == source &&
        before->to + before->count == to) {
      before->count += last - first;
    } else {
      copies_.push_back({source, to, last - first});
    }
    met += last - first;
  }
  taps_[static_cast<size_t>(tap)].gaps = met < panels_ * kPanel;
}

void Positions::pack(const MatrixKernels& matrix, const float* x, const ConvColumn* columns, int64_t depth,
                     float* out) const {
  if (starts_.empty()) matrix.pack_positions(x, columns, depth, taps_.data(), stride_, out, panels_ * kPanel);
}

void Positions::multiply(const MatrixKernels& matrix, const float* weight, int64_t rows, const float* x,
                         const float* packed, const ConvColumn* columns, int64_t k, int64_t depth, float* sums,
                         bool add) const {
  if (starts_.empty()) {
    const int64_t step = panels_ * kPanel;
    matrix.dense_tile[rows - 1][panels_ - 1](weight, packed + k * step, step, kPanel, depth, sums, kTile, add);
  } else {
    matrix.direct_tile[rows - 1][panels_ - 1](weight, x, starts_.data(), columns + k, depth, sums, kTile, add);
  }
}

std::vector<ConvColumn> conv_columns(const ConvShape& shape, const int32_t* columns, int64_t count) {
  const int64_t width = shape.kernel_width, taps = shape.kernel_height * width, plane = shape.height * shape.width;
  std::vector<int64_t> shifts;
  for (int64_t tap = 0; tap < taps; ++tap) {
    shifts.push_back(tap / width * shape.dilation_height * shape.width + tap % width * shape.dilation_width);
  }
  std::vector<ConvColumn> out(static_cast<size_t>(count));
  int64_t channel = 0;  // columns ascend, so no column needs a division
  for (int64_t k = 0; k < count; ++k) {
    const int64_t column = columns == nullptr ? k : columns[k];
    while (column >= (channel + 1) * taps) ++channel;
    const int64_t tap = column - channel * taps, at = channel * plane;
    out[static_cast<size_t>(k)] = {at, at + shifts[static_cast<size_t>(tap)], tap};
  }
  return out;
}

}  // namespace lps
