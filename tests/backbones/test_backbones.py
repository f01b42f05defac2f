"""Every cell of the table in docs/backbones.md."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.backbones.cases import COLUMNS, ROWS, WHY, Case, table
from tests.backbones.page import written


def test_the_page_has_the_table() -> None:
    assert written() == table(), "run: python -m tests.backbones --write"
    assert {key for key in WHY if key[0] not in ROWS or key[1] not in COLUMNS} == set()


@pytest.fixture(scope="module", params=ROWS)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    if request.param == "bert" and find_spec("transformers") is None:
        pytest.skip("transformers is not installed: pip install -c constraints.txt -e '.[examples]'")
    return Case(request.param, Path(tmp_path_factory.mktemp(request.param)))


@pytest.mark.slow
@pytest.mark.parametrize("column", COLUMNS)
def test_a_cell(case: Case, column: str) -> None:
    if (case.name, column) in WHY:
        with pytest.raises(Exception):  # noqa: B017, PT011 - the sentence says of which kind
            COLUMNS[column](case)
    else:
        COLUMNS[column](case)
