// Exact top-k for a batch of layers of unequal size.
//
// A sample of each layer brackets the key of its k-th best coordinate; one pass counts what lies above the bracket and
// collects the few keys inside it; bisection on those finds the exact key, and the unit that holds the last tie its
// index. A bracket that misses, or holds more keys than there is room for, is widened to everything and the pass
// repeated, so the result is always exact, and it is the same for any sample and any number of threads.
#include "select.h"

#include <cmath>
#include <memory>

#include "lanes_scalar.h"

namespace lps {

template <class Key>
Key floor_key(const Selection& selection) {
  using T = std::conditional_t<sizeof(Key) == 4, float, double>;
  return selection.above ? value_key(static_cast<T>(*selection.above)) + 1 : kLowestKey<Key>;
}
template int32_t floor_key(const Selection&);
template int64_t floor_key(const Selection&);

namespace {

constexpr int64_t kSmallLayer = 8192;  // below this, sampling costs more than collecting every key

constexpr int64_t kCandidateSample = 2048;

template <class Key>
struct Search {
  Selection* selection;
  Key floor;         // keys below it take no part
  Key low = 0;       // the bracket
  Key high = 0;      //
  int64_t room = 0;  // candidates per unit
  bool done = false;
  bool short_of_groups = false;
  int64_t region = 0;

  int64_t count() const { return selection->view.g; }
  // A bracket of one key needs no list of the keys inside it.
  bool collects() const { return low < high; }

  void bracket_everything() {
    low = floor;
    high = kHighestKey<Key>;
    room = kUnit;
  }
  void finish(Key threshold, int64_t last_tie) {
    selection->threshold = threshold;
    selection->last_tie = last_tie;
    done = true;
  }
};

// The largest bound in [low, high] that at least `wanted` keys reach, by bisection; low where there is none.
template <class Key, class Count>
Key bisect(Key low, Key high, int64_t wanted, Count&& count_at_least) {
  using Unsigned = std::make_unsigned_t<Key>;
  while (low < high) {
    const Unsigned span = static_cast<Unsigned>(high) - static_cast<Unsigned>(low);
    const Key middle = static_cast<Key>(static_cast<Unsigned>(low) + span / 2 + span % 2);
    if (count_at_least(middle) >= wanted) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

// Narrows [low, high] to where a `share` of all coordinates should lie above, from the keys of a sample of `drawn` of
// them (of which those outside the region have no key). Five deviations, as neighbours may be alike.
template <class Key>
void bracket(const SelectKernels<Key>& kernels, const Key* sample, int64_t keys, int64_t drawn, double share, Key& low,
             Key& high) {
  const double rank = share * static_cast<double>(drawn);
  const double slack = 5 * std::sqrt(std::max(rank * (1 - share), 1.0)) + 8;
  const int64_t few = static_cast<int64_t>(rank - slack), many = static_cast<int64_t>(rank + slack);
  const auto reach = [&](Key bound) { return kernels.count_at_least(sample, keys, bound); };
  if (many <= keys) low = bisect(low, high, many, reach);
  if (few >= 1) high = bisect(low, high, few, reach);
}

// Scattered blocks of eight coordinates; a fixed sequence, so that every run does the same.
template <class Key>
void bracket_by_sample(const SelectKernels<Key>& kernels, Search<Key>& search) {
  const Selection& selection = *search.selection;
  const int64_t count = search.count();
  search.bracket_everything();
  if (count <= kSmallLayer) return;
  const int64_t blocks = std::clamp<int64_t>(count / 256, 128, 512);
  const int64_t stride = count / blocks;
  std::vector<Key> sample(static_cast<size_t>(blocks * kLanes + kLanes));
  int64_t sampled = 0;
  uint64_t random = 0x9e3779b97f4a7c15ull;
  for (int64_t block = 0; block < blocks; ++block) {
    random = random * 6364136223846793005ull + 1442695040888963407ull;
    const int64_t jitter = static_cast<int64_t>((random >> 33) % static_cast<uint64_t>(stride - kLanes + 1));
    const int64_t begin = block * stride + jitter;
    sampled += kernels
                   .collect(selection.source, selection.region, selection.score, begin, begin + kLanes, search.low,
                            search.high, sample.data() + sampled, kLanes)
                   .inside;
  }
  bracket(kernels, sample.data(), sampled, blocks * kLanes,
          static_cast<double>(selection.keep) / static_cast<double>(count), search.low, search.high);
  search.room = kBracketRoom;
}

// Counts and collects over all layers that are still searched.
template <class Key>
void collect_chunks(const SelectKernels<Key>& kernels, const Parallel& parallel, std::vector<Search<Key>>& searches,
                    std::vector<Chunk<Key>>& chunks, std::unique_ptr<Key[]>& room) {
  chunks.clear();
  int64_t candidates = 0;
  for (size_t i = 0; i < searches.size(); ++i) {
    if (searches[i].done) continue;
    for (int64_t begin = 0; begin < searches[i].count(); begin += kUnit) {
      const int64_t end = std::min(begin + kUnit, searches[i].count());
      chunks.push_back({i, begin, end, nullptr, {0, 0, 0}});
      if (searches[i].collects()) candidates += std::min(end - begin, searches[i].room) + kLanes;
    }
  }
  room.reset(new Key[static_cast<size_t>(candidates)]);
  Key* next = room.get();
  for (Chunk<Key>& chunk : chunks) {
    if (!searches[chunk.search].collects()) continue;
    chunk.candidates = next;
    next += std::min(chunk.end - chunk.begin, searches[chunk.search].room) + kLanes;
  }
  parallel_each(parallel, chunks, [&](Chunk<Key>& chunk) {
    const Search<Key>& search = searches[chunk.search];
    const Selection& selection = *search.selection;
    chunk.band = kernels.collect(selection.source, selection.region, selection.score, chunk.begin, chunk.end,
                                 search.low, search.high, chunk.candidates, search.room);
  });
}

// The index of tie number `wanted` (from 1): the unit that holds it is known from the candidates, the rest is a scan.
template <class Key>
int64_t find_last_tie(const SelectKernels<Key>& kernels, const Search<Key>& search, const Chunk<Key>* first,
                      const Chunk<Key>* last, Key threshold, int64_t wanted) {
  const Selection& selection = *search.selection;
  const auto ties_in = [&](const Chunk<Key>& chunk) {
    if (!search.collects()) return chunk.band.inside;
    return kernels.count_at_least(chunk.candidates, chunk.band.inside, threshold) -
           kernels.count_at_least(chunk.candidates, chunk.band.inside, threshold + 1);
  };
  const Chunk<Key>* chunk = first;
  for (; chunk != last; ++chunk) {
    const int64_t ties = ties_in(*chunk);
    if (wanted <= ties) break;
    wanted -= ties;
  }
  uint8_t reached[kBitBlock / kLanes], above[kBitBlock / kLanes];
  for (int64_t begin = chunk->begin; begin < chunk->end; begin += kBitBlock) {
    const int64_t end = std::min(begin + kBitBlock, chunk->end);
    kernels.threshold_bits(selection.source, selection.region, selection.score, begin, end, threshold, end, reached);
    kernels.threshold_bits(selection.source, selection.region, selection.score, begin, end, threshold, -1, above);
    for (int64_t i = begin; i < end; ++i) {
      const int64_t byte = (i - begin) / kLanes, bit = (i - begin) % kLanes;
      if (((reached[byte] & ~above[byte]) >> bit) & 1 && --wanted == 0) return i;
    }
  }
  return chunk->end;
}

// The candidates of several chunks, narrowed by a sample of them as the layer was by a sample of its coordinates.
// Returns how many lie above those that are left, which hold the key of rank `wanted`.
template <class Key>
int64_t narrow_candidates(const SelectKernels<Key>& kernels, const Search<Key>& search, const Chunk<Key>* first,
                          const Chunk<Key>* last, int64_t inside, int64_t wanted, std::vector<Key>& left) {
  Key low = search.low, high = search.high;
  if (inside > 2 * kCandidateSample) {
    std::vector<Key> sample;
    const int64_t stride = inside / kCandidateSample;
    int64_t skip = 0;
    for (const Chunk<Key>* chunk = first; chunk != last; ++chunk) {
      for (; skip < chunk->band.inside; skip += stride) sample.push_back(chunk->candidates[skip]);
      skip -= chunk->band.inside;
    }
    bracket(kernels, sample.data(), static_cast<int64_t>(sample.size()), static_cast<int64_t>(sample.size()),
            static_cast<double>(wanted) / static_cast<double>(inside), low, high);
  }
  while (true) {
    int64_t above = 0, count = 0;
    left.resize(static_cast<size_t>(inside + kLanes));
    for (const Chunk<Key>* chunk = first; chunk != last; ++chunk) {
      const Band band = kernels.narrow(chunk->candidates, chunk->band.inside, low, high, left.data() + count);
      above += band.above;
      count += band.inside;
    }
    left.resize(static_cast<size_t>(count));
    if (above < wanted && above + count >= wanted) return above;
    low = search.low;
    high = search.high;
  }
}

// Finds the exact threshold from the chunks [first, last) of one search, or widens its bracket.
template <class Key>
void resolve(const SelectKernels<Key>& kernels, Search<Key>& search, const Chunk<Key>* first, const Chunk<Key>* last) {
  Selection& selection = *search.selection;
  int64_t above = 0, inside = 0;
  bool overflows = false;
  search.region = 0;
  for (const Chunk<Key>* chunk = first; chunk != last; ++chunk) {
    search.region += chunk->band.region;
    above += chunk->band.above;
    inside += chunk->band.inside;
    overflows |= search.collects() && chunk->band.inside > search.room;
  }
  if (selection.up_to) {
    // Where the bracket begins at the floor, all that take part have been counted.
    if (search.low == search.floor && above + inside <= selection.keep) {
      return search.finish(search.floor, search.count());
    }
  } else if (selection.keep < 0 || selection.keep > search.region) {
    search.done = search.short_of_groups = true;
    return;
  }
  if (overflows || above >= selection.keep || above + inside < selection.keep) {
    search.bracket_everything();
    return;
  }
  Key threshold = search.low;
  int64_t reached = above + inside, passed = above;  // keys that reach the threshold, and that pass it
  if (search.collects()) {
    std::vector<Key> left;
    const int64_t over = above + narrow_candidates(kernels, search, first, last, inside, selection.keep - above, left);
    const auto reach = [&](Key bound) {
      return over + kernels.count_at_least(left.data(), static_cast<int64_t>(left.size()), bound);
    };
    threshold = bisect(search.low, search.high, selection.keep, reach);
    reached = reach(threshold);
    passed = reach(threshold + 1);
  }
  const int64_t last_tie = reached == selection.keep
                               ? search.count()
                               : find_last_tie(kernels, search, first, last, threshold, selection.keep - passed);
  search.finish(threshold, last_tie);
}

// Groups of one weight, or the scores of larger groups.
template <class Key>
std::optional<Shortfall> select_coordinates(const SelectKernels<Key>& kernels, const Parallel& parallel,
                                            const std::vector<Selection*>& selections) {
  std::vector<Search<Key>> searches;
  for (Selection* selection : selections) {
    searches.push_back({selection, floor_key<Key>(*selection)});
    Search<Key>& search = searches.back();
    if (selection->keep == 0) search.finish(kHighestKey<Key>, -1);
    if (selection->up_to && selection->keep >= search.count()) search.finish(search.floor, search.count());
  }
  parallel_each(parallel, searches, [&](Search<Key>& search) {
    if (!search.done) bracket_by_sample(kernels, search);
  });
  std::vector<Chunk<Key>> chunks;
  std::unique_ptr<Key[]> room;
  const auto searching = [](const Search<Key>& search) { return !search.done; };
  while (std::any_of(searches.begin(), searches.end(), searching)) {
    collect_chunks(kernels, parallel, searches, chunks, room);
    parallel(static_cast<int64_t>(searches.size()), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        Search<Key>& search = searches[static_cast<size_t>(i)];
        if (search.done) continue;
        const auto mine = [&](const Chunk<Key>& chunk) { return chunk.search == static_cast<size_t>(i); };
        const auto first = std::find_if(chunks.begin(), chunks.end(), mine);
        const auto last = std::find_if_not(first, chunks.end(), mine);
        resolve(kernels, search, chunks.data() + (first - chunks.begin()), chunks.data() + (last - chunks.begin()));
      }
    });
  }
  for (const Search<Key>& search : searches) {
    if (search.short_of_groups) return Shortfall{search.selection->layer, search.selection->region, search.region};
  }
  return std::nullopt;
}

// Scores the larger groups, selects on the scores and writes one byte per group.
std::optional<Shortfall> select_scored(const Kernels& kernels, const Parallel& parallel, DType dtype,
                                       const std::vector<Selection*>& selections) {
  std::vector<std::vector<double>> scores(selections.size());
  std::vector<std::vector<uint8_t>> absent(selections.size());
  std::vector<Scoring> jobs;
  for (size_t i = 0; i < selections.size(); ++i) {
    const Selection& selection = *selections[i];
    scores[i].resize(static_cast<size_t>(selection.view.g));
    absent[i].resize(static_cast<size_t>(selection.view.g));
    jobs.push_back(
        {selection.source, selection.region, selection.score, selection.view, scores[i].data(), absent[i].data()});
  }
  score_groups(kernels, parallel, dtype, jobs);
  // The scores are coordinates of their own, of which the absent groups are not free.
  std::vector<Selection> on_scores;
  std::vector<Selection*> pointers;
  for (size_t i = 0; i < selections.size(); ++i) {
    const Source source{scores[i].data(), nullptr, absent[i].data()};
    const Selection& selection = *selections[i];
    on_scores.push_back({i,
                         source,
                         Region::free,
                         Score::half,
                         {1, selection.view.g, 1},
                         selection.keep,
                         selection.up_to,
                         selection.above});
  }
  for (Selection& selection : on_scores) pointers.push_back(&selection);
  if (auto shortfall = select_coordinates<int64_t>(kernels.select64, parallel, pointers)) {
    const Selection& selection = *selections[shortfall->layer];
    return Shortfall{selection.layer, selection.region, shortfall->available};
  }
  parallel_each(parallel, pointers, [&](Selection* found) {
    std::vector<uint8_t>& groups = selections[found->layer]->groups;
    const int64_t count = found->view.g;
    std::vector<uint8_t> bits(static_cast<size_t>((count + kLanes - 1) / kLanes));
    groups.resize(static_cast<size_t>(count));
    kernels.select64.threshold_bits(found->source, found->region, found->score, 0, count, found->threshold,
                                    found->last_tie, bits.data());
    kernels.unpack(bits.data(), groups.data(), 0, count);
  });
  return std::nullopt;
}

}  // namespace

template <class Key>
bool find_threshold(const SelectKernels<Key>& kernels, Selection& selection, Key low, Key high,
                    const std::vector<Chunk<Key>>& chunks) {
  Search<Key> search{&selection, floor_key<Key>(selection), low, high, kBracketRoom};
  resolve(kernels, search, chunks.data(), chunks.data() + chunks.size());
  return search.done;
}
template bool find_threshold(const SelectKernels<int32_t>&, Selection&, int32_t, int32_t,
                             const std::vector<Chunk<int32_t>>&);
template bool find_threshold(const SelectKernels<int64_t>&, Selection&, int64_t, int64_t,
                             const std::vector<Chunk<int64_t>>&);

void add_roles(std::vector<Selection>& selections, const Source& source, const View& view, const View& sharing_view,
               int64_t keep_free, int64_t keep_owned, bool emerging) {
  const size_t number = selections.size();
  selections.push_back({number, source, Region::free, Score::l2, view, keep_free});
  selections.push_back({number + 1, source, Region::owned, Score::half, sharing_view, keep_owned});
  if (!emerging) return;
  selections.back().up_to = true;
  selections.back().above = sharing_view.single() ? 0.5 : 0.0;
}

std::optional<Shortfall> select_groups(const Kernels& kernels, const Parallel& parallel, DType dtype,
                                       std::vector<Selection>& selections) {
  std::vector<Selection*> single, scored;
  for (Selection& selection : selections) (selection.view.single() ? single : scored).push_back(&selection);
  std::optional<Shortfall> shortfall =
      dtype == DType::f64 ? select_coordinates<int64_t>(kernels.select64, parallel, single)
                          : select_coordinates<int32_t>(kernels.select32[static_cast<int>(dtype)], parallel, single);
  std::optional<Shortfall> of_scored = select_scored(kernels, parallel, dtype, scored);
  // The first layer in the caller's order is the one to name.
  if (shortfall && of_scored) return of_scored->layer < shortfall->layer ? of_scored : shortfall;
  return shortfall ? shortfall : of_scored;
}

namespace {

// Calls f with the selection kernels and the threshold of the key's type.
template <class F>
void with_keys(const Kernels& kernels, DType dtype, const Selection& selection, F&& f) {
  if (dtype == DType::f64) {
    f(kernels.select64, selection.threshold);
  } else {
    f(kernels.select32[static_cast<int>(dtype)], static_cast<int32_t>(selection.threshold));
  }
}

}  // namespace

void selection_bits(const Kernels& kernels, DType dtype, const Selection& selection, int64_t begin, int64_t end,
                    uint8_t* bits) {
  if (selection.view.single()) {
    with_keys(kernels, dtype, selection, [&](const auto& select, auto threshold) {
      select.threshold_bits(selection.source, selection.region, selection.score, begin, end, threshold,
                            selection.last_tie, bits);
    });
    return;
  }
  // A byte a coordinate from the byte of its group, then packed.
  const View& view = selection.view;
  uint8_t members[kBitBlock] = {};
  for (int64_t i = begin; i < end;) {
    const int64_t group = i / view.b % view.g;
    int64_t run;
    if (view.b == 1) {
      run = std::min(view.g - group, end - i);
      std::copy_n(selection.groups.data() + group, run, members + (i - begin));
    } else {
      run = std::min(view.b - i % view.b, end - i);
      std::fill_n(members + (i - begin), run, selection.groups[static_cast<size_t>(group)]);
    }
    i += run;
  }
  kernels.pack(members, bits, 0, end - begin);
  if (selection.region == Region::all) return;
  uint8_t inside[kBitBlock / kLanes];
  kernels.region_bits(selection.source.owner, selection.region, begin, end, inside);
  for (int64_t byte = 0; byte < (end - begin + kLanes - 1) / kLanes; ++byte) bits[byte] &= inside[byte];
}

void role_bits(const Kernels& kernels, DType dtype, const Selection& free, const Selection& owned, int64_t begin,
               int64_t end, uint8_t* bits) {
  uint8_t of_owned[kBitBlock / kLanes];
  selection_bits(kernels, dtype, free, begin, end, bits);
  selection_bits(kernels, dtype, owned, begin, end, of_owned);
  for (int64_t byte = 0; byte < (end - begin + kLanes - 1) / kLanes; ++byte) bits[byte] |= of_owned[byte];
}

void selection_values(const Kernels& kernels, DType dtype, const Selection& selection, int64_t begin, int64_t end,
                      uint8_t* bits, void* out, bool stream) {
  if (selection.view.single()) {
    with_keys(kernels, dtype, selection, [&](const auto& select, auto threshold) {
      select.threshold_values(selection.source, selection.region, selection.score, begin, end, threshold,
                              selection.last_tie, bits, out, stream);
    });
    return;
  }
  selection_bits(kernels, dtype, selection, begin, end, bits);
  kernels.keep[static_cast<int>(dtype)][static_cast<int>(Output::values)](selection.source.x, bits, out, begin, end,
                                                                          stream);
}

}  // namespace lps
