// Bit packing, for any instruction set.
#pragma once

#include "blocks.h"

namespace lps {
namespace {

template <class Isa>
void pack(const uint8_t* bools, uint8_t* bits, int64_t begin, int64_t end) {
  for_blocks(begin, end, [&](int64_t i, auto n) { bits[i / kLanes] = nonzero_bits<Isa>(bools + i, n); });
}

template <class Isa>
void unpack(const uint8_t* bits, uint8_t* bools, int64_t begin, int64_t end) {
  for_blocks(begin, end, [&](int64_t i, auto n) {
    if constexpr (std::is_same_v<decltype(n), Full>) {
      Isa::bits_to_bools(bits[i / kLanes], bools + i);
    } else {
      uint8_t room[kLanes];
      Isa::bits_to_bools(bits[i / kLanes], room);
      std::memcpy(bools + i, room, static_cast<size_t>(n.count));
    }
  });
}

template <class Isa>
void fill_bits(Kernels& table) {
  table.pack = pack<Isa>;
  table.unpack = unpack<Isa>;
}

}  // namespace
}  // namespace lps
