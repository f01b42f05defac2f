// The matrix kernels for AVX-512; every other family is limited by memory and runs AVX2's kernels.
#if defined(__AVX512F__)
#include "matrix_kernels.h"
#include "vectors_avx512.h"
#else
#include "isa.h"
#endif

namespace lps {

const Kernels* avx512_kernels() {
#if defined(__AVX512F__)
  static const bool supported = avx2_kernels() != nullptr && __builtin_cpu_supports("avx512f") &&
                                __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
                                __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vbmi2");
  if (!supported) return nullptr;
  static const Kernels table = [] {
    Kernels kernels = *avx2_kernels();
    kernels.name = "avx512";
    fill_matrix<Avx512Vectors>(kernels);
    return kernels;
  }();
  return &table;
#else
  return nullptr;  // another processor family
#endif
}

}  // namespace lps
