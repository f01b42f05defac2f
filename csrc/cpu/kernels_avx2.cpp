// Every kernel for AVX2, FMA and F16C; the only file compiled with those flags, so nothing here runs unasked.
#if defined(__AVX2__)
#include "bits_kernels.h"
#include "compose_kernels.h"
#include "lanes_avx2.h"
#include "matrix_kernels.h"
#include "select_kernels.h"
#include "step_kernels.h"
#include "vectors_avx2.h"
#else
#include "isa.h"
#endif

namespace lps {

const Kernels* avx2_kernels() {
#if defined(__AVX2__)
  static const bool supported = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                                __builtin_cpu_supports("f16c") && __builtin_cpu_supports("popcnt");
  if (!supported) return nullptr;
  static const Kernels table = [] {
    Kernels kernels{};
    kernels.name = Avx2Isa::name;
    fill_compose<Avx2Isa>(kernels);
    fill_select<Avx2Isa>(kernels);
    fill_step<Avx2Isa>(kernels);
    fill_bits<Avx2Isa>(kernels);
    fill_matrix<Avx2Vectors>(kernels);
    return kernels;
  }();
  return &table;
#else
  return nullptr;  // another processor family
#endif
}

}  // namespace lps
