// Tiles of a convolution's output positions, and what each of them reads from the input.
#pragma once

#include "matrices.h"

namespace lps {

// Up to 64 positions, counted over all images.
class Positions {
 public:
  Positions(const ConvShape& shape, int64_t outputs, int64_t tile);

  int64_t panels() const { return panels_; }
  const std::vector<Run>& runs() const { return runs_; }
  // Packs columns [begin, begin + depth) of the weight matrix as [depth, 16 * panels].
  void pack(const MatrixKernels&, const float* x, const ConvColumn* columns, int64_t depth, float* out) const;

  static int64_t tiles(const ConvShape& shape) {
    return parts_of(shape.images * shape.out_height * shape.out_width, kTile);
  }

 private:
  void add_tap(const ConvShape& shape, int64_t begin, int64_t end, int64_t tap);

  int64_t panels_, stride_;
  std::vector<Run> runs_;
  std::vector<Copy> copies_;
  std::vector<TapCopies> taps_;
};

// The matrix's columns (`columns`, or all of them) as channel and tap.
std::vector<ConvColumn> conv_columns(const ConvShape& shape, const int32_t* columns, int64_t count);

}  // namespace lps
