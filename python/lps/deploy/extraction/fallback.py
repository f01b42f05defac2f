"""For networks that torch.fx cannot trace: layers are replaced one by one and keep their shapes."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from lps.deploy.extraction.formats import KERNEL_FORMATS, Shrunk, Target, build, choose, summarise
from lps.deploy.extraction.ops import Convs, is_layer
from lps.deploy.extraction.rebuild import UNKNOWN_POSITIONS, plain_name
from lps_kernels.cutout import LayerSummary

CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)


def replace_layers(network: nn.Module, target: Target) -> list[LayerSummary]:
    """Put layers in other formats into the network; says what became of each."""
    summaries = []
    for parent, name, path, module in list(_called_layers(network)):
        positions = target.batch_size * (1 if isinstance(module, nn.Linear) else UNKNOWN_POSITIONS)
        bias = None if module.bias is None else module.bias.detach()
        layer = Shrunk(module, module.weight.detach(), bias, positions)
        format = choose(layer, target)
        built: nn.Module = module
        if format in KERNEL_FORMATS:
            built = build(layer, format, relu=False)
            setattr(parent, name, built)
        else:  # a selection of inputs needs a graph
            format = "dense"
        summaries.append(summarise(plain_name(path), layer, format, built))
    return summaries


def _called_layers(parent: nn.Module, prefix: str = "") -> Iterator[tuple[nn.Module, str, str, nn.Linear | Convs]]:
    """Layers with their parents, names and paths, except inside torch's own modules and classes derived from them.

    These (attention) read the weights of their children instead of calling them.
    """
    bases = [base for base in type(parent).__mro__ if base not in (nn.Module, object, *CONTAINERS)]
    if any(base.__module__.startswith("torch.nn") for base in bases):
        return
    for name, child in parent.named_children():
        if isinstance(child, nn.Linear | Convs) and is_layer(child):
            yield parent, name, f"{prefix}{name}", child
        else:
            yield from _called_layers(child, f"{prefix}{name}.")
