"""The page in a real headless Chromium: quiet, readable on a phone and a desk, sortable, light and dark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import Browser, missing
from made_up import made_up_results

from smoothrl.cli.main import main

pytestmark = pytest.mark.skipif(missing() is not None, reason=missing() or "")
CELLS = (
    "return [...document.querySelectorAll('#table tbody tr')].filter(r => !r.hidden).map(r => r.cells[%d].%s)"
)
BRIGHTNESS = """
const c = getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number);
return (c[0] + c[1] + c[2]) / 3"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    path = folder / "report.html"
    assert main(["report", str(made_up_results(folder)), "--out", str(path)]) == 0
    return path


@pytest.fixture(scope="module")
def window(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    browser = Browser(tmp_path_factory.mktemp("browser"))
    yield browser
    browser.close()


@pytest.mark.parametrize(("width", "height", "phone"), [(1280, 900, False), (390, 844, True)])
def test_readable_and_quiet(window: Browser, page: Path, width: int, height: int, phone: bool) -> None:
    window.resize(width, height, phone=phone)
    window.open(page)
    assert window.run("return document.documentElement.scrollWidth") <= width
    charts = window.run(
        "return [...document.querySelectorAll('svg.chart')].map(s => s.getBoundingClientRect().width)"
    )
    assert len(charts) >= 8
    assert min(charts) > 250
    smallest = window.run(
        "return Math.min(...[...document.querySelectorAll('svg.chart text')]"
        ".map(t => t.getBoundingClientRect().height))"
    )
    assert smallest > 7.5
    assert window.run("return [...document.images].every(i => i.naturalWidth > 0)")
    assert window.console() == []


def test_sorting_and_filtering(window: Browser, page: Path) -> None:
    window.resize(1280, 900)
    window.open(page)
    before = window.run(CELLS % (0, "textContent"))
    mean = window.run(
        "return [...document.querySelectorAll('#table th')].findIndex(t => t.textContent.trim() === 'mean')"
    )
    click = f"document.querySelectorAll('#table th button')[{mean}].click()"
    window.run(click)
    rising = [float(k) for k in window.run(CELLS % (mean, "dataset.key"))]
    assert rising == sorted(rising)
    window.run(click)
    assert [float(k) for k in window.run(CELLS % (mean, "dataset.key"))] == rising[::-1]
    assert window.run("return document.querySelectorAll('th[aria-sort=descending]').length") == 1
    window.run("const s = document.getElementById('search'); s.value = 's-ppo+sgld mad';"
               "s.dispatchEvent(new Event('input'))")  # fmt: skip
    assert set(window.run(CELLS % (1, "textContent"))) == {"s-ppo+sgld"}
    assert set(window.run(CELLS % (2, "textContent"))) == {"MAD"}
    window.run("const s = document.querySelector('select[data-column=environment]'); s.value = 'Hopper-v2';"
               "s.dispatchEvent(new Event('change'))")  # fmt: skip
    assert set(window.run(CELLS % (0, "textContent"))) == {"Hopper-v2"}
    assert len(before) > 300
    assert window.console() == []


def test_light_and_dark(window: Browser, page: Path) -> None:
    window.scheme("light")
    window.open(page)
    assert window.run(BRIGHTNESS) > 200
    window.run("document.getElementById('theme').click()")
    assert window.run(BRIGHTNESS) < 60
    window.scheme("dark")
    window.open(page)
    assert window.run(BRIGHTNESS) < 60
    window.run("document.getElementById('theme').click()")
    assert window.run(BRIGHTNESS) > 200
    window.scheme("light")
