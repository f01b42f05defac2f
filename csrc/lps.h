// The raw-pointer API of every kernel: no torch header, no allocation visible to the caller, no global state.
//
// Callers have checked shapes, dtypes and overlap; the functions here only compute. Arrays are in memory order.
// Work is cut into units by the sizes alone, so the result is the same bits for any number of threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

namespace lps {

enum class DType { f32, f64, bf16, f16 };
enum class MaskKind { values, boolean, bits };  // values: of the same dtype as the weights
enum class Score { l2, half };                  // of one weight: the magnitude and the value itself
enum class Region { all, free, owned };
enum class Output { values, mask };
enum class Moves { free, all, kept };
enum class Pull { gradient, proximal };

// 16-bit floats as they lie in memory.
struct bf16 {
  uint16_t bits;
};
struct f16 {
  uint16_t bits;
};

// The owner byte of a weight, as in lps_kernels/owner.py: low seven bits 0 = free, t = owned by task t; top bit = kept
// by the latest projection.
constexpr uint8_t kTaskBits = 0x7f;
constexpr uint8_t kKeptBit = 0x80;
constexpr uint8_t kFree = 0;
constexpr uint8_t kMaxTasks = kTaskBits;

// A layer seen as [a, g, b] in memory order, with g the axis of groups.
struct View {
  int64_t a = 1, g = 0, b = 1;
  int64_t size() const { return a == 0 || g == 0 || b == 0 ? 0 : a * g * b; }
  bool single() const { return a == 1 && b == 1; }  // groups of one weight
};

// Calls the body with ranges that cover [0, count) once, possibly from several threads at a time.
using Body = std::function<void(int64_t begin, int64_t end)>;
using Parallel = std::function<void(int64_t count, const Body& body)>;

// One instruction set's kernels; see cpu/isa.h.
struct Kernels;
const Kernels& scalar_kernels();
const Kernels* avx2_kernels();      // nullptr where the build or the processor has no AVX2, FMA and F16C
const Kernels* avx512_kernels();    // nullptr where they have no AVX-512 with VBMI2
const Kernels& selected_kernels();  // the best one, or the one that LPS_CPU_ISA names
const char* isa_name(const Kernels&);

// What runs the functions below on the processor. cuda/gpu.h declares the same functions on a GPU.
struct Cpu {
  const Kernels& kernels;
  const Parallel& parallel;
};

// out = w + mask * w_bar
void compose(const Cpu&, DType, MaskKind, const void* w, const void* mask, const void* w_bar, void* out, int64_t count);

// out = free ? v : v * w_bar
void compose_owned(const Cpu&, DType, const void* v, const void* w_bar, const uint8_t* owner, void* out, int64_t count);

// out = w_bar where the task owns the weight or its bit is set, else 0; plus 0.0, so that -0.0 becomes 0.0
void task_weight(const Cpu&, DType, const void* w_bar, const uint8_t* owner, const uint8_t* bits, uint8_t task,
                 void* out, int64_t count);

// A selection that asks for more groups than there are.
struct Shortfall {
  size_t layer;
  Region region;
  int64_t available;
};

struct ScoreLayer {
  const void* x;
  const uint8_t* owner;  // nullptr where the region is `all`
  View view;
  double* scores;  // view.g
};
void group_scores(const Cpu&, DType, Score, Region, const std::vector<ScoreLayer>&);

struct ProjectLayer {
  const void* x;
  const uint8_t* owner;  // nullptr where the region is `all`
  View view;
  int64_t keep;
  void* out;
  uint8_t* kept;  // packed bits
};
// Writes nothing where it returns a shortfall.
std::optional<Shortfall> project(const Cpu&, DType, Score, Region, Output, const std::vector<ProjectLayer>&);

struct AdmmLayer {
  const void* v;
  void* centre;  // nullptr: only the kept bits are written; then the update must be fresh
  uint8_t* owner;
  View view, sharing_view;
  int64_t keep_free, keep_owned;
};
// Where `emerging`, only groups whose sum of s - 1/2 is above 0 (of one weight: s > 1/2) take part in the selection of
// owned ones, and keep_owned, between 0 and the groups of the view, is an upper bound. Writes nothing where it returns
// a shortfall.
std::optional<Shortfall> admm_update(const Cpu&, DType, bool emerging, bool fresh, const std::vector<AdmmLayer>&);

struct StepLayer {
  void* effective;
  const void* grad;
  void* v;
  void* w_bar;         // only written where weights learn
  const void* centre;  // nullptr: no proximal term
  const uint8_t* owner;
  void* exp_avg;
  void* exp_avg_sq;
  int64_t count;
  // The moments of w_bar where weights learn beside their scores, in straight-through steps only; else nullptr.
  void* weight_exp_avg = nullptr;
  void* weight_exp_avg_sq = nullptr;
};
struct AdamScalars {
  double beta1, beta2, eps, rho, tau;
  double step_size;       // of free coordinates: lr / (1 - beta1^step)
  double mask_step_size;  // of owned ones: mask_lr / (1 - beta1^step)
  double inverse_root;    // 1 / sqrt(1 - beta2^step)
  // On a GPU: where the number of the step lies, from which the three above follow; nullptr where they are given.
  const int64_t* device_step = nullptr;
  double lr = 0, mask_lr = 0;
};
void proximal_adam(const Cpu&, DType, Moves, Pull, const AdamScalars&, const std::vector<StepLayer>&);

struct StraightLayer {
  StepLayer step;  // without centre
  View view, sharing_view;
  int64_t keep_free, keep_owned;  // upper bounds, between 0 and the groups of the view
};
// `thresholds` holds, per layer and role (free, owned), the last threshold and the distance within which the next one
// is looked for, both of the dtype of the weights and NaN where there is none; see ops/straight_through.py.
void straight_through_adam(const Cpu&, DType, Moves, bool emerging, const AdamScalars&, double share_cost,
                           void* thresholds, const std::vector<StraightLayer>&);

struct GradLayer {
  void* grad;
  const void* v;
  const void* centre;  // nullptr: no proximal term
  const uint8_t* owner;
  int64_t count;
};
void proximal_grad(const Cpu&, DType, Moves, double rho, double tau, const std::vector<GradLayer>&);

// ---- inference: products of float matrices with packed weights ----

// Outputs that stand side by side in a packed linear layer, filters in a panel of a packed convolution, and the block
// of rows and columns that irregular weights are packed by.
constexpr int kPanel = 16;
constexpr int kFilters = 6;
constexpr int kSparseRows = 256;
constexpr int kSparseDepth = 128;
constexpr int kSparseSlack = 16;  // floats behind the last packed value that kernels may read

// The rows and columns that are left of a weight matrix of `outputs` rows.
template <class T>
struct Structured {
  const T* weight;         // linear: [ceil(rows / 16), columns, 16]; convolution: [rows / 6][columns][6], the rest last
  const int32_t* columns;  // ascending; nullptr: all
  int64_t column_count;
  const int32_t* rows;  // ascending; nullptr: all
  int64_t row_count, outputs;
};
// Irregular weights, by panels of 256 rows and in each by blocks of 128 columns. A block's rows are in the order of how
// many weights they have: `targets` names them, `bits` has 128 bits for each, `values` their weights.
template <class T>
struct Sparse {
  const T* values;
  const uint8_t* bits;
  const uint8_t* targets;
  const int64_t* offsets;  // of each block's first value, from 0 to `count`
  int64_t count;           // of the values, without the slack behind them
  int64_t inputs, outputs;
};
// The weight is w_bar where the task owns it or its bit is set, else 0.
template <class T>
struct Masked {
  const T* w_bar;
  const uint8_t* owner;
  const uint8_t* bits;
  uint8_t task;
  int64_t inputs, outputs;
};
template <class T>
struct Finish {
  const T* bias;      // nullptr: none
  const T* residual;  // convolutions only; shaped as the result, or nullptr
  bool relu;
};
// A convolution over [images, channels, height, width]; out_height and out_width follow from the rest.
struct ConvShape {
  int64_t images, channels, height, width, kernel_height, kernel_width, stride_height, stride_width;
  int64_t padding_height, padding_width, dilation_height, dilation_width, out_height, out_width;
};

// y[batch, outputs] = finish(x[batch, inputs] @ weight^T), for float and, without any hurry, for double. Those of
// irregular weights find out on their way whether every block's targets are its rows, its bits those of inputs that
// exist, and its values there: they read nothing that is not, and return whether all is.
template <class T>
void structured_linear(const Cpu&, const T* x, int64_t batch, int64_t inputs, const Structured<T>&, const Finish<T>&,
                       T* y);
template <class T>
bool sparse_linear(const Cpu&, const T* x, int64_t batch, const Sparse<T>&, const Finish<T>&, T* y);
template <class T>
void masked_linear(const Cpu&, const T* x, int64_t batch, const Masked<T>&, const Finish<T>&, T* y);
template <class T>
void structured_conv(const Cpu&, const T* x, const ConvShape&, const Structured<T>&, const Finish<T>&, T* y);
template <class T>
bool sparse_conv(const Cpu&, const T* x, const ConvShape&, const Sparse<T>&, const Finish<T>&, T* y);

// Runs `steps` rounds of multiply-adds in registers on each of `parts` parts; returns how many flops they were.
int64_t fma_burst(const Cpu&, int64_t parts, int64_t steps);

// Element 8 i + j goes to bit j of byte i; unused bits of the last byte are 0.
void pack_bits(const Cpu&, const uint8_t* bools, uint8_t* bits, int64_t count);
void unpack_bits(const Cpu&, const uint8_t* bits, uint8_t* bools, int64_t count);

}  // namespace lps
