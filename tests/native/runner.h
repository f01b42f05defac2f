// Runs the kernels of one instruction set with a chosen cut of the work.
#pragma once

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "lps.h"

// How the work is cut: into ranges of `grain` units, in order or from the last to the first, on `threads` threads.
struct Partition {
  int64_t threads, grain;
  bool reversed;

  void run(int64_t count, const lps::Body& body) const {
    std::vector<std::pair<int64_t, int64_t>> ranges;
    for (int64_t begin = 0; begin < count; begin += grain) ranges.emplace_back(begin, std::min(begin + grain, count));
    if (reversed) std::reverse(ranges.begin(), ranges.end());
    const auto every = [&](size_t first) {
      for (size_t i = first; i < ranges.size(); i += static_cast<size_t>(threads))
        body(ranges[i].first, ranges[i].second);
    };
    if (threads == 1) return every(0);
    std::vector<std::thread> workers;
    for (int64_t worker = 0; worker < threads; ++worker) workers.emplace_back(every, static_cast<size_t>(worker));
    for (std::thread& worker : workers) worker.join();
  }
};

// What the kernels run with: the first argument of every function of lps.h.
struct Runner {
  const lps::Kernels* kernels;
  std::shared_ptr<int64_t> rounds = std::make_shared<int64_t>(0);  // how often work was handed out
  lps::Parallel parallel;

  Runner(const std::string& isa, const Partition& partition)
      : kernels(isa == "scalar"   ? &lps::scalar_kernels()
                : isa == "avx2"   ? lps::avx2_kernels()
                : isa == "avx512" ? lps::avx512_kernels()
                                  : nullptr),
        parallel([partition, rounds = rounds](int64_t count, const lps::Body& body) {
          *rounds += count > 0;
          partition.run(count, body);
        }) {
    if (kernels == nullptr) throw std::invalid_argument("no kernels for " + isa + " on this machine");
  }
  lps::Cpu device() const { return {*kernels, parallel}; }
};

inline std::vector<std::string> isas() {
  std::vector<std::string> names;
  for (const lps::Kernels* kernels : {&lps::scalar_kernels(), lps::avx2_kernels(), lps::avx512_kernels()}) {
    if (kernels != nullptr) names.emplace_back(lps::isa_name(*kernels));
  }
  return names;
}

inline void def_runner(pybind11::module_& m) {
  pybind11::class_<Partition>(m, "Partition")
      .def(pybind11::init<int64_t, int64_t, bool>(), pybind11::arg("threads"), pybind11::arg("grain"),
           pybind11::arg("reversed"));
  pybind11::class_<Runner>(m, "Runner")
      .def(pybind11::init<const std::string&, const Partition&>())
      .def_property_readonly("rounds", [](const Runner& runner) { return *runner.rounds; });
  m.def("isas", &isas);
}
