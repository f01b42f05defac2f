"""The server's page in a real browser: its table, an image that is dropped, a list, light and dark, a phone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.browser import BROWSER, Tab, browsing
from tests.server.process import Server, serving

pytestmark = pytest.mark.skipif(BROWSER is None, reason="needs Chromium on the PATH (Debian's package chromium)")

PROBE = Path(__file__).parents[1] / "pages" / "probe.js"


@pytest.fixture(scope="module")
def server(served_files: Path) -> Iterator[Server]:
    with serving(served_files / "model.lps", served_files / "colour.lps") as found:
        yield found


@pytest.fixture
def tab(server: Server, tmp_path: Path) -> Iterator[Tab]:
    with browsing(tmp_path / "profile") as found:
        found.tell("Page.navigate", url=f"{server.address}/")
        found.wait("document.querySelectorAll('#tasks tbody tr').length === 4")
        yield found
        assert found.problems == []


def test_tasks_are_listed_and_a_list_is_classified(tab: Tab) -> None:
    names = tab.run("[...document.querySelectorAll('#tasks tbody td:first-child')].map((cell) => cell.textContent)")
    assert names == ["model.clouds-0", "model.clouds-1", "model.clouds-2", "colour.clouds-0"]
    assert tab.run("document.getElementById('drop').hidden") is True  # the first task reads no images
    assert tab.run("getComputedStyle(document.getElementById('shown')).display") == "none"  # there is no image yet
    tab.run(f"document.getElementById('list').value = '{[0.5] * 12}'; document.querySelector('#ask button').click()")
    tab.wait("document.getElementById('status').textContent.startsWith('model.clouds-0: class ')")
    assert tab.run("document.querySelectorAll('#answer tbody tr').length") == 3
    tab.wait("document.querySelector('#tasks tbody tr').cells[4].textContent === '1'")  # it counts answers
    tab.run("document.getElementById('list').value = '[1]'; document.querySelector('#ask button').click()")
    tab.wait("document.getElementById('status').className === 'bad'")
    assert "expected lists of shape" in tab.run("document.getElementById('status').textContent")
    assert tab.run("document.querySelector('#tasks tbody tr').cells[4].textContent") == "1"  # what is refused is none
    tab.problems.clear()  # the browser notes the answer 400, which was wanted


def test_an_image_is_dropped(tab: Tab) -> None:
    tab.run("""(async () => {
      const select = document.getElementById('task');
      select.value = 'colour.clouds-0';
      select.dispatchEvent(new Event('change'));
      const canvas = new OffscreenCanvas(40, 30);
      canvas.getContext('2d').fillRect(5, 5, 20, 20);
      const data = new DataTransfer();
      data.items.add(new File([await canvas.convertToBlob()], 'image.png', { type: 'image/png' }));
      document.getElementById('drop').dispatchEvent(new DragEvent('drop', { dataTransfer: data, cancelable: true }));
    })()""")
    tab.wait("document.getElementById('status').textContent.startsWith('colour.clouds-0: class ')")
    assert tab.run("document.getElementById('shown').naturalWidth") == 40
    assert tab.run("document.querySelector('#answer tbody td').textContent") in {"0", "1", "2"}


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_page_is_readable(tab: Tab, theme: str) -> None:
    tab.tell("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": theme}])
    tab.tell("Emulation.setDeviceMetricsOverride", width=390, height=800, deviceScaleFactor=1, mobile=True)
    helpers = PROBE.read_text().partition("function sorted()")[0].partition("const problems = [];")[2]
    helpers = helpers.partition("function parts")[2]
    assert tab.run(f"(() => {{ function parts{helpers} return worstContrast(); }})()") >= 4.5
    dark = tab.run("getComputedStyle(document.body).backgroundColor") == "rgb(21, 23, 26)"
    assert dark is (theme == "dark")
    assert tab.run("document.documentElement.scrollWidth - document.documentElement.clientWidth") <= 0
    unnamed = "[...document.querySelectorAll('input,select,textarea')].filter((each) => !each.labels.length).length"
    assert tab.run(unnamed) == 0
    assert tab.run("[...document.querySelectorAll('h1,h2')].map((each) => each.tagName)[0]") == "H1"
    unreachable = "[...document.querySelectorAll('button,a,select,.scroll')].filter((each) => each.tabIndex < 0).length"
    assert tab.run(unreachable) == 0
