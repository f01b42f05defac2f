"""The queue: mixed batches, masked products and cut-outs, limits, replacement, all without the web."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lps import LPSError, load
from lps.deploy.server.catalog import Catalog, Model, Source
from lps.deploy.server.cutouts import Cutouts
from lps.deploy.server.engine import Answer, Engine, Job
from lps.deploy.server.errors import BusyError, RefusedError
from lps.deploy.server.metrics import Metrics
from lps.errors import ConfigError
from torch import Tensor

PLENTY = 1 << 30
# Masked products and cut-outs sum at most 24 products in another order: a few steps of float32, which are 1.2e-7.
CLOSE = 1e-5


@contextmanager
def running(
    path: Path, budget: int = 0, begin: bool = True, **limits: Any
) -> Iterator[tuple[Catalog, Engine, list[dict[str, Any]]]]:
    events: list[dict[str, Any]] = []
    metrics = Metrics()
    catalog = Catalog([path], Source())
    log = lambda event, **facts: events.append({"event": event, **facts})  # noqa: E731
    engine = Engine(Cutouts(budget, 8, metrics, log), metrics, **limits)
    if begin:
        engine.start()
    try:
        yield catalog, engine, events
    finally:
        engine.stop()


def ask(engine: Engine, model: Model, inputs: Tensor, **facts: Any) -> Future[Answer]:
    future: Future[Answer] = Future()
    engine.submit([Job(model, inputs, future, **facts)])
    return future


def until(condition: Callable[[], bool], seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.01)


def draw(rows: int, seed: int = 0) -> Tensor:
    return torch.randn(rows, 12, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("budget", [0, PLENTY])
def test_a_mixed_batch_gives_each_request_what_it_gets_alone(served_files: Path, budget: int) -> None:
    net = load(served_files / "model.lps")
    with running(served_files / "model.lps", budget, begin=False, max_batch=64) as (catalog, engine, _):
        models = list(catalog.models())
        sent = [(models[i % 3], draw(1 + i % 4, i)) for i in range(18)]
        futures = [ask(engine, model, inputs) for model, inputs in sent]
        engine.start()
        answers = [future.result(20) for future in futures]
        assert engine.metrics.batch_rows.count() == 1  # all in one batch, of three tasks
        for (model, inputs), answer in zip(sent, answers, strict=True):
            with torch.no_grad():
                alone = net(inputs, task=model.number)
            torch.testing.assert_close(torch.from_numpy(answer.logits), alone, rtol=CLOSE, atol=CLOSE)
            expected = alone.double().softmax(1)
            torch.testing.assert_close(torch.from_numpy(answer.probabilities).double(), expected, rtol=1e-4, atol=1e-6)
            assert answer.classes.tolist() == answer.logits.argmax(1).tolist()


def test_cutouts_are_made_used_and_answer_alike(served_files: Path) -> None:
    net = load(served_files / "model.lps")
    with running(served_files / "model.lps", PLENTY) as (catalog, engine, events):
        for model in catalog.models():
            inputs = draw(5, model.number)
            first = ask(engine, model, inputs).result(20)
            until(lambda name=model.name: any(e.get("task") == name for e in events))  # type: ignore[misc]
            again = ask(engine, model, inputs).result(20)
            assert engine.metrics.rows.value(model.name, "masked") == 5
            assert engine.metrics.rows.value(model.name, "cutout") == 5
            with torch.no_grad():
                alone = net(inputs, task=model.number)
            for answer in (first, again):
                torch.testing.assert_close(torch.from_numpy(answer.logits), alone, rtol=CLOSE, atol=CLOSE)
        assert [event["event"] for event in events] == 3 * ["cutout"]
        assert engine.cutouts.bytes == sum(event["bytes"] for event in events)


def test_the_budget_holds_and_what_is_used_takes_the_place_of_what_is_not(
    served_files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lps.deploy.server.cutouts.PATIENCE", 0.0)
    with running(served_files / "model.lps", PLENTY) as (catalog, engine, events):
        for model in catalog.models():
            ask(engine, model, draw(1)).result(20)
        until(lambda: len(events) == 3)
        sizes = {event["task"]: event["bytes"] for event in events}
    budget = max(sizes.values())  # room for one
    with running(served_files / "model.lps", budget) as (catalog, engine, events):
        first, second, _ = catalog.models()
        ask(engine, first, draw(1)).result(20)
        until(lambda: engine.cutouts.held() == {(first.name,): sizes[first.name]})
        ask(engine, second, draw(1)).result(20)  # does not deserve a place yet
        for _ in range(3):
            ask(engine, first, draw(1)).result(20)
        assert list(engine.cutouts.held()) == [(first.name,)]

        def asked() -> bool:
            ask(engine, second, draw(1)).result(20)
            return list(engine.cutouts.held()) == [(second.name,)]

        until(asked)
        assert engine.metrics.cutouts_evicted.value(first.name) == 1
        assert engine.cutouts.bytes <= budget
    with running(served_files / "model.lps", 10) as (catalog, engine, events):  # room for none
        for _ in range(5):
            ask(engine, next(catalog.models()), draw(1)).result(20)
            time.sleep(0.02)
        assert engine.cutouts.bytes == 0
        assert not events


def test_what_one_request_makes_the_network_refuse_the_others_do_not_pay_for(served_files: Path) -> None:
    with running(served_files / "model.lps", begin=False) as (catalog, engine, _):
        model = next(catalog.models())
        good, huge = ask(engine, model, draw(2)), ask(engine, model, torch.full((3, 12), 3e38))
        wrong = ask(engine, model, torch.zeros(1, 12, dtype=torch.complex64))  # stacked, it makes all complex
        engine.start()
        assert good.result(20).logits.shape == (2, 3)
        with pytest.raises(RefusedError, match=r"example 0: task clouds-0 has no answer .* infinite or NaN"):
            huge.result(20)
        with pytest.raises(RefusedError, match="task clouds-0 cannot read them") as refused:
            wrong.result(20)
        assert refused.value.status == 422


def test_requests_of_many_rows_run_in_pieces(served_files: Path) -> None:
    with running(served_files / "model.lps", max_batch=8) as (catalog, engine, _):
        model = list(catalog.models())[2]
        inputs = draw(50)
        whole = ask(engine, model, inputs).result(20)
        each = np.concatenate([ask(engine, model, row[None]).result(20).logits for row in inputs])
        np.testing.assert_allclose(whole.logits, each, rtol=CLOSE, atol=CLOSE)


def test_a_full_queue_refuses_and_a_late_request_is_told(served_files: Path) -> None:
    with running(served_files / "model.lps", begin=False, max_queue=3) as (catalog, engine, _):
        model = next(catalog.models())
        late = ask(engine, model, draw(1), expires=0.0)
        taken = [ask(engine, model, draw(1)) for _ in range(2)]
        with pytest.raises(BusyError, match="3 requests wait already; ask again in 1 s"):
            ask(engine, model, draw(1))
        given_up = taken.pop()
        given_up.cancel()
        engine.start()
        assert taken[0].result(20).logits.shape == (1, 3)
        with pytest.raises(BusyError, match="waited for as long as it may"):
            late.result(20)
        assert engine.metrics.rows.value(model.name, "masked") == 1


def test_a_batch_waits_for_others_but_not_longer_than_it_may(served_files: Path) -> None:
    with running(served_files / "model.lps", max_wait=0.3, max_batch=4) as (catalog, engine, _):
        model = next(catalog.models())
        start = time.monotonic()
        ask(engine, model, draw(1)).result(20)
        assert time.monotonic() - start >= 0.3
        start = time.monotonic()
        for future in [ask(engine, model, draw(1)) for _ in range(4)]:
            future.result(20)
        assert time.monotonic() - start < 0.3  # full at once


def test_stopping_answers_what_was_taken(served_files: Path) -> None:
    with running(served_files / "model.lps", begin=False, max_batch=2) as (catalog, engine, _):
        models = list(catalog.models())
        futures = [ask(engine, models[i % 3], draw(1, i)) for i in range(40)]
        engine.start()
        engine.stop()
        assert all(future.done() and future.exception() is None for future in futures)
        with pytest.raises(BusyError, match="stopping"):
            ask(engine, models[0], draw(1))


def test_a_replaced_file_serves_anew_while_requests_under_way_finish_on_the_old(
    served_files: Path, tmp_path: Path
) -> None:
    path = tmp_path / "model.lps"
    shutil.copy(served_files / "model.lps", path)
    old_net, new_net = load(path), load(served_files / "other.lps")
    with running(path, begin=False) as (catalog, engine, _):
        before = catalog.find("clouds-2")
        waiting = ask(engine, before, draw(2))
        assert not list(catalog.changed())
        shutil.copy(served_files / "other.lps", tmp_path / "new")
        (tmp_path / "new").replace(path)
        assert list(catalog.changed()) == [path]
        old, new = catalog.reload(path)
        engine.cutouts.drop(old)
        assert not list(catalog.changed())
        after = catalog.find("clouds-7")
        assert [m.version for m in new.models] == [task.digest for task in new_net.learnt]
        assert catalog.find("clouds-0").version == before.file.models[0].version
        with pytest.raises(RefusedError, match="expected 1 to 3 or a name"):
            catalog.find("clouds-2")
        with pytest.raises(RefusedError, match=f"has the version {after.version}, got") as refused:
            catalog.find("3", before.version)
        assert refused.value.status == 404
        asked = ask(engine, after, draw(2))
        engine.start()
        with torch.no_grad():
            for net, answer in ((old_net, waiting.result(20)), (new_net, asked.result(20))):
                expected = net(draw(2), task=3)
                torch.testing.assert_close(torch.from_numpy(answer.logits), expected, rtol=CLOSE, atol=CLOSE)


def test_a_damaged_file_is_refused_and_the_old_one_goes_on(served_files: Path, tmp_path: Path) -> None:
    path = tmp_path / "model.lps"
    shutil.copy(served_files / "model.lps", path)
    with running(path) as (catalog, engine, _):
        content = bytearray((served_files / "other.lps").read_bytes())
        content[-7] ^= 1
        path.write_bytes(content)
        with pytest.raises(LPSError, match=f"^load: {path}: ") as refused:
            catalog.reload(path)
        assert "\n" not in str(refused.value)
        assert not list(catalog.changed())  # until it changes again
        assert ask(engine, catalog.find("clouds-2"), draw(1)).result(20).logits.shape == (1, 4)
        path.unlink()
        assert not list(catalog.changed())
        shutil.copy(served_files / "other.lps", path)
        assert list(catalog.changed()) == [path]
        catalog.reload(path)
        assert catalog.find("clouds-7").number == 3


def test_threads_that_ask_while_the_file_changes_get_answers_of_the_version_they_found(
    served_files: Path, tmp_path: Path
) -> None:
    path = tmp_path / "model.lps"
    shutil.copy(served_files / "model.lps", path)
    nets = [load(served_files / name) for name in ("model.lps", "other.lps")]
    inputs = draw(3)
    with torch.no_grad():
        expected = {net.learnt[2].digest: net(inputs, task=3).numpy() for net in nets}
    assert not np.allclose(*expected.values())
    wrong: list[str] = []
    answered = [0]
    over = threading.Event()
    with running(path, PLENTY, max_batch=16) as (catalog, engine, _):

        def client() -> None:
            while not over.is_set():
                model = catalog.find("3")
                answer = ask(engine, model, inputs).result(20)
                answered[0] += 1
                if not np.allclose(answer.logits, expected[model.version], rtol=CLOSE, atol=CLOSE):
                    wrong.append(model.version)

        clients = [threading.Thread(target=client) for _ in range(4)]
        for thread in clients:
            thread.start()
        for name in 3 * ("other.lps", "model.lps"):
            shutil.copy(served_files / name, tmp_path / "new")
            (tmp_path / "new").replace(path)
            old, _ = catalog.reload(path)
            engine.cutouts.drop(old)
        over.set()
        for thread in clients:
            thread.join()
    assert not wrong
    assert answered[0] > 20


def test_names_of_several_files(served_files: Path, tmp_path: Path) -> None:
    catalog = Catalog([served_files / "model.lps", served_files / "colour.lps"], Source())
    assert [model.name for model in catalog.models()] == [
        "model.clouds-0",
        "model.clouds-1",
        "model.clouds-2",
        "colour.clouds-0",
    ]
    assert catalog.find("model.2").name == "model.clouds-1"
    assert catalog.find("colour.clouds-0").ports[0].shape == (3, 32, 32)
    for name in ("clouds-0", "model", "model.", "colour.2", "nothing.1", "", "model.0", "model.-1", "\0"):
        with pytest.raises(RefusedError) as refused:
            catalog.find(name)
        assert refused.value.status == 404
        assert "\n" not in str(refused.value)
    (tmp_path / "model.lps").write_bytes((served_files / "other.lps").read_bytes())
    with pytest.raises(ConfigError, match="expected files whose names differ"):
        Catalog([served_files / "model.lps", tmp_path / "model.lps"], Source())


def test_metrics_are_in_the_text_format() -> None:
    metrics = Metrics()
    metrics.requests.add('a "task"\n\\', "infer", "200")
    metrics.batch_seconds.observe(0.0005)
    metrics.batch_seconds.observe(0.3)
    metrics.batch_seconds.observe(99)
    lines = metrics.text().splitlines()
    assert 'lps_requests_total{task="a \\"task\\"\\n\\\\",route="infer",status="200"} 1' in lines
    assert 'lps_batch_seconds_bucket{le="0.0005"} 1' in lines
    assert 'lps_batch_seconds_bucket{le="0.5"} 2' in lines
    assert 'lps_batch_seconds_bucket{le="+Inf"} 3' in lines
    assert "lps_batch_seconds_count 3" in lines
    assert "# TYPE process_resident_memory_bytes gauge" in lines
    resident = next(line for line in lines if line.startswith("process_resident_memory_bytes "))
    assert int(resident.split()[1]) > 1 << 20
