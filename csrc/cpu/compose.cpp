// Drivers of the composition and of bit packing.
#include "units.h"

namespace lps {

void compose(const Cpu& cpu, DType dtype, MaskKind kind, const void* w, const void* mask, const void* w_bar, void* out,
             int64_t count) {
  const Kernels& kernels = cpu.kernels;
  const Parallel& parallel = cpu.parallel;
  const auto kernel = kernels.compose[static_cast<int>(dtype)][static_cast<int>(kind)];
  const bool stream = 3 * count * bytes_of(dtype) > kStreamBytes;
  parallel_ranges(parallel, count,
                  [&](int64_t begin, int64_t end) { kernel(w, mask, w_bar, out, begin, end, stream); });
}

void compose_owned(const Cpu& cpu, DType dtype, const void* v, const void* w_bar, const uint8_t* owner, void* out,
                   int64_t count) {
  const Kernels& kernels = cpu.kernels;
  const Parallel& parallel = cpu.parallel;
  const auto kernel = kernels.compose_owned[static_cast<int>(dtype)];
  const bool stream = 3 * count * bytes_of(dtype) > kStreamBytes;
  parallel_ranges(parallel, count,
                  [&](int64_t begin, int64_t end) { kernel(v, w_bar, owner, out, begin, end, stream); });
}

void task_weight(const Cpu& cpu, DType dtype, const void* w_bar, const uint8_t* owner, const uint8_t* bits,
                 uint8_t task, void* out, int64_t count) {
  const auto kernel = cpu.kernels.task_weight[static_cast<int>(dtype)];
  // From the size on from which compose streams: a network's layers are written one after the other, so the caches hold
  // little of what a call has written when it is read.
  const bool stream = 3 * count * bytes_of(dtype) > kStreamBytes;
  parallel_ranges(cpu.parallel, count,
                  [&](int64_t begin, int64_t end) { kernel(w_bar, owner, bits, task, out, begin, end, stream); });
}

void pack_bits(const Cpu& cpu, const uint8_t* bools, uint8_t* bits, int64_t count) {
  const Kernels& kernels = cpu.kernels;
  const Parallel& parallel = cpu.parallel;
  parallel_ranges(parallel, count, [&](int64_t begin, int64_t end) { kernels.pack(bools, bits, begin, end); });
}

void unpack_bits(const Cpu& cpu, const uint8_t* bits, uint8_t* bools, int64_t count) {
  const Kernels& kernels = cpu.kernels;
  const Parallel& parallel = cpu.parallel;
  parallel_ranges(parallel, count, [&](int64_t begin, int64_t end) { kernels.unpack(bits, bools, begin, end); });
}

}  // namespace lps
