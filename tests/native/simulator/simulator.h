// CUDA C++ for a plain C++ compiler: the subset that csrc/cuda/device.cuh names. README.md says how to build and use
// it.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <math.h>
#include <vector_functions.h>
#include <vector_types.h>

#undef __global__
#undef __device__
#undef __host__
#undef __constant__
#undef __shared__
#undef __forceinline__
#undef __launch_bounds__
#undef __grid_constant__
#define __global__
#define __device__
#define __host__
#define __shared__ _Pragma("GCC error \"shared memory is declared with LPS_SHARED\"")
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__

#include "atomics.h"
#include "block.h"
#include "collectives.h"
#include "intrinsics.h"
#include "launch.h"
#include "mma.h"

#define LPS_SHARED(T, name) T* name = static_cast<T*>(::simulator::shared_memory())

#define LPS_LAUNCH(gpu, kernel, grid, block, shared, ...)                         \
  do {                                                                            \
    (void)(gpu).stream;                                                           \
    ::simulator::launch(#kernel, (grid), (block), (shared), kernel, __VA_ARGS__); \
  } while (false)
