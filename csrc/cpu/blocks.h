// What the kernel families share, for any instruction set: partial blocks at the end of an array and owner bits.
#pragma once

#include <type_traits>

#include "lanes_scalar.h"

namespace lps {
namespace {

template <class S>
using Compute = typename ComputeOf<S>::type;

inline uint8_t existing(Full) { return 0xff; }
inline uint8_t existing(Part part) { return static_cast<uint8_t>((1u << part.count) - 1); }

// Loads of the rest of an array read no byte behind it: the missing lanes are 0.
template <class Isa, class S>
inline auto load(const S* from, Full full) {
  return Isa::load(from, full);
}
template <class Isa, class S>
inline auto load(const S* from, Part part) {
  S room[kLanes] = {};
  std::memcpy(room, from, sizeof(S) * static_cast<size_t>(part.count));
  return Isa::load(room, Full{});
}

template <class Isa, class S, class B>
inline void store(S* to, B x, Full full) {
  Isa::store(to, x, full);
}
template <class Isa, class S, class B>
inline void store(S* to, B x, Part part) {
  S room[kLanes];
  Isa::store(room, x, Full{});
  std::memcpy(to, room, sizeof(S) * static_cast<size_t>(part.count));
}

// A store that goes past the caches where the kernel streams and the block is whole.
template <class Isa, bool streaming, class S, class B, class N>
inline void put(S* to, B x, N n) {
  if constexpr (streaming && std::is_same_v<N, Full>) {
    Isa::stream(to, x);
  } else {
    store<Isa>(to, x, n);
  }
}

// Calls f with eight readable bytes (the missing ones are 0) and keeps only the bits that exist.
template <class F>
inline uint8_t bits_of(const uint8_t* bytes, Full, F&& f) {
  return f(bytes);
}
template <class F>
inline uint8_t bits_of(const uint8_t* bytes, Part part, F&& f) {
  uint8_t room[kLanes] = {};
  std::memcpy(room, bytes, static_cast<size_t>(part.count));
  return f(room) & existing(part);
}
template <class Isa, class N>
inline uint8_t nonzero_bits(const uint8_t* bytes, N n) {
  return bits_of(bytes, n, [](const uint8_t* b) { return Isa::nonzero_bits(b); });
}
template <class Isa, class N>
inline uint8_t free_bits(const uint8_t* owner, N n) {
  return bits_of(owner, n, [](const uint8_t* b) { return Isa::free_bits(b); });
}
// The same as lanes.
template <class Isa, class T>
inline auto free_lanes(const uint8_t* owner, Full) {
  return Isa::template free_lanes<T>(owner);
}
template <class Isa, class T>
inline auto free_lanes(const uint8_t* owner, Part part) {
  return Isa::template mask<T>(free_bits<Isa>(owner, part));
}
template <class Isa, class N>
inline uint8_t task_bits(const uint8_t* owner, uint8_t task, N n) {
  return bits_of(owner, n, [&](const uint8_t* b) { return Isa::task_bits(b, task); });
}
template <class Isa, class N>
inline uint8_t kept_bits(const uint8_t* owner, N n) {
  return bits_of(owner, n, [](const uint8_t* b) { return Isa::kept_bits(b); });
}
// Where the owner bytes are read at all, the region is the free coordinates or, flipped, the owned ones.
template <Region region>
using RegionIs = std::integral_constant<Region, region>;
template <class Isa, Region region, class N>
inline uint8_t region_bits(const uint8_t* owner, int64_t i, N n) {
  if constexpr (region == Region::all) {
    return existing(n);
  } else {
    const uint8_t free = free_bits<Isa>(owner + i, n);
    return region == Region::free ? free : static_cast<uint8_t>(~free & existing(n));
  }
}

// The effective weight and, because the map is diagonal, also the gradient of v from that of the effective weight.
template <class Isa, class Mask, class B>
inline B masked_product(Mask free, B v, B w_bar) {
  return Isa::select(free, v, Isa::mul(v, w_bar));
}

inline bool aligned32(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % 32 == 0; }

}  // namespace
}  // namespace lps
