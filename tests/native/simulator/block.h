// One block of CUDA threads: which thread runs, which wait, and for what. The running thread calls these functions.
#pragma once

#include <vector_types.h>

#include <cstdint>
#include <stdexcept>
#include <string>

namespace simulator {

// Where a kernel calls a barrier or a collective.
struct Site {
  const char* file;
  int line;
  // As the default of a parameter: where the function is called.
  static constexpr Site here(const char* file = __builtin_FILE(), int line = __builtin_LINE()) { return {file, line}; }
};

// What a kernel did wrong, or why it cannot be launched.
struct Fault : std::runtime_error {
  using std::runtime_error::runtime_error;
};
// Ends the launch: `what` becomes a Fault that also names kernel, block, thread and place.
[[noreturn]] void fail(const std::string& what, Site site);

// Every thread of the block meets here; returns how many gave a true predicate.
int meet_block(const char* what, bool predicate, Site site);

// What a lane brings to a collective of its warp, and what it takes away.
struct Lane {
  uint64_t value;
  int argument;
  uint64_t result;
};
// Sets the result of every lane of the mask; the others are null.
using Finish = void (*)(const char* what, uint32_t mask, Lane* const (&lanes)[32], Site site);
// The lanes of `mask` meet here, and the last to come calls `finish` for all.
uint64_t meet_warp(const char* what, uint32_t mask, uint64_t value, int argument, Finish finish, Site site);
// The same, and what they wrote before it is seen by all of them after it.
void synchronise_warp(uint32_t mask, Site site);

// The block's dynamic shared memory.
void* shared_memory();

}  // namespace simulator

// As CUDA has them; those of the thread that runs.
extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;
constexpr int warpSize = 32;
