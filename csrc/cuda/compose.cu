// Launchers of the composition.
#include "compose.cuh"
#include "launches.h"

namespace lps {

void compose(const Gpu& gpu, DType dtype, MaskKind kind, const void* w, const void* mask, const void* w_bar, void* out,
             int64_t count) {
  if (count == 0) return;
  with_type(dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const unsigned blocks = blocks_for(gpu, parts_of<int64_t>(count, kThreads * kPack<T>));
    const size_t of_mask = kind == MaskKind::values ? 16 : kind == MaskKind::boolean ? kPack<T> : 1;
    const bool aligned = aligned_to(16, {w, w_bar, out}) && aligned_to(of_mask, {mask});
    LPS_LAUNCH(gpu, compose_kernel<T>, blocks, kThreads, 0, kind, static_cast<const T*>(w), mask,
               static_cast<const T*>(w_bar), static_cast<T*>(out), count, aligned);
  });
}

void compose_owned(const Gpu& gpu, DType dtype, const void* v, const void* w_bar, const uint8_t* owner, void* out,
                   int64_t count) {
  if (count == 0) return;
  with_type(dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const unsigned blocks = blocks_for(gpu, parts_of<int64_t>(count, kThreads * kPack<T>));
    const bool aligned = aligned_to(16, {v, w_bar, out}) && aligned_to(kPack<T>, {owner});
    LPS_LAUNCH(gpu, compose_owned_kernel<T>, blocks, kThreads, 0, static_cast<const T*>(v),
               static_cast<const T*>(w_bar), owner, static_cast<T*>(out), count, aligned);
  });
}

void task_weight(const Gpu& gpu, DType dtype, const void* w_bar, const uint8_t* owner, const uint8_t* bits,
                 uint8_t task, void* out, int64_t count) {
  if (count == 0) return;
  with_type(dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const unsigned blocks = blocks_for(gpu, parts_of<int64_t>(count, kThreads * kBitPack));
    const bool aligned = aligned_to(16, {w_bar, out}) && aligned_to(kBitPack, {owner});
    LPS_LAUNCH(gpu, task_weight_kernel<T>, blocks, kThreads, 0, static_cast<const T*>(w_bar), owner, bits, task,
               static_cast<T*>(out), count, aligned);
  });
}

}  // namespace lps
