"""What the samples do not show of the kernels; run by ``test_interpreter.py`` with TRITON_INTERPRET=1."""
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
# ruff: noqa: N803

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.runtime import interpreter

from lps_kernels._registry import REGISTRY, Args
from lps_kernels._samples import Draw
from lps_kernels.backends.triton import KERNELS, _launch, _matrix, straight_through
from lps_kernels.backends.triton._launch import Sizes
from lps_kernels.backends.triton._matrix import TILES, Tile, Tiles
from lps_kernels.backends.triton._numbers import narrow, widen
from lps_kernels.backends.triton._selections import Selection, plan_for
from lps_kernels.backends.triton._tables import runs_ended
from lps_kernels.backends.triton.linear import MASKED_TILES
from lps_kernels.backends.triton.select import ABOVE, INSIDE, MISSED, PREDICTED, STATE, THRESHOLD, WANTED, select
from lps_kernels.backends.triton.sparse import TILES as SPARSE_TILES
from lps_kernels.backends.triton.step import GRAD, V, layer_table
from lps_kernels.ops.scores import flat_views, group_view
from tests.helpers import CorrectSqrt, assert_close, assert_same_bits, copy_of, results_of
from tests.triton.guard import hold_to_promises, spare_repetition

spare_repetition()
hold_to_promises()

# Of 20000 weights, 1024 are sampled: a bracket holds 8 % of them around the 1000th and 17 % around the 10000th.
WEIGHTS = 20_000
CUT = Sizes(chunk=2048, search=2048, sample=1024, few=2)


def same_as_reference(name: str, args: Args, wanted: Args | None = None) -> None:
    op = REGISTRY[name]
    with CorrectSqrt():
        want = results_of(op, op.reference, copy_of(wanted or args))
    assert_same_bits(results_of(op, KERNELS[name], copy_of(args)), want, name)


@pytest.mark.parametrize("name", KERNELS)
def test_refusals_are_the_references(name: str) -> None:
    seen = [bad for bad in REGISTRY[name].bad_inputs() if not bad.reads_values]
    assert seen
    for bad in seen:
        with pytest.raises(RuntimeError) as raised:
            KERNELS[name](*bad.args)
        assert str(raised.value) == bad.message


TILES_OF = {
    "structured_linear": TILES,
    "masked_linear": MASKED_TILES,
    "structured_conv2d": TILES,
    "sparse_linear": SPARSE_TILES,
    "sparse_conv": SPARSE_TILES,
}
EVERY_TILE = [
    pytest.param(name, dtype, tile, id=f"{name}-{str(dtype)[6:]}-{tile.examples}x{tile.rows}")
    for name, tiles in TILES_OF.items()
    for dtype in (torch.float32, torch.float64, torch.float16)
    for tile in tiles[dtype.itemsize]
]


@pytest.mark.parametrize(("name", "dtype", "tile"), EVERY_TILE)
def test_every_tile(name: str, dtype: torch.dtype, tile: Tile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_matrix, "candidates", lambda tiles, examples: (tile,))
    monkeypatch.setattr(_matrix, "on_nvidia", lambda device: True)  # its sums are added up in another place
    op = REGISTRY[name]
    samples = list(op.samples(dtype))
    for sample in (samples[0], samples[len(samples) // 2]):
        got, want = results_of(op, KERNELS[name], sample.args), results_of(op, op.reference, sample.args)
        assert_close(op, dtype, got, want, sample.name)


@pytest.mark.parametrize("tiles", [TILES, MASKED_TILES, SPARSE_TILES])
def test_the_tuner_chooses_among_tiles_that_sum_alike(tiles: Tiles) -> None:
    for of_size in tiles.values():
        tried = [_matrix.candidates(of_size, examples) for examples in (1, 32, 33, 10_000)]
        assert {tile for chosen in tried for tile in chosen} == {*of_size}
        for chosen in tried:
            assert len({tile.depth for tile in chosen}) == 1
            assert len({tile.examples == _matrix.FEW_TILE for tile in chosen}) == 1


@pytest.mark.parametrize("start", [0, 1, 3, 4])
def test_alignment_is_claimed_where_every_array_has_it(start: int) -> None:
    x, out = torch.randn(40)[start:], torch.empty(36)
    plan = plan_for([Selection(x, (1, len(x), 1), "all", "l2", 7, out=out)])
    assert plan.aligned == (start % 4 == 0)
    table = layer_table({V: [out, x], GRAD: [x, out]}, [len(out), len(x)])
    assert table[2] == (start % 4 == 0)


def project_call(count: int, keep: int, region: str, pattern: str) -> Args:
    draw = Draw()
    x, owner = draw.normal((count, 9)), draw.owner((count, 9), 0.3)
    owner[:, ::2] = 0
    score, views = "l2" if region == "free" else "half", flat_views([group_view(x.shape, pattern)])
    return [x], [owner], [keep], views, score, region, "values"


@pytest.mark.parametrize(("pattern", "region", "available"), [("column", "owned", 4), ("filter", "free", 40)])
def test_a_keep_beyond_the_groups_of_the_region_keeps_all_of_them(pattern: str, region: str, available: int) -> None:
    groups = 9 if pattern == "column" else 40
    asked = project_call(40, groups, region, pattern)
    same_as_reference("project", asked, wanted=project_call(40, available, region, pattern))
    owned = int((asked[1][0] & 0x7F > 0).sum())
    single = project_call(40, 359, "owned", "irregular")
    same_as_reference("project", single, wanted=project_call(40, owned, "owned", "irregular"))


@pytest.mark.parametrize("keep", [-1, 10])
def test_a_keep_that_no_layer_could_have_is_refused(keep: int) -> None:
    expected = r"lps::project: keep\[0\]: expected between 0 and 9 \(the groups of layer 0\), got "
    x, _, _, views, *_ = project_call(40, keep, "free", "column")
    with pytest.raises(RuntimeError, match=expected + str(keep)):
        KERNELS["project"](x, [], [keep], views, "l2", "all", "values")


def call_over_layers(name: str, layers: int) -> Args:
    """A call over this many layers, of groups of one weight and of several."""
    draw = Draw()
    shapes = [(6, 7), (9,), (3, 40)] * (layers // 3)
    x, owner = [draw.normal(shape) for shape in shapes], [draw.owner(shape) for shape in shapes]
    views = flat_views([group_view(shape, "filter") for shape in shapes])
    elements = flat_views([group_view(shape, "irregular") for shape in shapes])
    copies = [[tensor.clone() for tensor in x] for _ in range(6)]
    if name == "group_scores":
        return x, [], views, "l2", "all"
    if name == "project":
        return x, [], [2] * layers, views, "l2", "all", "values"
    if name == "admm_update_":
        return x, copies[0], owner, [1] * layers, [1] * layers, views, elements, False, False
    if name == "proximal_grad_":
        return copies[0], x, copies[1], owner, "all", 0.5, 0.5
    effective, grad, v, w_bar, mean, square = copies
    scalars = (1, 1e-3, 1e-2, 0.9, 0.999, 1e-8)
    if name == "straight_through_adam_":
        thresholds, counts = torch.full((layers, 2, 2), 0.5), ([1] * layers, [1] * layers, views, elements)
        return effective, grad, v, w_bar, owner, mean, square, thresholds, *counts, True, "all", *scalars, 0.0, [], []
    return effective, grad, v, w_bar, x, owner, mean, square, "all", "proximal", *scalars, 0.1, 0.1


@pytest.mark.parametrize(
    ("name", "most"),
    [
        ("group_scores", 3),
        ("project", 8),
        ("admm_update_", 8),
        ("proximal_adam_", 1),
        ("proximal_grad_", 1),
        ("straight_through_adam_", 10),
    ],
)
def test_launches_do_not_grow_with_the_layers(name: str, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    launches: list[str] = []
    run = interpreter.GridExecutor.__call__

    def counted(self: Any, *args: Any, **kwargs: Any) -> Any:
        launches.append(self.fn.__name__)
        return run(self, *args, **kwargs)

    monkeypatch.setattr(interpreter.GridExecutor, "__call__", counted)
    monkeypatch.setattr(_launch, "sizes", CUT)
    KERNELS[name](*call_over_layers(name, 3))
    few, launches[:] = list(launches), []
    KERNELS[name](*call_over_layers(name, 30))
    assert launches == few
    assert len(few) <= most


def test_the_table_of_a_call_is_built_once(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[int] = []
    build = _launch.table_on

    def counted(device: torch.device, values: Any) -> Tensor:
        built.append(len(values))
        return build(device, values)

    monkeypatch.setattr(_launch, "table_on", counted)
    for name in ("admm_update_", "proximal_adam_", "straight_through_adam_"):
        args = call_over_layers(name, 6)
        for _ in range(3):
            KERNELS[name](*args)
    # The straight-through step has one of its layers and one of their selections.
    assert len(built) == 4
    for _ in range(2 * _launch._MOST_REMEMBERED):
        KERNELS["proximal_grad_"](*call_over_layers("proximal_grad_", 3))
    assert len(_launch._REMEMBERED) <= _launch._MOST_REMEMBERED


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("betas", [(0.9, 0.999), (0.0, 0.5), (0.95, 0.9999)])
def test_a_device_step_is_the_step_with_that_number(dtype: torch.dtype, betas: tuple[float, float]) -> None:
    for step in (1, 2, 3, 10, 100, 9_999, 1_000_000):
        draw = Draw(step)
        tensors = [[draw.normal((40,), dtype)] for _ in range(5)]
        owner, mean, square = [draw.owner((40,))], [draw.normal((40,), dtype)], [draw.uniform((40,), dtype)]
        scalars = (1e-3, 1e-2, *betas, 1e-8, 1e-2, 3e-2)
        state = (*tensors, owner, mean, square, "all", "proximal")
        numbered = copy_of((*state, step, *scalars, None))
        on_device = copy_of((*state, 1, *scalars, torch.tensor([step])))
        op = REGISTRY["proximal_adam_"]
        want = results_of(op, KERNELS[op.name], numbered)
        assert_same_bits(results_of(op, KERNELS[op.name], on_device), want, f"step {step}")


def sampled(groups: int) -> Tensor:
    """Where the kernel looks for its bracket."""
    i = torch.arange(CUT.sample)
    stride = groups // CUT.sample
    return i * stride + (i * 0x9E3779B1 % 2**32) % stride


def run_selection(x: Tensor, keep: int) -> list[int]:
    """What is known of the selection of the ``keep`` largest magnitudes in the end."""
    plan = plan_for([Selection(x, (1, len(x), 1), "all", "l2", keep)])
    keys = torch.empty(plan.keys, dtype=torch.int64)
    return select(plan, keys, x.dtype, dual=False)[: STATE.value].tolist()


def selection_cases() -> list[tuple[str, Tensor, int]]:
    """Where the threshold lies of the bracket, weights and how many to keep."""
    x = Draw().uniform((WEIGHTS,)) + 1
    small, large, equal = x.clone(), x.clone(), x.clone()
    small[sampled(WEIGHTS)] = 0.5
    large[sampled(WEIGHTS)] = 3
    equal[2000:18_000] = 1.5
    return [
        ("inside", x, 1000),
        ("above", small, 6000),
        ("below", large, 6000),
        ("crowded", x, 10_000),
        ("ties", equal, 12_000),
        ("all", x, WEIGHTS),
    ]


@pytest.mark.parametrize(("case", "x", "keep"), selection_cases(), ids=[case for case, *_ in selection_cases()])
def test_every_way_to_a_threshold_is_exact(case: str, x: Tensor, keep: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_launch, "sizes", CUT)
    state = run_selection(x, keep)
    room = len(x) // 8
    if case == "above":
        assert state[ABOVE.value] >= keep
    elif case == "below":
        assert sum(state[ABOVE.value : ABOVE.value + 4]) < keep
    elif case == "crowded":
        assert state[INSIDE.value] > room
    elif case == "ties":
        assert state[WANTED.value] > CUT.chunk
    elif case == "inside":
        assert 0 < state[INSIDE.value] <= room
    # Where all are kept, that is known without a search.
    worst = 0 if case == "all" else int(x.sort(descending=True).values[keep - 1].view(torch.int32))
    assert state[THRESHOLD.value] == worst
    same_as_reference("project", ([x], [], [keep], [1, len(x), 1], "magnitude", "all", "values"))


def straight_through_call(
    v: Tensor, keep: tuple[int, int], hint: Tensor, *, emerging: bool = False, lr: float = 0.0, learning: bool = False
) -> Args:
    """A step of one layer, every other weight owned, every fourth kept; without ``lr``, ``v`` stays as it is."""
    draw = Draw()
    effective, grad, w_bar, mean = (draw.normal(v.shape, v.dtype) for _ in range(4))
    owner = torch.zeros(v.shape, dtype=torch.uint8)
    owner[::2] = 1
    owner[::4] |= 0x80
    state = ([effective], [grad], [v], [w_bar], [owner], [mean], [draw.uniform(v.shape, v.dtype)], hint[None])
    elements = [1, len(v), 1]
    counts = ([keep[0]], [keep[1]], elements, elements)
    moments = ([draw.normal(v.shape, v.dtype)], [draw.uniform(v.shape, v.dtype)]) if learning else ([], [])
    return *state, *counts, emerging, "all", 3, lr, lr, 0.9, 0.999, 1e-8, 0.0, *moments


@pytest.fixture
def states(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """What was known of the selections of every straight-through step, one row a role."""
    known: list[Tensor] = []

    def kept(*args: Any, **kwargs: Any) -> Tensor:
        state = select(*args, **kwargs)
        known.append(state.view(-1, STATE.value))
        return state

    monkeypatch.setattr(straight_through, "select", kept)
    return known


STEPPED = 4000  # half of them free
NEAR = 0.02


def predicted_cases() -> list[tuple[str, Tensor, tuple[int, int], list[list[float]] | float, bool, bool]]:
    """Name, weights, how many to keep, the hints, emerging, and whether the layer is written anew.

    The hints are those of both roles, or by how much they are off.
    """
    v = Draw(3).normal((STEPPED,))
    few, equal, crowded = v.clone(), v.clone(), v.clone()
    few[::20] = 0.7  # of the owned ones
    equal[::4] = 0.7
    crowded[::4] = 0.5 + 2**-24  # the smallest number above 1/2
    keep, every, none = (400, 500), 2000, [float("nan")] * 2
    return [
        ("near", v, keep, NEAR, False, False),
        ("exact", v, keep, 0.0, False, False),
        ("far", v, keep, [[7.0, 0.01]] * 2, False, True),
        ("crowded", v, keep, [[0.8, 100.0]] * 2, False, True),
        ("no hint", v, keep, [none] * 2, False, True),
        ("nothing is cut off", v, (every, every), [none] * 2, True, False),
        ("a hint where nothing is cut off", v, (every, every), [none, [0.8, 0.1]], True, True),
        ("few ties inside", few, keep, NEAR, False, False),
        ("many ties inside", equal, keep, NEAR, False, True),
        ("few ties exactly", few, keep, 0.0, False, True),
        ("a hint below 1/2", crowded, (every, 250), [none, [0.3, 0.6]], True, True),
        ("a negative magnitude", v * 0.2, (1700, every), [[-0.5, 0.55], none], False, True),
        ("magnitudes around zero", v * 0.2, (1900, every), [[0.015, 0.03], none], False, False),
        ("nothing is kept", v, (0, 0), [[0.8, 0.1]] * 2, True, False),
    ]


@pytest.mark.parametrize(
    ("case", "v", "keep", "hint", "emerging", "anew"), predicted_cases(), ids=[case for case, *_ in predicted_cases()]
)
def test_only_weights_near_a_good_prediction_are_written_twice(
    case: str,
    v: Tensor,
    keep: tuple[int, int],
    hint: list[list[float]] | float,
    emerging: bool,
    anew: bool,
    states: list[Tensor],
) -> None:
    thresholds = torch.tensor(hint) if isinstance(hint, list) else thresholds_beside(v, keep, hint)
    args = straight_through_call(v, keep, thresholds, emerging=emerging)
    same_as_reference("straight_through_adam_", args)
    ((free, owned),) = states
    assert bool(free[MISSED.value] | owned[MISSED.value]) == anew
    if hint == NEAR and not anew:
        # The prediction was wrong about some of what was collected.
        for role in (free, owned):
            assert role[INSIDE.value] > 1
            assert role[THRESHOLD.value] < role[PREDICTED.value]
    if "ties" in case:
        assert owned[WANTED.value] > 0


def thresholds_beside(v: Tensor, keep: tuple[int, int], above: float) -> Tensor:
    """Above those that the step will find, within twice that distance."""
    of_free = v[1::2].abs().sort(descending=True).values[keep[0] - 1]
    of_owned = v[::2].sort(descending=True).values[keep[1] - 1]
    return torch.tensor([[of_free + above, 2 * above], [of_owned + above, 2 * above]])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("emerging", [False, True])
def test_any_numbers_will_do_as_thresholds(emerging: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_launch, "sizes", CUT)
    nan, inf = float("nan"), float("inf")
    v = (Draw(5).normal((200,), dtype) * 8).round() / 8 + 1 / 16  # many ties, none at zero
    v[1:50:2] = inf  # more of the free ones than are kept
    v[[100, 102]], v[104] = inf, -inf
    numbers = (nan, inf, -inf, 0.0, -0.5, 0.5625, 1e30)
    for threshold in numbers:
        for distance in numbers:
            hint = torch.tensor([[threshold, distance], [distance, threshold]], dtype=dtype)
            same_as_reference("straight_through_adam_", straight_through_call(v, (20, 30), hint, emerging=emerging))


@pytest.mark.parametrize("learning", [False, True])
def test_steps_in_a_row_are_predicted_by_one_another(learning: bool, states: list[Tensor]) -> None:
    """Where weights learn, what sets a prediction right has to write the weight after its step."""
    op = REGISTRY["straight_through_adam_"]
    v, no_hint = Draw(7).normal((STEPPED,)), torch.full((2, 2), torch.nan)
    args = straight_through_call(v, (400, 500), no_hint, lr=1e-3, learning=learning)
    wanted = copy_of(args)
    for step in range(1, 7):
        numbered, want = ((*a[:14], step, *a[15:]) for a in (args, wanted))
        got = results_of(op, KERNELS[op.name], numbered)
        with CorrectSqrt():
            assert_same_bits(got, results_of(op, op.reference, want), f"step {step}")
    assert [bool(state[:, MISSED.value].any()) for state in states] == [True] + [False] * 5


@pytest.mark.parametrize("score", ["magnitude", "signed"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_zeros_of_both_signs_tie_and_nan_comes_first(score: str, dtype: torch.dtype) -> None:
    nan, inf = float("nan"), float("inf")
    x = torch.tensor([0.0, -0.0, 1.0, -nan, -0.0, 0.0, -1.0, inf, -inf, nan, 0.0, -0.0], dtype=dtype)
    for keep in range(len(x) + 1):
        same_as_reference("project", ([x], [], [keep], [1, len(x), 1], score, "all", "mask"))


@triton.jit
def _count_runs(place, run, out, BLOCK: tl.constexpr):
    index = tl.arange(0, BLOCK)
    tl.store(out + index, runs_ended(tl.load(place), tl.load(run), index))


@pytest.mark.parametrize(
    ("place", "run"), [(0, 1), (2, 3), (6, 7), (0, 64), (63, 64), (5, 10**10), (10**10 - 3, 10**10), (2**31 - 1, 2**31)]
)
def test_runs_are_counted_in_layers_of_any_size(place: int, run: int) -> None:
    out = torch.empty(64, dtype=torch.int32)
    _count_runs[(1,)](torch.tensor([place]), torch.tensor([run]), out, BLOCK=64)
    assert out.tolist() == [(place + i) // run for i in range(64)]


@triton.jit
def _convert(x, wide, back, BLOCK: tl.constexpr):
    index = tl.arange(0, BLOCK)
    value = widen(tl.load(x + index))
    tl.store(wide + index, value)
    tl.store(back + index, narrow(value, back.dtype.element_ty))


@triton.jit
def _round(x, out, BLOCK: tl.constexpr):
    index = tl.arange(0, BLOCK)
    tl.store(out + index, narrow(tl.load(x + index), out.dtype.element_ty))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_conversions_of_16_bit_floats_are_torchs(dtype: torch.dtype) -> None:
    every = torch.arange(-(2**15), 2**15).to(torch.int16).view(dtype)
    wide, back = torch.empty(2**16), torch.empty(2**16, dtype=dtype)
    _convert[(1,)](every, wide, back, BLOCK=2**16)
    assert_same_bits([wide, back], [every.float(), every], "exact")
    # Halfway between two neighbours, and just beside that.
    middle = (every.float()[:-1] + every.float()[1:]) / 2
    for shift in (-1, 0, 1):
        x = torch.cat([(middle.view(torch.int32) + shift).view(torch.float32), torch.zeros(1)])
        rounded = torch.empty(2**16, dtype=dtype)
        _round[(1,)](x, rounded, BLOCK=2**16)
        assert_same_bits([rounded], [x.to(dtype)], f"shifted by {shift}")


def test_threads_share_tables_and_take_turns_at_the_tuner() -> None:
    built: list[int] = []
    under_way: list[int] = []
    most = [0]

    def build() -> object:
        time.sleep(0.01)
        built.append(1)
        return object()

    class Tuner:
        def __getitem__(self, grid: Any) -> Any:
            def call() -> None:
                under_way.append(1)
                most[0] = max(most[0], len(under_way))
                time.sleep(0.01)
                under_way.pop()

            return call

    tuned = _matrix.Tuned(_count_runs, TILES[4])
    tuned._tuner = Tuner()

    def work(_: int) -> object:
        tuned.launch(lambda chosen: (1,))
        return _launch.remembered(torch.device("cpu"), "threads", build)

    with ThreadPoolExecutor(4) as pool:
        assert len({*pool.map(work, range(8))}) == 1
    assert len(built) == most[0] == 1
