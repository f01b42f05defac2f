"""Mutations that know the file formats, so that a fuzzer gets past checksums, compression and JSON.

A mutator takes bytes, a random generator and libFuzzer's own mutation of bytes, and returns other bytes; those that it
cannot take apart it hands to libFuzzer.
"""

from __future__ import annotations

import ast
import gzip
import hashlib
import io
import json
import re
import struct
import zipfile
import zlib
from collections.abc import Callable
from random import Random
from typing import Any

Plain = Callable[[bytes], bytes]  # libFuzzer's own mutation
Mutator = Callable[[bytes, Random, Plain], bytes]

NUMBERS = (0, 1, -1, 2, 3, 7, 255, 256, 2**15, 2**31 - 1, 2**31, 2**32, 2**53, 2**62, 2**63 - 1, 2**63, 2**64, 10**400)
VALUES: tuple[Any, ...] = (
    *NUMBERS,
    None,
    True,
    False,
    0.5,
    -0.0,
    1e308,
    1e-320,
    "",
    "0",
    "\0",
    "\ud800",
    "../x",
    "x" * 5000,
    [],
    {},
    [[]],
)
DTYPES = ("<f4", ">f8", "|u1", "<i2", "|O", "<M8[ns]", "|V8", "<U1000000000", "|b1", "<c16", "S0", "V0", "f4,u1", "")
LEAVE = 0.3  # the share of mutations that are libFuzzer's own


def changed(value: Any, random: Random, everything: list[Any]) -> Any:
    """A value as JSON knows it, with one place in it changed; ``everything`` are the values of the whole document."""
    if isinstance(value, (dict, list)) and value and random.random() < 0.9:
        place = random.choice(list(value) if isinstance(value, dict) else range(len(value)))
        copy: Any = value.copy()
        choice = random.random()
        if choice < 0.06:
            del copy[place]
        elif choice < 0.1 and isinstance(copy, list):
            copy.insert(place, copy[place])
        elif choice < 0.1:
            copy[str(random.choice(VALUES))] = copy[place]
        else:
            copy[place] = changed(value[place], random, everything)
        return copy
    choice = random.random()
    if choice < 0.3:
        return random.choice(everything)
    if choice < 0.5 and type(value) is int:
        return value + random.choice((-1, 1, 8, -8, value))
    if choice < 0.55:
        return nested(random.choice((10, 300, 3000)))
    return random.choice(VALUES)


def nested(depth: int) -> list[Any]:
    """Brackets in brackets."""
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


def _parts(value: Any) -> list[Any]:
    """The value and all that are in it."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [value, *(part for item in inner for part in _parts(item))]


def _dumped(value: Any) -> str:
    try:
        return json.dumps(value)
    except RecursionError:
        return "[" * 3000 + "]" * 3000


def json_text(data: bytes, random: Random, plain: Plain) -> bytes:
    """Other JSON, which is YAML too."""
    try:
        value = json.loads(data)
        if random.random() >= LEAVE:
            return _dumped(changed(value, random, _parts(value))).encode()
    except (ValueError, RecursionError):
        pass
    return plain(data)


# safetensors: the size of the header, the header as JSON, the bytes of the tensors.


def taken_apart(data: bytes) -> tuple[dict[str, Any], bytes]:
    size = int.from_bytes(data[:8], "little")
    return json.loads(data[8 : 8 + size]), data[8 + size :]


def _put_together(header: dict[str, Any], body: bytes) -> bytes:
    text = _dumped(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + body


def _of(header: dict[str, Any], body: bytes, name: str) -> bytes:
    start, end = header[name]["data_offsets"]
    return body[start:end]


def sealed_model(header: dict[str, Any], body: bytes) -> bytes:
    """A model.lps whose sums fit its contents."""
    manifest = json.loads(header["__metadata__"]["manifest"])
    for name, stored in manifest["tensors"].items():
        if name in header and isinstance(stored, dict):
            stored["sha256"] = hashlib.sha256(_of(header, body, name)).hexdigest()
    text = _dumped(manifest)
    start, end = header["checksum"]["data_offsets"]
    body = body[:start] + hashlib.sha256(text.encode()).digest() + body[end:]
    return _put_together({**header, "__metadata__": {"manifest": text}}, body)


def sealed_state(header: dict[str, Any], body: bytes) -> bytes:
    """A state whose sum fits its contents."""
    text = header["__metadata__"]["manifest"]
    digest = hashlib.sha256(text.encode())
    for name in sorted(name for name in header if name != "__metadata__"):
        dtype = _TORCH_NAMES.get(header[name]["dtype"], "?")
        digest.update(f"\ntorch.{dtype} {header[name]['shape']}\n".encode())
        digest.update(_of(header, body, name))
    return _put_together({**header, "__metadata__": {"manifest": text, "sha256": digest.hexdigest()}}, body)


_TORCH_NAMES = {
    **{"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "BOOL": "bool"},
    **{"I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8", "U8": "uint8"},
}


def _safetensors(
    data: bytes,
    random: Random,
    plain: Plain,
    sealed: Callable[[dict[str, Any], bytes], bytes],
    manifest_only: str | None,
) -> bytes:
    """Change the manifest, the bytes of the tensors or the header, and mend the sums."""
    try:
        header, body = taken_apart(data)
        choice = random.random()
        if choice < 0.6:
            manifest = json.loads(header["__metadata__"]["manifest"])
            part = manifest if manifest_only is None else manifest[manifest_only]
            part = changed(part, random, _parts(part))
            header["__metadata__"]["manifest"] = _dumped(
                part if manifest_only is None else {**manifest, manifest_only: part}
            )
        elif choice < 0.7:
            body = plain(body)
        elif choice < 0.8:
            header = changed(header, random, _parts(header))
        else:
            return plain(data)
        return sealed(header, body)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return plain(data)


def model(data: bytes, random: Random, plain: Plain) -> bytes:
    """Another model.lps."""
    return _safetensors(data, random, plain, sealed_model, None)


def state(data: bytes, random: Random, plain: Plain) -> bytes:
    """Another state of learning."""
    return _safetensors(data, random, plain, sealed_state, "state")


# Arrays and archives.


def npy(data: bytes, random: Random, plain: Plain) -> bytes:
    """Another array: a header with another shape or type, or other bytes."""
    match = re.match(rb"\x93NUMPY\x01\x00..(\{.*?\}) *\n", data, re.DOTALL)
    if match is None or random.random() < LEAVE:
        return plain(data)
    try:
        header = ast.literal_eval(match[1].decode("latin-1"))
        choice = random.random()
        if choice < 0.5:
            shape = [*header["shape"]]
            header["shape"] = tuple(changed(shape, random, shape or [0]))
        elif choice < 0.8:
            header["descr"] = random.choice(
                (*DTYPES, [("a", "<f4")], ("<f4", (3,)), {"names": ["a"], "formats": ["u1"]})
            )
        else:
            header[random.choice(list(header))] = random.choice(VALUES)
        text = repr(header).encode("utf-8", "replace") + b"\n"
    except (ValueError, SyntaxError, TypeError, LookupError, AttributeError, RecursionError, MemoryError):
        return plain(data)
    version = random.choice((1, 1, 1, 2, 3))
    length = struct.pack("<H", min(len(text), 65535)) if version == 1 else struct.pack("<I", len(text))
    return b"\x93NUMPY" + bytes([version, 0]) + length + text + data[match.end() :]


def zipped(data: bytes, random: Random, plain: Plain) -> bytes:
    """Another npz file: another array in it, another list of arrays, another way of packing."""
    if random.random() < LEAVE:
        return plain(data)
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = {
                member.filename: archive.read(member) for member in archive.infolist() if member.file_size < 2**20
            }
    except Exception:  # whatever zipfile raises for bytes that are no archive
        return plain(data)
    if members:
        name = random.choice(list(members))
        choice = random.random()
        if choice < 0.05:
            members[random.choice(("x", "iq", "labels.npy", "iq/", "\u00e9"))] = members.pop(name)
        else:
            members[name] = npy(members[name], random, plain)
    written = io.BytesIO()
    kind = random.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2))
    with zipfile.ZipFile(written, "w", kind) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return written.getvalue()


def _gunzipped(data: bytes) -> bytes | None:
    try:
        return zlib.decompressobj(31).decompress(data, 2**22)
    except zlib.error:
        return None


def gzipped(data: bytes, random: Random, plain: Plain) -> bytes:
    """Other contents in gzip, or other bytes."""
    content = _gunzipped(data)
    if content is None or random.random() < LEAVE:
        return plain(data)
    return gzip.compress(plain(content), 1, mtime=0)


def archive(data: bytes, random: Random, plain: Plain) -> bytes:
    """Another file of CIFAR: npz, tar.gz whose headers have the right sum, or plain bytes."""
    if data[:2] == b"PK":
        return zipped(data, random, plain)
    content = _gunzipped(data)
    if content is None or random.random() < LEAVE:
        return plain(data)
    blocks = bytearray(plain(content))
    for start in range(0, len(blocks) - 511, 512):
        if blocks[start + 257 : start + 262] == b"ustar":
            if random.random() < 0.3:
                blocks[start + 156] = random.choice(b"0\x00125xgLKS")
            if random.random() < 0.3:
                blocks[start + 124 : start + 136] = b"%011o\0" % random.choice((0, 1, 6146, 2**20, 2**33 - 1))
            blocks[start + 148 : start + 156] = b" " * 8
            blocks[start + 148 : start + 156] = b"%06o\0 " % sum(blocks[start : start + 512])
    return gzip.compress(bytes(blocks), 1, mtime=0)


def lines(data: bytes, random: Random, plain: Plain) -> bytes:
    """Another text: lines of it twice, left out, mixed with others or changed."""
    parts = data.split(b"\n")
    if random.random() < LEAVE:
        return plain(data)
    place, choice = random.randrange(len(parts)), random.random()
    if choice < 0.3:
        parts.insert(place, random.choice(parts))
    elif choice < 0.6:
        del parts[place]
    elif choice < 0.8:
        kind, _, rest = random.choice(parts).partition(b" ")
        parts[place] = random.choice((b"image", b"text", b"link", b"pipe", kind)) + b" " + rest
    else:
        parts[place] = plain(parts[place])
    return b"\n".join(parts)


def matlab(data: bytes, random: Random, plain: Plain) -> bytes:
    """Another MATLAB file: other contents in one of its elements, packed again, with the right length."""
    elements, place = [], 128
    while place + 8 <= len(data):
        kind, size = struct.unpack_from("<2I", data, place)
        elements.append((kind, data[place + 8 : place + 8 + size]))
        place += 8 + size
    if not elements or random.random() < LEAVE:
        return plain(data)
    chosen = random.randrange(len(elements))
    kind, content = elements[chosen]
    if kind == 15:
        try:
            content = zlib.decompressobj().decompress(content, 2**22)
        except zlib.error:
            return plain(data)
    content = plain(content)
    kind = random.choice((14, 15))
    elements[chosen] = kind, zlib.compress(content) if kind == 15 else content[8:]
    return data[:128] + b"".join(struct.pack("<2I", kind, len(part)) + part for kind, part in elements)


def image(data: bytes, random: Random, plain: Plain) -> bytes:
    """Another image; the chunks of a PNG get the right sums."""
    other = bytearray(plain(data))
    if other[:8] != b"\x89PNG\r\n\x1a\n" or random.random() < LEAVE:
        return bytes(other)
    place = 8
    while place + 12 <= len(other):
        size = int.from_bytes(other[place : place + 4])
        end = place + 8 + size
        if end + 4 > len(other):
            break
        other[end : end + 4] = zlib.crc32(other[place + 4 : end]).to_bytes(4)
        place = end + 4
    return bytes(other)
