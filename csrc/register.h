// The operators of one target, by the names that lps_kernels/ops declares.
#pragma once

#include "inference_operators.h"
#include "operators.h"

namespace lps {

template <class Target>
void register_operators(torch::stable::detail::StableLibrary& m) {
  m.impl("pack_bits", TORCH_BOX(&pack_bits_on<Target>));
  m.impl("unpack_bits", TORCH_BOX(&unpack_bits_on<Target>));
  m.impl("compose", TORCH_BOX(&compose_on<Target>));
  m.impl("compose_out", TORCH_BOX(&compose_out_on<Target>));
  m.impl("compose_owned", TORCH_BOX(&compose_owned_on<Target>));
  m.impl("compose_owned_out", TORCH_BOX(&compose_owned_out_on<Target>));
  m.impl("task_weight", TORCH_BOX(&task_weight_on<Target>));
  m.impl("group_scores", TORCH_BOX(&group_scores_on<Target>));
  m.impl("project", TORCH_BOX(&project_on<Target>));
  m.impl("admm_update_", TORCH_BOX(&admm_update_on<Target>));
  m.impl("proximal_adam_", TORCH_BOX(&proximal_adam_on<Target>));
  m.impl("straight_through_adam_", TORCH_BOX(&straight_through_adam_on<Target>));
  m.impl("proximal_grad_", TORCH_BOX(&proximal_grad_on<Target>));
  m.impl("structured_linear", TORCH_BOX(&structured_linear_on<Target>));
  m.impl("masked_linear", TORCH_BOX(&masked_linear_on<Target>));
  m.impl("structured_conv1d", TORCH_BOX((&structured_conv_on<Target, 1>)));
  m.impl("structured_conv2d", TORCH_BOX((&structured_conv_on<Target, 2>)));
  m.impl("sparse_linear", TORCH_BOX(&sparse_linear_on<Target>));
  m.impl("sparse_conv", TORCH_BOX(&sparse_conv_on<Target>));
}

}  // namespace lps
