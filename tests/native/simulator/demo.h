// Small kernels that the simulator is tested on, each right or with one fault. They are no part of the library.
#pragma once

#include <cstdint>

#include "gpu.h"

namespace demo {

enum class Fault {
  none,
  missing_barrier,       // shared memory is read before all have written it
  early_overwrite,       // shared memory is written again before all have read it
  lost_atomic,           // a sum over blocks by a plain load and store
  read_outside,          // of a buffer
  write_outside_shared,  // behind the end of the block's shared memory
  uninitialised_shared,  // read where nothing writes it
  divergent_barrier,     // in a branch that half of the threads take
  two_barriers,          // one for each branch
  divergent_collective,  // in a branch that half of the lanes take
  two_collectives,       // one for each branch
  wrong_mask,            // without the lane that calls
  read_outside_mask,     // a lane that the mask lacks
  early_exit,            // a thread that leaves before a barrier
  early_exit_of_lane,    // a lane that leaves before a collective
};

// Adds the sum of x to *out, with blocks of 64 threads.
void sum(const lps::Gpu&, const float* x, float* out, int count, Fault);
// Each block of 64 threads reverses `rounds` tiles of 64 numbers one after another.
void reverse_tiles(const lps::Gpu&, const float* x, float* out, int rounds, Fault);
// Every collective once, on one warp; see demo.cu for what out[32 * i + lane] is.
constexpr int kCollectives = 18;
void collectives(const lps::Gpu&, const uint32_t* x, uint32_t* out);
// d[16][8] += a[16][depth] b[8][depth]^T with the tensor cores' instruction for 0: f16, 1: bf16, 2: tf32.
void product(const lps::Gpu&, int factor, const float* a, const float* b, float* d, int depth);
// Loads every x once as float4, stores it twice as float, and counts on one int with an atomic from each of `count` / 4
// threads; a table of one float is read by each of them as well.
void traffic(const lps::Gpu&, const float* x, float* out, int* counter, int count);
// The numbers of all threads in the order in which they come by, first before and then behind a barrier.
void turns(const lps::Gpu&, int blocks, int* first, int* second, int* counters);
// A kernel that does nothing, with any sizes.
void nothing(const lps::Gpu&, unsigned grid, unsigned block, size_t shared);

}  // namespace demo
