// How many bytes kernels load from and store to the buffers of a device's memory. Shared memory and stacks are none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

namespace simulator {

// The memory at `begin` is a buffer as long as this lives.
class Watch {
 public:
  Watch(const void* begin, size_t size, std::string name);
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

 private:
  uintptr_t begin_;
};

struct Bytes {
  int64_t loaded = 0, stored = 0;
};
// By kernel and buffer, since they were last cleared. Empty but in the counting build.
using Traffic = std::map<std::string, std::map<std::string, Bytes>>;
const Traffic& traffic();
void clear_traffic();

// An access of a kernel's thread; the hooks call it.
void count_load(const void* address, size_t bytes);
void count_store(const void* address, size_t bytes);

}  // namespace simulator
