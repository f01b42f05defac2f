"""How tensors of the file are stored in fewer bytes than they have, without a loss; docs/format.md has the codes."""

from __future__ import annotations

import zlib

import torch
from torch import Tensor

from lps.artifact.layout import refuse
from lps.observed import dtype_name

RAW, DEFLATE = "raw", "deflate"
WIDER = {"float32": torch.float32, "float64": torch.float64}  # codes: narrower floats that stand for such ones
CODES = (RAW, DEFLATE, *WIDER)

# Huffman codes alone: masks and owners are as good as random, so that there are no repetitions to find. It also bounds
# what a file can make its reader allocate, as no byte then takes less than a bit.
MOST_PER_BYTE = 8


def check_code(name: str, stored: Tensor, code: str) -> None:
    """Refuse a code that is unknown, or that gives no tensor of this name."""
    if code not in CODES:
        refuse(f"tensor {name}: expected the code {', '.join(CODES)}, got {code!r:.60}; update the package")
    form, kind = f"{dtype_name(stored)} {list(stored.shape)}", name.split("/")[2:3]
    if code == DEFLATE and (stored.dtype != torch.uint8 or stored.dim() != 1 or kind not in (["owner"], ["mask"])):
        refuse(f"tensor {name}: expected bytes of owners or of a mask for the code {code}, got {form}")
    if code in WIDER and not (stored.is_floating_point() and stored.itemsize < WIDER[code].itemsize):
        refuse(f"tensor {name}: expected floats of fewer bits for the code {code}, got {form}")


def narrowed(tensor: Tensor) -> tuple[Tensor, str]:
    """The tensor in half the bytes, or less, if that holds exactly its values; and the code."""
    if tensor.dtype in WIDER.values() and tensor.numel():
        for dtype in (torch.float16, torch.bfloat16, torch.float32):
            if dtype.itemsize < tensor.itemsize and torch.equal((narrow := tensor.to(dtype)).to(tensor.dtype), tensor):
                return narrow, dtype_name(tensor)
    return tensor, RAW


def widened(tensor: Tensor, code: str) -> Tensor:
    """The tensor that :func:`narrowed` was given."""
    return tensor.to(WIDER.get(code, tensor.dtype))


def deflated(data: Tensor, raw: Tensor) -> tuple[Tensor, str]:
    """The bytes of ``data`` in Huffman codes, if they are fewer than those of ``raw``, which says the same."""
    coder = zlib.compressobj(wbits=zlib.MAX_WBITS, memLevel=9, strategy=zlib.Z_HUFFMAN_ONLY)
    stream = coder.compress(data.contiguous().numpy().data) + coder.flush()
    if len(stream) >= raw.numel():
        return raw, RAW
    return torch.frombuffer(bytearray(stream), dtype=torch.uint8), DEFLATE


def inflated(name: str, stream: Tensor, size: int) -> Tensor:
    """The bytes, of which there must be ``size``, in these codes; refuses other data before it allocates for it."""
    if size > MOST_PER_BYTE * stream.numel():
        refuse(f"tensor {name}: expected {size:,} bytes in codes of at least a bit each, got {stream.numel():,} bytes")
    decoder = zlib.decompressobj()
    try:
        data = decoder.decompress(stream.numpy().data, size + 1)  # one more than there may be, to see that there is not
    except zlib.error as error:
        refuse(f"tensor {name}: expected a stream of zlib, got other bytes ({error})")
    if len(data) != size or not decoder.eof or decoder.unused_data:
        got = "more" if len(data) > size else f"{len(data):,}" if decoder.eof and len(data) != size else "no whole one"
        refuse(f"tensor {name}: expected one stream of zlib with {size:,} bytes, got {got}")
    return torch.frombuffer(bytearray(data), dtype=torch.uint8) if size else stream.new_empty(0)
