// Registers the operators on CUDA devices: the kernels of csrc/cuda on torch's current stream, with memory from torch.
#include <torch/csrc/stable/accelerator.h>

#include <cstdlib>
#include <mutex>
#include <string>
#include <unordered_map>

#include "cuda/gpu.h"
#include "cuda/runtime.h"
#include "register.h"

namespace {

using namespace lps;

// How many tables are kept. A network's step and ADMM update need a handful; gradients at new addresses make new ones.
constexpr size_t kTables = 256;

// Device copies of layer tables. A table is found again by its bytes: the addresses and sizes of the layers, which in
// training are the same at every step.
class Tables {
 public:
  // `model` is on the device of the stream. Memory that is returned is not reused while the caller holds it.
  Tensor find(const Tensor& model, void* stream, const void* table, int64_t bytes) {
    std::string key(static_cast<const char*>(table), static_cast<size_t>(bytes));
    // A copy that one stream has been given is not there yet for another.
    key.append(reinterpret_cast<const char*>(&stream), sizeof(stream));
    key += std::to_string(model.get_device_index());
    const std::lock_guard<std::mutex> lock(mutex_);
    auto entry = entries_.find(key);
    if (entry == entries_.end()) {
      if (entries_.size() >= kTables) forget_oldest();
      const Tensor memory = torch::stable::new_empty(model, Ints{bytes}, ScalarType::Byte);
      upload(stream, table, memory.data_ptr(), bytes);
      entry = entries_.emplace(key, Entry{memory, 0}).first;
    }
    entry->second.used = ++clock_;
    return entry->second.memory;
  }

 private:
  struct Entry {
    Tensor memory;
    uint64_t used;
  };

  // Torch gives freed memory out again in the order of the stream, so kernels that still read it are not disturbed.
  void forget_oldest() {
    auto oldest = entries_.begin();
    for (auto entry = entries_.begin(); entry != entries_.end(); ++entry) {
      if (entry->second.used < oldest->second.used) oldest = entry;
    }
    entries_.erase(oldest);
  }

  std::mutex mutex_;
  std::unordered_map<std::string, Entry> entries_;
  uint64_t clock_ = 0;
};

// Never destroyed: at exit torch's allocator may be gone before it.
Tables& tables() {
  static Tables* const all = new Tables;
  return *all;
}

bool tf32_allowed() {
  static const bool allowed = [] {
    const char* value = std::getenv("LPS_TF32");
    return value != nullptr && std::string(value) == "1";
  }();
  return allowed;
}

// The device of a tensor for one call: current while this lives, as is the memory that the call takes.
class CudaDevice : public Gpu {
 public:
  explicit CudaDevice(const Tensor& model) : guard_(model.get_device_index()), model_(model) {
    const int index = model.get_device_index();
    stream = torch::stable::accelerator::getCurrentStream(index).nativeHandle();
    scratch = [this](int64_t bytes) { return take(bytes); };
    table = [this](const void* host, int64_t bytes) -> const void* {
      if (!is_capturing(stream)) return keep(tables().find(model_, stream, host, bytes));
      // Recorded: the graph writes the table at every replay, into memory of its own.
      void* memory = take(bytes);
      upload(stream, host, memory, bytes);
      return memory;
    };
    processors = multiprocessors(index);
    tf32 = tf32_allowed();
  }
  CudaDevice(const CudaDevice&) = delete;
  CudaDevice& operator=(const CudaDevice&) = delete;

 private:
  void* take(int64_t bytes) { return keep(torch::stable::new_empty(model_, Ints{bytes}, ScalarType::Byte)); }
  void* keep(const Tensor& memory) {
    held_.push_back(memory);
    return memory.data_ptr();
  }

  torch::stable::accelerator::DeviceGuard guard_;
  const Tensor& model_;
  Tensors held_;  // until the call has launched everything
};

// What the library has code for, in CMake's words: "75,90-real,120-virtual".
std::string architectures() { return LPS_CUDA_ARCHITECTURES; }

struct OnCuda {
  static constexpr bool reads_values = false;
  static constexpr bool multiplies_16_bit = true;

  static CudaDevice device(const Tensor& model) { return CudaDevice(model); }
};

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(lps, m) {
  m.def("_cuda_driver_problem() -> str");
  m.def("_cuda_architectures() -> str");
}

STABLE_TORCH_LIBRARY_IMPL(lps, CompositeExplicitAutograd, m) {
  m.impl("_cuda_driver_problem", TORCH_BOX(&driver_problem));
  m.impl("_cuda_architectures", TORCH_BOX(&architectures));
}

STABLE_TORCH_LIBRARY_IMPL(lps, CUDA, m) { register_operators<OnCuda>(m); }
