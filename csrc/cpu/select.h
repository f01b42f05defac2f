// Scoring and selecting for a batch of layers: what project, admm_update and group_scores share.
#pragma once

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

  // Found by select_groups: for groups of one weight the key of the last survivor and the index of the last survivor
  // with the same key, else one byte per group.
  int64_t threshold = 0;
  int64_t last_tie = -1;
  std::vector<uint8_t> groups{};
};
std::optional<Shortfall> select_groups(const Kernels&, const Parallel&, DType, std::vector<Selection>&);

// Coordinates whose bits are made at a time: small enough for a core's first-level cache.
constexpr int64_t kBitBlock = 2048;

// The bits of the selected coordinates of [begin, end), at most kBitBlock, `begin` a multiple of 8.
void selection_bits(const Kernels&, DType, const Selection&, int64_t begin, int64_t end, uint8_t* bits);

// The same with the values written: out = selected ? x : 0. For sources without a dual.
void selection_values(const Kernels&, DType, const Selection&, int64_t begin, int64_t end, uint8_t* bits, void* out,
                      bool stream);

}  // namespace lps
