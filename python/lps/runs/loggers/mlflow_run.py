"""MLflow: in a SQLite file in the run directory, unless ``MLFLOW_TRACKING_URI`` says otherwise."""

from __future__ import annotations

import os
from collections.abc import Mapping
from time import time
from typing import Any

from lps.runs.loggers.base import PROJECT, Logger, Start, keep_id, read_id

FILE = "mlflow.db"
DEFAULTS = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    # A server that does not answer is given up after some seconds instead of minutes: training waits for it.
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
}


class MlflowRun(Logger):
    """A run of MLflow; settings are its parameters, which MLflow lets nobody change later."""

    needs = ("mlflow", "sqlalchemy", "alembic")

    def __init__(self, start: Start) -> None:
        super().__init__(start)
        for name, value in DEFAULTS.items():
            os.environ.setdefault(name, value)
        from mlflow import MlflowClient, entities  # noqa: PLC0415 # optional

        self._metric = entities.Metric
        folder = (start.directory / "mlflow").resolve()
        folder.mkdir(exist_ok=True)
        self._client = MlflowClient(os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{folder / FILE}")
        kept = read_id(folder / "id")
        self.continues = kept is not None and self._exists(kept)
        if kept is not None and self.continues:
            self._id = kept
            self._client.update_run(kept, status="RUNNING")
        else:
            self._id = self._begin(start.name)
            keep_id(folder / "id", self._id)
            parameters = [entities.Param(name, str(value)) for name, value in start.settings.items()]
            self._client.log_batch(self._id, params=parameters)

    def add(self, values: Mapping[str, float], step: int) -> None:
        """Add a value to each of these curves."""
        now = int(1000 * time())
        self._client.log_batch(
            self._id, metrics=[self._metric(name, value, now, step) for name, value in values.items()]
        )

    def close(self, *, complete: bool) -> None:
        """End the run."""
        self._client.set_terminated(self._id, "FINISHED" if complete else "KILLED")

    def _exists(self, kept: str) -> bool:
        """Whether the run is in this store; the user may have named another since."""
        from mlflow.exceptions import MlflowException  # noqa: PLC0415

        try:
            self._client.get_run(kept)
        except MlflowException as error:
            if error.error_code == "RESOURCE_DOES_NOT_EXIST":
                return False
            raise
        return True

    def _begin(self, name: str) -> str:
        experiment = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
        found: Any = self._client.get_experiment_by_name(experiment)
        number = self._client.create_experiment(experiment) if found is None else found.experiment_id
        begun: str = self._client.create_run(number, run_name=name).info.run_id
        return begun
