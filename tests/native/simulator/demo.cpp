// The demonstration kernels for Python: lists in, lists out, in memory of exactly their size.
#include "demo.h"

#include "runner.h"

namespace py = pybind11;
using demo::Fault;
using Floats = std::vector<float>;

PYBIND11_MODULE(simulator_demo, m) {
  def_runner(m);
  py::enum_<Fault>(m, "Fault", py::module_local())
      .value("none", Fault::none)
      .value("missing_barrier", Fault::missing_barrier)
      .value("early_overwrite", Fault::early_overwrite)
      .value("lost_atomic", Fault::lost_atomic)
      .value("read_outside", Fault::read_outside)
      .value("write_outside_shared", Fault::write_outside_shared)
      .value("uninitialised_shared", Fault::uninitialised_shared)
      .value("divergent_barrier", Fault::divergent_barrier)
      .value("two_barriers", Fault::two_barriers)
      .value("divergent_collective", Fault::divergent_collective)
      .value("two_collectives", Fault::two_collectives)
      .value("wrong_mask", Fault::wrong_mask)
      .value("read_outside_mask", Fault::read_outside_mask)
      .value("early_exit", Fault::early_exit)
      .value("early_exit_of_lane", Fault::early_exit_of_lane);

  m.def("sum", [](const Runner& runner, const Floats& x, Fault fault) {
    const auto out = std::make_unique<float>(0.0f);
    demo::sum(runner.device(), x.data(), out.get(), static_cast<int>(x.size()), fault);
    return *out;
  });
  m.def("reverse_tiles", [](const Runner& runner, const Floats& x, Fault fault) {
    Floats out(x.size());
    demo::reverse_tiles(runner.device(), x.data(), out.data(), static_cast<int>(x.size() / 128), fault);
    return out;
  });
  m.def("collectives", [](const Runner& runner, const std::vector<uint32_t>& x) {
    std::vector<uint32_t> out(32 * demo::kCollectives);
    demo::collectives(runner.device(), x.data(), out.data());
    return out;
  });
  m.def("product", [](const Runner& runner, int factor, const Floats& a, const Floats& b, Floats d) {
    demo::product(runner.device(), factor, a.data(), b.data(), d.data(), static_cast<int>(a.size() / 16));
    return d;
  });
  m.def("traffic", [](const Runner& runner, const Floats& x) {
    Floats out(2 * x.size());
    const auto counter = std::make_unique<int>(0);
    const simulator::Watch watches[] = {{x.data(), x.size() * sizeof(float), "x"},
                                        {out.data(), out.size() * sizeof(float), "out"},
                                        {counter.get(), sizeof(int), "counter"}};
    demo::traffic(runner.device(), x.data(), out.data(), counter.get(), static_cast<int>(x.size()));
    return out;
  });
  m.def("turns", [](const Runner& runner, int blocks) {
    std::vector<int> first(64 * blocks), second(64 * blocks), counters(2);
    demo::turns(runner.device(), blocks, first.data(), second.data(), counters.data());
    return std::make_pair(first, second);
  });
  m.def("nothing", [](const Runner& runner, unsigned grid, unsigned block, size_t shared) {
    demo::nothing(runner.device(), grid, block, shared);
  });
}
