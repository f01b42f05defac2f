"""A served task has the bits of the activated one; several threads serve different tasks at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from random import Random
from threading import Barrier, Thread

import pytest
import torch
from lps import Lifelong
from lps.deploy.serving import ServedTask, run_exact
from torch import Tensor, nn

from tests.cutouts import fabricate
from tests.helpers import same_bits
from tests.toy import toy_convnet, toy_mlp

TASKS = 4
THREADS, CALLS = 4, 200


class Attention(nn.Module):
    """Tokens of 16 numbers; both layers have fused kernels that torch uses only without gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)
        self.encoder = nn.TransformerEncoderLayer(16, 2, dim_feedforward=24, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        seen, _ = self.attention(x, x, x)
        features: Tensor = self.encoder(seen).mean(1)
        return features


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp": (lambda: toy_mlp(norm=False), (12,)),
    "mlp with batch norm": (toy_mlp, (12,)),
    "convolutions": (toy_convnet, (3, 8, 8)),
    "attention": (Attention, (5, 16)),
}
each_network = pytest.mark.parametrize("name", NETWORKS)


def network(name: str) -> tuple[Lifelong, Tensor]:
    """A network with four untrained tasks, frozen as after learning, and a batch of seven inputs."""
    make, shape = NETWORKS[name]
    net = fabricate(make(), 16, tasks=TASKS, density=0.2, beta=0.5)
    net.requires_grad_(False)
    return net, torch.randn(7, *shape)


def activated(net: Lifelong, x: Tensor) -> Iterator[Tensor]:
    """The features of each task, with its weights written into the backbone."""
    for task in range(1, TASKS + 1):
        net.activate(task)
        yield net.backbone(x)


def exact(net: Lifelong, task: int) -> ServedTask:
    return ServedTask(net.prunable(), task, exact=True)


def in_threads(work: Callable[[int], None]) -> None:
    """Run ``work(number)`` in several threads, started together; raises what one of them raised."""
    errors: list[BaseException] = []
    barrier = Barrier(THREADS)

    def run(number: int) -> None:
        try:
            barrier.wait()
            work(number)
        except BaseException as error:  # an assertion too
            errors.append(error)

    threads = [Thread(target=run, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def versions(tensors: Iterable[Tensor]) -> list[tuple[int, int]]:
    """Address and version counter of each tensor."""
    return [(tensor.data_ptr(), tensor._version) for tensor in tensors]


@each_network
@pytest.mark.parametrize("gradients", [False, True])
def test_exact_serving_has_the_bits_of_the_activated_backbone(name: str, gradients: bool) -> None:
    """With gradients enabled too: nothing requires one, so torch runs the same kernels."""
    net, x = network(name)
    with torch.set_grad_enabled(gradients):
        expected = list(activated(net, x))
        assert not same_bits(expected[0], expected[1])
        for task, features in enumerate(expected, start=1):
            assert same_bits(run_exact(net.backbone, x, exact(net, task)), features)


@each_network
def test_gradients_of_inputs_are_those_of_the_served_task(name: str) -> None:
    net, x = network(name)
    x.requires_grad_()
    expected = [(features, torch.autograd.grad(features.sum(), x)[0]) for features in activated(net, x)]
    net.activate(1)
    for task, (features, gradient) in enumerate(expected, start=1):
        found = run_exact(net.backbone, x, exact(net, task))
        assert same_bits(found, features)
        assert same_bits(torch.autograd.grad(found.sum(), x)[0], gradient)


@pytest.mark.parametrize("gradients", [False, True])
def test_exact_serving_keeps_the_layout_of_weights_and_autocast(gradients: bool) -> None:
    net, x = network("convolutions")
    net.backbone.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    x = x.to(memory_format=torch.channels_last)
    with torch.set_grad_enabled(gradients):
        for task, features in enumerate(list(activated(net, x)), start=1):
            assert same_bits(run_exact(net.backbone, x, exact(net, task)), features)
        with torch.autocast("cpu", torch.bfloat16):
            for task, features in enumerate(list(activated(net, x)), start=1):
                assert same_bits(run_exact(net.backbone, x, exact(net, task)), features)


@pytest.mark.parametrize("served_exactly", [False, True])
@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("name", ["mlp with batch norm", "convolutions", "attention"])
def test_parameters_and_buffers_of_the_task_take_the_place_of_the_backbones(
    name: str, gradients: bool, served_exactly: bool
) -> None:
    net, x = network(name)
    common = dict(net.common_tensors())
    own = {key: tensor + 0.25 for key, tensor in common.items() if tensor.is_floating_point()}
    with torch.set_grad_enabled(gradients):
        served = ServedTask(
            net.prunable(), 3, {id(common[key]): tensor for key, tensor in own.items()}, exact=served_exactly
        )
        before = versions(common.values())
        found = run_exact(net.backbone, x, served)
        assert versions(common.values()) == before
        net.activate(3)
        with torch.no_grad():
            unlike = net.backbone(x)
            for key, tensor in own.items():
                common[key].copy_(tensor)
        expected = net.backbone(x)
    assert not torch.allclose(expected, unlike, rtol=1e-2, atol=1e-2)
    if served_exactly:
        assert same_bits(found, expected)
    else:
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)  # sums of 48 products in another order


@each_network
def test_threads_that_serve_get_the_answers_of_a_single_one(name: str) -> None:
    net, x = network(name)
    random = Random(0)
    requests = [random.choices(range(1, TASKS + 1), k=len(x)) for _ in range(CALLS)]
    expected = [net.serve(x, tasks) for tasks in requests]
    state = versions([*net.parameters(), *net.buffers()])

    def work(number: int) -> None:
        for call in Random(number).sample(range(CALLS), CALLS):
            assert same_bits(net.serve(x, requests[call]), expected[call])

    in_threads(work)
    assert versions([*net.parameters(), *net.buffers()]) == state


@each_network
def test_threads_that_serve_exactly_get_the_bits_of_the_activated_backbone(name: str) -> None:
    net, x = network(name)
    with torch.no_grad():
        expected = list(activated(net, x))
    state = versions([*net.parameters(), *net.buffers()])

    def work(number: int) -> None:
        random = Random(number)
        for call in range(CALLS):
            task = random.randint(1, TASKS)
            with torch.set_grad_enabled(call % 2 == 1):  # per thread, as the modes are
                assert same_bits(run_exact(net.backbone, x, exact(net, task)), expected[task - 1])

    in_threads(work)
    assert versions([*net.parameters(), *net.buffers()]) == state


def test_serving_ends_with_its_context_even_after_an_error() -> None:
    net, x = network("mlp")
    net.activate(1)
    expected = net.backbone(x)
    for gradients in (False, True):
        with torch.set_grad_enabled(gradients), pytest.raises(RuntimeError), exact(net, 2):
            net.backbone(x[:, :-1])
        assert same_bits(net.backbone(x), expected)
