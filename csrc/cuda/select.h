// Selecting for a batch of layers: what project and admm_update share.
#pragma once

#include "launches.h"
#include "source.cuh"

namespace lps {

struct SelectLayer {
  WeightSource source;
  void* out;      // the projected layer, or `centre`
  uint8_t* kept;  // the packed bits, or `owner`
  int64_t count, first_chunk;
  int64_t first_job;  // of slot 0; that of slot 1 follows
  int64_t aligned;
};

// The `keep` best groups of one slot of a layer. Groups of several weights are selected by their scores.
struct SelectJob {
  int64_t keep;
  int64_t a, g, b;
  int64_t first_key;  // where it is grouped: of its groups' keys and bytes
  int32_t layer, slot;
  int32_t by_magnitude;  // 1: l2, 0: half
  int32_t grouped;
};

// Before the search [low, high] is a bracket around the key of the last survivor; after it, that key is `threshold`,
// and of the coordinates (or groups) with that very key the last survivor is `last_tie`.
struct Found {
  uint64_t low, high, threshold;
  int64_t last_tie;
};

// Of the coordinates of one slot in a chunk: how many have keys above and inside the bracket, how many there are, and
// how many have the threshold for a key.
struct Tally {
  uint32_t above, inside, members, ties;
};

// What the kernels work on. The last two have an element per group; the others one per layer, job, or chunk and slot.
struct SelectBatch {
  const SelectLayer* layers;
  const SelectJob* jobs;
  int layer_count, chunks;
  Found* found;
  Tally* tallies;
  void* candidates;  // room for the keys of all chunks: slot 0 from the front of its chunk's, slot 1 from the back
  uint64_t* keys;
  uint8_t* groups;  // 1: survives
};

// Selects in up to five launches; the one that writes what survived is the caller's. The weights of a layer are read
// once, but twice where one of its slots has groups of one weight and the other of several, or both of several that
// differ: scores are summed by tiles of the groups, keys are collected by chunks.
SelectBatch select_groups(const Gpu&, DType, std::vector<SelectLayer>&, std::vector<SelectJob>&);

}  // namespace lps
