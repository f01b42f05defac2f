"""The table's rows (backbones with their inputs), its columns (what is done with each), why a cell is not passed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import lps
import numpy as np
import torch
from lps.deploy.exporters import EXPORTERS
from torch import Tensor, nn

from tests.backbones import networks
from tests.backbones.networks import FEATURES
from tests.command import ENVIRONMENT

IMAGE, SERIES, TOKENS = (3, 8, 8), (6, 8), (10,)
CLASSES, COUNT, TASKS = 4, 128, 3
MODULE = networks.__name__
# Three quarters right where chance is one quarter: it has learnt.
LEARNT = 0.75


@dataclass(frozen=True)
class Row:
    """A backbone: its title, the function that makes it, the shape of an input and what else differs."""

    title: str
    make: Callable[[], nn.Module]
    shape: tuple[int, ...] = IMAGE
    dtype: torch.dtype = torch.float32
    epochs: tuple[int, int, int] = (4, 6, 4)


ROWS = {
    "mlp": Row("MLP", networks.mlp),
    "tied": Row("tied weights", networks.Tied),
    "fp64": Row("fp64", networks.double, dtype=torch.float64),
    "resnet18": Row("ResNet-18, BatchNorm", networks.resnet18),
    "channels_last": Row("ResNet-18, channels-last", networks.channels_last),
    "mobilenet": Row("MobileNet-like", networks.mobilenet, epochs=(8, 10, 8)),
    "convnext": Row("ConvNeXt-like", networks.convnext),
    "vit": Row("ViT", networks.ViT),
    "unet": Row("U-Net", networks.UNet),
    "bert": Row("BERT", networks.Bert, TOKENS, torch.int64),
    "lstm": Row("LSTM and Linear", networks.Recurrent, SERIES),
    "pretrained": Row("pretrained", networks.pretrained),
}

# Why a cell is not passed, by row and column; a test holds that these cells fail and all others pass.
WHY: dict[tuple[str, str], str] = {}


def examples(name: str, task: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Inputs of four classes, each about a centre of its own, which are other ones for every task."""
    row, draw, centres = ROWS[name], torch.Generator(), torch.Generator()
    draw.manual_seed(1000 * task + seed)
    centres.manual_seed(7000 + task)
    labels = torch.randint(0, CLASSES, (COUNT,), generator=draw)
    if row.dtype == torch.int64:
        typical = torch.randint(1, 50, (CLASSES, *row.shape), generator=centres)
        other = torch.randint(1, 50, (COUNT, *row.shape), generator=draw)
        return torch.where(torch.rand(COUNT, *row.shape, generator=draw) < 0.8, typical[labels], other), labels
    means = torch.randn(CLASSES, *row.shape, generator=centres)
    return (means[labels] + 0.6 * torch.randn(COUNT, *row.shape, generator=draw)).to(row.dtype), labels


class Case:
    """A backbone with its three tasks, learnt, saved in a file, and the answers of each task when it was learnt."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.row, self.folder = name, ROWS[name], folder
        self.file = folder / f"{name}.lps"
        torch.manual_seed(0)
        self.net = lps.Lifelong(self.row.make(), FEATURES)
        self.when_learnt: list[Tensor] = []
        self.accuracy: list[float] = []
        for number in range(1, TASKS + 1):
            test = lps.Arrays(*examples(name, number, seed=1))
            task = lps.Task(f"task-{number}", CLASSES, lps.Arrays(*examples(name, number)), test, test)
            config = lps.LPSConfig(
                alpha=0.3, beta="auto", solver="straight-through", epochs=self.row.epochs, batch_size=32, lr=3e-3
            )
            self.net.learn(task, config)
            self.net.eval()
            self.when_learnt.append(self.answer(number))
            self.accuracy.append(self.net.accuracy(number, test))
        self.net.save(self.file)

    def inputs(self, task: int = 3) -> Tensor:
        """Test inputs of a task."""
        return examples(self.name, task, seed=1)[0]

    @torch.no_grad()
    def answer(self, task: int) -> Tensor:
        """The network's logits for test inputs of a task."""
        logits: Tensor = self.net(self.inputs(task), task=task)
        return logits.clone()

    def run(self, *arguments: str | Path) -> None:
        """Run Python, which must succeed."""
        done = subprocess.run(arguments, cwd=self.folder, env=ENVIRONMENT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr.strip().splitlines()[-1:]


def learns(case: Case) -> None:
    """All three tasks are learnt."""
    assert min(case.accuracy) >= LEARNT, case.accuracy


def is_bit_identical(case: Case) -> None:
    """Tasks 1 and 2 answer as they did before task 3 was learnt."""
    for number in (1, 2, 3):
        assert torch.equal(case.answer(number), case.when_learnt[number - 1])


def loads(case: Case) -> None:
    """The file gives the same bits in a new process."""
    saved = case.folder / f"{case.name}.npz"
    np.savez(saved, *(answer.numpy() for answer in case.when_learnt))
    case.run(sys.executable, "-m", "tests.backbones.reload", case.name, case.file, saved)


def extracts(case: Case) -> None:
    """The cut-out task answers like the network up to rounding."""
    close(case.net.extract(3)(case.inputs()), case.answer(3))


def exports(case: Case) -> None:
    """ONNX Runtime answers like the network up to rounding."""
    import onnxruntime  # type: ignore[import-untyped]  # noqa: PLC0415 - optional

    path = case.folder / f"{case.name}.onnx"
    EXPORTERS["onnx"].write(case.net, 3, path)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    (answers,) = session.run(None, {session.get_inputs()[0].name: case.inputs().numpy()})
    close(torch.from_numpy(answers), case.answer(3))


@torch.no_grad()
def serves(case: Case) -> None:
    """A batch whose examples belong to different tasks gets the answers of each."""
    inputs = case.inputs()[:12]
    tasks = [1, 2, 3] * 4
    mixed = case.net(inputs, task=tasks)
    for place, task in enumerate(tasks):
        close(mixed[place : place + 1], case.net(inputs[place : place + 1], task=task))


@torch.no_grad()
def compiles(case: Case) -> None:
    """The network compiled as a whole answers alike for all tasks (backend aot_eager, which needs no compiler)."""
    torch._dynamo.reset()
    compiled = torch.compile(case.net, backend="aot_eager")
    for task in (1, 3):
        close(compiled(case.inputs(task), task=task), case.answer(task))


@torch.no_grad()
def autocasts(case: Case) -> None:
    """Under autocast to bf16 the network classifies alike."""
    with torch.autocast("cpu", torch.bfloat16):
        logits = case.net(case.inputs(), task=3)
    alike(logits, case.answer(3))


@torch.no_grad()
def autocasts_cut_out(case: Case) -> None:
    """So does the cut-out task."""
    small = case.net.extract(3)
    with torch.autocast("cpu", torch.bfloat16):
        logits = small(case.inputs())
    alike(logits, case.answer(3))


def commands(case: Case) -> None:
    """``lps.info``, ``lps.eval``, ``lps.infer`` and ``lps.export`` (all formats) work on the file, one after another in
    one new process: it is torch's import that takes long.
    """
    inputs, kind = case.folder / f"{case.name}.npy", ("--backbone", f"{MODULE}:{case.row.make.__name__}")
    np.save(inputs, case.inputs().numpy())
    exports = [["export", case.file, "--task", "3", "--format", form, *kind] for form in EXPORTERS]
    infer = ["infer", case.file, inputs, "--task", "3", *kind]
    lines = [["info", case.file], ["eval", case.file, *kind], infer, *exports]
    program = (
        "import importlib\nfor name, *rest in %r:\n    assert importlib.import_module(f'lps.{name}').main(rest) == 0"
    )
    case.run(sys.executable, "-c", program % [[str(word) for word in line] for line in lines])


COLUMNS: dict[str, Callable[[Case], None]] = {
    "learn 3 tasks": learns,
    "bit-identical": is_bit_identical,
    "save, load in a new process": loads,
    "extract": extracts,
    "ONNX Runtime": exports,
    "mixed batch": serves,
    "torch.compile": compiles,
    "autocast": autocasts,
    "autocast of the cut-out": autocasts_cut_out,
    "commands": commands,
}


def close(got: Tensor, expected: Tensor) -> None:
    """Equal up to rounding: other kernels sum in another order."""
    scale = float(expected.abs().max())
    epsilon = 1e-9 if expected.dtype == torch.float64 else 1e-4
    assert torch.allclose(got, expected, rtol=0, atol=epsilon * scale), float((got - expected).abs().max()) / scale


def alike(got: Tensor, expected: Tensor) -> None:
    """Nearly the same up to the 8 bits of bf16: one class in twenty may differ."""
    assert torch.isfinite(got).all()
    assert float((got.argmax(1) == expected.argmax(1)).float().mean()) >= 0.95


def table() -> str:
    """The table as Markdown: a tick for what a test holds, a number for a sentence below it."""
    notes: list[str] = []
    lines = [["backbone", *COLUMNS], ["---"] * (1 + len(COLUMNS))]
    for name, row in ROWS.items():
        cells = [row.title]
        for column in COLUMNS:
            why = WHY.get((name, column))
            if why is not None and why not in notes:
                notes.append(why)
            cells.append("✓" if why is None else str(notes.index(why) + 1))
        lines.append(cells)
    text = "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
    return "\n".join([text, *(f"\n{number}. {why}" for number, why in enumerate(notes, 1))])
