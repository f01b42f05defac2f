"""Whatever the bytes of a request are: it is read, or refused with one sentence."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lps.batch import examples_in
from lps.deploy.server import messages
from lps.deploy.server.catalog import Catalog, Source
from lps.deploy.server.errors import RefusedError

NUMBERS = st.one_of(
    st.integers(), st.floats(), st.sampled_from([0, 1, 12, 2**31 - 1, 2**31, 2**63, 2**64, -1, 1e308, 3.5e38])
)
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBERS, st.text(max_size=8)),
    lambda inner: st.one_of(st.lists(inner, max_size=13), st.dictionaries(st.text(max_size=8), inner, max_size=3)),
    max_leaves=20,
)
LISTS = st.one_of(VALUES, st.lists(NUMBERS, min_size=12, max_size=12), st.just([[0.5] * 12, [1] * 12]))
INPUTS = st.fixed_dictionaries(
    {
        "name": st.one_of(st.just("input"), VALUES),
        "shape": st.one_of(st.just([1, 12]), st.lists(NUMBERS, max_size=3), VALUES),
        "datatype": st.one_of(st.just("FP32"), st.sampled_from(["FP64", "BYTES"]), VALUES),
    },
    optional={
        "data": LISTS,
        "parameters": st.one_of(st.fixed_dictionaries({"binary_data_size": st.one_of(st.just(48), NUMBERS)}), VALUES),
    },
)
QUESTIONS = st.fixed_dictionaries(
    {"inputs": st.one_of(st.lists(INPUTS, max_size=2), VALUES)},
    optional={
        "id": VALUES,
        "parameters": VALUES,
        "outputs": st.one_of(st.lists(st.fixed_dictionaries({"name": st.just("class")}), max_size=4), VALUES),
    },
)
ROWS = st.fixed_dictionaries(
    {
        "rows": st.one_of(
            st.lists(st.fixed_dictionaries({"task": st.one_of(st.integers(0, 4), VALUES), "input": LISTS}), max_size=3),
            VALUES,
        )
    },
    optional={"top": VALUES},
)
FEW = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module")
def catalog(served_files: Path) -> Catalog:
    return Catalog([served_files / "model.lps"], Source())


def attempt(read: Callable[[], Any]) -> Any:
    """What is read, or None if it is refused as it ought to be."""
    try:
        return read()
    except RefusedError as error:
        refused = error
    sentence = str(refused)
    assert sentence
    assert sentence.isprintable()
    assert len(sentence) < 600
    assert 400 <= refused.status < 500
    return None


@FEW
@given(value=QUESTIONS, rest=st.one_of(st.just(bytes(48)), st.binary(max_size=60)), raw=st.booleans())
def test_any_question(catalog: Catalog, value: Any, rest: bytes, raw: bool) -> None:
    text = json.dumps(value).encode()
    model = catalog.find("1")
    body, length = (text + rest, str(len(text))) if raw else (text, None)
    question = attempt(lambda: messages.read_question(model, body, length))
    if question is not None:
        assert examples_in(question.inputs) >= 1
        assert question.inputs.shape[1:] == (12,)


@FEW
@given(value=ROWS)
def test_any_rows(catalog: Catalog, value: Any) -> None:
    rows = attempt(lambda: messages.read_rows(catalog.find, json.dumps(value).encode()))
    if rows is not None:
        assert sorted(place for _, places, _ in rows.parts for place in places) == list(range(rows.count))


@FEW
@given(value=LISTS, body=st.binary(max_size=100), length=st.text(max_size=8), top=st.text(max_size=8))
def test_any_lists_bytes_and_numbers(catalog: Catalog, value: Any, body: bytes, length: str, top: str) -> None:
    model = catalog.find("2")
    attempt(lambda: messages.read_list(model, json.dumps(value).encode()))
    for read in (messages.read_list, messages.read_image):
        attempt(lambda read=read: read(model, body))  # type: ignore[misc]
    attempt(lambda: messages.read_question(model, body, length))
    attempt(lambda: messages.read_top(top))
    attempt(lambda: catalog.find(length, top))
