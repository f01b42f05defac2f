// Drivers of the projection and of the ADMM update: select for all layers first, then write.
#include "select.h"

namespace lps {

namespace {

// Calls write(layer, begin, end) for blocks of at most kBitBlock coordinates of every layer.
template <class Layers, class F>
void for_bit_blocks(const Parallel& parallel, const Layers& layers, F&& write) {
  std::vector<Unit> units = units_of(layers, [](const auto& layer) { return layer.view.size(); });
  parallel_each(parallel, units, [&](const Unit& unit) {
    for (int64_t begin = unit.begin; begin < unit.end; begin += kBitBlock) {
      write(unit.layer, begin, std::min(begin + kBitBlock, unit.end));
    }
  });
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
  for (const ProjectLayer& layer : layers) weights += layer.view.size();
  const bool stream = 2 * weights * bytes_of(dtype) > kStreamBytes;
  for_bit_blocks(parallel, layers, [&](size_t index, int64_t begin, int64_t end) {
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

std::optional<Shortfall> admm_update(const Cpu& cpu, DType dtype, bool fresh, const std::vector<AdmmLayer>& layers) {
  const Kernels& kernels = cpu.kernels;
  const Parallel& parallel = cpu.parallel;
  // Two selections per layer: 2 i of its free coordinates, 2 i + 1 of its owned ones.
  std::vector<Selection> selections;
  for (size_t i = 0; i < layers.size(); ++i) {
    const AdmmLayer& layer = layers[i];
    const Source source{layer.v, fresh ? nullptr : layer.centre, layer.owner};
    selections.push_back({2 * i, source, Region::free, Score::l2, layer.view, layer.keep_free});
    selections.push_back({2 * i + 1, source, Region::owned, Score::half, layer.sharing_view, layer.keep_owned});
  }
  if (auto shortfall = select_groups(kernels, parallel, dtype, selections)) {
    return Shortfall{shortfall->layer / 2, shortfall->region, shortfall->available};
  }
  for_bit_blocks(parallel, layers, [&](size_t index, int64_t begin, int64_t end) {
    const AdmmLayer& layer = layers[index];
    uint8_t bits[kBitBlock / kLanes], owned[kBitBlock / kLanes];
    selection_bits(kernels, dtype, selections[2 * index], begin, end, bits);
    selection_bits(kernels, dtype, selections[2 * index + 1], begin, end, owned);
    for (int64_t byte = 0; byte < (end - begin + kLanes - 1) / kLanes; ++byte) bits[byte] |= owned[byte];
    kernels.admm_write[static_cast<int>(dtype)](layer.v, layer.centre, layer.owner, fresh, bits, begin, end);
  });
  return std::nullopt;
}

}  // namespace lps
