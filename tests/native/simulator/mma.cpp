#include "mma.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cmath>
#include <cstring>

namespace simulator {
namespace {

struct Fragments {
  float* d;
  const uint32_t *a, *b;
};

template <class To, class From>
To as(From bits) {
  To value;
  static_assert(sizeof(To) == sizeof(From));
  std::memcpy(static_cast<void*>(&value), &bits, sizeof(To));
  return value;
}

// The floats of one word: two of 16 bits, or one.
template <Factor factor>
struct Word;
template <>
struct Word<Factor::f16> {
  static constexpr int kFloats = 2;
  static float get(uint32_t word, int i) { return __half2float(as<__half>(static_cast<uint16_t>(word >> (16 * i)))); }
};
template <>
struct Word<Factor::bf16> {
  static constexpr int kFloats = 2;
  static float get(uint32_t word, int i) {
    return __bfloat162float(as<__nv_bfloat16>(static_cast<uint16_t>(word >> (16 * i))));
  }
};
template <>
struct Word<Factor::tf32> {
  static constexpr int kFloats = 1;
  static float get(uint32_t word, int) { return as<float>(word & 0xffffe000u); }
};

// Tensor cores do not round their sums: digits that a float has no room for are left out (measured on V100, T4 and A100
// by Fasi, Higham, Mikaitis and Pranesh, "Numerical behavior of NVIDIA tensor cores", 2021).
float cut_off(double sum) {
  const float nearest = static_cast<float>(sum);
  return std::fabs(static_cast<double>(nearest)) > std::fabs(sum) && std::isfinite(nearest)
             ? std::nextafterf(nearest, 0)
             : nearest;
}

// A lane is number `column` of four in group `row` of eight. Its word i of a is in the row `row`, plus 8 where i is
// odd, and its word i of b in the column `row`; the words of a row follow each other from lane to lane, and then again
// for the second half of the depth. Its numbers of d are two neighbours in each of two rows.
template <Factor factor>
void finish(const char*, uint32_t, Lane* const (&lanes)[32], Site) {
  constexpr int kFloats = Word<factor>::kFloats, kDepth = 8 * kFloats;
  float a[16][kDepth], b[kDepth][8];
  for (int i = 0; i < 32; ++i) {
    const auto& part = *reinterpret_cast<const Fragments*>(lanes[i]->value);
    const int row = i / 4, column = i % 4;
    for (int word = 0; word < 4; ++word) {
      for (int j = 0; j < kFloats; ++j) {
        a[row + 8 * (word % 2)][kFloats * (column + 4 * (word / 2)) + j] = Word<factor>::get(part.a[word], j);
      }
    }
    for (int word = 0; word < 2; ++word) {
      for (int j = 0; j < kFloats; ++j) b[kFloats * (column + 4 * word) + j][row] = Word<factor>::get(part.b[word], j);
    }
  }
  for (int i = 0; i < 32; ++i) {
    const auto& part = *reinterpret_cast<const Fragments*>(lanes[i]->value);
    for (int word = 0; word < 4; ++word) {
      const int row = i / 4 + 8 * (word / 2), column = 2 * (i % 4) + word % 2;
      double sum = part.d[word];
      for (int k = 0; k < kDepth; ++k) sum += static_cast<double>(a[row][k]) * b[k][column];
      part.d[word] = cut_off(sum);
    }
  }
}

}  // namespace

void multiply(Factor factor, float* d, const uint32_t* a, const uint32_t* b, Site site) {
  const Fragments mine{d, a, b};
  const Finish finishes[] = {finish<Factor::f16>, finish<Factor::bf16>, finish<Factor::tf32>};
  const char* names[] = {"mma_m16n8k16_f16", "mma_m16n8k16_bf16", "mma_m16n8k8_tf32"};
  const auto index = static_cast<size_t>(factor);
  meet_warp(names[index], 0xffffffffu, reinterpret_cast<uint64_t>(&mine), 0, finishes[index], site);
}

}  // namespace simulator
