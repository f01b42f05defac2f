// Convolutions with some rows (filters) and columns (channel and tap) of the weight, as products of matrices whose
// first factor is gathered from the input tile by tile.
#include "matrix.cuh"

namespace lps {

template <class T>
void structured_conv(const Gpu& gpu, const T* x, const ConvShape& shape, const Structured<T>& weight,
                     const Finish<T>& finish, T* y) {
  const Patches<T> patches(x, shape, weight.columns, weight.column_count);
  const Panels<T, kFilters> panels{on_device(weight.weight), weight.row_count, static_cast<int>(weight.column_count)};
  const Result<T> result(y, finish, weight.rows, weight.row_count, weight.outputs, shape.images,
                         shape.out_height * shape.out_width);
  multiply<T>(gpu, patches, panels, weight.column_count, result);
}

template void structured_conv(const Gpu&, const float*, const ConvShape&, const Structured<float>&,
                              const Finish<float>&, float*);
template void structured_conv(const Gpu&, const double*, const ConvShape&, const Structured<double>&,
                              const Finish<double>&, double*);
template void structured_conv(const Gpu&, const f16*, const ConvShape&, const Structured<f16>&, const Finish<f16>&,
                              f16*);
template void structured_conv(const Gpu&, const bf16*, const ConvShape&, const Structured<bf16>&, const Finish<bf16>&,
                              bf16*);

}  // namespace lps
