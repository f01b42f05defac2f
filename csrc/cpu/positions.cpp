#include "positions.h"

namespace lps {

Positions::Positions(const ConvShape& shape, int64_t outputs, int64_t tile) : stride_(shape.stride_width) {
  const int64_t plane = shape.out_height * shape.out_width, all = shape.images * plane;
  const int64_t begin = tile * kTile, end = std::min(begin + kTile, all);
  panels_ = parts_of(end - begin, kPanel);
  for (int64_t at = begin; at < end;) {
    const int64_t image = at / plane, stop = std::min(end, (image + 1) * plane);
    runs_.push_back({at - begin, image * outputs * plane + at % plane, stop - at});
    at = stop;
  }
  const int64_t taps = shape.kernel_height * shape.kernel_width;
  std::vector<size_t> first(static_cast<size_t>(taps + 1), 0);
  taps_.resize(static_cast<size_t>(taps));
  for (int64_t tap = 0; tap < taps; ++tap) {
    add_tap(shape, begin, end, tap);
    first[static_cast<size_t>(tap + 1)] = copies_.size();
  }
  for (size_t tap = 0; tap < taps_.size(); ++tap) {  // only now, because adding may have moved the copies
    taps_[tap].begin = copies_.data() + first[tap];
    taps_[tap].end = copies_.data() + first[tap + 1];
  }
}

void Positions::add_tap(const ConvShape& shape, int64_t begin, int64_t end, int64_t tap) {
  const int64_t plane = shape.out_height * shape.out_width;
  const int64_t down = tap / shape.kernel_width * shape.dilation_height - shape.padding_height;
  const int64_t right = tap % shape.kernel_width * shape.dilation_width - shape.padding_width;
  // Output columns whose input column lies in [0, width): the others meet padding.
  const int64_t stride = shape.stride_width, lowest = right >= 0 ? 0 : parts_of(-right, stride);
  const int64_t highest = shape.width - 1 - right < 0 ? 0 : (shape.width - 1 - right) / stride + 1;
  int64_t met = 0;
  for (int64_t at = begin; at < end;) {
    const int64_t image = at / plane, row = at % plane / shape.out_width, column = at % shape.out_width;
    const int64_t stop = std::min(end, at + shape.out_width - column);
    const int64_t from_row = row * shape.stride_height + down;
    const int64_t first = std::max(column, lowest), last = std::min(column + stop - at, highest);
    if (from_row >= 0 && from_row < shape.height && first < last) {
      const int64_t source = (image * shape.channels * shape.height + from_row) * shape.width + first * stride + right;
      const int64_t to = at - begin + first - column;
      Copy* before = met > 0 ? &copies_.back() : nullptr;
      // Whole rows without padding or stride follow each other in the input too.
      if (before != nullptr && stride == 1 && before->from + before->count == source &&
          before->to + before->count == to) {
        before->count += last - first;
      } else {
        copies_.push_back({source, to, last - first});
      }
      met += last - first;
    }
    at = stop;
  }
  taps_[static_cast<size_t>(tap)].gaps = met < parts_of(end - begin, kPanel) * kPanel;
}

void Positions::pack(const MatrixKernels& matrix, const float* x, const ConvColumn* columns, int64_t depth,
                     float* out) const {
  matrix.pack_positions(x, columns, depth, taps_.data(), stride_, out, panels_ * kPanel);
}

std::vector<ConvColumn> conv_columns(const ConvShape& shape, const int32_t* columns, int64_t count) {
  const int64_t taps = shape.kernel_height * shape.kernel_width, plane = shape.height * shape.width;
  std::vector<ConvColumn> out(static_cast<size_t>(count));
  for (int64_t k = 0; k < count; ++k) {
    const int64_t column = columns == nullptr ? k : columns[k];
    out[static_cast<size_t>(k)] = {column / taps * plane, static_cast<int32_t>(column % taps)};
  }
  return out;
}

}  // namespace lps
