// Blocks of eight lanes in plain C++: the baseline of every processor, and what the AVX2 blocks are tested against.
// Everything is in an unnamed namespace: each translation unit has its own copy, compiled for its instruction set.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "isa.h"

namespace lps {
namespace {

template <class To, class From>
inline To bit_cast(From from) {
  static_assert(sizeof(To) == sizeof(From), "same size");
  To to;
  std::memcpy(&to, &from, sizeof(to));
  return to;
}

inline float widen(float x) { return x; }
inline double widen(double x) { return x; }
inline float widen(bf16 x) { return bit_cast<float>(static_cast<uint32_t>(x.bits) << 16); }
inline float widen(f16 x) {
  const uint32_t sign = (x.bits & 0x8000u) << 16, magnitude = x.bits & 0x7fffu;
  if (magnitude >= 0x7c00u) return bit_cast<float>(sign | 0x7f800000u | ((magnitude & 0x3ffu) << 13));  // Inf, NaN
  // Shifted into place, the exponent is too small by 112; the product is exact and handles subnormals too.
  return bit_cast<float>(sign | bit_cast<uint32_t>(bit_cast<float>(magnitude << 13) * 0x1p112f));
}

inline void narrow(float x, float& out) { out = x; }
inline void narrow(double x, double& out) { out = x; }
inline void narrow(float x, bf16& out) {
  const uint32_t bits = bit_cast<uint32_t>(x);
  if (x != x) {
    out.bits = 0x7fc0u;
  } else {
    out.bits = static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);  // to nearest, ties to even
  }
}
inline void narrow(float x, f16& out) {
  const uint32_t bits = bit_cast<uint32_t>(x), magnitude = bits & 0x7fffffffu;
  const uint16_t sign = static_cast<uint16_t>((bits >> 16) & 0x8000u);
  uint32_t half;
  if (magnitude > 0x7f800000u) {
    half = 0x7e00u;  // NaN
  } else if (magnitude >= 0x477ff000u) {
    half = 0x7c00u;  // rounds to 65536 or more: Inf
  } else if (magnitude < 0x38800000u) {
    // Subnormal: adding 0.5 leaves the rounded multiple of 2^-24 in the lowest bits.
    half = bit_cast<uint32_t>(bit_cast<float>(magnitude) + 0.5f) - 0x3f000000u;
  } else {
    half = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  }
  out.bits = static_cast<uint16_t>(sign | half);
}

// The float type in which a storage type is computed.
template <class S>
struct ComputeOf {
  using type = float;
};
template <>
struct ComputeOf<double> {
  using type = double;
};

// Integers in the order of the floats: NaN (one key) above Inf, -0 as 0.
template <class T>
using KeyOf = std::conditional_t<sizeof(T) == 4, int32_t, int64_t>;
template <class T>
constexpr KeyOf<T> kNanKey = sizeof(T) == 4 ? static_cast<KeyOf<T>>(0x7f800001) : KeyOf<T>(0x7ff0000000000001ll);
template <class T>
inline KeyOf<T> value_key(T x) {
  const KeyOf<T> bits = bit_cast<KeyOf<T>>(x + T(0));
  const KeyOf<T> flipped = bits < 0 ? bits ^ static_cast<KeyOf<T>>(~kOutside<KeyOf<T>>) : bits;
  return x != x ? kNanKey<T> : flipped;
}
// The number that has the key.
template <class T>
inline T key_value(KeyOf<T> key) {
  return bit_cast<T>(key < 0 ? static_cast<KeyOf<T>>(key ^ static_cast<KeyOf<T>>(~kOutside<KeyOf<T>>)) : key);
}

// How many of a block's coordinates exist: all eight, or the rest of an array.
struct Full {
  static constexpr int count = kLanes;
};
struct Part {
  int count;
};

// Calls body(i, Full) for whole blocks of [begin, end) and body(i, Part) for what is left.
template <class F>
inline void for_blocks(int64_t begin, int64_t end, F&& body) {
  int64_t i = begin;
  for (; i + kLanes <= end; i += kLanes) body(i, Full{});
  if (i < end) body(i, Part{static_cast<int>(end - i)});
}

struct ScalarIsa {
  static constexpr const char* name = "scalar";

  template <class T>
  struct Block {
    T lane[kLanes];
  };
  struct Mask {
    uint8_t bits;
  };

  template <class F>
  static void each(F&& f) {
    for (int i = 0; i < kLanes; ++i) f(i);
  }
  template <class T, class F>
  static Block<T> map(F&& f) {
    Block<T> out;
    each([&](int i) { out.lane[i] = f(i); });
    return out;
  }

  template <class S>
  static Block<typename ComputeOf<S>::type> load(const S* from, Full) {
    return map<typename ComputeOf<S>::type>([&](int i) { return widen(from[i]); });
  }
  template <class S, class T>
  static void store(S* to, Block<T> x, Full) {
    each([&](int i) { narrow(x.lane[i], to[i]); });
  }
  template <class T>
  static void stream(T* to, Block<T> x) {
    store(to, x, Full{});
  }
  static void stream_end() {}

  template <class T>
  static Block<T> set(T x) {
    return map<T>([&](int) { return x; });
  }
  template <class T>
  static Block<T> add(Block<T> a, Block<T> b) {
    return map<T>([&](int i) { return a.lane[i] + b.lane[i]; });
  }
  template <class T>
  static Block<T> sub(Block<T> a, Block<T> b) {
    return map<T>([&](int i) { return a.lane[i] - b.lane[i]; });
  }
  template <class T>
  static Block<T> mul(Block<T> a, Block<T> b) {
    return map<T>([&](int i) { return a.lane[i] * b.lane[i]; });
  }
  template <class T>
  static Block<T> div(Block<T> a, Block<T> b) {
    return map<T>([&](int i) { return a.lane[i] / b.lane[i]; });
  }
  template <class T>
  static Block<T> sqrt(Block<T> a) {
    return map<T>([&](int i) { return std::sqrt(a.lane[i]); });
  }
  template <class T>
  static Block<T> negate(Block<T> a) {
    return map<T>([&](int i) { return -a.lane[i]; });
  }
  template <class T>
  static Block<T> magnitude(Block<T> a) {
    return map<T>([&](int i) { return std::fabs(a.lane[i]); });
  }
  template <class T>
  static Block<double> to_double(Block<T> a) {
    return map<double>([&](int i) { return static_cast<double>(a.lane[i]); });
  }

  template <class T>
  static Mask mask(uint8_t bits) {
    return {bits};
  }
  template <class T>
  static Block<T> select(Mask m, Block<T> yes, Block<T> no) {
    return map<T>([&](int i) { return (m.bits >> i) & 1 ? yes.lane[i] : no.lane[i]; });
  }
  template <class T>
  static Block<T> zero_unless(Mask m, Block<T> x) {
    return select(m, x, set<T>(0));
  }

  // Lanes where a is at least b, which is no NaN, and the same with those where a is NaN.
  template <class F>
  static Mask mask_where(F&& f) {
    unsigned bits = 0;
    each([&](int i) { bits |= static_cast<unsigned>(f(i)) << i; });
    return {static_cast<uint8_t>(bits)};
  }
  template <class T>
  static Mask at_least(Block<T> a, Block<T> b) {
    return mask_where([&](int i) { return a.lane[i] >= b.lane[i]; });
  }
  template <class T>
  static Mask at_least_or_nan(Block<T> a, Block<T> b) {
    return mask_where([&](int i) { return !(a.lane[i] < b.lane[i]); });
  }
  static uint8_t bits(Mask m) { return m.bits; }

  // Bits of the bytes that are not 0, and of the owner bytes that name a task, are free or are kept.
  template <class F>
  static uint8_t bits_where(const uint8_t* bytes, F&& f) {
    unsigned bits = 0;
    each([&](int i) { bits |= static_cast<unsigned>(f(bytes[i])) << i; });
    return static_cast<uint8_t>(bits);
  }
  static uint8_t nonzero_bits(const uint8_t* bytes) {
    return bits_where(bytes, [](uint8_t b) { return b != 0; });
  }
  static uint8_t task_bits(const uint8_t* owner, uint8_t task) {
    return bits_where(owner, [&](uint8_t b) { return (b & kTaskBits) == task; });
  }
  static uint8_t free_bits(const uint8_t* owner) { return task_bits(owner, kFree); }
  // The lanes of the owner bytes that are free.
  template <class T>
  static Mask free_lanes(const uint8_t* owner) {
    return {free_bits(owner)};
  }
  // The bits of four blocks, and the lanes of one of them: fewer instructions than four times the above.
  static uint32_t task_bits_of_four(const uint8_t* owner, uint8_t task) {
    uint32_t bits = 0;
    for (int block = 0; block < 4; ++block) {
      bits |= static_cast<uint32_t>(task_bits(owner + block * kLanes, task)) << (block * kLanes);
    }
    return bits;
  }
  template <class T, int block>
  static Mask mask_of_four(uint32_t bits) {
    return mask<T>(static_cast<uint8_t>(bits >> (block * kLanes)));
  }
  static uint8_t kept_bits(const uint8_t* owner) {
    return bits_where(owner, [](uint8_t b) { return b >= kKeptBit; });
  }
  static void bits_to_bools(uint8_t bits, uint8_t* bools) {
    each([&](int i) { bools[i] = (bits >> i) & 1; });
  }
  // Sets the kept bit of each owner byte.
  static void write_kept(uint8_t* owner, uint8_t bits) {
    each([&](int i) {
      owner[i] = static_cast<uint8_t>((owner[i] & kTaskBits) | (((bits >> i) & 1) != 0 ? kKeptBit : 0));
    });
  }

  // Keys of the magnitude and of the value.
  template <class T>
  static Block<KeyOf<T>> magnitude_keys(Block<T> x) {
    return map<KeyOf<T>>([&](int i) { return value_key(std::fabs(x.lane[i])); });
  }
  template <class T>
  static Block<KeyOf<T>> value_keys(Block<T> x) {
    return map<KeyOf<T>>([&](int i) { return value_key(x.lane[i]); });
  }
  template <class Key>
  static Block<Key> set_keys(Key x) {
    return set<Key>(x);
  }
  template <class Key>
  static Block<Key> select_keys(uint8_t bits, Block<Key> yes, Block<Key> no) {
    return select<Key>(Mask{bits}, yes, no);
  }
  template <class Key>
  static Block<Key> load_keys(const Key* from) {
    return map<Key>([&](int i) { return from[i]; });
  }
  template <class Key>
  static uint8_t greater(Block<Key> a, Block<Key> b) {
    unsigned bits = 0;
    each([&](int i) { bits |= static_cast<unsigned>(a.lane[i] > b.lane[i]) << i; });
    return static_cast<uint8_t>(bits);
  }
  // Adds 1 to the counts of the lanes where a is greater than b.
  template <class Key>
  static Block<Key> count_greater(Block<Key> counts, Block<Key> a, Block<Key> b) {
    return map<Key>([&](int i) { return static_cast<Key>(counts.lane[i] + (a.lane[i] > b.lane[i])); });
  }
  template <class Key>
  static int64_t sum_counts(Block<Key> counts) {
    int64_t sum = 0;
    each([&](int i) { sum += counts.lane[i]; });
    return sum;
  }
  static int count(uint8_t bits) {
    int n = 0;
    for (unsigned b = bits; b != 0; b &= b - 1) ++n;
    return n;
  }
  // Writes the lanes whose bit is set, one after the other, and may write junk behind them (eight lanes in all).
  template <class Key>
  static void compress(Key* to, Block<Key> keys, uint8_t bits) {
    each([&](int i) {
      if ((bits >> i) & 1) *to++ = keys.lane[i];
    });
  }
};

}  // namespace
}  // namespace lps
