// What the operators share: lists, contiguous tensors and their memory.
#pragma once

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <optional>

#include "checks.h"

namespace lps {

using Tensors = std::vector<Tensor>;
using Ints = std::vector<int64_t>;
using Maybe = std::optional<Tensor>;

inline Tensor dense(const Tensor& tensor) {
  return tensor.is_contiguous() ? tensor : torch::stable::contiguous(tensor);
}
inline Tensors dense(const Tensors& tensors) {
  Tensors out;
  out.reserve(tensors.size());
  for (const Tensor& tensor : tensors) out.push_back(dense(tensor));
  return out;
}
inline int64_t packed_size(int64_t count) { return count / 8 + (count % 8 != 0); }
inline const uint8_t* bytes(const Tensor& tensor) { return static_cast<const uint8_t*>(tensor.data_ptr()); }
inline uint8_t* mutable_bytes(const Tensor& tensor) { return static_cast<uint8_t*>(tensor.data_ptr()); }

}  // namespace lps
