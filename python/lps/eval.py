"""``python -m lps.eval FILE``: check every digest of a file, then every task's accuracy on its test data.

The digests say that the weights are bit for bit as they were learnt. Accuracies are then identical on the machine
that trained, with the same number of threads. Elsewhere sums are rounded in another order, which can turn only examples
whose two best logits agree to about six digits: up to one example in a thousand, at least one, may differ.
"""

from __future__ import annotations

import sys
from pathlib import Path

from lps.artifact.read import load
from lps.cli import COMMANDS, FAILED, Parser, between, guarded, use_device
from lps.data import stream
from lps.errors import FileFormatError
from lps.lifelong import Lifelong
from lps.runs.progress import columns, percent
from lps.runs.settings import MOST_THREADS
from lps.task import Task

PROG = "lps.eval"


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    return guarded(PROG, lambda: _main(sys.argv[1:] if arguments is None else arguments))


def _main(arguments: list[str]) -> int:
    parser = Parser(PROG, f"{COMMANDS['eval'].capitalize()}.")
    parser.add_argument("file", type=str, metavar="FILE", help="a model.lps")
    parser.add_argument("--data-dir", type=str, metavar="DIR", help="folder with the data files")
    parser.add_argument("--download", action="store_true", help="fetch data files that are missing")
    parser.add_argument("--device", type=str, default="cpu", metavar="DEVICE", help="cpu, cuda or cuda:N")
    parser.add_argument(
        "--threads", type=between(1, MOST_THREADS), metavar="N", help="threads of torch; by default torch's choice"
    )
    options = parser.parse_args(arguments)
    device = use_device(options.device, options.threads)
    net = load(options.file).to(device)
    if net.metadata.stream is None:
        print(columns([("task", "digest"), *((task.name, "ok") for task in net.learnt)]))
        print(f"\n{options.file} does not name its data: the digests are right, accuracies were not measured")
        return 0
    recorded, tasks = _recorded(options.file, net, options.data_dir, options.download)
    rows, wrong = [("task", "recorded", "now", "digest")], []
    for number, (task, before) in enumerate(zip(tasks, recorded, strict=True), start=1):
        now, examples = net.accuracy(number, task.test), len(task.test)  # type: ignore[arg-type]
        rows.append((task.name, percent(before), percent(now), "ok"))
        if round(abs(now - before) * examples) > max(1, examples // 1000):
            wrong.append(task.name)
    print(columns(rows))
    if wrong:
        sentence = f"{', '.join(wrong)}: accuracy differs from the recorded one by more than rounding; check the data"
        print(f"{PROG}: {sentence}", file=sys.stderr)
    return FAILED if wrong else 0


def _recorded(file: str, net: Lifelong, data_dir: str | None, download: bool) -> tuple[list[float], list[Task]]:
    """The accuracies that the file promises and the tasks that it names."""
    source, recorded = net.metadata.stream, net.metadata.accuracy or []
    assert source is not None
    if len(recorded) != len(net.learnt):
        raise FileFormatError(f"{file}: has {len(net.learnt)} tasks but {len(recorded)} accuracies; train it again")
    folder = None if data_dir is None else Path(data_dir)
    tasks = stream(
        source.benchmark,
        data_dir=folder,
        tasks=len(recorded),
        seed=source.seed,
        download=download,
        options=source.options,
    )
    return recorded, list(tasks)


if __name__ == "__main__":
    sys.exit(main())
