// What is scored and selected: the weights of a layer or, in the ADMM update, s = v + dual; and the keys that order
// them.
#pragma once

#include <cstring>
#include <limits>

#include "vectors.cuh"

namespace lps {

// A layer has up to two selections, in slots 0 and 1: each coordinate takes part in the one that its owner says.
constexpr int kRoles = 2;
constexpr int kNoSlot = -1;

struct WeightSource {
  const void* x;
  const void* centre;    // nullptr: x itself, no dual
  const uint8_t* owner;  // nullptr: all coordinates are free
  int32_t slot_of_free, slot_of_owned;
};

// s = v + dual; free coordinates have the dual kept ? 0 : -centre, owned ones kept - centre.
template <class Value>
__device__ __forceinline__ Value add_dual(Value v, Value centre, uint8_t owner) {
  const bool kept = is_kept(owner);
  const Value of_free = kept ? Value{0} : -centre;
  const Value of_owned = (kept ? Value{1} : Value{0}) - centre;
  return v + (is_free(owner) ? of_free : of_owned);
}

template <class T>
using ValueOf = decltype(widen(T{}));

// The ADMM update is for fp32 and fp64.
template <class T>
constexpr bool kHasDual = sizeof(T) > 2;

// One coordinate.
template <class T>
struct Coordinate {
  ValueOf<T> value;
  int slot;
};
template <class T>
__device__ __forceinline__ Coordinate<T> read_coordinate(const WeightSource& source, int64_t i) {
  const uint8_t owner = source.owner != nullptr ? source.owner[i] : 0;
  ValueOf<T> value = widen(static_cast<const T*>(source.x)[i]);
  if constexpr (kHasDual<T>) {
    if (source.centre != nullptr) value = add_dual(value, static_cast<const T*>(source.centre)[i], owner);
  }
  return {value, is_free(owner) ? source.slot_of_free : source.slot_of_owned};
}

// A pack of coordinates; bit j of a mask stands for coordinate j of the pack.
template <class T>
struct Coordinates {
  static constexpr int N = kPack<T>;
  ValueOf<T> value[N];
  Pack<T, N> x;
  Pack<uint8_t, N> owner;

  // Those of one slot.
  __device__ __forceinline__ uint32_t members(const WeightSource& source, const PackPlace& place, int slot) const {
    uint32_t free = 0;
#pragma unroll
    for (int j = 0; j < N; ++j) free |= static_cast<uint32_t>(is_free(owner.at[j])) << j;
    const uint32_t existing = (1u << place.existing) - 1;
    return ((source.slot_of_free == slot ? free : 0) | (source.slot_of_owned == slot ? ~free : 0)) & existing;
  }
};
template <class T>
__device__ __forceinline__ Coordinates<T> read_coordinates(const WeightSource& source, const PackPlace& place) {
  constexpr int N = Coordinates<T>::N;
  Coordinates<T> all;
  all.x = load_pack<N>(static_cast<const T*>(source.x), place);
  all.owner = source.owner != nullptr ? load_pack<N>(source.owner, place) : Pack<uint8_t, N>{};
#pragma unroll
  for (int j = 0; j < N; ++j) all.value[j] = widen(all.x.at[j]);
  if constexpr (kHasDual<T>) {
    if (source.centre != nullptr) {
      const Pack<T, N> centre = load_pack<N>(static_cast<const T*>(source.centre), place);
#pragma unroll
      for (int j = 0; j < N; ++j) all.value[j] = add_dual(all.value[j], centre.at[j], all.owner.at[j]);
    }
  }
  return all;
}

// Keys are unsigned integers in the order of the scores: -0.0 equals 0.0, NaN is the largest. Key 0 is of no number.
__host__ __device__ __forceinline__ uint32_t order_key(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof(bits));
  if (x != x) return ~0u;
  if (x == 0) bits = 0;
  return bits ^ (bits >> 31 != 0 ? ~0u : 1u << 31);
}
__host__ __device__ __forceinline__ uint64_t order_key(double x) {
  uint64_t bits;
  memcpy(&bits, &x, sizeof(bits));
  if (x != x) return ~uint64_t{0};
  if (x == 0) bits = 0;
  return bits ^ (bits >> 63 != 0 ? ~uint64_t{0} : uint64_t{1} << 63);
}

template <class T>
using KeyOf = decltype(order_key(widen(T{})));

// The low 13 bits of a key are the same for all 16-bit floats of a sign: without them there are fewer bits to search.
template <class T>
constexpr int kSpareBits = sizeof(T) == 2 ? 13 : 0;
template <class T>
constexpr KeyOf<T> kLowestKey = 1;
template <class T>
constexpr KeyOf<T> kHighestKey = std::numeric_limits<KeyOf<T>>::max() >> kSpareBits<T>;

template <class T>
__device__ __forceinline__ KeyOf<T> weight_key(ValueOf<T> x, bool by_magnitude) {
  return order_key(by_magnitude && x < 0 ? -x : x) >> kSpareBits<T>;
}

}  // namespace lps
