// Kernels of the projection family, for any instruction set: score terms, keys, selection by threshold, writing.
#pragma once

#include <algorithm>

#include "blocks.h"

namespace lps {
namespace {

// A block of the source: x, or s = x + dual with the dual recovered from centre and the kept bits (DESIGN: free
// coordinates have kept ? 0 : -centre, owned ones kept - centre).
template <class Isa, class S, bool with_dual, class N>
inline auto read_source(const Source& source, int64_t i, N n) {
  using T = Compute<S>;
  auto x = load<Isa>(static_cast<const S*>(source.x) + i, n);
  if constexpr (with_dual) {
    const auto centre = load<Isa>(static_cast<const S*>(source.centre) + i, n);
    const auto free = free_lanes<Isa, T>(source.owner + i, n);
    const auto kept = Isa::template mask<T>(kept_bits<Isa>(source.owner + i, n));
    const auto zero = Isa::template set<T>(0), one = Isa::template set<T>(1);
    const auto of_free = Isa::select(kept, zero, Isa::negate(centre));
    const auto of_owned = Isa::sub(Isa::select(kept, one, zero), centre);
    x = Isa::add(x, Isa::select(free, of_free, of_owned));
  }
  return x;
}

template <class Isa, Score score, class B>
inline auto keys_of(B x) {
  if constexpr (score == Score::l2) {
    return Isa::magnitude_keys(x);
  } else {
    return Isa::value_keys(x);
  }
}

template <class Isa, class S, bool with_dual, Score score, class N>
inline auto source_keys(const Source& source, int64_t i, N n) {
  return keys_of<Isa, score>(read_source<Isa, S, with_dual>(source, i, n));
}

// Turns the run-time description of a source into compile-time constants, once a range.
template <bool value>
using Bool = std::integral_constant<bool, value>;
template <Score value>
using ScoreIs = std::integral_constant<Score, value>;
template <class F>
inline void specialise(const Source& source, Region region, Score score, F&& f) {
  const auto with_region = [&](auto with_dual, auto score_is) {
    if (region == Region::all) {
      f(with_dual, score_is, RegionIs<Region::all>{});
    } else if (region == Region::free) {
      f(with_dual, score_is, RegionIs<Region::free>{});
    } else {
      f(with_dual, score_is, RegionIs<Region::owned>{});
    }
  };
  const auto with_score = [&](auto with_dual) {
    score == Score::l2 ? with_region(with_dual, ScoreIs<Score::l2>{}) : with_region(with_dual, ScoreIs<Score::half>{});
  };
  source.centre != nullptr ? with_score(Bool<true>{}) : with_score(Bool<false>{});
}

template <class Isa, class S, class Key>
Band collect(const Source& source, Region region, Score score, int64_t begin, int64_t end, Key low, Key high,
             Key* candidates, int64_t room) {
  Band band{0, 0, 0};
  const auto below = Isa::set_keys(static_cast<Key>(low - 1)), top = Isa::set_keys(high);
  const auto outside = Isa::set_keys(kOutside<Key>);
  specialise(source, region, score, [&](auto with_dual, auto score_is, auto region_is) {
    auto above = Isa::set_keys(Key{0});  // one count per lane
    for_blocks(begin, end, [&](int64_t i, auto n) {
      auto keys = source_keys<Isa, S, with_dual.value, score_is.value>(source, i, n);
      if constexpr (region_is.value != Region::all || !std::is_same_v<decltype(n), Full>) {
        const uint8_t inside = region_bits<Isa, region_is.value>(source.owner, i, n);
        keys = Isa::select_keys(inside, keys, outside);
        band.region += Isa::count(inside);
      } else {
        band.region += kLanes;
      }
      above = Isa::count_greater(above, keys, top);
      const uint8_t within = Isa::greater(keys, below) & static_cast<uint8_t>(~Isa::greater(keys, top));
      if (candidates != nullptr) Isa::compress(candidates + std::min(band.inside, room), keys, within);
      band.inside += Isa::count(within);
    });
    band.above = Isa::sum_counts(above);
  });
  return band;
}

template <class Isa, class Key>
Band narrow(const Key* keys, int64_t count, Key low, Key high, Key* inside) {
  const auto below = Isa::set_keys(static_cast<Key>(low - 1)), top = Isa::set_keys(high);
  auto above = Isa::set_keys(Key{0});
  Band band{count, 0, 0};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    const auto block = Isa::load_keys(keys + i);
    above = Isa::count_greater(above, block, top);
    const uint8_t within = Isa::greater(block, below) & static_cast<uint8_t>(~Isa::greater(block, top));
    Isa::compress(inside + band.inside, block, within);
    band.inside += Isa::count(within);
  }
  band.above = Isa::sum_counts(above);
  for (; i < count; ++i) {
    band.above += keys[i] > high;
    if (keys[i] >= low && keys[i] <= high) inside[band.inside++] = keys[i];
  }
  return band;
}

template <class Isa, class Key>
int64_t count_at_least(const Key* keys, int64_t count, Key bound) {
  const auto below = Isa::set_keys(static_cast<Key>(bound - 1));
  auto found = Isa::set_keys(Key{0});
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) found = Isa::count_greater(found, Isa::load_keys(keys + i), below);
  int64_t total = Isa::sum_counts(found);
  for (; i < count; ++i) total += keys[i] >= bound;
  return total;
}

// The bits of the lanes above the threshold. Ties count up to and including index last_tie: in whole blocks before it,
// in a part of its own block.
template <class Isa, class Key, class K>
inline uint8_t survivors(K keys, K bound, K below, int64_t i, int64_t last_tie) {
  if (i + kLanes <= last_tie) return Isa::greater(keys, below);
  uint8_t kept = Isa::greater(keys, bound);
  if (i <= last_tie) kept |= Isa::greater(keys, below) & static_cast<uint8_t>((2u << (last_tie - i)) - 1);
  return kept;
}

template <class Isa, class S, class Key>
void threshold_bits(const Source& source, Region region, Score score, int64_t begin, int64_t end, Key threshold,
                    int64_t last_tie, uint8_t* bits) {
  const auto bound = Isa::set_keys(threshold), below = Isa::set_keys(static_cast<Key>(threshold - 1));
  specialise(source, region, score, [&](auto with_dual, auto score_is, auto region_is) {
    for_blocks(begin, end, [&](int64_t i, auto n) {
      const auto keys = source_keys<Isa, S, with_dual.value, score_is.value>(source, i, n);
      const uint8_t kept = survivors<Isa, Key>(keys, bound, below, i, last_tie);
      bits[(i - begin) / kLanes] = kept & region_bits<Isa, region_is.value>(source.owner, i, n);
    });
  });
}

template <class Isa, class S, class Key>
void threshold_values(const Source& source, Region region, Score score, int64_t begin, int64_t end, Key threshold,
                      int64_t last_tie, uint8_t* bits, void* out, bool stream) {
  const auto bound = Isa::set_keys(threshold), below = Isa::set_keys(static_cast<Key>(threshold - 1));
  const S* x = static_cast<const S*>(source.x);
  S* to = static_cast<S*>(out);
  const auto write = [&](auto streaming) {
    specialise(source, region, score, [&](auto, auto score_is, auto region_is) {
      for_blocks(begin, end, [&](int64_t i, auto n) {
        const auto values = load<Isa>(x + i, n);
        const auto keys = keys_of<Isa, score_is.value>(values);
        const uint8_t kept = survivors<Isa, Key>(keys, bound, below, i, last_tie) &
                             region_bits<Isa, region_is.value>(source.owner, i, n);
        bits[(i - begin) / kLanes] = kept;
        put<Isa, streaming.value>(to + i, Isa::zero_unless(Isa::template mask<Compute<S>>(kept), values), n);
      });
    });
    if constexpr (streaming.value) Isa::stream_end();
  };
  if constexpr (std::is_floating_point_v<S>) {
    if (stream && aligned32(to)) return write(Bool<true>{});
  }
  write(Bool<false>{});
}

// The term of each lane where it lies in the region: x - 1/2 in fp64, or x^2 in the dtype of computation.
template <class Isa, class S, bool with_dual, Score score, Region region, class N>
inline auto term(const Source& source, int64_t i, N n) {
  using T = std::conditional_t<score == Score::half, double, Compute<S>>;
  const auto x = read_source<Isa, S, with_dual>(source, i, n);
  auto value = Isa::template set<T>(0);
  if constexpr (score == Score::half) {
    value = Isa::sub(Isa::to_double(x), Isa::template set<double>(0.5));
  } else {
    value = Isa::mul(x, x);
  }
  if constexpr (region != Region::all || !std::is_same_v<N, Full>) {
    value = Isa::zero_unless(Isa::template mask<T>(region_bits<Isa, region>(source.owner, i, n)), value);
  }
  return value;
}

template <class Isa, class S>
void column_sums(const Source& source, Region region, Score score, int64_t row_begin, int64_t row_end, int64_t columns,
                 int64_t begin, int64_t end, double* sums) {
  specialise(source, region, score, [&](auto with_dual, auto score_is, auto region_is) {
    const auto term_at = [&](int64_t i, auto n) {
      return term<Isa, S, with_dual.value, score_is.value, region_is.value>(source, i, n);
    };
    const auto add_to = [&](double* sum, auto terms, auto n) {
      store<Isa>(sum, Isa::add(load<Isa>(sum, n), Isa::to_double(terms)), n);
    };
    const auto add_rows = [&](int64_t row, auto rows) {
      int64_t c = begin;
      for (; c + 2 * kLanes <= end; c += 2 * kLanes) {  // two blocks of fp32 are a whole cache line
        const int64_t i = row * columns + c;
        auto left = term_at(i, Full{}), right = term_at(i + kLanes, Full{});
        for (int r = 1; r < rows.value; ++r) {
          left = Isa::add(left, term_at(i + r * columns, Full{}));
          right = Isa::add(right, term_at(i + r * columns + kLanes, Full{}));
        }
        add_to(sums + c, left, Full{});
        add_to(sums + c + kLanes, right, Full{});
      }
      for_blocks(c, end, [&](int64_t rest, auto n) {
        auto terms = term_at(row * columns + rest, n);
        for (int r = 1; r < rows.value; ++r) terms = Isa::add(terms, term_at((row + r) * columns + rest, n));
        add_to(sums + rest, terms, n);
      });
    };
    int64_t row = row_begin;
    for (; row + kTermBlocks <= row_end; row += kTermBlocks) add_rows(row, std::integral_constant<int, kTermBlocks>{});
    for (; row < row_end; ++row) add_rows(row, std::integral_constant<int, 1>{});
  });
}

template <class Isa, class S>
double run_sum(const Source& source, Region region, Score score, int64_t begin, int64_t end) {
  // Prefetchers of the processor stop at the end of a page of 4 KiB; asking 8 KiB ahead carries the stream over it.
  constexpr int64_t step = kTermBlocks * kLanes, bytes = step * sizeof(S), ahead = 8192, line = 64;
  double total = 0;
  specialise(source, region, score, [&](auto with_dual, auto score_is, auto region_is) {
    const auto term_at = [&](int64_t i, auto n) {
      return term<Isa, S, with_dual.value, score_is.value, region_is.value>(source, i, n);
    };
    auto sum = Isa::template set<double>(0);
    int64_t i = begin;
    for (; i + step <= end; i += step) {
      const char* next = static_cast<const char*>(source.x) + i * static_cast<int64_t>(sizeof(S)) + ahead;
      for (int64_t byte = 0; byte < bytes; byte += line) __builtin_prefetch(next + byte);
      auto terms = term_at(i, Full{});
      for (int block = 1; block < kTermBlocks; ++block) terms = Isa::add(terms, term_at(i + block * kLanes, Full{}));
      sum = Isa::add(sum, Isa::to_double(terms));
    }
    for_blocks(i, end, [&](int64_t j, auto n) { sum = Isa::add(sum, Isa::to_double(term_at(j, n))); });
    double lanes[kLanes];
    store<Isa>(lanes, sum, Full{});
    for (double lane : lanes) total += lane;
  });
  return total;
}

template <class Isa, class S>
void widen_values(const Source& source, int64_t begin, int64_t end, double* out) {
  for_blocks(begin, end, [&](int64_t i, auto n) {
    store<Isa>(out + i, Isa::to_double(load<Isa>(static_cast<const S*>(source.x) + i, n)), n);
  });
}

// out = bit ? x : 0, or bit ? 1 : 0
template <class Isa, class S, bool ones, bool streaming>
void keep_range(const S* x, const uint8_t* bits, S* out, int64_t begin, int64_t end) {
  const auto one = Isa::template set<Compute<S>>(1);
  for_blocks(begin, end, [&](int64_t i, auto n) {
    const auto kept = Isa::template mask<Compute<S>>(bits[(i - begin) / kLanes]);
    if constexpr (ones) {
      put<Isa, streaming>(out + i, Isa::zero_unless(kept, one), n);
    } else {
      put<Isa, streaming>(out + i, Isa::zero_unless(kept, load<Isa>(x + i, n)), n);
    }
  });
  if constexpr (streaming) Isa::stream_end();
}

template <class Isa, class S, bool ones>
void keep_kernel(const void* x, const uint8_t* bits, void* out, int64_t begin, int64_t end, bool stream) {
  const S* from = static_cast<const S*>(x);
  S* to = static_cast<S*>(out);
  if constexpr (std::is_floating_point_v<S>) {
    if (stream && aligned32(to)) return keep_range<Isa, S, ones, true>(from, bits, to, begin, end);
  }
  keep_range<Isa, S, ones, false>(from, bits, to, begin, end);
}

template <class Isa>
void region_bits_kernel(const uint8_t* owner, Region region, int64_t begin, int64_t end, uint8_t* bits) {
  const Source source{nullptr, nullptr, owner};
  specialise(source, region, Score::l2, [&](auto, auto, auto region_is) {
    for_blocks(begin, end,
               [&](int64_t i, auto n) { bits[(i - begin) / kLanes] = region_bits<Isa, region_is.value>(owner, i, n); });
  });
}

// Sets the kept bits of a block's owner bytes.
template <class Isa>
inline void write_kept(uint8_t* owner, uint8_t kept, Full) {
  Isa::write_kept(owner, kept);
}
template <class Isa>
inline void write_kept(uint8_t* owner, uint8_t kept, Part part) {
  uint8_t room[kLanes] = {};
  std::memcpy(room, owner, static_cast<size_t>(part.count));
  Isa::write_kept(room, kept);
  std::memcpy(owner, room, static_cast<size_t>(part.count));
}

template <class Isa, class S>
void admm_write(const void* v, void* centre, uint8_t* owner, bool fresh, const uint8_t* bits, int64_t begin,
                int64_t end) {
  if (centre == nullptr) {
    for_blocks(begin, end, [&](int64_t i, auto n) { write_kept<Isa>(owner + i, bits[(i - begin) / kLanes], n); });
    return;
  }
  const Source source{v, fresh ? nullptr : centre, owner};
  specialise(source, Region::all, Score::l2, [&](auto with_dual, auto, auto) {
    for_blocks(begin, end, [&](int64_t i, auto n) {
      const auto s = read_source<Isa, S, with_dual.value>(source, i, n);
      const uint8_t kept_here = bits[(i - begin) / kLanes];
      const auto free = free_lanes<Isa, S>(owner + i, n);
      const auto kept = Isa::template mask<S>(kept_here);
      const auto of_free = Isa::select(kept, s, Isa::negate(s));
      const auto shared = Isa::zero_unless(kept, Isa::template set<S>(1));
      const auto of_owned = Isa::sub(shared, Isa::sub(s, shared));
      store<Isa>(static_cast<S*>(centre) + i, Isa::select(free, of_free, of_owned), n);
      write_kept<Isa>(owner + i, kept_here, n);
    });
  });
}

template <class Isa, class S>
void fill_select(Kernels& table, DType dtype) {
  const int row = static_cast<int>(dtype);
  using Key = KeyOf<Compute<S>>;
  const SelectKernels<Key> select{collect<Isa, S, Key>, narrow<Isa, Key>, count_at_least<Isa, Key>,
                                  threshold_bits<Isa, S, Key>, threshold_values<Isa, S, Key>};
  if constexpr (sizeof(Key) == 4) {
    table.select32[row] = select;
  } else {
    table.select64 = select;
  }
  table.column_sums[row] = column_sums<Isa, S>;
  table.run_sum[row] = run_sum<Isa, S>;
  table.widen[row] = widen_values<Isa, S>;
  table.keep[row][static_cast<int>(Output::values)] = keep_kernel<Isa, S, false>;
  table.keep[row][static_cast<int>(Output::mask)] = keep_kernel<Isa, S, true>;
  if constexpr (std::is_floating_point_v<S>) table.admm_write[row] = admm_write<Isa, S>;
}

template <class Isa>
void fill_select(Kernels& table) {
  fill_select<Isa, float>(table, DType::f32);
  fill_select<Isa, double>(table, DType::f64);
  fill_select<Isa, bf16>(table, DType::bf16);
  fill_select<Isa, f16>(table, DType::f16);
  table.region_bits = region_bits_kernel<Isa>;
}

}  // namespace
}  // namespace lps
