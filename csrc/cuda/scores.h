// Scores of groups for a batch of layers: what group_scores, project and admm_update share.
#pragma once

#include "launches.h"
#include "source.cuh"

namespace lps {

// Groups of one layer, scored in one read of its weights for one slot or for both.
struct ScoreJob {
  WeightSource source;
  int64_t a, g, b;
  double* scores;             // of slot 0, -inf where a group has no coordinate; nullptr: keys are wanted
  int64_t first_key[kRoles];  // of each slot's groups
  int64_t squares[kRoles];    // 1: the l2 norm, 0: the sum of x - 1/2

  // Set by score_groups: how the layer is cut (see scores.cuh). The partial sums are an array [outer, g, inner]: of
  // bands by columns of a group, or of rows by pieces of a run. The last three are numbered through all jobs.
  int64_t by_column, columns, width, outer, inner, fold_lanes;
  int64_t first_tile, first_fold, first_sum;
};

// All jobs in two launches. `keys` has room for the keys of all groups, 0 where a group has no coordinate.
void score_groups(const Gpu&, DType, std::vector<ScoreJob>& jobs, uint64_t* keys);

// The kernels count the weights of a layer in 31 bits.
void check_size(const View&);

}  // namespace lps
