// Scores of groups in fp64. Partial sums are cut by the sizes alone and added in a fixed order, so the scores are the
// same bits for any number of threads.
#include <cmath>

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
  double* sums;
};

// How a layer's sums are laid out.
struct Plan {
  bool by_column;
  int64_t columns;    // by column: g * b
  int64_t row_chunk;  // by column: rows a chunk
  int64_t pieces;     // by run: pieces a run
  std::vector<double> sums;
};

Plan plan_for(const View& view) {
  Plan plan{};
  plan.by_column = view.b < kShortRun;
  if (plan.by_column) {
    plan.columns = view.g * view.b;
    // Chunks of equal height, of at least 64 rows so that the partial sums stay few beside the weights.
    const int64_t rows = std::max<int64_t>(64, 32 * kUnit / std::max<int64_t>(plan.columns, 1));
    const int64_t chunks = (view.a + rows - 1) / rows;
    plan.row_chunk = chunks == 0 ? 1 : (view.a + chunks - 1) / chunks;
    plan.row_chunk = (plan.row_chunk + kTermBlocks - 1) / kTermBlocks * kTermBlocks;
    plan.sums.resize(static_cast<size_t>(chunks * plan.columns));
  } else {
    plan.pieces = (view.b + kPiece - 1) / kPiece;
    plan.sums.resize(static_cast<size_t>(view.a * view.g * plan.pieces));
  }
  return plan;
}

void add_parts(std::vector<Part>& parts, size_t layer, const View& view, Plan& plan) {
  if (plan.by_column) {
    double* sums = plan.sums.data();
    for (int64_t row = 0; row < view.a; row += plan.row_chunk, sums += plan.columns) {
      for (int64_t strip = 0; strip < plan.columns; strip += kStrip) {
        parts.push_back(
            {layer, row, std::min(row + plan.row_chunk, view.a), strip, std::min(strip + kStrip, plan.columns), sums});
      }
    }
    return;
  }
  const int64_t count = view.a * view.g * plan.pieces;
  const int64_t per_part = std::max<int64_t>(1, kUnit / std::min(view.b, kPiece));
  for (int64_t piece = 0; piece < count; piece += per_part) {
    parts.push_back({layer, 0, 0, piece, std::min(piece + per_part, count), plan.sums.data()});
  }
}

void sum_part(const Kernels& kernels, DType dtype, const Scoring& job, const Plan& plan, const Part& part) {
  if (plan.by_column) {
    kernels.column_sums[static_cast<int>(dtype)](job.source, job.region, job.score, part.row_begin, part.row_end,
                                                 plan.columns, part.begin, part.end, part.sums);
    return;
  }
  for (int64_t i = part.begin; i < part.end; ++i) {
    const int64_t run = i / plan.pieces * job.view.b, offset = i % plan.pieces * kPiece;
    part.sums[i] = kernels.run_sum[static_cast<int>(dtype)](job.source, job.region, job.score, run + offset,
                                                            run + std::min(offset + kPiece, job.view.b));
  }
}

// Adds the partial sums of each group, in the order of the rows and pieces.
void fold(const Scoring& job, const Plan& plan) {
  const int64_t groups = job.view.g, inner = plan.by_column ? job.view.b : plan.pieces;
  double* __restrict scores = job.scores;
  std::fill(scores, scores + groups, 0.0);
  const double* __restrict sums = plan.sums.data();
  const double* const end = sums + plan.sums.size();
  for (; sums != end; sums += groups * inner) {
    if (inner == 1) {
      for (int64_t g = 0; g < groups; ++g) scores[g] += sums[g];
    } else {
      for (int64_t g = 0; g < groups; ++g) {
        for (int64_t i = 0; i < inner; ++i) scores[g] += sums[g * inner + i];
      }
    }
  }
  if (job.score == Score::l2) {
    for (int64_t g = 0; g < groups; ++g) scores[g] = std::sqrt(scores[g]);
  }
}

void find_absent(const Scoring& job) {
  const View& view = job.view;
  const bool everywhere = job.region == Region::all && view.a * view.b > 0;
  std::fill(job.absent, job.absent + view.g, static_cast<uint8_t>(!everywhere));
  if (job.region == Region::all) return;
  const bool wants_free = job.region == Region::free;
  const uint8_t* owner = job.source.owner;
  for (int64_t a = 0; a < view.a; ++a) {
    for (int64_t g = 0; g < view.g; ++g) {
      for (int64_t b = 0; b < view.b; ++b) {
        const bool free = (*owner++ & kOwnerTask) == 0;
        job.absent[g] &= static_cast<uint8_t>(free != wants_free);
      }
    }
  }
}

}  // namespace

void score_groups(const Kernels& kernels, const Parallel& parallel, DType dtype, const std::vector<Scoring>& jobs) {
  std::vector<Plan> plans;
  for (const Scoring& job : jobs) plans.push_back(plan_for(job.view));
  std::vector<Part> parts;
  for (size_t layer = 0; layer < jobs.size(); ++layer) add_parts(parts, layer, jobs[layer].view, plans[layer]);
  parallel_each(parallel, parts,
                [&](const Part& part) { sum_part(kernels, dtype, jobs[part.layer], plans[part.layer], part); });
  parallel(static_cast<int64_t>(jobs.size()), [&](int64_t begin, int64_t end) {
    for (int64_t layer = begin; layer < end; ++layer) {
      fold(jobs[static_cast<size_t>(layer)], plans[static_cast<size_t>(layer)]);
      find_absent(jobs[static_cast<size_t>(layer)]);
    }
  });
}

void group_scores(const Kernels& kernels, const Parallel& parallel, DType dtype, Score score, Region region,
                  const std::vector<ScoreLayer>& layers) {
  std::vector<std::vector<uint8_t>> absent(layers.size());
  std::vector<Scoring> jobs;
  for (size_t i = 0; i < layers.size(); ++i) {
    const ScoreLayer& layer = layers[i];
    absent[i].resize(static_cast<size_t>(layer.view.g));
    jobs.push_back({{layer.x, nullptr, layer.owner}, region, score, layer.view, layer.scores, absent[i].data()});
  }
  score_groups(kernels, parallel, dtype, jobs);
  parallel_each(parallel, jobs, [&](const Scoring& job) {
    if (job.view.single()) {  // of one weight: the magnitude or the value itself, not its sum of terms
      kernels.widen[static_cast<int>(dtype)](job.source, 0, job.view.g, job.scores);
      if (score == Score::l2) {
        for (int64_t g = 0; g < job.view.g; ++g) job.scores[g] = std::fabs(job.scores[g]);
      }
    }
    for (int64_t g = 0; g < job.view.g; ++g) {
      if (job.absent[g] != 0) job.scores[g] = -INFINITY;
    }
  });
}

}  // namespace lps
