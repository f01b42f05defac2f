// Weights in registers: 128-bit loads and stores where all arrays allow it, one by one where they do not.
#pragma once

#include <cstring>

#include "device.cuh"

namespace lps {

// Blocks of 256 threads, of which a multiprocessor holds at least four: that leaves a thread 64 registers and keeps
// half of the threads of every architecture in flight, enough to hide the latency of memory.
constexpr int kThreads = 256;
constexpr int kBlocks = 4;

template <class T, int N>
struct alignas(N * sizeof(T) < 16 ? N * sizeof(T) : 16) Pack {
  T at[N];
};

// Weights that a thread takes at a time: 16 bytes of fp32 and of 16-bit floats, 32 of fp64, whose owners are then still
// read four at a time.
template <class T>
constexpr int kPack = sizeof(T) == 2 ? 8 : 4;

// Where a pack lies in an array, and how many of its elements exist.
struct PackPlace {
  int64_t first;
  int existing;
  bool whole;  // all exist, and the arrays are aligned
};

// The type that loads and stores this many bytes in one instruction.
template <int bytes>
struct VectorOf;
template <>
struct VectorOf<2> {
  using type = uint16_t;
};
template <>
struct VectorOf<4> {
  using type = uint32_t;
};
template <>
struct VectorOf<8> {
  using type = uint2;
};
template <>
struct VectorOf<16> {
  using type = uint4;
};
template <class T, int N>
using VectorOfPack = typename VectorOf<alignof(Pack<T, N>)>::type;

// Elements that do not exist are 0.
template <int N, class T>
__device__ __forceinline__ Pack<T, N> load_pack(const T* from, const PackPlace& place) {
  Pack<T, N> pack{};
  if (place.whole) {
    using Vector = VectorOfPack<T, N>;
    constexpr int count = sizeof(pack) / sizeof(Vector);
    Vector vectors[count];
#pragma unroll
    for (int k = 0; k < count; ++k) vectors[k] = reinterpret_cast<const Vector*>(from + place.first)[k];
    memcpy(static_cast<void*>(&pack), vectors, sizeof(pack));
    return pack;
  }
#pragma unroll
  for (int j = 0; j < N; ++j) {
    if (j < place.existing) pack.at[j] = from[place.first + j];
  }
  return pack;
}
template <int N, class T>
__device__ __forceinline__ void store_pack(T* to, const PackPlace& place, const Pack<T, N>& pack) {
  if (place.whole) {
    using Vector = VectorOfPack<T, N>;
    constexpr int count = sizeof(pack) / sizeof(Vector);
    Vector vectors[count];
    memcpy(vectors, &pack, sizeof(pack));
    // A plain assignment is taken apart by the compiler, to share stores of elements with the loop below.
#pragma unroll
    for (int k = 0; k < count; ++k) __stcg(reinterpret_cast<Vector*>(to + place.first) + k, vectors[k]);
    return;
  }
#pragma unroll
  for (int j = 0; j < N; ++j) {
    if (j < place.existing) to[place.first + j] = pack.at[j];
  }
}

// Calls body(place) for the packs of an array of `count` elements, spread over the threads of the whole grid.
template <int N, class Body>
__device__ __forceinline__ void for_packs(int64_t count, bool aligned, const Body& body) {
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t threads = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t first = thread * N; first < count; first += threads * N) {
    const int existing = static_cast<int>(min(count - first, static_cast<int64_t>(N)));
    body(PackPlace{first, existing, aligned && existing == N});
  }
}

__device__ __forceinline__ bool is_free(uint8_t owner) { return (owner & kOwnerTask) == 0; }
__device__ __forceinline__ bool is_kept(uint8_t owner) { return (owner & kOwnerKept) != 0; }

}  // namespace lps
