#include "fibers.h"

#include <sys/mman.h>

#include <cstdint>
#include <new>

// Null where the sanitizer is absent.
#define OPTIONAL __attribute__((weak))
extern "C" {
OPTIONAL void __sanitizer_start_switch_fiber(void** save, const void* bottom, size_t size);
OPTIONAL void __sanitizer_finish_switch_fiber(void* saved, const void** old_bottom, size_t* old_size);
OPTIONAL void __asan_unpoison_memory_region(const volatile void* begin, size_t size);
OPTIONAL void* __tsan_get_current_fiber();
OPTIONAL void* __tsan_create_fiber(unsigned flags);
OPTIONAL void __tsan_destroy_fiber(void* fiber);
OPTIONAL void __tsan_switch_to_fiber(void* fiber, unsigned flags);
OPTIONAL void __tsan_acquire(void* tag);
OPTIONAL void __tsan_release(void* tag);

// Keeps the registers that a function may not change on the stack, stores the stack pointer, and goes on where `to` was
// stored.
void simulator_switch(void** store, void* to);
}

#ifndef __x86_64__
#error "the simulator switches fibers on x86-64 only"
#endif
asm(R"(
  .text
  .type simulator_switch, @function
simulator_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
  .size simulator_switch, . - simulator_switch
)");

namespace simulator {
namespace {

constexpr size_t kStack = 128 << 10;  // a launch may have 32 KiB of arguments, and a copy of them
constexpr size_t kGuard = 4096;       // below each stack, not to be touched: an overflow stops the process
constexpr unsigned kNoOrder = 1;      // a switch orders no memory accesses: only barriers do
constexpr int kSavedRegisters = 6;    // by simulator_switch

// Of the caller of resume.
struct Owner {
  void* stack_pointer;
  void* asan_stack;
  const void* bottom;
  size_t size;
  void* tsan_fiber;
} owner;

Fiber* running = nullptr;

}  // namespace

Fiber::Fiber(void (*work)()) : work_(work) {
  void* pages = mmap(nullptr, kGuard + kStack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (pages == MAP_FAILED) throw std::bad_alloc();
  mprotect(pages, kGuard, PROT_NONE);
  stack_ = static_cast<char*>(pages) + kGuard;
  // As simulator_switch leaves a stack, with `enter` to return to; there the stack is 8 bytes off a multiple of 16.
  void** top = reinterpret_cast<void**>(stack_ + kStack) - 2;
  *--top = nullptr;
  *--top = reinterpret_cast<void*>(&Fiber::enter);
  for (int i = 0; i < kSavedRegisters; ++i) *--top = nullptr;
  stack_pointer_ = top;
  if (__tsan_create_fiber) tsan_fiber_ = __tsan_create_fiber(0);
}

Fiber::~Fiber() {
  if (tsan_fiber_ != nullptr) __tsan_destroy_fiber(tsan_fiber_);
  // A CUDA thread that was given up half-way leaves its frames' marks behind.
  if (__asan_unpoison_memory_region) __asan_unpoison_memory_region(stack_, kStack);
  munmap(stack_ - kGuard, kGuard + kStack);
}

void Fiber::enter() {
  if (__sanitizer_finish_switch_fiber) __sanitizer_finish_switch_fiber(nullptr, &owner.bottom, &owner.size);
  for (;;) {
    running->work_();
    running->leave();
  }
}

void Fiber::resume() {
  running = this;
  if (__sanitizer_start_switch_fiber) __sanitizer_start_switch_fiber(&owner.asan_stack, stack_, kStack);
  if (tsan_fiber_ != nullptr) {
    owner.tsan_fiber = __tsan_get_current_fiber();
    __tsan_switch_to_fiber(tsan_fiber_, kNoOrder);
  }
  simulator_switch(&owner.stack_pointer, stack_pointer_);
  if (__sanitizer_finish_switch_fiber) __sanitizer_finish_switch_fiber(owner.asan_stack, nullptr, nullptr);
}

void Fiber::leave() {
  if (__sanitizer_start_switch_fiber) __sanitizer_start_switch_fiber(&asan_stack_, owner.bottom, owner.size);
  if (tsan_fiber_ != nullptr) __tsan_switch_to_fiber(owner.tsan_fiber, kNoOrder);
  simulator_switch(&stack_pointer_, owner.stack_pointer);
  if (__sanitizer_finish_switch_fiber) __sanitizer_finish_switch_fiber(asan_stack_, &owner.bottom, &owner.size);
}

void Fiber::suspend() { running->leave(); }

bool watched_for_races() { return __tsan_create_fiber != nullptr; }
void release(void* tag) {
  if (__tsan_release) __tsan_release(tag);
}
void acquire(void* tag) {
  if (__tsan_acquire) __tsan_acquire(tag);
}

}  // namespace simulator
