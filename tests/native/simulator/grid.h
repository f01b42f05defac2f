// Runs the threads of a launch; for the simulator's own sources.
#pragma once

#include <functional>

#include "launch.h"

namespace simulator {

void run_grid(const Launch& launch, const std::function<void()>& body, unsigned order);
// Whether a thread of a kernel runs at this moment.
bool in_kernel();

}  // namespace simulator
