// The order in which equals take their turns.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

namespace simulator {

// 0 .. count - 1, as often as `next` is called: ascending for the order 0, descending for 1, else shuffled anew each
// time.
class Order {
 public:
  Order(unsigned order, size_t count, unsigned seed) : order_(order), turns_(count), random_(order * 7919u + seed) {
    std::iota(turns_.begin(), turns_.end(), 0u);
    if (order == 1) std::reverse(turns_.begin(), turns_.end());
  }
  const std::vector<uint32_t>& next() {
    if (order_ > 1) std::shuffle(turns_.begin(), turns_.end(), random_);
    return turns_;
  }

 private:
  unsigned order_;
  std::vector<uint32_t> turns_;
  std::mt19937 random_;
};

}  // namespace simulator
