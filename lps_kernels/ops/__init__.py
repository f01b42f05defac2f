"""One file per operator family; importing this package registers every operator."""

from lps_kernels.ops.admm import admm_update_
from lps_kernels.ops.bits import pack_bits, unpack_bits
from lps_kernels.ops.compose import compose, compose_owned
from lps_kernels.ops.convolution import structured_conv1d, structured_conv2d
from lps_kernels.ops.linear import masked_linear, structured_linear
from lps_kernels.ops.project import project
from lps_kernels.ops.scores import View, group_scores, group_view
from lps_kernels.ops.sparse import sparse_conv, sparse_linear
from lps_kernels.ops.step import proximal_adam_, proximal_grad_
from lps_kernels.ops.task_weight import task_weight

__all__ = [
    "View",
    "admm_update_",
    "compose",
    "compose_owned",
    "group_scores",
    "group_view",
    "masked_linear",
    "pack_bits",
    "project",
    "proximal_adam_",
    "proximal_grad_",
    "sparse_conv",
    "sparse_linear",
    "structured_conv1d",
    "structured_conv2d",
    "structured_linear",
    "task_weight",
    "unpack_bits",
]
