// Blocks of eight lanes in AVX2: one register of floats, two of doubles. Same operations as lanes_scalar.h, same bits.
#pragma once

#include <immintrin.h>

#include "lanes_scalar.h"

namespace lps {
namespace {

// Lane order that moves the lanes of a set bit to the front, for every 8-bit mask of 32-bit lanes.
struct CompressTable {
  alignas(32) uint32_t lanes[256][8];
  constexpr CompressTable() : lanes() {
    for (int bits = 0; bits < 256; ++bits) {
      int next = 0;
      for (uint32_t lane = 0; lane < 8; ++lane) {
        if ((bits >> lane) & 1) lanes[bits][next++] = lane;
      }
    }
  }
};
constexpr CompressTable kCompress;

struct Avx2Isa {
  static constexpr const char* name = "avx2";

  struct F32 {
    __m256 v;
  };
  struct F64 {
    __m256d low, high;
  };
  struct I32 {
    __m256i v;
  };
  struct I64 {
    __m256i low, high;
  };
  struct Mask32 {
    __m256 v;
  };
  struct Mask64 {
    __m256d low, high;
  };
  template <class T>
  struct Types;
  template <class T>
  using Block = typename Types<T>::Block;
  template <class T>
  using MaskOf = typename Types<T>::Mask;

  static F32 load(const float* from, Full) { return {_mm256_loadu_ps(from)}; }
  static F64 load(const double* from, Full) { return {_mm256_loadu_pd(from), _mm256_loadu_pd(from + 4)}; }
  static F32 load(const bf16* from, Full) {
    const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16))};
  }
  static F32 load(const f16* from, Full) {
    return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)))};
  }
  static void store(float* to, F32 x, Full) { _mm256_storeu_ps(to, x.v); }
  static void store(double* to, F64 x, Full) {
    _mm256_storeu_pd(to, x.low);
    _mm256_storeu_pd(to + 4, x.high);
  }
  static void store(bf16* to, F32 x, Full) {
    const __m256i bits = _mm256_castps_si256(x.v);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i bias = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));
    const __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(bits, bias), 16);
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x.v, x.v, _CMP_UNORD_Q));
    const __m256i result = _mm256_blendv_epi8(rounded, _mm256_set1_epi32(0x7fc0), nan);
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(result, result), 0xd8);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm256_castsi256_si128(packed));
  }
  static void store(f16* to, F32 x, Full) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm256_cvtps_ph(x.v, _MM_FROUND_TO_NEAREST_INT));
  }
  // Past the caches; `to` is aligned to 32 bytes.
  static void stream(float* to, F32 x) { _mm256_stream_ps(to, x.v); }
  static void stream(double* to, F64 x) {
    _mm256_stream_pd(to, x.low);
    _mm256_stream_pd(to + 4, x.high);
  }
  static void stream_end() { _mm_sfence(); }

  template <class T>
  static Block<T> set(T x) {
    if constexpr (sizeof(T) == 4) {
      return {_mm256_set1_ps(x)};
    } else {
      return {_mm256_set1_pd(x), _mm256_set1_pd(x)};
    }
  }
  static F32 add(F32 a, F32 b) { return {_mm256_add_ps(a.v, b.v)}; }
  static F64 add(F64 a, F64 b) { return {_mm256_add_pd(a.low, b.low), _mm256_add_pd(a.high, b.high)}; }
  static F32 sub(F32 a, F32 b) { return {_mm256_sub_ps(a.v, b.v)}; }
  static F64 sub(F64 a, F64 b) { return {_mm256_sub_pd(a.low, b.low), _mm256_sub_pd(a.high, b.high)}; }
  static F32 mul(F32 a, F32 b) { return {_mm256_mul_ps(a.v, b.v)}; }
  static F64 mul(F64 a, F64 b) { return {_mm256_mul_pd(a.low, b.low), _mm256_mul_pd(a.high, b.high)}; }
  static F32 div(F32 a, F32 b) { return {_mm256_div_ps(a.v, b.v)}; }
  static F64 div(F64 a, F64 b) { return {_mm256_div_pd(a.low, b.low), _mm256_div_pd(a.high, b.high)}; }
  static F32 sqrt(F32 a) { return {_mm256_sqrt_ps(a.v)}; }
  static F64 sqrt(F64 a) { return {_mm256_sqrt_pd(a.low), _mm256_sqrt_pd(a.high)}; }
  static F32 negate(F32 a) { return {_mm256_xor_ps(a.v, _mm256_set1_ps(-0.0f))}; }
  static F64 negate(F64 a) {
    const __m256d sign = _mm256_set1_pd(-0.0);
    return {_mm256_xor_pd(a.low, sign), _mm256_xor_pd(a.high, sign)};
  }
  static F32 magnitude(F32 a) { return {_mm256_andnot_ps(_mm256_set1_ps(-0.0f), a.v)}; }
  static F64 magnitude(F64 a) {
    const __m256d sign = _mm256_set1_pd(-0.0);
    return {_mm256_andnot_pd(sign, a.low), _mm256_andnot_pd(sign, a.high)};
  }
  static F64 to_double(F32 a) {
    return {_mm256_cvtps_pd(_mm256_castps256_ps128(a.v)), _mm256_cvtps_pd(_mm256_extractf128_ps(a.v, 1))};
  }
  static F64 to_double(F64 a) { return a; }

  // Lane masks from bits: each lane tests its own bit.
  static __m256i lanes32(uint8_t bits) {
    const __m256i own = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    return _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32(bits), own), own);
  }
  static __m256i lanes64(int bits) {
    const __m256i own = _mm256_setr_epi64x(1, 2, 4, 8);
    return _mm256_cmpeq_epi64(_mm256_and_si256(_mm256_set1_epi64x(bits), own), own);
  }
  template <class T>
  static MaskOf<T> mask(uint8_t bits) {
    if constexpr (sizeof(T) == 4) {
      return {_mm256_castsi256_ps(lanes32(bits))};
    } else {
      return {_mm256_castsi256_pd(lanes64(bits & 15)), _mm256_castsi256_pd(lanes64(bits >> 4))};
    }
  }
  static F32 select(Mask32 m, F32 yes, F32 no) { return {_mm256_blendv_ps(no.v, yes.v, m.v)}; }
  static F64 select(Mask64 m, F64 yes, F64 no) {
    return {_mm256_blendv_pd(no.low, yes.low, m.low), _mm256_blendv_pd(no.high, yes.high, m.high)};
  }
  static F32 zero_unless(Mask32 m, F32 x) { return {_mm256_and_ps(m.v, x.v)}; }
  static F64 zero_unless(Mask64 m, F64 x) { return {_mm256_and_pd(m.low, x.low), _mm256_and_pd(m.high, x.high)}; }

  static Mask32 at_least(F32 a, F32 b) { return {_mm256_cmp_ps(a.v, b.v, _CMP_GE_OQ)}; }
  static Mask64 at_least(F64 a, F64 b) {
    return {_mm256_cmp_pd(a.low, b.low, _CMP_GE_OQ), _mm256_cmp_pd(a.high, b.high, _CMP_GE_OQ)};
  }
  static Mask32 at_least_or_nan(F32 a, F32 b) { return {_mm256_cmp_ps(a.v, b.v, _CMP_NLT_UQ)}; }
  static Mask64 at_least_or_nan(F64 a, F64 b) {
    return {_mm256_cmp_pd(a.low, b.low, _CMP_NLT_UQ), _mm256_cmp_pd(a.high, b.high, _CMP_NLT_UQ)};
  }
  static uint8_t bits(Mask32 m) { return static_cast<uint8_t>(_mm256_movemask_ps(m.v)); }
  static uint8_t bits(Mask64 m) {
    return static_cast<uint8_t>(_mm256_movemask_pd(m.low) | (_mm256_movemask_pd(m.high) << 4));
  }

  static __m128i load_bytes(const uint8_t* bytes) { return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(bytes)); }
  static uint8_t nonzero_bits(const uint8_t* bytes) {
    return static_cast<uint8_t>(~_mm_movemask_epi8(_mm_cmpeq_epi8(load_bytes(bytes), _mm_setzero_si128())));
  }
  static uint8_t task_bits(const uint8_t* owner, uint8_t task) {
    const __m128i tasks = _mm_and_si128(load_bytes(owner), _mm_set1_epi8(kTaskBits));
    return static_cast<uint8_t>(_mm_movemask_epi8(_mm_cmpeq_epi8(tasks, _mm_set1_epi8(static_cast<char>(task)))));
  }
  static uint8_t free_bits(const uint8_t* owner) { return task_bits(owner, kFree); }
  template <class T>
  static MaskOf<T> free_lanes(const uint8_t* owner) {
    const __m128i tasks = _mm_and_si128(load_bytes(owner), _mm_set1_epi8(kTaskBits));
    if constexpr (sizeof(T) == 4) {
      return {_mm256_castsi256_ps(_mm256_cmpeq_epi32(_mm256_cvtepu8_epi32(tasks), _mm256_setzero_si256()))};
    } else {
      const __m256i low = _mm256_cvtepu8_epi64(tasks), high = _mm256_cvtepu8_epi64(_mm_srli_si128(tasks, 4));
      return {_mm256_castsi256_pd(_mm256_cmpeq_epi64(low, _mm256_setzero_si256())),
              _mm256_castsi256_pd(_mm256_cmpeq_epi64(high, _mm256_setzero_si256()))};
    }
  }
  static uint32_t task_bits_of_four(const uint8_t* owner, uint8_t task) {
    const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(owner));
    const __m256i tasks = _mm256_and_si256(bytes, _mm256_set1_epi8(kTaskBits));
    const __m256i equal = _mm256_cmpeq_epi8(tasks, _mm256_set1_epi8(static_cast<char>(task)));
    return static_cast<uint32_t>(_mm256_movemask_epi8(equal));
  }
  template <class T, int block>
  static MaskOf<T> mask_of_four(uint32_t bits) {
    if constexpr (sizeof(T) == 4) {
      const __m256i own = _mm256_slli_epi32(_mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128), block * kLanes);
      const __m256i all = _mm256_set1_epi32(static_cast<int>(bits));
      return {_mm256_castsi256_ps(_mm256_cmpeq_epi32(_mm256_and_si256(all, own), own))};
    } else {
      return mask<T>(static_cast<uint8_t>(bits >> (block * kLanes)));
    }
  }
  static_assert(kKeptBit == 0x80, "movemask takes the top bit of each byte");
  static uint8_t kept_bits(const uint8_t* owner) { return static_cast<uint8_t>(_mm_movemask_epi8(load_bytes(owner))); }
  // Each byte tests its own bit; the result is 0xff or 0.
  static __m128i byte_mask(uint8_t bits) {
    const __m128i own = _mm_set1_epi64x(static_cast<int64_t>(0x8040201008040201ull));
    return _mm_cmpeq_epi8(_mm_and_si128(_mm_set1_epi8(static_cast<char>(bits)), own), own);
  }
  static void bits_to_bools(uint8_t bits, uint8_t* bools) {
    _mm_storel_epi64(reinterpret_cast<__m128i*>(bools), _mm_and_si128(byte_mask(bits), _mm_set1_epi8(1)));
  }
  static void write_kept(uint8_t* owner, uint8_t bits) {
    const __m128i task = _mm_and_si128(load_bytes(owner), _mm_set1_epi8(kTaskBits));
    const __m128i kept = _mm_and_si128(byte_mask(bits), _mm_set1_epi8(static_cast<char>(kKeptBit)));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(owner), _mm_or_si128(task, kept));
  }

  static I32 magnitude_keys(F32 x) {
    const __m256i magnitude = _mm256_and_si256(_mm256_castps_si256(x.v), _mm256_set1_epi32(INT32_MAX));
    return {_mm256_min_epi32(magnitude, _mm256_set1_epi32(kNanKey<float>))};
  }
  static __m256i magnitude_key64(__m256d x) {
    const __m256i magnitude = _mm256_and_si256(_mm256_castpd_si256(x), _mm256_set1_epi64x(INT64_MAX));
    const __m256i nan = _mm256_castpd_si256(_mm256_cmp_pd(x, x, _CMP_UNORD_Q));
    return _mm256_blendv_epi8(magnitude, _mm256_set1_epi64x(kNanKey<double>), nan);
  }
  static I64 magnitude_keys(F64 x) { return {magnitude_key64(x.low), magnitude_key64(x.high)}; }
  static I32 value_keys(F32 x) {
    const __m256i bits = _mm256_castps_si256(_mm256_add_ps(x.v, _mm256_setzero_ps()));
    const __m256i flip = _mm256_and_si256(_mm256_srai_epi32(bits, 31), _mm256_set1_epi32(INT32_MAX));
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x.v, x.v, _CMP_UNORD_Q));
    const __m256i keys = _mm256_xor_si256(bits, flip);
    return {_mm256_blendv_epi8(keys, _mm256_set1_epi32(kNanKey<float>), nan)};
  }
  static __m256i value_key64(__m256d x) {
    const __m256i bits = _mm256_castpd_si256(_mm256_add_pd(x, _mm256_setzero_pd()));
    const __m256i negative = _mm256_cmpgt_epi64(_mm256_setzero_si256(), bits);
    const __m256i flip = _mm256_and_si256(negative, _mm256_set1_epi64x(INT64_MAX));
    const __m256i nan = _mm256_castpd_si256(_mm256_cmp_pd(x, x, _CMP_UNORD_Q));
    return _mm256_blendv_epi8(_mm256_xor_si256(bits, flip), _mm256_set1_epi64x(kNanKey<double>), nan);
  }
  static I64 value_keys(F64 x) { return {value_key64(x.low), value_key64(x.high)}; }

  static I32 set_keys(int32_t x) { return {_mm256_set1_epi32(x)}; }
  static I64 set_keys(int64_t x) { return {_mm256_set1_epi64x(x), _mm256_set1_epi64x(x)}; }
  static I32 select_keys(uint8_t bits, I32 yes, I32 no) { return {_mm256_blendv_epi8(no.v, yes.v, lanes32(bits))}; }
  static I64 select_keys(uint8_t bits, I64 yes, I64 no) {
    return {_mm256_blendv_epi8(no.low, yes.low, lanes64(bits & 15)),
            _mm256_blendv_epi8(no.high, yes.high, lanes64(bits >> 4))};
  }
  static I32 load_keys(const int32_t* from) { return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from))}; }
  static I64 load_keys(const int64_t* from) {
    return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)),
            _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + 4))};
  }
  static uint8_t greater(I32 a, I32 b) {
    return static_cast<uint8_t>(_mm256_movemask_ps(_mm256_castsi256_ps(_mm256_cmpgt_epi32(a.v, b.v))));
  }
  static uint8_t greater(I64 a, I64 b) {
    const int low = _mm256_movemask_pd(_mm256_castsi256_pd(_mm256_cmpgt_epi64(a.low, b.low)));
    const int high = _mm256_movemask_pd(_mm256_castsi256_pd(_mm256_cmpgt_epi64(a.high, b.high)));
    return static_cast<uint8_t>(low | (high << 4));
  }
  static I32 count_greater(I32 counts, I32 a, I32 b) {
    return {_mm256_sub_epi32(counts.v, _mm256_cmpgt_epi32(a.v, b.v))};
  }
  static I64 count_greater(I64 counts, I64 a, I64 b) {
    return {_mm256_sub_epi64(counts.low, _mm256_cmpgt_epi64(a.low, b.low)),
            _mm256_sub_epi64(counts.high, _mm256_cmpgt_epi64(a.high, b.high))};
  }
  static int64_t sum_counts(I32 counts) {
    int32_t lanes[kLanes];
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(lanes), counts.v);
    int64_t sum = 0;
    for (int32_t lane : lanes) sum += lane;
    return sum;
  }
  static int64_t sum_counts(I64 counts) {
    int64_t lanes[4];
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(lanes), _mm256_add_epi64(counts.low, counts.high));
    return lanes[0] + lanes[1] + lanes[2] + lanes[3];
  }
  static int count(uint8_t bits) { return _mm_popcnt_u32(bits); }
  static void compress(int32_t* to, I32 keys, uint8_t bits) {
    const __m256i order = _mm256_load_si256(reinterpret_cast<const __m256i*>(kCompress.lanes[bits]));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm256_permutevar8x32_epi32(keys.v, order));
  }
  static void compress(int64_t* to, I64 keys, uint8_t bits) {
    alignas(32) int64_t lanes[kLanes];
    _mm256_store_si256(reinterpret_cast<__m256i*>(lanes), keys.low);
    _mm256_store_si256(reinterpret_cast<__m256i*>(lanes + 4), keys.high);
    for (unsigned rest = bits; rest != 0; rest &= rest - 1) *to++ = lanes[__builtin_ctz(rest)];
  }
};

template <>
struct Avx2Isa::Types<float> {
  using Block = F32;
  using Mask = Mask32;
};
template <>
struct Avx2Isa::Types<double> {
  using Block = F64;
  using Mask = Mask64;
};

}  // namespace
}  // namespace lps
