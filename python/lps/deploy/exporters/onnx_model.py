"""``onnx``: the cut-out network as an ONNX model of standard operators, in one file."""

from __future__ import annotations

import importlib
from functools import partial

import torch
from torch import Tensor

from lps.batch import tensors_of
from lps.deploy.exporters.base import Exporter, Labels, Run, to_program, write_portable
from lps.deploy.extraction.trace import argument_names
from lps.errors import ConfigError
from lps.signature import Signature
from lps_kernels.calls import Inputs
from lps_kernels.cutout import Cutout

OPSET = 18
PROTOBUF_BYTES = 2**31  # a protobuf message, so also an ONNX file without others beside it, is smaller than this


def _convert(model: Cutout, inputs: Inputs, signature: Signature, labels: Labels) -> tuple[bytes, Run]:
    """The content of the file, and what ONNX Runtime answers with it."""
    import onnx  # noqa: PLC0415  an optional extra
    import onnxruntime  # type: ignore[import-untyped]  # noqa: PLC0415

    size = sum(tensor.numel() * tensor.element_size() for tensor in model.state_dict().values())
    if size >= PROTOBUF_BYTES:
        raise ConfigError(f"--format: an ONNX file holds less than 2 GB, got weights of {size:,} bytes; use torch")
    names = argument_names(signature)
    exported = torch.onnx.export(
        to_program(model, inputs, signature),
        dynamo=True,
        opset_version=OPSET,
        external_data=False,
        verbose=False,
        input_names=names,
        output_names=["logits"],
    )
    assert exported is not None
    proto = exported.model_proto
    for node in proto.graph.node:
        del node.metadata_props[:]  # of use to the exporter only
    onnx.helper.set_model_props(proto, labels)
    foreign = {node.domain for node in proto.graph.node} - {""}
    assert not foreign, f"operators of {foreign} in a portable network"
    content: bytes = proto.SerializeToString()
    onnx.checker.check_model(content, full_check=True)
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(content, settings, providers=["CPUExecutionProvider"])

    def run(batch: Inputs) -> Tensor:
        read = {each.name for each in session.get_inputs()}  # not those that the network does without
        given = zip(names, tensors_of(batch), strict=True)
        return torch.from_numpy(session.run(None, {name: part.numpy() for name, part in given if name in read})[0])

    return content, run


def why_no_onnx() -> str | None:
    """Which package of the extra is missing, and what to do; None where ONNX files can be written and run."""
    for package in ("onnx", "onnxscript", "onnxruntime"):
        try:
            importlib.import_module(package)
        except ImportError as error:
            return f"{package} cannot be imported ({error}); pip install learn-prune-share[export]"
    return None


EXPORTER = Exporter(".onnx", partial(write_portable, convert=_convert), needs_input_shape=True, missing=why_no_onnx)
