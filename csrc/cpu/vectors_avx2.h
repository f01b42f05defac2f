// Vectors of eight floats for the matrix kernels: AVX2 and FMA.
#pragma once

#include <immintrin.h>

#include "vectors_scalar.h"

namespace lps {
namespace {

// For every byte: where its set bits are (packed to the front), and which of them each lane takes (-1: none).
struct BitTables {
  alignas(64) uint8_t positions[256][8];
  alignas(64) int8_t sources[256][8];
  uint8_t counts[256];
  constexpr BitTables() : positions(), sources(), counts() {
    for (int bits = 0; bits < 256; ++bits) {
      int next = 0;
      for (int lane = 0; lane < 8; ++lane) {
        sources[bits][lane] = -1;
        if ((bits >> lane) & 1) {
          sources[bits][lane] = static_cast<int8_t>(next);
          positions[bits][next++] = static_cast<uint8_t>(lane);
        }
      }
      counts[bits] = static_cast<uint8_t>(next);
    }
  }
};
constexpr BitTables kBits;

struct Avx2Vectors {
  static constexpr int width = 8;
  static constexpr int group = 2;  // 6 x 2 sums, 2 weights and 1 activation in 16 registers
  using V = __m256;
  using Eight = __m256;

  static V zero() { return _mm256_setzero_ps(); }
  static V set(float x) { return _mm256_set1_ps(x); }
  static V load(const float* from) { return _mm256_loadu_ps(from); }
  static void store(float* to, V x) { _mm256_storeu_ps(to, x); }
  static V fma(V a, V b, V c) { return _mm256_fmadd_ps(a, b, c); }
  static V add(V a, V b) { return _mm256_add_ps(a, b); }
  static V relu(V a) { return _mm256_max_ps(_mm256_setzero_ps(), a); }  // of a NaN: the second operand
  static float sum(V a) {
    __m128 half = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    half = _mm_add_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_add_ss(half, _mm_movehdup_ps(half)));
  }
  static __m256i first(int64_t count) {
    const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(count)), lanes);
  }
  static V load_part(const float* from, int64_t count) { return _mm256_maskload_ps(from, first(count)); }
  static void store_part(float* to, V x, int64_t count) { _mm256_maskstore_ps(to, first(count), x); }

  static Eight load8(const float* from) { return _mm256_loadu_ps(from); }
  static void store8(float* to, Eight x) { _mm256_storeu_ps(to, x); }
  static Eight zero8() { return _mm256_setzero_ps(); }
  static Eight add8(Eight a, Eight b) { return _mm256_add_ps(a, b); }
  static Eight relu8(Eight a) { return _mm256_max_ps(_mm256_setzero_ps(), a); }
  static Eight gather8(const float* from, const int32_t* index) {
    return _mm256_i32gather_ps(from, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(index)), 4);
  }
  static Eight mask8(Eight x, uint8_t bits) {
    const __m256i own = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    const __m256i set = _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32(bits), own), own);
    return _mm256_and_ps(x, _mm256_castsi256_ps(set));
  }
  static uint8_t equal_bits(const uint8_t* owner, uint8_t task) {
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(owner));
    const __m128i tasks = _mm_and_si128(bytes, _mm_set1_epi8(kTaskBits));
    return static_cast<uint8_t>(_mm_movemask_epi8(_mm_cmpeq_epi8(tasks, _mm_set1_epi8(static_cast<char>(task)))));
  }
  static void transpose8(Eight* r) {
    __m256 pairs[8], fours[8];
    for (int i = 0; i < 4; ++i) {
      pairs[2 * i] = _mm256_unpacklo_ps(r[2 * i], r[2 * i + 1]);
      pairs[2 * i + 1] = _mm256_unpackhi_ps(r[2 * i], r[2 * i + 1]);
    }
    for (int i = 0; i < 2; ++i) {
      fours[4 * i] = _mm256_shuffle_ps(pairs[4 * i], pairs[4 * i + 2], 0x44);
      fours[4 * i + 1] = _mm256_shuffle_ps(pairs[4 * i], pairs[4 * i + 2], 0xee);
      fours[4 * i + 2] = _mm256_shuffle_ps(pairs[4 * i + 1], pairs[4 * i + 3], 0x44);
      fours[4 * i + 3] = _mm256_shuffle_ps(pairs[4 * i + 1], pairs[4 * i + 3], 0xee);
    }
    for (int i = 0; i < 4; ++i) {
      r[i] = _mm256_permute2f128_ps(fours[i], fours[i + 4], 0x20);
      r[i + 4] = _mm256_permute2f128_ps(fours[i], fours[i + 4], 0x31);
    }
  }

  static constexpr bool picks = false;

  struct Spread {
    V value;
    __m256i source;  // negative where the lane is not set
  };
  static Spread expand(const float*& values, const uint8_t* bits, int block) {
    const uint8_t byte = bits[block];
    const __m128i packed = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(kBits.sources[byte]));
    const __m256i source = _mm256_cvtepi8_epi32(packed);
    const V spread = _mm256_permutevar8x32_ps(_mm256_loadu_ps(values), source);
    values += _mm_popcnt_u32(byte);
    return {spread, source};
  }
  static V fma_where(Spread a, V b, V c) {
    return _mm256_blendv_ps(_mm256_fmadd_ps(a.value, b, c), c, _mm256_castsi256_ps(a.source));
  }
  static int64_t positions(const uint8_t* bits, uint8_t* out) {
    int64_t count = 0;
    for (uint64_t byte = 0; byte < kSparseDepth / 8; ++byte) {
      uint64_t eight;
      std::memcpy(&eight, kBits.positions[bits[byte]], 8);
      eight += byte * 0x0808080808080808ull;
      std::memcpy(out + count, &eight, 8);
      count += kBits.counts[bits[byte]];
    }
    return count;
  }
};

}  // namespace
}  // namespace lps
