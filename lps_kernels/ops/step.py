"""The masked proximal optimiser step, and its gradient half for use with any other optimiser.

From the gradient ``g`` of the effective weight, per coordinate that may move (Eq. 13 and Adam):

    dv = g where free, g * w_bar where owned
    dv += rho * (v - centre) where free, tau * (v - centre) where owned         (pull ``gradient``)
    v  <- Adam(v, dv), at the rate ``lr`` where free and ``mask_lr`` where owned
    v  <- (v + c * centre) / (1 + c), c = rho where free and tau where owned    (pull ``proximal``)
    effective <- v where free, v * w_bar where owned

The pull ``proximal`` is the exact proximal step of ``c / 2 * (v - centre)^2``; unlike a gradient, Adam does not
normalise it away.

Which coordinates move is ``moves``: ``free`` (warm-up), ``all`` (ADMM), ``kept`` (final: free and kept). The others
keep their ``v`` and moments; the effective weight is written everywhere. Every operation is rounded on its own, so
all backends give the same bits in fp32 (in fp64 the reference's square root may be a unit off).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import sqrt

import torch
from torch import Tensor

from lps_kernels._checks import (
    STATE_FLOATS,
    check_choice,
    check_contiguous,
    check_device,
    check_dtype,
    check_no_overlap,
    check_shape,
    refuse_unless,
)
from lps_kernels._registry import Args, BadInput, Cost, Sample, Tolerance, declare
from lps_kernels._samples import EDGE_SIZES, LARGE_SIZE, Draw, strided
from lps_kernels.ops.scores import check_companions, check_layers
from lps_kernels.owner import FREE, KEPT_BIT, free_coordinates

MOVES = ("free", "all", "kept")
PULLS = ("gradient", "proximal")

# About ten roundings of eps/2 on the way to the new value, whose terms may cancel once.
TOLERANCE = Tolerance({torch.float32: 2e-6, torch.float64: 4e-15}, "a chain of about ten rounded operations")


def movable(owner: Tensor, moves: str) -> Tensor:
    """True at the coordinates that may move."""
    if moves == "all":
        return torch.ones(owner.shape, dtype=torch.bool, device=owner.device)
    return free_coordinates(owner) if moves == "free" else owner == (FREE | KEPT_BIT)


def _pull(v: Tensor, centre: Tensor, free: Tensor, rho: float, tau: float) -> Tensor:
    """Gradient of the proximal term."""
    return torch.where(free, (v - centre) * rho, (v - centre) * tau)


def adam_moments(
    gradient: Tensor, exp_avg: Tensor, exp_avg_sq: Tensor, beta1: float, beta2: float
) -> tuple[Tensor, Tensor]:
    """The new moments of Adam."""
    return exp_avg * beta1 + gradient * (1 - beta1), exp_avg_sq * beta2 + gradient * gradient * (1 - beta2)


def adam_change(
    mean: Tensor,
    square: Tensor,
    free: Tensor,
    step: int,
    lr: float,
    mask_lr: float,
    betas: tuple[float, float],
    eps: float,
) -> Tensor:
    """What a step of Adam takes off: at the rate ``lr`` where free, ``mask_lr`` where owned."""
    size, mask_size = (rate / (1 - betas[0] ** step) for rate in (lr, mask_lr))
    # torch's own sqrt may be a unit off; through fp64 it is correctly rounded for fp32.
    root = square.double().sqrt().to(square.dtype)
    direction = mean / (root * (1 / sqrt(1 - betas[1] ** step)) + eps)
    return torch.where(free, direction * size, direction * mask_size)


def _adam_reference(
    effective: Sequence[Tensor],
    grad: Sequence[Tensor],
    v: Sequence[Tensor],
    w_bar: Sequence[Tensor],
    centre: Sequence[Tensor],
    owner: Sequence[Tensor],
    exp_avg: Sequence[Tensor],
    exp_avg_sq: Sequence[Tensor],
    moves: str,
    pull: str,
    step: int,
    lr: float,
    mask_lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    rho: float,
    tau: float,
    device_step: Tensor | None = None,
) -> None:
    """One layer after the other; see the module's text for the formulas."""
    op = "proximal_adam_"
    lists = (effective, grad, v, w_bar, centre, owner, exp_avg, exp_avg_sq)
    _check_adam(*lists, moves, pull, step, lr, mask_lr, beta1, beta2, eps, rho, tau, device_step)
    if device_step is not None:
        step = read_device_step(op, device_step)
    written = named(effective=effective, v=v, exp_avg=exp_avg, exp_avg_sq=exp_avg_sq)
    for name, tensor in written:
        check_contiguous(op, name, tensor)
    check_no_overlap(op, written, named(grad=grad, w_bar=w_bar, centre=centre, owner=owner))
    for layer in range(len(v)):
        free = free_coordinates(owner[layer])
        moving = movable(owner[layer], moves)
        gradient = torch.where(free, grad[layer], grad[layer] * w_bar[layer])
        if centre and pull == "gradient":
            gradient = gradient + _pull(v[layer], centre[layer], free, rho, tau)
        mean, square = adam_moments(gradient, exp_avg[layer], exp_avg_sq[layer], beta1, beta2)
        moved = v[layer] - adam_change(mean, square, free, step, lr, mask_lr, (beta1, beta2), eps)
        if centre and pull == "proximal":
            moved = torch.where(free, _between(moved, centre[layer], rho), _between(moved, centre[layer], tau))
        exp_avg[layer].copy_(torch.where(moving, mean, exp_avg[layer]))
        exp_avg_sq[layer].copy_(torch.where(moving, square, exp_avg_sq[layer]))
        v[layer].copy_(torch.where(moving, moved, v[layer]))
        effective[layer].copy_(torch.where(free, v[layer], v[layer] * w_bar[layer]))


def _between(x: Tensor, centre: Tensor, c: float) -> Tensor:
    """``(x + c * centre) / (1 + c)``, as the sum of two products."""
    return x * (1 / (1 + c)) + centre * (c / (1 + c))


def read_device_step(op: str, device_step: Tensor) -> int:
    """The number of the step, from the tensor that holds it."""
    step = int(device_step)
    refuse_unless(step >= 1, op, "device_step", "at least 1", step)
    return step


def _grad_reference(
    grad: Sequence[Tensor],
    v: Sequence[Tensor],
    centre: Sequence[Tensor],
    owner: Sequence[Tensor],
    moves: str,
    rho: float,
    tau: float,
) -> None:
    """Add the pull towards ``centre`` to the gradient of ``v`` and zero it where nothing may move."""
    op = "proximal_grad_"
    _check_grad(grad, v, centre, owner, moves, rho, tau)
    written = named(grad=grad)
    for name, tensor in written:
        check_contiguous(op, name, tensor)
    check_no_overlap(op, written, named(v=v, centre=centre, owner=owner))
    for layer in range(len(v)):
        free = free_coordinates(owner[layer])
        total = grad[layer] + _pull(v[layer], centre[layer], free, rho, tau) if centre else grad[layer]
        grad[layer].copy_(torch.where(movable(owner[layer], moves), total, 0))


def named(**lists: Sequence[Tensor]) -> list[tuple[str, Tensor]]:
    """Each tensor with its name in messages."""
    return [(f"{name}[{i}]", tensor) for name, tensors in lists.items() for i, tensor in enumerate(tensors)]


def _check_centre(op: str, v: Sequence[Tensor], centre: Sequence[Tensor], rho: float, tau: float) -> None:
    if centre:
        check_companions(op, "centre", centre, "v", v)
    else:
        expected = f"{len(v)} tensors (one a layer; none only where rho and tau are 0)"
        refuse_unless(rho == 0 and tau == 0, op, "centre", expected, 0)
    refuse_unless(rho >= 0, op, "rho", "at least 0", rho)
    refuse_unless(tau >= 0, op, "tau", "at least 0", tau)


def _check_adam(
    effective: Sequence[Tensor],
    grad: Sequence[Tensor],
    v: Sequence[Tensor],
    w_bar: Sequence[Tensor],
    centre: Sequence[Tensor],
    owner: Sequence[Tensor],
    exp_avg: Sequence[Tensor],
    exp_avg_sq: Sequence[Tensor],
    moves: str,
    pull: str,
    step: int,
    lr: float,
    mask_lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    rho: float,
    tau: float,
    device_step: Tensor | None = None,
) -> None:
    op = "proximal_adam_"
    check_choice(op, "moves", moves, MOVES)
    check_choice(op, "pull", pull, PULLS)
    check_state(op, v, effective=effective, grad=grad, w_bar=w_bar, owner=owner, exp_avg=exp_avg, exp_avg_sq=exp_avg_sq)
    _check_centre(op, v, centre, rho, tau)
    check_rates(op, step, beta1, beta2, v, device_step)


def check_state(op: str, v: Sequence[Tensor], **companions: Sequence[Tensor]) -> None:
    """One tensor of each kind per layer, all like that of ``v``."""
    check_layers(op, "v", v, STATE_FLOATS)
    for name, tensors in companions.items():
        check_companions(op, name, tensors, "v", v, torch.uint8 if name == "owner" else None)


def check_rates(
    op: str, step: int, beta1: float, beta2: float, v: Sequence[Tensor], device_step: Tensor | None
) -> None:
    """The numbers of a step of Adam."""
    refuse_unless(step >= 1, op, "step", "at least 1", step)
    refuse_unless(0 <= beta1 < 1, op, "beta1", "at least 0 and below 1", beta1)
    refuse_unless(0 <= beta2 < 1, op, "beta2", "at least 0 and below 1", beta2)
    if device_step is not None:
        if v:
            check_device(op, "device_step", device_step, "v[0]", v[0])
        check_dtype(op, "device_step", device_step, (torch.int64,))
        check_shape(op, "device_step", device_step, [1], "the number of the step")


def _check_grad(
    grad: Sequence[Tensor],
    v: Sequence[Tensor],
    centre: Sequence[Tensor],
    owner: Sequence[Tensor],
    moves: str,
    rho: float,
    tau: float,
) -> None:
    op = "proximal_grad_"
    check_choice(op, "moves", moves, MOVES)
    check_layers(op, "v", v, STATE_FLOATS)
    check_companions(op, "grad", grad, "v", v)
    check_companions(op, "owner", owner, "v", v, torch.uint8)
    _check_centre(op, v, centre, rho, tau)


def step_state(
    draw: Draw, shapes: Sequence[tuple[int, ...]], dtype: torch.dtype, free: float = 0.5
) -> list[list[Tensor]]:
    """effective, grad, v, w_bar, centre, owner, exp_avg, exp_avg_sq of layers of these shapes."""

    def normal() -> list[Tensor]:
        return [draw.normal(shape, dtype) for shape in shapes]

    owner = [draw.owner(shape, free) for shape in shapes]
    squares = [draw.uniform(shape, dtype) for shape in shapes]
    effective = [torch.full(shape, float("nan"), dtype=dtype) for shape in shapes]
    return [effective, normal(), normal(), normal(), normal(), owner, normal(), squares]


def _adam_samples(dtype: torch.dtype) -> Iterator[Sample]:
    draw = Draw()
    scalars = ("gradient", 3, 1e-3, 1e-2, 0.9, 0.999, 1e-8, 1e-2, 3e-2, None)
    proximal = ("proximal", *scalars[1:])
    edge = [(size,) for size in EDGE_SIZES]
    for moves in MOVES:
        yield Sample(f"{moves} move", (*step_state(draw, edge, dtype), moves, *scalars))
        yield Sample(f"{moves} move, proximal pull", (*step_state(draw, edge, dtype), moves, *proximal))
    for name, free in (("all free", 1.0), ("all owned", 0.0)):
        yield Sample(name, (*step_state(draw, [(33,), (5, 3, 3)], dtype, free), "all", *scalars))
    yield Sample("large", (*step_state(draw, [(LARGE_SIZE,), (3, 5)], dtype), "all", *scalars))
    first = (1, 1e-3, 1e-3, 0.9, 0.999, 1e-8, 0.0, 0.0, None)
    for pull in PULLS:
        state = step_state(draw, [(33,), (9, 7)], dtype)
        state[4] = []
        yield Sample(f"no {pull} pull", (*state, "free", pull, *first))
    state = step_state(draw, [(33,)], dtype)
    state[1][0][::3] = float("nan")
    state[2][0][::5] = float("inf")
    yield Sample("NaN and Inf", (*state, "kept", *scalars))
    yield Sample("large, proximal pull", (*step_state(draw, [(LARGE_SIZE,), (3, 5)], dtype), "all", *proximal))
    device_step = torch.tensor([7])
    yield Sample(
        "number of the step in a tensor", (*step_state(draw, [(33,), (9, 7)], dtype), "all", *scalars[:-1], device_step)
    )
    state = step_state(draw, [(9, 7)], dtype)
    for index in (1, 3, 4, 5):
        state[index] = [strided(state[index][0])]
    yield Sample("not contiguous", (*state, "all", *scalars))


def _grad_samples(dtype: torch.dtype) -> Iterator[Sample]:
    draw = Draw()
    for moves in MOVES:
        _, grad, v, _, centre, owner, _, _ = step_state(draw, [(size,) for size in EDGE_SIZES], dtype)
        yield Sample(f"{moves} move", (grad, v, centre, owner, moves, 1e-2, 3e-2))
    _, grad, v, _, centre, owner, _, _ = step_state(draw, [(LARGE_SIZE,), (3, 5)], dtype)
    yield Sample("large", (grad, v, centre, owner, "all", 1e-2, 3e-2))
    _, grad, v, _, _, owner, _, _ = step_state(draw, [(33,)], dtype)
    yield Sample("no proximal term", (grad, v, [], owner, "kept", 0.0, 0.0))
    _, grad, v, _, centre, owner, _, _ = step_state(draw, [(9, 7)], dtype)
    v[0].view(-1)[::5] = float("nan")
    centre[0].view(-1)[::7] = float("inf")
    yield Sample("NaN and Inf", (grad, v, centre, owner, "free", 1e-2, 3e-2))
    _, grad, v, _, centre, owner, _, _ = step_state(draw, [(9, 7)], dtype)
    others = [strided(v[0])], [strided(centre[0])], [strided(owner[0])]
    yield Sample("not contiguous", (grad, *others, "all", 1e-2, 3e-2))


_ADAM_LISTS = ("effective", "grad", "v", "w_bar", "centre", "owner", "exp_avg", "exp_avg_sq")


def _adam_bad_inputs() -> Iterator[BadInput]:
    op, shapes = "lps::proximal_adam_", [(4, 6), (3, 5)]

    def call(**changes: object) -> Args:
        state = dict(zip(_ADAM_LISTS, step_state(Draw(), shapes, torch.float32), strict=True))
        scalars: dict[str, object] = {"moves": "all", "pull": "gradient", "step": 1, "lr": 1e-3, "mask_lr": 1e-3}
        scalars |= {"beta1": 0.9, "beta2": 0.999}
        scalars |= {"eps": 1e-8, "rho": 0.5, "tau": 0.5, "device_step": None}
        return tuple((state | scalars | changes).values())

    def layers(dtype: torch.dtype = torch.float32) -> list[Tensor]:
        return [torch.ones(shape, dtype=dtype) for shape in shapes]

    yield BadInput("moves", call(moves="some"), f"{op}: moves: expected one of free, all, kept, got some")
    yield BadInput("pull", call(pull="none"), f"{op}: pull: expected one of gradient, proximal, got none")
    yield BadInput(
        "dtype", call(v=layers(torch.bfloat16)), f"{op}: v[0]: expected dtype float32 or float64, got bfloat16"
    )
    yield BadInput("grad missing", call(grad=layers()[:1]), f"{op}: grad: expected 2 tensors (one a layer), got 1")
    yield BadInput(
        "grad dtype",
        call(grad=layers(torch.float64)),
        f"{op}: grad[0]: expected dtype float32 (that of v[0]), got float64",
    )
    yield BadInput("owner dtype", call(owner=layers()), f"{op}: owner[0]: expected dtype uint8, got float32")
    yield BadInput(
        "moment shape",
        call(exp_avg=[torch.ones(4, 6), torch.ones(15)]),
        f"{op}: exp_avg[1]: expected shape [3, 5] (that of v[1]), got [15]",
    )
    yield BadInput(
        "no centre",
        call(centre=[]),
        f"{op}: centre: expected 2 tensors (one a layer; none only where rho and tau are 0), got 0",
    )
    yield BadInput("step", call(step=0), f"{op}: step: expected at least 1, got 0")
    yield BadInput("beta1", call(beta1=1.0), f"{op}: beta1: expected at least 0 and below 1, got 1.0")
    yield BadInput("beta2", call(beta2=-0.5), f"{op}: beta2: expected at least 0 and below 1, got -0.5")
    yield BadInput("rho", call(rho=-0.5), f"{op}: rho: expected at least 0, got -0.5")
    yield BadInput("tau", call(tau=-0.5), f"{op}: tau: expected at least 0, got -0.5")
    yield BadInput(
        "device_step dtype",
        call(device_step=torch.tensor([1.0])),
        f"{op}: device_step: expected dtype int64, got float32",
    )
    yield BadInput(
        "device_step shape",
        call(device_step=torch.tensor(1)),
        f"{op}: device_step: expected shape [1] (the number of the step), got []",
    )
    yield BadInput(
        "device_step before the first step",
        call(device_step=torch.tensor([0])),
        f"{op}: device_step: expected at least 1, got 0",
        reads_values=True,
    )
    yield BadInput(
        "effective strides",
        call(effective=[torch.ones(4, 6), torch.ones(5, 3).T]),
        f"{op}: effective[1]: expected a contiguous tensor, got strides [1, 3]",
    )
    same = layers()
    yield BadInput(
        "effective is v",
        call(v=same, effective=[same[0], torch.ones(3, 5)]),
        f"{op}: v[0]: expected memory apart from effective[0], got overlapping memory",
    )
    tied = torch.ones(4, 6)
    state = [[torch.ones(4, 6), torch.ones(4, 6)] for _ in range(8)]
    state[2] = [tied, tied]
    state[5] = [torch.zeros(4, 6, dtype=torch.uint8)] * 2
    yield BadInput(
        "one layer twice",
        (*state, "all", "gradient", 1, 1e-3, 1e-3, 0.9, 0.999, 1e-8, 0.5, 0.5, None),
        f"{op}: v[1]: expected memory apart from v[0], got overlapping memory",
    )


def _grad_bad_inputs() -> Iterator[BadInput]:
    op = "lps::proximal_grad_"
    x, owner = torch.ones(4, 6), torch.zeros(4, 6, dtype=torch.uint8)

    def fresh() -> list[Tensor]:
        return [torch.ones(4, 6)]

    yield BadInput(
        "moves",
        (fresh(), [x], fresh(), [owner], "some", 0.5, 0.5),
        f"{op}: moves: expected one of free, all, kept, got some",
    )
    yield BadInput(
        "grad shape",
        ([torch.ones(6, 4)], [x], fresh(), [owner], "all", 0.5, 0.5),
        f"{op}: grad[0]: expected shape [4, 6] (that of v[0]), got [6, 4]",
    )
    yield BadInput(
        "no centre",
        (fresh(), [x], [], [owner], "all", 0.5, 0.0),
        f"{op}: centre: expected 1 tensors (one a layer; none only where rho and tau are 0), got 0",
    )
    yield BadInput(
        "grad is v",
        ([x], [x], fresh(), [owner], "all", 0.5, 0.5),
        f"{op}: grad[0]: expected memory apart from v[0], got overlapping memory",
    )


def _adam_cost(
    effective: Sequence[Tensor],
    grad: Sequence[Tensor],
    v: Sequence[Tensor],
    w_bar: Sequence[Tensor],
    centre: Sequence[Tensor],
    owner: Sequence[Tensor],
    *_: object,
) -> Cost:
    # Read: grad, v, w_bar, centre, owner, two moments. Written: v, two moments, effective. 41 bytes per weight in fp32.
    values = sum(tensor.nbytes for tensor in v)
    constants = sum(tensor.nbytes for tensor in (*grad, *w_bar, *centre, *owner))
    return Cost(constants + 7 * values, 18 * sum(tensor.numel() for tensor in v))


def _grad_cost(
    grad: Sequence[Tensor], v: Sequence[Tensor], centre: Sequence[Tensor], owner: Sequence[Tensor], *_: object
) -> Cost:
    values = sum(tensor.nbytes for tensor in grad)
    return Cost(2 * values + sum(t.nbytes for t in (*v, *centre, *owner)), 3 * sum(t.numel() for t in v))


def _adam_workload(shapes: Sequence[tuple[int, ...]]) -> list[Args]:
    scalars = ("all", "proximal", 3, 1e-3, 1e-2, 0.9, 0.999, 1e-8, 1e-3, 1e-3, None)
    return [(*step_state(Draw(), shapes, torch.float32, 0.7), *scalars)]


def _grad_workload(shapes: Sequence[tuple[int, ...]]) -> list[Args]:
    _, grad, v, _, centre, owner, _, _ = step_state(Draw(), shapes, torch.float32, 0.7)
    return [(grad, v, centre, owner, "all", 1e-3, 1e-3)]


_proximal_adam_ = declare(
    "proximal_adam_",
    schema="(Tensor(a!)[] effective, Tensor[] grad, Tensor(b!)[] v, Tensor[] w_bar, Tensor[] centre, Tensor[] owner, "
    "Tensor(c!)[] exp_avg, Tensor(d!)[] exp_avg_sq, str moves, str pull, int step, float lr, float mask_lr, "
    "float beta1, float beta2, float eps, float rho, float tau, Tensor? device_step=None) -> ()",
    reference=_adam_reference,
    fake=_check_adam,
    mutates=("effective", "v", "exp_avg", "exp_avg_sq"),
    dtypes=STATE_FLOATS,
    samples=_adam_samples,
    bad_inputs=_adam_bad_inputs,
    tolerance=TOLERANCE,
    cost=_adam_cost,
    workload=_adam_workload,
)

_proximal_grad_ = declare(
    "proximal_grad_",
    schema="(Tensor(a!)[] grad, Tensor[] v, Tensor[] centre, Tensor[] owner, str moves, float rho, float tau) -> ()",
    reference=_grad_reference,
    fake=_check_grad,
    mutates=("grad",),
    dtypes=STATE_FLOATS,
    samples=_grad_samples,
    bad_inputs=_grad_bad_inputs,
    tolerance=TOLERANCE,
    cost=_grad_cost,
    workload=_grad_workload,
)


def proximal_adam_(
    effective: Sequence[Tensor],
    grad: Sequence[Tensor],
    v: Sequence[Tensor],
    w_bar: Sequence[Tensor],
    centre: Sequence[Tensor],
    owner: Sequence[Tensor],
    exp_avg: Sequence[Tensor],
    exp_avg_sq: Sequence[Tensor],
    *,
    moves: str,
    step: int,
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    mask_lr: float | None = None,
    pull: str = "gradient",
    rho: float = 0.0,
    tau: float = 0.0,
    device_step: Tensor | None = None,
) -> None:
    """One masked proximal Adam step over all layers; ``step`` counts from 1.

    ``grad`` is the gradient of the effective weight. ``mask_lr`` is the rate of owned coordinates, ``lr`` where None;
    ``pull`` says how ``centre`` pulls: as a ``gradient`` or by a ``proximal`` step. ``centre`` may be empty where
    ``rho`` and ``tau`` are 0. With ``device_step``, an int64 tensor of one element on the device of the layers, the
    step's number is read from there when the kernel runs: a step that was captured in a CUDA graph can then be
    replayed.
    """
    _proximal_adam_(
        list(effective),
        list(grad),
        list(v),
        list(w_bar),
        list(centre),
        list(owner),
        list(exp_avg),
        list(exp_avg_sq),
        moves,
        pull,
        step,
        lr,
        lr if mask_lr is None else mask_lr,
        beta1,
        beta2,
        eps,
        rho,
        tau,
        device_step,
    )


def proximal_grad_(
    grad: Sequence[Tensor],
    v: Sequence[Tensor],
    centre: Sequence[Tensor],
    owner: Sequence[Tensor],
    *,
    moves: str,
    rho: float = 0.0,
    tau: float = 0.0,
) -> None:
    """Turn the loss gradient of ``v`` (from autograd through ``compose_owned``) into the gradient of a masked step.

    Adds the proximal pull and zeroes coordinates that may not move, for any optimiser that leaves a weight alone whose
    gradients have all been zero. One that moves it all the same (weight decay) needs the weights restored after it.
    """
    _proximal_grad_(list(grad), list(v), list(centre), list(owner), moves, rho, tau)
