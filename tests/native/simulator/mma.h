// The tensor cores' products of small matrices, by the layouts that the PTX ISA gives for mma.sync: d += a b, where a
// is by rows and b by columns. All 32 lanes of a warp hold a part of each matrix and have to come.
#pragma once

#include <cstdint>

#include "block.h"

namespace simulator {

enum class Factor { f16, bf16, tf32 };
void multiply(Factor factor, float* d, const uint32_t* a, const uint32_t* b, Site site);

// a is 16 x 16 and b 16 x 8, two 16-bit floats in a word.
inline void mma_m16n8k16_f16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], Site site = Site::here()) {
  multiply(Factor::f16, d, a, b, site);
}
inline void mma_m16n8k16_bf16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], Site site = Site::here()) {
  multiply(Factor::bf16, d, a, b, site);
}
// a is 16 x 8 and b 8 x 8. Each word is a float, of which the low 13 bits do not count.
inline void mma_m16n8k8_tf32(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], Site site = Site::here()) {
  multiply(Factor::tf32, d, a, b, site);
}

}  // namespace simulator
