"""Jobs of a Slurm cluster, through submitit (optional extra ``slurm``)."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from time import sleep
from typing import Any

from lps.errors import ConfigError, in_a_sentence
from lps.launchers.base import Command, Launch, Stop
from lps.runs.signals import stop_on_signals

EXECUTORS = ("slurm", "local")  # local: submitit's processes on this machine, to try it out
DEFAULTS = {"timeout_min": 24 * 60}  # submitit's own default is five minutes
SECONDS = 1.0  # between two looks at the jobs


class Job:
    """What a job does: run one command. Slurm sends a job that has to make room, or whose time is over, a signal;
    submitit then calls ``checkpoint`` and queues what it returns.
    """

    def __init__(self, command: Command) -> None:
        self.command = command
        self.process: subprocess.Popen[bytes] | None = None

    def __call__(self) -> None:
        """Run the command to its end."""
        self.process = self.command.start()
        self.process.wait()

    def checkpoint(self) -> Any:
        """Let the command save its state; it goes on from there when the job runs again."""
        from submitit.helpers import DelayedSubmission  # noqa: PLC0415

        if self.process is not None:
            # This is a signal handler, and wait() of the interrupted call holds the lock of the process object.
            with suppress(ProcessLookupError, ChildProcessError):
                os.kill(self.process.pid, signal.SIGTERM)
                os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOWAIT)
        return DelayedSubmission(Job(self.command))


def launcher(how: Launch) -> Callable[[Sequence[Command]], None]:
    """Refused are a missing package, a missing cluster and parameters that submitit does not know."""
    return partial(_launch, _executor(how), how.ended)


def _launch(executor: Any, ended: Callable[[str], None], commands: Sequence[Command]) -> None:
    """Submit the commands as one array of jobs and wait for them; after a signal they go on without this process."""
    with stop_on_signals() as request:
        request.checkpoint = stop = Stop()
        jobs = dict(zip((command.name for command in commands), _submit(executor, commands), strict=True))
        while jobs and not stop.stop:
            for name in [name for name, job in jobs.items() if job.done()]:
                del jobs[name]
                ended(name)
            sleep(SECONDS)
        if jobs:
            raise request.stopped("interrupted; jobs that were submitted go on")


def _executor(how: Launch) -> Any:
    try:
        import submitit  # noqa: PLC0415
    except ImportError:
        raise ConfigError("--launcher slurm: needs submitit: pip install learn-prune-share[slurm]") from None
    parameters: dict[str, object] = {**DEFAULTS, **how.parameters}
    if how.executor == "slurm" and how.jobs is not None:
        parameters["slurm_array_parallelism"] = how.jobs
    try:
        executor = submitit.AutoExecutor(how.folder, cluster=how.executor)
        executor.update_parameters(**parameters)
    except (RuntimeError, NameError, TypeError, ValueError, AssertionError) as error:
        raise _refusal(error) from None
    return executor


def _submit(executor: Any, commands: Sequence[Command]) -> list[Any]:
    from submitit.core.utils import FailedJobError  # noqa: PLC0415

    try:
        with executor.batch():
            return [executor.submit(Job(command)) for command in commands]
    except FailedJobError as error:
        raise _refusal(error) from None


def _refusal(error: Exception) -> ConfigError:
    """What submitit says, on one line."""
    return ConfigError(f"--launcher slurm: {in_a_sentence(' '.join(str(error).split()))}")
