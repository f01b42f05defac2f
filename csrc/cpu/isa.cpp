// Chooses the instruction set once per process.
#include "isa.h"

#include <cstdlib>
#include <stdexcept>
#include <string>

namespace lps {

namespace {

const Kernels& choose() {
  const Kernels* const all[] = {&scalar_kernels(), avx2_kernels(), avx512_kernels()};  // the best one last
  const char* wanted = std::getenv("LPS_CPU_ISA");
  const std::string name = wanted == nullptr ? "" : wanted;
  const Kernels* best = nullptr;
  std::string names;
  for (const Kernels* kernels : all) {
    if (kernels == nullptr) continue;
    if (name == kernels->name) return *kernels;
    names += (best == nullptr ? "" : ", ") + std::string(kernels->name);
    best = kernels;
  }
  if (name.empty()) return *best;
  throw std::runtime_error("lps_kernels: LPS_CPU_ISA: expected one of " + names + " (all this processor has), got " +
                           name);
}

}  // namespace

const Kernels& selected_kernels() {
  static const Kernels& kernels = choose();
  return kernels;
}

const char* isa_name(const Kernels& kernels) { return kernels.name; }

}  // namespace lps
