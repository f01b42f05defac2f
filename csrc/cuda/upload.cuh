// Small tables from the host to the device as the arguments of a kernel: nothing waits, nothing has to stay where it is
// until a copy has taken place, and a CUDA graph that captures the launch holds the bytes itself.
#pragma once

#include "device.cuh"

namespace lps {

constexpr int kParcelWords = 8184;  // 32,736 bytes: the arguments of a launch have 32,764
constexpr int kParcelThreads = 256;

struct Parcel {
  uint32_t words[kParcelWords];
};

__global__ void __launch_bounds__(kParcelThreads)
    upload_kernel(const __grid_constant__ Parcel parcel, uint32_t* to, int count) {
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kParcelThreads) to[i] = parcel.words[i];
}

}  // namespace lps
