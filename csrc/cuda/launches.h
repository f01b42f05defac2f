// What the launchers share: sizes of grids, tables of layers in device memory, the choice of a kernel by its dtype.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <type_traits>

#include "device.cuh"

namespace lps {

// Blocks for so many parts of work, not many more than the device can hold at a time: the blocks take the parts in
// turn.
inline unsigned blocks_for(const Gpu& gpu, int64_t parts, int64_t held = 8) {
  return static_cast<unsigned>(std::min(parts, held * gpu.processors));
}

inline bool aligned_to(size_t bytes, std::initializer_list<const void*> arrays) {
  return std::all_of(arrays.begin(), arrays.end(),
                     [&](const void* array) { return reinterpret_cast<uintptr_t>(array) % bytes == 0; });
}

// Rows without padding, so that equal tables have equal bytes. They hold no address of scratch memory, which differs
// from call to call.
template <class Row>
const Row* table_of(const Gpu& gpu, const std::vector<Row>& rows) {
  static_assert(std::has_unique_object_representations_v<Row>);
  return static_cast<const Row*>(gpu.table(rows.data(), static_cast<int64_t>(rows.size() * sizeof(Row))));
}

template <class T>
T* scratch_of(const Gpu& gpu, int64_t count) {
  return count == 0 ? nullptr : static_cast<T*>(gpu.scratch(count * static_cast<int64_t>(sizeof(T))));
}

// Calls f with a null pointer to the type that the weights have on the device.
template <class F>
void with_state_type(DType dtype, const F& f) {
  dtype == DType::f64 ? f(static_cast<double*>(nullptr)) : f(static_cast<float*>(nullptr));
}
template <class F>
void with_type(DType dtype, const F& f) {
  if (dtype == DType::f16) return f(static_cast<__half*>(nullptr));
  if (dtype == DType::bf16) return f(static_cast<__nv_bfloat16*>(nullptr));
  with_state_type(dtype, f);
}

}  // namespace lps
