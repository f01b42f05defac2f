// The matrix products in double: every weight is spread out to a dense matrix, then plain loops. Networks in double are
// for checks of precision, not for speed.
#include <optional>
#include <vector>

#include "matrices.h"

namespace lps {

namespace {

// One entry of a dense weight: a weight that is not there meets nothing, not even an Inf.
struct Weight {
  double value = 0;
  bool present = false;
};
using Matrix = std::vector<Weight>;  // [outputs, inputs]

Matrix spread(const Structured<double>& weight, int64_t inputs, bool linear) {
  Matrix out(static_cast<size_t>(weight.outputs * inputs));
  const int64_t depth = weight.column_count, size = linear ? kPanel : kFilters;
  for (int64_t r = 0; r < weight.row_count; ++r) {
    const int64_t panel = r / size;
    const int64_t step = linear ? size : std::min<int64_t>(weight.row_count - panel * size, size);
    const int64_t row = weight.rows == nullptr ? r : weight.rows[r];
    for (int64_t k = 0; k < depth; ++k) {
      const int64_t column = weight.columns == nullptr ? k : weight.columns[k];
      out[static_cast<size_t>(row * inputs + column)] = {weight.weight[panel * size * depth + k * step + r % size],
                                                         true};
    }
  }
  return out;
}

// Nothing where the weights are not packed as they should be.
std::optional<Matrix> spread(const Sparse<double>& weight) {
  if (!inputs_exist(weight)) return std::nullopt;
  Matrix out(static_cast<size_t>(weight.outputs * weight.inputs));
  const int64_t blocks = parts_of(weight.inputs, kSparseDepth);
  for (int64_t panel = 0; panel < parts_of(weight.outputs, kSparseRows); ++panel) {
    const int64_t rows = std::min<int64_t>(weight.outputs - panel * kSparseRows, kSparseRows);
    for (int64_t block = 0; block < blocks; ++block) {
      const int64_t first = panel * kSparseRows * blocks + block * rows;
      if (!are_rows(weight.targets + first, rows)) return std::nullopt;
      int64_t value = weight.offsets[panel * blocks + block];
      for (int64_t at = first; at < first + rows; ++at) {
        const int64_t row = panel * kSparseRows + weight.targets[at];
        for (int64_t bit = 0; bit < kSparseDepth; ++bit) {
          if (((weight.bits[at * (kSparseDepth / 8) + bit / 8] >> (bit % 8)) & 1) == 0) continue;
          if (value == weight.count) return std::nullopt;
          out[static_cast<size_t>(row * weight.inputs + block * kSparseDepth + bit)] = {weight.values[value++], true};
        }
      }
    }
  }
  return out;
}

Matrix spread(const Masked<double>& weight) {
  Matrix out(static_cast<size_t>(weight.outputs * weight.inputs));
  for (size_t i = 0; i < out.size(); ++i) {
    const bool kept = (weight.owner[i] & kTaskBits) == weight.task || ((weight.bits[i / 8] >> (i % 8)) & 1) != 0;
    out[i] = {kept ? weight.w_bar[i] : 0, true};
  }
  return out;
}

double finished(double sum, const Finish<double>& finish, int64_t output, int64_t at) {
  if (finish.bias != nullptr) sum += finish.bias[output];
  if (finish.residual != nullptr) sum += finish.residual[at];
  return finish.relu && sum < 0 ? 0 : sum;
}

void multiply(const Parallel& parallel, const double* x, int64_t batch, const Matrix& weight, int64_t inputs,
              int64_t outputs, const Finish<double>& finish, double* y) {
  parallel(batch, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin * outputs; i < end * outputs; ++i) {
      const Weight* row = weight.data() + i % outputs * inputs;
      double sum = 0;
      for (int64_t k = 0; k < inputs; ++k) sum += row[k].present ? row[k].value * x[i / outputs * inputs + k] : 0;
      y[i] = finished(sum, finish, i % outputs, i);
    }
  });
}

void convolve(const Parallel& parallel, const double* x, const ConvShape& shape, const Matrix& weight, int64_t outputs,
              const Finish<double>& finish, double* y) {
  const int64_t plane = shape.out_height * shape.out_width;
  const int64_t taps = shape.kernel_height * shape.kernel_width, inputs = shape.channels * taps;
  const auto one = [&](int64_t image, int64_t output, int64_t position) {
    double sum = 0;
    for (int64_t k = 0; k < inputs; ++k) {
      const int64_t tap = k % taps;
      const int64_t row = position / shape.out_width * shape.stride_height +
                          tap / shape.kernel_width * shape.dilation_height - shape.padding_height;
      const int64_t column = position % shape.out_width * shape.stride_width +
                             tap % shape.kernel_width * shape.dilation_width - shape.padding_width;
      const Weight& met = weight[static_cast<size_t>(output * inputs + k)];
      if (!met.present) continue;
      const bool padding = row < 0 || row >= shape.height || column < 0 || column >= shape.width;
      // Padding is zeros: an Inf that meets it gives NaN.
      sum += met.value *
             (padding ? 0 : x[((image * shape.channels + k / taps) * shape.height + row) * shape.width + column]);
    }
    return sum;
  };
  parallel(shape.images * outputs, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin * plane; i < end * plane; ++i) {
      const int64_t output = i / plane % outputs;
      y[i] = finished(one(i / plane / outputs, output, i % plane), finish, output, i);
    }
  });
}

}  // namespace

template <>
void structured_linear(const Cpu& cpu, const double* x, int64_t batch, int64_t inputs, const Structured<double>& weight,
                       const Finish<double>& finish, double* y) {
  multiply(cpu.parallel, x, batch, spread(weight, inputs, true), inputs, weight.outputs, finish, y);
}

template <>
bool sparse_linear(const Cpu& cpu, const double* x, int64_t batch, const Sparse<double>& weight,
                   const Finish<double>& finish, double* y) {
  const std::optional<Matrix> matrix = spread(weight);
  if (matrix) multiply(cpu.parallel, x, batch, *matrix, weight.inputs, weight.outputs, finish, y);
  return matrix.has_value();
}

template <>
void masked_linear(const Cpu& cpu, const double* x, int64_t batch, const Masked<double>& weight,
                   const Finish<double>& finish, double* y) {
  multiply(cpu.parallel, x, batch, spread(weight), weight.inputs, weight.outputs, finish, y);
}

template <>
void structured_conv(const Cpu& cpu, const double* x, const ConvShape& shape, const Structured<double>& weight,
                     const Finish<double>& finish, double* y) {
  const int64_t inputs = shape.channels * shape.kernel_height * shape.kernel_width;
  convolve(cpu.parallel, x, shape, spread(weight, inputs, false), weight.outputs, finish, y);
}

template <>
bool sparse_conv(const Cpu& cpu, const double* x, const ConvShape& shape, const Sparse<double>& weight,
                 const Finish<double>& finish, double* y) {
  const std::optional<Matrix> matrix = spread(weight);
  if (matrix) convolve(cpu.parallel, x, shape, *matrix, weight.outputs, finish, y);
  return matrix.has_value();
}

}  // namespace lps
