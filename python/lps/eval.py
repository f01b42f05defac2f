"""``python -m lps.eval FILE``: check every digest of a file, then every task's accuracy on its test data.

The digests say that the weights are bit for bit as they were learnt. Accuracies are then identical on the machine
that trained, with the same number of threads. Elsewhere sums are rounded in another order, which can turn only examples
whose two best logits agree to about six digits: up to one example in a thousand, at least one, may differ.
"""

from __future__ import annotations

from lps.environment import share_cores

share_cores()  # before anything loads torch

import sys

from lps.cli import COMMANDS, FAILED, Parser, between, guarded, use_device
from lps.errors import complain
from lps.methods.lps.config import PRECISIONS
from lps.runs.settings import MOST_THREADS

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
    parser.add_argument(
        "--precision", choices=PRECISIONS, default="fp32", help="bf16 is shown beside the recorded ones, not compared"
    )
    parser.add_argument(
        "--salvage", action="store_true", help="of a damaged file, evaluate the tasks that the damage does not reach"
    )
    options = parser.parse_args(arguments)
    from lps.artifact.read import load
    from lps.deploy.verify import check_accuracies
    from lps.runs.progress import columns, percent

    device = use_device(options.device, options.threads)
    net = load(options.file, salvage=options.salvage).to(device)
    digests = ["damaged" if task.damage else "ok" for task in net.learnt]
    problems = [
        f"task {number} ({task.name}) is lost: {task.damage}; look for a whole copy of {options.file}"
        for number, task in enumerate(net.learnt, 1)
        if task.damage
    ]
    if net.metadata.stream is None:
        pairs = zip(net.learnt, digests, strict=True)
        print(columns([("task", "digest"), *((task.name, digest) for task, digest in pairs)]))
        print(f"\n{options.file} does not name its data: digests were checked, accuracies were not measured")
    else:
        checks = list(check_accuracies(net, options.file, options.data_dir, options.download, options.precision))
        rows = [
            (check.name, percent(check.recorded), percent(check.now), digest)
            for check, digest in zip(checks, digests, strict=True)
        ]
        print(columns([("task", "recorded", "now", "digest"), *rows]))
        wrong = [check.name for check in checks if check.differs and options.precision == "fp32"]
        if wrong:
            names = ", ".join(wrong)
            problems.append(f"{names}: accuracy differs from the recorded one by more than rounding; check the data")
    for sentence in problems:
        complain(PROG, sentence)
    return FAILED if problems else 0


if __name__ == "__main__":
    sys.exit(main())
