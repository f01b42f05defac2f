// Every function of csrc/lps.h for Python, on raw addresses. `Runner` says what runs it: runner.h here, or the one of
// tests/native/simulator, which runs the CUDA kernels.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#ifdef LPS_SIMULATED
#include "cuda/runtime.h"
#include "simulator/runner.h"
#else
#include "runner.h"
#endif

namespace py = pybind11;

namespace {

using Address = uintptr_t;

template <class T>
T* at(Address address) {
  return reinterpret_cast<T*>(address);
}

// Memory of exactly `size` bytes that begins `offset` bytes past a cache line and whose last byte is the last of its
// block: the address sanitizer reports the first byte read or written behind it.
class Buffer {
 public:
  Buffer(size_t size, size_t offset) : size_(size), offset_(offset), block_(nullptr, &std::free) {
    void* block = nullptr;
    if (posix_memalign(&block, 64, size + offset) != 0) throw std::bad_alloc();
    block_.reset(block);
    std::memset(block, 0xcb, size + offset);
#ifdef LPS_SIMULATED
    watch_ = watch_buffer(at<void>(address()), size);
#endif
  }
  Address address() const { return reinterpret_cast<Address>(block_.get()) + offset_; }
  size_t size() const { return size_; }

 private:
  size_t size_, offset_;
  std::unique_ptr<void, decltype(&std::free)> block_;
#ifdef LPS_SIMULATED
  std::unique_ptr<simulator::Watch> watch_;
#endif
};

using Sizes = std::tuple<int64_t, int64_t, int64_t>;

lps::View view_of(const Sizes& sizes) { return {std::get<0>(sizes), std::get<1>(sizes), std::get<2>(sizes)}; }

using Refusal = std::optional<std::tuple<size_t, std::string, int64_t>>;

Refusal refusal_of(const std::optional<lps::Shortfall>& shortfall) {
  if (!shortfall) return std::nullopt;
  const char* regions[] = {"all", "free", "owned"};
  return std::make_tuple(shortfall->layer, std::string(regions[static_cast<int>(shortfall->region)]),
                         shortfall->available);
}

using ScoreTuple = std::tuple<Address, Address, Sizes, Address>;
using ProjectTuple = std::tuple<Address, Address, Sizes, int64_t, Address, Address>;
using AdmmTuple = std::tuple<Address, Address, Address, Sizes, Sizes, int64_t, int64_t>;
using StepTuple = std::tuple<Address, Address, Address, Address, Address, Address, Address, Address, int64_t>;
using StraightTuple = std::tuple<StepTuple, Sizes, Sizes, int64_t, int64_t, Address, Address>;
using GradTuple = std::tuple<Address, Address, Address, Address, int64_t>;

void group_scores(const Runner& runner, lps::DType dtype, lps::Score score, lps::Region region,
                  const std::vector<ScoreTuple>& layers) {
  std::vector<lps::ScoreLayer> all;
  for (const auto& [x, owner, view, scores] : layers) {
    all.push_back({at<const void>(x), at<const uint8_t>(owner), view_of(view), at<double>(scores)});
  }
  lps::group_scores(runner.device(), dtype, score, region, all);
}

Refusal project(const Runner& runner, lps::DType dtype, lps::Score score, lps::Region region, lps::Output output,
                const std::vector<ProjectTuple>& layers) {
  std::vector<lps::ProjectLayer> all;
  for (const auto& [x, owner, view, keep, out, kept] : layers) {
    all.push_back({at<const void>(x), at<const uint8_t>(owner), view_of(view), keep, at<void>(out), at<uint8_t>(kept)});
  }
  return refusal_of(lps::project(runner.device(), dtype, score, region, output, all));
}

Refusal admm_update(const Runner& runner, lps::DType dtype, bool emerging, bool fresh,
                    const std::vector<AdmmTuple>& layers) {
  std::vector<lps::AdmmLayer> all;
  for (const auto& [v, centre, owner, view, sharing, keep_free, keep_owned] : layers) {
    all.push_back({at<const void>(v), at<void>(centre), at<uint8_t>(owner), view_of(view), view_of(sharing), keep_free,
                   keep_owned});
  }
  return refusal_of(lps::admm_update(runner.device(), dtype, emerging, fresh, all));
}

lps::StepLayer step_layer(const StepTuple& layer) {
  const auto& [effective, grad, v, w_bar, centre, owner, mean, square, count] = layer;
  return {at<void>(effective), at<const void>(grad),   at<void>(v),
          at<void>(w_bar),     at<const void>(centre), at<const uint8_t>(owner),
          at<void>(mean),      at<void>(square),       count};
}

void proximal_adam(const Runner& runner, lps::DType dtype, lps::Moves moves, lps::Pull pull,
                   const lps::AdamScalars& scalars, const std::vector<StepTuple>& layers) {
  std::vector<lps::StepLayer> all;
  for (const StepTuple& layer : layers) all.push_back(step_layer(layer));
  lps::proximal_adam(runner.device(), dtype, moves, pull, scalars, all);
}

void straight_through_adam(const Runner& runner, lps::DType dtype, lps::Moves moves, bool emerging,
                           const lps::AdamScalars& scalars, double share_cost, Address thresholds,
                           const std::vector<StraightTuple>& layers) {
  std::vector<lps::StraightLayer> all;
  for (const auto& [step, view, sharing, keep_free, keep_owned, weight_mean, weight_square] : layers) {
    lps::StepLayer layer = step_layer(step);
    layer.weight_exp_avg = at<void>(weight_mean);
    layer.weight_exp_avg_sq = at<void>(weight_square);
    all.push_back({layer, view_of(view), view_of(sharing), keep_free, keep_owned});
  }
  lps::straight_through_adam(runner.device(), dtype, moves, emerging, scalars, share_cost, at<void>(thresholds), all);
}

void proximal_grad(const Runner& runner, lps::DType dtype, lps::Moves moves, double rho, double tau,
                   const std::vector<GradTuple>& layers) {
  std::vector<lps::GradLayer> all;
  for (const auto& [grad, v, centre, owner, count] : layers) {
    all.push_back({at<void>(grad), at<const void>(v), at<const void>(centre), at<const uint8_t>(owner), count});
  }
  lps::proximal_grad(runner.device(), dtype, moves, rho, tau, all);
}

// ---- inference: every function for float and double ----

using Indices = std::pair<Address, int64_t>;                                  // where, or null for all; how many
using PackedTuple = std::tuple<Address, Address, Address, Address, int64_t>;  // with the number of values
using FinishTuple = std::tuple<Address, Address, bool>;                       // bias, residual, relu

template <class T>
lps::Structured<T> structured(Address weight, const Indices& columns, const Indices& rows, int64_t outputs) {
  return {at<const T>(weight), at<const int32_t>(columns.first),
          columns.second,      at<const int32_t>(rows.first),
          rows.second,         outputs};
}
template <class T>
lps::Sparse<T> sparse(const PackedTuple& packed, int64_t inputs, int64_t outputs) {
  const auto [values, bits, targets, offsets, count] = packed;
  return {at<const T>(values),
          at<const uint8_t>(bits),
          at<const uint8_t>(targets),
          at<const int64_t>(offsets),
          count,
          inputs,
          outputs};
}
template <class T>
lps::Finish<T> finish(const FinishTuple& wanted) {
  const auto [bias, residual, relu] = wanted;
  return {at<const T>(bias), at<const T>(residual), relu};
}
lps::ConvShape shape_of(const std::vector<int64_t>& s) {
  return {s.at(0), s.at(1), s.at(2), s.at(3),  s.at(4),  s.at(5),  s.at(6),
          s.at(7), s.at(8), s.at(9), s.at(10), s.at(11), s.at(12), s.at(13)};
}

template <class T>
void def_inference(py::module_& m, const std::string& suffix) {
  m.def(("structured_linear_" + suffix).c_str(),
        [](const Runner& r, Address x, int64_t batch, int64_t inputs, Address weight, const Indices& columns,
           const Indices& rows, int64_t outputs, const FinishTuple& wanted, Address y) {
          lps::structured_linear<T>(r.device(), at<const T>(x), batch, inputs,
                                    structured<T>(weight, columns, rows, outputs), finish<T>(wanted), at<T>(y));
        });
  m.def(("masked_linear_" + suffix).c_str(),
        [](const Runner& r, Address x, int64_t batch, Address w_bar, Address owner, Address bits, int64_t task,
           int64_t inputs, int64_t outputs, const FinishTuple& wanted, Address y) {
          const lps::Masked<T> weight{at<const T>(w_bar),
                                      at<const uint8_t>(owner),
                                      at<const uint8_t>(bits),
                                      static_cast<uint8_t>(task),
                                      inputs,
                                      outputs};
          lps::masked_linear<T>(r.device(), at<const T>(x), batch, weight, finish<T>(wanted), at<T>(y));
        });
  m.def(("sparse_linear_" + suffix).c_str(),
        [](const Runner& r, Address x, int64_t batch, int64_t inputs, const PackedTuple& packed, int64_t outputs,
           const FinishTuple& wanted, Address y) {
          lps::sparse_linear<T>(r.device(), at<const T>(x), batch, sparse<T>(packed, inputs, outputs),
                                finish<T>(wanted), at<T>(y));
        });
  m.def(("structured_conv_" + suffix).c_str(),
        [](const Runner& r, Address x, const std::vector<int64_t>& shape, Address weight, const Indices& columns,
           const Indices& rows, int64_t outputs, const FinishTuple& wanted, Address y) {
          lps::structured_conv<T>(r.device(), at<const T>(x), shape_of(shape),
                                  structured<T>(weight, columns, rows, outputs), finish<T>(wanted), at<T>(y));
        });
  m.def(("sparse_conv_" + suffix).c_str(),
        [](const Runner& r, Address x, const std::vector<int64_t>& shape, int64_t inputs, const PackedTuple& packed,
           int64_t outputs, const FinishTuple& wanted, Address y) {
          lps::sparse_conv<T>(r.device(), at<const T>(x), shape_of(shape), sparse<T>(packed, inputs, outputs),
                              finish<T>(wanted), at<T>(y));
        });
}

}  // namespace

PYBIND11_MODULE(lps_bridge, m) {
  using lps::DType, lps::MaskKind, lps::Score, lps::Region, lps::Output, lps::Moves, lps::Pull;
  // Local to the module: an interpreter may load several bridges.
  py::enum_<DType>(m, "DType", py::module_local())
      .value("float32", DType::f32)
      .value("float64", DType::f64)
      .value("bfloat16", DType::bf16)
      .value("float16", DType::f16);
  py::enum_<MaskKind>(m, "MaskKind", py::module_local())
      .value("values", MaskKind::values)
      .value("boolean", MaskKind::boolean)
      .value("bits", MaskKind::bits);
  py::enum_<Score>(m, "Score", py::module_local()).value("l2", Score::l2).value("half", Score::half);
  py::enum_<Region>(m, "Region", py::module_local())
      .value("all", Region::all)
      .value("free", Region::free)
      .value("owned", Region::owned);
  py::enum_<Output>(m, "Output", py::module_local()).value("values", Output::values).value("mask", Output::mask);
  py::enum_<Moves>(m, "Moves", py::module_local())
      .value("free", Moves::free)
      .value("all", Moves::all)
      .value("kept", Moves::kept);
  py::enum_<Pull>(m, "Pull", py::module_local()).value("gradient", Pull::gradient).value("proximal", Pull::proximal);

  m.attr("TASK_BITS") = lps::kTaskBits;
  m.attr("KEPT_BIT") = lps::kKeptBit;
  m.attr("FREE") = lps::kFree;
  m.attr("MAX_TASKS") = lps::kMaxTasks;

  py::class_<Buffer>(m, "Buffer", py::module_local())
      .def(py::init<size_t, size_t>(), py::arg("size"), py::arg("offset"))
      .def_property_readonly("address", &Buffer::address)
      .def_property_readonly("size", &Buffer::size);
  def_runner(m);
  py::class_<lps::AdamScalars>(m, "AdamScalars", py::module_local())
      .def(py::init([](double beta1, double beta2, double eps, double rho, double tau, double step_size,
                       double mask_step_size, double inverse_root, Address device_step, double lr, double mask_lr) {
        const int64_t* number = at<const int64_t>(device_step);
        return lps::AdamScalars{beta1,          beta2,        eps,    rho, tau,    step_size,
                                mask_step_size, inverse_root, number, lr,  mask_lr};
      }));

  m.def("compose", [](const Runner& runner, DType dtype, MaskKind kind, Address w, Address mask, Address w_bar,
                      Address out, int64_t count) {
    lps::compose(runner.device(), dtype, kind, at<const void>(w), at<const void>(mask), at<const void>(w_bar),
                 at<void>(out), count);
  });
  m.def("compose_owned",
        [](const Runner& runner, DType dtype, Address v, Address w_bar, Address owner, Address out, int64_t count) {
          lps::compose_owned(runner.device(), dtype, at<const void>(v), at<const void>(w_bar), at<const uint8_t>(owner),
                             at<void>(out), count);
        });
  m.def("task_weight", [](const Runner& runner, DType dtype, Address w_bar, Address owner, Address bits, uint8_t task,
                          Address out, int64_t count) {
    lps::task_weight(runner.device(), dtype, at<const void>(w_bar), at<const uint8_t>(owner), at<const uint8_t>(bits),
                     task, at<void>(out), count);
  });
  m.def("group_scores", &group_scores);
  m.def("project", &project);
  m.def("admm_update", &admm_update);
  m.def("proximal_adam", &proximal_adam);
  m.def("straight_through_adam", &straight_through_adam);
  m.def("proximal_grad", &proximal_grad);
  m.def("pack_bits", [](const Runner& runner, Address bools, Address bits, int64_t count) {
    lps::pack_bits(runner.device(), at<const uint8_t>(bools), at<uint8_t>(bits), count);
  });
  m.def("unpack_bits", [](const Runner& runner, Address bits, Address bools, int64_t count) {
    lps::unpack_bits(runner.device(), at<const uint8_t>(bits), at<uint8_t>(bools), count);
  });
  def_inference<float>(m, "float32");
  def_inference<double>(m, "float64");
#ifdef LPS_SIMULATED
  m.def("upload", [](Address from, Address to, int64_t bytes) {
    lps::upload(nullptr, at<const void>(from), at<void>(to), bytes);
  });
  def_inference<lps::f16>(m, "float16");
  def_inference<lps::bf16>(m, "bfloat16");
#endif
}
