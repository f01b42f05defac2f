// Vectors of sixteen floats for the matrix kernels: AVX-512 as of Ice Lake and Zen 4. Blocks of eight lanes are AVX2's.
#pragma once

#include "vectors_avx2.h"

namespace lps {
namespace {

struct Avx512Vectors : Avx2Vectors {
  static constexpr int width = 16;
  static constexpr int group = 4;  // 6 x 4 sums and 4 weights in 32 registers; activations come from memory
  using V = __m512;

  static V zero() { return _mm512_setzero_ps(); }
  static V set(float x) { return _mm512_set1_ps(x); }
  static V load(const float* from) { return _mm512_loadu_ps(from); }
  static void store(float* to, V x) { _mm512_storeu_ps(to, x); }
  static V fma(V a, V b, V c) { return _mm512_fmadd_ps(a, b, c); }
  static V add(V a, V b) { return _mm512_add_ps(a, b); }
  static V relu(V a) { return _mm512_max_ps(_mm512_setzero_ps(), a); }
  static float sum(V a) {
    const __m256 upper = _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(a), 1));
    return Avx2Vectors::sum(_mm256_add_ps(_mm512_castps512_ps256(a), upper));
  }
  static __mmask16 first(int64_t count) { return static_cast<__mmask16>((1u << count) - 1); }
  static V load_part(const float* from, int64_t count) { return _mm512_maskz_loadu_ps(first(count), from); }
  static void store_part(float* to, V x, int64_t count) { _mm512_mask_storeu_ps(to, first(count), x); }

  struct Spread {
    V value;
    __mmask16 set;
  };
  static Spread expand(const float*& values, const uint8_t* bits, int block) {
    uint16_t mask;
    std::memcpy(&mask, bits + 2 * block, 2);
    V packed = _mm512_loadu_ps(values);
    asm("" : "+v"(packed));  // with an operand from memory the expansion is slower, on AMD by a sixth
    const V spread = _mm512_maskz_expand_ps(mask, packed);
    values += _mm_popcnt_u32(mask);
    return {spread, mask};
  }
  static V fma_where(const Spread& a, V b, V c) { return _mm512_mask3_fmadd_ps(a.value, b, c, a.set); }
  static constexpr bool picks = true;
  // The inputs of a block, and which of them the next weights of a row meet: the first `count` lanes, up to all.
  struct Inputs {
    V part[kSparseDepth / 16];
  };
  static Inputs inputs(const float* x) {
    Inputs out;
    for (int i = 0; i < kSparseDepth / width; ++i) out.part[i] = load(x + i * width);
    return out;
  }
  struct Places {
    __m512i index;
    __mmask16 set;
  };
  static Places places(const uint8_t* positions, int64_t count) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(positions));
    return {_mm512_cvtepu8_epi32(bytes), count < width ? first(count) : static_cast<__mmask16>(-1)};
  }
  // c + a * the picked input; the lanes behind the last weight meet nothing, not even an Inf.
  // A permutation picks among 32 inputs by the low five bits of a position; the upper two choose between four of them.
  static V fma_picked(V a, const Inputs& x, const Places& at, V c) {
    const __mmask16 odd = _mm512_test_epi32_mask(at.index, _mm512_set1_epi32(32));
    const __mmask16 upper = _mm512_test_epi32_mask(at.index, _mm512_set1_epi32(64));
    const auto pick = [&](int i) { return _mm512_permutex2var_ps(x.part[i], at.index, x.part[i + 1]); };
    const V lower_half = _mm512_mask_blend_ps(odd, pick(0), pick(2));
    const V upper_half = _mm512_mask_blend_ps(odd, pick(4), pick(6));
    return _mm512_mask3_fmadd_ps(a, _mm512_mask_blend_ps(upper, lower_half, upper_half), c, at.set);
  }
  static int64_t positions(const uint8_t* bits, uint8_t* out) {
    const __m512i low =
        _mm512_set_epi64(0x3f3e3d3c3b3a3938, 0x3736353433323130, 0x2f2e2d2c2b2a2928, 0x2726252423222120,
                         0x1f1e1d1c1b1a1918, 0x1716151413121110, 0x0f0e0d0c0b0a0908, 0x0706050403020100);
    uint64_t mask[2];
    std::memcpy(mask, bits, sizeof(mask));
    const int64_t middle = _mm_popcnt_u64(mask[0]);
    _mm512_storeu_si512(out, _mm512_maskz_compress_epi8(mask[0], low));
    const __m512i high = _mm512_or_si512(low, _mm512_set1_epi8(64));
    _mm512_storeu_si512(out + middle, _mm512_maskz_compress_epi8(mask[1], high));
    return middle + _mm_popcnt_u64(mask[1]);
  }
};

}  // namespace
}  // namespace lps
