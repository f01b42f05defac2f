"""Every operator on a GPU, by the CUDA kernels of the library and by the Triton kernels: ``python -m pytest -m gpu``.

The authors had no GPU. What could be tried is that this file itself runs: ``LPS_TEST_DEVICE=cpu`` puts the CPU kernels
of the library in the place of the CUDA ones, and ``TRITON_INTERPRET=1`` lets Triton's interpreter run its own.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lps
import pytest
import torch
from torch import Tensor

import lps_kernels
from lps_kernels import ProximalAdam, WeightState
from lps_kernels._registry import REGISTRY, Args, Op
from lps_kernels._samples import Draw
from tests.helpers import (
    CorrectSqrt,
    assert_close,
    assert_same_bits,
    copy_of,
    each_op,
    each_op_and_dtype,
    map_tensors,
    results_of,
    small_samples,
    tensors_in,
)
from tests.toy import QUICK, inputs_of, toy_mlp, toy_net, toy_task

DEVICE = os.environ.get("LPS_TEST_DEVICE", "cuda")
ON_GPU = DEVICE == "cuda"
NATIVE = "cuda" if ON_GPU else "native"
BACKENDS = (NATIVE, "triton")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(ON_GPU and not torch.cuda.is_available(), reason="torch sees no GPU"),
]
needs_gpu = pytest.mark.skipif(not ON_GPU, reason="streams and graphs are a GPU's")
each_backend = pytest.mark.parametrize("backend", BACKENDS)


def implementation(op: Op, backend: str) -> Callable[..., Any]:
    """The operator of this backend; skips with the reason if the backend is not active."""
    if backend == "triton":
        if not ON_GPU and os.environ.get("TRITON_INTERPRET") != "1":
            pytest.skip("Triton's kernels run on a GPU or in its interpreter (TRITON_INTERPRET=1)")
        kernels: dict[str, Callable[..., Any]] = pytest.importorskip("lps_kernels.backends.triton").KERNELS
        return kernels[op.name]
    (found,) = [candidate for candidate in lps_kernels.backends() if candidate.name == backend]
    if not found.active:
        pytest.skip(f"the {backend} backend is not active: {found.reason}")
    overload: Callable[..., Any] = op.overload
    return overload


def placed(args: Args) -> Args:
    """A copy on the device with the strides of the arguments; tensors that share memory still do."""
    storages: dict[int, Tensor] = {}

    def place(tensor: Tensor) -> Tensor:
        if tensor.device.type != "cpu" or tensor.numel() == 0:
            return tensor.to(DEVICE, copy=True)
        memory = tensor.untyped_storage()
        if memory.data_ptr() not in storages:
            flat = torch.empty(0, dtype=torch.uint8).set_(memory)
            storages[memory.data_ptr()] = flat.to(DEVICE, copy=True)
        typed = storages[memory.data_ptr()].view(tensor.dtype)
        return typed.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())

    moved: Args = map_tensors(args, place)
    return moved


def on_host(tensors: list[Tensor]) -> list[Tensor]:
    return [tensor.cpu() for tensor in tensors]


def compare(op: Op, dtype: torch.dtype, args: Args, got: list[Tensor], want: list[Tensor], what: str) -> None:
    """Compare bit by bit, except sums and powers computed on the device."""
    powers = op.name in ("proximal_adam_", "straight_through_adam_") and args[-1] is not None
    if op.sums or powers:
        assert_close(op, dtype, got, want, what)
    else:
        assert_same_bits(got, want, what)


@each_backend
@each_op_and_dtype(lambda op, dtype: True)
def test_op_gives_the_results_of_its_reference(op: Op, dtype: torch.dtype, backend: str) -> None:
    run = implementation(op, backend)
    for sample in op.samples(dtype):
        with CorrectSqrt():
            want = results_of(op, op.reference, copy_of(sample.args))
        got = on_host(results_of(op, run, placed(sample.args)))
        compare(op, dtype, sample.args, got, want, f"{op.name}, {sample.name}")


@each_op_and_dtype(lambda op, dtype: True)
def test_both_backends_agree(op: Op, dtype: torch.dtype) -> None:
    first, second = (implementation(op, backend) for backend in BACKENDS)
    for sample in op.samples(dtype):
        got, want = (on_host(results_of(op, run, placed(sample.args))) for run in (first, second))
        compare(op, dtype, sample.args, got, want, f"{op.name}, {sample.name}")


@each_backend
@each_op
def test_results_are_the_same_bits_every_time(op: Op, backend: str) -> None:
    run = implementation(op, backend)
    for sample in small_samples(op, op.dtypes[0], limit=4, most=200_000):
        results = [on_host(results_of(op, run, placed(sample.args))) for _ in range(3)]
        for again in results[1:]:
            assert_same_bits(again, results[0], f"{op.name}, {sample.name}")


@each_backend
@each_op
def test_bad_input_is_refused_with_its_sentence_and_nothing_is_written(op: Op, backend: str) -> None:
    run = implementation(op, backend)
    for bad in op.bad_inputs():
        if bad.reads_values or "meta" in bad.message:
            continue
        args = placed(bad.args)
        before = [tensor.clone() for tensor in tensors_in(args)]
        with pytest.raises(RuntimeError) as refusal:
            run(*args)
        assert str(refusal.value) == bad.message, f"{op.name}, {bad.name}"
        assert_same_bits(tensors_in(args), before, f"{op.name}, {bad.name}")


@each_op
def test_opcheck(op: Op) -> None:
    for sample in small_samples(op, op.dtypes[0], limit=2, most=10_000):
        torch.library.opcheck(op.overload, placed(sample.args))


@pytest.mark.parametrize("name", ["compose", "compose_owned"])
def test_gradients_are_those_of_the_reference(name: str) -> None:
    op = REGISTRY[name]
    for sample in small_samples(op, torch.float32, limit=5, most=1000):
        gradients = []
        for args in (copy_of(sample.args), placed(sample.args)):
            leaf = args[0].requires_grad_()
            op.overload(*args).sum().backward()
            assert leaf.grad is not None
            gradients.append(leaf.grad.cpu())
        assert_same_bits([gradients[1]], [gradients[0]], f"{name}, {sample.name}")


@needs_gpu
@each_backend
@each_op
def test_no_call_waits_for_the_device(op: Op, backend: str) -> None:
    run = implementation(op, backend)
    for sample in small_samples(op, op.dtypes[0], limit=3, most=10_000):
        args, again = placed(sample.args), placed(sample.args)
        run(*args)  # compiles, allocates
        torch.cuda.synchronize()
        slept = torch.cuda.Event()  # type: ignore[no-untyped-call]
        torch.cuda._sleep(500_000_000)  # type: ignore[no-untyped-call] # a quarter of a second
        slept.record()
        run(*again)
        woken = slept.query()  # type: ignore[no-untyped-call]
        assert not woken, f"{op.name}, {sample.name}: the call returned only after the device had woken up"
        torch.cuda.synchronize()


@needs_gpu
@each_backend
@each_op
def test_calls_keep_to_the_current_stream(op: Op, backend: str) -> None:
    run = implementation(op, backend)
    sample = small_samples(op, op.dtypes[0], limit=1, most=10_000)[0]
    want = on_host(results_of(op, run, placed(sample.args)))
    args, late = placed(sample.args), placed(sample.args)
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        for tensor in tensors_in(late):
            tensor.zero_()
        torch.cuda._sleep(50_000_000)  # type: ignore[no-untyped-call]
        for tensor, value in zip(tensors_in(late), tensors_in(args), strict=True):
            tensor.copy_(value)
        results = results_of(op, run, late)
    side.synchronize()
    assert_same_bits(on_host(results), want, op.name)


def make_layers(sizes: list[tuple[int, ...]]) -> list[WeightState]:
    """Layers with gradients on the device; every call returns the same values."""
    draw, layers = Draw(), []
    for size in sizes:
        v, w_bar, centre, gradient = (draw.normal(size).to(DEVICE) for _ in range(4))
        owner = draw.owner(size).to(DEVICE)
        effective = torch.nn.Parameter(lps_kernels.compose_owned(v, w_bar, owner))
        effective.grad = gradient
        layers.append(WeightState(effective, v, w_bar, owner, centre))
    return layers


@needs_gpu
def test_a_step_captured_in_a_graph_goes_on_counting() -> None:
    sizes: list[tuple[int, ...]] = [(65, 33), (7,), (20, 30)]
    eager, captured = (ProximalAdam(make_layers(sizes), lr=1e-2, rho=0.1, tau=0.2, capturable=True) for _ in range(2))
    for _ in range(5):
        eager.step()
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        captured.step()
    side.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured.step()
    for _ in range(4):
        graph.replay()
    for first, second in zip(eager.layers, captured.layers, strict=True):
        assert_same_bits([second.v.cpu(), second.effective.cpu()], [first.v.cpu(), first.effective.cpu()], "step")


@needs_gpu
@pytest.mark.parametrize(
    # Triton's table of layers holds the addresses of the results, which are new tensors at every call of project.
    ("name", "backend"),
    [
        ("admm_update_", NATIVE),
        ("project", NATIVE),
        ("straight_through_adam_", NATIVE),
        ("admm_update_", "triton"),
        ("straight_through_adam_", "triton"),
    ],
)
def test_a_selection_can_be_captured_in_a_graph(name: str, backend: str) -> None:
    op = REGISTRY[name]
    run = implementation(op, backend)
    sample = small_samples(op, torch.float32, limit=1, most=10_000)[0]
    want = on_host(results_of(op, run, placed(sample.args)))
    args = placed(sample.args)
    originals = [tensor.clone() for tensor in tensors_in(args)]
    graph = torch.cuda.CUDAGraph()
    run(*args)
    with torch.cuda.graph(graph):
        results = results_of(op, run, args)
    for tensor, original in zip(tensors_in(args), originals, strict=True):
        tensor.copy_(original)
    graph.replay()
    assert_same_bits(on_host(results), want, name)


@needs_gpu
def test_offsets_have_64_bits() -> None:
    count = 2**31 + 9
    free, _ = torch.cuda.mem_get_info()
    if free < 5 * 2 * count:
        pytest.skip(f"needs 22 GB of the GPU's memory, got {free / 1e9:.0f} GB")
    w = torch.ones(count, dtype=torch.float16, device=DEVICE)
    mask = torch.ones(count, dtype=torch.bool, device=DEVICE)
    assert bool((lps_kernels.compose(w, mask, w) == 2).all())
    assert int(lps_kernels.unpack_bits(lps_kernels.pack_bits(mask), [count]).sum()) == count


def test_learning_forgets_nothing(tmp_path: Path) -> None:
    tasks, net = [toy_task(seed) for seed in range(3)], toy_net().to(DEVICE)

    def answer() -> Tensor:
        net.eval()
        with torch.no_grad():
            logits: Tensor = net(inputs_of(tasks[0]).to(DEVICE), task=1)
        return logits.cpu()

    net.learn(tasks[0], QUICK)
    before = answer()
    for task in tasks[1:]:
        net.learn(task, QUICK)
    assert_same_bits([answer()], [before], "task 1")
    net.save(tmp_path / "model.lps")
    elsewhere = lps.load(tmp_path / "model.lps", backbone=toy_mlp())  # on the CPU
    assert [elsewhere.digest(task) for task in (1, 2, 3)] == [net.digest(task) for task in (1, 2, 3)]
