// Drivers of the projection and of the ADMM update: select for all layers first, then write.
#include "select.h"

namespace lps {

namespace {

template <class Layer>
int64_t weights_of(const Layer& layer) {
  return layer.view.size();
}

}  // namespace

std::optional<Shortfall> project(const Cpu& cpu, DType dtype, Score score, Region region, Output output,
                                 const std::vector<ProjectLayer>& layers) {
  const Kernels& kernels = cpu.kernels;
  const Parallel& parallel = cpu.parallel;
  std::vector<Selection> selections;
  for (size_t i = 0; i < layers.size(); ++i) {
    selections.push_back({i, {layers[i].x, nullptr, layers[i].owner}, region, score, layers[i].view, layers[i].keep});
  }
  if (auto shortfall = select_groups(kernels, parallel, dtype, selections)) return shortfall;
  int64_t weights = 0;
  for (const ProjectLayer& layer : layers) weights += weights_of(layer);
  const bool stream = 2 * weights * bytes_of(dtype) > kStreamBytes;
  for_bit_blocks(parallel, layers, weights_of<ProjectLayer>, [&](size_t index, int64_t begin, int64_t end) {
    const ProjectLayer& layer = layers[index];
    uint8_t* bits = layer.kept + begin / kLanes;
    if (output == Output::values) {
      selection_values(kernels, dtype, selections[index], begin, end, bits, layer.out, stream);
    } else {
      selection_bits(kernels, dtype, selections[index], begin, end, bits);
      kernels.keep[static_cast<int>(dtype)][static_cast<int>(Output::mask)](layer.x, bits, layer.out, begin, end,
                                                                            stream);
    }
  });
  return std::nullopt;
}

std::optional<Shortfall> admm_update(const Cpu& cpu, DType dtype, bool emerging, bool fresh,
                                     const std::vector<AdmmLayer>& layers) {
  const Kernels& kernels = cpu.kernels;
  const Parallel& parallel = cpu.parallel;
  std::vector<Selection> selections;
  for (const AdmmLayer& layer : layers) {
    const Source source{layer.v, fresh ? nullptr : layer.centre, layer.owner};
    add_roles(selections, source, layer.view, layer.sharing_view, layer.keep_free, layer.keep_owned, emerging);
  }
  if (auto shortfall = select_groups(kernels, parallel, dtype, selections)) {
    return Shortfall{shortfall->layer / 2, shortfall->region, shortfall->available};
  }
  for_bit_blocks(parallel, layers, weights_of<AdmmLayer>, [&](size_t index, int64_t begin, int64_t end) {
    const AdmmLayer& layer = layers[index];
    uint8_t bits[kBitBlock / kLanes];
    role_bits(kernels, dtype, selections[2 * index], selections[2 * index + 1], begin, end, bits);
    kernels.admm_write[static_cast<int>(dtype)](layer.v, layer.centre, layer.owner, fresh, bits, begin, end);
  });
  return std::nullopt;
}

}  // namespace lps
