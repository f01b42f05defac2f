#include "demo.h"
#include "device.cuh"

namespace demo {
namespace {

constexpr unsigned kAll = 0xffffffffu;
constexpr int kThreads = 64;

__device__ float warp_sum(float x) {
  for (int offset = 16; offset > 0; offset /= 2) x += __shfl_down_sync(kAll, x, offset);
  return x;
}

__device__ void meet(Fault fault, int thread) {
  if (fault == Fault::missing_barrier) return;
  if (fault == Fault::divergent_barrier) {
    if (thread < kThreads / 2) __syncthreads();
  } else if (fault == Fault::two_barriers) {
    if (thread < kThreads / 2) {
      __syncthreads();
    } else {
      __syncthreads();
    }
  } else {
    __syncthreads();
  }
}

__device__ float sum_of_halves(float x, Fault fault, int lane) {
  if (fault == Fault::divergent_collective) return lane < 16 ? x + __shfl_xor_sync(kAll, x, 16) : x;
  if (fault == Fault::wrong_mask) return x + __shfl_xor_sync(0xfffffffeu, x, 16);
  if (fault == Fault::read_outside_mask) return lane < 16 ? x + __shfl_xor_sync(0x0000ffffu, x, 16) : x;
  if (fault == Fault::two_collectives) {
    if (lane < 16) return x + __shfl_xor_sync(kAll, x, 16);
    return x + __shfl_xor_sync(kAll, x, 16);
  }
  return x + __shfl_xor_sync(kAll, x, 16);
}

__global__ void __launch_bounds__(kThreads) sum_kernel(const float* x, float* out, int count, Fault fault) {
  LPS_SHARED(float, sums);  // one per warp
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  if (fault == Fault::early_exit_of_lane && lane == 7) return;
  float mine = 0;
  for (int i = blockIdx.x * kThreads + thread; i < count; i += gridDim.x * kThreads) {
    mine += x[fault == Fault::read_outside ? i + 1 : i];
  }
  mine = sum_of_halves(mine, fault, lane);
  mine = warp_sum(lane < 16 ? mine : 0.0f);
  if (lane == 0 && fault != Fault::uninitialised_shared)
    sums[fault == Fault::write_outside_shared ? warp + 1 : warp] = mine;
  if (fault == Fault::early_exit && thread == 40) return;
  meet(fault, thread);
  if (warp == 0) {
    mine = warp_sum(lane < kThreads / 32 ? sums[lane] : 0.0f);
    if (lane == 0) {
      if (fault == Fault::lost_atomic) {
        *out += mine;
      } else {
        atomicAdd(out, mine);
      }
    }
  }
}

__global__ void reverse_kernel(const float* x, float* out, int rounds, Fault fault) {
  LPS_SHARED(float, tile);
  const int thread = threadIdx.x;
  for (int round = 0; round < rounds; ++round) {
    const int begin = (blockIdx.x * rounds + round) * kThreads;
    tile[thread] = x[begin + thread];
    __syncthreads();
    out[begin + thread] = tile[kThreads - 1 - thread];
    if (fault != Fault::early_overwrite) __syncthreads();
  }
}

__global__ void collectives_kernel(const uint32_t* x, uint32_t* out) {
  const int lane = threadIdx.x;
  const uint32_t mine = x[lane];
  const int odd = static_cast<int>(mine % 2);
  uint32_t* next = out + lane;
  const auto put = [&](uint32_t value) {
    *next = value;
    next += 32;
  };
  put(__shfl_sync(kAll, mine, 31 - lane));
  put(__shfl_sync(kAll, mine, 9, 8));  // lane 1 of each eight
  put(__shfl_up_sync(kAll, mine, 3));
  put(__shfl_up_sync(kAll, mine, 3, 16));
  put(__shfl_down_sync(kAll, mine, 5));
  put(__shfl_down_sync(kAll, mine, 5, 8));
  put(__shfl_xor_sync(kAll, mine, 6));
  put(static_cast<uint32_t>(__shfl_xor_sync(kAll, static_cast<unsigned long long>(mine) << 32, 6) >> 32));
  put(__ballot_sync(kAll, odd));
  put(static_cast<uint32_t>(__any_sync(kAll, odd)));
  put(static_cast<uint32_t>(__all_sync(kAll, odd)));
  put(__match_any_sync(kAll, mine % 5));
  put(__reduce_add_sync(kAll, mine));
  put(__reduce_max_sync(kAll, mine));
  put(static_cast<uint32_t>(__syncthreads_count(odd)));
  put(static_cast<uint32_t>(__syncthreads_or(odd)));
  put(static_cast<uint32_t>(__syncthreads_and(odd)));
  // Each half of the warp on its own.
  const uint32_t half = lane < 16 ? 0x0000ffffu : 0xffff0000u;
  __syncwarp(half);
  put(lane < 16 ? __ballot_sync(half, odd) : __ballot_sync(half, !odd));
}

template <class T>
__device__ uint32_t pair(float low, float high) {
  T both[2];
  lps::narrow(low, both[0]);
  lps::narrow(high, both[1]);
  uint32_t word;
  memcpy(&word, both, sizeof(word));
  return word;
}

// One warp; the fragments are as the PTX ISA draws them.
__global__ void product_kernel(int factor, const float* a, const float* b, float* d, int depth) {
  const int group = threadIdx.x / 4, place = threadIdx.x % 4;
  float sums[4];
  for (int i = 0; i < 4; ++i) sums[i] = d[(group + i / 2 * 8) * 8 + place * 2 + i % 2];
  const int step = factor == 2 ? 8 : 16;
  for (int begin = 0; begin < depth; begin += step) {
    uint32_t left[4], right[2];
    if (factor == 2) {
      for (int i = 0; i < 4; ++i) left[i] = __float_as_uint(a[(group + i % 2 * 8) * depth + begin + place + i / 2 * 4]);
      for (int i = 0; i < 2; ++i) right[i] = __float_as_uint(b[group * depth + begin + place + i * 4]);
      simulator::mma_m16n8k8_tf32(sums, left, right);
      continue;
    }
    for (int i = 0; i < 4; ++i) {
      const float* two = a + (group + i % 2 * 8) * depth + begin + place * 2 + i / 2 * 8;
      left[i] = factor == 0 ? pair<__half>(two[0], two[1]) : pair<__nv_bfloat16>(two[0], two[1]);
    }
    for (int i = 0; i < 2; ++i) {
      const float* two = b + group * depth + begin + place * 2 + i * 8;
      right[i] = factor == 0 ? pair<__half>(two[0], two[1]) : pair<__nv_bfloat16>(two[0], two[1]);
    }
    if (factor == 0) {
      simulator::mma_m16n8k16_f16(sums, left, right);
    } else {
      simulator::mma_m16n8k16_bf16(sums, left, right);
    }
  }
  for (int i = 0; i < 4; ++i) d[(group + i / 2 * 8) * 8 + place * 2 + i % 2] = sums[i];
}

__global__ void traffic_kernel(const float4* x, float* out, int* counter, const float* factor, int quarters) {
  LPS_SHARED(float, staged);
  const int i = blockIdx.x * kThreads + threadIdx.x;
  if (i >= quarters) return;
  const float4 four = x[i];
  staged[threadIdx.x] = four.x;  // shared memory is not counted
  const float values[4] = {staged[threadIdx.x], four.y, four.z, four.w};
  const float by = *factor;
  for (int j = 0; j < 4; ++j) out[4 * i + j] = values[j] * by;
  for (int j = 0; j < 4; ++j) out[4 * (quarters + i) + j] = values[j];
  atomicAdd(counter, 1);
}

__global__ void turns_kernel(int* first, int* second, int* counters) {
  const int number = blockIdx.x * kThreads + threadIdx.x;
  first[atomicAdd(&counters[0], 1)] = number;
  __syncthreads();
  second[atomicAdd(&counters[1], 1)] = number;
}

__global__ void nothing_kernel(int) {}

}  // namespace

void sum(const lps::Gpu& gpu, const float* x, float* out, int count, Fault fault) {
  LPS_LAUNCH(gpu, sum_kernel, 4, kThreads, kThreads / 32 * sizeof(float), x, out, count, fault);
}
void reverse_tiles(const lps::Gpu& gpu, const float* x, float* out, int rounds, Fault fault) {
  LPS_LAUNCH(gpu, reverse_kernel, 2, kThreads, kThreads * sizeof(float), x, out, rounds, fault);
}
void collectives(const lps::Gpu& gpu, const uint32_t* x, uint32_t* out) {
  LPS_LAUNCH(gpu, collectives_kernel, 1, 32, 0, x, out);
}
void product(const lps::Gpu& gpu, int factor, const float* a, const float* b, float* d, int depth) {
  LPS_LAUNCH(gpu, product_kernel, 1, 32, 0, factor, a, b, d, depth);
}
void traffic(const lps::Gpu& gpu, const float* x, float* out, int* counter, int count) {
  const float two = 2;
  const auto* factor = static_cast<const float*>(gpu.table(&two, sizeof(two)));
  LPS_LAUNCH(gpu, traffic_kernel, lps::parts_of(count / 4, kThreads), kThreads, kThreads * sizeof(float),
             reinterpret_cast<const float4*>(x), out, counter, factor, count / 4);
}
void turns(const lps::Gpu& gpu, int blocks, int* first, int* second, int* counters) {
  LPS_LAUNCH(gpu, turns_kernel, blocks, kThreads, 0, first, second, counters);
}
void nothing(const lps::Gpu& gpu, unsigned grid, unsigned block, size_t shared) {
  LPS_LAUNCH(gpu, nothing_kernel, grid, block, shared, 0);
}

}  // namespace demo
