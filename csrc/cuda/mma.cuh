// Products on tensor cores: d += a b for fragments of 16 x 8 sums, in the layout of mma.sync. One instruction takes
// eight 32-bit words of depth: pairs of 16-bit floats, or single TF32 numbers.
//
// The only inline PTX of the library. Under the simulator the same functions call its model of the instruction.
#pragma once

#include <cstring>

#include "device.cuh"

// Tensor cores that take bf16 and TF32 came with sm_80; below, and for double, kernels multiply and add in plain code.
#ifndef LPS_TENSOR_CORES
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
#define LPS_TENSOR_CORES 0
#else
#define LPS_TENSOR_CORES 1
#endif
#endif

namespace lps {

template <class To, class From>
__device__ __forceinline__ To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From), "the same bits");
  To to;
  memcpy(static_cast<void*>(&to), &from, sizeof(to));
  return to;
}

// What a tile's shared memory is made of: 32-bit words as tensor cores take them, or doubles.
template <class T>
struct Words {
  using type = uint32_t;
  static constexpr int kElements = sizeof(type) / sizeof(T);
  static constexpr bool kTensorCores = LPS_TENSOR_CORES != 0;
};
template <>
struct Words<double> {
  using type = double;
  static constexpr int kElements = 1;
  static constexpr bool kTensorCores = false;
};
template <class T>
using Word = typename Words<T>::type;

template <class T>
__device__ __forceinline__ Word<T> to_word(const Device<T> (&elements)[Words<T>::kElements]) {
  if constexpr (Words<T>::kElements == 1) {
    return bits_as<Word<T>>(elements[0]);
  } else {
    return bits_as<uint16_t>(elements[0]) | static_cast<uint32_t>(bits_as<uint16_t>(elements[1])) << 16;
  }
}

// Element i of a word, as it is computed with.
template <class T>
__device__ __forceinline__ Compute<T> element_of(Word<T> word, int i) {
  if constexpr (Words<T>::kElements == 1) {
    return bits_as<T>(word);
  } else {
    return widen(bits_as<Device<T>>(static_cast<uint16_t>(word >> (16 * i))));
  }
}

__device__ __forceinline__ float fused(float x, float y, float z) { return fmaf(x, y, z); }
__device__ __forceinline__ double fused(double x, double y, double z) { return fma(x, y, z); }

__device__ __forceinline__ bool is_finite(float x) { return (__float_as_uint(x) & 0x7f800000u) != 0x7f800000u; }

constexpr uint32_t kTf32Bits = 0xffffe000u;  // sign, exponent and ten bits of fraction
constexpr uint32_t kTf32Half = 0x1000;       // half of the last of them

// The nearest TF32 number, ties away from zero. Finite numbers stay finite.
__device__ __forceinline__ uint32_t to_tf32(float x) {
  constexpr uint32_t kNearInf = 0x7f7ff000u, kNan = 0x7fffe000u;
  const uint32_t bits = __float_as_uint(x);
  if (x != x) return kNan;
  return ((bits & 0x7fffffffu) < kNearInf ? bits + kTf32Half : bits) & kTf32Bits;
}
// The same of what is left of x after it. Only where x is finite does it count.
__device__ __forceinline__ uint32_t rest_of_tf32(float x, uint32_t high) {
  return (__float_as_uint(x - __uint_as_float(high)) + kTf32Half) & kTf32Bits;
}

template <class T>
__device__ __forceinline__ void multiply_add(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]);

#ifdef LPS_SIMULATED
template <>
inline void multiply_add<f16>(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  simulator::mma_m16n8k16_f16(d, a, b);
}
template <>
inline void multiply_add<bf16>(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  simulator::mma_m16n8k16_bf16(d, a, b);
}
template <>
inline void multiply_add<float>(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  simulator::mma_m16n8k8_tf32(d, a, b);
}
#elif LPS_TENSOR_CORES
#define LPS_MMA(instruction)                                                                  \
  asm volatile(instruction " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" \
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                               \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]))
template <>
__device__ __forceinline__ void multiply_add<f16>(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  LPS_MMA("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32");
}
template <>
__device__ __forceinline__ void multiply_add<bf16>(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  LPS_MMA("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32");
}
template <>
__device__ __forceinline__ void multiply_add<float>(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  LPS_MMA("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32");
}
#undef LPS_MMA
#endif

}  // namespace lps
