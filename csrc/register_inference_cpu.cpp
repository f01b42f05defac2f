// Registers the CPU kernels of inference: checks, allocation and torch's threads around the raw-pointer API.
#include <optional>

#include "tensors.h"

namespace {

using namespace lps;
using Maybe = std::optional<Tensor>;

// Calls f with a null pointer of the tensor's type, float or double.
template <class F>
void with_type(const Tensor& x, F&& f) {
  if (x.scalar_type() == ScalarType::Double) {
    f(static_cast<double*>(nullptr));
  } else {
    f(static_cast<float*>(nullptr));
  }
}

template <class T>
const T* pointer(const Tensor& tensor) {
  return static_cast<const T*>(tensor.data_ptr());
}
template <class T>
const T* pointer(const Maybe& tensor) {
  return tensor ? pointer<T>(*tensor) : nullptr;
}
// Indices that are given but none have an address all the same: none at all means every row or column.
const int32_t* indices_of(const Maybe& tensor) {
  static const int32_t none = 0;
  return !tensor ? nullptr : tensor->numel() == 0 ? &none : pointer<int32_t>(*tensor);
}
Maybe dense_if(const Maybe& tensor) { return tensor ? Maybe(dense(*tensor)) : std::nullopt; }

// ---- checks, in the words and order of lps_kernels/ops/_matrix.py ----

void check_shape(const char* op, const char* argument, const Tensor& tensor, const Ints& shape,
                 const std::string& why) {
  const auto sizes = tensor.sizes();
  if (sizes.size() == shape.size() && std::equal(sizes.begin(), sizes.end(), shape.begin())) return;
  refuse(op, argument, "shape " + list_text(shape) + " (" + why + ")", list_text(sizes));
}

void check_floats(const char* op, const char* argument, const Tensor& tensor, const Tensor& x) {
  check_cpu(op, argument, tensor, "x");
  if (tensor.scalar_type() == x.scalar_type()) return;
  refuse(op, argument, "dtype " + dtype_name(x.scalar_type()) + " (that of x)", dtype_name(tensor.scalar_type()));
}

void check_linear_input(const char* op, const Tensor& x) {
  check_dtype(op, "x", x, kStateFloats);
  if (x.dim() < 1) refuse(op, "x", "at least 1 dimension", "0");
}

void check_finish(const char* op, const Tensor& x, int64_t outputs, const Maybe& bias, const Maybe& residual,
                  const Ints& result) {
  if (outputs < 0) refuse(op, "outputs", "at least 0", text(outputs));
  if (bias) {
    check_floats(op, "bias", *bias, x);
    check_shape(op, "bias", *bias, {outputs}, "one for each output");
  }
  if (residual) {
    check_floats(op, "residual", *residual, x);
    check_shape(op, "residual", *residual, result, "that of the result");
  }
}

int64_t check_indices(const char* op, const char* argument, const Maybe& indices, int64_t limit) {
  if (!indices) return limit;
  check_cpu(op, argument, *indices, "x");
  check_dtype(op, argument, *indices, {ScalarType::Int});
  if (indices->dim() != 1) refuse(op, argument, "1 dimension", text(indices->dim()));
  return indices->numel();
}

void check_ascending(const char* op, const char* argument, const Maybe& indices, int64_t limit) {
  if (!indices) return;
  const int32_t* values = pointer<int32_t>(*indices);
  int64_t before = -1;
  for (int64_t at = 0; at < indices->numel(); ++at) {
    if (values[at] <= before || values[at] >= limit) {
      refuse(op, argument, "ascending indices below " + text(limit),
             text(int64_t{values[at]}) + " at position " + text(at));
    }
    before = values[at];
  }
}

// x as a matrix: how many rows its last dimension is repeated for.
int64_t batch_of(const Tensor& x) {
  int64_t batch = 1;
  for (int64_t d = 0; d + 1 < x.dim(); ++d) batch *= x.size(d);
  return batch;
}

Tensor linear_result(const Tensor& x, int64_t outputs) {
  Ints shape(x.sizes().begin(), x.sizes().end());
  shape.back() = outputs;
  return torch::stable::new_empty(x, shape);
}

// ---- structured and masked linear layers ----

Tensor structured_linear_cpu(const Tensor& x, const Tensor& weight, const Maybe& columns, const Maybe& rows,
                             const Maybe& bias, int64_t outputs, bool relu) {
  const char* op = "structured_linear";
  check_linear_input(op, x);
  check_finish(op, x, outputs, bias, std::nullopt, {});
  const int64_t inputs = x.size(x.dim() - 1);
  const int64_t depth = check_indices(op, "columns", columns, inputs);
  const int64_t height = check_indices(op, "rows", rows, outputs);
  check_floats(op, "weight", weight, x);
  check_shape(op, "weight", weight, {(height + kPanel - 1) / kPanel, depth, kPanel},
              text(height) + " rows and " + text(depth) + " columns in panels of " + text(int64_t{kPanel}));
  const Tensor read = dense(x), packed = dense(weight);
  const Maybe read_columns = dense_if(columns), read_rows = dense_if(rows), read_bias = dense_if(bias);
  check_ascending(op, "columns", read_columns, inputs);
  check_ascending(op, "rows", read_rows, outputs);
  const Tensor y = linear_result(x, outputs);
  with_type(x, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const Structured<T> left{
        pointer<T>(packed), indices_of(read_columns), depth, indices_of(read_rows), height, outputs};
    structured_linear<T>(cpu(), pointer<T>(read), batch_of(x), inputs, left, {pointer<T>(read_bias), nullptr, relu},
                         static_cast<T*>(y.data_ptr()));
  });
  return y;
}

Tensor masked_linear_cpu(const Tensor& x, const Tensor& w_bar, const Tensor& owner, const Tensor& bits, int64_t task,
                         const Maybe& bias, bool relu) {
  const char* op = "masked_linear";
  check_linear_input(op, x);
  check_floats(op, "w_bar", w_bar, x);
  if (w_bar.dim() != 2) refuse(op, "w_bar", "2 dimensions", text(w_bar.dim()));
  const int64_t inputs = x.size(x.dim() - 1), outputs = w_bar.size(0);
  check_shape(op, "w_bar", w_bar, {outputs, inputs}, "the inputs of x");
  check_like(op, "owner", owner, "w_bar", w_bar, ScalarType::Byte);
  check_dtype(op, "bits", bits, {ScalarType::Byte});
  check_shape(op, "bits", bits, {packed_size(w_bar.numel())},
              "one bit for each of " + text(w_bar.numel()) + " weights");
  if (task < 1 || task > kOwnerTask) refuse(op, "task", "1 to " + text(int64_t{kOwnerTask}), text(task));
  check_finish(op, x, outputs, bias, std::nullopt, {});
  const Tensor read = dense(x), weights = dense(w_bar), owners = dense(owner), mask = dense(bits);
  const Maybe read_bias = dense_if(bias);
  const Tensor y = linear_result(x, outputs);
  with_type(x, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const Masked<T> weight{pointer<T>(weights),        bytes(owners), bytes(mask),
                           static_cast<uint8_t>(task), inputs,        outputs};
    masked_linear<T>(cpu(), pointer<T>(read), batch_of(x), weight, {pointer<T>(read_bias), nullptr, relu},
                     static_cast<T*>(y.data_ptr()));
  });
  return y;
}

// ---- convolutions ----

struct Convolution {
  const Ints &kernel, &stride, &padding, &dilation;
};

// Checks x and the kernel; the result has one or two spatial dimensions, one of them as a single row.
ConvShape check_conv_input(const char* op, const Tensor& x, const Convolution& conv, int64_t groups, int64_t least_dims,
                           int64_t most_dims) {
  check_dtype(op, "x", x, kStateFloats);
  const int64_t dims = x.dim() - 2;
  if (dims < least_dims || dims > most_dims) {
    refuse(op, "x", text(least_dims + 2) + (least_dims < most_dims ? " or " + text(most_dims + 2) : "") + " dimensions",
           text(x.dim()));
  }
  if (groups != 1) refuse(op, "groups", "1 (grouped convolutions have no packed form)", text(groups));
  struct Named {
    const char* name;
    const Ints& values;
    int64_t least;
  };
  for (const Named& named : {Named{"kernel", conv.kernel, 1}, Named{"stride", conv.stride, 1},
                             Named{"padding", conv.padding, 0}, Named{"dilation", conv.dilation, 1}}) {
    bool fits = static_cast<int64_t>(named.values.size()) == dims;
    for (int64_t value : named.values) fits = fits && value >= named.least;
    if (!fits) {
      refuse(op, named.name, text(dims) + " ints of at least " + text(named.least), list_text(named.values));
    }
  }
  Ints size(x.sizes().begin() + 2, x.sizes().end()), out;
  for (size_t d = 0; d < size.size(); ++d) {
    const int64_t room = size[d] + 2 * conv.padding[d] - conv.dilation[d] * (conv.kernel[d] - 1) - 1;
    if (room < 0) refuse(op, "kernel", "a kernel that fits into " + list_text(size), list_text(conv.kernel));
    out.push_back(room / conv.stride[d] + 1);
  }
  const bool flat = dims == 1;
  const auto pick = [&](const Ints& values, int64_t height) {
    return std::pair<int64_t, int64_t>{flat ? height : values[0], values.back()};
  };
  const auto [height, width] = pick(size, 1);
  const auto [kernel_height, kernel_width] = pick(conv.kernel, 1);
  const auto [stride_height, stride_width] = pick(conv.stride, 1);
  const auto [padding_height, padding_width] = pick(conv.padding, 0);
  const auto [dilation_height, dilation_width] = pick(conv.dilation, 1);
  const auto [out_height, out_width] = pick(out, 1);
  return {x.size(0),    x.size(1),      height,        width,           kernel_height,  kernel_width, stride_height,
          stride_width, padding_height, padding_width, dilation_height, dilation_width, out_height,   out_width};
}

Ints conv_result(const Tensor& x, const ConvShape& shape, int64_t outputs) {
  if (x.dim() == 3) return {shape.images, outputs, shape.out_width};
  return {shape.images, outputs, shape.out_height, shape.out_width};
}

Tensor structured_conv_cpu(const char* op, int64_t dims, const Tensor& x, const Tensor& weight, const Maybe& columns,
                           const Maybe& rows, const Maybe& bias, const Maybe& residual, int64_t outputs,
                           const Convolution& conv, int64_t groups, bool relu) {
  const ConvShape shape = check_conv_input(op, x, conv, groups, dims, dims);
  const Ints result = conv_result(x, shape, outputs);
  check_finish(op, x, outputs, bias, residual, result);
  const int64_t inputs = shape.channels * shape.kernel_height * shape.kernel_width;
  const int64_t depth = check_indices(op, "columns", columns, inputs);
  const int64_t height = check_indices(op, "rows", rows, outputs);
  check_floats(op, "weight", weight, x);
  check_shape(op, "weight", weight, {height * depth}, text(height) + " rows and " + text(depth) + " columns, packed");
  const Tensor read = dense(x), packed = dense(weight);
  const Maybe read_columns = dense_if(columns), read_rows = dense_if(rows), read_bias = dense_if(bias);
  const Maybe added = dense_if(residual);
  check_ascending(op, "columns", read_columns, inputs);
  check_ascending(op, "rows", read_rows, outputs);
  const Tensor y = torch::stable::new_empty(x, result);
  with_type(x, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const Structured<T> left{
        pointer<T>(packed), indices_of(read_columns), depth, indices_of(read_rows), height, outputs};
    structured_conv<T>(cpu(), pointer<T>(read), shape, left, {pointer<T>(read_bias), pointer<T>(added), relu},
                       static_cast<T*>(y.data_ptr()));
  });
  return y;
}

template <int64_t dims>
Tensor structured_conv_cpu(const Tensor& x, const Tensor& weight, const Maybe& columns, const Maybe& rows,
                           const Maybe& bias, const Maybe& residual, int64_t outputs, const Ints& kernel,
                           const Ints& stride, const Ints& padding, const Ints& dilation, int64_t groups, bool relu) {
  return structured_conv_cpu(dims == 1 ? "structured_conv1d" : "structured_conv2d", dims, x, weight, columns, rows,
                             bias, residual, outputs, {kernel, stride, padding, dilation}, groups, relu);
}

// ---- irregular weights ----

struct Packed {
  Tensor values, bits, targets, offsets;
};

Packed check_packed(const char* op, const Tensor& x, const Packed& packed, int64_t outputs, int64_t inputs) {
  const int64_t blocks = (inputs + kSparseDepth - 1) / kSparseDepth, panels = (outputs + kSparseRows - 1) / kSparseRows;
  check_floats(op, "values", packed.values, x);
  if (packed.values.dim() != 1 || packed.values.numel() < kSparseSlack) {
    refuse(op, "values", "1 dimension of at least " + text(int64_t{kSparseSlack}) + " values",
           list_text(packed.values.sizes()));
  }
  const std::string why = text(outputs) + " rows and " + text(inputs) + " columns, packed";
  struct Named {
    const char* name;
    const Tensor& tensor;
    Ints shape;
    ScalarType dtype;
  };
  for (const Named& named : {Named{"bits", packed.bits, {outputs * blocks, kSparseDepth / 8}, ScalarType::Byte},
                             Named{"targets", packed.targets, {outputs * blocks}, ScalarType::Byte},
                             Named{"offsets", packed.offsets, {panels * blocks}, ScalarType::Long}}) {
    check_cpu(op, named.name, named.tensor, "x");
    check_dtype(op, named.name, named.tensor, {named.dtype});
    check_shape(op, named.name, named.tensor, named.shape, why);
  }
  const Packed read{dense(packed.values), dense(packed.bits), dense(packed.targets), dense(packed.offsets)};
  const int64_t* offsets = pointer<int64_t>(read.offsets);
  const int64_t count = read.values.numel() - kSparseSlack;
  for (int64_t at = 0; at < panels * blocks; ++at) {
    if (offsets[at] < (at == 0 ? 0 : offsets[at - 1]) || offsets[at] > count) {
      refuse(op, "offsets", "offsets from 0 to " + text(count) + " in ascending order",
             text(offsets[at]) + " at position " + text(at));
    }
  }
  return read;
}

template <class T>
Sparse<T> sparse_of(const Packed& packed, int64_t inputs, int64_t outputs) {
  return {pointer<T>(packed.values),
          bytes(packed.bits),
          bytes(packed.targets),
          pointer<int64_t>(packed.offsets),
          inputs,
          outputs};
}

Tensor sparse_linear_cpu(const Tensor& x, const Tensor& values, const Tensor& bits, const Tensor& targets,
                         const Tensor& offsets, const Maybe& bias, int64_t outputs, bool relu) {
  const char* op = "sparse_linear";
  check_linear_input(op, x);
  check_finish(op, x, outputs, bias, std::nullopt, {});
  const int64_t inputs = x.size(x.dim() - 1);
  const Packed packed = check_packed(op, x, {values, bits, targets, offsets}, outputs, inputs);
  const Tensor read = dense(x);
  const Maybe read_bias = dense_if(bias);
  const Tensor y = linear_result(x, outputs);
  with_type(x, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    sparse_linear<T>(cpu(), pointer<T>(read), batch_of(x), sparse_of<T>(packed, inputs, outputs),
                     {pointer<T>(read_bias), nullptr, relu}, static_cast<T*>(y.data_ptr()));
  });
  return y;
}

Tensor sparse_conv_cpu(const Tensor& x, const Tensor& values, const Tensor& bits, const Tensor& targets,
                       const Tensor& offsets, const Maybe& bias, const Maybe& residual, int64_t outputs,
                       const Ints& kernel, const Ints& stride, const Ints& padding, const Ints& dilation,
                       int64_t groups, bool relu) {
  const char* op = "sparse_conv";
  const ConvShape shape = check_conv_input(op, x, {kernel, stride, padding, dilation}, groups, 1, 2);
  const Ints result = conv_result(x, shape, outputs);
  check_finish(op, x, outputs, bias, residual, result);
  const int64_t inputs = shape.channels * shape.kernel_height * shape.kernel_width;
  const Packed packed = check_packed(op, x, {values, bits, targets, offsets}, outputs, inputs);
  const Tensor read = dense(x);
  const Maybe read_bias = dense_if(bias), added = dense_if(residual);
  const Tensor y = torch::stable::new_empty(x, result);
  with_type(x, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    sparse_conv<T>(cpu(), pointer<T>(read), shape, sparse_of<T>(packed, inputs, outputs),
                   {pointer<T>(read_bias), pointer<T>(added), relu}, static_cast<T*>(y.data_ptr()));
  });
  return y;
}

// The peak that benchmarks compare with, on all of torch's threads.
int64_t fma_burst_cpu(int64_t steps) { return fma_burst(cpu(), torch::stable::get_num_threads(), steps); }

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(lps, m) { m.def("_fma_burst(int steps) -> int"); }

STABLE_TORCH_LIBRARY_IMPL(lps, CompositeExplicitAutograd, m) { m.impl("_fma_burst", TORCH_BOX(&fma_burst_cpu)); }

STABLE_TORCH_LIBRARY_IMPL(lps, CPU, m) {
  m.impl("structured_linear", TORCH_BOX(&structured_linear_cpu));
  m.impl("masked_linear", TORCH_BOX(&masked_linear_cpu));
  m.impl("structured_conv1d", TORCH_BOX(&structured_conv_cpu<1>));
  m.impl("structured_conv2d", TORCH_BOX(&structured_conv_cpu<2>));
  m.impl("sparse_linear", TORCH_BOX(&sparse_linear_cpu));
  m.impl("sparse_conv", TORCH_BOX(&sparse_conv_cpu));
}
