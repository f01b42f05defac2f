// What the drivers of matrix products share.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>

#include "isa.h"

namespace lps {

// Columns of a weight that a tile is summed over before the next ones: 384 x 64 floats of the tile's columns stay in a
// core's L2 cache beside everything else.
constexpr int64_t kDepth = 384;

// Bytes for the positions of a block's irregular weights; decoding overwrites up to 64 behind the last.
constexpr int64_t kPositions = kSparseRows * kSparseDepth + 64;

inline int64_t parts_of(int64_t count, int64_t size) { return (count + size - 1) / size; }

// Whether the targets of a block of irregular weights are its rows, each once.
inline bool are_rows(const uint8_t* targets, int64_t rows) {
  uint8_t seen[kSparseRows] = {};
  for (int64_t i = 0; i < rows; ++i) seen[targets[i]] = 1;
  return std::memchr(seen, 0, static_cast<size_t>(rows)) == nullptr;
}

// Whether all bits of irregular weights are those of inputs that exist: only the last block of columns can have others.
template <class T>
bool inputs_exist(const Sparse<T>& weight) {
  constexpr int64_t size = kSparseDepth / 8;
  const int64_t blocks = parts_of(weight.inputs, kSparseDepth), left = weight.inputs - (blocks - 1) * kSparseDepth;
  if (blocks == 0 || left == kSparseDepth) return true;
  uint8_t any[size] = {};
  for (int64_t top = 0; top < weight.outputs; top += kSparseRows) {
    const int64_t rows = std::min<int64_t>(weight.outputs - top, kSparseRows);
    const uint8_t* bits = weight.bits + (top * blocks + (blocks - 1) * rows) * size;
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t byte = 0; byte < size; ++byte) any[byte] |= bits[row * size + byte];
    }
  }
  for (int64_t bit = left; bit < kSparseDepth; ++bit) {
    if (((any[bit / 8] >> (bit % 8)) & 1) != 0) return false;
  }
  return true;
}

// Memory for the working set of one thread, aligned to cache lines.
template <class T>
class Room {
 public:
  explicit Room(int64_t count) : room_(nullptr, &std::free) {
    const size_t bytes = (static_cast<size_t>(count) * sizeof(T) + 63) / 64 * 64;
    room_.reset(std::aligned_alloc(64, std::max<size_t>(bytes, 64)));
    if (room_ == nullptr) throw std::bad_alloc();
  }
  T* get() const { return static_cast<T*>(room_.get()); }

 private:
  std::unique_ptr<void, decltype(&std::free)> room_;
};

}  // namespace lps
