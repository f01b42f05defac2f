// The operators of inference for any device; see operators.h.
#pragma once

#include <optional>

#include "tensors.h"

namespace lps {

// Calls f with a null pointer of the tensor's type.
template <class Target, class F>
void with_type(const Tensor& x, F&& f) {
  const ScalarType dtype = x.scalar_type();
  if (dtype == ScalarType::Double) return f(static_cast<double*>(nullptr));
  if constexpr (Target::multiplies_16_bit) {
    if (dtype == ScalarType::Half) return f(static_cast<f16*>(nullptr));
    if (dtype == ScalarType::BFloat16) return f(static_cast<bf16*>(nullptr));
  }
  f(static_cast<float*>(nullptr));
}

// Contiguous floats in a dtype that the target multiplies: 16-bit ones are widened where it has no products of them.
template <class Target>
Tensor factors(const Tensor& x) {
  const bool narrow = x.scalar_type() == ScalarType::Half || x.scalar_type() == ScalarType::BFloat16;
  return dense(narrow && !Target::multiplies_16_bit ? torch::stable::to(x, ScalarType::Float) : x);
}
template <class Target>
Maybe factors(const Maybe& x) {
  return x ? Maybe(factors<Target>(*x)) : std::nullopt;
}
// The result in the dtype of the operator's input, rounded once.
inline Tensor rounded(const Tensor& y, const Tensor& x) {
  return y.scalar_type() == x.scalar_type() ? y : torch::stable::to(y, x.scalar_type());
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
inline const int32_t* indices_of(const Maybe& tensor) {
  static const int32_t none = 0;
  return !tensor ? nullptr : tensor->numel() == 0 ? &none : pointer<int32_t>(*tensor);
}
inline Maybe dense_if(const Maybe& tensor) { return tensor ? Maybe(dense(*tensor)) : std::nullopt; }

// ---- checks, in the words and order of lps_kernels/ops/_matrix.py ----

inline void check_shape(const char* op, const char* argument, const Tensor& tensor, const Ints& shape,
                        const std::string& why) {
  const auto sizes = tensor.sizes();
  if (sizes.size() == shape.size() && std::equal(sizes.begin(), sizes.end(), shape.begin())) return;
  refuse(op, argument, "shape " + list_text(shape) + " (" + why + ")", list_text(sizes));
}

inline void check_floats(const char* op, const char* argument, const Tensor& tensor, const Tensor& x) {
  check_device(op, argument, tensor, "x", x);
  if (tensor.scalar_type() == x.scalar_type()) return;
  refuse(op, argument, "dtype " + dtype_name(x.scalar_type()) + " (that of x)", dtype_name(tensor.scalar_type()));
}

inline void check_linear_input(const char* op, const Tensor& x) {
  check_dtype(op, "x", x, kFloats);
  if (x.dim() < 1) refuse(op, "x", "at least 1 dimension", "0");
  check_values(op, "x", "a tensor", x.sizes());
}

inline void check_finish(const char* op, const Tensor& x, int64_t inputs, int64_t outputs, const Maybe& bias,
                         const Maybe& residual, const Ints& result) {
  if (outputs < 0) refuse(op, "outputs", "at least 0", text(outputs));
  check_values(op, "outputs", "a result", result);
  check_values(op, "outputs", "a weight", Ints{outputs, inputs});
  if (bias) {
    check_floats(op, "bias", *bias, x);
    check_shape(op, "bias", *bias, {outputs}, "one for each output");
  }
  if (residual) {
    check_floats(op, "residual", *residual, x);
    check_shape(op, "residual", *residual, result, "that of the result");
  }
}

inline int64_t check_indices(const char* op, const char* argument, const Maybe& indices, const Tensor& x,
                             int64_t limit) {
  if (!indices) return limit;
  check_device(op, argument, *indices, "x", x);
  check_dtype(op, argument, *indices, {ScalarType::Int});
  if (indices->dim() != 1) refuse(op, argument, "1 dimension", text(indices->dim()));
  if (indices->numel() > limit) {
    refuse(op, argument, "at most " + text(limit) + " indices", text(int64_t{indices->numel()}));
  }
  return indices->numel();
}

template <class Target>
void check_ascending(const char* op, const char* argument, const Maybe& indices, int64_t limit) {
  if (!indices || !Target::reads_values) return;
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
inline int64_t batch_of(const Tensor& x) {
  int64_t batch = 1;
  for (int64_t d = 0; d + 1 < x.dim(); ++d) batch *= x.size(d);
  return batch;
}

inline Ints linear_result(const Tensor& x, int64_t outputs) {
  Ints shape(x.sizes().begin(), x.sizes().end());
  shape.back() = outputs;
  return shape;
}

// ---- structured and masked linear layers ----

template <class Target>
Tensor structured_linear_on(const Tensor& x, const Tensor& weight, const Maybe& columns, const Maybe& rows,
                            const Maybe& bias, int64_t outputs, bool relu) {
  const char* op = "structured_linear";
  check_linear_input(op, x);
  const int64_t inputs = x.size(x.dim() - 1);
  const Ints result = linear_result(x, outputs);
  check_finish(op, x, inputs, outputs, bias, std::nullopt, result);
  const int64_t depth = check_indices(op, "columns", columns, x, inputs);
  const int64_t height = check_indices(op, "rows", rows, x, outputs);
  check_floats(op, "weight", weight, x);
  check_shape(op, "weight", weight, {(height + kPanel - 1) / kPanel, depth, kPanel},
              text(height) + " rows and " + text(depth) + " columns in panels of " + text(int64_t{kPanel}));
  const Tensor read = factors<Target>(x), packed = factors<Target>(weight);
  const Maybe read_columns = dense_if(columns), read_rows = dense_if(rows), read_bias = factors<Target>(bias);
  check_ascending<Target>(op, "columns", read_columns, inputs);
  check_ascending<Target>(op, "rows", read_rows, outputs);
  const Tensor y = torch::stable::new_empty(read, result);
  if (y.numel() == 0) return rounded(y, x);
  with_type<Target>(read, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const Structured<T> left{
        pointer<T>(packed), indices_of(read_columns), depth, indices_of(read_rows), height, outputs};
    structured_linear<T>(Target::device(x), pointer<T>(read), batch_of(x), inputs, left,
                         {pointer<T>(read_bias), nullptr, relu}, static_cast<T*>(y.data_ptr()));
  });
  return rounded(y, x);
}

template <class Target>
Tensor masked_linear_on(const Tensor& x, const Tensor& w_bar, const Tensor& owner, const Tensor& bits, int64_t task,
                        const Maybe& bias, bool relu) {
  const char* op = "masked_linear";
  check_linear_input(op, x);
  check_floats(op, "w_bar", w_bar, x);
  if (w_bar.dim() != 2) refuse(op, "w_bar", "2 dimensions", text(w_bar.dim()));
  const int64_t inputs = x.size(x.dim() - 1), outputs = w_bar.size(0);
  check_shape(op, "w_bar", w_bar, {outputs, inputs}, "the inputs of x");
  check_task(op, w_bar, owner, bits, task);
  const Ints result = linear_result(x, outputs);
  check_finish(op, x, inputs, outputs, bias, std::nullopt, result);
  const Tensor read = factors<Target>(x), weights = factors<Target>(w_bar), owners = dense(owner), mask = dense(bits);
  const Maybe read_bias = factors<Target>(bias);
  const Tensor y = torch::stable::new_empty(read, result);
  if (y.numel() == 0) return rounded(y, x);
  with_type<Target>(read, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const Masked<T> weight{pointer<T>(weights),        bytes(owners), bytes(mask),
                           static_cast<uint8_t>(task), inputs,        outputs};
    masked_linear<T>(Target::device(x), pointer<T>(read), batch_of(x), weight, {pointer<T>(read_bias), nullptr, relu},
                     static_cast<T*>(y.data_ptr()));
  });
  return rounded(y, x);
}

// ---- convolutions ----

struct Convolution {
  const Ints &kernel, &stride, &padding, &dilation;
};

// Checks x and the kernel; the result has one or two spatial dimensions, one of them as a single row.
inline ConvShape check_conv_input(const char* op, const Tensor& x, const Convolution& conv, int64_t groups,
                                  int64_t least_dims, int64_t most_dims) {
  check_dtype(op, "x", x, kFloats);
  const int64_t dims = x.dim() - 2;
  if (dims < least_dims || dims > most_dims) {
    refuse(op, "x", text(least_dims + 2) + (least_dims < most_dims ? " or " + text(most_dims + 2) : "") + " dimensions",
           text(x.dim()));
  }
  check_values(op, "x", "a tensor", x.sizes());
  if (groups != 1) refuse(op, "groups", "1 (grouped convolutions have no packed form)", text(groups));
  struct Named {
    const char* name;
    const Ints& values;
    int64_t least;
  };
  for (const Named& named : {Named{"kernel", conv.kernel, 1}, Named{"stride", conv.stride, 1},
                             Named{"padding", conv.padding, 0}, Named{"dilation", conv.dilation, 1}}) {
    bool fits = static_cast<int64_t>(named.values.size()) == dims;
    for (int64_t value : named.values) fits = fits && value >= named.least && value <= kMostPlaces;
    if (!fits) {
      refuse(op, named.name, text(dims) + " ints from " + text(named.least) + " to " + text(kMostPlaces),
             list_text(named.values));
    }
  }
  Ints columns{x.size(1)};
  columns.insert(columns.end(), conv.kernel.begin(), conv.kernel.end());
  if (!multiply_to_at_most(kMostPlaces, columns)) {
    refuse(op, "kernel", "channels and kernel sizes that multiply to at most " + text(kMostPlaces), list_text(columns));
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

inline Ints conv_result(const Tensor& x, const ConvShape& shape, int64_t outputs) {
  if (x.dim() == 3) return {shape.images, outputs, shape.out_width};
  return {shape.images, outputs, shape.out_height, shape.out_width};
}

// Without any weight, the places of the kernel, of which there may be very many, are not looked at one by one.
inline void forget_kernel(ConvShape& shape) { shape.kernel_height = shape.kernel_width = 1; }

template <class Target>
Tensor structured_conv_on(const char* op, int64_t dims, const Tensor& x, const Tensor& weight, const Maybe& columns,
                          const Maybe& rows, const Maybe& bias, const Maybe& residual, int64_t outputs,
                          const Convolution& conv, int64_t groups, bool relu) {
  ConvShape shape = check_conv_input(op, x, conv, groups, dims, dims);
  const Ints result = conv_result(x, shape, outputs);
  const int64_t inputs = shape.channels * shape.kernel_height * shape.kernel_width;
  check_finish(op, x, inputs, outputs, bias, residual, result);
  int64_t depth = check_indices(op, "columns", columns, x, inputs);
  const int64_t height = check_indices(op, "rows", rows, x, outputs);
  check_floats(op, "weight", weight, x);
  check_shape(op, "weight", weight, {height * depth}, text(height) + " rows and " + text(depth) + " columns, packed");
  const Tensor read = factors<Target>(x), packed = factors<Target>(weight);
  const Maybe read_columns = dense_if(columns), read_rows = dense_if(rows), read_bias = factors<Target>(bias);
  const Maybe added = factors<Target>(residual);
  check_ascending<Target>(op, "columns", read_columns, inputs);
  check_ascending<Target>(op, "rows", read_rows, outputs);
  const Tensor y = torch::stable::new_empty(read, result);
  if (y.numel() == 0) return rounded(y, x);
  if (height * depth == 0) {
    depth = 0;
    forget_kernel(shape);
  }
  with_type<Target>(read, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const Structured<T> left{
        pointer<T>(packed), indices_of(read_columns), depth, indices_of(read_rows), height, outputs};
    structured_conv<T>(Target::device(x), pointer<T>(read), shape, left,
                       {pointer<T>(read_bias), pointer<T>(added), relu}, static_cast<T*>(y.data_ptr()));
  });
  return rounded(y, x);
}

template <class Target, int64_t dims>
Tensor structured_conv_on(const Tensor& x, const Tensor& weight, const Maybe& columns, const Maybe& rows,
                          const Maybe& bias, const Maybe& residual, int64_t outputs, const Ints& kernel,
                          const Ints& stride, const Ints& padding, const Ints& dilation, int64_t groups, bool relu) {
  return structured_conv_on<Target>(dims == 1 ? "structured_conv1d" : "structured_conv2d", dims, x, weight, columns,
                                    rows, bias, residual, outputs, {kernel, stride, padding, dilation}, groups, relu);
}

// ---- irregular weights ----

struct Packed {
  Tensor values, bits, targets, offsets;
};

// Says what is wrong with packed weights that the kernels have refused, in the words and order of check_packed_values
// in lps_kernels/ops/sparse.py.
[[noreturn]] inline void refuse_packed(const char* op, const Packed& packed, int64_t outputs, int64_t inputs) {
  const int64_t blocks = (inputs + kSparseDepth - 1) / kSparseDepth, count = packed.values.numel() - kSparseSlack;
  const auto bit = [&](int64_t row, int64_t at) {
    return (bytes(packed.bits)[row * (kSparseDepth / 8) + at / 8] >> (at % 8)) & 1;
  };
  for (int64_t top = 0; top < outputs; top += kSparseRows) {
    const int64_t rows = std::min<int64_t>(outputs - top, kSparseRows);
    for (int64_t block = 0; block < blocks; ++block) {
      const int64_t first = top * blocks + block * rows, number = top / kSparseRows * blocks + block;
      const int64_t left = std::min<int64_t>(inputs - block * kSparseDepth, kSparseDepth);
      const int64_t room = count - pointer<int64_t>(packed.offsets)[number];
      bool seen[kSparseRows] = {};
      int64_t weights = 0;
      for (int64_t row = first; row < first + rows; ++row) {
        const uint8_t target = bytes(packed.targets)[row];
        if (target >= rows || seen[target]) {
          refuse(op, "targets", "each of 0 to " + text(rows - 1) + " once in a block",
                 text(int64_t{target}) + " at position " + text(row));
        }
        seen[target] = true;
        for (int64_t at = 0; at < kSparseDepth; ++at) {
          if (at >= left && bit(row, at) != 0) {
            refuse(op, "bits", "none behind those of " + text(inputs) + " inputs", "one in row " + text(row));
          }
          weights += bit(row, at);
        }
      }
      if (weights > room) {
        refuse(op, "bits", "at most " + text(room) + " in block " + text(number) + " (the values behind its offset)",
               text(weights));
      }
    }
  }
  refuse(op, "bits", "what pack_sparse returns", "something else");
}

template <class Target>
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
    check_device(op, named.name, named.tensor, "x", x);
    check_dtype(op, named.name, named.tensor, {named.dtype});
    check_shape(op, named.name, named.tensor, named.shape, why);
  }
  const Packed read{factors<Target>(packed.values), dense(packed.bits), dense(packed.targets), dense(packed.offsets)};
  if (!Target::reads_values) return read;
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
          packed.values.numel() - kSparseSlack,
          inputs,
          outputs};
}

// Runs kernels that, on a target whose values are read, say whether the packed weights are sound.
template <class Target, class F>
void multiply_sound(const char* op, const Packed& packed, int64_t outputs, int64_t inputs, F&& multiply) {
  if constexpr (Target::reads_values) {
    if (!multiply()) refuse_packed(op, packed, outputs, inputs);
  } else {
    multiply();
  }
}

template <class Target>
Tensor sparse_linear_on(const Tensor& x, const Tensor& values, const Tensor& bits, const Tensor& targets,
                        const Tensor& offsets, const Maybe& bias, int64_t outputs, bool relu) {
  const char* op = "sparse_linear";
  check_linear_input(op, x);
  const int64_t inputs = x.size(x.dim() - 1);
  const Ints result = linear_result(x, outputs);
  check_finish(op, x, inputs, outputs, bias, std::nullopt, result);
  const Packed packed = check_packed<Target>(op, x, {values, bits, targets, offsets}, outputs, inputs);
  const Tensor read = factors<Target>(x);
  const Maybe read_bias = factors<Target>(bias);
  const Tensor y = torch::stable::new_empty(read, result);
  if (y.numel() == 0) return rounded(y, x);
  with_type<Target>(read, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const auto multiply = [&] {
      return sparse_linear<T>(Target::device(x), pointer<T>(read), batch_of(x), sparse_of<T>(packed, inputs, outputs),
                              {pointer<T>(read_bias), nullptr, relu}, static_cast<T*>(y.data_ptr()));
    };
    multiply_sound<Target>(op, packed, outputs, inputs, multiply);
  });
  return rounded(y, x);
}

template <class Target>
Tensor sparse_conv_on(const Tensor& x, const Tensor& values, const Tensor& bits, const Tensor& targets,
                      const Tensor& offsets, const Maybe& bias, const Maybe& residual, int64_t outputs,
                      const Ints& kernel, const Ints& stride, const Ints& padding, const Ints& dilation, int64_t groups,
                      bool relu) {
  const char* op = "sparse_conv";
  ConvShape shape = check_conv_input(op, x, {kernel, stride, padding, dilation}, groups, 1, 2);
  const Ints result = conv_result(x, shape, outputs);
  const int64_t inputs = shape.channels * shape.kernel_height * shape.kernel_width;
  check_finish(op, x, inputs, outputs, bias, residual, result);
  const Packed packed = check_packed<Target>(op, x, {values, bits, targets, offsets}, outputs, inputs);
  const Tensor read = factors<Target>(x);
  const Maybe read_bias = factors<Target>(bias), added = factors<Target>(residual);
  const Tensor y = torch::stable::new_empty(read, result);
  if (y.numel() == 0) return rounded(y, x);
  if (inputs == 0) forget_kernel(shape);
  with_type<Target>(read, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const auto multiply = [&] {
      return sparse_conv<T>(Target::device(x), pointer<T>(read), shape, sparse_of<T>(packed, inputs, outputs),
                            {pointer<T>(read_bias), pointer<T>(added), relu}, static_cast<T*>(y.data_ptr()));
    };
    multiply_sound<Target>(op, packed, outputs, inputs, multiply);
  });
  return rounded(y, x);
}

}  // namespace lps
