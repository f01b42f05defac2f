#include "launch.h"

#include "grid.h"

namespace simulator {
namespace {

unsigned current_order = 0;
std::vector<Launch> all_launches;

// What cudaGetLastError says of a launch that the hardware cannot do. Nothing opts in to more shared memory.
const char* refusal(const Launch& launch) {
  const dim3 grid = launch.grid, block = launch.block;
  const size_t threads = static_cast<size_t>(block.x) * block.y * block.z;
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return "the grid is empty";
  if (grid.x > 0x7fffffffu || grid.y > 65535 || grid.z > 65535) return "the grid is too large";
  if (threads == 0) return "the block is empty";
  if (threads > 1024 || block.z > 64) return "more than 1024 threads in a block";
  if (launch.shared > (48 << 10)) return "more than 48 KiB of shared memory";
  return nullptr;
}

}  // namespace

void set_order(unsigned order) { current_order = order; }
const std::vector<Launch>& launches() { return all_launches; }
void clear_launches() { all_launches.clear(); }

std::string kernel_name(const char* spelled) {
  const std::string name = spelled;
  return name.front() == '(' ? name.substr(1, name.size() - 2) : name;
}

void run(const Launch& launch, const std::function<void()>& body) {
  if (const char* reason = refusal(launch)) throw Fault(launch.kernel + ": invalid launch: " + reason);
  all_launches.push_back(launch);
  run_grid(launch, body, current_order);
}

}  // namespace simulator
