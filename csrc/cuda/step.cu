// Launchers of the optimiser step.
#include "launches.h"
#include "step.cuh"

namespace lps {

namespace {

// A null pointer, of a layer without a proximal term, is aligned to anything.
bool aligned_layer(DType dtype, const StepLayer& layer) {
  const size_t owners = dtype == DType::f64 ? kStepPack<double> : kStepPack<float>;
  return aligned_to(
             16, {layer.effective, layer.grad, layer.v, layer.w_bar, layer.centre, layer.exp_avg, layer.exp_avg_sq}) &&
         aligned_to(owners, {layer.owner});
}
bool aligned_layer(DType, const GradLayer& layer) {
  return aligned_to(16, {layer.grad, layer.v, layer.centre}) && aligned_to(kPack<float>, {layer.owner});
}

template <class Row, class Layer>
std::vector<Row> rows_of(DType dtype, const std::vector<Layer>& layers) {
  std::vector<Row> rows;
  for (const Layer& layer : layers) rows.push_back({layer, 0, aligned_layer(dtype, layer)});
  return rows;
}

const auto layer_size = [](const auto& row) { return row.layer.count; };

template <class T>
AdamNumbers<T> numbers_of(const AdamScalars& s) {
  return {static_cast<T>(s.beta1), static_cast<T>(1 - s.beta1), static_cast<T>(s.beta2), static_cast<T>(1 - s.beta2),
          static_cast<T>(s.eps),   static_cast<T>(s.rho),       static_cast<T>(s.tau)};
}

}  // namespace

void proximal_adam(const Gpu& gpu, DType dtype, Moves moves, const AdamScalars& scalars,
                   const std::vector<StepLayer>& layers) {
  std::vector<AdamRow> rows = rows_of<AdamRow>(dtype, layers);
  const int chunks = number_chunks(rows, layer_size);
  if (chunks == 0) return;
  with_state_type(dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    LPS_LAUNCH(gpu, proximal_adam_kernel<T>, blocks_for(gpu, chunks), kThreads, sizeof(AdamShared<T>),
               table_of(gpu, rows), static_cast<int>(rows.size()), chunks, moves, scalars, numbers_of<T>(scalars));
  });
}

void proximal_grad(const Gpu& gpu, DType dtype, Moves moves, double rho, double tau,
                   const std::vector<GradLayer>& layers) {
  std::vector<GradRow> rows = rows_of<GradRow>(dtype, layers);
  const int chunks = number_chunks(rows, layer_size);
  if (chunks == 0) return;
  with_state_type(dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    LPS_LAUNCH(gpu, proximal_grad_kernel<T>, blocks_for(gpu, chunks), kThreads, sizeof(GradRow), table_of(gpu, rows),
               static_cast<int>(rows.size()), chunks, moves, static_cast<T>(rho), static_cast<T>(tau));
  });
}

}  // namespace lps
