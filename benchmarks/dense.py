"""The dense baseline: one and the same network under torch and under ONNX Runtime; the faster of them counts.

torch alone would flatter us: its matrix products are slow on some processors, where ONNX Runtime's are not.
"""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import torch
from lps.deploy.exporters.base import quiet
from lps.deploy.exporters.onnx_model import why_no_onnx
from torch import Tensor, nn

from benchmarks.timing import Timing

Run = Callable[[], Tensor]


def dense_runs(network: nn.Module, inputs: Tensor) -> tuple[dict[str, Run], str | None]:
    """Runners of the whole network on these inputs, and why ONNX Runtime is not among them; None where it is."""
    runs: dict[str, Run] = {"torch": partial(network, inputs)}
    if inputs.dim() == 4:
        images = inputs.contiguous(memory_format=torch.channels_last)
        # A copy: to() would change the layout of the network that the other callables hold.
        runs["torch channels-last"] = partial(_channels_last(network), images)
    missing = why_no_onnx()
    if missing is None:
        runs["ONNX Runtime"] = onnx_run(network, inputs)
    return runs, missing


def fastest(timings: Mapping[str, Timing], runs: Mapping[str, Run]) -> tuple[str, Timing]:
    """Who of these has the best call."""
    return min(((name, timings[name]) for name in runs), key=lambda item: item[1].best)


def onnx_run(network: nn.Module, inputs: Tensor) -> Run:
    """The network in ONNX Runtime for inputs of exactly this shape, on as many threads as torch uses.

    Weights are read from a file that is gone when this returns.
    """
    import onnxruntime  # type: ignore[import-untyped]  # noqa: PLC0415  an optional extra

    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = torch.get_num_threads()
    settings.log_severity_level = 3  # errors
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "dense.onnx"
        with quiet():
            torch.onnx.export(network, (inputs,), path, dynamo=True, verbose=False, input_names=["input"])
        session = onnxruntime.InferenceSession(path, settings, providers=["CPUExecutionProvider"])
    feed = {"input": inputs.numpy()}
    return lambda: torch.from_numpy(session.run(None, feed)[0])


def _channels_last(network: nn.Module) -> nn.Module:
    return copy.deepcopy(network).to(memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]
