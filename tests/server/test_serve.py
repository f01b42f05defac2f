"""``python -m lps.serve`` in a process of its own, asked by real clients."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from lps import infer, load
from lps.deploy.server.openapi import document
from PIL import Image
from torch import Tensor

from tests.command import ENVIRONMENT, run
from tests.server.process import Server, serving

CLOSE = 1e-5  # of sums of at most 24 products
TASKS = ("clouds-0", "clouds-1", "clouds-2")


@pytest.fixture(scope="module")
def server(served_files: Path) -> Iterator[Server]:
    with serving(served_files / "model.lps", "--max-body", "100000", "--timeout", "2") as found:
        yield found


@pytest.fixture(scope="module")
def expected(served_files: Path) -> dict[str, Tensor]:
    """The logits of every task for :data:`INPUTS`."""
    net = load(served_files / "model.lps")
    with torch.no_grad():
        return {name: net(torch.from_numpy(INPUTS), task=name) for name in TASKS}


INPUTS = np.random.default_rng(0).normal(size=(4, 12)).astype(np.float32)


def question(inputs: Any = INPUTS, **more: Any) -> dict[str, Any]:
    data = inputs.tolist()
    return {"inputs": [{"name": "input", "shape": list(inputs.shape), "datatype": "FP32", "data": data}], **more}


def outputs_of(answer: httpx.Response) -> dict[str, Any]:
    assert answer.status_code == 200, answer.text
    return {each["name"]: np.reshape(each["data"], each["shape"]) for each in answer.json()["outputs"]}


def refusal(answer: httpx.Response) -> str:
    """The sentence of a refusal; checks that it is one."""
    assert 400 <= answer.status_code < 500 or answer.status_code == 503, answer.text
    assert list(answer.json()) == ["error"]
    sentence: str = answer.json()["error"]
    assert sentence
    assert sentence.isprintable()
    assert len(sentence) < 600
    return sentence


def test_health_and_metadata(server: Server, served_files: Path) -> None:
    net = load(served_files / "model.lps")
    assert server.client.get("/v2/health/live").status_code == 200
    assert server.client.get("/v2/health/ready").status_code == 200
    assert server.client.get("/v2").json()["extensions"] == ["binary_tensor_data"]
    models = server.client.get("/v2/models").json()["models"]
    assert [model["name"] for model in models] == list(TASKS)
    for model, learnt, classes in zip(models, net.learnt, (3, 2, 4), strict=True):
        assert model["versions"] == [learnt.digest]
        assert model["inputs"] == [{"name": "input", "datatype": "FP32", "shape": [-1, 12]}]
        assert model["outputs"][0] == {"name": "logits", "datatype": "FP32", "shape": [-1, classes]}
        assert model["parameters"]["classes"] == classes
        for name in (model["name"], str(model["parameters"]["task"])):
            for path in (f"/v2/models/{name}", f"/v2/models/{name}/versions/{learnt.digest}"):
                assert server.client.get(path).json() == model
                assert server.client.get(f"{path}/ready").json() == {"name": model["name"], "ready": True}
    wrong = server.client.get(f"/v2/models/clouds-0/versions/{net.learnt[1].digest}")
    assert wrong.status_code == 404
    assert "ask for its metadata again" in refusal(wrong)


@pytest.mark.parametrize("name", TASKS)
def test_inference_with_json_and_with_bytes(server: Server, expected: dict[str, Tensor], name: str) -> None:
    plain = server.client.post(f"/v2/models/{name}/infer", json=question(id="seven"))
    found = outputs_of(plain)
    assert plain.json()["model_name"] == name
    assert plain.json()["id"] == "seven"
    np.testing.assert_allclose(found["logits"], expected[name], rtol=CLOSE, atol=CLOSE)
    np.testing.assert_allclose(found["probabilities"], expected[name].softmax(1), rtol=1e-4, atol=1e-6)
    assert found["class"].tolist() == expected[name].argmax(1).tolist()
    blob = INPUTS.tobytes()
    head: dict[str, Any] = question(
        outputs=[{"name": "logits", "parameters": {"binary_data": True}}, {"name": "class"}]
    )
    head["inputs"][0].pop("data")
    head["inputs"][0]["parameters"] = {"binary_data_size": len(blob)}
    text = json.dumps(head).encode()
    headers = {"Inference-Header-Content-Length": str(len(text))}
    version = plain.json()["model_version"]
    raw = server.client.post(f"/v2/models/{name}/versions/{version}/infer", content=text + blob, headers=headers)
    assert raw.status_code == 200, raw.text
    length = int(raw.headers["Inference-Header-Content-Length"])
    said = json.loads(raw.content[:length])["outputs"]
    assert said[0]["parameters"] == {"binary_data_size": len(raw.content) - length}
    logits = np.frombuffer(raw.content[length:], "<f4").reshape(said[0]["shape"])
    np.testing.assert_allclose(logits, expected[name], rtol=CLOSE, atol=CLOSE)
    assert said[1]["data"] == found["class"].tolist()


def test_the_unchanged_triton_client(server: Server, expected: dict[str, Tensor]) -> None:
    triton = pytest.importorskip(
        "tritonclient.http", reason="needs Triton's client: pip install 'tritonclient[http]'", exc_type=ImportError
    )
    client = triton.InferenceServerClient(f"127.0.0.1:{server.port}")
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.get_server_metadata()["name"] == "learn-prune-share"
    for name in TASKS:
        metadata = client.get_model_metadata(name)
        (version,) = metadata["versions"]
        assert client.is_model_ready(name)
        assert client.is_model_ready(name, version)
        for binary in (True, False):
            given = triton.InferInput("input", INPUTS.shape, metadata["inputs"][0]["datatype"])
            given.set_data_from_numpy(INPUTS, binary_data=binary)
            wanted = [triton.InferRequestedOutput(output, binary_data=binary) for output in ("logits", "class")]
            for outputs in (wanted, None):
                answer = client.infer(name, [given], model_version=version, outputs=outputs, request_id="7")
                np.testing.assert_allclose(answer.as_numpy("logits"), expected[name], rtol=CLOSE, atol=CLOSE)
                assert answer.as_numpy("class").tolist() == expected[name].argmax(1).tolist()
    assert not client.is_model_ready("nothing")
    with pytest.raises(triton.InferenceServerException if hasattr(triton, "InferenceServerException") else Exception):
        client.infer("nothing", [given])
    client.close()


def test_classes_of_lists_and_a_task_per_row(server: Server, expected: dict[str, Tensor]) -> None:
    one = server.client.post("/classify/clouds-2?top=2", json=INPUTS[0].tolist()).json()
    several = server.client.post("/classify/3", json=INPUTS.tolist()).json()
    assert several["task"] == one["task"] == "clouds-2"
    assert [len(answer) for answer in (*one["answers"], *several["answers"])] == [2, 4, 4, 4, 4]
    shares = expected["clouds-2"].softmax(1)
    for answer, share in zip(several["answers"], shares, strict=True):
        best = share.sort(descending=True)
        assert [each["class"] for each in answer] == best.indices.tolist()
        np.testing.assert_allclose([each["probability"] for each in answer], best.values, rtol=1e-4, atol=1e-6)
    assert one["answers"][0] == several["answers"][0][:2]
    order = ["clouds-1", 3, "clouds-0", "1"]
    rows = [{"task": task, "input": row.tolist()} for task, row in zip(order, INPUTS, strict=True)]
    mixed = server.client.post("/infer", json={"rows": rows, "top": 1}).json()["rows"]
    assert [row["task"] for row in mixed] == ["clouds-1", "clouds-2", "clouds-0", "clouds-0"]
    for place, row in enumerate(mixed):
        assert row["classes"][0]["class"] == int(expected[row["task"]][place].argmax())


def test_images(served_files: Path, tmp_path: Path) -> None:
    pixels = np.random.default_rng(1).integers(0, 256, (40, 30, 3), np.uint8)
    Image.fromarray(pixels).save(tmp_path / "image.png")
    rows = tmp_path / "rows.json"
    arguments = [str(served_files / "colour.lps"), "--task", "1", str(tmp_path / "image.png")]
    assert infer.main([*arguments, "--top", "3", "--format", "json", "--output", str(rows)]) == 0
    (wanted,) = json.loads(rows.read_text())
    with serving(served_files / "colour.lps", served_files / "model.lps") as server:
        path = "/classify/colour.clouds-0"
        png = (tmp_path / "image.png").read_bytes()
        answer = server.client.post(path, content=png, headers={"content-type": "image/png"})
        (classes,) = answer.json()["answers"]
        assert [each["class"] for each in classes] == [wanted["class"], wanted["class2"], wanted["class3"]]
        assert classes[0]["probability"] == pytest.approx(wanted["probability"], rel=1e-3)
        jpeg = BytesIO()
        Image.fromarray(pixels).save(jpeg, "JPEG")
        headers = {"content-type": "image/jpeg"}
        assert server.client.post(path, content=jpeg.getvalue(), headers=headers).status_code == 200
        cut = server.client.post(path, content=png[:300], headers={"content-type": "image/png"})
        assert refusal(cut).startswith("the image: cannot be read")
        text = server.client.post(path, content=b"hello", headers={"content-type": "image/png"})
        assert "expected an image (PNG, JPEG" in refusal(text)
        flat = server.client.post("/classify/model.clouds-0", content=png, headers={"content-type": "image/png"})
        assert "not images of 1 or 3 channels" in refusal(flat)


def by_sentence(value: object) -> str:
    """The name of a case: only its sentence, as bodies are long."""
    return value if isinstance(value, str) and len(value) < 80 else "-"


ONE = {"name": "input", "shape": [1, 12], "datatype": "FP32", "data": [0] * 12}


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (b"", "the request is not JSON"),
        (b"{", "the request is not JSON"),
        (b"\xff", "the request is not JSON"),
        (b'{"inputs":[{"name":"input","shape":[1,12],"datatype":"FP32","data":' + b"[" * 50_000, "nested brackets"),
        (b"[]", "expected object, got array"),
        ({}, "missing required field"),
        ({"inputs": []}, "length >= 1"),
        ({"inputs": [{}]}, "missing required field"),
        ({"inputs": [{**ONE, "name": "x"}]}, "expected input, each once, got x"),
        ({"inputs": [ONE, ONE]}, "each once"),
        ({"inputs": [{**ONE, "datatype": "INT8"}]}, "datatype: expected FP32, got INT8"),
        ({"inputs": [{**ONE, "shape": [12]}]}, "shape: expected [any, 12]"),
        ({"inputs": [{**ONE, "shape": [0, 12], "data": []}]}, "at least 1 example"),
        ({"inputs": [{**ONE, "shape": [2**40, 12]}]}, "int <= 2147483647"),
        ({"inputs": [{**ONE, "shape": [2**31 - 1, 12]}]}, "expected 2147483647 entries along axis 0"),
        ({"inputs": [{**ONE, "shape": [-1, 12]}]}, "int >= 0"),
        ({"inputs": [{**ONE, "shape": ["1", 12]}]}, "expected int"),
        ({"inputs": [{**ONE, "data": [0] * 11}]}, "expected 1 entries along axis 0"),
        ({"inputs": [{**ONE, "data": [[0] * 11]}]}, "expected 12 entries along axis 1"),
        ({"inputs": [{**ONE, "data": [[0] * 11 + [[1]]]}]}, "expected numbers of type int or float"),
        ({"inputs": [{**ONE, "data": [0] * 11 + ["1"]}]}, "expected numbers of type int or float, got '1'"),
        ({"inputs": [{**ONE, "data": [0] * 11 + [True]}]}, "expected numbers of type int or float, got True"),
        ({"inputs": [{**ONE, "data": [0] * 11 + [None]}]}, "expected numbers of type int or float, got None"),
        ({"inputs": [{**ONE, "data": [0] * 11 + [1e39]}]}, "example 0: expected finite numbers"),
        ({"inputs": [{**ONE, "data": [3e38] * 12}]}, "has no answer"),
        ({"inputs": [{**ONE, "data": "AAAA"}]}, "expected lists in lists"),
        (b'{"inputs":[{"name":"input","shape":[1,12],"datatype":"FP32","data":[NaN]}]}', "is not JSON"),
        (b'{"inputs":[{"name":"input","shape":[1,12],"datatype":"FP32","data":[1e999]}]}', "out of range"),
        ({"inputs": [{**ONE, "parameters": {"binary_data_size": 48}}]}, "got both"),
        ({"inputs": [{**ONE, "shape": [1, 12]}], "outputs": [{"name": "x"}]}, "expected logits, probabilities, class"),
        ({"inputs": [ONE], "outputs": [{"name": "class", "parameters": {"binary_data": 1}}]}, "expected true or false"),
        ({"inputs": [ONE], "outputs": [{"name": "class", "parameters": {"classification": 2}}]}, "classification"),
        ({"inputs": [ONE], "id": 7}, "id: expected"),
    ],
    ids=by_sentence,
)
def test_malformed_questions_get_a_sentence(server: Server, body: Any, sentence: str) -> None:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    answer = server.client.post("/v2/models/1/infer", content=content)
    assert sentence in refusal(answer)
    assert answer.status_code in (400, 422)


@pytest.mark.parametrize(
    ("length", "body", "sentence"),
    [
        ("x", b"{}", "expected 0 to 2"),
        ("-1", b"{}", "expected 0 to 2"),
        ("3", b"{}", "expected 0 to 2"),
        ("9" * 5000, b"{}", "expected 0 to 2"),
        (None, {"binary_data_size": 48}, "expected 48, which its shape takes"),
        ("all", {"binary_data_size": 40}, "expected 48, which its shape takes"),
        ("all", {"binary_data_size": "48"}, "expected 48, which its shape takes"),
        ("all", {"binary_data_size": 48, "more": 7}, "ends with 7 bytes"),
        ("all", {"binary_data_size": 48, "more": -7}, "and 41 bytes"),
        ("all", {}, "expected data, or parameters.binary_data_size"),
    ],
    ids=by_sentence,
)
def test_malformed_binary_questions_get_a_sentence(
    server: Server, length: str | None, body: Any, sentence: str
) -> None:
    headers = {} if length is None else {"Inference-Header-Content-Length": length}
    content = body
    if isinstance(body, dict):
        blob = bytes(48 + body.pop("more", 0))
        text = json.dumps({"inputs": [{**ONE, "parameters": body}]}).replace(f', "data": {[0] * 12}', "").encode()
        content = text if length is None else text + blob
        headers = {} if length is None else {"Inference-Header-Content-Length": str(len(text))}
    assert sentence in refusal(server.client.post("/v2/models/1/infer", content=content, headers=headers))


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "sentence"),
    [
        ("GET", "/nothing", None, 404, "there is nothing at /nothing"),
        ("GET", "/v2/models/x", None, 404, "expected 1 to 3 or a name"),
        ("GET", "/v2/models/%00%ff%0a", None, 404, "expected 1 to 3 or a name"),
        ("GET", "/v2/models/" + "9" * 5000, None, 404, "expected 1 to 3 or a name"),
        ("GET", "/v2/models/../../etc/passwd", None, 404, ""),
        ("GET", "/infer", None, 405, "expected the method POST, got GET"),
        ("DELETE", "/v2/models/1", None, 405, "expected the method GET"),
        ("POST", "/infer", b"{}", 400, "missing required field"),
        ("POST", "/infer", {"rows": []}, 400, "length >= 1"),
        ("POST", "/infer", {"rows": [{"task": 9, "input": [0] * 12}]}, 404, "rows[0]: task: expected 1 to 3"),
        ("POST", "/infer", {"rows": [{"task": 1, "input": [0]}]}, 400, "rows[0]: input: input: expected lists"),
        ("POST", "/infer", {"rows": [{"task": 1, "input": [[0] * 12]}]}, 400, "expected lists of shape [12]"),
        ("POST", "/infer", {"rows": [{"task": 1, "input": [0] * 12, "path": "/"}]}, 400, "unknown field"),
        ("POST", "/classify/1", 5, 400, "expected lists of shape [any, 12] or [12]"),
        ("POST", "/classify/1", [[0] * 12, [0]], 400, "expected 12 entries along axis 1"),
        ("POST", "/classify/1", [], 400, "expected lists of shape"),
        ("POST", "/classify/1?top=0", [0] * 12, 400, "top: expected a whole number from 1"),
        ("POST", "/classify/1?top=x", [0] * 12, 400, "top: expected a whole number from 1"),
        ("POST", "/classify/1", b"\x89PNG", 415, "Content-Type: expected image/... or application/json"),
    ],
    ids=by_sentence,
)
def test_other_malformed_requests_get_a_sentence(
    server: Server, method: str, path: str, body: Any, status: int, sentence: str
) -> None:
    more: dict[str, Any] = {"content": body} if body is None or isinstance(body, bytes) else {"json": body}
    answer = server.client.request(method, path, **more)
    assert answer.status_code == status
    assert sentence in refusal(answer)


def test_bodies_are_bounded_whatever_they_say_of_themselves(server: Server) -> None:
    declared = server.client.post("/v2/models/1/infer", content=bytes(100_001))
    assert (declared.status_code, refusal(declared)) == (413, "the body: expected at most 100,000 bytes, got 100001")
    chunked = server.client.post("/v2/models/1/infer", content=iter([bytes(70_000)] * 2))
    assert (chunked.status_code, refusal(chunked)) == (413, "the body: expected at most 100,000 bytes, got more")
    coded = server.client.post("/infer", content=b"x", headers={"content-encoding": "gzip"})
    assert (coded.status_code, refusal(coded)) == (415, "Content-Encoding: expected none, got gzip")


def ask_raw(server: Server, *parts: bytes, seconds: float = 15) -> bytes:
    """What the server answers to these bytes on a connection of their own, until it closes that."""
    found = b""
    with socket.create_connection(("127.0.0.1", server.port), timeout=seconds) as connection:
        for part in parts:
            connection.sendall(part)
        while data := connection.recv(1 << 16):
            found += data
    return found


def test_connections_that_are_slow_or_speak_something_else_are_closed(server: Server) -> None:
    """The head has ten seconds, the body the two that the server was told."""
    assert ask_raw(server, b"\x16\x03\x01 hello\r\n\r\n").startswith(b"HTTP/1.1 400 ")
    long = ask_raw(server, b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * 8000)
    assert long.startswith(b"HTTP/1.1 431 ")
    head = b"POST /infer HTTP/1.1\r\nhost: x\r\ncontent-length: 50\r\n\r\n{"
    start = time.monotonic()
    slow = ask_raw(server, head)
    assert slow.startswith(b"HTTP/1.1 408 ")
    assert b'{"error":"the body took longer than 2 s"}' in slow
    assert 2 <= time.monotonic() - start < 9
    with socket.create_connection(("127.0.0.1", server.port)) as gone:
        gone.sendall(head)  # and away
    assert server.client.get("/v2").status_code == 200


def test_every_route_is_in_the_document(server: Server) -> None:
    found = server.client.get("/openapi.json").json()
    assert found == json.loads(json.dumps(document(found["info"]["version"])))
    for path, operations in found["paths"].items():
        real = path.replace("{task}", "clouds-0").replace("{version}", "x")
        for method in operations:
            answer = server.client.request(method.upper(), real)
            assert answer.status_code != 405, path
            assert "there is nothing at" not in answer.text, path


def test_metrics_tell_what_happened(server: Server) -> None:
    server.client.post("/v2/models/2/infer", json=question())
    lines = server.client.get("/metrics").text.splitlines()
    names = {line.split()[2] for line in lines if line.startswith("# TYPE")}
    assert {
        "lps_requests_total",
        "lps_request_seconds",
        "lps_queue_seconds",
        "lps_batch_rows",
        "lps_rows_total",
    } <= names
    counts = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    assert int(counts['lps_requests_total{task="clouds-1",route="infer",status="200"}']) >= 1
    ways = [int(counts.get(f'lps_rows_total{{task="clouds-1",way="{way}"}}', 0)) for way in ("masked", "cutout")]
    assert sum(ways) >= 4
    assert int(counts["process_resident_memory_bytes"]) > 1 << 20


def test_a_token_is_asked_for_and_never_shown(served_files: Path, tmp_path: Path) -> None:
    token = "s3cret-Zx81"
    (tmp_path / "token").write_text(f"{token}\n")
    with serving(served_files / "model.lps", "--token-file", tmp_path / "token", "--log-requests") as server:
        for headers in (
            {},
            {"authorization": "Bearer no"},
            {"authorization": f"Basic {token}"},
            {"authorization": "é"},
        ):
            raw = {name: value.encode() for name, value in headers.items()}
            answer = server.client.get("/v2/models", headers=raw)
            assert answer.status_code == 401
            assert answer.headers["www-authenticate"] == "Bearer"
            assert token not in refusal(answer)
        assert server.client.get("/v2/health/live").status_code == 200
        allowed = {"authorization": f"Bearer {token}"}
        assert server.client.get("/v2/models", headers=allowed).status_code == 200
        assert server.client.post("/v2/models/1/infer", json=question(), headers=allowed).status_code == 200
        assert server.stop() == 0
        server.event("stopped")
        assert len(server.events("request")) == 7
        assert token not in "".join(server.lines)


def hammer(server: Server, stop: threading.Event, found: list[tuple[str, list[float]]], failed: list[str]) -> None:
    """Ask for task 3 until told to stop or the server no longer takes connections."""
    with httpx.Client(base_url=server.address, timeout=60) as client:
        while not stop.is_set():
            try:
                answer = client.post("/v2/models/3/infer", json=question(INPUTS[:1]))
            except httpx.ConnectError:
                return  # it has ended
            except httpx.TransportError as error:
                failed.append(repr(error))
                return
            if answer.status_code == 503 and "stopping" in answer.text:
                return
            if answer.status_code != 200:
                failed.append(answer.text)
                return
            found.append((answer.json()["model_version"], outputs_of(answer)["logits"].reshape(-1).tolist()))


def test_replacing_the_file_and_stopping_under_load_lose_nothing(served_files: Path, tmp_path: Path) -> None:
    path = tmp_path / "model.lps"
    shutil.copy(served_files / "model.lps", path)
    expected = {}
    for name in ("model.lps", "other.lps"):
        net = load(served_files / name)
        with torch.no_grad():
            expected[net.learnt[2].digest] = net(torch.from_numpy(INPUTS[:1]), task=3)[0].tolist()
    found: list[tuple[str, list[float]]] = []
    failed: list[str] = []
    over = threading.Event()
    with serving(path) as server:
        clients = [threading.Thread(target=hammer, args=(server, over, found, failed)) for _ in range(4)]
        for thread in clients:
            thread.start()
        try:
            server.until(lambda: len(found) > 20)
            damaged = bytearray((served_files / "other.lps").read_bytes())
            damaged[-7] ^= 1
            (tmp_path / "new").write_bytes(damaged)
            (tmp_path / "new").replace(path)
            refused = server.event("refused")
            assert refused["file"] == str(path)
            assert "damaged" in refused["reason"]
            assert server.client.get("/v2/models/clouds-2").status_code == 200
            shutil.copy(served_files / "other.lps", tmp_path / "new")
            (tmp_path / "new").replace(path)
            assert "clouds-7" in server.event("reloaded")["tasks"]
            assert server.client.get("/v2/models/clouds-2").status_code == 404
            before = len(found)
            server.until(lambda: len(found) > before + 20)
            counts = server.client.get("/metrics").text
            assert 'lps_reloads_total{file="model.lps",result="refused"} 1' in counts
            assert 'lps_reloads_total{file="model.lps",result="served"} 1' in counts
            assert server.stop() == 0
        finally:
            over.set()
            for thread in clients:
                thread.join()
    assert not failed
    assert {version for version, _ in found} == set(expected)
    for version, logits in found:
        np.testing.assert_allclose(logits, expected[version], rtol=CLOSE, atol=CLOSE)


def test_what_does_not_fit_in_the_queue_is_asked_to_come_again(served_files: Path) -> None:
    """One request waits for others for long; the next finds the queue full."""
    with serving(served_files / "model.lps", "--max-queue", "1", "--max-wait", "3000", "--timeout", "5") as server:
        answers: list[httpx.Response] = []
        first = threading.Thread(
            target=lambda: answers.append(server.client.post("/v2/models/1/infer", json=question(), timeout=60))
        )
        first.start()
        server.until(lambda: "lps_queue_length 1" in server.client.get("/metrics").text)
        full = server.client.post("/v2/models/1/infer", json=question())
        assert full.status_code == 503
        assert int(full.headers["retry-after"]) >= 1
        assert "1 requests wait already" in refusal(full)
        first.join()
        assert answers[0].status_code == 200


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("nothing.lps",), "load: nothing.lps: could not be read: No such file or directory; check the path"),
        (("model.lps", "--port", "99999"), "--port: expected 0 to 65535, got 99999"),
        (("model.lps", "--max-wait", "x"), "--max-wait: expected 0 to 10000 milliseconds, got x"),
        (("model.lps", "--memory-budget", "-1"), "--memory-budget: expected 0 to"),
        (("model.lps", "--token-file", "nothing"), "--token-file: nothing: No such file or directory"),
        (("model.lps", "--token-file", "model.lps"), "--token-file: model.lps: "),
        (("model.lps", "--host", "300.1.1.1"), "--host, --port: cannot listen on 300.1.1.1:8000"),
        (("model.lps", "model.lps"), "FILE: expected files whose names differ"),
    ],
    ids=str,
)
def test_refusals_of_the_command(served_files: Path, arguments: tuple[str, ...], sentence: str) -> None:
    done = run(served_files, "lps.serve", *arguments)
    assert done.returncode in (1, 2)
    assert done.stderr.startswith(f"lps.serve: {sentence}"), done.stderr
    assert done.stderr.count("\n") == 1


def test_without_the_extra_a_sentence_says_what_to_install(served_files: Path) -> None:
    code = """
import sys
from importlib import util
real = util.find_spec
util.find_spec = lambda name, *rest: None if name == "starlette" else real(name, *rest)
from lps import serve
sys.exit(serve.main(["model.lps"]))
"""
    line = [sys.executable, "-c", code]
    done = subprocess.run(line, cwd=served_files, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    expected = "lps.serve: the packages of the server are missing: pip install 'learn-prune-share[serve]'\n"
    assert done.stderr == expected


def test_nothing_but_the_server_imports_its_packages() -> None:
    code = "import sys, lps.cli, lps.infer, lps.deploy.server.messages; print([n for n in sys.modules if n in %r])"
    names = ("starlette", "uvicorn", "httptools", "uvloop")
    done = subprocess.run(
        [sys.executable, "-c", code % (names,)], env=ENVIRONMENT, capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"
