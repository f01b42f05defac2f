// The operators of training for any device: checks, allocation, then the function of lps.h or cuda/gpu.h. `Target` is
// the device: Target::device(tensor) is what runs kernels where that tensor is. See register_cpu.cpp and
// register_cuda.cpp.
#pragma once

#include <cmath>
#include <tuple>

#include "tensors.h"

namespace lps {

inline DType dtype_of(const Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case ScalarType::Double:
      return DType::f64;
    case ScalarType::BFloat16:
      return DType::bf16;
    case ScalarType::Half:
      return DType::f16;
    default:
      return DType::f32;
  }
}

inline Tensor empty_as(const Tensor& model) { return torch::stable::new_empty(model, model.sizes()); }
inline Tensor empty_bytes(const Tensor& model, int64_t count, ScalarType dtype = ScalarType::Byte) {
  return torch::stable::new_empty(model, Ints{count}, dtype);
}

// ---- bits ----

template <class Target>
Tensor pack_bits_on(const Tensor& x) {
  check_dtype("pack_bits", "x", x, {ScalarType::Bool});
  const Tensor source = dense(x), bits = empty_bytes(x, packed_size(x.numel()));
  pack_bits(Target::device(x), bytes(source), mutable_bytes(bits), x.numel());
  return bits;
}

template <class Target>
Tensor unpack_bits_on(const Tensor& bits, const Ints& shape) {
  check_dtype("unpack_bits", "bits", bits, {ScalarType::Byte});
  const int64_t count = product(shape);
  if (count < 0)
    refuse("unpack_bits", "shape", "sizes whose product is at least 0 and fits in 64 bits", list_text(shape));
  if (bits.dim() != 1 || bits.numel() != packed_size(count)) {
    refuse("unpack_bits", "bits",
           "shape [" + text(packed_size(count)) + "] (the bits of shape " + list_text(shape) + ")",
           list_text(bits.sizes()));
  }
  const Tensor source = dense(bits), out = torch::stable::new_empty(bits, shape, ScalarType::Bool);
  unpack_bits(Target::device(bits), bytes(source), mutable_bytes(out), count);
  return out;
}

// ---- compose ----

inline void check_compose(const char* op, const Tensor& w, const Tensor& mask, const Tensor& w_bar) {
  check_dtype(op, "w", w, kFloats);
  check_like(op, "w_bar", w_bar, "w", w);
  check_device(op, "mask", mask, "w", w);
  const ScalarType kind = mask.scalar_type();
  if (kind != w.scalar_type() && kind != ScalarType::Bool && kind != ScalarType::Byte) {
    refuse(op, "mask", "dtype " + dtype_name(w.scalar_type()) + " (that of w), bool or uint8 (bit-packed)",
           dtype_name(kind));
  }
  if (kind == ScalarType::Byte) {
    check_bits(op, "mask", mask, w.numel());
  } else if (!same_shape(mask, w)) {
    refuse(op, "mask", "shape " + list_text(w.sizes()) + " (that of w)", list_text(mask.sizes()));
  }
}

inline void check_out(const char* op, const char* model_name, const Tensor& model, const Tensor& out,
                      const std::vector<Span>& read) {
  check_like(op, "out", out, model_name, model);
  check_contiguous(op, "out", out);
  std::vector<Span> spans{span_of("out", out, true)};
  spans.insert(spans.end(), read.begin(), read.end());
  check_no_overlap(op, spans);
}

template <class Target>
void run_compose(const Tensor& w, const Tensor& mask, const Tensor& w_bar, const Tensor& out) {
  const MaskKind kind = mask.scalar_type() == ScalarType::Bool   ? MaskKind::boolean
                        : mask.scalar_type() == ScalarType::Byte ? MaskKind::bits
                                                                 : MaskKind::values;
  const Tensor first = dense(w), second = dense(mask), third = dense(w_bar);
  compose(Target::device(w), dtype_of(w), kind, first.data_ptr(), second.data_ptr(), third.data_ptr(), out.data_ptr(),
          w.numel());
}

template <class Target>
Tensor compose_on(const Tensor& w, const Tensor& mask, const Tensor& w_bar) {
  check_compose("compose", w, mask, w_bar);
  const Tensor out = empty_as(w);
  run_compose<Target>(w, mask, w_bar, out);
  return out;
}

template <class Target>
void compose_out_on(const Tensor& w, const Tensor& mask, const Tensor& w_bar, const Tensor& out) {
  check_compose("compose_out", w, mask, w_bar);
  check_out("compose_out", "w", w, out,
            {span_of("w", w, false), span_of("mask", mask, false), span_of("w_bar", w_bar, false)});
  run_compose<Target>(w, mask, w_bar, out);
}

inline void check_compose_owned(const char* op, const Tensor& v, const Tensor& w_bar, const Tensor& owner) {
  check_dtype(op, "v", v, kFloats);
  check_like(op, "w_bar", w_bar, "v", v);
  check_like(op, "owner", owner, "v", v, ScalarType::Byte);
}

template <class Target>
void run_compose_owned(const Tensor& v, const Tensor& w_bar, const Tensor& owner, const Tensor& out) {
  const Tensor first = dense(v), second = dense(w_bar), third = dense(owner);
  compose_owned(Target::device(v), dtype_of(v), first.data_ptr(), second.data_ptr(), bytes(third), out.data_ptr(),
                v.numel());
}

template <class Target>
Tensor compose_owned_on(const Tensor& v, const Tensor& w_bar, const Tensor& owner) {
  check_compose_owned("compose_owned", v, w_bar, owner);
  const Tensor out = empty_as(v);
  run_compose_owned<Target>(v, w_bar, owner, out);
  return out;
}

template <class Target>
void compose_owned_out_on(const Tensor& v, const Tensor& w_bar, const Tensor& owner, const Tensor& out) {
  check_compose_owned("compose_owned_out", v, w_bar, owner);
  check_out("compose_owned_out", "v", v, out,
            {span_of("v", v, false), span_of("w_bar", w_bar, false), span_of("owner", owner, false)});
  run_compose_owned<Target>(v, w_bar, owner, out);
}

// ---- the weight that a task runs with ----

template <class Target>
void task_weight_on(const Tensor& w_bar, const Tensor& owner, const Tensor& bits, int64_t task, const Tensor& out) {
  const char* op = "task_weight";
  check_dtype(op, "w_bar", w_bar, kFloats);
  check_task(op, w_bar, owner, bits, task);
  check_out(op, "w_bar", w_bar, out,
            {span_of("w_bar", w_bar, false), span_of("owner", owner, false), span_of("bits", bits, false)});
  const Tensor values = dense(w_bar), owners = dense(owner), mask = dense(bits);
  task_weight(Target::device(w_bar), dtype_of(w_bar), values.data_ptr(), bytes(owners), bytes(mask),
              static_cast<uint8_t>(task), out.data_ptr(), w_bar.numel());
}

// ---- project ----

inline View view_at(const Ints& views, size_t layer) {
  return {views[3 * layer], views[3 * layer + 1], views[3 * layer + 2]};
}

inline void check_views(const char* op, const char* argument, const Ints& views, const Tensors& layers) {
  if (views.size() != 3 * layers.size()) {
    refuse(op, argument, text(int64_t(3 * layers.size())) + " ints (A, G, B of each layer)",
           text(int64_t(views.size())));
  }
  for (size_t i = 0; i < layers.size(); ++i) {
    const View view = view_at(views, i);
    if (product(Ints{view.a, view.g, view.b}) != layers[i].numel()) {
      refuse(op, {argument, i},
             "A * G * B = " + text(layers[i].numel()) + " (the weights of layer " + text(int64_t(i)) + ")",
             list_text(Ints{view.a, view.g, view.b}));
    }
  }
}

struct Scope {
  Score score;
  Region region;
};

inline Scope check_region(const char* op, const Tensors& x, const Tensors& owner, const Ints& views,
                          const std::string& score, const std::string& region) {
  enum class Named { magnitude, l2, signed_value, half };
  const Named named = check_choice<Named>(op, "score", score, {"magnitude", "l2", "signed", "half"});
  const Region where = check_choice<Region>(op, "region", region, {"all", "free", "owned"});
  check_layers(op, "x", x, kFloats);
  if (where != Region::all) {
    check_companions(op, "owner", owner, "x", x, ScalarType::Byte);
  } else if (!owner.empty()) {
    refuse(op, "owner", "0 tensors (region is all)", text(int64_t(owner.size())));
  }
  check_views(op, "views", views, x);
  for (size_t i = 0; i < x.size() && (named == Named::magnitude || named == Named::signed_value); ++i) {
    const View view = view_at(views, i);
    if (view.size() != 0 && !view.single()) {
      refuse(op, {"views", i}, "groups of one weight for score " + score + " (l2 and half take any)",
             list_text(Ints{view.a, view.g, view.b}));
    }
  }
  return {named == Named::magnitude || named == Named::l2 ? Score::l2 : Score::half, where};
}

[[noreturn]] inline void refuse_keep(const char* op, const char* argument, const Shortfall& shortfall, int64_t keep) {
  const char* kind = shortfall.region == Region::all ? "" : shortfall.region == Region::free ? "free " : "owned ";
  refuse(op, {argument, shortfall.layer},
         "between 0 and " + text(shortfall.available) + " (the " + kind + "groups of layer " +
             text(int64_t(shortfall.layer)) + ")",
         text(keep));
}

template <class Target>
Tensors group_scores_on(const Tensors& x, const Tensors& owner, const Ints& views, const std::string& score,
                        const std::string& region) {
  const Scope scope = check_region("group_scores", x, owner, views, score, region);
  const Tensors values = dense(x), owners = dense(owner);
  Tensors scores;
  std::vector<ScoreLayer> layers;
  for (size_t i = 0; i < x.size(); ++i) {
    const View view = view_at(views, i);
    scores.push_back(empty_bytes(x[i], view.g, ScalarType::Double));
    layers.push_back({values[i].data_ptr(), owners.empty() ? nullptr : bytes(owners[i]), view,
                      static_cast<double*>(scores[i].data_ptr())});
  }
  if (!x.empty()) group_scores(Target::device(x[0]), dtype_of(x[0]), scope.score, scope.region, layers);
  return scores;
}

template <class Target>
std::tuple<Tensors, Tensors> project_on(const Tensors& x, const Tensors& owner, const Ints& keep, const Ints& views,
                                        const std::string& score, const std::string& region,
                                        const std::string& output) {
  const Scope scope = check_region("project", x, owner, views, score, region);
  const Output wanted = check_choice<Output>("project", "output", output, {"values", "mask"});
  check_length("project", "keep", keep.size(), x.size(), "counts");
  const Tensors values = dense(x), owners = dense(owner);
  Tensors projected, kept;
  std::vector<ProjectLayer> layers;
  for (size_t i = 0; i < x.size(); ++i) {
    projected.push_back(empty_as(x[i]));
    kept.push_back(empty_bytes(x[i], packed_size(x[i].numel())));
    layers.push_back({values[i].data_ptr(), owners.empty() ? nullptr : bytes(owners[i]), view_at(views, i), keep[i],
                      projected[i].data_ptr(), mutable_bytes(kept[i])});
  }
  if (!x.empty()) {
    const auto shortfall = project(Target::device(x[0]), dtype_of(x[0]), scope.score, scope.region, wanted, layers);
    if (shortfall) refuse_keep("project", "keep", *shortfall, keep[shortfall->layer]);
  }
  return {projected, kept};
}

// Upper bounds on how many groups of each layer may survive.
inline void check_bounds(const char* op, const char* argument, const Ints& keep, const Ints& views) {
  for (size_t i = 0; i < keep.size(); ++i) {
    const int64_t groups = view_at(views, i).g;
    if (keep[i] >= 0 && keep[i] <= groups) continue;
    refuse(op, {argument, i}, "between 0 and " + text(groups) + " (the groups of layer " + text(int64_t(i)) + ")",
           text(keep[i]));
  }
}

// ---- ADMM update ----

template <class Target>
void admm_update_on(const Tensors& v, const Tensors& centre, const Tensors& owner, const Ints& keep_free,
                    const Ints& keep_owned, const Ints& views, const Ints& sharing_views, bool emerging, bool fresh) {
  const char* op = "admm_update_";
  check_layers(op, "v", v, kStateFloats);
  if (!centre.empty()) {
    check_companions(op, "centre", centre, "v", v);
  } else if (!fresh && !v.empty()) {
    refuse(op, "centre", text(int64_t(v.size())) + " tensors (one a layer; none only where fresh)", "0");
  }
  check_companions(op, "owner", owner, "v", v, ScalarType::Byte);
  check_length(op, "keep_free", keep_free.size(), v.size(), "counts");
  check_length(op, "keep_owned", keep_owned.size(), v.size(), "counts");
  check_views(op, "views", views, v);
  check_views(op, "sharing_views", sharing_views, v);
  if (emerging) check_bounds(op, "keep_owned", keep_owned, sharing_views);
  for (size_t i = 0; i < centre.size(); ++i) check_contiguous(op, {"centre", i}, centre[i]);
  for (size_t i = 0; i < v.size(); ++i) check_contiguous(op, {"owner", i}, owner[i]);
  std::vector<Span> spans;
  add_spans(spans, "centre", centre, true);
  add_spans(spans, "owner", owner, true);
  add_spans(spans, "v", v, false);
  check_no_overlap(op, spans);
  const Tensors values = dense(v);
  std::vector<AdmmLayer> layers;
  for (size_t i = 0; i < v.size(); ++i) {
    layers.push_back({values[i].data_ptr(), centre.empty() ? nullptr : centre[i].data_ptr(), mutable_bytes(owner[i]),
                      view_at(views, i), view_at(sharing_views, i), keep_free[i], keep_owned[i]});
  }
  if (v.empty()) return;
  const auto shortfall = admm_update(Target::device(v[0]), dtype_of(v[0]), emerging, fresh, layers);
  if (!shortfall) return;
  const bool free = shortfall->region == Region::free;
  refuse_keep(op, free ? "keep_free" : "keep_owned", *shortfall, (free ? keep_free : keep_owned)[shortfall->layer]);
}

// ---- optimiser step ----

inline void check_at_least_zero(const char* op, const char* argument, double x) {
  if (!(x >= 0)) refuse(op, argument, "at least 0", text(x));
}

inline void check_centre(const char* op, const Tensors& v, const Tensors& centre, double rho, double tau) {
  if (!centre.empty()) {
    check_companions(op, "centre", centre, "v", v);
  } else if (rho != 0 || tau != 0) {
    refuse(op, "centre", text(int64_t(v.size())) + " tensors (one a layer; none only where rho and tau are 0)", "0");
  }
  check_at_least_zero(op, "rho", rho);
  check_at_least_zero(op, "tau", tau);
}

inline Moves check_moves(const char* op, const std::string& moves) {
  return check_choice<Moves>(op, "moves", moves, {"free", "all", "kept"});
}

// Where the number of the step lies, or nullptr where the host gives it.
inline const int64_t* check_device_step(const char* op, const Maybe& device_step, const Tensors& v) {
  if (!device_step) return nullptr;
  if (!v.empty()) check_device(op, "device_step", *device_step, Argument("v", 0), v[0]);
  check_dtype(op, "device_step", *device_step, {ScalarType::Long});
  if (device_step->dim() != 1 || device_step->numel() != 1) {
    refuse(op, "device_step", "shape [1] (the number of the step)", list_text(device_step->sizes()));
  }
  return static_cast<const int64_t*>(device_step->data_ptr());
}

// The lists of a step, one tensor of each kind per layer; `grad`, `w_bar`, `centre` and `owner` are only read.
struct StepTensors {
  const Tensors &effective, &grad, &v, &w_bar, &owner, &exp_avg, &exp_avg_sq;
};

inline void check_state(const char* op, const StepTensors& state) {
  check_layers(op, "v", state.v, kStateFloats);
  check_companions(op, "effective", state.effective, "v", state.v);
  check_companions(op, "grad", state.grad, "v", state.v);
  check_companions(op, "w_bar", state.w_bar, "v", state.v);
  check_companions(op, "owner", state.owner, "v", state.v, ScalarType::Byte);
  check_companions(op, "exp_avg", state.exp_avg, "v", state.v);
  check_companions(op, "exp_avg_sq", state.exp_avg_sq, "v", state.v);
}

inline void check_rates(const char* op, int64_t step, double beta1, double beta2) {
  if (step < 1) refuse(op, "step", "at least 1", text(step));
  if (!(beta1 >= 0 && beta1 < 1)) refuse(op, "beta1", "at least 0 and below 1", text(beta1));
  if (!(beta2 >= 0 && beta2 < 1)) refuse(op, "beta2", "at least 0 and below 1", text(beta2));
}

// Where the number of the step lies on the device; nullptr where `step` holds it, also where it was read from there.
template <class Target>
const int64_t* number_of(const char* op, const Maybe& device_step, const Tensors& v, int64_t& step) {
  const int64_t* number = check_device_step(op, device_step, v);
  if (!Target::reads_values || number == nullptr) return number;
  step = *number;
  if (step < 1) refuse(op, "device_step", "at least 1", text(step));
  return nullptr;
}

inline void add_written(const char* op, std::vector<Span>& spans, const char* name, const Tensors& tensors) {
  for (size_t i = 0; i < tensors.size(); ++i) check_contiguous(op, {name, i}, tensors[i]);
  add_spans(spans, name, tensors, true);
}
inline std::vector<Span> step_spans(const char* op, const StepTensors& state) {
  std::vector<Span> spans;
  add_written(op, spans, "effective", state.effective);
  add_written(op, spans, "v", state.v);
  add_written(op, spans, "exp_avg", state.exp_avg);
  add_written(op, spans, "exp_avg_sq", state.exp_avg_sq);
  return spans;
}

inline AdamScalars adam_scalars(int64_t step, double lr, double mask_lr, double beta1, double beta2, double eps,
                                double rho, double tau, const int64_t* number) {
  const double rest = 1 - std::pow(beta1, static_cast<double>(step));
  const double inverse_root = 1 / std::sqrt(1 - std::pow(beta2, static_cast<double>(step)));
  return {beta1, beta2, eps, rho, tau, lr / rest, mask_lr / rest, inverse_root, number, lr, mask_lr};
}

template <class Target>
void proximal_adam_on(const Tensors& effective, const Tensors& grad, const Tensors& v, const Tensors& w_bar,
                      const Tensors& centre, const Tensors& owner, const Tensors& exp_avg, const Tensors& exp_avg_sq,
                      const std::string& moves, const std::string& pull, int64_t step, double lr, double mask_lr,
                      double beta1, double beta2, double eps, double rho, double tau, const Maybe& device_step) {
  const char* op = "proximal_adam_";
  const StepTensors state{effective, grad, v, w_bar, owner, exp_avg, exp_avg_sq};
  const Moves moving = check_moves(op, moves);
  const Pull pulling = check_choice<Pull>(op, "pull", pull, {"gradient", "proximal"});
  check_state(op, state);
  check_centre(op, v, centre, rho, tau);
  check_rates(op, step, beta1, beta2);
  const int64_t* number = number_of<Target>(op, device_step, v, step);
  std::vector<Span> spans = step_spans(op, state);
  add_spans(spans, "grad", grad, false);
  add_spans(spans, "w_bar", w_bar, false);
  add_spans(spans, "centre", centre, false);
  add_spans(spans, "owner", owner, false);
  check_no_overlap(op, spans);
  const Tensors grads = dense(grad), w_bars = dense(w_bar), centres = dense(centre), owners = dense(owner);
  std::vector<StepLayer> layers;
  for (size_t i = 0; i < v.size(); ++i) {
    layers.push_back({effective[i].data_ptr(), grads[i].data_ptr(), v[i].data_ptr(), w_bars[i].data_ptr(),
                      centres.empty() ? nullptr : centres[i].data_ptr(), bytes(owners[i]), exp_avg[i].data_ptr(),
                      exp_avg_sq[i].data_ptr(), v[i].numel()});
  }
  if (v.empty()) return;
  const AdamScalars scalars = adam_scalars(step, lr, mask_lr, beta1, beta2, eps, rho, tau, number);
  proximal_adam(Target::device(v[0]), dtype_of(v[0]), moving, pulling, scalars, layers);
}

template <class Target>
void straight_through_adam_on(const Tensors& effective, const Tensors& grad, const Tensors& v, const Tensors& w_bar,
                              const Tensors& owner, const Tensors& exp_avg, const Tensors& exp_avg_sq,
                              const Tensor& thresholds, const Ints& keep_free, const Ints& keep_owned,
                              const Ints& views, const Ints& sharing_views, bool emerging, const std::string& moves,
                              int64_t step, double lr, double mask_lr, double beta1, double beta2, double eps,
                              double share_cost, const Tensors& weight_exp_avg, const Tensors& weight_exp_avg_sq,
                              const Maybe& device_step) {
  const char* op = "straight_through_adam_";
  const StepTensors state{effective, grad, v, w_bar, owner, exp_avg, exp_avg_sq};
  const Moves moving = check_choice<Moves>(op, "moves", moves, {"free", "all"});
  check_state(op, state);
  const bool learning = !weight_exp_avg.empty() || !weight_exp_avg_sq.empty();
  if (learning) {
    check_companions(op, "weight_exp_avg", weight_exp_avg, "v", v);
    check_companions(op, "weight_exp_avg_sq", weight_exp_avg_sq, "v", v);
  }
  if (!v.empty()) {
    check_device(op, "thresholds", thresholds, Argument("v", 0), v[0]);
    check_dtype(op, "thresholds", thresholds, {v[0].scalar_type()});
  }
  const auto sizes = thresholds.sizes();
  if (sizes.size() != 3 || sizes[0] != int64_t(v.size()) || sizes[1] != 2 || sizes[2] != 2) {
    refuse(op, "thresholds", "shape [" + text(int64_t(v.size())) + ", 2, 2] (layers, roles, threshold and distance)",
           list_text(sizes));
  }
  check_length(op, "keep_free", keep_free.size(), v.size(), "counts");
  check_length(op, "keep_owned", keep_owned.size(), v.size(), "counts");
  check_views(op, "views", views, v);
  check_views(op, "sharing_views", sharing_views, v);
  check_bounds(op, "keep_free", keep_free, views);
  check_bounds(op, "keep_owned", keep_owned, sharing_views);
  check_rates(op, step, beta1, beta2);
  const int64_t* number = number_of<Target>(op, device_step, v, step);
  std::vector<Span> spans = step_spans(op, state);
  check_contiguous(op, "thresholds", thresholds);
  spans.push_back(span_of("thresholds", thresholds, true));
  if (learning) {
    add_written(op, spans, "w_bar", w_bar);
    add_written(op, spans, "weight_exp_avg", weight_exp_avg);
    add_written(op, spans, "weight_exp_avg_sq", weight_exp_avg_sq);
  }
  add_spans(spans, "grad", grad, false);
  if (!learning) add_spans(spans, "w_bar", w_bar, false);
  add_spans(spans, "owner", owner, false);
  check_no_overlap(op, spans);
  const Tensors grads = dense(grad), w_bars = dense(w_bar), owners = dense(owner);
  std::vector<StraightLayer> layers;
  for (size_t i = 0; i < v.size(); ++i) {
    const StepLayer layer{effective[i].data_ptr(),
                          grads[i].data_ptr(),
                          v[i].data_ptr(),
                          w_bars[i].data_ptr(),
                          nullptr,
                          bytes(owners[i]),
                          exp_avg[i].data_ptr(),
                          exp_avg_sq[i].data_ptr(),
                          v[i].numel(),
                          learning ? weight_exp_avg[i].data_ptr() : nullptr,
                          learning ? weight_exp_avg_sq[i].data_ptr() : nullptr};
    layers.push_back({layer, view_at(views, i), view_at(sharing_views, i), keep_free[i], keep_owned[i]});
  }
  if (v.empty()) return;
  const AdamScalars scalars = adam_scalars(step, lr, mask_lr, beta1, beta2, eps, 0, 0, number);
  straight_through_adam(Target::device(v[0]), dtype_of(v[0]), moving, emerging, scalars, share_cost,
                        thresholds.data_ptr(), layers);
}

template <class Target>
void proximal_grad_on(const Tensors& grad, const Tensors& v, const Tensors& centre, const Tensors& owner,
                      const std::string& moves, double rho, double tau) {
  const char* op = "proximal_grad_";
  const Moves moving = check_moves(op, moves);
  check_layers(op, "v", v, kStateFloats);
  check_companions(op, "grad", grad, "v", v);
  check_companions(op, "owner", owner, "v", v, ScalarType::Byte);
  check_centre(op, v, centre, rho, tau);
  for (size_t i = 0; i < grad.size(); ++i) check_contiguous(op, {"grad", i}, grad[i]);
  std::vector<Span> spans;
  add_spans(spans, "grad", grad, true);
  add_spans(spans, "v", v, false);
  add_spans(spans, "centre", centre, false);
  add_spans(spans, "owner", owner, false);
  check_no_overlap(op, spans);
  const Tensors vs = dense(v), centres = dense(centre), owners = dense(owner);
  std::vector<GradLayer> layers;
  for (size_t i = 0; i < v.size(); ++i) {
    layers.push_back({grad[i].data_ptr(), vs[i].data_ptr(), centres.empty() ? nullptr : centres[i].data_ptr(),
                      bytes(owners[i]), v[i].numel()});
  }
  if (!v.empty()) proximal_grad(Target::device(v[0]), dtype_of(v[0]), moving, rho, tau, layers);
}

}  // namespace lps
