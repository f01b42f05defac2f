// The functions of lps.h on a GPU: the same arguments, with arrays in the device's memory. No torch and no CUDA header,
// so plain C++ can call them. Nothing here waits for the device: what would take reading values (a `keep` beyond the
// groups that a region has, indices out of order) is not refused; such a `keep` keeps all groups.
#pragma once

#include "lps.h"

namespace lps {

// What runs the kernels: a stream of the current device, and where they get memory from.
struct Gpu {
  void* stream;  // cudaStream_t
  // Device memory for the length of one call, aligned to 256 bytes; not cleared.
  std::function<void*(int64_t bytes)> scratch;
  // A copy of a table in device memory, aligned likewise. It is kept: the next call on the stream with the same bytes
  // copies nothing. The size is a multiple of 4 bytes.
  std::function<const void*(const void* table, int64_t bytes)> table;
  int processors;  // multiprocessors of the device: grids are not much larger than what fills them
  bool tf32;  // products of fp32 matrices on tensor cores round their factors to TF32 once, instead of splitting them
};

void compose(const Gpu&, DType, MaskKind, const void* w, const void* mask, const void* w_bar, void* out, int64_t count);
void compose_owned(const Gpu&, DType, const void* v, const void* w_bar, const uint8_t* owner, void* out, int64_t count);
void task_weight(const Gpu&, DType, const void* w_bar, const uint8_t* owner, const uint8_t* bits, uint8_t task,
                 void* out, int64_t count);
void pack_bits(const Gpu&, const uint8_t* bools, uint8_t* bits, int64_t count);
void unpack_bits(const Gpu&, const uint8_t* bits, uint8_t* bools, int64_t count);

void group_scores(const Gpu&, DType, Score, Region, const std::vector<ScoreLayer>&);
// A shortfall is one that the sizes alone show: fewer groups in the layer than are to be kept, or a negative number.
std::optional<Shortfall> project(const Gpu&, DType, Score, Region, Output, const std::vector<ProjectLayer>&);
std::optional<Shortfall> admm_update(const Gpu&, DType, bool emerging, bool fresh, const std::vector<AdmmLayer>&);

void proximal_adam(const Gpu&, DType, Moves, Pull, const AdamScalars&, const std::vector<StepLayer>&);
void straight_through_adam(const Gpu&, DType, Moves, bool emerging, const AdamScalars&, double share_cost,
                           void* thresholds, const std::vector<StraightLayer>&);
void proximal_grad(const Gpu&, DType, Moves, double rho, double tau, const std::vector<GradLayer>&);

// For float, double, f16 and bf16; 16-bit floats are multiplied on tensor cores and summed in fp32.
template <class T>
void structured_linear(const Gpu&, const T* x, int64_t batch, int64_t inputs, const Structured<T>&, const Finish<T>&,
                       T* y);
template <class T>
void sparse_linear(const Gpu&, const T* x, int64_t batch, const Sparse<T>&, const Finish<T>&, T* y);
template <class T>
void masked_linear(const Gpu&, const T* x, int64_t batch, const Masked<T>&, const Finish<T>&, T* y);
template <class T>
void structured_conv(const Gpu&, const T* x, const ConvShape&, const Structured<T>&, const Finish<T>&, T* y);
template <class T>
void sparse_conv(const Gpu&, const T* x, const ConvShape&, const Sparse<T>&, const Finish<T>&, T* y);

}  // namespace lps
