// A batch of layers of unequal size in one launch: the layers are cut into parts of about equal size, numbered through,
// and every layer knows the number of its first part. Blocks take the parts in turn.
#pragma once

#include "vectors.cuh"

namespace lps {

// Weights in a part of a layer: four packs of fp32 per thread.
constexpr int64_t kChunk = 4096;

// The layer of a part: the last one that begins at or before it. Layers without parts are passed over.
template <class Start>
__device__ __forceinline__ int layer_of(int part, int layers, const Start& start) {
  int low = 0, high = layers - 1;
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (start(middle) <= part) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

template <class Layer>
__device__ __forceinline__ const Layer& layer_of_chunk(const Layer* layers, int count, int chunk) {
  return layers[layer_of(chunk, count, [&](int i) { return layers[i].first_chunk; })];
}

// Calls body(place) for the packs of a chunk, the `index`th of a layer of `count` weights. All threads of the block
// make the same number of calls, so that the body may hold collectives; a thread's pack may have no existing element.
template <int N, class Body>
__device__ __forceinline__ void for_chunk_packs(int64_t index, int64_t count, bool aligned, const Body& body) {
  const int64_t begin = index * kChunk;
  const int size = static_cast<int>(min(count - begin, kChunk));
  for (int offset = 0; offset < size; offset += kThreads * N) {
    const int own = offset + static_cast<int>(threadIdx.x) * N, existing = min(max(size - own, 0), N);
    body(PackPlace{begin + own, existing, aligned && existing == N});
  }
}

// On the host: numbers the chunks of all layers and returns how many there are.
template <class Layers, class Size>
int number_chunks(Layers& layers, const Size& size) {
  int64_t chunks = 0;
  for (auto& layer : layers) {
    layer.first_chunk = chunks;
    chunks += parts_of(size(layer), kChunk);
  }
  return static_cast<int>(chunks);
}

}  // namespace lps
