// Drivers of the optimiser step.
#include "units.h"

namespace lps {

void proximal_adam(const Cpu& cpu, DType dtype, Moves moves, Pull pull, const AdamScalars& scalars,
                   const std::vector<StepLayer>& layers) {
  const Kernels& kernels = cpu.kernels;
  const Parallel& parallel = cpu.parallel;
  const auto kernel = kernels.proximal_adam[static_cast<int>(dtype)];
  int64_t weights = 0;
  for (const StepLayer& layer : layers) weights += layer.count;
  // 41 bytes per weight in fp32, 81 in fp64.
  const bool stream = weights * (dtype == DType::f32 ? 41 : 81) > kStreamBytes;
  std::vector<Unit> units = units_of(layers, [](const StepLayer& layer) { return layer.count; });
  parallel_each(parallel, units, [&](const Unit& unit) {
    kernel(layers[unit.layer], moves, pull, scalars, unit.begin, unit.end, stream);
  });
}

void proximal_grad(const Cpu& cpu, DType dtype, Moves moves, double rho, double tau,
                   const std::vector<GradLayer>& layers) {
  const Kernels& kernels = cpu.kernels;
  const Parallel& parallel = cpu.parallel;
  const auto kernel = kernels.proximal_grad[static_cast<int>(dtype)];
  std::vector<Unit> units = units_of(layers, [](const GradLayer& layer) { return layer.count; });
  parallel_each(parallel, units,
                [&](const Unit& unit) { kernel(layers[unit.layer], moves, rho, tau, unit.begin, unit.end); });
}

}  // namespace lps
