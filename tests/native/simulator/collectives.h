// Barriers and the collectives of a warp, under the names that CUDA has for them.
#pragma once

#include <cstring>

#include "block.h"

namespace simulator {

enum class Shuffle { lane, up, down, exchange };
uint64_t shuffle(Shuffle kind, uint32_t mask, uint64_t value, int lane_or_offset, int width, Site site);
uint32_t vote(const char* what, uint32_t mask, bool predicate, Site site);
uint32_t match(uint32_t mask, uint64_t value, Site site);
uint32_t reduce(const char* what, uint32_t mask, uint32_t value, Site site);

template <class T>
uint64_t bits_of(T value) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8 || sizeof(T) == 2, "CUDA shuffles 16, 32 and 64 bits");
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  return bits;
}
template <class T>
T value_of(uint64_t bits) {
  T value;
  std::memcpy(static_cast<void*>(&value), &bits, sizeof(T));
  return value;
}

}  // namespace simulator

inline void __syncthreads(simulator::Site site = simulator::Site::here()) {
  simulator::meet_block("__syncthreads", false, site);
}
inline int __syncthreads_count(int predicate, simulator::Site site = simulator::Site::here()) {
  return simulator::meet_block("__syncthreads_count", predicate != 0, site);
}
inline int __syncthreads_or(int predicate, simulator::Site site = simulator::Site::here()) {
  return simulator::meet_block("__syncthreads_or", predicate != 0, site) != 0;
}
inline int __syncthreads_and(int predicate, simulator::Site site = simulator::Site::here()) {
  return simulator::meet_block("__syncthreads_and", predicate == 0, site) == 0;
}
inline void __syncwarp(unsigned mask = 0xffffffffu, simulator::Site site = simulator::Site::here()) {
  simulator::synchronise_warp(mask, site);
}

template <class T>
T __shfl_sync(unsigned mask, T value, int lane, int width = 32, simulator::Site site = simulator::Site::here()) {
  return simulator::value_of<T>(
      simulator::shuffle(simulator::Shuffle::lane, mask, simulator::bits_of(value), lane, width, site));
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned offset, int width = 32,
                 simulator::Site site = simulator::Site::here()) {
  return simulator::value_of<T>(simulator::shuffle(simulator::Shuffle::up, mask, simulator::bits_of(value),
                                                   static_cast<int>(offset), width, site));
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned offset, int width = 32,
                   simulator::Site site = simulator::Site::here()) {
  return simulator::value_of<T>(simulator::shuffle(simulator::Shuffle::down, mask, simulator::bits_of(value),
                                                   static_cast<int>(offset), width, site));
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int other, int width = 32, simulator::Site site = simulator::Site::here()) {
  return simulator::value_of<T>(
      simulator::shuffle(simulator::Shuffle::exchange, mask, simulator::bits_of(value), other, width, site));
}

inline unsigned __ballot_sync(unsigned mask, int predicate, simulator::Site site = simulator::Site::here()) {
  return simulator::vote("__ballot_sync", mask, predicate != 0, site);
}
inline int __any_sync(unsigned mask, int predicate, simulator::Site site = simulator::Site::here()) {
  return simulator::vote("__any_sync", mask, predicate != 0, site) != 0;
}
inline int __all_sync(unsigned mask, int predicate, simulator::Site site = simulator::Site::here()) {
  return simulator::vote("__all_sync", mask, predicate != 0, site) == mask;
}
template <class T>
unsigned __match_any_sync(unsigned mask, T value, simulator::Site site = simulator::Site::here()) {
  return simulator::match(mask, simulator::bits_of(value), site);
}

inline unsigned __reduce_add_sync(unsigned mask, unsigned value, simulator::Site site = simulator::Site::here()) {
  return simulator::reduce("__reduce_add_sync", mask, value, site);
}
inline int __reduce_add_sync(unsigned mask, int value, simulator::Site site = simulator::Site::here()) {
  return static_cast<int>(simulator::reduce("__reduce_add_sync", mask, static_cast<unsigned>(value), site));
}
inline unsigned __reduce_min_sync(unsigned mask, unsigned value, simulator::Site site = simulator::Site::here()) {
  return simulator::reduce("__reduce_min_sync", mask, value, site);
}
inline unsigned __reduce_max_sync(unsigned mask, unsigned value, simulator::Site site = simulator::Site::here()) {
  return simulator::reduce("__reduce_max_sync", mask, value, site);
}
inline unsigned __reduce_or_sync(unsigned mask, unsigned value, simulator::Site site = simulator::Site::here()) {
  return simulator::reduce("__reduce_or_sync", mask, value, site);
}
inline unsigned __reduce_and_sync(unsigned mask, unsigned value, simulator::Site site = simulator::Site::here()) {
  return simulator::reduce("__reduce_and_sync", mask, value, site);
}
