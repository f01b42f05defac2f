// What the registration needs of CUDA's run-time library, for plain C++.
#pragma once

#include <cstdint>
#include <string>

namespace lps {

// Copies `bytes` (a multiple of 4) into device memory, in order with the stream's kernels and without waiting.
void upload(void* stream, const void* from, void* to, int64_t bytes);

// Why the machine's driver cannot run the kernels; empty where it can. Does not start CUDA.
std::string driver_problem();

// How many multiprocessors the device has.
int multiprocessors(int device);

// Whether the stream's work is being recorded into a CUDA graph instead of run.
bool is_capturing(void* stream);

}  // namespace lps
