// Selecting for a batch of layers: what project, admm_update and straight_through_adam share.
#pragma once

#include "launches.h"
#include "source.cuh"

namespace lps {

struct SelectLayer {
  WeightSource source;
  void* out;          // the projected layer, `centre` (nullptr: it is not written), or `effective`
  uint8_t* kept;      // the packed bits, `owner`, or nullptr
  const void* w_bar;  // what `effective` is where an owned coordinate survives; else nullptr
  int64_t count, first_chunk;
  int64_t first_job;  // of slot 0; that of slot 1 follows
  int64_t aligned;
};

// The `keep` best groups of one slot of a layer. Groups of several weights are selected by their scores.
struct SelectJob {
  int64_t keep;
  int64_t a, g, b;
  int64_t first_key;  // where it is grouped: of its groups' keys and bytes
  uint64_t floor;     // coordinates (or groups) with smaller keys do not take part; at least 1, as 0 is of none
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
// how many have the threshold for a key. The straight-through step also notes whether any is NaN.
struct Tally {
  uint32_t above, inside, members, ties, nan;
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

// The job of the `keep` best groups. Where `emerging`, only groups with a sum of x - 1/2 above 0 take part.
SelectJob job_of(DType, const View&, int64_t keep, Score, bool emerging, size_t layer, int slot);

// The batch with its tables, its chunks and the keys and bytes of groups numbered; what a search among coordinates
// needs is not there yet.
SelectBatch start_batch(const Gpu&, std::vector<SelectLayer>&, std::vector<SelectJob>&);

// Whether a job has to search among coordinates.
bool is_searched(const SelectJob&);

// The keys of all groups of several weights, in up to two launches.
void score_jobs(const Gpu&, DType, const std::vector<SelectLayer>&, const std::vector<SelectJob>&, const SelectBatch&);

// Selects in up to five launches; the one that writes what survived is the caller's. The weights of a layer are read
// once, but twice where one of its slots has groups of one weight and the other of several, or both of several that
// differ: scores are summed by tiles of the groups, keys are collected by chunks.
SelectBatch select_groups(const Gpu&, DType, std::vector<SelectLayer>&, std::vector<SelectJob>&);

}  // namespace lps
