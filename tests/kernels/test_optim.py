"""``ProximalAdam`` against torch's Adam and against the composable pieces, on a small network that trains."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, linear

import lps_kernels
from lps_kernels import ProximalAdam, WeightState
from tests.helpers import assert_same_bits

SHAPES = [(16, 8), (4, 16)]
PULL: dict[str, Any] = {"rho": 0.05, "tau": 0.02}


def make_layers(dtype: torch.dtype = torch.float64, free_share: float = 0.5, seed: int = 0) -> list[WeightState]:
    """Two layers whose weights are free, owned by tasks 1 to 3, kept and not, in every combination."""
    generator = torch.Generator().manual_seed(seed)
    layers = []
    for shape in SHAPES:
        v, w_bar, centre = (0.5 * torch.randn(3, *shape, generator=generator, dtype=dtype)).unbind()
        owner = torch.randint(1, 4, shape, generator=generator, dtype=torch.uint8)
        owner[torch.rand(shape, generator=generator) < free_share] = 0
        owner |= 0x80 * torch.randint(0, 2, shape, generator=generator, dtype=torch.uint8)
        effective = torch.nn.Parameter(lps_kernels.compose_owned(v, w_bar, owner))
        layers.append(WeightState(effective, v, w_bar, owner, centre))
    return layers


def batch(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    """Inputs and classes."""
    generator = torch.Generator().manual_seed(1)
    return torch.randn(32, 8, generator=generator, dtype=dtype), torch.randint(0, 4, (32,), generator=generator)


def loss_of(weights: list[Tensor], dtype: torch.dtype = torch.float64) -> Tensor:
    """Cross-entropy of a two-layer perceptron."""
    x, y = batch(dtype)
    return cross_entropy(linear(torch.tanh(linear(x, weights[0])), weights[1]), y)


def train(optimizer: ProximalAdam, steps: int) -> list[float]:
    """The loss of each step."""
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        weights = [layer.effective for layer in optimizer.layers]
        loss = loss_of(weights, weights[0].dtype)
        torch.autograd.backward(loss)
        optimizer.step()
        losses.append(loss.item())
    return losses


def state_tensors(optimizer: ProximalAdam) -> list[Tensor]:
    """Everything that a step may change."""
    tensors = []
    for layer in optimizer.layers:
        state = optimizer.state[layer.effective]
        tensors += [layer.effective.detach(), layer.v, state["exp_avg"], state["exp_avg_sq"], state["step"]]
    return tensors


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-5), (torch.float64, 1e-13)])
def test_with_everything_free_and_no_pull_it_is_adam(dtype: torch.dtype, tolerance: float) -> None:
    # The two round differently; 200 steps of a loss that falls let the last places drift apart a little.
    layers = make_layers(dtype, free_share=1.0)
    twins = [torch.nn.Parameter(layer.effective.detach().clone()) for layer in layers]
    ours, theirs = ProximalAdam(layers, lr=1e-2), torch.optim.Adam(twins, lr=1e-2)
    for _ in range(200):
        train(ours, 1)
        theirs.zero_grad()
        torch.autograd.backward(loss_of(list(twins), dtype))
        theirs.step()
    for layer, twin in zip(layers, twins, strict=True):
        torch.testing.assert_close(layer.effective, twin, rtol=tolerance, atol=tolerance)
        for moment in ("exp_avg", "exp_avg_sq"):
            got, want = ours.state[layer.effective][moment], theirs.state[twin][moment]
            torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("moves", ["free", "all", "kept"])
def test_it_is_the_composable_pieces_with_adam_in_every_phase(moves: str) -> None:
    layers = make_layers()
    optimizer = ProximalAdam(layers, lr=1e-2, moves=moves, **PULL)
    vs = [torch.nn.Parameter(layer.v.clone()) for layer in layers]
    w_bars, owners = [layer.w_bar for layer in layers], [layer.owner for layer in layers]
    adam = torch.optim.Adam(vs, lr=1e-2)
    for _ in range(60):
        (fused,) = train(optimizer, 1)
        adam.zero_grad()
        loss = loss_of([lps_kernels.compose_owned(*three) for three in zip(vs, w_bars, owners, strict=True)])
        torch.autograd.backward(loss)
        gradients = [v.grad for v in vs if v.grad is not None]
        centres = [layer.centre for layer in layers if layer.centre is not None]
        lps_kernels.proximal_grad_(gradients, vs, centres, owners, moves=moves, **PULL)
        adam.step()
        assert fused == pytest.approx(loss.item(), rel=1e-10)
    for layer, v in zip(layers, vs, strict=True):
        torch.testing.assert_close(layer.v, v.detach(), rtol=1e-10, atol=1e-12)
        assert_same_bits([layer.effective], [lps_kernels.compose_owned(layer.v, layer.w_bar, layer.owner)], "effective")


def test_the_pull_is_the_gradient_of_the_papers_proximal_term() -> None:
    (layer, _) = make_layers()
    free = (layer.owner & 0x7F) == 0
    assert layer.centre is not None
    v = layer.v.clone().requires_grad_()
    half_squares = (v - layer.centre).square() / 2
    term = (PULL["rho"] * half_squares[free]).sum() + (PULL["tau"] * half_squares[~free]).sum()
    (want,) = torch.autograd.grad(term, v)
    gradient = torch.zeros_like(layer.v)
    lps_kernels.proximal_grad_([gradient], [layer.v], [layer.centre], [layer.owner], moves="all", **PULL)
    torch.testing.assert_close(gradient, want)


@pytest.mark.parametrize("moves", ["free", "all", "kept"])
def test_training_lowers_the_loss_and_leaves_unmovable_coordinates_to_the_bit(moves: str) -> None:
    layers = make_layers(torch.float32)
    before = [layer.v.clone() for layer in layers]
    optimizer = ProximalAdam(layers, lr=1e-2, moves=moves)
    losses = train(optimizer, 40)
    assert losses[-1] < losses[0] - 0.02
    for layer, start in zip(layers, before, strict=True):
        free = (layer.owner & 0x7F) == 0
        still = {"all": free & ~free, "free": ~free, "kept": layer.owner != 0x80}[moves]
        state = optimizer.state[layer.effective]
        assert_same_bits([layer.v[still]], [start[still]], "v")
        for moment in ("exp_avg", "exp_avg_sq"):
            assert not state[moment][still].any()
            assert state[moment][~still].any()
        assert (layer.v[~still] != start[~still]).all()


def _saved_and_loaded(state: dict[str, Any]) -> Any:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def test_training_resumes_from_a_state_dict_with_the_same_bits() -> None:
    optimizer = ProximalAdam(make_layers(), lr=1e-2, moves="kept", **PULL)
    train(optimizer, 7)
    resumed = ProximalAdam(copy.deepcopy(optimizer.layers))
    resumed.load_state_dict(_saved_and_loaded(optimizer.state_dict()))
    assert resumed.param_groups[0]["moves"] == "kept"
    train(optimizer, 7)
    train(resumed, 7)
    assert_same_bits(state_tensors(resumed), state_tensors(optimizer), "resumed")


def test_the_state_has_the_layout_of_adams() -> None:
    ours, theirs = ProximalAdam(make_layers()), torch.optim.Adam([layer.effective for layer in make_layers()])
    train(ours, 1)
    torch.autograd.backward(loss_of(theirs.param_groups[0]["params"]))
    theirs.step()
    got, want = ours.state_dict()["state"], theirs.state_dict()["state"]
    assert got.keys() == want.keys()
    for index, entry in want.items():
        assert got[index].keys() == entry.keys()
        for name, tensor in entry.items():
            same = got[index][name]
            assert (same.dtype, same.shape, same.device) == (tensor.dtype, tensor.shape, tensor.device), name


def test_it_continues_from_the_state_dict_of_torchs_adam() -> None:
    layers = make_layers(free_share=1.0)
    weights = [layer.effective for layer in layers]
    theirs = torch.optim.Adam(weights, lr=1e-2)
    for _ in range(5):
        theirs.zero_grad()
        torch.autograd.backward(loss_of(list(weights)))
        theirs.step()
    for layer in layers:
        layer.v.copy_(layer.effective.detach())
    twins = copy.deepcopy(layers)
    ours = ProximalAdam(twins)
    ours.load_state_dict(_saved_and_loaded(theirs.state_dict()))
    assert ours.param_groups[0]["lr"] == 1e-2
    train(ours, 5)
    for _ in range(5):
        theirs.zero_grad()
        torch.autograd.backward(loss_of(list(weights)))
        theirs.step()
    for twin, weight in zip(twins, weights, strict=True):
        torch.testing.assert_close(twin.effective, weight, rtol=1e-12, atol=1e-13)


def test_torchs_adam_continues_from_its_state_dict() -> None:
    layers = make_layers(free_share=1.0)
    ours = ProximalAdam(layers, lr=1e-2)
    train(ours, 5)
    weights = [torch.nn.Parameter(layer.effective.detach().clone()) for layer in layers]
    theirs = torch.optim.Adam(weights)
    theirs.load_state_dict(_saved_and_loaded(ours.state_dict()))
    assert theirs.param_groups[0]["lr"] == 1e-2
    for _ in range(5):
        train(ours, 1)
        theirs.zero_grad()
        torch.autograd.backward(loss_of(list(weights)))
        theirs.step()
    for layer, weight in zip(layers, weights, strict=True):
        torch.testing.assert_close(layer.effective, weight, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("how", ["deepcopy", "pickle"])
def test_a_copy_trains_on_its_own_and_to_the_same_bits(how: str) -> None:
    optimizer = ProximalAdam(make_layers(), lr=1e-2, **PULL)
    train(optimizer, 3)
    twin = copy.deepcopy(optimizer) if how == "deepcopy" else pickle.loads(pickle.dumps(optimizer))
    before = [tensor.clone() for tensor in state_tensors(optimizer)]
    train(twin, 3)
    assert_same_bits(state_tensors(optimizer), before, "the original")
    train(optimizer, 3)
    assert_same_bits(state_tensors(twin), state_tensors(optimizer), "the copy")


def test_a_learning_rate_scheduler_drives_it() -> None:
    scheduled, stepped = (ProximalAdam(make_layers(), lr=1e-2) for _ in range(2))
    scheduler = torch.optim.lr_scheduler.StepLR(scheduled, step_size=2, gamma=0.5)
    for iteration in range(6):
        train(scheduled, 1)
        scheduler.step()
        stepped.param_groups[0]["lr"] = 1e-2 * 0.5 ** (iteration // 2)
        train(stepped, 1)
    assert scheduled.param_groups[0]["lr"] == 1e-2 * 0.125
    assert_same_bits(state_tensors(scheduled), state_tensors(stepped), "scheduled")


def test_a_layer_without_a_gradient_is_left_alone_and_keeps_its_own_step_count() -> None:
    optimizer = ProximalAdam(make_layers(), lr=1e-2, **PULL)
    first, second = optimizer.layers
    before = [tensor.clone() for tensor in (second.effective.detach(), second.v)]
    torch.autograd.backward(first.effective.square().sum())
    optimizer.step()
    assert_same_bits([second.effective.detach(), second.v], before, "layer without gradient")
    assert second.effective not in optimizer.state
    train(optimizer, 2)
    assert optimizer.state[first.effective]["step"].item() == 3
    assert optimizer.state[second.effective]["step"].item() == 2


def test_a_step_without_any_gradient_changes_nothing() -> None:
    layers = make_layers()
    before = [layer.effective.detach().clone() for layer in layers]
    ProximalAdam(layers).step()
    assert_same_bits([layer.effective.detach() for layer in layers], before, "effective")


def test_a_closure_is_evaluated_with_gradients_and_its_loss_returned() -> None:
    optimizer = ProximalAdam(make_layers())
    want = loss_of([layer.effective for layer in optimizer.layers]).item()

    def closure() -> float:
        optimizer.zero_grad()
        loss = loss_of([layer.effective for layer in optimizer.layers])
        torch.autograd.backward(loss)
        return loss.item()

    assert optimizer.step(closure) == want
    assert optimizer.state[optimizer.layers[0].effective]["step"].item() == 1


@pytest.mark.parametrize(
    ("hyperparameters", "message"),
    [
        ({"lr": -1.0}, "ProximalAdam: lr: expected at least 0, got -1.0"),
        ({"eps": -1e-8}, "ProximalAdam: eps: expected at least 0, got -1e-08"),
        (
            {"betas": (0.9, 1.0)},
            "ProximalAdam: betas: expected two numbers at least 0 and below 1, got (0.9, 1.0)",
        ),
        ({"moves": "some"}, "ProximalAdam: moves: expected one of free, all, kept, got some"),
    ],
)
def test_bad_hyperparameters_are_refused(hyperparameters: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as refusal:  # noqa: PT011 (the message is compared whole below)
        ProximalAdam(make_layers(), **hyperparameters)
    assert str(refusal.value) == message


def test_a_pull_without_a_centre_is_refused_before_anything_moves() -> None:
    layers = make_layers()
    for layer in layers:
        layer.centre = None
    optimizer = ProximalAdam(layers, rho=0.1)
    before = [layer.v.clone() for layer in layers]
    with pytest.raises(RuntimeError, match="centre: expected 2 tensors"):
        train(optimizer, 1)
    assert_same_bits([layer.v for layer in layers], before, "v")


def test_a_capturable_step_counts_on_the_device_and_gives_the_same_bits() -> None:
    def optimizer(layers: list[WeightState], capturable: bool) -> ProximalAdam:
        return ProximalAdam(layers, lr=1e-2, rho=0.1, tau=0.2, capturable=capturable)

    plain, capturable = optimizer(make_layers(), False), optimizer(make_layers(), True)
    assert train(plain, 4) == train(capturable, 4)
    for first, second in zip(plain.layers, capturable.layers, strict=True):
        assert torch.equal(first.v, second.v)
        assert capturable.state[second.effective]["step"].item() == 4
    reloaded = optimizer(capturable.layers, True)
    reloaded.load_state_dict(capturable.state_dict())
    train(reloaded, 1)
    train(plain, 1)
    assert torch.equal(plain.layers[0].v, capturable.layers[0].v)
