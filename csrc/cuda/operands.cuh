// What matrix products read: a factor is a matrix of rows (examples, output positions or outputs) by depth.
//
// A factor tells where a row and a place of the depth lie, and the element where they meet; loops keep whichever of the
// two stays the same. Places behind the end of the depth read as zero; rows have to be there. Places of the depth are
// below 2^31, as their indices are.
//
// kAlongDepth: neighbours in memory are neighbours in depth, so the lanes of a warp run that way, and a loop goes on
// from row to row. Otherwise the lanes run along the rows, and a loop along the depth.
#pragma once

#include "mma.cuh"

namespace lps {

template <class T>
__host__ __device__ const Device<T>* on_device(const T* pointer) {
  return reinterpret_cast<const Device<T>*>(pointer);
}
template <class T>
__host__ __device__ Device<T>* on_device(T* pointer) {
  return reinterpret_cast<Device<T>*>(pointer);
}

template <class T>
__device__ __forceinline__ Device<T> zero() {
  Device<T> result;
  memset(static_cast<void*>(&result), 0, sizeof(result));
  return result;
}

// x[examples, inputs] at `columns`, or at all of them where that is null.
template <class T>
struct Examples {
  static constexpr bool kAlongDepth = true;
  using Row = const Device<T>*;
  using Column = int;  // -1: behind the end

  const Device<T>* x;
  int64_t inputs;
  const int32_t* columns;
  int depth;

  __device__ Row row(int64_t example) const { return x + example * inputs; }
  __device__ Row after(Row row, int count) const { return row + count * inputs; }
  __device__ Column column(int k) const { return k >= depth ? -1 : columns == nullptr ? k : columns[k]; }
  __device__ Device<T> at(Row row, Column column) const { return column < 0 ? zero<T>() : row[column]; }
};

// Division of numbers below 2^31 by one that stays the same, as a multiplication and a shift.
class Divisor {
 public:
  Divisor() = default;
  explicit Divisor(int64_t by) : by_(static_cast<uint32_t>(by)) {
    while ((int64_t{1} << shift_) < by) ++shift_;
    multiplier_ = static_cast<uint32_t>((((uint64_t{1} << shift_) - by_) << 32) / by_ + 1);
  }
  __device__ __forceinline__ uint32_t quotient(uint32_t number) const {
    return (__umulhi(number, multiplier_) + number) >> shift_;
  }
  __device__ __forceinline__ uint32_t by() const { return by_; }

 private:
  uint32_t by_ = 1, multiplier_ = 1, shift_ = 0;
};

// A position of all images as an image and a place in it. Division by multiplication again, and without the calls and
// registers that integers of 64 bits would take: below 2^52 the quotient is off by one at most.
struct Planes {
  int64_t size;
  double inverse;
  explicit Planes(int64_t positions) : size(positions), inverse(1.0 / static_cast<double>(positions)) {}

  __device__ __forceinline__ int64_t image(int64_t position) const {
    const int64_t guess = static_cast<int64_t>(static_cast<double>(position) * inverse);
    const int64_t rest = position - guess * size;
    return rest < 0 ? guess - 1 : rest >= size ? guess + 1 : guess;
  }
};

// What a convolution's kernel meets: output positions of all images by channel and tap, at `columns` or at all.
template <class T>
struct Patches {
  static constexpr bool kAlongDepth = false;
  static constexpr int kGone = -(1 << 30);  // down from any row: outside
  struct Row {
    int64_t origin;  // of the kernel's first tap in the first channel; may lie in the padding
    int top, left;
  };
  struct Column {
    int64_t offset;
    int down, right;
  };

  const Device<T>* x;
  int depth;
  Planes planes;
  const int32_t* columns;
  int64_t image_size, channel_size;
  int height, width, stride_height, stride_width, padding_height, padding_width;
  int dilation_height, dilation_width;
  Divisor out_width, taps, kernel_width;

  Patches(const T* from, const ConvShape& s, const int32_t* read, int64_t count)
      : x(on_device(from)),
        depth(static_cast<int>(count)),
        planes(s.out_height * s.out_width),
        columns(read),
        image_size(s.channels * s.height * s.width),
        channel_size(s.height * s.width),
        height(static_cast<int>(s.height)),
        width(static_cast<int>(s.width)),
        stride_height(static_cast<int>(s.stride_height)),
        stride_width(static_cast<int>(s.stride_width)),
        padding_height(static_cast<int>(s.padding_height)),
        padding_width(static_cast<int>(s.padding_width)),
        dilation_height(static_cast<int>(s.dilation_height)),
        dilation_width(static_cast<int>(s.dilation_width)),
        out_width(s.out_width),
        taps(s.kernel_height * s.kernel_width),
        kernel_width(s.kernel_width) {}

  __device__ Row row(int64_t position) const {
    const int64_t image = planes.image(position);
    const uint32_t place = static_cast<uint32_t>(position - image * planes.size), line = out_width.quotient(place);
    const int top = static_cast<int>(line) * stride_height - padding_height;
    const int left = static_cast<int>(place - line * out_width.by()) * stride_width - padding_width;
    return {image * image_size + static_cast<int64_t>(top) * width + left, top, left};
  }
  __device__ Column column(int k) const {
    const int some = k < depth ? k : depth - 1;
    const uint32_t all = static_cast<uint32_t>(columns == nullptr ? some : columns[some]);
    const uint32_t channel = taps.quotient(all), tap = all - channel * taps.by();
    const uint32_t line = kernel_width.quotient(tap);
    const int down = static_cast<int>(line) * dilation_height;
    const int right = static_cast<int>(tap - line * kernel_width.by()) * dilation_width;
    return {channel * channel_size + static_cast<int64_t>(down) * width + right, k < depth ? down : kGone, right};
  }
  __device__ Device<T> at(const Row& row, const Column& column) const {
    const bool inside = static_cast<unsigned>(row.top + column.down) < static_cast<unsigned>(height) &&
                        static_cast<unsigned>(row.left + column.right) < static_cast<unsigned>(width);
    return inside ? x[row.origin + column.offset] : zero<T>();
  }
};

// Packed weights: `size` outputs side by side, place by place of the depth. Behind the last output a linear layer's
// panel of 16 is filled up; a convolution's panel of 6 has only as many as there are.
template <class T, int size>
struct Panels {
  static constexpr bool kAlongDepth = false;
  static constexpr bool kFilled = size == kPanel;
  struct Row {
    const Device<T>* begin;
    int step;
  };
  using Column = int;

  const Device<T>* weight;
  int64_t rows;
  int depth;

  __device__ Row row(int64_t r) const {
    const int64_t first = int64_t{static_cast<uint32_t>(r) / size} * size, left = rows - first;
    return {weight + first * depth + (r - first), left < size ? static_cast<int>(left) : size};
  }
  __device__ Column column(int k) const { return k; }
  __device__ Device<T> at(const Row& row, Column k) const {
    return k < depth ? row.begin[int64_t{k} * (kFilled ? size : row.step)] : zero<T>();
  }
};

// w_bar[outputs, inputs] where the task owns a weight or its bit is set, else zeros.
template <class T>
struct MaskedWeights {
  static constexpr bool kAlongDepth = true;
  using Row = int64_t;  // where it begins
  using Column = int;

  const Device<T>* w_bar;
  const uint8_t* owner;
  const uint8_t* bits;
  uint8_t task;
  int64_t inputs;

  __device__ Row row(int64_t output) const { return output * inputs; }
  __device__ Row after(Row row, int count) const { return row + count * inputs; }
  __device__ Column column(int k) const { return k; }
  __device__ Device<T> at(Row row, Column k) const {
    const int64_t i = row + min(static_cast<int64_t>(k), inputs - 1);
    const Device<T> value = w_bar[i];
    const uint8_t of = owner[i], eight = bits[i / 8];
    const bool kept = (of & kTaskBits) == task || (eight >> (i % 8) & 1) != 0;
    return k < inputs && kept ? value : zero<T>();
  }
};

}  // namespace lps
