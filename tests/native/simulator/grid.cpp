#include "grid.h"

#include <cstring>
#include <deque>
#include <memory>
#include <optional>

#include "block.h"
#include "fibers.h"
#include "order.h"

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

namespace simulator {
namespace {

constexpr unsigned kWarp = 32;
// The thread sanitizer has room for 8128 threads, and a process for 65530 mappings of memory. In a launch of more
// threads than this, fibers are used again, and the races of blocks that share them are not all seen.
constexpr size_t kMostUsedFibers = 2048;

enum class State : uint8_t { fresh, ready, at_barrier, in_collective, done };

// One CUDA thread of the block that runs.
struct Thread {
  uint3 index;
  unsigned number;  // in the block; 32 in a row are a warp
  State state = State::fresh;
  std::unique_ptr<Fiber> fiber;
  // What it waits in.
  const char* what = nullptr;
  Site site{};
  uint32_t mask = 0;
  bool predicate = false;
  Lane lane{};
};

// Fibers that wait for a thread to run. They outlive a launch: the thread sanitizer takes long to make one.
std::vector<std::unique_ptr<Fiber>> idle_fibers;

// Addresses that the thread sanitizer knows events by.
char block_begins, threads_end;
// The barriers of a block, or the collectives of a warp that have the same mask.
struct Meeting {
  uint32_t mask = 0;
  int lanes = 0;  // of the mask
  // For those with an even and an odd number: before the next but one is reached, everybody has left this one.
  char tags[2];
  unsigned count = 0;
  // Of the lanes that have come to the one that is open.
  int present = 0;
  const Thread* somebody = nullptr;
  char* tag() { return &tags[count % 2]; }
};

std::string text(uint3 at) {
  return "(" + std::to_string(at.x) + ", " + std::to_string(at.y) + ", " + std::to_string(at.z) + ")";
}
std::string text(Site site) {
  const char* name = std::strrchr(site.file, '/');
  return std::string(name == nullptr ? site.file : name + 1) + ":" + std::to_string(site.line);
}

// Mostly the same literal.
bool same(const char* one, const char* other) { return one == other || std::strcmp(one, other) == 0; }
bool same(Site one, Site other) { return one.line == other.line && same(one.file, other.file); }

std::string waiting(const Thread& thread) {
  const std::string who = "thread " + text(thread.index);
  return who + (thread.state == State::done ? " has left the kernel"
                                            : std::string(" waits in ") + thread.what + " at " + text(thread.site));
}

class Grid {
 public:
  Grid(const Launch& launch, const std::function<void()>& body) : launch_(launch), body_(body) {
    gridDim = launch.grid;
    blockDim = launch.block;
    const dim3 size = launch.block;
    threads_.resize(static_cast<size_t>(size.x) * size.y * size.z);
    warp_meetings_.resize((threads_.size() + kWarp - 1) / kWarp);
    for (unsigned i = 0; i < threads_.size(); ++i) {
      threads_[i].index = {i % size.x, i / size.x % size.y, i / size.x / size.y};
      threads_[i].number = i;
    }
  }

  void run_block(uint3 index, Order order) {
    blockIdx = index;
    begin_block();
    for (;;) {
      bool idle = true;
      for (uint32_t turn : order.next()) {
        Thread& thread = threads_[turn];
        if (thread.state != State::fresh && thread.state != State::ready) continue;
        resume(thread);
        if (fault_) throw *fault_;
        idle = false;
      }
      if (!idle) continue;
      if (done_ == threads_.size()) return;
      open_barrier();
    }
  }

  // What the threads of all blocks did happened before what comes next.
  void finish() {
    acquire(&threads_end);
    reuse_fibers();
  }

  int barrier(const char* what, bool predicate, Site site) {
    Thread& self = *running_;
    self.predicate = predicate;
    char* tag = block_meeting_.tag();
    release(tag);
    wait(State::at_barrier, what, site);
    acquire(tag);
    return predicates_;
  }

  uint64_t collective(const char* what, uint32_t mask, uint64_t value, int argument, Finish finish, bool orders,
                      Site site) {
    Thread& self = *running_;
    const unsigned first = self.number / kWarp * kWarp;
    if ((mask >> self.number % kWarp & 1) == 0) stop(std::string(what) + ": the mask lacks the lane that calls", site);
    Meeting& meeting = meeting_of(first / kWarp, mask);
    check_companion(meeting, what, site);
    self.mask = mask;
    self.lane = {value, argument, 0};
    char* tag = meeting.tag();
    if (orders) release(tag);
    ++meeting.present;
    if (meeting.present < meeting.lanes) {
      meeting.somebody = &self;
      wait(State::in_collective, what, site);
    } else {
      Lane* lanes[kWarp] = {};
      for (unsigned i = 0; i < kWarp; ++i) {
        if (mask >> i & 1) lanes[i] = &threads_[first + i].lane;
      }
      if (finish != nullptr) finish(what, mask, lanes, site);
      for (unsigned i = 0; i < kWarp; ++i) {
        if (mask >> i & 1) threads_[first + i].state = State::ready;
      }
      meeting.present = 0;
      ++meeting.count;
      Fiber::suspend();  // so that the other lanes may be the first to go on
    }
    if (orders) acquire(tag);
    return self.lane.result;
  }

  [[noreturn]] void stop(const std::string& what, Site site) {
    fault_.emplace(described(*running_, what, site));
    for (;;) Fiber::suspend();  // never resumed
  }

  // What a fiber does for the thread that was given to it.
  void run_thread() {
    acquire(&block_begins);
    body_();
    release(&threads_end);
    running_->state = State::done;
    ++done_;
  }

  void* shared() const { return shared_.back().get(); }
  bool runs() const { return running_ != nullptr; }

 private:
  void begin_block();
  void reuse_fibers() {
    for (auto& fiber : used_fibers_) idle_fibers.push_back(std::move(fiber));
    used_fibers_.clear();
  }
  void resume(Thread& thread);
  void wait(State state, const char* what, Site site);
  Meeting& meeting_of(unsigned warp, uint32_t mask);
  void check_companion(const Meeting& meeting, const char* what, Site site);
  void open_barrier();
  [[noreturn]] void report_waiting(const Thread& thread) const;

  std::string described(const Thread& thread, const std::string& what, Site site) const {
    return launch_.kernel + ", block " + text(blockIdx) + ", thread " + text(thread.index) + ", " + text(site) + ": " +
           what;
  }

  const Launch& launch_;
  const std::function<void()>& body_;
  std::vector<Thread> threads_;
  Thread* running_ = nullptr;
  size_t done_ = 0;
  int predicates_ = 0;
  std::optional<Fault> fault_;
  // Of threads that are done, where no other thread of the launch may have them.
  std::vector<std::unique_ptr<Fiber>> used_fibers_;
  Meeting block_meeting_;
  std::vector<std::deque<Meeting>> warp_meetings_;
  std::vector<std::unique_ptr<char[]>> shared_;
};

Grid* grid = nullptr;

void Grid::begin_block() {
  for (Thread& thread : threads_) thread.state = State::fresh;
  done_ = 0;
  if (used_fibers_.size() >= kMostUsedFibers) reuse_fibers();
  // Under the thread sanitizer memory of its own for every block, or it would see one block race with the next.
  if (shared_.empty() || watched_for_races()) shared_.emplace_back(new char[launch_.shared]);
  std::memset(shared_.back().get(), 0xff, launch_.shared);
  release(&block_begins);
}

void Grid::resume(Thread& thread) {
  if (thread.state == State::fresh) {
    if (idle_fibers.empty()) idle_fibers.push_back(std::make_unique<Fiber>([] { grid->run_thread(); }));
    thread.fiber = std::move(idle_fibers.back());
    idle_fibers.pop_back();
  }
  running_ = &thread;
  threadIdx = thread.index;
  thread.fiber->resume();
  running_ = nullptr;
  if (thread.state == State::done)
    (watched_for_races() ? used_fibers_ : idle_fibers).push_back(std::move(thread.fiber));
}

void Grid::wait(State state, const char* what, Site site) {
  Thread& self = *running_;
  self.state = state;
  self.what = what;
  self.site = site;
  Fiber::suspend();
}

// A warp has few masks; a deque leaves them where they are.
Meeting& Grid::meeting_of(unsigned warp, uint32_t mask) {
  std::deque<Meeting>& meetings = warp_meetings_[warp];
  for (Meeting& meeting : meetings) {
    if (meeting.mask == mask) return meeting;
  }
  meetings.emplace_back();
  meetings.back().mask = mask;
  meetings.back().lanes = __builtin_popcount(mask);
  return meetings.back();
}

// Lanes that already wait have to wait in the same collective.
void Grid::check_companion(const Meeting& meeting, const char* what, Site site) {
  if (meeting.present == 0) {
    const size_t lanes = threads_.size() - running_->number / kWarp * kWarp;
    if (lanes < kWarp && meeting.mask >> lanes != 0) {
      stop(std::string(what) + ": the mask names lanes that the block lacks", site);
    }
    return;
  }
  const Thread& other = *meeting.somebody;
  if (same(other.site, site) && same(other.what, what)) return;
  stop(std::string(what) + ": divergent collective, " + waiting(other), site);
}

// A lane of the mask will never come.
void Grid::report_waiting(const Thread& thread) const {
  const unsigned first = thread.number / kWarp * kWarp;
  std::string missing;
  for (unsigned i = 0; i < kWarp && missing.empty(); ++i) {
    if ((thread.mask >> i & 1) == 0) continue;
    const Thread& other = threads_[first + i];
    const bool here = other.state == State::in_collective && other.mask == thread.mask && same(other.site, thread.site);
    if (!here) missing = waiting(other);
  }
  throw Fault(described(thread, std::string(thread.what) + ": divergent collective, " + missing, thread.site));
}

// No thread can go on: all have to be at one barrier.
void Grid::open_barrier() {
  const Thread* first = nullptr;
  predicates_ = 0;
  for (const Thread& thread : threads_) {
    if (thread.state == State::in_collective) report_waiting(thread);
    if (thread.state != State::at_barrier) continue;
    if (first == nullptr) first = &thread;
    if (!same(thread.site, first->site) || !same(thread.what, first->what)) {
      throw Fault(described(thread, std::string(thread.what) + ": divergent barrier, " + waiting(*first), thread.site));
    }
    predicates_ += thread.predicate ? 1 : 0;
  }
  for (Thread& thread : threads_) {
    if (thread.state == State::done) {
      throw Fault(described(*first, std::string(first->what) + ": divergent barrier, " + waiting(thread), first->site));
    }
  }
  for (Thread& thread : threads_) thread.state = State::ready;
  ++block_meeting_.count;
}

}  // namespace

void run_grid(const Launch& launch, const std::function<void()>& body, unsigned order) {
  Grid running(launch, body);
  grid = &running;
  struct Cleared {
    ~Cleared() { grid = nullptr; }
  } cleared;
  const dim3 size = launch.grid;
  Order blocks(order, static_cast<size_t>(size.x) * size.y * size.z, 0);
  const size_t threads = static_cast<size_t>(launch.block.x) * launch.block.y * launch.block.z;
  for (uint32_t block : blocks.next()) {
    running.run_block({block % size.x, block / size.x % size.y, block / size.x / size.y}, Order(order, threads, block));
  }
  running.finish();
}

bool in_kernel() { return grid != nullptr && grid->runs(); }

void fail(const std::string& what, Site site) { grid->stop(what, site); }
int meet_block(const char* what, bool predicate, Site site) { return grid->barrier(what, predicate, site); }
uint64_t meet_warp(const char* what, uint32_t mask, uint64_t value, int argument, Finish finish, Site site) {
  return grid->collective(what, mask, value, argument, finish, false, site);
}
void synchronise_warp(uint32_t mask, Site site) { grid->collective("__syncwarp", mask, 0, 0, nullptr, true, site); }
void* shared_memory() { return grid->shared(); }

}  // namespace simulator
