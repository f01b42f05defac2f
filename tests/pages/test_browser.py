"""Pages in a real browser: no errors, contrasts, sorting, phones, dark mode, speed and size."""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
from html import escape
from pathlib import Path
from typing import Any

import pytest
from lps.pages.collect import collect
from lps.pages.page import make_page

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
PROBE = Path(__file__).with_name("probe.js").read_text()

pytestmark = pytest.mark.skipif(BROWSER is None, reason="needs Chromium on the PATH (Debian's package chromium)")


# A frame of a phone's width: windows are never narrower than 500 pixels. It hands on what the probe in it finds.
PHONE = 390
FRAME = """<!doctype html><body><iframe srcdoc="{page}" style="width:{width}px;height:800px;border:0"></iframe><script>
const frame = document.querySelector("iframe");
frame.addEventListener("load", () => document.body.append(frame.contentDocument.getElementById("probe")));
</script></body>"""


def look(page: str, folder: Path, *flags: str, width: int | None = None) -> dict[str, Any]:
    """Load a page in the browser; returns what the probe found in it."""
    file = folder / "page.html"
    probed = page.replace("<body>", f"<body><script>{PROBE}</script>", 1)
    file.write_text(probed if width is None else FRAME.format(page=escape(probed), width=width))
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder / 'profile'}"]
    command += ["--enable-logging=stderr", *flags, "--dump-dom", file.as_uri()]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=120, check=True)
    assert "CONSOLE" not in done.stderr
    match = re.search(r'<pre id="probe">([A-Za-z0-9+/=]+)</pre>', done.stdout)
    assert match, done.stderr[-2000:]
    found: dict[str, Any] = json.loads(base64.b64decode(match[1]))
    return found


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_page_is_readable(runs: Path, tmp_path: Path, theme: str) -> None:
    scheme = f"--blink-settings=preferredColorScheme={0 if theme == 'dark' else 1}"
    found = look(make_page(collect([runs]))[0], tmp_path, scheme, "--window-size=1000,900")
    assert found["problems"] == []
    assert found["dark"] is (theme == "dark")
    assert found["contrast"] >= 4.5
    assert found["unnamed"] == 0
    assert found["unreachable"] == 0
    assert found["headings"][:2] == ["H1", "H2"]
    assert found["wide"] <= 0
    down, up = found["sorted"]
    assert (down["order"], up["order"]) == ("descending", "ascending")
    assert down["values"] == sorted(down["values"], reverse=True)
    assert up["values"] == sorted(up["values"])


def test_a_page_fits_a_phone(runs: Path, tmp_path: Path) -> None:
    found = look(make_page(collect([runs]))[0], tmp_path, width=PHONE)
    assert found["problems"] == []
    assert found["width"] == PHONE
    assert found["wide"] <= 0  # tables and figures scroll by themselves


def test_forty_runs_are_small_and_fast(sweep: Path, tmp_path: Path) -> None:
    page = make_page(collect([sweep]))[0]
    assert len(page.encode()) < 3e6
    found = [look(page, tmp_path) for _ in range(3)]
    assert found[0]["problems"] == []
    assert min(look["milliseconds"] for look in found) < 1000  # the best: tests share the machine
