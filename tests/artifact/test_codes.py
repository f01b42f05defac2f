"""Tensors in fewer bytes than they have: exact, bounded, and refused where they are not what they should be."""

from __future__ import annotations

import zlib
from dataclasses import replace
from pathlib import Path

import lps
import pytest
import torch
from lps import Lifelong
from lps.artifact.bits import count_cells, from_cells, to_cells
from lps.artifact.codes import deflated, inflated, narrowed, widened
from lps.errors import ConfigError, FileFormatError
from lps.methods import METHODS
from lps.models import mlp
from lps.partition import rounded
from lps.runs.metrics import capacity, coded_capacity

from lps_kernels import pack_bits
from tests.artifact.crafting import Crafted
from tests.artifact.test_write import read_by_the_document
from tests.toy import QUICK, answers, toy_mlp, toy_net, toy_task

CONFIG = replace(QUICK, epochs=(1, 1, 1))
TASKS = [toy_task(seed) for seed in range(3)]


@pytest.fixture(scope="module")
def half(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three tasks in fp16, of a network large enough for codes to pay."""
    torch.manual_seed(0)
    net = Lifelong(mlp(12, (96, 64), dropout=0.1), features=64)
    config = replace(CONFIG, store="fp16", beta=0.8)
    net.learn(TASKS[0], config)
    first = answers(net, TASKS[:1])
    for task in TASKS[1:]:
        net.learn(task, config)
    assert torch.equal(answers(net, TASKS)[0], first[0])
    path = tmp_path_factory.mktemp("half") / "model.lps"
    net.save(path)
    return path


def test_a_file_in_half_the_bytes_answers_bit_for_bit(half: Path, tmp_path: Path) -> None:
    """The same file again from what was read, and every value is one of fp16."""
    net = lps.load(half)
    assert read_by_the_document(half) == {"raw", "deflate", "float32"}
    for partition, _ in net.prunable():
        assert torch.equal(partition.w_bar.half().float(), partition.w_bar)
    net.save(tmp_path / "again.lps")
    assert (tmp_path / "again.lps").read_bytes() == half.read_bytes()
    full = Lifelong(mlp(12, (96, 64), dropout=0.1), features=64)
    for task in TASKS:
        full.learn(task, replace(CONFIG, beta=0.8))
    full.save(tmp_path / "full.lps")
    values = sum(tensor.nbytes for name, tensor in Crafted(tmp_path / "full.lps").tensors.items() if "/values/" in name)
    fewer = (tmp_path / "full.lps").stat().st_size - half.stat().st_size
    assert fewer > values / 2  # heads are stored in half the bytes too


def test_accuracy_is_that_of_the_rounded_weights() -> None:
    """With bf16, whose eight bits of precision change answers; what is reported is what the network then does."""
    task = toy_task(1)
    config = replace(CONFIG, epochs=(4, 4, 4))
    nets = {}
    for store in ("fp32", "bf16"):
        net = nets[store] = toy_net()
        report = net.learn(task, replace(config, store=store))
        assert report.accuracy == net.accuracy(1, task.validation)
        assert report.test == net.accuracy(1, task.test)
    (exact,), (near,) = (answers(net, [task]) for net in nets.values())
    assert not torch.equal(near, exact)
    torch.testing.assert_close(near, exact, rtol=0.05, atol=0.05)
    (share,) = capacity(nets["fp32"])
    fewer = coded_capacity(nets["fp32"]) - coded_capacity(nets["bf16"])
    assert fewer == pytest.approx(share / 2)


def test_a_weight_that_is_too_large_costs_nothing() -> None:
    """The first layer may have any scale, as batch normalisation follows."""
    net = toy_net()
    weight = net.backbone.get_parameter("0.weight")
    weight.data *= 1e7
    before = weight.detach().clone()
    with pytest.raises(ConfigError, match=r"store: expected weights of at most 65504, got .*; use bf16"):
        net.learn(TASKS[0], replace(CONFIG, store="fp16"))
    assert not net.learnt
    assert torch.equal(net.backbone.get_parameter("0.weight"), before)
    net.learn(TASKS[0], replace(CONFIG, store="bf16"))


def test_methods_that_share_all_weights_refuse_it() -> None:
    for method, norms in (("ewc", "frozen"), ("single", "network"), ("joint", "frozen")):
        with pytest.raises(ConfigError, match=f"store: {method} does not use it"):
            METHODS[method](Lifelong(toy_mlp(), 16, norms=norms), replace(CONFIG, store="fp16"))


@pytest.mark.parametrize("tasks", [1, 2, 3, 4, 7, 8, 15, 16, 127])
@pytest.mark.parametrize("size", [0, 1, 7, 1000])
def test_owners_in_bytes(tasks: int, size: int) -> None:
    owner = torch.randint(tasks + 1, (size,), generator=torch.Generator().manual_seed(tasks), dtype=torch.uint8)
    cells = to_cells(owner, tasks)
    assert len(cells) == count_cells(size, tasks)
    assert torch.equal(from_cells("o", cells, size, tasks), owner)


def test_owners_that_there_are_not_are_refused() -> None:
    with pytest.raises(FileFormatError, match=r"tensor o: expected owners up to task 2, got 3"):
        from_cells("o", to_cells(torch.tensor([3, 0], dtype=torch.uint8), 2), 2, 2)
    with pytest.raises(FileFormatError, match="tensor o: expected 0 in the unused bits"):
        from_cells("o", torch.tensor([0b11000000], dtype=torch.uint8), 2, 2)


def stream_of(data: bytes, level: int = 9) -> torch.Tensor:
    return torch.frombuffer(bytearray(zlib.compress(data, level)), dtype=torch.uint8)


def test_codes_are_near_the_entropy_of_random_bits() -> None:
    bits = torch.rand(80_000, generator=torch.Generator().manual_seed(0)) < 0.1
    packed = pack_bits(bits)
    stream, code = deflated(packed, packed)
    assert code == "deflate"
    assert len(stream) < 1.06 * 0.469 * len(packed)  # bits of information in one with a chance of 0.1
    assert torch.equal(inflated("m", stream, len(packed)), packed)
    random = torch.randint(256, (1000,), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    assert deflated(random, random)[1] == "raw"


@pytest.mark.parametrize(
    ("stream", "size", "message"),
    [
        (stream_of(b"a" * 100), 100_000_000_000, "expected 100,000,000,000 bytes in codes of at least a bit each"),
        (stream_of(b"abc"), 4, "with 4 bytes, got 3"),
        (stream_of(b"abc"), 2, "with 2 bytes, got more"),
        (stream_of(bytes(10**7)), 50_000, "with 50,000 bytes, got more"),
        (stream_of(b"abc")[:-5], 3, "with 3 bytes, got no whole one"),
        (torch.cat([stream_of(b"abc"), stream_of(b"abc")]), 3, "with 3 bytes, got no whole one"),
        (torch.arange(40, dtype=torch.uint8), 40, "expected a stream of zlib, got other bytes"),
    ],
)
def test_streams_that_are_not_what_is_needed(stream: torch.Tensor, size: int, message: str) -> None:
    with pytest.raises(FileFormatError, match=message):
        inflated("m", stream, size)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_narrow_floats_are_exact(dtype: torch.dtype) -> None:
    values = torch.randn(1000, generator=torch.Generator().manual_seed(0)).to(dtype)
    assert narrowed(values)[0].dtype == torch.float32 if dtype == torch.float64 else narrowed(values)[1] == "raw"
    for narrow, scale in ((torch.float16, 1), (torch.bfloat16, 1e9)):  # beyond what fp16 has
        near = rounded(scale * values, narrow)
        stored, code = narrowed(near)
        assert (stored.dtype, code) == (narrow, str(dtype).removeprefix("torch."))
        assert torch.equal(widened(stored, code), near)


@pytest.mark.parametrize(
    ("name", "code", "message"),
    [
        ("net/1/head/bias", "deflate", "expected bytes of owners or of a mask for the code deflate"),
        ("net/all/common/0.bias", "float32", "expected floats of fewer bits for the code float32"),
    ],
)
def test_codes_in_the_wrong_place_are_refused(half: Path, tmp_path: Path, name: str, code: str, message: str) -> None:
    file = Crafted(half)
    name = next(known for known in file.tensors if known.startswith(name.rpartition("/")[0]))
    file.stored[name] = {"code": code}
    (tmp_path / "model.lps").write_bytes(file.content())
    with pytest.raises(FileFormatError, match=message):
        lps.load(tmp_path / "model.lps")


def test_a_damaged_coded_mask_costs_its_task_alone(half: Path, tmp_path: Path) -> None:
    file, content = Crafted(half), bytearray(half.read_bytes())
    mask = next(name for name in file.tensors if name.startswith("net/3/mask/") and "1." in name)
    place = bytes(content).index(file.tensors[mask].numpy().tobytes()) + 20
    content[place] ^= 0xFF
    (tmp_path / "model.lps").write_bytes(content)
    with pytest.raises(FileFormatError, match=f"tensor {mask}, which belongs to task 3, is damaged"):
        lps.load(tmp_path / "model.lps")
    net, whole = lps.load(tmp_path / "model.lps", salvage=True), lps.load(half)
    assert [bool(task.damage) for task in net.learnt] == [False, False, True]
    for kept, saved in zip(answers(whole, TASKS[:2]), answers(net, TASKS[:2]), strict=True):
        assert torch.equal(saved, kept)
