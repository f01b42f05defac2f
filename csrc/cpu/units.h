// Cuts a batch of layers of unequal size into units of work of about equal size, by the sizes alone.
#pragma once

#include <algorithm>

#include "isa.h"

namespace lps {

struct Unit {
  size_t layer;
  int64_t begin, end;
};

template <class Layers, class Size>
std::vector<Unit> units_of(const Layers& layers, Size&& size) {
  std::vector<Unit> units;
  for (size_t layer = 0; layer < layers.size(); ++layer) {
    const int64_t count = size(layers[layer]);
    for (int64_t begin = 0; begin < count; begin += kUnit) {
      units.push_back({layer, begin, std::min(begin + kUnit, count)});
    }
  }
  return units;
}

template <class Item, class F>
void parallel_each(const Parallel& parallel, std::vector<Item>& items, F&& body) {
  parallel(static_cast<int64_t>(items.size()), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) body(items[static_cast<size_t>(i)]);
  });
}

// The same over one array.
template <class F>
void parallel_ranges(const Parallel& parallel, int64_t count, F&& body) {
  parallel((count + kUnit - 1) / kUnit,
           [&](int64_t first, int64_t last) { body(first * kUnit, std::min(last * kUnit, count)); });
}

inline int64_t bytes_of(DType dtype) { return dtype == DType::f64 ? 8 : dtype == DType::f32 ? 4 : 2; }

// Stores go past the caches where a call touches more than they could hold for its reader. 16 MiB is half of the
// last-level cache of the machine that the benchmarks were tuned on.
constexpr int64_t kStreamBytes = int64_t{16} << 20;

}  // namespace lps
