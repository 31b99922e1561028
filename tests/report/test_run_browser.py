"""The page in a real browser."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from selenium.webdriver import Chrome, ChromeOptions, ChromeService
from selenium.webdriver.common.by import By
from tests.report.run_pages import PARTS
from tests.report.run_runs import HARMS, cluttered_run, corrected, finished_run
from tests.runs.written import HOSTILE

from qurate.report.run_page import write_run_page

FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --disable-dev-shm-usage"
)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.skip("chromium or chromedriver is missing; `make browser` installs them on Debian")
    options = ChromeOptions()
    options.binary_location = chromium
    for flag in FLAGS.split():
        options.add_argument(flag)
    options.add_argument(f"--user-data-dir={tmp_path_factory.mktemp('profile')}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    chrome = Chrome(options=options, service=ChromeService(driver))
    yield chrome
    chrome.quit()


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("run")
    long = "a_class_with_a_name_of_remarkable_length_" + "x" * 60
    told = replace(corrected(folder), confusions=((long, "<b>bold</b>", 2), ("mug", long, 1)))
    classes = ("mug", "desk_lamp", long, "<b>bold</b>")
    record = cluttered_run(folder, classes=classes, comparison=HARMS, title=long, answers=told)
    write_run_page(record, folder / "report.html")
    return (folder / "report.html").as_uri()


def show(browser: Chrome, page: str, width: int, scheme: str = "light") -> None:
    size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.execute_cdp_cmd(
        "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    )
    browser.get(page)


def tallest(browser: Chrome, selector: str) -> int:
    """Height of the tallest element in pixels."""
    found = browser.find_elements(By.CSS_SELECTOR, selector)
    return max(int(element.size["height"]) for element in found)


def test_it_opens_with_all_parts_and_no_console_message(browser: Chrome, page: str) -> None:
    show(browser, page, 1200)
    for part in (*PARTS, "answers", "unknown"):
        section = browser.find_element(By.ID, part)
        assert section.is_displayed()
        assert section.accessible_name
    assert browser.find_element(By.CSS_SELECTOR, "main h2").text == "Adaptation looks harmful here"
    assert browser.find_elements(By.CSS_SELECTOR, "section b b, td b, th b") == []
    broken = "return [...document.images].filter(i => !i.complete || i.naturalWidth === 0).length"
    assert browser.execute_script(broken) == 0
    fetched = "return performance.getEntriesByType('resource').filter(e => !e.name.startsWith('data:')).length"
    assert browser.execute_script(fetched) == 0
    assert browser.get_log("browser") == []  # type: ignore[no-untyped-call]  # selenium leaves it untyped


@pytest.mark.parametrize("width", [320, 390, 768, 1200])
def test_nothing_sticks_out_sideways(browser: Chrome, page: str, width: int) -> None:
    show(browser, page, width)
    for details in browser.find_elements(By.TAG_NAME, "details"):
        browser.execute_script("arguments[0].open = true", details)
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    maps = browser.find_elements(By.CSS_SELECTOR, "svg.map")
    assert len(maps) == 2
    assert all(200 < chart.size["width"] <= width for chart in maps)


def test_folded_parts_open_by_keyboard(browser: Chrome, page: str) -> None:
    show(browser, page, 1200)
    config = browser.find_element(By.ID, "config")
    shown = config.find_element(By.TAG_NAME, "pre")
    assert not shown.is_displayed()
    config.find_element(By.TAG_NAME, "summary").send_keys("\ue007")
    assert shown.is_displayed()
    assert '"name": "dqn"' in shown.text


CONTRAST = """
const luminance = ([r, g, b]) => [r, g, b].map(v => v / 255)
  .map(v => v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4)
  .reduce((sum, v, i) => sum + v * [.2126, .7152, .0722][i], 0);
const numbers = color => color.match(/[\\d.]+/g).map(Number);
const background = element => {
  for (let e = element; e; e = e.parentElement) {
    const color = numbers(getComputedStyle(e).backgroundColor);
    if (color.length === 3) return color;
  }
  return [255, 255, 255];
};
const poor = [];
for (const e of document.querySelectorAll('h1,h2,h3,p,a,dt,dd,th,td,li,summary,figcaption,pre,text,.missing')) {
  if (!e.textContent.trim()) continue;
  const style = getComputedStyle(e);
  const front = luminance(numbers(e.tagName === 'text' ? style.fill : style.color)), back = luminance(background(e));
  const ratio = (Math.max(front, back) + .05) / (Math.min(front, back) + .05);
  if (ratio < 4.5) poor.push([e.tagName, e.textContent.slice(0, 30), ratio]);
}
return poor;
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_its_ground(browser: Chrome, page: str, scheme: str) -> None:
    show(browser, page, 1200, scheme)
    ground = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert ground == ("rgb(20, 23, 26)" if scheme == "dark" else "rgb(251, 250, 247)")
    assert browser.execute_script(CONTRAST) == []


@pytest.mark.parametrize("width", [390, 1200])
def test_hostile_names_are_shown_and_neither_run_nor_break_the_page(
    browser: Chrome, tmp_path: Path, width: int
) -> None:
    browser.get_log("browser")  # type: ignore[no-untyped-call]  # what other tests left
    told = replace(corrected(tmp_path), confusions=((HOSTILE[0], HOSTILE[1], 2), (HOSTILE[2], HOSTILE[3], 1)))
    record = finished_run(tmp_path, classes=HOSTILE, comparison=HARMS, title=HOSTILE[1], answers=told)
    moved = {}
    for number, path in enumerate(sorted((tmp_path / "unlabeled").glob("*.png"))):
        place = tmp_path / str(number) / f"{HOSTILE[number % len(HOSTILE)]}.png"
        place.parent.mkdir()
        moved[str(path)] = str(path.rename(place))
    tables = {name: getattr(record, name) for name in ("predictions", "positives", "embedding")}
    renamed = {
        name: table.assign(file=[moved.get(file, file) for file in table["file"]]) for name, table in tables.items()
    }
    write_run_page(replace(record, **renamed), tmp_path / "report.html")
    show(browser, (tmp_path / "report.html").as_uri(), width)
    for details in browser.find_elements(By.TAG_NAME, "details"):
        browser.execute_script("arguments[0].open = true", details)
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    assert tallest(browser, ".card, .pairs li") < 450
    assert browser.execute_script("return window.hurt === undefined")
    assert browser.find_elements(By.CSS_SELECTOR, "img[onerror], body script") == []
    words = browser.find_element(By.TAG_NAME, "body").text
    assert HOSTILE[0] in words.replace("\u200b", "")
    assert browser.get_log("browser") == []  # type: ignore[no-untyped-call]
