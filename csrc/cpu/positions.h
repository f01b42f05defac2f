// Tiles of a convolution's output positions, and what each of them reads from the input.
#pragma once

#include "matrices.h"

namespace lps {

// How the positions of a convolution are cut into tiles of up to 64: packed ones take the positions as they come,
// counted over all images. Where the kernel neither pads nor strides along rows of at least 16 positions, a tile can be
// four pieces of 16 within rows instead, the last of a row reaching back over its neighbour; these read the input
// directly.
struct Tiling {
  const ConvShape& shape;
  int64_t outputs, plane, pieces;  // pieces of 16 in a row; 0: packed
  int64_t tiles;

  Tiling(const ConvShape& of, int64_t channels, bool directly);
};

// Whether reading directly is possible, and packing for so many filters would take longer than computing the positions
// that two pieces share twice.
bool direct_pays(const ConvShape& shape, int64_t filters);

class Positions {
 public:
  Positions(const Tiling& tiling, int64_t tile);

  int64_t panels() const { return panels_; }
  const std::vector<Run>& runs() const { return runs_; }
  // Packs columns of the weight matrix as [depth, 16 * panels]; nothing to do for pieces.
  void pack(const MatrixKernels&, const float* x, const ConvColumn* columns, int64_t depth, float* out) const;
  // Multiplies rows of packed weights with columns [k, k + depth), from `packed` or directly from x.
  void multiply(const MatrixKernels&, const float* weight, int64_t rows, const float* x, const float* packed,
                const ConvColumn* columns, int64_t k, int64_t depth, float* sums, bool add) const;

 private:
  struct Span;  // positions of the tile that lie in one row of the output
  void add_packed(const Tiling& tiling, int64_t tile);
  void add_pieces(const Tiling& tiling, int64_t tile);
  void add_tap(const ConvShape& shape, const std::vector<Span>& spans, int64_t tap);

  int64_t panels_, stride_;
  std::vector<Run> runs_;
  std::vector<Copy> copies_;
  std::vector<TapCopies> taps_;
  std::vector<int64_t> starts_;  // of pieces, in the input
};

// The matrix's columns (`columns`, or all of them) as channel and tap.
std::vector<ConvColumn> conv_columns(const ConvShape& shape, const int32_t* columns, int64_t count);

}  // namespace lps
