"""Two tasks of handwritten digits behind one port, asked with the standard library alone.

    pip install 'learn-prune-share[serve]'
    python examples/serving.py [FOLDER]

Any client of the Open Inference Protocol can ask the same way; docs/serving.md has curl and Triton's client.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from lps import train
from lps.data import stream

TASKS = 2


def learn(folder: Path) -> Path:
    """A file with two tasks."""
    arguments = ["--tasks", str(TASKS), "--epochs", "2,6,2", "--threads", "1", "--output", str(folder / "run")]
    if train.main(arguments):
        raise SystemExit("learning failed")
    return folder / "run" / "model.lps"


def ask(address: str, question: object | None = None) -> Any:
    """The answer of the server, decoded."""
    body = None if question is None else json.dumps(question).encode()
    with urlopen(Request(address, body, {"content-type": "application/json"})) as answer:
        return json.load(answer)


def main(folder: Path) -> None:
    """Learn, serve, ask, stop."""
    file = learn(folder)
    line = [sys.executable, "-m", "lps.serve", str(file), "--port", "0", "--threads", "1"]
    with subprocess.Popen(line, stderr=subprocess.PIPE, text=True) as server:
        try:
            assert server.stderr is not None
            address = json.loads(server.stderr.readline())["address"]
            for model in ask(f"{address}/v2/models")["models"]:
                print(f"{model['name']}: {model['parameters']['classes']} classes, version {model['versions'][0][:12]}")
            rows, labels = [], []
            for number, task in enumerate(stream("permuted-digits", tasks=TASKS, seed=0), 1):
                assert task.test is not None
                for place in range(20):
                    inputs, label = task.test[place]
                    rows.append({"task": number, "input": inputs.tolist()})
                    labels.append(int(label))
            answers = ask(f"{address}/infer", {"rows": rows, "top": 1})["rows"]
            right = sum(row["classes"][0]["class"] == label for row, label in zip(answers, labels, strict=True))
            print(f"one request with {len(rows)} digits of {TASKS} tasks: {100 * right / len(rows):.0f} % right")
        finally:
            server.terminate()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as temporary:
            main(Path(temporary))
