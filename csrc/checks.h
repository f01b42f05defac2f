// Argument checks of the registered operators. Every refusal reads
//   lps::op: argument: expected this, got that
// letter for letter as in lps_kernels/_checks.py; the tests compare the two.
#pragma once

#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <stdexcept>
#include <string>
#include <vector>

#include "lps.h"

namespace lps {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

// The name of an argument or of an entry of a list; put into words only when it is refused.
struct Argument {
  const char* name;
  int64_t index;  // -1: not a list

  Argument(const char* argument) : name(argument), index(-1) {}  // NOLINT: names are arguments
  Argument(const char* list, size_t entry) : name(list), index(static_cast<int64_t>(entry)) {}
  std::string words() const { return index < 0 ? name : name + ("[" + std::to_string(index) + "]"); }
};

[[noreturn]] inline void refuse(const char* op, const Argument& argument, const std::string& expected,
                                const std::string& got) {
  throw std::runtime_error(std::string("lps::") + op + ": " + argument.words() + ": expected " + expected + ", got " +
                           got);
}

inline std::string text(int64_t x) { return std::to_string(x); }

// As Python prints a float: the shortest digits that read back as the same number, fixed from 1e-4 to 1e16.
inline std::string text(double x) {
  if (std::isnan(x)) return "nan";
  if (std::isinf(x)) return x < 0 ? "-inf" : "inf";
  char digits[64];
  int decimals = 0;
  for (; decimals < 17; ++decimals) {
    std::snprintf(digits, sizeof(digits), "%.*e", decimals, x);
    if (std::strtod(digits, nullptr) == x) break;
  }
  const int exponent = std::atoi(std::strchr(digits, 'e') + 1);
  if (exponent < -4 || exponent >= 16) return digits;
  std::snprintf(digits, sizeof(digits), "%.*f", std::max(1, decimals - exponent), x);
  return digits;
}

template <class Ints>
std::string list_text(const Ints& values) {
  std::string out = "[";
  for (size_t i = 0; i < values.size(); ++i) out += (i == 0 ? "" : ", ") + std::to_string(values[i]);
  return out + "]";
}

inline std::string dtype_name(ScalarType dtype) {
  switch (dtype) {
    case ScalarType::Byte:
      return "uint8";
    case ScalarType::Char:
      return "int8";
    case ScalarType::Short:
      return "int16";
    case ScalarType::Int:
      return "int32";
    case ScalarType::Long:
      return "int64";
    case ScalarType::Half:
      return "float16";
    case ScalarType::Float:
      return "float32";
    case ScalarType::Double:
      return "float64";
    case ScalarType::ComplexHalf:
      return "complex32";
    case ScalarType::ComplexFloat:
      return "complex64";
    case ScalarType::ComplexDouble:
      return "complex128";
    case ScalarType::Bool:
      return "bool";
    case ScalarType::BFloat16:
      return "bfloat16";
    case ScalarType::Float8_e5m2:
      return "float8_e5m2";
    case ScalarType::Float8_e4m3fn:
      return "float8_e4m3fn";
    case ScalarType::Float8_e5m2fnuz:
      return "float8_e5m2fnuz";
    case ScalarType::Float8_e4m3fnuz:
      return "float8_e4m3fnuz";
    case ScalarType::UInt16:
      return "uint16";
    case ScalarType::UInt32:
      return "uint32";
    case ScalarType::UInt64:
      return "uint64";
    default:
      return "another dtype";
  }
}

// The product of sizes, or -1 where it is negative in part or beyond int64.
template <class Sizes>
int64_t product(const Sizes& sizes) {
  bool empty = false;
  for (int64_t size : sizes) {
    if (size < 0) return -1;
    empty |= size == 0;
  }
  int64_t out = empty ? 0 : 1;
  for (int64_t size : sizes) {
    if (__builtin_mul_overflow(out, size, &out)) return -1;
  }
  return out;
}

// Most values of any tensor or matrix, sizes of 0 counted as 1: products and sums of a few such sizes fit in 64 bits.
constexpr int64_t kMostValues = int64_t{1} << 60;
// Most of an int of a convolution, and of the columns of its matrix, which 32-bit indices name.
constexpr int64_t kMostPlaces = 0x7fffffff;

// Whether sizes of at least 0 multiply to at most `most`, those of 0 counted as 1.
template <class Sizes>
bool multiply_to_at_most(int64_t most, const Sizes& sizes) {
  int64_t all = 1;
  for (int64_t size : sizes) {
    if (__builtin_mul_overflow(all, std::max<int64_t>(size, 1), &all)) return false;
  }
  return all <= most;
}

template <class Sizes>
void check_values(const char* op, const Argument& argument, const std::string& what, const Sizes& sizes) {
  if (multiply_to_at_most(kMostValues, sizes)) return;
  refuse(op, argument, what + " of at most " + text(kMostValues) + " values", "shape " + list_text(sizes));
}

inline const std::vector<ScalarType> kFloats{ScalarType::Float, ScalarType::Double, ScalarType::BFloat16,
                                             ScalarType::Half};
inline const std::vector<ScalarType> kStateFloats{ScalarType::Float, ScalarType::Double};

inline void check_dtype(const char* op, const Argument& argument, const Tensor& tensor,
                        const std::vector<ScalarType>& allowed) {
  if (std::find(allowed.begin(), allowed.end(), tensor.scalar_type()) != allowed.end()) return;
  std::string names = dtype_name(allowed[0]);
  for (size_t i = 1; i < allowed.size(); ++i) {
    names += (i + 1 == allowed.size() ? " or " : ", ") + dtype_name(allowed[i]);
  }
  refuse(op, argument, "dtype " + names, dtype_name(tensor.scalar_type()));
}

inline std::string device_name(const Tensor& tensor) {
  if (tensor.is_cpu()) return "cpu";
  return tensor.is_cuda() ? "cuda:" + text(int64_t{tensor.get_device_index()}) : "another device";
}

// One call's tensors are all on one device: the kernels behind these checks read its memory.
inline void check_device(const char* op, const Argument& argument, const Tensor& tensor, const Argument& model_name,
                         const Tensor& model) {
  if (tensor.is_cpu() && model.is_cpu()) return;
  if (tensor.is_cuda() && model.is_cuda() && tensor.get_device_index() == model.get_device_index()) return;
  refuse(op, argument, "device " + device_name(model) + " (that of " + model_name.words() + ")", device_name(tensor));
}

inline bool same_shape(const Tensor& a, const Tensor& b) {
  const auto left = a.sizes(), right = b.sizes();
  return left.size() == right.size() && std::equal(left.begin(), left.end(), right.begin());
}

inline void check_like(const char* op, const Argument& argument, const Tensor& tensor, const Argument& model_name,
                       const Tensor& model, ScalarType dtype) {
  check_device(op, argument, tensor, model_name, model);
  if (tensor.scalar_type() != dtype) {
    const std::string whose = dtype == model.scalar_type() ? " (that of " + model_name.words() + ")" : "";
    refuse(op, argument, "dtype " + dtype_name(dtype) + whose, dtype_name(tensor.scalar_type()));
  }
  if (!same_shape(tensor, model)) {
    refuse(op, argument, "shape " + list_text(model.sizes()) + " (that of " + model_name.words() + ")",
           list_text(tensor.sizes()));
  }
}

inline void check_like(const char* op, const Argument& argument, const Tensor& tensor, const Argument& model_name,
                       const Tensor& model) {
  check_like(op, argument, tensor, model_name, model, model.scalar_type());
}

inline void check_length(const char* op, const char* argument, size_t got, size_t layers, const char* what) {
  if (got != layers) refuse(op, argument, text(int64_t(layers)) + " " + what + " (one a layer)", text(int64_t(got)));
}

inline void check_layers(const char* op, const char* argument, const std::vector<Tensor>& layers,
                         const std::vector<ScalarType>& allowed) {
  for (size_t i = 0; i < layers.size(); ++i) {
    check_dtype(op, Argument(argument, i), layers[i], allowed);
    check_device(op, Argument(argument, i), layers[i], Argument(argument, 0), layers[0]);
    if (layers[i].scalar_type() != layers[0].scalar_type()) {
      refuse(op, Argument(argument, i),
             "dtype " + dtype_name(layers[0].scalar_type()) + " (that of " + Argument(argument, 0).words() + ")",
             dtype_name(layers[i].scalar_type()));
    }
  }
}

inline void check_companions(const char* op, const char* argument, const std::vector<Tensor>& tensors, const char* name,
                             const std::vector<Tensor>& layers, ScalarType dtype) {
  check_length(op, argument, tensors.size(), layers.size(), "tensors");
  for (size_t i = 0; i < layers.size(); ++i)
    check_like(op, Argument(argument, i), tensors[i], Argument(name, i), layers[i], dtype);
}
inline void check_companions(const char* op, const char* argument, const std::vector<Tensor>& tensors, const char* name,
                             const std::vector<Tensor>& layers) {
  check_companions(op, argument, tensors, name, layers, layers.empty() ? ScalarType::Float : layers[0].scalar_type());
}

inline void check_contiguous(const char* op, const Argument& argument, const Tensor& tensor) {
  if (!tensor.is_contiguous()) refuse(op, argument, "a contiguous tensor", "strides " + list_text(tensor.strides()));
}

// The position of `value` among the choices of an enumeration, in the order of its members.
template <class Enum>
Enum check_choice(const char* op, const char* argument, const std::string& value,
                  std::initializer_list<const char*> choices) {
  int index = 0;
  std::string all;
  for (const char* choice : choices) {
    if (value == choice) return static_cast<Enum>(index);
    all += (index++ == 0 ? "" : ", ") + std::string(choice);
  }
  refuse(op, argument, "one of " + all, value);
}

// Memory that an argument covers.
struct Span {
  const char* begin;
  const char* end;
  Argument argument;
  bool writes;
};

inline Span span_of(const Argument& argument, const Tensor& tensor, bool writes) {
  int64_t last = 0;
  const auto sizes = tensor.sizes(), strides = tensor.strides();
  for (size_t d = 0; d < sizes.size(); ++d) last += (sizes[d] - 1) * strides[d];
  const char* begin = static_cast<const char*>(tensor.data_ptr());
  const int64_t bytes = tensor.numel() == 0 ? 0 : (last + 1) * static_cast<int64_t>(tensor.element_size());
  return {begin, begin + bytes, argument, writes};
}

inline void add_spans(std::vector<Span>& spans, const char* argument, const std::vector<Tensor>& tensors, bool writes) {
  for (size_t i = 0; i < tensors.size(); ++i) spans.push_back(span_of({argument, i}, tensors[i], writes));
}

// No written tensor shares memory with any other argument. Callers list written tensors first.
inline void check_no_overlap(const char* op, std::vector<Span> spans) {
  std::stable_sort(spans.begin(), spans.end(), [](const Span& a, const Span& b) { return a.begin < b.begin; });
  const Span *any = nullptr, *written = nullptr;  // which reach furthest so far
  for (const Span& span : spans) {
    if (span.begin == span.end) continue;
    if (span.writes && any != nullptr && span.begin < any->end) {
      refuse(op, span.argument, "memory apart from " + any->argument.words(), "overlapping memory");
    }
    if (written != nullptr && span.begin < written->end) {
      refuse(op, written->argument, "memory apart from " + span.argument.words(), "overlapping memory");
    }
    if (any == nullptr || span.end > any->end) any = &span;
    if (span.writes) written = &span;
  }
}

}  // namespace lps
