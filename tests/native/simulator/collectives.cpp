#include "collectives.h"

#include <algorithm>

namespace simulator {
namespace {

// The lane that a lane reads, in segments of `width` lanes; one that would lie outside of its segment is itself.
int source_of(Shuffle kind, int lane, int argument, int width) {
  const int begin = lane / width * width;
  if (kind == Shuffle::lane) return begin + (argument & (width - 1));
  if (kind == Shuffle::up) return lane - argument < begin ? lane : lane - argument;
  const int other = kind == Shuffle::down ? lane + argument : lane ^ argument;
  return other >= begin + width ? lane : other;
}

// A lane's argument is the lane that it reads.
void finish_shuffle(const char* what, uint32_t mask, Lane* const (&lanes)[32], Site site) {
  for (Lane* lane : lanes) {
    if (lane == nullptr) continue;
    if ((mask >> lane->argument & 1) == 0) {
      fail(std::string(what) + ": a lane reads lane " + std::to_string(lane->argument) + ", which the mask lacks",
           site);
    }
    lane->result = lanes[lane->argument]->value;
  }
}

void finish_vote(const char*, uint32_t, Lane* const (&lanes)[32], Site) {
  uint32_t ballot = 0;
  for (int i = 0; i < 32; ++i) {
    if (lanes[i] != nullptr && lanes[i]->value != 0) ballot |= 1u << i;
  }
  for (Lane* lane : lanes) {
    if (lane != nullptr) lane->result = ballot;
  }
}

void finish_match(const char*, uint32_t, Lane* const (&lanes)[32], Site) {
  for (Lane* lane : lanes) {
    if (lane == nullptr) continue;
    for (int i = 0; i < 32; ++i) {
      if (lanes[i] != nullptr && lanes[i]->value == lane->value) lane->result |= 1u << i;
    }
  }
}

bool named(const char* what, const char* name) { return std::strcmp(what, name) == 0; }

uint32_t combined(const char* what, uint32_t x, uint32_t y) {
  if (named(what, "__reduce_add_sync")) return x + y;
  if (named(what, "__reduce_min_sync")) return std::min(x, y);
  if (named(what, "__reduce_max_sync")) return std::max(x, y);
  return named(what, "__reduce_or_sync") ? x | y : x & y;
}

void finish_reduce(const char* what, uint32_t, Lane* const (&lanes)[32], Site) {
  const Lane* first = nullptr;
  uint32_t result = 0;
  for (Lane* lane : lanes) {
    if (lane == nullptr) continue;
    const auto value = static_cast<uint32_t>(lane->value);
    result = first == nullptr ? value : combined(what, result, value);
    first = lane;
  }
  for (Lane* lane : lanes) {
    if (lane != nullptr) lane->result = result;
  }
}

unsigned number_in_block() { return (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x; }

}  // namespace

uint64_t shuffle(Shuffle kind, uint32_t mask, uint64_t value, int argument, int width, Site site) {
  static const char* const names[] = {"__shfl_sync", "__shfl_up_sync", "__shfl_down_sync", "__shfl_xor_sync"};
  const int source = source_of(kind, static_cast<int>(number_in_block() % 32), argument, width);
  return meet_warp(names[static_cast<int>(kind)], mask, value, source, finish_shuffle, site);
}
uint32_t vote(const char* what, uint32_t mask, bool predicate, Site site) {
  return static_cast<uint32_t>(meet_warp(what, mask, predicate ? 1 : 0, 0, finish_vote, site));
}
uint32_t match(uint32_t mask, uint64_t value, Site site) {
  return static_cast<uint32_t>(meet_warp("__match_any_sync", mask, value, 0, finish_match, site));
}
uint32_t reduce(const char* what, uint32_t mask, uint32_t value, Site site) {
  return static_cast<uint32_t>(meet_warp(what, mask, value, 0, finish_reduce, site));
}

}  // namespace simulator
