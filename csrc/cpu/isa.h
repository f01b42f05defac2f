// The table of kernels of one instruction set. A kernel works on one range of one array, on one thread;
// the drivers (compose.cpp, project.cpp, select.cpp, scores.cpp, step.cpp, straight.cpp) cut the work into ranges.
// Ranges begin at multiples of 8 coordinates: one byte of packed bits, one block of lanes.
#pragma once

#include "../lps.h"

namespace lps {

constexpr int kDTypes = 4;
constexpr int kLanes = 8;

// A tile of a matrix product: up to 6 rows by up to 4 panels of 16 columns.
constexpr int kRows = kFilters;
constexpr int kPanels = 4;
constexpr int kTile = kPanels * kPanel;

// Weights per unit of work: 32768 x 4 bytes stay in a core's L2 cache together with their companions.
constexpr int64_t kUnit = 32768;

// Keys inside a bracket for which a unit has room. A sampled bracket holds 2 to 8 % of them; more memory would cost
// more in page faults than the rare second pass.
constexpr int64_t kBracketRoom = kUnit / 8;

// Squares that are summed in the dtype of computation before they go on in fp64. Eight fp32 squares err by at most
// 8 * 2^-24, and reading the weights, not converting them, sets the pace.
constexpr int kTermBlocks = 8;

// What is scored and selected: x itself or, where `centre` is set, s = x + dual with the dual recovered from `centre`
// and the kept bits of `owner`.
struct Source {
  const void* x = nullptr;
  const void* centre = nullptr;
  const uint8_t* owner = nullptr;
};

// Scores become integer keys of the same order. Coordinates outside the region have the key kOutside, below all others.
template <class Key>
constexpr Key kOutside = sizeof(Key) == 4 ? static_cast<Key>(INT32_MIN) : static_cast<Key>(INT64_MIN);

// How many coordinates of a range lie in the region, above the band [low, high] of keys, and inside the band.
struct Band {
  int64_t region, above, inside;
};

// Selection on keys: int32 for fp32, bf16 and fp16, int64 for fp64 and for the scores of groups.
template <class Key>
struct SelectKernels {
  // Counts a range and, where `candidates` is not null, writes the keys inside the band: the first `room` of them, and
  // up to 8 of junk behind.
  Band (*collect)(const Source&, Region, Score, int64_t begin, int64_t end, Key low, Key high, Key* candidates,
                  int64_t room);
  // Of a list of keys, writes those inside the band (room for all of them + 8).
  Band (*narrow)(const Key* keys, int64_t count, Key low, Key high, Key* inside);
  // How many of the keys are at least `bound`.
  int64_t (*count_at_least)(const Key* keys, int64_t count, Key bound);
  // The bits of a range: key above the threshold, or equal to it and at an index up to `last_tie`.
  void (*threshold_bits)(const Source&, Region, Score, int64_t begin, int64_t end, Key threshold, int64_t last_tie,
                         uint8_t* bits);
  // The same with the values written: out = kept ? x : 0.
  void (*threshold_values)(const Source&, Region, Score, int64_t begin, int64_t end, Key threshold, int64_t last_tie,
                           uint8_t* bits, void* out, bool stream);
};

// What the pass of a straight-through step knows of one role. A score reaches a bound if it is not below it; a NaN
// reaches every one. No bound is NaN.
template <class T>
struct RolePlan {
  T floor;   // what does not reach it takes no part
  T low;     // what reaches it, but not `beyond`, lies in the bracket where the exact threshold should be: it is listed
  T beyond;  // what reaches it is taken for a survivor
};
// What it finds in a range.
template <class Key>
struct RoleFound {
  Band band;  // its region: what takes part
  bool nan;   // whether a NaN is among it
  // Of those inside the bracket, the first kBracketRoom and one of junk behind: the key, and the index in the range.
  Key* keys;
  int32_t* indices;
};
template <class T, class Key>
using StraightPass = void (*)(const StepLayer&, Moves, const AdamScalars&, double share_cost, const RolePlan<T>* plans,
                              int64_t begin, int64_t end, bool stream, RoleFound<Key>* found);

// One column of a convolution's matrix: the channel, as an offset into an image, the same with the tap's shift added
// for kernels that do not pad, and the tap of the kernel.
struct ConvColumn {
  int64_t plane, shifted, tap;
};
// Positions of a tile, columns [to, to + count), that meet places of one input row: `from` and on, a stride apart.
struct Copy {
  int64_t from, to, count;
};
// All that one tap of the kernel meets; `gaps` where some position meets padding.
struct TapCopies {
  const Copy *begin, *end;
  bool gaps;
};
// Positions of a tile that lie side by side in the output.
struct Run {
  int64_t column, position, count;
};

// Products of matrices of floats; see matrix_kernels.h and sparse_kernels.h for what each one computes.
struct MatrixKernels {
  int64_t width;  // floats in a vector
  void (*dense_tile[kRows][kPanels])(const float* a, const float* b, int64_t b_step, int64_t b_panel, int64_t depth,
                                     float* c, int64_t c_step, bool add);
  void (*row_tile[kRows][kPanels])(const float* a, int64_t a_step, const float* b, int64_t b_panel, int64_t depth,
                                   float* c, int64_t c_step, bool add);
  void (*direct_tile[kRows][kPanels])(const float* a, const float* x, const int64_t* starts, const ConvColumn* columns,
                                      int64_t depth, float* c, int64_t c_step, bool add);
  void (*pack_rows)(const float* x, int64_t x_step, int64_t rows, const int32_t* columns, int64_t depth, float* out);
  void (*pack_masked)(const float* w_bar, const uint8_t* owner, const uint8_t* bits, int64_t last_byte, int64_t first,
                      uint8_t task, int64_t inputs, int64_t outputs, int64_t depth, float* out);
  void (*finish_rows)(const float* c, int64_t c_step, int64_t rows, int64_t count, const int32_t* targets,
                      int64_t begin, int64_t end, const float* bias, bool relu, float* y, int64_t y_step);
  void (*pack_positions)(const float* x, const ConvColumn* columns, int64_t depth, const TapCopies* taps,
                         int64_t stride, float* out, int64_t out_step);
  void (*finish_positions)(const float* sums, int64_t step, const Run* runs, int64_t count, int64_t rows,
                           const int32_t* channels, int64_t first, int64_t plane, const float* bias,
                           const float* residual, bool relu, float* y);
  void (*pack_transposed)(const float* x, int64_t x_step, int64_t rows, int64_t depth, float* out, int64_t out_step);
  void (*finish_transposed)(const float* c, int64_t c_step, int64_t rows, int64_t count, const float* bias, bool relu,
                            float* y, int64_t y_step);
  int64_t (*fma_burst)(int64_t steps, float seed);
  int64_t (*decode_bits)(const uint8_t* bits, int64_t rows, uint8_t* positions, uint8_t* counts);
  void (*sparse_block[kPanels])(const float* values, const uint8_t* positions, const uint8_t* counts,
                                const uint8_t* targets, int64_t rows, const float* tile, float* c, bool add);
  bool (*sparse_rows[kPanels])(const float* values, const float* last, const uint8_t* bits, const uint8_t* targets,
                               int64_t rows, const float* x, float* sums);
  // The same for rows of few weights; null where the instruction set has nothing faster for them.
  bool (*sparse_rows_picked[kPanels])(const float* values, const float* last, const uint8_t* bits,
                                      const uint8_t* targets, int64_t rows, const float* x, float* sums);
  void (*finish_sparse_rows[kPanels])(const float* sums, int64_t count, const float* bias, bool relu, float* y,
                                      int64_t y_step);
};

struct Kernels {
  const char* name;
  MatrixKernels matrix;

  void (*compose[kDTypes][3])(const void* w, const void* mask, const void* w_bar, void* out, int64_t begin, int64_t end,
                              bool stream);
  void (*compose_owned[kDTypes])(const void* v, const void* w_bar, const uint8_t* owner, void* out, int64_t begin,
                                 int64_t end, bool stream);
  void (*task_weight[kDTypes])(const void* w_bar, const uint8_t* owner, const uint8_t* bits, uint8_t task, void* out,
                               int64_t begin, int64_t end, bool stream);

  SelectKernels<int32_t> select32[kDTypes];  // f64: empty
  SelectKernels<int64_t> select64;           // f64
  // sums[c] += the terms of column c over rows [row_begin, row_end) of a matrix of `columns` columns, for columns
  // [begin, end).
  void (*column_sums[kDTypes])(const Source&, Region, Score, int64_t row_begin, int64_t row_end, int64_t columns,
                               int64_t begin, int64_t end, double* sums);
  // The sum of the terms of a contiguous run.
  double (*run_sum[kDTypes])(const Source&, Region, Score, int64_t begin, int64_t end);
  // out[i] = x[i] in fp64, without the dual.
  void (*widen[kDTypes])(const Source&, int64_t begin, int64_t end, double* out);
  // Output::values: out = bit ? x : 0; Output::mask: out = bit ? 1 : 0. `bits` starts at `begin`.
  void (*keep[kDTypes][2])(const void* x, const uint8_t* bits, void* out, int64_t begin, int64_t end, bool stream);
  void (*region_bits)(const uint8_t* owner, Region, int64_t begin, int64_t end, uint8_t* bits);
  // Writes centre and the kept bits of owner from the selection; f32 and f64 only.
  void (*admm_write[2])(const void* v, void* centre, uint8_t* owner, bool fresh, const uint8_t* bits, int64_t begin,
                        int64_t end);

  void (*proximal_adam[2])(const StepLayer&, Moves, Pull, const AdamScalars&, int64_t begin, int64_t end, bool stream);
  // Moves v, and w_bar where it learns, and writes `effective`, unless that is null, as the plans of the free and the
  // owned role predict. Where w_bar learns, `effective` must be there.
  StraightPass<float, int32_t> straight32;
  StraightPass<double, int64_t> straight64;
  // effective = bit ? (free ? v : w_bar) : 0. `bits` starts at `begin`.
  void (*straight_write[2])(const StepLayer&, const uint8_t* bits, int64_t begin, int64_t end, bool stream);
  void (*proximal_grad[2])(const GradLayer&, Moves, double rho, double tau, int64_t begin, int64_t end);

  void (*pack)(const uint8_t* bools, uint8_t* bits, int64_t begin, int64_t end);
  void (*unpack)(const uint8_t* bits, uint8_t* bools, int64_t begin, int64_t end);
};

}  // namespace lps
