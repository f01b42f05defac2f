// Linear layers and convolutions with irregular weights.
#include "sparse.cuh"

namespace lps {

namespace {

template <class T, class A>
void multiply_sparse(const Gpu& gpu, const A& a, const Sparse<T>& weight, const Result<T>& result) {
  const int64_t positions = result.positions();
  if (positions == 0 || weight.outputs == 0) return;
  const bool few = A::kAlongDepth && positions <= kFewExamples;
  const int64_t groups = parts_of(weight.outputs, int64_t{kSparseOutputs});
  const SparseCut cut{static_cast<unsigned>(groups), parts_of(weight.inputs, int64_t{kSparseDepth}), positions};
  const int64_t tiles = few ? positions : parts_of(positions, int64_t{kManyPositions<T>});
  const Parts<T> parts(gpu, result, tiles * groups, cut.blocks, 1);
  const dim3 grid(static_cast<unsigned>(tiles * groups), static_cast<unsigned>(parts.count));
  if (few) {
    // Convolutions have more positions than a few, or are too small to matter.
    if constexpr (A::kAlongDepth) {
      const size_t shared = sizeof(SparseTile<T, 1>);
      LPS_LAUNCH(gpu, (sparse_few<T, A>), grid, kSparseThreads, shared, a, weight, result, parts, cut);
    }
  } else {
    const size_t shared = sizeof(SparseTile<T, kManyPositions<T>>);
    LPS_LAUNCH(gpu, (sparse_many<T, A>), grid, kSparseThreads, shared, a, weight, result, parts, cut);
  }
  if (parts.count > 1) {
    const unsigned blocks = finish_blocks(gpu, positions * weight.outputs);
    LPS_LAUNCH(gpu, add_parts<T>, blocks, kFinishThreads, 0, result, parts);
  }
}

}  // namespace

template <class T>
void sparse_linear(const Gpu& gpu, const T* x, int64_t batch, const Sparse<T>& weight, const Finish<T>& finish, T* y) {
  const Examples<T> examples{on_device(x), weight.inputs, nullptr, static_cast<int>(weight.inputs)};
  const Result<T> result(y, finish, nullptr, weight.outputs, weight.outputs, batch, 1);
  multiply_sparse<T>(gpu, examples, weight, result);
}

template <class T>
void sparse_conv(const Gpu& gpu, const T* x, const ConvShape& shape, const Sparse<T>& weight, const Finish<T>& finish,
                 T* y) {
  const Patches<T> patches(x, shape, nullptr, weight.inputs);
  const int64_t plane = shape.out_height * shape.out_width;
  const Result<T> result(y, finish, nullptr, weight.outputs, weight.outputs, shape.images, plane);
  multiply_sparse<T>(gpu, patches, weight, result);
}

#define LPS_INSTANTIATE(T)                                                                            \
  template void sparse_linear(const Gpu&, const T*, int64_t, const Sparse<T>&, const Finish<T>&, T*); \
  template void sparse_conv(const Gpu&, const T*, const ConvShape&, const Sparse<T>&, const Finish<T>&, T*)
LPS_INSTANTIATE(float);
LPS_INSTANTIATE(double);
LPS_INSTANTIATE(f16);
LPS_INSTANTIATE(bf16);

}  // namespace lps
