// Runs the CUDA kernels in the simulator with a chosen order of threads and blocks.
#pragma once

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "cuda/gpu.h"
#include "launch.h"
#include "traffic.h"

// Device memory of exactly `size` bytes, as what hands it out on a GPU aligns it; at first it holds the byte 0xCB.
class DeviceMemory {
 public:
  DeviceMemory(size_t size, const std::string& name) : block_(allocate(size), &std::free), watch_(get(), size, name) {
    std::memset(get(), 0xcb, size);
  }
  void* get() const { return block_.get(); }

 private:
  static void* allocate(size_t size) {
    void* block = nullptr;
    if (posix_memalign(&block, 256, size) != 0) throw std::bad_alloc();
    return block;
  }

  std::unique_ptr<void, decltype(&std::free)> block_;
  simulator::Watch watch_;
};

// What the kernels run with: the first argument of every function of gpu.h.
class Runner {
 public:
  Runner(unsigned order, int processors, bool tf32) : order_(order), processors_(processors), tf32_(tf32) {}

  // Scratch memory is kept until the next call.
  lps::Gpu device() const {
    simulator::set_order(order_);
    memory_->scratch.clear();
    const auto scratch = [memory = memory_](int64_t bytes) {
      memory->scratch.push_back(std::make_unique<DeviceMemory>(bytes, "scratch"));
      return memory->scratch.back()->get();
    };
    const auto table = [memory = memory_](const void* begin, int64_t bytes) -> const void* {
      auto& copy = memory->tables[std::string(static_cast<const char*>(begin), static_cast<size_t>(bytes))];
      if (copy == nullptr) {
        copy = std::make_unique<DeviceMemory>(bytes, "table");
        std::memcpy(copy->get(), begin, static_cast<size_t>(bytes));
      }
      return copy->get();
    };
    return {nullptr, scratch, table, processors_, tf32_};
  }

 private:
  struct Memory {
    std::vector<std::unique_ptr<DeviceMemory>> scratch;
    std::map<std::string, std::unique_ptr<DeviceMemory>> tables;  // by what they hold
  };
  unsigned order_;
  int processors_;
  bool tf32_;
  std::shared_ptr<Memory> memory_ = std::make_shared<Memory>();
};

// Buffers are called by their number since the last call of `clear`.
inline int watched_buffers = 0;
inline std::unique_ptr<simulator::Watch> watch_buffer(const void* begin, size_t size) {
  return std::make_unique<simulator::Watch>(begin, size, "buffer " + std::to_string(watched_buffers++));
}

// The kernels that were launched, in order.
inline std::vector<std::string> launched() {
  std::vector<std::string> names;
  for (const simulator::Launch& launch : simulator::launches()) names.push_back(launch.kernel);
  return names;
}

// By kernel and buffer: bytes loaded and bytes stored.
inline std::map<std::string, std::map<std::string, std::pair<int64_t, int64_t>>> counted() {
  std::map<std::string, std::map<std::string, std::pair<int64_t, int64_t>>> result;
  for (const auto& [kernel, buffers] : simulator::traffic()) {
    for (const auto& [name, bytes] : buffers) result[kernel][name] = {bytes.loaded, bytes.stored};
  }
  return result;
}

inline void def_runner(pybind11::module_& m) {
  pybind11::class_<Runner>(m, "Runner", pybind11::module_local())
      .def(pybind11::init<unsigned, int, bool>(), pybind11::arg("order"), pybind11::arg("processors"),
           pybind11::arg("tf32"));
  // In order, from the last to the first, and shuffled by two seeds.
  m.def("orders", [] { return std::vector<unsigned>{0, 1, 2, 3}; });
  m.def("launches", &launched);
  m.def("traffic_counts", &counted);
  m.def("clear", [] {
    simulator::clear_launches();
    simulator::clear_traffic();
    watched_buffers = 0;
  });
}
