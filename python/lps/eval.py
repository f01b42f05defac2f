"""``python -m lps.eval FILE``: check every digest of a file, then every task's accuracy on its test data.

The file names the test data if the tasks are a benchmark's. For data of your own ``--inputs`` and ``--labels`` give the
examples of one task.

The digests say that the weights are bit for bit as they were learnt. Accuracies are then identical on the machine
that trained, with the same number of threads. Elsewhere sums are rounded in another order, which can turn only examples
whose two best logits agree to about six digits: up to one example in a thousand, at least one, may differ.
"""

from __future__ import annotations

from lps.environment import share_cores

share_cores()  # before anything loads torch

import sys

from lps.cli import COMMANDS, FAILED, Parser, between, guarded, use_device
from lps.errors import complain, escaped
from lps.file_options import add_backbone, add_task, load_for
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
    add_task(parser, required=False)
    parser.add_argument(
        "--inputs", type=str, nargs="+", metavar="INPUT", help="test examples of the task, as lps.infer"
    )
    parser.add_argument("--labels", type=str, metavar="LABELS", help=".npy file with the class number of each of them")
    add_backbone(parser)
    options = parser.parse_args(arguments)
    given = {options.inputs is not None, options.labels is not None}
    if given != {False} and (given != {True} or options.task is None):
        parser.error("--inputs: expected --task, --inputs and --labels together")
    from lps.deploy.verify import accuracy_of_files, check_accuracies
    from lps.runs.progress import columns, percent

    device = use_device(options.device, options.threads)
    net = load_for(options, salvage=options.salvage).to(device)
    count = len(net.learnt)
    numbers = [*range(1, count + 1)] if options.task is None else [net.check_task(options.task)]
    names = {number: escaped(net.learnt[number - 1].name) for number in numbers}
    damage = {number: net.learnt[number - 1].damage for number in numbers}
    digests = {number: "damaged" if damage[number] else "ok" for number in numbers}
    problems = [
        f"task {number} ({names[number]}) is lost: {damage[number]}; look for a whole copy of {options.file}"
        for number in numbers
        if damage[number]
    ]
    if options.inputs is not None:
        accuracy = accuracy_of_files(net, numbers[0], options.file, options.inputs, options.labels)
        print(columns([("task", "now", "digest"), (names[numbers[0]], percent(accuracy), digests[numbers[0]])]))
    elif net.metadata.stream is None or not net.can_run:
        print(columns([("task", "digest"), *((names[number], digests[number]) for number in numbers)]))
        why = "does not name its data" if net.metadata.stream is None else "does not hold its network (--backbone)"
        print(f"\n{options.file} {why}: digests were checked, accuracies were not measured")
    else:
        places = (options.data_dir, options.download)
        checks = check_accuracies(net, options.file, *places, precision=options.precision, numbers=numbers)
        rows = [
            (names[number], percent(check.recorded), percent(check.now), digests[number])
            for number, check in zip(numbers, checks, strict=True)
        ]
        print(columns([("task", "recorded", "now", "digest"), *rows]))
        differ = [number for number, check in zip(numbers, checks, strict=True) if check.differs]
        wrong = [names[number] for number in differ if options.precision == "fp32"]
        if wrong:
            which = ", ".join(wrong)
            problems.append(f"{which}: accuracy differs from the recorded one by more than rounding; check the data")
    for sentence in problems:
        complain(PROG, sentence)
    return FAILED if problems else 0


if __name__ == "__main__":
    sys.exit(main())
