// Kernels of the straight-through step: Adam with the effective weight that the last threshold foretells, the exact
// selection, and corrections where the two differ.
//
// From step to step a threshold hardly moves. So the pass that moves the weights already writes what survives by the
// last one; it counts what lies above the bracket around it and stores the few keys inside, with their places. Once the
// exact threshold is known, only those may have to be set right. Where it lies outside the bracket, or where a layer
// has groups of several weights, all effective weights of the layer are written again.
#pragma once

#include "project.cuh"
#include "resolve.cuh"
#include "step.cuh"

namespace lps {

template <class T>
constexpr T kNan = std::numeric_limits<T>::quiet_NaN();

// Whether the effective weights of a role are right but for the keys that were stored, and above which key they were
// written as survivors.
struct Forecast {
  uint64_t bound;
  int64_t right;
};

// A batch of selections with what the step needs besides.
template <class T>
struct StraightBatch {
  SelectBatch select;
  const AdamRow* rows;  // as many as layers, with the same chunks
  T* thresholds;        // per job: the last threshold and the distance within which the next one is looked for
  Forecast* forecasts;  // per job
  uint16_t* places;     // of the candidates in their chunks
};

// What the step expects of a role: keys above `bound` survive, and all that it may err in lie in [low, high], which is
// empty where low > high. Smaller keys than `floor` do not take part.
template <class Key>
struct Expected {
  Key floor, low, high, bound;
};

// Without a threshold, all that takes part is expected to survive: where the bound on the survivors is not reached,
// that is how it stays.
template <class T>
__device__ __forceinline__ Expected<KeyOf<T>> expect(const SelectJob& job, const T* thresholds) {
  using Key = KeyOf<T>;
  if (job.keep == 0) return {kHighestKey<T>, kHighestKey<T>, 0, kHighestKey<T>};
  if (job.grouped != 0) return {kLowestKey<T>, kHighestKey<T>, 0, 0};  // whatever: it is written again
  const Key floor = static_cast<Key>(job.floor), below = floor - 1;
  const T threshold = thresholds[0], distance = thresholds[1];
  const T low = threshold - distance, high = threshold + distance;
  if (job.keep >= job.g || !(low <= high)) return {floor, kHighestKey<T>, below, below};
  return {floor, max(order_key(low), floor), max(order_key(high), below), max(order_key(threshold), below)};
}

template <class T>
struct StraightShared {
  AdamShared<T> adam;
  Expected<KeyOf<T>> expected[kRoles];
  Tally tally[kRoles];
};

// By thread 0.
template <class T>
__device__ __forceinline__ void stage_straight(const StraightBatch<T>& batch, int chunk, StraightShared<T>* shared) {
  const int layer = layer_of(chunk, batch.select.layer_count, [&](int i) { return batch.rows[i].first_chunk; });
  shared->adam.row = batch.rows[layer];
  for (int role = 0; role < kRoles; ++role) {
    const int job = layer * kRoles + role;
    shared->expected[role] = expect(batch.select.jobs[job], batch.thresholds + 2 * job);
    shared->tally[role] = {};
  }
}

// Weights that a thread takes at a time. In fp64 and where weights learn only one: two, with two steps of Adam each,
// would not fit the registers on every architecture. Lanes side by side still fill whole sectors of memory.
template <class T, bool learning>
constexpr int kStraightPack = learning && sizeof(T) == 8 ? 1 : kStepPack<T>;

// The owner of such a pack.
template <>
struct VectorOf<1> {
  using type = uint8_t;
};

// Weights that learn beside their scores take a step of Adam themselves, with no gradient where they took no part in
// the forward pass. Must come before the effective weights are written, which tell that.
template <class T, int N>
__device__ __forceinline__ void learn_pack(const AdamShared<T>& shared, const PackPlace& place,
                                           const Pack<uint8_t, N>& owner, const Pack<T, N>& grad,
                                           const AdamNumbers<T>& numbers, Pack<T, N>& w_bar) {
  const StepLayer& layer = shared.row.layer;
  const Pack<T, N> effective = load_pack<N>(static_cast<const T*>(layer.effective), place);
  Pack<T, N> mean = load_pack<N>(static_cast<const T*>(layer.weight_exp_avg), place);
  Pack<T, N> square = load_pack<N>(static_cast<const T*>(layer.weight_exp_avg_sq), place);
#pragma unroll
  for (int j = 0; j < N; ++j) {
    if (is_free(owner.at[j]) || !is_kept(owner.at[j])) continue;
    const T gradient = effective.at[j] != 0 ? grad.at[j] : T{0};
    const T step_size = shared.step_size.of_free, inverse_root = shared.inverse_root;
    w_bar.at[j] = w_bar.at[j] - adam_change(gradient, mean.at[j], square.at[j], step_size, inverse_root, numbers);
  }
  store_pack(static_cast<T*>(layer.weight_exp_avg), place, mean);
  store_pack(static_cast<T*>(layer.weight_exp_avg_sq), place, square);
  store_pack(static_cast<T*>(layer.w_bar), place, w_bar);
}

// Reads each array once and writes once: 37 bytes per weight in fp32, 61 where weights learn. The counts of each role
// are those that take part and, from bit 16 on, those above the bracket: of a chunk, both fit.
template <class T, bool learning>
__device__ __forceinline__ void straight_pack(const StraightBatch<T>& batch, int chunk, StraightShared<T>* shared,
                                              const PackPlace& place, Moves moves, const AdamNumbers<T>& numbers,
                                              T share_cost, uint32_t (&counts)[kRoles]) {
  using Key = KeyOf<T>;
  constexpr int N = kStraightPack<T, learning>;
  const StepLayer& layer = shared->adam.row.layer;
  const Pack<uint8_t, N> owner = load_pack<N>(layer.owner, place);
  const Pack<T, N> grad = load_pack<N>(static_cast<const T*>(layer.grad), place);
  Pack<T, N> w_bar = load_pack<N>(static_cast<const T*>(layer.w_bar), place);
  Pack<T, N> v = load_pack<N>(static_cast<const T*>(layer.v), place);
  Pack<T, N> mean = load_pack<N>(static_cast<const T*>(layer.exp_avg), place);
  Pack<T, N> square = load_pack<N>(static_cast<const T*>(layer.exp_avg_sq), place);
#pragma unroll
  for (int j = 0; j < N; ++j) {
    if (!is_moving(owner.at[j], moves)) continue;
    const bool free = is_free(owner.at[j]);
    const T gradient = free ? grad.at[j] : grad.at[j] * w_bar.at[j] + share_cost;
    const T step_size = shared->adam.step_size.at(free), inverse_root = shared->adam.inverse_root;
    v.at[j] = v.at[j] - adam_change(gradient, mean.at[j], square.at[j], step_size, inverse_root, numbers);
  }
  store_pack(static_cast<T*>(layer.exp_avg), place, mean);
  store_pack(static_cast<T*>(layer.exp_avg_sq), place, square);
  store_pack(static_cast<T*>(layer.v), place, v);
  // The scores' gradient was that of the weights before their step.
  if constexpr (learning) learn_pack(shared->adam, place, owner, grad, numbers, w_bar);
  Pack<T, N> effective;
  Key keys[N];
  uint32_t inside[kRoles] = {};
#pragma unroll
  for (int j = 0; j < N; ++j) {
    const bool free = is_free(owner.at[j]);
    const int role = free ? 0 : 1;
    const Expected<Key>& expected = shared->expected[role];
    keys[j] = weight_key<T>(v.at[j], free);
    effective.at[j] = keys[j] > expected.bound ? (free ? v.at[j] : w_bar.at[j]) : T{0};
    if (j >= place.existing) continue;
    const uint32_t count = (keys[j] >= expected.floor ? 1u : 0u) + (keys[j] > expected.high ? 1u << 16 : 0u);
    const uint32_t bit = keys[j] >= expected.low && keys[j] <= expected.high ? 1u << j : 0u;
    counts[0] += free ? count : 0;
    counts[1] += free ? 0 : count;
    inside[0] |= free ? bit : 0;
    inside[1] |= free ? 0 : bit;
    if (keys[j] == kHighestKey<T>) atomicOr(&shared->tally[role].nan, 1u);
  }
  store_pack(static_cast<T*>(layer.effective), place, effective);
#pragma unroll
  for (int role = 0; role < kRoles; ++role) {
    place_candidates<N>(inside[role], role, &shared->tally[role].inside, [&](int j, int64_t at) {
      static_cast<Key*>(batch.select.candidates)[chunk * kChunk + at] = keys[j];
      batch.places[chunk * kChunk + at] = static_cast<uint16_t>((place.first + j) % kChunk);
    });
  }
}

// `learning` is a template parameter so that steps without it keep their registers.
template <class T, bool learning>
__global__ void __launch_bounds__(kThreads, kBlocks)
    straight_step_kernel(StraightBatch<T> batch, Moves moves, AdamScalars scalars, AdamNumbers<T> numbers,
                         T share_cost) {
  LPS_SHARED(StraightShared<T>, shared);
  if (threadIdx.x == 0) stage_step(scalars, &shared->adam);
  for (int chunk = static_cast<int>(blockIdx.x); chunk < batch.select.chunks; chunk += static_cast<int>(gridDim.x)) {
    __syncthreads();  // what is known of the chunk before is no longer read
    if (threadIdx.x == 0) stage_straight(batch, chunk, shared);
    __syncthreads();
    const AdamRow& row = shared->adam.row;
    uint32_t counts[kRoles] = {};
    for_chunk_packs<kStraightPack<T, learning>>(
        chunk - row.first_chunk, row.layer.count, row.aligned != 0, [&](const PackPlace& place) {
          straight_pack<T, learning>(batch, chunk, shared, place, moves, numbers, share_cost, counts);
        });
    for (int role = 0; role < kRoles; ++role) {
      const uint32_t count = sum_warp(counts[role]);
      if (threadIdx.x % 32 != 0) continue;
      atomicAdd(&shared->tally[role].members, count & 0xffff);
      atomicAdd(&shared->tally[role].above, count >> 16);
    }
    __syncthreads();
    if (threadIdx.x < kRoles) batch.select.tallies[chunk * kRoles + threadIdx.x] = shared->tally[threadIdx.x];
  }
}

// The value that has this key.
__device__ __forceinline__ float value_of(uint32_t key) {
  const uint32_t bits = key ^ (key >> 31 != 0 ? 1u << 31 : ~0u);
  float value;
  memcpy(&value, &bits, sizeof(value));
  return value;
}
__device__ __forceinline__ double value_of(uint64_t key) {
  const uint64_t bits = key ^ (key >> 63 != 0 ? uint64_t{1} << 63 : ~uint64_t{0});
  double value;
  memcpy(&value, &bits, sizeof(value));
  return value;
}

// The weakest survivor's score and the distance within which the next step's is looked for: four times the latest move,
// but not less than three quarters of the last distance; an eighth of the score where there was none. A NaN stays one.
template <class T>
__device__ __forceinline__ void write_threshold(T weakest, T* thresholds) {
  const T old = thresholds[0], shrunk = thresholds[1] * T{0.75};
  const T moved = fabs(weakest - old) * 4, first = fabs(weakest) / 8;
  const bool none = old != old || shrunk != shrunk;
  thresholds[0] = weakest;
  thresholds[1] = none ? first : moved < shrunk ? shrunk : moved;
}

template <class T>
__global__ void __launch_bounds__(kSelectThreads, kSelectBlocks) straight_resolve_kernel(StraightBatch<T> batch) {
  LPS_SHARED(SearchShared, shared);
  stage_search(batch.select, shared);
  const SelectJob& job = shared->job;
  const SelectLayer& layer = shared->layer;
  T* thresholds = batch.thresholds + 2 * blockIdx.x;
  const Expected<KeyOf<T>> expected = expect(job, thresholds);
  Resolved resolved{{0, 0, kHighestKey<T>, -1}, false, false};
  bool right = true;
  uint32_t nans = 0;
  if (job.grouped != 0) {
    resolve_groups(batch.select, job, &shared->rank);
    right = job.keep == 0;
  } else if (job.keep >= job.g) {
    resolved.found = {0, 0, job.floor, layer.count};
  } else if (job.keep > 0) {
    const uint32_t count = static_cast<uint32_t>(layer.count), chunks = parts_of<uint32_t>(count, kChunk);
    const WeightSearch<T> search{batch.select, job, layer, &shared->rank, count, chunks};
    resolved = search.resolve(expected.low, expected.high);
    right = resolved.cut_off ? resolved.collected : expected.bound < job.floor;
    for (uint32_t chunk = threadIdx.x; chunk < chunks; chunk += kSelectThreads) nans += search.tally(chunk).nan;
    nans = sum_threads(&shared->rank, nans).total;
  }
  __syncthreads();  // the last threshold has been read
  if (threadIdx.x != 0) return;
  batch.select.found[blockIdx.x] = resolved.found;
  batch.forecasts[blockIdx.x] = {expected.bound, right};
  // NaN is kept before everything, and is the weakest too.
  const bool known = resolved.cut_off && nans == 0;
  write_threshold(known ? value_of(static_cast<KeyOf<T>>(resolved.found.threshold)) : kNan<T>, thresholds);
}

template <class Key>
struct SettleShared {
  WriteShared<Key> write;
  bool rewritten;
  uint32_t candidates[kRoles];
  Key bounds[kRoles];
};

// By thread 0.
template <class T>
__device__ __forceinline__ void stage_settling(const StraightBatch<T>& batch, int chunk,
                                               SettleShared<KeyOf<T>>* shared) {
  stage_results(batch.select, chunk, &shared->write);
  const Forecast* forecasts = batch.forecasts + shared->write.layer.first_job;
  shared->rewritten = forecasts[0].right == 0 || forecasts[1].right == 0;
  for (int role = 0; role < kRoles; ++role) {
    shared->candidates[role] = batch.select.tallies[chunk * kRoles + role].inside;
    shared->bounds[role] = static_cast<KeyOf<T>>(forecasts[role].bound);
  }
}

// Of free coordinates the weight itself survives, of owned ones the shared weight.
template <class T>
__device__ __forceinline__ void rewrite_pack(const WriteShared<KeyOf<T>>& shared, const PackPlace& place) {
  constexpr int N = kPack<T>;
  const SelectLayer& layer = shared.layer;
  const Coordinates<T> read = read_coordinates<T>(layer.source, place);
  const Pack<T, N> w_bar = load_pack<N>(static_cast<const T*>(layer.w_bar), place);
  const uint32_t kept = survivors<T>(shared, read, place);
  Pack<T, N> effective;
#pragma unroll
  for (int j = 0; j < N; ++j) {
    effective.at[j] = (kept >> j & 1) == 0 ? T{0} : is_free(read.owner.at[j]) ? read.x.at[j] : w_bar.at[j];
  }
  store_pack(static_cast<T*>(layer.out), place, effective);
}

// Sets right the candidates of one role whose fate was foretold wrong.
template <class T>
__device__ __forceinline__ void correct_candidates(const StraightBatch<T>& batch, int chunk,
                                                   const SettleShared<KeyOf<T>>& shared, int role) {
  const SelectLayer& layer = shared.write.layer;
  const SlotResult<KeyOf<T>>& result = shared.write.slots[role];
  const T* survivor = static_cast<const T*>(role == 0 ? layer.source.x : layer.w_bar);
  for (uint32_t i = threadIdx.x; i < shared.candidates[role]; i += kThreads) {
    const int64_t at = chunk * kChunk + (role == 0 ? i : kChunk - 1 - i);
    const int64_t coordinate = (chunk - layer.first_chunk) * kChunk + batch.places[at];
    const KeyOf<T> key = static_cast<const KeyOf<T>*>(batch.select.candidates)[at];
    const bool survives = key > result.threshold || (key == result.threshold && coordinate <= result.last_tie);
    if (survives == (key > shared.bounds[role])) continue;
    static_cast<T*>(layer.out)[coordinate] = survives ? survivor[coordinate] : T{0};
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads, kBlocks) straight_settle_kernel(StraightBatch<T> batch) {
  LPS_SHARED(SettleShared<KeyOf<T>>, shared);
  for (int chunk = static_cast<int>(blockIdx.x); chunk < batch.select.chunks; chunk += static_cast<int>(gridDim.x)) {
    __syncthreads();  // what is known of the chunk before is no longer read
    if (threadIdx.x == 0) stage_settling(batch, chunk, shared);
    __syncthreads();
    const SelectLayer& layer = shared->write.layer;
    if (shared->rewritten) {
      for_chunk_packs<kPack<T>>(chunk - layer.first_chunk, layer.count, layer.aligned != 0,
                                [&](const PackPlace& place) { rewrite_pack<T>(shared->write, place); });
    } else {
      for (int role = 0; role < kRoles; ++role) correct_candidates(batch, chunk, *shared, role);
    }
  }
}

}  // namespace lps
