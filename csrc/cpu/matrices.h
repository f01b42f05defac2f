// What the drivers of matrix products share.
#pragma once

#include <algorithm>
#include <cstdlib>
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
