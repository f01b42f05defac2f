// What the operators share: lists, contiguous tensors and their memory, masks of tasks.
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

// A packed mask, its dtype checked already.
inline void check_bits(const char* op, const char* argument, const Tensor& bits, int64_t weights) {
  if (bits.dim() == 1 && bits.numel() == packed_size(weights)) return;
  refuse(op, argument, "shape [" + text(packed_size(weights)) + "] (one bit for each of " + text(weights) + " weights)",
         list_text(bits.sizes()));
}

// What says which weights a task runs with.
inline void check_task(const char* op, const Tensor& w_bar, const Tensor& owner, const Tensor& bits, int64_t task) {
  check_like(op, "owner", owner, "w_bar", w_bar, ScalarType::Byte);
  check_device(op, "bits", bits, "w_bar", w_bar);
  check_dtype(op, "bits", bits, {ScalarType::Byte});
  check_bits(op, "bits", bits, w_bar.numel());
  if (task < 1 || task > kMaxTasks) refuse(op, "task", "1 to " + text(int64_t{kMaxTasks}), text(task));
}

}  // namespace lps
