// Stacks of their own that one operating-system thread switches between: each runs one CUDA thread at a time.
//
// The sanitizers are told of every switch. The simulator's own sources are compiled without them, and call what the
// program was linked with or loaded after, so one object serves every build.
#pragma once

#include <cstddef>

namespace simulator {

class Fiber {
 public:
  // Each time that the fiber is resumed after `work` has returned, it calls `work` again.
  explicit Fiber(void (*work)());
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // Called by the owner of the fibers; returns when `work` returns or suspends.
  void resume();
  // Called inside `work`; returns when the fiber is resumed.
  static void suspend();

 private:
  static void enter();
  void leave();

  void (*work_)();
  char* stack_;
  void* stack_pointer_;
  void* asan_stack_ = nullptr;  // what the address sanitizer remembers of a fiber that does not run
  void* tsan_fiber_ = nullptr;
};

// Whether the thread sanitizer is there. It takes one fiber for one thread, so that each CUDA thread of a launch has
// to have a fiber of its own.
bool watched_for_races();
// What happened before `tag` was released happened before it was acquired. Both concern the fiber that runs.
void release(void* tag);
void acquire(void* tag);

}  // namespace simulator
