// Launchers of the optimiser step.
#include "step.cuh"

namespace lps {

namespace {

bool aligned_layer(const GradLayer& layer) {
  return aligned_to(16, {layer.grad, layer.v, layer.centre}) && aligned_to(kPack<float>, {layer.owner});
}

const auto layer_size = [](const auto& row) { return row.layer.count; };

}  // namespace

void proximal_adam(const Gpu& gpu, DType dtype, Moves moves, Pull pull, const AdamScalars& scalars,
                   const std::vector<StepLayer>& layers) {
  std::vector<AdamRow> rows;
  for (const StepLayer& layer : layers) rows.push_back({layer, 0, aligned_layer(dtype, layer)});
  const int chunks = number_chunks(rows, layer_size);
  if (chunks == 0) return;
  with_state_type(dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const auto launch = [&](auto pulling) {
      using Pulling = decltype(pulling);
      LPS_LAUNCH(gpu, (proximal_adam_kernel<T, Pulling>), blocks_for(gpu, chunks), kThreads, sizeof(AdamShared<T>),
                 table_of(gpu, rows), static_cast<int>(rows.size()), chunks, moves, scalars,
                 numbers_of<T>(scalars, pull));
    };
    pull == Pull::proximal ? launch(ProximalPull{}) : launch(GradientPull{});
  });
}

void proximal_grad(const Gpu& gpu, DType dtype, Moves moves, double rho, double tau,
                   const std::vector<GradLayer>& layers) {
  std::vector<GradRow> rows;
  for (const GradLayer& layer : layers) rows.push_back({layer, 0, aligned_layer(layer)});
  const int chunks = number_chunks(rows, layer_size);
  if (chunks == 0) return;
  with_state_type(dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    LPS_LAUNCH(gpu, proximal_grad_kernel<T>, blocks_for(gpu, chunks), kThreads, sizeof(GradRow), table_of(gpu, rows),
               static_cast<int>(rows.size()), chunks, moves, ByRole<T>{static_cast<T>(rho), static_cast<T>(tau)});
  });
}

}  // namespace lps
