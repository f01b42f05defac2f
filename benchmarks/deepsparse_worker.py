"""DeepSparse in a process of its own: reads one JSON object per line and answers each with one line.

Run by the Python of DeepSparse's own virtual environment, which has none of this project's packages.

``{"model", "batch", "threads", "inputs", "outputs"}`` loads an ONNX file and writes what it answers to the inputs, both
.npy. ``{"seconds"}`` answers ``{"samples"}``: seconds of each call, call after call for about so long. What fails is
answered by ``{"error"}``.
"""

from __future__ import annotations

import json
import os
import sys
from time import perf_counter
from typing import Any

import numpy as np

WARM_UP = 10


def main() -> None:
    """Serve until the input ends."""
    # The library prints a banner; the answers go where only they go.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    engine: Any = None
    inputs: list[Any] = []
    for line in sys.stdin:
        request = json.loads(line)
        try:
            if "model" in request:
                engine, inputs = _load(request)
                np.save(request["outputs"], engine.run(inputs)[0])
                answer: dict[str, Any] = {}
            else:
                answer = {"samples": _time(engine, inputs, request["seconds"])}
        except Exception as error:  # whatever it is, the figures say it and go on without DeepSparse
            answer = {"error": f"{type(error).__name__}: {error}".splitlines()[0]}
        print(json.dumps(answer), file=answers, flush=True)


def _load(request: dict[str, Any]) -> tuple[Any, list[Any]]:
    from deepsparse import compile_model  # type: ignore[import-not-found]  # noqa: PLC0415  that it fails is an answer

    engine = compile_model(request["model"], batch_size=request["batch"], num_cores=request["threads"])
    return engine, [np.load(request["inputs"])]


def _time(engine: Any, inputs: list[Any], seconds: float) -> list[float]:
    for _ in range(WARM_UP):
        engine.run(inputs)
    samples: list[float] = []
    begin = perf_counter()
    while not samples or perf_counter() - begin < seconds:
        start = perf_counter()
        engine.run(inputs)
        samples.append(perf_counter() - start)
    return samples


if __name__ == "__main__":
    main()
