// Launchers of the projection and of the ADMM update: select for all layers first, then write.
#include "project.cuh"
#include "scores.h"

namespace lps {

namespace {

bool fits(int64_t keep, const View& view) { return keep >= 0 && keep <= view.g; }

int64_t weights_of(const std::vector<SelectLayer>& layers) {
  int64_t weights = 0;
  for (const SelectLayer& layer : layers) weights += layer.count;
  return weights;
}

}  // namespace

std::optional<Shortfall> project(const Gpu& gpu, DType dtype, Score score, Region region, Output output,
                                 const std::vector<ProjectLayer>& layers) {
  std::vector<SelectLayer> rows;
  std::vector<SelectJob> jobs;
  const int slot_of_free = region == Region::owned ? kNoSlot : 0, slot_of_owned = region == Region::free ? kNoSlot : 0;
  const size_t owners = dtype == DType::f32 || dtype == DType::f64 ? kPack<float> : kPack<__half>;
  for (size_t i = 0; i < layers.size(); ++i) {
    const ProjectLayer& layer = layers[i];
    check_size(layer.view);
    if (!fits(layer.keep, layer.view)) return Shortfall{i, region, layer.view.g};
    SelectLayer row{};
    row.source = {layer.x, nullptr, layer.owner, slot_of_free, slot_of_owned};
    row.out = layer.out;
    row.kept = layer.kept;
    row.count = layer.view.size();
    row.first_job = static_cast<int64_t>(i);
    row.aligned = aligned_to(16, {layer.x, layer.out}) && aligned_to(owners, {layer.owner});
    rows.push_back(row);
    jobs.push_back(job_of(dtype, layer.view, layer.keep, score, false, i, 0));
  }
  if (weights_of(rows) == 0) return std::nullopt;
  const SelectBatch batch = select_groups(gpu, dtype, rows, jobs);
  with_type(dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    LPS_LAUNCH(gpu, project_kernel<T>, blocks_for(gpu, batch.chunks), kThreads, sizeof(WriteShared<KeyOf<T>>), batch,
               output);
  });
  return std::nullopt;
}

std::optional<Shortfall> admm_update(const Gpu& gpu, DType dtype, bool emerging, bool fresh,
                                     const std::vector<AdmmLayer>& layers) {
  std::vector<SelectLayer> rows;
  std::vector<SelectJob> jobs;
  for (size_t i = 0; i < layers.size(); ++i) {
    const AdmmLayer& layer = layers[i];
    check_size(layer.view);
    if (!fits(layer.keep_free, layer.view)) return Shortfall{i, Region::free, layer.view.g};
    if (!fits(layer.keep_owned, layer.sharing_view)) return Shortfall{i, Region::owned, layer.sharing_view.g};
    SelectLayer row{};
    row.source = {layer.v, fresh ? nullptr : layer.centre, layer.owner, 0, 1};
    row.out = layer.centre;  // a null pointer is aligned to anything
    row.kept = layer.owner;
    row.count = layer.view.size();
    row.first_job = static_cast<int64_t>(2 * i);
    row.aligned = aligned_to(16, {layer.v, layer.centre}) && aligned_to(kPack<float>, {layer.owner});
    rows.push_back(row);
    jobs.push_back(job_of(dtype, layer.view, layer.keep_free, Score::l2, false, i, 0));
    jobs.push_back(job_of(dtype, layer.sharing_view, layer.keep_owned, Score::half, emerging, i, 1));
  }
  if (weights_of(rows) == 0) return std::nullopt;
  const SelectBatch batch = select_groups(gpu, dtype, rows, jobs);
  with_state_type(dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    LPS_LAUNCH(gpu, admm_update_kernel<T>, blocks_for(gpu, batch.chunks), kThreads, sizeof(WriteShared<KeyOf<T>>),
               batch);
  });
  return std::nullopt;
}

}  // namespace lps
