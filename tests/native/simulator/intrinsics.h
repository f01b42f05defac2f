// Functions of one thread, under the names that CUDA has for them.
#pragma once

#include <math.h>

#include <cstdint>
#include <cstring>
#include <type_traits>

namespace simulator {
template <class To, class From>
To reinterpret(From value) {
  static_assert(sizeof(To) == sizeof(From));
  To result;
  std::memcpy(&result, &value, sizeof(To));
  return result;
}
}  // namespace simulator

inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }
inline int __clz(int x) { return x == 0 ? 32 : __builtin_clz(static_cast<unsigned>(x)); }
inline int __clzll(long long x) { return x == 0 ? 64 : __builtin_clzll(static_cast<unsigned long long>(x)); }
inline unsigned __brev(unsigned x) {
  unsigned result = 0;
  for (int bit = 0; bit < 32; ++bit) result |= (x >> bit & 1u) << (31 - bit);
  return result;
}
inline unsigned __umulhi(unsigned x, unsigned y) {
  return static_cast<unsigned>((static_cast<unsigned long long>(x) * y) >> 32);
}
inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift) {
  return static_cast<unsigned>((static_cast<unsigned long long>(high) << 32 | low) << (shift & 31) >> 32);
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
  return static_cast<unsigned>((static_cast<unsigned long long>(high) << 32 | low) >> (shift & 31));
}
// Each of the four low digits of the selector names a byte of the eight of y and x.
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
  const unsigned long long bytes = static_cast<unsigned long long>(y) << 32 | x;
  unsigned result = 0;
  for (int i = 0; i < 4; ++i) {
    result |= static_cast<unsigned>(bytes >> (8 * (selector >> (4 * i) & 7)) & 0xff) << (8 * i);
  }
  return result;
}

inline unsigned __float_as_uint(float x) { return simulator::reinterpret<unsigned>(x); }
inline int __float_as_int(float x) { return simulator::reinterpret<int>(x); }
inline float __uint_as_float(unsigned x) { return simulator::reinterpret<float>(x); }
inline float __int_as_float(int x) { return simulator::reinterpret<float>(x); }
inline long long __double_as_longlong(double x) { return simulator::reinterpret<long long>(x); }
inline double __longlong_as_double(long long x) { return simulator::reinterpret<double>(x); }

// Operations that are rounded to nearest and never fused; sources are compiled without contraction.
inline float __fadd_rn(float x, float y) { return x + y; }
inline float __fsub_rn(float x, float y) { return x - y; }
inline float __fmul_rn(float x, float y) { return x * y; }
inline float __fdiv_rn(float x, float y) { return x / y; }
inline float __fsqrt_rn(float x) { return sqrtf(x); }
inline float __fmaf_rn(float x, float y, float z) { return fmaf(x, y, z); }
inline double __dadd_rn(double x, double y) { return x + y; }
inline double __dsub_rn(double x, double y) { return x - y; }
inline double __dmul_rn(double x, double y) { return x * y; }
inline double __ddiv_rn(double x, double y) { return x / y; }
inline double __dsqrt_rn(double x) { return sqrt(x); }
inline double __fma_rn(double x, double y, double z) { return fma(x, y, z); }

// Loads and stores that differ in what they leave in the caches.
template <class T>
T __ldg(const T* address) {
  return *address;
}
template <class T>
T __ldcs(const T* address) {
  return *address;
}
template <class T>
T __ldcg(const T* address) {
  return *address;
}
template <class T>
void __stcs(T* address, T value) {
  *address = value;
}
template <class T>
void __stcg(T* address, T value) {
  *address = value;
}

// Of two numbers, the one that is a number: CUDA's min and max ignore NaN as fmin and fmax do.
template <class X, class Y, class Common = std::common_type_t<X, Y>>
std::enable_if_t<std::is_arithmetic_v<X> && std::is_arithmetic_v<Y>, Common> min(X x, Y y) {
  const Common a = static_cast<Common>(x), b = static_cast<Common>(y);
  if constexpr (std::is_floating_point_v<Common>) return static_cast<Common>(fmin(a, b));
  return b < a ? b : a;
}
template <class X, class Y, class Common = std::common_type_t<X, Y>>
std::enable_if_t<std::is_arithmetic_v<X> && std::is_arithmetic_v<Y>, Common> max(X x, Y y) {
  const Common a = static_cast<Common>(x), b = static_cast<Common>(y);
  if constexpr (std::is_floating_point_v<Common>) return static_cast<Common>(fmax(a, b));
  return a < b ? b : a;
}
