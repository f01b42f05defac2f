// Registers the operators on the CPU: the kernels of csrc/cpu on torch's threads.
#include "register.h"

#define LPS_STRING(x) #x
#define LPS_EXPANDED_STRING(x) LPS_STRING(x)

namespace {

using namespace lps;

// Read from the file by lps_kernels/backends/native.py before it loads the library.
[[gnu::used]] const char kVersion[] = "lps-kernels-version=" LPS_EXPANDED_STRING(LPS_VERSION);

struct OnCpu {
  static constexpr bool reads_values = true;
  static constexpr bool multiplies_16_bit = false;

  static Cpu device(const Tensor&) { return device(); }
  static Cpu device() {
    static const Parallel on_torch_threads = [](int64_t count, const Body& body) {
      torch::stable::parallel_for(0, count, 1, body);
    };
    return {selected_kernels(), on_torch_threads};
  }
};

std::string cpu_isa() { return isa_name(selected_kernels()); }

// The peak that benchmarks compare with, on all of torch's threads.
int64_t fma_burst_cpu(int64_t steps) { return fma_burst(OnCpu::device(), torch::stable::get_num_threads(), steps); }

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(lps, m) {
  m.def("_cpu_isa() -> str");
  m.def("_fma_burst(int steps) -> int");
}

STABLE_TORCH_LIBRARY_IMPL(lps, CompositeExplicitAutograd, m) {
  m.impl("_cpu_isa", TORCH_BOX(&cpu_isa));
  m.impl("_fma_burst", TORCH_BOX(&fma_burst_cpu));
}

STABLE_TORCH_LIBRARY_IMPL(lps, CPU, m) { register_operators<OnCpu>(m); }
