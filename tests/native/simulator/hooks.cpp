// The functions that code compiled for the thread sanitizer calls at every access to memory. The counting build has
// these in place of the sanitizer's own.
#include <cstddef>
#include <cstdint>

#include "traffic.h"

using simulator::count_load;
using simulator::count_store;

extern "C" {

void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}
void __tsan_read_range(void* address, size_t bytes) { count_load(address, bytes); }
void __tsan_write_range(void* address, size_t bytes) { count_store(address, bytes); }

#define ACCESSES(prefix, bytes)                                                    \
  void __tsan_##prefix##read##bytes(void* address) { count_load(address, bytes); } \
  void __tsan_##prefix##write##bytes(void* address) { count_store(address, bytes); }
ACCESSES(, 1)
ACCESSES(, 2)
ACCESSES(, 4)
ACCESSES(, 8)
ACCESSES(, 16)
ACCESSES(unaligned_, 2)
ACCESSES(unaligned_, 4)
ACCESSES(unaligned_, 8)
ACCESSES(unaligned_, 16)

// Kernels load and store; the counts of shared pointers on the host add. The last argument is the memory order.
#define ATOMICS(bits)                                                                                       \
  uint##bits##_t __tsan_atomic##bits##_load(const volatile uint##bits##_t* address, int) {                  \
    count_load(const_cast<const uint##bits##_t*>(address), bits / 8);                                       \
    return __atomic_load_n(address, __ATOMIC_SEQ_CST);                                                      \
  }                                                                                                         \
  void __tsan_atomic##bits##_store(volatile uint##bits##_t* address, uint##bits##_t x, int) {               \
    count_store(const_cast<uint##bits##_t*>(address), bits / 8);                                            \
    __atomic_store_n(address, x, __ATOMIC_SEQ_CST);                                                         \
  }                                                                                                         \
  uint##bits##_t __tsan_atomic##bits##_fetch_add(volatile uint##bits##_t* address, uint##bits##_t x, int) { \
    return __atomic_fetch_add(address, x, __ATOMIC_SEQ_CST);                                                \
  }
ATOMICS(8)
ATOMICS(16)
ATOMICS(32)
ATOMICS(64)
}
