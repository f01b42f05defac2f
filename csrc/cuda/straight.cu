// Launcher of the straight-through step.
#include "scores.h"
#include "straight.cuh"

namespace lps {

void straight_through_adam(const Gpu& gpu, DType dtype, Moves moves, bool emerging, const AdamScalars& scalars,
                           double share_cost, void* thresholds, const std::vector<StraightLayer>& layers) {
  std::vector<AdamRow> rows;
  std::vector<SelectLayer> selected;
  std::vector<SelectJob> jobs;
  for (size_t i = 0; i < layers.size(); ++i) {
    const StepLayer& layer = layers[i].step;
    check_size(layers[i].view);
    rows.push_back({layer, 0, aligned_layer(dtype, layer)});
    SelectLayer row{};
    row.source = {layer.v, nullptr, layer.owner, 0, 1};
    row.out = layer.effective;
    row.w_bar = layer.w_bar;
    row.count = layer.count;
    row.first_job = static_cast<int64_t>(kRoles * i);
    row.aligned = aligned_to(16, {layer.v, layer.w_bar, layer.effective}) && aligned_to(kPack<float>, {layer.owner});
    selected.push_back(row);
    jobs.push_back(job_of(dtype, layers[i].view, layers[i].keep_free, Score::l2, false, i, 0));
    jobs.push_back(job_of(dtype, layers[i].sharing_view, layers[i].keep_owned, Score::half, emerging, i, 1));
  }
  if (layers.empty()) return;
  number_chunks(rows, [](const AdamRow& row) { return row.layer.count; });
  with_state_type(dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    using Key = KeyOf<T>;
    const int64_t job_count = static_cast<int64_t>(jobs.size());
    StraightBatch<T> batch{};
    batch.select = start_batch(gpu, selected, jobs);
    const int64_t chunks = batch.select.chunks;
    batch.select.tallies = scratch_of<Tally>(gpu, chunks * kRoles);
    if (std::any_of(jobs.begin(), jobs.end(), is_searched)) {
      batch.select.candidates = scratch_of<Key>(gpu, chunks * kChunk);
      batch.places = scratch_of<uint16_t>(gpu, chunks * kChunk);
    }
    batch.rows = table_of(gpu, rows);
    batch.thresholds = static_cast<T*>(thresholds);
    batch.forecasts = scratch_of<Forecast>(gpu, job_count);
    if (chunks > 0) {
      const auto step = [&](auto learning) {
        LPS_LAUNCH(gpu, (straight_step_kernel<T, decltype(learning)::value>), blocks_for(gpu, chunks), kThreads,
                   sizeof(StraightShared<T>), batch, moves, scalars, numbers_of<T>(scalars, Pull::gradient),
                   static_cast<T>(share_cost));
      };
      // Either all layers have moments of their weights or none has; those of an empty layer may lie at nullptr.
      const bool learning = std::any_of(layers.begin(), layers.end(), [](const StraightLayer& layer) {
        return layer.step.weight_exp_avg != nullptr;
      });
      learning ? step(std::true_type{}) : step(std::false_type{});
      score_jobs(gpu, dtype, selected, jobs, batch.select);
    }
    LPS_LAUNCH(gpu, straight_resolve_kernel<T>, static_cast<unsigned>(job_count), kSelectThreads, sizeof(SearchShared),
               batch);
    if (chunks > 0) {
      LPS_LAUNCH(gpu, straight_settle_kernel<T>, blocks_for(gpu, chunks), kThreads, sizeof(SettleShared<Key>), batch);
    }
  });
}

}  // namespace lps
