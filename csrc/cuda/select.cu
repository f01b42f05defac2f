// Launchers of the selection.
#include "resolve.cuh"
#include "scores.h"

namespace lps {

namespace {

// One job per layer where its two slots have the same groups, so that both are scored in one read.
std::vector<ScoreJob> scores_of(const std::vector<SelectLayer>& layers, const std::vector<SelectJob>& jobs) {
  std::vector<ScoreJob> scores;
  for (size_t i = 0; i < jobs.size(); ++i) {
    const SelectJob& job = jobs[i];
    if (job.grouped == 0) continue;
    const auto same_groups = [&](const SelectJob& other) {
      return other.grouped != 0 && other.a == job.a && other.g == job.g && other.b == job.b;
    };
    if (job.slot == 0 || !same_groups(jobs[i - 1])) {
      ScoreJob score{};
      score.source = layers[static_cast<size_t>(job.layer)].source;
      if (score.source.slot_of_free != job.slot) score.source.slot_of_free = kNoSlot;
      if (score.source.slot_of_owned != job.slot) score.source.slot_of_owned = kNoSlot;
      score.a = job.a;
      score.g = job.g;
      score.b = job.b;
      scores.push_back(score);
    } else {
      scores.back().source = layers[static_cast<size_t>(job.layer)].source;
    }
    scores.back().first_key[job.slot] = job.first_key;
    scores.back().squares[job.slot] = job.by_magnitude;
  }
  return scores;
}

// The smallest key that takes part: of one weight above 1/2, of several with a sum of x - 1/2 above 0.
uint64_t emerging_floor(DType dtype, const View& view) {
  if (!view.single()) return order_key(0.0) + 1;
  return dtype == DType::f64 ? order_key(0.5) + 1 : order_key(0.5f) + uint64_t{1};
}

}  // namespace

SelectJob job_of(DType dtype, const View& view, int64_t keep, Score score, bool emerging, size_t layer, int slot) {
  SelectJob job{};
  job.keep = keep;
  job.a = view.a;
  job.g = view.g;
  job.b = view.b;
  job.floor = emerging ? emerging_floor(dtype, view) : 1;
  job.layer = static_cast<int32_t>(layer);
  job.slot = slot;
  job.by_magnitude = score == Score::l2;
  job.grouped = !view.single();
  return job;
}

bool is_searched(const SelectJob& job) { return job.grouped == 0 && job.keep > 0 && job.keep < job.g; }

SelectBatch start_batch(const Gpu& gpu, std::vector<SelectLayer>& layers, std::vector<SelectJob>& jobs) {
  SelectBatch batch{};
  batch.layer_count = static_cast<int>(layers.size());
  batch.chunks = number_chunks(layers, [](const SelectLayer& layer) { return layer.count; });
  int64_t keys = 0;
  for (SelectJob& job : jobs) {
    job.first_key = keys;
    if (job.grouped != 0) keys += job.g;
  }
  batch.layers = table_of(gpu, layers);
  batch.jobs = table_of(gpu, jobs);
  batch.found = scratch_of<Found>(gpu, static_cast<int64_t>(jobs.size()));
  batch.keys = scratch_of<uint64_t>(gpu, keys);
  batch.groups = scratch_of<uint8_t>(gpu, keys);
  return batch;
}

void score_jobs(const Gpu& gpu, DType dtype, const std::vector<SelectLayer>& layers, const std::vector<SelectJob>& jobs,
                const SelectBatch& batch) {
  std::vector<ScoreJob> scores = scores_of(layers, jobs);
  score_groups(gpu, dtype, scores, batch.keys);
}

SelectBatch select_groups(const Gpu& gpu, DType dtype, std::vector<SelectLayer>& layers, std::vector<SelectJob>& jobs) {
  SelectBatch batch = start_batch(gpu, layers, jobs);
  score_jobs(gpu, dtype, layers, jobs, batch);
  const unsigned blocks = static_cast<unsigned>(jobs.size());
  with_type(dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    using Key = KeyOf<T>;
    if (std::any_of(jobs.begin(), jobs.end(), is_searched)) {
      batch.tallies = scratch_of<Tally>(gpu, int64_t{batch.chunks} * kRoles);
      batch.candidates = scratch_of<Key>(gpu, batch.chunks * kChunk);
      LPS_LAUNCH(gpu, sample_kernel<T>, blocks, kSelectThreads, sizeof(SampleShared<Key>), batch);
      LPS_LAUNCH(gpu, collect_kernel<T>, blocks_for(gpu, batch.chunks), kThreads, sizeof(CollectShared<Key>), batch);
    }
    LPS_LAUNCH(gpu, resolve_kernel<T>, blocks, kSelectThreads, sizeof(SearchShared), batch);
  });
  return batch;
}

}  // namespace lps
