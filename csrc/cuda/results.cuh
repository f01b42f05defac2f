// Where the sums of a matrix product go: bias, residual and ReLU on the way to y, at once or after the parts that the
// depth was cut into are added up.
#pragma once

#include "operands.cuh"

namespace lps {

// y[image, output, position] = finish(sum). An example of a linear layer is an image with one position.
template <class T>
struct Result {
  Device<T>* y;
  const Device<T>* bias;      // null: none
  const Device<T>* residual;  // null: none
  bool relu;
  const int32_t* rows;  // the output of each row of the weight; null: the row itself
  int64_t row_count, outputs, images;
  Planes planes;

  Result(T* to, const Finish<T>& finish, const int32_t* written, int64_t count, int64_t all, int64_t size,
         int64_t positions)
      : y(on_device(to)),
        bias(on_device(finish.bias)),
        residual(on_device(finish.residual)),
        relu(finish.relu),
        rows(written),
        row_count(count),
        outputs(all),
        images(size),
        planes(positions) {}

  __host__ __device__ int64_t positions() const { return images * planes.size; }

  __device__ int64_t output_of(int64_t row) const { return rows == nullptr ? row : rows[row]; }
  __device__ int64_t at(int64_t image, int64_t output, int64_t place) const {
    return (image * outputs + output) * planes.size + place;
  }
  __device__ void put(int64_t at, int64_t output, Compute<T> sum) const {
    if (bias != nullptr) sum += widen(bias[output]);
    if (residual != nullptr) sum += widen(residual[at]);
    narrow(relu && sum < 0 ? 0 : sum, y[at]);
  }
};

// Sums [count, rows, positions] of parts of the depth, for products with too few tiles to fill the device. A part is
// `steps` steps of the depth, the last one possibly less. With a single part, tiles finish their sums themselves.
template <class T>
struct Parts {
  int64_t steps, all_steps;
  int count;
  Compute<T>* sums = nullptr;

  // At least `least` steps per part.
  Parts(const Gpu& gpu, const Result<T>& result, int64_t tiles, int64_t total, int64_t least) : all_steps(total) {
    const int64_t wanted = 2 * int64_t{gpu.processors} / tiles, most = total / least;
    const int64_t parts = wanted < most ? wanted : most;
    steps = parts < 2 ? total : parts_of(total, parts);
    count = parts < 2 ? 1 : static_cast<int>(parts_of(total, steps));
    if (count == 1) return;
    const int64_t size = count * result.row_count * result.positions();
    sums = static_cast<Compute<T>*>(gpu.scratch(size * static_cast<int64_t>(sizeof(Compute<T>))));
  }
  // Steps [begin, end) of this block, whose part is blockIdx.y.
  __device__ int64_t begin() const { return blockIdx.y * steps; }
  __device__ int64_t end() const { return begin() + steps < all_steps ? begin() + steps : all_steps; }
  __device__ Compute<T>& at(const Result<T>& result, int64_t row, int64_t position) const {
    return sums[(blockIdx.y * result.row_count + row) * result.positions() + position];
  }
};

constexpr int kFinishThreads = 256;
constexpr int kFinishBlocks = 4;  // at a time on a multiprocessor, at least: half of its threads or more

template <class T>
__global__ void __launch_bounds__(kFinishThreads, kFinishBlocks)
    add_parts(const Result<T> result, const Parts<T> parts) {
  const int64_t positions = result.positions(), count = result.row_count * positions;
  const int64_t step = int64_t{kFinishThreads} * gridDim.x;
  for (int64_t i = int64_t{kFinishThreads} * blockIdx.x + threadIdx.x; i < count; i += step) {
    Compute<T> sum = parts.sums[i];
#pragma unroll 4
    for (int part = 1; part < parts.count; ++part) sum += parts.sums[part * count + i];
    const int64_t position = i % positions, output = result.output_of(i / positions);
    const int64_t image = result.planes.image(position);
    result.put(result.at(image, output, position - image * result.planes.size), output, sum);
  }
}

// The outputs that have no row: the place of an output among the ascending rows is found by halving.
template <class T>
__global__ void __launch_bounds__(kFinishThreads, kFinishBlocks) finish_absent(const Result<T> result) {
  const int64_t count = result.positions() * result.outputs, step = int64_t{kFinishThreads} * gridDim.x;
  for (int64_t i = int64_t{kFinishThreads} * blockIdx.x + threadIdx.x; i < count; i += step) {
    const int64_t output = i / result.planes.size % result.outputs;
    int64_t begin = 0, end = result.row_count;
    while (begin < end) {
      const int64_t middle = (begin + end) / 2;
      if (result.rows[middle] < output) {
        begin = middle + 1;
      } else {
        end = middle;
      }
    }
    if (begin == result.row_count || result.rows[begin] != output) result.put(i, output, 0);
  }
}

// Blocks for a kernel that strides over `count` elements: as many as are resident at a time at most.
inline unsigned finish_blocks(const Gpu& gpu, int64_t count) {
  const int64_t blocks = parts_of(count, int64_t{kFinishThreads}), most = int64_t{gpu.processors} * 8;
  return static_cast<unsigned>(blocks < most ? blocks : most);
}

}  // namespace lps
