"""Bad arguments and files: the command prints one sentence, exits with a non-zero code and writes nothing."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from lps import cli, train

from tests.command import run

ARGUMENT, RUN = 2, 1


@pytest.fixture(autouse=True)
def _in_an_empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """The exit code and the message; checks that it is one sentence and that no file appeared or changed."""
    before = contents()
    with pytest.raises(SystemExit) as stopped:
        sys.exit(train.main(list(arguments)))  # as the module does; argument errors exit by themselves
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("lps.train: ")
    assert shown.err.count("\n") == 1
    assert contents() == before
    assert isinstance(stopped.value.code, int)
    return stopped.value.code, shown.err


def contents() -> dict[Path, bytes | None]:
    return {path: path.read_bytes() if path.is_file() else None for path in Path().rglob("*")}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--resume-if-begun", "--resume-if-begun: say which run to begin or to go on with"),
        ("--first-task x", "--first-task: say which run to begin or to go on with"),
        ("--benchmark nope", "benchmark: expected one of permuted-digits, permuted-mnist"),
        ("--preset slow", "preset: expected one of quick, paper, got slow"),
        ("--epochs 1,2", "epochs: expected three counts of at least 0, got (1, 2)"),
        ("--epochs 1,x,2", "epochs: expected one whole number, three"),
        ("--epochs 1,2,3;4,5", "epochs: expected one whole number, three, as in 1,3,1, or several triples"),
        ("--epochs 1,2,3;0,0,0", "epochs: expected at least one epoch in all, got (0, 0, 0)"),
        ("--epochs 1,2,-3", "epochs: expected three counts of at least 0, got (1, 2, -3)"),
        ("--epochs 1,2,99999999999", "epochs: expected at most 2147483647 of a phase"),
        ("--epochs 1,2,3;", "epochs: expected one whole number, three"),
        ("--epochs 0,0,0", "epochs: expected at least one epoch in all"),
        ("--alpha 2", "alpha: expected a number from 0 to 1, got 2"),
        ("--alpha 0.5,high", "alpha: expected a number, a list of numbers"),
        ("--alpha 0.1,2 --tasks 1", "alpha: expected a number from 0 to 1, got 2"),
        ("--beta -0.1", "beta: expected a number from 0 to 1"),
        ("--dropout 0.1,x", "dropout: expected a number or several"),
        ("--batch-size 0", "batch_size: expected 1 to 2147483647, got 0"),
        ("--batch-size many", "batch_size: expected a whole number, got many"),
        ("--lr 0", "lr: expected a number above 0"),
        ("--lr inf", "lr: expected a number above 0, got inf"),
        ("--lr .inf", "lr: expected a number, got .inf"),
        ("--lr 1e999", "lr: expected a number, got 1e999"),
        (f"--lr 1{'0' * 400}", "lr: expected a number, got"),
        (f"--seed 1{'0' * 400}", "seed: expected 0 to 2^63 - 1, got"),
        (f"--seed 1{'0' * 5000}", "seed: expected a whole number, got"),
        (f"--epochs 1,1,1{'0' * 400}", "epochs: expected at most 2147483647 of a phase, got"),
        ("--alpha {'*':1e999}", "alpha: expected a number, a list of numbers"),
        ("--seed 1.5", "seed: expected a whole number, got 1.5"),
        ("--tasks 0", "tasks: expected 1 to 127, got 0"),
        ("--tasks 128", "tasks: expected 1 to 127, got 128"),
        (f"--tasks 1{'0' * 400}", "tasks: expected 1 to 127, got"),
        ("--threads 0", "threads: expected 1 to 4096, got 0"),
        ("--pattern diagonal", "pattern: expected one of irregular, column, filter, channel, got diagonal"),
        ("--schedule up", "schedule: expected one of constant, linear, cosine, got up"),
        ("--seed 18446744073709551616", "seed: expected 0 to 2^63 - 1"),
        ("--threads 1000000000000", "threads: expected 1 to 4096"),
        ("--batch-size 1000000000000000", "batch_size: expected 1 to 2147483647"),
        ("--rho-levels 2000", "rho_levels: expected 1 to 12"),
        ("--stream-seed -1", "stream_seed: expected 0 to 2^63 - 1, got -1"),
        ("--save-every 0", "save_every: expected seconds above 0, up to 1e9, got 0"),
        ("--save-every nan", "save_every: expected seconds above 0, up to 1e9, got nan"),
        ("--log wandb,paper", "log: expected one or several of tensorboard, wandb, mlflow, got wandb,paper"),
        ("--log ,", "log: expected one or several of tensorboard, wandb, mlflow, got ,"),
        ("--norms mine", "norms: expected one of frozen, per-task, got mine"),
        ("--method mine", "method: expected one of lps, packnet, "),
        ("--method wsn --pattern filter", "pattern: wsn does not use it (lps, packnet do); leave it out"),
        ("--method ewc --fill-last", "fill_last: ewc does not use it (lps, packnet do); leave it out"),
        ("--method packnet --sharing structured", "sharing: packnet does not use it (lps does); leave it out"),
        ("--method single --norms frozen", "norms: single does not use it (lps, packnet, wsn, "),
        ("--precision fp8", "precision: expected one of fp32, bf16, got fp8"),
        ("--window 128", "permuted-digits: window: is no option of this benchmark (it is an option of split-rf, syn"),
        (
            "--benchmark synthetic-rf --window 0",
            "synthetic-rf: window: expected 1 to 2147483647 samples, got 0",
        ),
        (
            "--benchmark synthetic-rf --window wide",
            "synthetic-rf: window: expected 1 to 2147483647 samples, got wide",
        ),
        ("--output \0", "output: expected text that is neither empty nor holds NUL, got '\\x00'"),
        ("--data-dir \udcff", "--data-dir: expected text in UTF-8, got '\\udcff'"),
        ("--seed \udcff", "--seed: expected text in UTF-8, got '\\udcff'"),
        ("--config \0", "'\\x00': cannot be read: its name holds a NUL character"),
        ("--alpha {a", "--alpha: expected YAML, got a problem in line 1"),
        ("--nope", "unrecognized arguments: --nope"),
        ("--alpha", "--alpha: expected one argument"),
        ("--config none.yaml", "none.yaml"),
        ("--resume", "--resume: say which run to go on with"),
    ],
)
def test_arguments(capsys: pytest.CaptureFixture[str], arguments: str, words: str) -> None:
    code, sentence = refused(capsys, *arguments.split())
    assert code == ARGUMENT
    assert words in sentence


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("alpah: 0.1\n", "alpah: is no setting; --help lists them all"),
        ("alpha: [0.1\n", "mine.yaml: expected YAML, got a problem in line 2"),
        ("- alpha\n", "mine.yaml: expected settings by name, as in 'alpha: 0.1', got ['alpha']"),
        ("fill_last: maybe\n", "fill_last: expected true or false, got maybe"),
        ("epochs: 0\n", "epochs: expected at least one epoch in all"),
        ("benchmark: [mixed]\n", "benchmark: expected one of permuted-digits"),
        ("alpha: {0: 0.1}\n", "alpha: expected a number, a list"),
        ("alpha: []\n", "alpha: expected at least one value, got none"),
        ("epochs: []\n", "epochs: expected three counts of at least 0, got ()"),
        ("epochs: [[1, 2, 3], -4]\n", "epochs: expected at least one epoch in all, at most 2147483647, got -4"),
        ("preset: {}\n", "preset: expected one of quick, paper, got {}"),
        ("1: 2\n", "mine.yaml: expected names of settings, got 1"),
        ("? [a]\n: 2\n", "mine.yaml: expected YAML, got a problem in line 1"),
        ("", "mine.yaml: expected settings by name, as in 'alpha: 0.1', got nothing"),
        ("# nothing\n", "got nothing"),
        ("lps: 3\n", "mine.yaml: lps: expected settings by name"),
        ("lps: {tasks: 3}\n", "mine.yaml: lps: tasks: is no setting of this section"),
        ("lps: {alpha: x}\n", "alpha: expected a number, a list"),
        ("options: {alpha: 1}\n", "mine.yaml: options: alpha: is no setting of this section"),
        ("options: {window: 3}\n", "permuted-digits: window: is no option of this benchmark"),
        ("lr: 1e999\n", "lr: expected a number, got 1e999"),
        ("lr: .inf\n", "lr: expected a number above 0, got inf"),
        (f"lr: 1{'0' * 400}\n", "lr: expected a number, got"),
        (f"seed: 1{'0' * 400}\n", "seed: expected 0 to 2^63 - 1, got"),
        (f"seed: 1{'0' * 5000}\n", "mine.yaml: expected YAML, got a problem: Exceeds the limit"),
        (f"seed: 0x1{'0' * 5000}\n", "seed: expected 0 to 2^63 - 1, got a huge number"),
        ('output: "a\\0b"\n', "output: expected text that is neither empty nor holds NUL"),
        ("output: ''\n", "output: expected text that is neither empty nor holds NUL, got"),
        ('lps: {seed: 1,\n  alpha: ["\\udcff"]}\n', "got a problem in line 2: text that is not UTF-8"),
        (f"tasks: 0x1{'0' * 5000}\n", "tasks: expected 1 to 127, got a huge number"),
        (f"benchmark: synthetic-rf\nwindow: 0x1{'0' * 5000}\n", "window: expected 1 to 2147483647 samples"),
        ("seed: \0\n", "mine.yaml: expected YAML, got a problem"),
        ("seed: !!int ''\n", "mine.yaml: expected YAML, got a problem"),
        ("seed: !!bool x\n", "mine.yaml: expected YAML, got a problem"),
        ("seed: !!timestamp x\n", "mine.yaml: expected YAML, got a problem"),
        ("seed: 2024-13-45\n", "mine.yaml: expected YAML, got a problem"),
        ("seed: 2024-12-24\n", "seed: expected a whole number, got datetime.date(2024, 12, 24)"),
        ("seed: !!python/object/apply:os.getpid []\n", "mine.yaml: expected YAML, got a problem in line 1"),
        (f"alpha: {'[' * 50_000}\n", "mine.yaml: expected YAML, got too many nested brackets"),
        ("a: &a [1]\nalpha: *a\n", "mine.yaml: expected YAML, got a problem: aliases (*name) are not read"),
        (f"alpha: {'1' * 100_000}\n", "mine.yaml: cannot be read: expected at most 100,000 bytes, got 100,008"),
        ("seed: 1\n---\nseed: 2\n", "mine.yaml: expected YAML, got a problem in line 2"),
    ],
)
def test_configuration_files(capsys: pytest.CaptureFixture[str], text: str, words: str) -> None:
    Path("mine.yaml").write_text(text)
    code, sentence = refused(capsys, "--config", "mine.yaml")
    assert code == ARGUMENT
    assert words in sentence


@pytest.mark.parametrize("more", [(), ("--resume", "--output", ".")])
def test_a_flag_that_the_method_in_the_file_does_not_read(
    capsys: pytest.CaptureFixture[str], more: tuple[str, ...]
) -> None:
    Path("config.yaml").write_text("method: ewc\nsharing: structured\n")  # in a file it is left alone
    files = () if more else ("--config", "config.yaml")
    code, sentence = refused(capsys, *files, *more, "--pattern", "column")
    assert code == ARGUMENT
    assert "pattern: ewc does not use it (lps, packnet do); leave it out" in sentence


def test_a_configuration_file_that_is_no_text(capsys: pytest.CaptureFixture[str]) -> None:
    Path("mine.yaml").write_bytes(b"seed: \xff\xfe")
    code, sentence = refused(capsys, "--config", "mine.yaml")
    assert code == ARGUMENT
    assert "mine.yaml: expected text in UTF-8, got invalid start byte at byte 6" in sentence


def test_a_folder_of_runs_that_leads_nowhere(capsys: pytest.CaptureFixture[str]) -> None:
    Path("runs").symlink_to("an unmounted disk")
    code, sentence = refused(capsys)
    assert code == RUN
    assert "runs" in sentence


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--benchmark permuted-mnist --data-dir empty", "--data-dir"),
        ("--benchmark split-cifar --data-dir empty", "--data-dir"),
        ("--tasks 7 --benchmark split-cifar", "split-cifar: tasks: expected 1 to 6, got 7"),
        ("--augment", "permuted-digits: augment: only colour images can be cropped and mirrored"),
        ("--augment --benchmark synthetic-rf", "synthetic-rf: augment: only colour images"),
        ("--dropout 0.1,0.2", "dropout: expected a number from 0 to below 1"),
        # Tasks 1 to 3 would fit; nothing is trained before task 4 is found not to.
        ("--alpha 0.3", "task 4: alpha asks for"),
        ("--alpha 0.5", "5 tasks of one size fit with an alpha of 0.2 each"),
        ("--alpha 0.5,0.3 --pattern column", "task 3: alpha asks for"),
        ("--reserve 0.5", "beside the reserve of 0.5"),
        ("--alpha {'1.weight':0.1}", "alpha: expected a share for layer 4.weight"),
        ("--device abacus", "device: expected cpu, cuda or cuda:N, got abacus"),
        ("--device cuda:99", "device: got cuda:99, but torch finds"),
        ("--output used", "output: used is not empty"),
        ("--output used/file", "output: used/file is a file"),
        ("--output used/file/below --tasks 1", "output: used/file/below: cannot be made: Not a directory"),
        ("--resume --output nowhere", "nowhere holds no run to go on with"),
        ("--resume --output used", "used holds no run to go on with"),
    ],
)
def test_runs(capsys: pytest.CaptureFixture[str], arguments: str, words: str) -> None:
    Path("empty").mkdir()
    Path("used").mkdir()
    Path("used/file").write_text("mine")
    code, sentence = refused(capsys, *arguments.split(), *("" if "--output" in arguments else ("--output", "new")))
    assert code == RUN
    assert words in sentence


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens without a GPU")
def test_a_device_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert refused(capsys, "--device", "cuda") == (
        RUN,
        "lps.train: device: got cuda, but torch finds 0 CUDA devices; use cpu\n",
    )


def test_what_was_trained_cannot_be_changed_by_resuming(capsys: pytest.CaptureFixture[str]) -> None:
    small = ("--tasks", "1", "--epochs", "0,1,0", "--threads", str(torch.get_num_threads()))
    assert train.main([*small, "--output", "run"]) == 0
    capsys.readouterr()
    for changes, words in (
        (("--alpha", "0.1"), "alpha: task 1 was learnt with 0.2, got 0.1"),
        (("--pattern", "column"), "pattern: it is irregular in this run, got column"),
        (("--lr", "0.1"), "lr: it is 0.001 in this run, got 0.1"),
        (("--tasks", "9"), "task 6: alpha asks for"),
    ):
        code, sentence = refused(capsys, "--resume", "--output", "run", *changes)
        assert code == RUN
        assert words in sentence


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"accuracy": [], "tasks": []}'])
def test_a_run_whose_records_are_damaged_is_not_resumed(capsys: pytest.CaptureFixture[str], text: str) -> None:
    assert train.main(["--tasks", "1", "--epochs", "0,1,0", "--output", "run"]) == 0
    capsys.readouterr()
    Path("run/results.json").write_text(text)
    code, sentence = refused(capsys, "--resume", "--output", "run")
    assert code == RUN
    assert "run/results.json: " in sentence


def test_in_a_process_of_its_own() -> None:
    """As above, in a subprocess, with the exit code that a shell sees."""
    done = run(Path.cwd(), "lps.train", "--alpha", "0.3")
    assert (done.returncode, done.stdout) == (RUN, "")
    assert done.stderr.startswith("lps.train: task 4: ")
    assert done.stderr.count("\n") == 1
    assert not contents()


def test_an_unknown_command_is_refused(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["lps", "trian"])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    assert stopped.value.code == ARGUMENT
    assert "train" in capsys.readouterr().err
