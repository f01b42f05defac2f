// Kernels that write what a selection kept: the second and last read of the values.
#pragma once

#include "layers.cuh"
#include "select.h"

namespace lps {

// What the block needs to know of one slot of its layer.
template <class Key>
struct SlotResult {
  Key threshold;
  int64_t last_tie;
  const uint8_t* groups;  // nullptr: groups of one weight
  uint32_t g, b;
  bool used, by_magnitude;
};

template <class Key>
struct WriteShared {
  SelectLayer layer;
  SlotResult<Key> slots[kRoles];
};

// By thread 0.
template <class Key>
__device__ __forceinline__ void stage_results(const SelectBatch& batch, int chunk, WriteShared<Key>* shared) {
  shared->layer = layer_of_chunk(batch.layers, batch.layer_count, chunk);
  const WeightSource& source = shared->layer.source;
  for (int slot = 0; slot < kRoles; ++slot) {
    SlotResult<Key>& result = shared->slots[slot];
    result.used = source.slot_of_free == slot || source.slot_of_owned == slot;
    if (!result.used) continue;
    const SelectJob& job = batch.jobs[shared->layer.first_job + slot];
    const Found& found = batch.found[shared->layer.first_job + slot];
    result.by_magnitude = job.by_magnitude != 0;
    result.groups = job.grouped != 0 ? batch.groups + job.first_key : nullptr;
    result.g = static_cast<uint32_t>(job.g);
    result.b = static_cast<uint32_t>(job.b);
    if (job.grouped != 0) continue;
    result.threshold = static_cast<Key>(found.threshold);
    result.last_tie = found.last_tie;
  }
}

// The bits of the coordinates from `first` on whose groups survive.
template <int N>
__device__ __forceinline__ uint32_t group_bits(const uint8_t* groups, uint32_t g, uint32_t b, int64_t first,
                                               int existing) {
  const uint32_t run = static_cast<uint32_t>(first) / b;
  uint32_t group = run % g, left = b - (static_cast<uint32_t>(first) - run * b);
  uint32_t bits = 0;
#pragma unroll
  for (int j = 0; j < N; ++j) {
    if (j < existing) bits |= static_cast<uint32_t>(groups[group]) << j;
    if (--left == 0) {
      left = b;
      group = group + 1 == g ? 0 : group + 1;
    }
  }
  return bits;
}

// The bits of the coordinates of a pack that survive.
template <class T>
__device__ __forceinline__ uint32_t survivors(const WriteShared<KeyOf<T>>& shared, const Coordinates<T>& read,
                                              const PackPlace& place) {
  constexpr int N = Coordinates<T>::N;
  uint32_t kept = 0;
#pragma unroll 1  // both at a time would take too many registers
  for (int slot = 0; slot < kRoles; ++slot) {
    const SlotResult<KeyOf<T>>& result = shared.slots[slot];
    if (!result.used) continue;
    uint32_t bits = 0;
    if (result.groups != nullptr) {
      bits = group_bits<N>(result.groups, result.g, result.b, place.first, place.existing);
    } else {
#pragma unroll
      for (int j = 0; j < N; ++j) {
        const KeyOf<T> key = weight_key<T>(read.value[j], result.by_magnitude);
        const bool tie = key == result.threshold && place.first + j <= result.last_tie;
        bits |= static_cast<uint32_t>(key > result.threshold || tie) << j;
      }
    }
    kept |= bits & read.members(shared.layer.source, place, slot);
  }
  return kept;
}

// A byte of bits is one pack of eight coordinates, or two packs of four in neighbouring lanes.
template <int N>
__device__ __forceinline__ void store_bits(uint8_t* bits, const PackPlace& place, uint32_t kept) {
  if constexpr (N == 8) {
    if (place.existing > 0) bits[place.first / 8] = static_cast<uint8_t>(kept);
  } else {
    static_assert(N == 4);
    const uint32_t next = __shfl_down_sync(0xffffffffu, kept, 1);
    if (place.existing > 0 && threadIdx.x % 2 == 0) bits[place.first / 8] = static_cast<uint8_t>(kept | next << 4);
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads, kBlocks) project_kernel(SelectBatch batch, Output output) {
  constexpr int N = kPack<T>;
  LPS_SHARED(WriteShared<KeyOf<T>>, shared);
  for (int chunk = static_cast<int>(blockIdx.x); chunk < batch.chunks; chunk += static_cast<int>(gridDim.x)) {
    __syncthreads();  // what is known of the chunk before is no longer read
    if (threadIdx.x == 0) stage_results(batch, chunk, shared);
    __syncthreads();
    const SelectLayer& layer = shared->layer;
    for_chunk_packs<N>(chunk - layer.first_chunk, layer.count, layer.aligned != 0, [&](const PackPlace& place) {
      const Coordinates<T> read = read_coordinates<T>(layer.source, place);
      const uint32_t kept = survivors<T>(*shared, read, place);
      Pack<T, N> out{};
#pragma unroll
      for (int j = 0; j < N; ++j) {
        if (kept >> j & 1) output == Output::values ? (void)(out.at[j] = read.x.at[j]) : narrow(1, out.at[j]);
      }
      store_pack(static_cast<T*>(layer.out), place, out);
      store_bits<N>(layer.kept, place, kept);
    });
  }
}

// centre = target - dual, with the target kept ? s : 0 of free coordinates and kept ? 1 : 0 of owned ones.
template <class T>
__global__ void __launch_bounds__(kThreads, kBlocks) admm_update_kernel(SelectBatch batch) {
  constexpr int N = kPack<T>;
  LPS_SHARED(WriteShared<KeyOf<T>>, shared);
  for (int chunk = static_cast<int>(blockIdx.x); chunk < batch.chunks; chunk += static_cast<int>(gridDim.x)) {
    __syncthreads();  // what is known of the chunk before is no longer read
    if (threadIdx.x == 0) stage_results(batch, chunk, shared);
    __syncthreads();
    const SelectLayer& layer = shared->layer;
    for_chunk_packs<N>(chunk - layer.first_chunk, layer.count, layer.aligned != 0, [&](const PackPlace& place) {
      const Coordinates<T> read = read_coordinates<T>(layer.source, place);
      const uint32_t kept = survivors<T>(*shared, read, place);
      Pack<T, N> centre;
      Pack<uint8_t, N> owner;
#pragma unroll
      for (int j = 0; j < N; ++j) {
        const bool survives = (kept >> j & 1) != 0;
        const T s = read.value[j], of_free = survives ? s : -s, shared_target = survives ? T{1} : T{0};
        const T of_owned = shared_target - (s - shared_target);
        centre.at[j] = is_free(read.owner.at[j]) ? of_free : of_owned;
        owner.at[j] = static_cast<uint8_t>((read.owner.at[j] & kTaskBits) | (survives ? kKeptBit : 0));
      }
      if (layer.out != nullptr) store_pack(static_cast<T*>(layer.out), place, centre);
      store_pack(layer.kept, place, owner);
    });
  }
}

}  // namespace lps
