#include "traffic.h"

#include "grid.h"

namespace simulator {
namespace {

struct Buffer {
  size_t size;
  std::string name;
};
// By the address that they begin at. Objects that live as long as the interpreter have to find it until the very end.
std::map<uintptr_t, Buffer>& buffers() {
  static auto* all = new std::map<uintptr_t, Buffer>;
  return *all;
}
Traffic counted;

Bytes* counter_of(const void* address) {
  if (!in_kernel()) return nullptr;
  const auto at = reinterpret_cast<uintptr_t>(address);
  auto next = buffers().upper_bound(at);
  if (next == buffers().begin()) return nullptr;
  const auto& [begin, buffer] = *--next;
  if (at - begin >= buffer.size) return nullptr;
  return &counted[launches().back().kernel][buffer.name];
}

}  // namespace

Watch::Watch(const void* begin, size_t size, std::string name) : begin_(reinterpret_cast<uintptr_t>(begin)) {
  buffers()[begin_] = {size, std::move(name)};
}
Watch::~Watch() { buffers().erase(begin_); }

const Traffic& traffic() { return counted; }
void clear_traffic() { counted.clear(); }

void count_load(const void* address, size_t bytes) {
  if (Bytes* counter = counter_of(address)) counter->loaded += static_cast<int64_t>(bytes);
}
void count_store(const void* address, size_t bytes) {
  if (Bytes* counter = counter_of(address)) counter->stored += static_cast<int64_t>(bytes);
}

}  // namespace simulator
