"""DeepSparse 1.8, the strongest engine there was for irregular weights on CPUs, as a peer.

It wants versions of numpy and onnx that we do not, so it lives in a virtual environment of its own, made in the user's
cache directory on first use, and runs in a process of its own. That process stays and measures on command: its threads
use no processor time once a call is over. Ours and DeepSparse take turns by rounds, not call by call.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.environments import last_line
from benchmarks.peers import UnavailableError
from benchmarks.timing import Thunk, Timing, time_calls

NAME = "DeepSparse"
# Without its dependencies, which ask for versions that are no longer published; it runs with these.
INSTALL = (
    ["--no-deps", "deepsparse==1.8.0"],
    ["onnx==1.14.1", "numpy==1.26.4", "sparsezoo==1.8.1", "tqdm", "pydantic", "requests", "click", "protobuf"],
)
WORKER = Path(__file__).with_name("deepsparse_worker.py")
# What onnx 1.14 reads.
OPSET, IR_VERSION = 13, 8
ROUNDS = 6


class DeepSparse:
    """A running DeepSparse; a context manager that ends its process."""

    def __init__(self, python: Path) -> None:
        environment = {**os.environ, "NM_DISABLE_ANALYTICS": "True"}  # it would report each use to its makers
        self._folder = tempfile.TemporaryDirectory()
        self._log = (Path(self._folder.name) / "log").open("w+")
        try:
            self._process = subprocess.Popen(
                [python, "-I", WORKER],  # isolated: or `deepsparse` is this file, which lies beside the worker
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                text=True,
                env=environment,
            )
        except OSError as error:
            self._close_files()
            raise UnavailableError(f"DeepSparse does not start: {error}") from error

    def __enter__(self) -> DeepSparse:
        """Itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """End the process and remove what it read."""
        try:
            self._process.communicate(timeout=10)  # the end of its input is the end of its work
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()
        self._close_files()

    def load(self, network: nn.Module, inputs: Tensor) -> Tensor:
        """Let it run a chain of linear layers and ReLU; returns its answer to the inputs."""
        folder = Path(self._folder.name)
        model, given, answered = folder / "model.onnx", folder / "inputs.npy", folder / "outputs.npy"
        model.write_bytes(chain_as_onnx(network, len(inputs)))
        np.save(given, inputs.numpy())
        files = {"model": str(model), "inputs": str(given), "outputs": str(answered)}
        self._ask({**files, "batch": len(inputs), "threads": torch.get_num_threads()})
        return torch.from_numpy(np.load(answered))

    def time_calls(self, seconds: float) -> list[float]:
        """Seconds of each call on the network and the inputs that it has loaded."""
        samples: list[float] = self._ask({"seconds": seconds})["samples"]
        return samples

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            self._log.seek(0)
            raise UnavailableError(f"DeepSparse ended: {last_line(self._log.read())}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise UnavailableError(f"DeepSparse does not run here: {answer['error']}")
        return answer

    def _close_files(self) -> None:
        self._log.close()
        self._folder.cleanup()


def in_rounds(ours: Thunk, peer: DeepSparse, seconds: float) -> tuple[Timing, Timing]:
    """Time ours and DeepSparse round by round, for about ``seconds`` each in all."""
    our_samples: list[float] = []
    peer_samples: list[float] = []
    for _ in range(ROUNDS):
        our_samples += time_calls(ours, seconds / ROUNDS)
        peer_samples += peer.time_calls(seconds / ROUNDS)
    return Timing.of(our_samples), Timing.of(peer_samples)


def chain_as_onnx(network: nn.Module, batch: int) -> bytes:
    """A chain of linear layers and ReLU as an ONNX model in the oldest form that serves, which DeepSparse reads best.

    Layers that do nothing at rest (flattening of what is flat, dropout) are left out.
    """
    try:
        from onnx import TensorProto, helper, numpy_helper  # noqa: PLC0415  an optional extra
    except ImportError as error:
        raise UnavailableError(f"no ONNX file can be written for DeepSparse: {error}") from error
    layers = [module for module in network.modules() if not list(module.children())]
    linears = [layer for layer in layers if isinstance(layer, nn.Linear)]
    nodes, weights, before = [], [], "input"
    for place, layer in enumerate(layers):
        after = f"value{place}"
        if isinstance(layer, nn.Linear):
            weights.append(numpy_helper.from_array(layer.weight.numpy().T.copy(), f"weight{place}"))
            weights.append(numpy_helper.from_array(layer.bias.numpy(), f"bias{place}"))
            nodes.append(helper.make_node("Gemm", [before, f"weight{place}", f"bias{place}"], [after]))
        elif isinstance(layer, nn.ReLU):
            nodes.append(helper.make_node("Relu", [before], [after]))
        else:
            assert isinstance(layer, nn.Flatten | nn.Dropout), f"{type(layer).__name__} in a chain of linear layers"
            continue
        before = after
    source = helper.make_tensor_value_info("input", TensorProto.FLOAT, [batch, linears[0].in_features])
    result = helper.make_tensor_value_info(before, TensorProto.FLOAT, [batch, linears[-1].out_features])
    graph = helper.make_graph(nodes, "chain", [source], [result], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)])
    model.ir_version = IR_VERSION
    content: bytes = model.SerializeToString()
    return content
