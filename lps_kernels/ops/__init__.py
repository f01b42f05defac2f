"""One file per operator family, one line here per public function; importing this package declares every operator."""

from typing import TYPE_CHECKING

from lps_kernels._registry import REGISTRY
from lps_kernels.ops.admm import admm_update_ as admm_update_
from lps_kernels.ops.bits import pack_bits as pack_bits
from lps_kernels.ops.bits import unpack_bits as unpack_bits
from lps_kernels.ops.compose import compose as compose
from lps_kernels.ops.compose import compose_owned as compose_owned
from lps_kernels.ops.convolution import structured_conv1d as structured_conv1d
from lps_kernels.ops.convolution import structured_conv2d as structured_conv2d
from lps_kernels.ops.linear import masked_linear as masked_linear
from lps_kernels.ops.linear import structured_linear as structured_linear
from lps_kernels.ops.project import project as project
from lps_kernels.ops.scores import View as View
from lps_kernels.ops.scores import group_scores as group_scores
from lps_kernels.ops.scores import group_view as group_view
from lps_kernels.ops.sparse import sparse_conv as sparse_conv
from lps_kernels.ops.sparse import sparse_linear as sparse_linear
from lps_kernels.ops.step import proximal_adam_ as proximal_adam_
from lps_kernels.ops.step import proximal_grad_ as proximal_grad_
from lps_kernels.ops.straight_through import straight_through_adam_ as straight_through_adam_
from lps_kernels.ops.task_weight import task_weight as task_weight

if not TYPE_CHECKING:  # type checkers and editors read the aliases above: they cannot compute a list
    __all__ = ["View", "group_view"]
    __all__ += [name for name, op in REGISTRY.items() if op.public]
