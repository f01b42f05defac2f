// Scores of groups in fp64. Partial sums are cut by the sizes alone and added in a fixed order, so the scores are the
// same bits for any number of threads.
#include <cmath>
#include <memory>

#include "select.h"

namespace lps {

namespace {

// Below this run length a group's run is too short for whole blocks of lanes: its columns are summed instead.
constexpr int64_t kShortRun = 16;
constexpr int64_t kStrip = 2048;       // columns whose fp64 sums stay in the first-level cache
constexpr int64_t kPiece = 2 * kUnit;  // longest piece of a run summed at once

// A rectangle of partial sums: rows x columns of the layer (short runs), or pieces of runs (long ones).
struct Part {
  size_t layer;
  int64_t row_begin, row_end, begin, end;
  int64_t first;  // of the partial sums
};

// How a layer's sums are laid out.
struct Plan {
  bool by_column;
  int64_t columns;    // by column: g * b
  int64_t row_chunk;  // by column: rows per chunk
  int64_t pieces;     // by run: pieces per run
  int64_t count;      // of the partial sums
  // Each is written first by the thread that sums it. `absent` is 1 where no weight of the part lies in the region.
  std::unique_ptr<double[]> sums;
  std::unique_ptr<uint8_t[]> absent;
};

Plan plan_for(const View& view) {
  Plan plan{};
  plan.by_column = view.b < kShortRun;
  if (view.size() == 0) return plan;
  if (plan.by_column) {
    plan.columns = view.g * view.b;
    // Chunks of equal height, of at least 64 rows so that the partial sums stay few beside the weights.
    const int64_t rows = std::max<int64_t>(64, 32 * kUnit / std::max<int64_t>(plan.columns, 1));
    const int64_t wanted = std::max<int64_t>(1, (view.a + rows - 1) / rows);
    plan.row_chunk = ((view.a + wanted - 1) / wanted + kTermBlocks - 1) / kTermBlocks * kTermBlocks;
    plan.count = (view.a + plan.row_chunk - 1) / plan.row_chunk * plan.columns;
  } else {
    plan.pieces = (view.b + kPiece - 1) / kPiece;
    plan.count = view.a * view.g * plan.pieces;
  }
  plan.sums.reset(new double[static_cast<size_t>(plan.count)]);
  plan.absent.reset(new uint8_t[static_cast<size_t>(plan.count)]);
  return plan;
}

void add_parts(std::vector<Part>& parts, size_t layer, const View& view, const Plan& plan) {
  if (plan.count == 0) return;
  if (plan.by_column) {
    int64_t first = 0;
    for (int64_t row = 0; row < view.a; row += plan.row_chunk, first += plan.columns) {
      for (int64_t strip = 0; strip < plan.columns; strip += kStrip) {
        parts.push_back(
            {layer, row, std::min(row + plan.row_chunk, view.a), strip, std::min(strip + kStrip, plan.columns), first});
      }
    }
    return;
  }
  const int64_t per_part = std::max<int64_t>(1, kUnit / std::min(view.b, kPiece));
  for (int64_t piece = 0; piece < plan.count; piece += per_part) {
    parts.push_back({layer, 0, 0, piece, std::min(piece + per_part, plan.count), 0});
  }
}

// 1 where the weight lies outside the region, which is not `all`.
uint8_t outside(uint8_t owner, Region region) {
  const bool owned = (owner & kOwnerTask) != 0;
  return static_cast<uint8_t>(owned == (region == Region::free));
}

void sum_columns(const Kernels& kernels, DType dtype, const Scoring& job, const Plan& plan, const Part& part) {
  double* sums = plan.sums.get() + part.first;
  uint8_t* absent = plan.absent.get() + part.first;
  std::fill(sums + part.begin, sums + part.end, 0.0);
  kernels.column_sums[static_cast<int>(dtype)](job.source, job.region, job.score, part.row_begin, part.row_end,
                                               plan.columns, part.begin, part.end, sums);
  std::fill(absent + part.begin, absent + part.end, static_cast<uint8_t>(job.region != Region::all));
  if (job.region == Region::all) return;
  for (int64_t row = part.row_begin; row < part.row_end; ++row) {
    const uint8_t* owner = job.source.owner + row * plan.columns;
    for (int64_t c = part.begin; c < part.end; ++c) absent[c] &= outside(owner[c], job.region);
  }
}

void sum_runs(const Kernels& kernels, DType dtype, const Scoring& job, const Plan& plan, const Part& part) {
  for (int64_t i = part.begin; i < part.end; ++i) {
    const int64_t run = i / plan.pieces * job.view.b, offset = i % plan.pieces * kPiece;
    const int64_t begin = run + offset, end = run + std::min(offset + kPiece, job.view.b);
    plan.sums[static_cast<size_t>(i)] =
        kernels.run_sum[static_cast<int>(dtype)](job.source, job.region, job.score, begin, end);
    uint8_t absent = job.region != Region::all;
    for (int64_t at = begin; absent != 0 && at < end; ++at) absent = outside(job.source.owner[at], job.region);
    plan.absent[static_cast<size_t>(i)] = absent;
  }
}

// Adds the partial sums of each group, in the order of the rows and pieces; a group that no part has is absent.
void fold(const Scoring& job, const Plan& plan) {
  const int64_t groups = job.view.g, inner = plan.by_column ? job.view.b : plan.pieces;
  double* __restrict scores = job.scores;
  uint8_t* __restrict absent = job.absent;
  std::fill(scores, scores + groups, 0.0);
  std::fill(absent, absent + groups, uint8_t{1});
  for (int64_t first = 0; first < plan.count; first += groups * inner) {
    const double* __restrict sums = plan.sums.get() + first;
    const uint8_t* __restrict parts = plan.absent.get() + first;
    if (inner == 1) {
      for (int64_t g = 0; g < groups; ++g) scores[g] += sums[g];
      for (int64_t g = 0; g < groups; ++g) absent[g] &= parts[g];
    } else {
      for (int64_t i = 0; i < groups * inner; ++i) {
        scores[i / inner] += sums[i];
        absent[i / inner] &= parts[i];
      }
    }
  }
  if (job.score == Score::l2) {
    for (int64_t g = 0; g < groups; ++g) scores[g] = std::sqrt(scores[g]);
  }
}

}  // namespace

void score_groups(const Kernels& kernels, const Parallel& parallel, DType dtype, const std::vector<Scoring>& jobs) {
  std::vector<Plan> plans;
  for (const Scoring& job : jobs) plans.push_back(plan_for(job.view));
  std::vector<Part> parts;
  for (size_t layer = 0; layer < jobs.size(); ++layer) add_parts(parts, layer, jobs[layer].view, plans[layer]);
  parallel_each(parallel, parts, [&](const Part& part) {
    const auto sum = plans[part.layer].by_column ? sum_columns : sum_runs;
    sum(kernels, dtype, jobs[part.layer], plans[part.layer], part);
  });
  parallel(static_cast<int64_t>(jobs.size()), [&](int64_t begin, int64_t end) {
    for (int64_t layer = begin; layer < end; ++layer) {
      fold(jobs[static_cast<size_t>(layer)], plans[static_cast<size_t>(layer)]);
    }
  });
}

void group_scores(const Cpu& cpu, DType dtype, Score score, Region region, const std::vector<ScoreLayer>& layers) {
  const Kernels& kernels = cpu.kernels;
  const Parallel& parallel = cpu.parallel;
  std::vector<std::vector<uint8_t>> absent(layers.size());
  std::vector<Scoring> jobs;
  std::vector<ScoreLayer> single;
  for (size_t i = 0; i < layers.size(); ++i) {
    const ScoreLayer& layer = layers[i];
    if (layer.view.single()) {
      single.push_back(layer);
      continue;
    }
    absent[i].resize(static_cast<size_t>(layer.view.g));
    jobs.push_back({{layer.x, nullptr, layer.owner}, region, score, layer.view, layer.scores, absent[i].data()});
  }
  score_groups(kernels, parallel, dtype, jobs);
  parallel_each(parallel, jobs, [&](const Scoring& job) {
    for (int64_t g = 0; g < job.view.g; ++g) {
      if (job.absent[g] != 0) job.scores[g] = -INFINITY;
    }
  });
  // Of one weight: the magnitude or the value itself.
  std::vector<Unit> units = units_of(single, [](const ScoreLayer& layer) { return layer.view.g; });
  parallel_each(parallel, units, [&](const Unit& unit) {
    const ScoreLayer& layer = single[unit.layer];
    kernels.widen[static_cast<int>(dtype)]({layer.x, nullptr, layer.owner}, unit.begin, unit.end, layer.scores);
    for (int64_t g = unit.begin; g < unit.end; ++g) {
      if (score == Score::l2) layer.scores[g] = std::fabs(layer.scores[g]);
      if (region != Region::all && outside(layer.owner[g], region) != 0) layer.scores[g] = -INFINITY;
    }
  });
}

}  // namespace lps
