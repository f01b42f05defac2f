// Linear layers: some rows and columns of the weight, or the weights that one task's mask selects.
#include "matrix.cuh"

namespace lps {

template <class T>
void structured_linear(const Gpu& gpu, const T* x, int64_t batch, int64_t inputs, const Structured<T>& weight,
                       const Finish<T>& finish, T* y) {
  const int depth = static_cast<int>(weight.column_count);
  const Examples<T> examples{on_device(x), inputs, weight.columns, depth};
  const Panels<T, kPanel> panels{on_device(weight.weight), weight.row_count, depth};
  const Result<T> result(y, finish, weight.rows, weight.row_count, weight.outputs, batch, 1);
  multiply<T>(gpu, examples, panels, depth, result);
}

template <class T>
void masked_linear(const Gpu& gpu, const T* x, int64_t batch, const Masked<T>& weight, const Finish<T>& finish, T* y) {
  const Examples<T> examples{on_device(x), weight.inputs, nullptr, static_cast<int>(weight.inputs)};
  const MaskedWeights<T> weights{on_device(weight.w_bar), weight.owner, weight.bits, weight.task, weight.inputs};
  const Result<T> result(y, finish, nullptr, weight.outputs, weight.outputs, batch, 1);
  multiply<T>(gpu, examples, weights, weight.inputs, result);
}

#define LPS_INSTANTIATE(T)                                                                                             \
  template void structured_linear(const Gpu&, const T*, int64_t, int64_t, const Structured<T>&, const Finish<T>&, T*); \
  template void masked_linear(const Gpu&, const T*, int64_t, const Masked<T>&, const Finish<T>&, T*)
LPS_INSTANTIATE(float);
LPS_INSTANTIATE(double);
LPS_INSTANTIATE(f16);
LPS_INSTANTIATE(bf16);

}  // namespace lps
