// Kernels of the optimiser step: one launch over all layers, every operation rounded on its own.
#pragma once

#include "launches.h"
#include "layers.cuh"

namespace lps {

// 16 bytes of every array but `owner`: seven arrays of fp64 would not fit the registers four at a time.
template <class T>
constexpr int kStepPack = 16 / sizeof(T);

// Rows of the tables of layers.
struct AdamRow {
  StepLayer layer;
  int64_t first_chunk, aligned;
};
struct GradRow {
  GradLayer layer;
  int64_t first_chunk, aligned;
};

// Of free and of owned coordinates.
template <class T>
struct ByRole {
  T of_free, of_owned;

  __device__ __forceinline__ T at(bool free) const { return free ? of_free : of_owned; }
};

template <class T>
struct AdamNumbers {
  T beta1, rest1, beta2, rest2, eps;
  ByRole<T> pull;   // towards `centre`: as a gradient rho and tau, after the step c / (1 + c) with c one of them
  ByRole<T> stays;  // what then remains of the weight: 1 / (1 + c)
};

// What differs from chunk to chunk, and from step to step.
template <class T>
struct AdamShared {
  AdamRow row;
  ByRole<T> step_size;
  T inverse_root;
};

// By thread 0.
template <class T>
__device__ __forceinline__ void stage_step(const AdamScalars& scalars, AdamShared<T>* shared) {
  double step_size = scalars.step_size, mask_step_size = scalars.mask_step_size, inverse_root = scalars.inverse_root;
  if (scalars.device_step != nullptr) {
    const double step = static_cast<double>(*scalars.device_step), rest = 1 - pow(scalars.beta1, step);
    step_size = scalars.lr / rest;
    mask_step_size = scalars.mask_lr / rest;
    inverse_root = 1 / sqrt(1 - pow(scalars.beta2, step));
  }
  shared->step_size = {static_cast<T>(step_size), static_cast<T>(mask_step_size)};
  shared->inverse_root = static_cast<T>(inverse_root);
}

// On the host.
template <class T>
AdamNumbers<T> numbers_of(const AdamScalars& s, Pull pull) {
  const auto both = [](double of_free, double of_owned) {
    return ByRole<T>{static_cast<T>(of_free), static_cast<T>(of_owned)};
  };
  const bool proximal = pull == Pull::proximal;
  return {static_cast<T>(s.beta1),
          static_cast<T>(1 - s.beta1),
          static_cast<T>(s.beta2),
          static_cast<T>(1 - s.beta2),
          static_cast<T>(s.eps),
          proximal ? both(s.rho / (1 + s.rho), s.tau / (1 + s.tau)) : both(s.rho, s.tau),
          both(1 / (1 + s.rho), 1 / (1 + s.tau))};
}

// A null pointer, of a layer without a proximal term or without weights that learn, is aligned to anything.
inline bool aligned_layer(DType dtype, const StepLayer& layer) {
  const size_t owners = dtype == DType::f64 ? kStepPack<double> : kStepPack<float>;
  return aligned_to(16, {layer.effective, layer.grad, layer.v, layer.w_bar, layer.centre, layer.exp_avg,
                         layer.exp_avg_sq, layer.weight_exp_avg, layer.weight_exp_avg_sq}) &&
         aligned_to(owners, {layer.owner});
}

__device__ __forceinline__ float square_root(float x) { return sqrtf(x); }
__device__ __forceinline__ double square_root(double x) { return sqrt(x); }

__device__ __forceinline__ bool is_moving(uint8_t owner, Moves moves) {
  if (moves == Moves::all) return true;
  return moves == Moves::free ? is_free(owner) : owner == (kFree | kKeptBit);
}

// Gradient of the proximal term.
template <class T>
__device__ __forceinline__ T pull_back(T v, T centre, bool free, const ByRole<T>& by) {
  return (v - centre) * by.at(free);
}

// Moves the moments of one weight; returns what Adam takes off the weight.
template <class T>
__device__ __forceinline__ T adam_change(T gradient, T& mean, T& square, T step_size, T inverse_root,
                                         const AdamNumbers<T>& numbers) {
  mean = mean * numbers.beta1 + gradient * numbers.rest1;
  square = square * numbers.beta2 + gradient * gradient * numbers.rest2;
  const T root = square_root(square) * inverse_root + numbers.eps;
  return mean / root * step_size;
}

// The pull towards `centre` as a part of the gradient, or as a step of its own after Adam's. Types, as a kernel that
// could do both would need more registers than there are.
struct GradientPull {
  static constexpr bool after_adam = false;
};
struct ProximalPull {
  static constexpr bool after_adam = true;
};

// Reads each array once and writes once: 41 bytes per weight in fp32.
template <class T, class Pulling>
__device__ __forceinline__ void adam_pack(const AdamShared<T>& shared, const PackPlace& place, Moves moves,
                                          const AdamNumbers<T>& numbers) {
  constexpr int N = kStepPack<T>;
  const StepLayer& layer = shared.row.layer;
  const Pack<uint8_t, N> owner = load_pack<N>(layer.owner, place);
  const Pack<T, N> grad = load_pack<N>(static_cast<const T*>(layer.grad), place);
  const Pack<T, N> w_bar = load_pack<N>(static_cast<const T*>(layer.w_bar), place);
  Pack<T, N> v = load_pack<N>(static_cast<const T*>(layer.v), place);
  Pack<T, N> mean = load_pack<N>(static_cast<const T*>(layer.exp_avg), place);
  Pack<T, N> square = load_pack<N>(static_cast<const T*>(layer.exp_avg_sq), place);
  const bool pulled = layer.centre != nullptr;
  const Pack<T, N> centre = pulled ? load_pack<N>(static_cast<const T*>(layer.centre), place) : Pack<T, N>{};
#pragma unroll
  for (int j = 0; j < N; ++j) {
    if (!is_moving(owner.at[j], moves)) continue;
    const bool free = is_free(owner.at[j]);
    T gradient = free ? grad.at[j] : grad.at[j] * w_bar.at[j];
    if (pulled && !Pulling::after_adam) {
      gradient = gradient + pull_back(v.at[j], centre.at[j], free, numbers.pull);
    }
    const T step_size = shared.step_size.at(free);
    v.at[j] = v.at[j] - adam_change(gradient, mean.at[j], square.at[j], step_size, shared.inverse_root, numbers);
    if (pulled && Pulling::after_adam) {
      v.at[j] = v.at[j] * numbers.stays.at(free) + centre.at[j] * numbers.pull.at(free);
    }
  }
  store_pack(static_cast<T*>(layer.exp_avg), place, mean);
  store_pack(static_cast<T*>(layer.exp_avg_sq), place, square);
  store_pack(static_cast<T*>(layer.v), place, v);
  Pack<T, N> effective;
#pragma unroll
  for (int j = 0; j < N; ++j) effective.at[j] = is_free(owner.at[j]) ? v.at[j] : v.at[j] * w_bar.at[j];
  store_pack(static_cast<T*>(layer.effective), place, effective);
}

template <class T, class Pulling>
__global__ void __launch_bounds__(kThreads, kBlocks)
    proximal_adam_kernel(const AdamRow* rows, int row_count, int chunks, Moves moves, AdamScalars scalars,
                         AdamNumbers<T> numbers) {
  LPS_SHARED(AdamShared<T>, shared);
  if (threadIdx.x == 0) stage_step(scalars, shared);
  for (int chunk = static_cast<int>(blockIdx.x); chunk < chunks; chunk += static_cast<int>(gridDim.x)) {
    __syncthreads();  // the row of the chunk before is no longer read
    if (threadIdx.x == 0) shared->row = layer_of_chunk(rows, row_count, chunk);
    __syncthreads();
    const AdamRow& row = shared->row;
    for_chunk_packs<kStepPack<T>>(
        chunk - row.first_chunk, row.layer.count, row.aligned != 0,
        [&](const PackPlace& place) { adam_pack<T, Pulling>(*shared, place, moves, numbers); });
  }
}

template <class T>
__device__ __forceinline__ void grad_pack(const GradLayer& layer, const PackPlace& place, Moves moves,
                                          const ByRole<T>& by) {
  constexpr int N = kPack<T>;
  const Pack<uint8_t, N> owner = load_pack<N>(layer.owner, place);
  Pack<T, N> grad = load_pack<N>(static_cast<const T*>(layer.grad), place);
  if (layer.centre != nullptr) {
    const Pack<T, N> v = load_pack<N>(static_cast<const T*>(layer.v), place);
    const Pack<T, N> centre = load_pack<N>(static_cast<const T*>(layer.centre), place);
#pragma unroll
    for (int j = 0; j < N; ++j) grad.at[j] = grad.at[j] + pull_back(v.at[j], centre.at[j], is_free(owner.at[j]), by);
  }
#pragma unroll
  for (int j = 0; j < N; ++j) {
    if (!is_moving(owner.at[j], moves)) grad.at[j] = 0;
  }
  store_pack(static_cast<T*>(layer.grad), place, grad);
}

template <class T>
__global__ void __launch_bounds__(kThreads, kBlocks)
    proximal_grad_kernel(const GradRow* rows, int row_count, int chunks, Moves moves, ByRole<T> by) {
  LPS_SHARED(GradRow, shared);
  for (int chunk = static_cast<int>(blockIdx.x); chunk < chunks; chunk += static_cast<int>(gridDim.x)) {
    __syncthreads();  // the row of the chunk before is no longer read
    if (threadIdx.x == 0) *shared = layer_of_chunk(rows, row_count, chunk);
    __syncthreads();
    const GradRow& row = *shared;
    for_chunk_packs<kPack<T>>(chunk - row.first_chunk, row.layer.count, row.aligned != 0,
                              [&](const PackPlace& place) { grad_pack<T>(row.layer, place, moves, by); });
  }
}

}  // namespace lps
