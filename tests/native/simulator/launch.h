// Launches of kernels, and what the simulator knows of past ones.
#pragma once

#include <functional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "block.h"

namespace simulator {

// How the threads of a block and the blocks of a grid take turns: 0 in order, 1 from the last to the first, else
// shuffled anew in every round, as the number says.
void set_order(unsigned order);

struct Launch {
  std::string kernel;
  dim3 grid, block;
  size_t shared;  // bytes
};
// Of all launches since they were last cleared.
const std::vector<Launch>& launches();
void clear_launches();

// Runs `body` once for each thread. Throws a Fault where the launch, or what a thread does, is not allowed.
void run(const Launch& launch, const std::function<void()>& body);

// A kernel's name as the launch spells it, without the parentheses around template arguments.
std::string kernel_name(const char* spelled);

template <class... Parameters, class... Arguments>
void launch(const char* name, dim3 grid, dim3 block, size_t shared, void (*kernel)(Parameters...),
            Arguments&&... arguments) {
  const std::tuple<Parameters...> values(std::forward<Arguments>(arguments)...);
  run({kernel_name(name), grid, block, shared}, [&] { std::apply(kernel, values); });
}

}  // namespace simulator
