// Questions to CUDA's run-time library.
#include <cuda_runtime.h>

#include <stdexcept>

#include "runtime.h"

namespace lps {

namespace {

void check(cudaError_t error, const char* what) {
  if (error != cudaSuccess) throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(error));
}

// 13000 is CUDA 13.0.
std::string version_text(int version) {
  return "CUDA " + std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

}  // namespace

std::string driver_problem() {
  int version = 0;
  check(cudaDriverGetVersion(&version), "cudaDriverGetVersion");
  if (version == 0) return "no driver of a GPU was found";
  if (version / 1000 >= CUDART_VERSION / 1000) return "";
  return "the driver is for " + version_text(version) + ", the kernels were built with " +
         version_text(CUDART_VERSION) + "; update the driver";
}

int multiprocessors(int device) {
  int count = 0;
  check(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device), "cudaDeviceGetAttribute");
  return count;
}

bool is_capturing(void* stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  check(cudaStreamIsCapturing(static_cast<cudaStream_t>(stream), &status), "cudaStreamIsCapturing");
  return status != cudaStreamCaptureStatusNone;
}

}  // namespace lps
