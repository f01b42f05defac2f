// Kernels of the optimiser step: one launch over all layers, every operation rounded on its own.
#pragma once

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

template <class T>
struct AdamNumbers {
  T beta1, rest1, beta2, rest2, eps, rho, tau;
};

// What differs from chunk to chunk, and from step to step.
template <class T>
struct AdamShared {
  AdamRow row;
  T step_size, inverse_root;
};

__device__ __forceinline__ float square_root(float x) { return sqrtf(x); }
__device__ __forceinline__ double square_root(double x) { return sqrt(x); }

__device__ __forceinline__ bool is_moving(uint8_t owner, Moves moves) {
  if (moves == Moves::all) return true;
  return moves == Moves::free ? is_free(owner) : owner == kOwnerKept;
}

// Gradient of the proximal term.
template <class T>
__device__ __forceinline__ T pull(T v, T centre, bool free, T rho, T tau) {
  return (v - centre) * (free ? rho : tau);
}

// Reads each array once and writes once: 41 bytes per weight in fp32.
template <class T>
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
  const bool proximal = layer.centre != nullptr;
  const Pack<T, N> centre = proximal ? load_pack<N>(static_cast<const T*>(layer.centre), place) : Pack<T, N>{};
  Pack<T, N> effective;
#pragma unroll
  for (int j = 0; j < N; ++j) {
    const bool free = is_free(owner.at[j]);
    T gradient = free ? grad.at[j] : grad.at[j] * w_bar.at[j];
    if (proximal) gradient = gradient + pull(v.at[j], centre.at[j], free, numbers.rho, numbers.tau);
    const T new_mean = mean.at[j] * numbers.beta1 + gradient * numbers.rest1;
    const T new_square = square.at[j] * numbers.beta2 + gradient * gradient * numbers.rest2;
    const T root = square_root(new_square) * shared.inverse_root + numbers.eps;
    const T moved = v.at[j] - new_mean / root * shared.step_size;
    if (is_moving(owner.at[j], moves)) {
      mean.at[j] = new_mean;
      square.at[j] = new_square;
      v.at[j] = moved;
    }
    effective.at[j] = free ? v.at[j] : v.at[j] * w_bar.at[j];
  }
  store_pack(static_cast<T*>(layer.exp_avg), place, mean);
  store_pack(static_cast<T*>(layer.exp_avg_sq), place, square);
  store_pack(static_cast<T*>(layer.v), place, v);
  store_pack(static_cast<T*>(layer.effective), place, effective);
}

template <class T>
__global__ void __launch_bounds__(kThreads, kBlocks)
    proximal_adam_kernel(const AdamRow* rows, int row_count, int chunks, Moves moves, AdamScalars scalars,
                         AdamNumbers<T> numbers) {
  LPS_SHARED(AdamShared<T>, shared);
  if (threadIdx.x == 0) {
    double step_size = scalars.step_size, inverse_root = scalars.inverse_root;
    if (scalars.clock != nullptr) {
      const double step = static_cast<double>(*scalars.clock);
      step_size = scalars.lr / (1 - pow(scalars.beta1, step));
      inverse_root = 1 / sqrt(1 - pow(scalars.beta2, step));
    }
    shared->step_size = static_cast<T>(step_size);
    shared->inverse_root = static_cast<T>(inverse_root);
  }
  for (int chunk = static_cast<int>(blockIdx.x); chunk < chunks; chunk += static_cast<int>(gridDim.x)) {
    __syncthreads();  // the row of the chunk before is no longer read
    if (threadIdx.x == 0) shared->row = layer_of_chunk(rows, row_count, chunk);
    __syncthreads();
    const AdamRow& row = shared->row;
    for_chunk_packs<kStepPack<T>>(chunk - row.first_chunk, row.layer.count, row.aligned != 0,
                                  [&](const PackPlace& place) { adam_pack<T>(*shared, place, moves, numbers); });
  }
}

template <class T>
__device__ __forceinline__ void grad_pack(const GradLayer& layer, const PackPlace& place, Moves moves, T rho, T tau) {
  constexpr int N = kPack<T>;
  const Pack<uint8_t, N> owner = load_pack<N>(layer.owner, place);
  Pack<T, N> grad = load_pack<N>(static_cast<const T*>(layer.grad), place);
  if (layer.centre != nullptr) {
    const Pack<T, N> v = load_pack<N>(static_cast<const T*>(layer.v), place);
    const Pack<T, N> centre = load_pack<N>(static_cast<const T*>(layer.centre), place);
#pragma unroll
    for (int j = 0; j < N; ++j) grad.at[j] = grad.at[j] + pull(v.at[j], centre.at[j], is_free(owner.at[j]), rho, tau);
  }
#pragma unroll
  for (int j = 0; j < N; ++j) {
    if (!is_moving(owner.at[j], moves)) grad.at[j] = 0;
  }
  store_pack(static_cast<T*>(layer.grad), place, grad);
}

template <class T>
__global__ void __launch_bounds__(kThreads, kBlocks)
    proximal_grad_kernel(const GradRow* rows, int row_count, int chunks, Moves moves, T rho, T tau) {
  LPS_SHARED(GradRow, shared);
  for (int chunk = static_cast<int>(blockIdx.x); chunk < chunks; chunk += static_cast<int>(gridDim.x)) {
    __syncthreads();  // the row of the chunk before is no longer read
    if (threadIdx.x == 0) *shared = layer_of_chunk(rows, row_count, chunk);
    __syncthreads();
    const GradRow& row = *shared;
    for_chunk_packs<kPack<T>>(chunk - row.first_chunk, row.layer.count, row.aligned != 0,
                              [&](const PackPlace& place) { grad_pack<T>(row.layer, place, moves, rho, tau); });
  }
}

}  // namespace lps
