// What every kernel includes: CUDA itself, or the simulator of tests/native, which runs the same source on the CPU.
//
// So that both can, kernels keep to a subset: dynamic shared memory through LPS_SHARED (no static __shared__), launches
// through LPS_LAUNCH, `_sync` collectives, relaxed atomics, __syncthreads; no __activemask, cooperative groups, cub,
// hand-over between blocks inside a launch, nor inline PTX outside the wrappers of mma.cuh.
//
// nvcc is run with --fmad=false: a multiply-add is fused only where fmaf or fma is written, so elementwise kernels
// round every operation on its own, as all backends do.
#pragma once

#ifdef LPS_SIMULATED
#include "simulator.h"
#else
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <stdexcept>
#include <string>

// The block's dynamic shared memory as an array of T. All uses in a kernel name the same bytes.
#define LPS_SHARED(T, name)                                          \
  extern __shared__ __align__(16) unsigned char lps_shared_memory[]; \
  T* name = reinterpret_cast<T*>(lps_shared_memory)

// kernel<<<grid, block, shared, stream>>>(arguments...), with what is wrong with the launch as an exception.
#define LPS_LAUNCH(gpu, kernel, grid, block, shared, ...)                                        \
  do {                                                                                           \
    kernel<<<(grid), (block), (shared), static_cast<cudaStream_t>((gpu).stream)>>>(__VA_ARGS__); \
    ::lps::check_launch(#kernel);                                                                \
  } while (false)

namespace lps {
inline void check_launch(const char* kernel) {
  const cudaError_t error = cudaGetLastError();
  if (error != cudaSuccess) throw std::runtime_error(std::string(kernel) + ": " + cudaGetErrorString(error));
}
}  // namespace lps
#endif

#include "gpu.h"

namespace lps {

// The CUDA type of a float as lps.h names it, and the type that it is computed in.
template <class T>
struct DeviceFloat {
  using type = T;
  using compute = T;
};
template <>
struct DeviceFloat<f16> {
  using type = __half;
  using compute = float;
};
template <>
struct DeviceFloat<bf16> {
  using type = __nv_bfloat16;
  using compute = float;
};
template <class T>
using Device = typename DeviceFloat<T>::type;
template <class T>
using Compute = typename DeviceFloat<T>::compute;

__device__ __forceinline__ float widen(float x) { return x; }
__device__ __forceinline__ double widen(double x) { return x; }
__device__ __forceinline__ float widen(__half x) { return __half2float(x); }
__device__ __forceinline__ float widen(__nv_bfloat16 x) { return __bfloat162float(x); }

__device__ __forceinline__ void narrow(float x, float& out) { out = x; }
__device__ __forceinline__ void narrow(double x, double& out) { out = x; }
__device__ __forceinline__ void narrow(float x, __half& out) { out = __float2half_rn(x); }
__device__ __forceinline__ void narrow(float x, __nv_bfloat16& out) { out = __float2bfloat16_rn(x); }

template <class Int>
__host__ __device__ constexpr Int parts_of(Int count, Int size) {
  return (count + size - 1) / size;
}

}  // namespace lps
