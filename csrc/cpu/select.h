// Scoring and selecting for a batch of layers: what project, admm_update, straight_through_adam and group_scores share.
#pragma once

#include <limits>

#include "units.h"

namespace lps {

// Groups of one layer to be scored.
struct Scoring {
  Source source;
  Region region;
  Score score;
  View view;
  double* scores;   // view.g; not meaningful where `absent`
  uint8_t* absent;  // view.g; 1 where the group has no coordinate in the region
};
void score_groups(const Kernels&, const Parallel&, DType, const std::vector<Scoring>&);

// The `keep` best groups of one layer and region.
struct Selection {
  size_t layer;
  Source source;
  Region region;
  Score score;
  View view;
  int64_t keep;
  bool up_to = false;             // `keep` is an upper bound: where fewer groups take part, all of them survive
  std::optional<double> above{};  // only groups whose score is above it take part

  // Found by select_groups: for groups of one weight the key of the last survivor and the index of the last survivor
  // with the same key, else one byte per group.
  int64_t threshold = 0;
  int64_t last_tie = -1;
  std::vector<uint8_t> groups{};
};
// Adds the selections of both roles of layer i: number 2 i of its free coordinates, 2 i + 1 of its owned ones. Where
// `emerging`, owned groups take part only above 0 (of one weight: 1/2), and keep_owned is an upper bound.
void add_roles(std::vector<Selection>&, const Source&, const View& view, const View& sharing_view, int64_t keep_free,
               int64_t keep_owned, bool emerging);

// The survivors of every selection.
std::optional<Shortfall> select_groups(const Kernels&, const Parallel&, DType, std::vector<Selection>&);

// Keys between that of coordinates outside the region and a threshold that no key reaches.
template <class Key>
constexpr Key kLowestKey = kOutside<Key> + 1;
template <class Key>
constexpr Key kHighestKey = std::numeric_limits<Key>::max() - 1;
template <class Key>
Key floor_key(const Selection&);  // the lowest key that takes part

// What a pass found in one unit: the counts, and the keys inside the bracket.
template <class Key>
struct Chunk {
  size_t search;
  int64_t begin, end;
  Key* candidates;
  Band band;
};
// The threshold of a selection on groups of one weight, from a pass over all its units with the bracket [low, high];
// false where that does not hold it.
template <class Key>
bool find_threshold(const SelectKernels<Key>&, Selection&, Key low, Key high, const std::vector<Chunk<Key>>&);

// Coordinates whose bits are made at a time: small enough for a core's first-level cache.
constexpr int64_t kBitBlock = 2048;

// The bits of the selected coordinates of [begin, end), at most kBitBlock, `begin` a multiple of 8.
void selection_bits(const Kernels&, DType, const Selection&, int64_t begin, int64_t end, uint8_t* bits);

// The same of the selections of both roles of a layer.
void role_bits(const Kernels&, DType, const Selection& free, const Selection& owned, int64_t begin, int64_t end,
               uint8_t* bits);

// The same with the values written: out = selected ? x : 0. For sources without a dual.
void selection_values(const Kernels&, DType, const Selection&, int64_t begin, int64_t end, uint8_t* bits, void* out,
                      bool stream);

// Calls write(layer, begin, end) for blocks of at most kBitBlock coordinates of every layer.
template <class Layers, class Size, class F>
void for_bit_blocks(const Parallel& parallel, const Layers& layers, Size&& size, F&& write) {
  std::vector<Unit> units = units_of(layers, size);
  parallel_each(parallel, units, [&](const Unit& unit) {
    for (int64_t begin = unit.begin; begin < unit.end; begin += kBitBlock) {
      write(unit.layer, begin, std::min(begin + kBitBlock, unit.end));
    }
  });
}

}  // namespace lps
