// Chooses the instruction set once per process.
#include "isa.h"

#include <cstdlib>
#include <stdexcept>
#include <string>

namespace lps {

namespace {

const Kernels& choose() {
  const Kernels* avx2 = avx2_kernels();
  const char* wanted = std::getenv("LPS_CPU_ISA");
  const std::string name = wanted == nullptr ? "" : wanted;
  if (name.empty()) return avx2 != nullptr ? *avx2 : scalar_kernels();
  if (name == "scalar") return scalar_kernels();
  if (name == "avx2" && avx2 != nullptr) return *avx2;
  throw std::runtime_error("lps_kernels: LPS_CPU_ISA: expected " +
                           std::string(avx2 != nullptr ? "scalar or avx2" : "scalar (all this processor has)") +
                           ", got " + name);
}

}  // namespace

const Kernels& selected_kernels() {
  static const Kernels& kernels = choose();
  return kernels;
}

const char* isa_name(const Kernels& kernels) { return kernels.name; }

}  // namespace lps
