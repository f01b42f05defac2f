// Launchers of the scores of groups.
#include <stdexcept>
#include <string>

#include "scores.cuh"

namespace lps {

namespace {

struct ScoreCounts {
  int64_t tiles, folds, sums;
};

// Cuts the layer of a job; returns how many tiles, tiles of folding, and partial sums it has.
ScoreCounts cut(ScoreJob& job) {
  int64_t tiles = 0;
  job.by_column = job.b < kShortRun;
  if (View{job.a, job.g, job.b}.size() > 0 && job.by_column != 0) {
    job.columns = job.g * job.b;
    job.outer = parts_of(job.a, kBandRows);
    job.inner = job.b;
    job.width = 1;
    while (job.width < std::min<int64_t>(job.columns, kThreads)) job.width *= 2;
    tiles = parts_of(job.columns, job.width) * parts_of(job.outer, kThreads / job.width);
  } else if (View{job.a, job.g, job.b}.size() > 0) {
    job.outer = job.a;
    job.inner = parts_of(job.b, kPiece);
    tiles = parts_of<int64_t>(job.outer * job.g * job.inner, kWarps);
  }
  job.fold_lanes = job.outer * job.inner <= kFewSums ? 1 : kWarp;
  return {tiles, parts_of(job.g, kThreads / job.fold_lanes), job.outer * job.g * job.inner};
}

}  // namespace

void check_size(const View& view) {
  if (view.size() >= int64_t{1} << 31) {
    throw std::length_error("a layer of " + std::to_string(view.size()) + " weights: the kernels take fewer than 2^31");
  }
}

void score_groups(const Gpu& gpu, DType dtype, std::vector<ScoreJob>& jobs, uint64_t* keys) {
  ScoreCounts all{};
  for (ScoreJob& job : jobs) {
    job.first_tile = all.tiles;
    job.first_fold = all.folds;
    job.first_sum = all.sums;
    const ScoreCounts counts = cut(job);
    all = {all.tiles + counts.tiles, all.folds + counts.folds, all.sums + counts.sums};
  }
  if (all.folds == 0) return;
  const ScoreJob* table = table_of(gpu, jobs);
  const int count = static_cast<int>(jobs.size());
  double* sums = scratch_of<double>(gpu, all.sums * kRoles);
  uint8_t* seen = scratch_of<uint8_t>(gpu, all.sums);
  if (all.tiles > 0) {
    with_type(dtype, [&](auto* type) {
      using T = std::remove_pointer_t<decltype(type)>;
      LPS_LAUNCH(gpu, score_parts_kernel<T>, blocks_for(gpu, all.tiles), kThreads, sizeof(ScoreJob), table, count,
                 static_cast<int>(all.tiles), sums, seen);
    });
  }
  LPS_LAUNCH(gpu, score_fold_kernel, blocks_for(gpu, all.folds), kThreads, sizeof(ScoreJob), table, count,
             static_cast<int>(all.folds), sums, seen, keys);
}

void group_scores(const Gpu& gpu, DType dtype, Score score, Region region, const std::vector<ScoreLayer>& layers) {
  std::vector<ScoreJob> jobs;
  std::vector<SingleRow> single;
  for (const ScoreLayer& layer : layers) {
    check_size(layer.view);
    if (layer.view.single()) {
      single.push_back({layer.x, layer.owner, layer.scores, layer.view.g, 0});
      continue;
    }
    ScoreJob job{};
    job.source = {layer.x, nullptr, layer.owner, region == Region::owned ? kNoSlot : 0,
                  region == Region::free ? kNoSlot : 0};
    job.a = layer.view.a;
    job.g = layer.view.g;
    job.b = layer.view.b;
    job.scores = layer.scores;
    job.squares[0] = score == Score::l2;
    jobs.push_back(job);
  }
  score_groups(gpu, dtype, jobs, nullptr);
  const int chunks = number_chunks(single, [](const SingleRow& row) { return row.count; });
  if (chunks == 0) return;
  with_type(dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    LPS_LAUNCH(gpu, single_scores_kernel<T>, blocks_for(gpu, chunks), kThreads, sizeof(SingleRow),
               table_of(gpu, single), static_cast<int>(single.size()), chunks, score, region);
  });
}

}  // namespace lps
