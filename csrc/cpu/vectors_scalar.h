// Vectors of floats for the matrix kernels, on the baseline instruction set of the platform. The other instruction sets
// have the same members, each over its own registers.
#pragma once

#include <cstdint>
#include <cstring>

#include "isa.h"

namespace lps {
namespace {

struct ScalarVectors {
  static constexpr int width = 4;  // floats in a vector
  static constexpr int group = 2;  // vectors of a tile's row that are summed at a time: 6 x 2 fit into 16 registers
  struct V {
    float lane[width];
  };
  struct Eight {
    float lane[8];
  };

  template <class F>
  static V each(F&& f) {
    V out;
    for (int i = 0; i < width; ++i) out.lane[i] = f(i);
    return out;
  }
  static V zero() { return V{}; }
  static V set(float x) {
    return each([&](int) { return x; });
  }
  static V load(const float* from) {
    V out;
    std::memcpy(out.lane, from, sizeof(out.lane));
    return out;
  }
  static void store(float* to, V x) { std::memcpy(to, x.lane, sizeof(x.lane)); }
  static V fma(V a, V b, V c) {
    return each([&](int i) { return a.lane[i] * b.lane[i] + c.lane[i]; });
  }
  static V add(V a, V b) {
    return each([&](int i) { return a.lane[i] + b.lane[i]; });
  }
  // 0 where negative; NaN stays.
  static V relu(V a) {
    return each([&](int i) { return a.lane[i] < 0 ? 0.0f : a.lane[i]; });
  }
  static float sum(V a) { return (a.lane[0] + a.lane[2]) + (a.lane[1] + a.lane[3]); }
  // The first `count` < width floats and zeros; nothing behind them is read.
  static V load_part(const float* from, int64_t count) {
    V out{};
    std::memcpy(out.lane, from, sizeof(float) * static_cast<size_t>(count));
    return out;
  }
  static void store_part(float* to, V x, int64_t count) {
    std::memcpy(to, x.lane, sizeof(float) * static_cast<size_t>(count));
  }

  static Eight load8(const float* from) {
    Eight out;
    std::memcpy(out.lane, from, sizeof(out.lane));
    return out;
  }
  static void store8(float* to, Eight x) { std::memcpy(to, x.lane, sizeof(x.lane)); }
  static Eight zero8() { return Eight{}; }
  static Eight add8(Eight a, Eight b) {
    for (int i = 0; i < 8; ++i) a.lane[i] += b.lane[i];
    return a;
  }
  static Eight relu8(Eight a) {
    for (int i = 0; i < 8; ++i) a.lane[i] = a.lane[i] < 0 ? 0.0f : a.lane[i];
    return a;
  }
  static Eight gather8(const float* from, const int32_t* index) {
    Eight out;
    for (int i = 0; i < 8; ++i) out.lane[i] = from[index[i]];
    return out;
  }
  // x where the bit is set, else 0.
  static Eight mask8(Eight x, uint8_t bits) {
    for (int i = 0; i < 8; ++i) x.lane[i] = (bits >> i) & 1 ? x.lane[i] : 0.0f;
    return x;
  }
  static uint8_t equal_bits(const uint8_t* owner, uint8_t task) {
    unsigned bits = 0;
    for (int i = 0; i < 8; ++i) bits |= static_cast<unsigned>((owner[i] & kTaskBits) == task) << i;
    return static_cast<uint8_t>(bits);
  }
  static void transpose8(Eight* rows) {
    for (int i = 0; i < 8; ++i) {
      for (int j = i + 1; j < 8; ++j) {
        const float held = rows[i].lane[j];
        rows[i].lane[j] = rows[j].lane[i];
        rows[j].lane[i] = held;
      }
    }
  }

  static constexpr bool picks = false;  // whether it has `places` and `fma_picked`: see AVX-512's

  // Packed values spread over the lanes whose bit is set.
  struct Spread {
    V value;
    unsigned set;
  };
  // Takes the next values and moves on behind them. Reads `width` of them, so the list ends with that many of slack.
  static Spread expand(const float*& values, const uint8_t* bits, int block) {
    Spread out{V{}, (bits[block / 2] >> (4 * (block % 2))) & 15u};
    for (int i = 0; i < width; ++i) {
      if ((out.set >> i) & 1) out.value.lane[i] = *values++;
    }
    return out;
  }
  // c + a * b in the lanes that are set: the others meet nothing, not even an Inf.
  static V fma_where(Spread a, V b, V c) {
    return each([&](int i) { return (a.set >> i) & 1 ? a.value.lane[i] * b.lane[i] + c.lane[i] : c.lane[i]; });
  }
  // Positions of the set bits of kSparseDepth bits, ascending; up to 64 bytes behind them are overwritten.
  static int64_t positions(const uint8_t* bits, uint8_t* out) {
    int64_t count = 0;
    for (int i = 0; i < kSparseDepth; ++i) {
      out[count] = static_cast<uint8_t>(i);
      count += (bits[i / 8] >> (i % 8)) & 1;
    }
    return count;
  }
};

}  // namespace
}  // namespace lps
