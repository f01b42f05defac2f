"""Calls every operator with broken arguments and compares the native kernels with the references.

    python -m tests.fuzz.operators --seconds 600 [--seed 0]     as many calls as fit into the time
    python -m tests.fuzz.operators --seed 0 --case 1234         one of them again, in this process

A case is a sample or a bad input of the registry with up to three changes: shapes, dtypes, strides, values, lists,
numbers. Both sides must refuse it, in the same words where both have some, or both give the same result, within the
operator's tolerance where it sums. The calls run in a child process, with a limit on its memory and on the time of a
call: a refusal by the allocator counts as one, a crash or a hang is found by the parent. The last line says how many
calls there were and how they ended; the exit code is 1 where anything was found.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import select
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lps_kernels._registry import REGISTRY, Args, Op
from tests.helpers import CorrectSqrt, assert_close, assert_same_bits, copy_of, names_of, results_of, tensors_in

ROOT = Path(__file__).resolve().parents[2]
MEMORY = 2 << 30  # bytes that a child may take beside what it has once everything is imported
PATIENCE = 30.0  # seconds of a call
IMPORTING = 300.0  # seconds that a child may take to begin
SEGMENT = 60.0  # seconds of a child, which then makes way for one with the next instruction set
LARGEST = 20_000  # weights of a call that is worth changing many times
ISAS = ("scalar", "avx2", "avx512")  # of x86, each with the ones before it

INTS = (-(2**63), -(2**31), -1, 0, 1, 2, 3, 7, 16, 127, 128, 255, 256, 2**31 - 1, 2**31, 2**61, 2**62, 2**63 - 1)
FLOATS = (float("nan"), float("inf"), float("-inf"), -1.0, -0.0, 0.0, 0.5, 1.0, 1e-300, 1e300)
# In tensors no larger than the samples' own numbers: the tolerance of sums allows for terms below 16.
WEIGHTS = (float("nan"), float("inf"), float("-inf"), -2.0, -0.0, 0.0, 0.5, 1.0, 2.0)
DTYPES = (
    *(torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int8, torch.uint8, torch.int16, torch.int32),
    *(torch.int64, torch.bool, torch.complex64, torch.float8_e4m3fn),
)
WORDS = (
    "",
    "all",
    "free",
    "owned",
    "kept",
    "values",
    "mask",
    "l2",
    "half",
    "signed",
    "magnitude",
    "gradient",
    "proximal",
)
# How torch and the C++ library word that memory is short; the sentences of the operators never have these.
NO_MEMORY = (
    *("allocate", "bad_alloc", "not enough memory", "out of memory", "vector::", "Storage size calculation overflowed"),
    *("numel: integer multiplication overflow", "Stride calculation overflowed", "overflow"),
)


def change_tensor(draw: random.Random, tensor: Tensor) -> Any:
    """Another tensor, or something else, where this one was."""
    kind = draw.choice(("values", "values", "values", "dtype", "shape", "shape", "strides", "other"))
    if kind == "dtype":
        return tensor.to(draw.choice(DTYPES))
    if kind == "values" and tensor.numel() > 0 and not tensor.is_meta:
        return change_values(draw, tensor)
    if kind == "strides":
        return restride(draw, tensor)
    if kind == "shape":
        return reshape(draw, tensor)
    return draw.choice((None, tensor.to("meta"), torch.tensor(1.0), torch.empty(0), tensor))


def change_values(draw: random.Random, tensor: Tensor) -> Tensor:
    """A few values replaced, or all of them moved, in a copy with the same strides."""
    if tensor.dim() == 0 or any(stride == 0 for stride in tensor.stride()):
        tensor = tensor.contiguous()
    out: Tensor = copy_of((tensor,))[0]
    places = [draw.randrange(tensor.numel()) for _ in range(draw.choice((1, 1, 2, 8)))]
    index = torch.tensor(places)
    if tensor.is_floating_point() and tensor.element_size() > 1:
        numbers: tuple[float, ...] = WEIGHTS
    elif tensor.dtype in (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64):
        span = torch.iinfo(tensor.dtype)
        if draw.random() < 0.3:
            return out + draw.choice((1, -1, 5))
        numbers = (*(number for number in INTS if span.min <= number <= span.max), tensor.numel(), tensor.numel() - 1)
        numbers = tuple(number for number in numbers if span.min <= number <= span.max)
    else:
        return out.flip(0) if out.dim() else out
    flat = out.reshape(-1)
    flat[index] = torch.tensor([draw.choice(numbers) for _ in places], dtype=tensor.dtype)
    return flat.reshape(tensor.shape) if out.is_contiguous() else out.copy_(flat.reshape(tensor.shape))


def reshape(draw: random.Random, tensor: Tensor) -> Tensor:
    """The tensor with one size more or less, other dimensions, or none of its elements."""
    dim = draw.randrange(tensor.dim()) if tensor.dim() else 0
    size = tensor.shape[dim] if tensor.dim() else 0
    huge = draw.choice((2**31, 2**40, 2**60, 2**62))
    ways: list[Callable[[], Tensor]] = [
        lambda: tensor.unsqueeze(draw.randrange(tensor.dim() + 1)),
        tensor.flatten,
        lambda: tensor.new_empty((0, huge) if draw.random() < 0.5 else (huge, 0)),
    ]
    if tensor.dim():
        ways += [
            lambda: tensor.narrow(dim, 0, max(size - 1, 0)),
            lambda: tensor.narrow(dim, 0, 0),
            lambda: torch.cat([tensor, tensor], dim),
            lambda: tensor.transpose(0, dim),
            lambda: (
                tensor.narrow(dim, 0, min(size, 1)).expand(*tensor.shape[:dim], huge, *tensor.shape[dim + 1 :])
                if size
                else tensor
            ),
        ]
    return draw.choice(ways)()


def restride(draw: random.Random, tensor: Tensor) -> Tensor:
    """The same values, or some of them again and again, in other places."""
    holder = torch.empty((*tensor.shape, 3), dtype=tensor.dtype, device=tensor.device)
    spread = holder[..., draw.randrange(3)]
    spread.copy_(tensor)
    if tensor.dim() == 0 or tensor.numel() == 0 or draw.random() < 0.5:
        return spread
    order = list(range(tensor.dim()))[::-1]
    return draw.choice((tensor.permute(order).contiguous().permute(order), tensor[:1].expand(tensor.shape)))


def change_list(draw: random.Random, values: list[Any]) -> Any:
    """One entry changed, or one more or fewer."""
    at, kind = draw.randrange(len(values)) if values else 0, draw.choice(("entry", "entry", "entry", "drop", "more"))
    if kind == "entry" and values:
        return [*values[:at], change(draw, values[at]), *values[at + 1 :]]
    if kind == "drop":
        return values[:at] + values[at + 1 :]
    return [*values, draw.choice(values) if values else draw.choice(INTS)]


def change_int(draw: random.Random, value: int) -> int:
    """Another number, near or far."""
    return draw.choice((*INTS, value + 1, value - 1, 2 * value))


# By type, the more special ones first: a bool is an int.
CHANGES: dict[type, Callable[[random.Random, Any], Any]] = {
    Tensor: change_tensor,
    list: change_list,
    bool: lambda draw, value: not value,
    int: change_int,
    float: lambda draw, value: draw.choice(FLOATS),
    str: lambda draw, value: draw.choice(WORDS),
    object: lambda draw, value: draw.choice((torch.zeros(3), torch.zeros(5, dtype=torch.int32), 1)),
}


def change(draw: random.Random, value: Any) -> Any:
    """Something else where this value was."""
    return next(other for kind, other in CHANGES.items() if isinstance(value, kind))(draw, value)


@cache
def calls_of(name: str, dtype: torch.dtype) -> list[Args]:
    """The op's small samples in this dtype."""
    return [
        sample.args
        for sample in REGISTRY[name].samples(dtype)
        if sum(tensor.numel() for tensor in tensors_in(sample.args)) <= LARGEST
    ]


def arguments(seed: int, case: int) -> tuple[Op, Args]:
    """The operator and the arguments of a case: the same at every call, in memory of their own."""
    draw = random.Random(f"{seed}, {case}")
    op = REGISTRY[draw.choice(list(REGISTRY))]
    if draw.random() < 0.2:
        args = [*draw.choice(list(op.bad_inputs())).args]
    else:
        args = [*copy_of(draw.choice(calls_of(op.name, draw.choice(op.dtypes))))]
    args += [argument.default_value for argument in op.overload._schema.arguments[len(args) :]]
    for _ in range(draw.choice((0, 1, 1, 1, 1, 2, 2, 3))):
        at = draw.randrange(len(args))
        if draw.random() < 0.05:
            args[at] = draw.choice(args)
            continue
        try:
            args[at] = change(draw, args[at])
        except (RuntimeError, NotImplementedError):
            continue  # torch makes no such tensor
    return op, tuple(_as_number(value, kind) for value, kind in zip(args, types_of(op), strict=True))


def _as_number(value: Any, kind: str) -> Any:
    """As the schema hands a bool, an int or a tensor of one number on to the kernels."""
    number = {"int": int, "float": float}.get(kind)
    scalar = isinstance(value, Tensor) and value.numel() == 1 and not value.is_meta and not value.is_complex()
    if number is None or not (scalar or isinstance(value, int)):
        return value
    try:
        return number(value)
    except (ValueError, OverflowError):  # NaN or Inf as an int, which the schema refuses
        return value


class Outcome:
    """What a call came to: results, a sentence, or a lack of memory."""

    def __init__(self, op: Op, function: Callable[..., Any], args: Args) -> None:
        self.results: list[Tensor] | None = None
        self.sentence, self.kind = "", "results"
        try:
            # Which calls numpy, and that knows nothing of the meta device.
            with nullcontext() if any(tensor.is_meta for tensor in tensors_in(args)) else CorrectSqrt():
                self.results = results_of(op, function, args)
        except (MemoryError, RuntimeError, NotImplementedError, TypeError, ValueError) as error:
            self.sentence = str(error).split("\n")[0]
            ours = self.sentence.startswith("lps::") and ": expected " in self.sentence
            short = isinstance(error, MemoryError) or any(words in self.sentence for words in NO_MEMORY)
            self.kind = "refused" if ours else "memory" if short else "schema" if _by_schema(error) else "other"
        except (AttributeError, IndexError, OverflowError) as error:  # of a reference, given what no schema admits
            self.sentence, self.kind = f"{type(error).__name__}: {error}", "other"


def _by_schema(error: Exception) -> bool:
    words = str(error)
    return "Declaration: lps::" in words or "expected a value of type" in words.lower() or isinstance(error, TypeError)


def judge(seed: int, case: int, say: Callable[[str], None]) -> tuple[str, str | None]:
    """How the case ended, and what is wrong with that."""
    op, args = arguments(seed, case)
    say("native")
    ours = Outcome(op, op.overload, args)
    # The schema lets a tensor be None: there are no words for that, but an error.
    absent = any(kind == "Tensor" and args[at] is None for at, kind in enumerate(types_of(op)))
    if ours.kind in ("schema", "memory") or (ours.kind == "other" and absent):
        return ours.kind, None
    say("reference")
    theirs = Outcome(op, op.reference, arguments(seed, case)[1])
    # Of the meta device the native side is the shape function; a reference may want values.
    meta = any(tensor.is_meta for tensor in tensors_in(args))
    if theirs.kind == "memory" or (meta and ours.results is not None and theirs.kind == "other"):
        return theirs.kind, None
    try:
        if ours.results is None:
            assert_same_bits(readable(args), readable(arguments(seed, case)[1]), "a refused call wrote")
        if ours.results is not None and theirs.results is not None:
            compare(op, args, ours.results, theirs.results)
        else:
            compare_words(ours.sentence, theirs.sentence)
    except AssertionError as error:
        return ours.kind, f"lps::{op.name}: {' '.join(str(error).split())}"
    return ours.kind, None


def readable(args: Args) -> list[Tensor]:
    """The tensors that have values, but for those that repeat a few of them very often."""
    return [tensor for tensor in tensors_in(args) if not tensor.is_meta and tensor.numel() <= 10 * LARGEST]


def compare_words(got: str, want: str) -> None:
    """Both refuse, in the same words. Which of several overlaps is named depends on where the tensors lie."""
    if not got.endswith("got overlapping memory") or not want.endswith("got overlapping memory"):
        assert got == want, f"got {got or 'results'!r}, the reference {want or 'results'!r}"
    assert got.startswith("lps::"), f"an error that is no sentence: {got}"


def compare(op: Op, args: Args, got: list[Tensor], want: list[Tensor]) -> None:
    """The same bits or, where the op sums, the same within its tolerance; of the meta device, nothing but sizes."""
    if any(tensor.is_meta for tensor in got):
        assert [(t.shape, t.dtype) for t in got] == [(t.shape, t.dtype) for t in want]
        return
    floats = [tensor.dtype for tensor in tensors_in(args) if tensor.dtype in op.tolerance.relative]
    if op.sums and floats:
        assert_close(op, floats[0], got, want, "results")
    else:
        assert_same_bits(got, want, "results")


def types_of(op: Op) -> list[str]:
    """The types of the arguments by the schema."""
    return [str(argument.type) for argument in op.overload._schema.arguments]


def describe(value: Any) -> str:
    """An argument in a few words."""
    if isinstance(value, Tensor):
        return f"{str(value.dtype)[6:]}{list(value.shape)}{'' if value.is_contiguous() else f' by {value.stride()}'}"
    if isinstance(value, list):
        return f"[{', '.join(describe(item) for item in value)}]"
    return repr(value)


def run_child(seed: int, first: int) -> None:
    """Cases from ``first`` on, until the parent ends this process. Says at each step where it is."""
    torch.set_num_threads(1)
    # New memory is then filled with NaN: a result that is not written is found out.
    torch.use_deterministic_algorithms(True)
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    limit = pages * os.sysconf("SC_PAGE_SIZE") + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))

    def say(line: str) -> None:
        print(line, flush=True)

    case = first
    while True:
        say(f"case {case}")
        kind, problem = judge(seed, case, say)
        say(f"ended {kind}" if problem is None else f"wrong {problem}")
        case += 1


class Child:
    """A child process, and what it has said last."""

    def __init__(self, seed: int, first: int, isa: str) -> None:
        command = [sys.executable, "-m", "tests.fuzz.operators", "--child", "--seed", str(seed), "--case", str(first)]
        # Memory that is freed or was never written has a pattern, so that reading it shows in the results.
        environment = os.environ | {"LPS_CPU_ISA": isa, "OMP_NUM_THREADS": "1", "MALLOC_PERTURB_": "165"}
        self.process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        self.case, self.step, self._buffer = first, "import", b""

    def lines(self, seconds: float) -> list[str] | None:
        """What it says within the time; None where it says nothing more, ever."""
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], seconds)
        if not ready:
            return []
        chunk = os.read(self.process.stdout.fileno(), 1 << 16)
        if not chunk:
            return None
        *lines, self._buffer = (self._buffer + chunk).split(b"\n")
        return [line.decode() for line in lines]

    def end(self) -> int:
        """Ends it; returns its exit code, negative where it was a signal."""
        self.process.kill()
        return self.process.wait()


def fuzz(seed: int, seconds: float) -> int:
    """Runs children until the time is over; prints what they find and the totals. Returns how much was found."""
    ended: Counter[str] = Counter()
    found, first, segment = 0, 0, 0
    isas = ISAS[ISAS.index(torch.ops.lps._cpu_isa()) :: -1]
    begin = time.monotonic()

    def report(case: int, words: str) -> None:
        nonlocal found
        found += 1
        print(f"case {case}: {words}\n  again: python -m tests.fuzz.operators --seed {seed} --case {case}", flush=True)

    while time.monotonic() < begin + seconds:
        child = Child(seed, first, isas[segment % len(isas)])
        segment += 1
        begun = said = time.monotonic()
        while True:
            now = time.monotonic()
            if now > begin + seconds or (child.step != "import" and now > begun + SEGMENT):
                child.end()
                break
            lines = child.lines(0.5)
            if lines is None:
                code = child.process.wait()
                what = signal.Signals(-code).name if code < 0 else f"exit code {code}"
                report(child.case, f"the process ended at its {child.step} with {what}")
                ended["crash"] += 1
                break
            if not lines and time.monotonic() > said + (IMPORTING if child.step == "import" else PATIENCE):
                child.end()
                slow = child.step == "reference"  # the call itself has ended
                if not slow:
                    report(child.case, f"no answer for {PATIENCE:.0f} seconds")
                ended["slow reference" if slow else "hang"] += 1
                break
            for line in lines:
                said = time.monotonic()
                begun = said if child.step == "import" else begun
                word, _, rest = line.partition(" ")
                if word == "case":
                    child.case = int(rest)
                elif word == "ended":
                    ended[rest] += 1
                elif word == "wrong":
                    report(child.case, rest)
                    ended["wrong"] += 1
                child.step = word
        first = child.case + 1
    counts = ", ".join(f"{count} {kind}" for kind, count in sorted(ended.items()))
    print(f"{sum(ended.values())} calls in {time.monotonic() - begin:.0f} s, seed {seed}: {counts}; {found} found")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--case", type=int, help="run this one alone, in this process")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        run_child(options.seed, options.case)
    if options.case is None:
        sys.exit(1 if fuzz(options.seed, options.seconds) else 0)
    op, args = arguments(options.seed, options.case)
    for name, value in zip(names_of(op), args, strict=True):
        print(f"  {name} = {describe(value)}")
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    kind, problem = judge(options.seed, options.case, print)
    print(problem or f"{op.name}: {kind}")
    sys.exit(1 if problem else 0)


if __name__ == "__main__":
    main()
