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

}  // namespace

SelectBatch select_groups(const Gpu& gpu, DType dtype, std::vector<SelectLayer>& layers, std::vector<SelectJob>& jobs) {
  SelectBatch batch{};
  batch.layer_count = static_cast<int>(layers.size());
  batch.chunks = number_chunks(layers, [](const SelectLayer& layer) { return layer.count; });
  int64_t keys = 0;
  bool searches = false;
  for (SelectJob& job : jobs) {
    job.first_key = keys;
    if (job.grouped != 0) keys += job.g;
    searches |= job.grouped == 0 && job.keep > 0 && job.keep < job.g;
  }
  batch.layers = table_of(gpu, layers);
  batch.jobs = table_of(gpu, jobs);
  batch.found = scratch_of<Found>(gpu, static_cast<int64_t>(jobs.size()));
  batch.keys = scratch_of<uint64_t>(gpu, keys);
  batch.groups = scratch_of<uint8_t>(gpu, keys);
  std::vector<ScoreJob> scores = scores_of(layers, jobs);
  score_groups(gpu, dtype, scores, batch.keys);
  const unsigned blocks = static_cast<unsigned>(jobs.size());
  with_type(dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    using Key = KeyOf<T>;
    if (searches) {
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
