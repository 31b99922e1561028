"""The page of a benchmark in a real browser."""

from __future__ import annotations

import pytest
from selenium.webdriver import Chrome
from tests.report.grids import in_rounds, rows, write_grid
from tests.report.test_run_browser import CONTRAST, browser, show

from qurate.report.benchmark_report import write_report

__all__ = ["browser"]  # the fixture


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Wider than any screen, with failed and missing cells and a name that is markup."""
    folder = tmp_path_factory.mktemp("bench")
    domains = ["Art", "Clipart", "Product", "Real"]
    scenarios = [f"{a}:{b}" for a in domains for b in domains if a != b]
    results = [r for name in scenarios for r in rows(name, "tml", "dqn", 0.70, 0.71)]
    results += [r for name in scenarios[1:] for r in rows(name, "mme", "none", 0.60, None)]
    results += rows(scenarios[0], "mme", "none", None, None) + rows(scenarios[0], "<b>own</b>", "none", 0.5, 0.5)
    rounds = in_rounds(scenarios[0], "dqn", 0, 0.6, 0.7)
    write_report(write_grid(folder, results, rounds, suite="office_home", suite_title="Office-Home " + "x" * 80))
    return (folder / "report" / "tables.html").as_uri()


@pytest.mark.parametrize("width", [320, 1200])
def test_nothing_sticks_out_sideways_and_the_method_stays_in_sight(browser: Chrome, page: str, width: int) -> None:
    show(browser, page, width)
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    scrolled = """
    const box = document.querySelector('.scroll'); box.scrollLeft = 400;
    return [box.scrollLeft, box.querySelector('tbody th').getBoundingClientRect().left];
    """
    moved, left = browser.execute_script(scrolled)
    assert moved > 100
    assert 0 <= left < width / 2
    assert browser.execute_script("return document.querySelectorAll('th b').length") == 0
    assert browser.get_log("browser") == []  # type: ignore[no-untyped-call]  # selenium leaves it untyped


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_its_ground(browser: Chrome, page: str, scheme: str) -> None:
    show(browser, page, 1200, scheme)
    assert browser.execute_script(CONTRAST) == []
