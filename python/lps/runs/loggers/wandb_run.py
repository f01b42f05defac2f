"""Weights & Biases: offline and in the run directory, unless the user's ``WANDB_*`` variables say otherwise.

W&B's own process writes and uploads. When it dies, the next call fails at once; when it hangs, only the end would wait
for it, so the end is bounded.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from threading import Thread

from lps.runs.loggers.base import PROJECT, Logger, Start, keep_id, read_id

DEFAULTS = {
    "WANDB_MODE": "offline",
    "WANDB_PROJECT": PROJECT,
    "WANDB_SILENT": "true",
    "WANDB_CONSOLE": "off",  # standard output is the run's own
    "WANDB_ERROR_REPORTING": "false",
    "WANDB__TRANSACTION_LOG_FLUSH_INTERVAL": "1",  # seconds of which a killed run loses the values; W&B's own are 15
}
MOST_SECONDS = 60.0  # for the end of a run


class WandbRun(Logger):
    """A run of W&B; the x-axis of its curves is the value ``step``, as W&B's own steps cannot be taken again."""

    needs = ("wandb",)

    def __init__(self, start: Start) -> None:
        super().__init__(start)
        for name, value in DEFAULTS.items():
            os.environ.setdefault(name, value)
        import wandb  # noqa: PLC0415 # optional

        self._teardown = wandb.teardown
        file = start.directory / "wandb" / "id"
        kept = read_id(file)
        self.continues = kept is not None
        chosen = kept or secrets.token_hex(4)
        keep_id(file, chosen)
        self._run = wandb.init(
            dir=start.directory,
            id=chosen,
            name=os.environ.get("WANDB_NAME", start.name),
            resume="allow",
        )
        self._run.config.update(dict(start.settings), allow_val_change=True)
        self._run.define_metric("*", step_metric="step")

    def add(self, values: Mapping[str, float], step: int) -> None:
        """Add a value to each of these curves."""
        self._run.log({**values, "step": step})

    def close(self, *, complete: bool) -> None:
        """End the run and W&B's process."""
        problems: list[Exception] = []

        def end() -> None:
            for action in (lambda: self._run.finish(exit_code=0 if complete else 1), self._teardown):
                try:
                    action()
                except Exception as error:  # W&B's process may have died in any way
                    problems.append(error)

        ending = Thread(target=end, daemon=True)
        ending.start()
        try:
            ending.join(MOST_SECONDS)
        finally:
            if ending.is_alive():
                # Takes back what W&B has registered to wait for when Python ends.
                forgetting = Thread(target=self._teardown, daemon=True)
                forgetting.start()
                forgetting.join(1)
        if ending.is_alive():
            raise TimeoutError(f"it did not end within {MOST_SECONDS:g} seconds; wandb sync uploads what is left")
        if problems:
            raise problems[0]
