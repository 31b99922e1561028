"""The tab Images in a real browser, by clicking, typing and drawing."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from selenium.webdriver import ActionChains, Chrome, Keys
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import Select, WebDriverWait
from tests.report.test_run_browser import CONTRAST, show
from tests.report.test_run_browser import browser as browser
from tests.review.served import Served
from tests.review.test_browser import PATIENCE
from tests.review.test_browser import crowd as crowd
from tests.runs.written import CLASSES, HOSTILE, rename_hostile, write_run

from qurate.active.answers import AnswerLog
from qurate.data.class_names import NO_FIT
from qurate.runtime.tables import read_csv, to_csv

pytest.importorskip("uvicorn", reason="the extra review is not installed")


class Images:
    """What a person sees and does on the tab."""

    def __init__(self, browser: Chrome, address: str, width: int = 1300, scheme: str = "light") -> None:
        self.browser = browser
        browser.get("about:blank")  # so that another hash is another page
        show(browser, f"{address}#images", width, scheme)
        self.wait("document.querySelectorAll('.cell').length > 0")

    def wait(self, condition: str) -> None:
        """Wait until a condition of JavaScript holds and the page is ready."""
        ready = f"return document.querySelector('main').getAttribute('aria-busy') === 'false' && ({condition})"
        WebDriverWait(self.browser, PATIENCE, 0.05).until(lambda browser: browser.execute_script(ready))

    def part(self, name: str) -> WebElement:
        return self.browser.find_element(By.CSS_SELECTOR, f"[data-part='{name}']")

    @property
    def cells(self) -> list[WebElement]:
        found = self.browser.find_elements(By.CSS_SELECTOR, ".cell")
        return sorted(found, key=lambda cell: int(str(cell.get_attribute("data-n"))))

    @property
    def files(self) -> list[str]:
        return [str(cell.get_attribute("title")) for cell in self.cells]

    @property
    def count(self) -> str:
        return self.part("count").text

    def choose(self, name: str, value: str) -> None:
        """Set a filter or the order."""
        Select(self.part("filters").find_element(By.NAME, name)).select_by_value(value)
        self.wait("true")

    def click(self, name: str) -> None:
        self.part(name).click()
        self.wait("true")

    def select(self, *places: int) -> None:
        for place in places:
            self.cells[place].find_element(By.CLASS_NAME, "mark").click()


def make_run(folder: Path) -> Path:
    """A run with 42 images, 9 of them trusted, three of those as another class, and two that fit no class."""
    run = write_run(folder, unlabeled=14, trusted=9)
    table, trusted = read_csv(run / "predictions.csv"), read_csv(run / "positives.csv")
    flagged = table["file"].isin([file for file in table["file"] if file not in set(trusted["file"])][:2])
    (run / "predictions.csv").write_bytes(to_csv(table.assign(problem=np.where(flagged, NO_FIT, ""))))
    other = next(name for name in CLASSES if name != trusted["label"].iloc[0])
    trusted.loc[:2, "label"] = other
    (run / "positives.csv").write_bytes(to_csv(trusted))
    return run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("images"))


@pytest.fixture(scope="module")
def served(run: Path) -> Iterator[Served]:
    """A server for tests that answer nothing."""
    served = Served(run)
    yield served
    served.kill()


def test_filters_and_orders_show_what_the_tables_say(browser: Chrome, run: Path, served: Served) -> None:
    page = Images(browser, served.address)
    table = read_csv(run / "predictions.csv").astype({"probability": float}).set_index("file")
    trusted = read_csv(run / "positives.csv").set_index("file")["label"]
    shown = table["label"].where(~table.index.isin(trusted.index), trusted.reindex(table.index))
    assert page.count == "42 images"
    assert np.diff(table.loc[page.files, "probability"]).min() > -2e-6
    page.choose("sort", "sure")
    assert np.diff(table.loc[page.files, "probability"]).max() < 2e-6
    page.choose("sort", "file")
    assert page.files == sorted(page.files)
    page.choose("class", trusted.iloc[0])
    assert page.count == f"{(shown == trusted.iloc[0]).sum()} of 42 images"
    assert {shown[file] for file in page.files} == {trusted.iloc[0]}
    page.click("reset")
    page.choose("trusted", "yes")
    assert set(page.files) == set(trusted.index)
    page.choose("origin", "model")
    assert page.count == "0 of 42 images"
    page.click("reset")
    page.choose("flagged", "yes")
    assert set(page.files) == set(table.index[table["problem"] == NO_FIT])
    page.click("reset")
    high = page.part("filters").find_element(By.NAME, "high")
    high.clear()
    high.send_keys("50")
    assert page.count == f"{(table['probability'] <= 0.5).sum()} of 42 images"
    page.click("reset")
    page.part("filters").find_element(By.NAME, "file").send_keys("10.PNG")
    assert set(page.files) == {file for file in table.index if "10.png" in file}


def test_answers_for_one_or_several_are_saved_shown_and_undone(browser: Chrome, tmp_path: Path) -> None:
    run = make_run(tmp_path)
    served, log = Served(run), AnswerLog(run / "labels.csv")
    page = Images(browser, served.address)
    names = [page.files[place] for place in (0, 2, 3)]
    page.select(0, 2)
    ActionChains(browser).key_down(Keys.SHIFT).click(page.cells[3]).key_up(Keys.SHIFT).perform()
    assert page.part("chosen").text == "3 selected"
    page.part("label").find_element(By.NAME, "name").send_keys("mug")
    button = page.part("label").find_element(By.TAG_NAME, "button")
    assert button.text == "Add this class"
    button.click()
    page.wait("document.querySelectorAll('.is-label').length === 3")
    assert {row.file: row.label for row in log.current().values()} == dict.fromkeys(names, "mug")
    assert len({row.id for row in log.rows()}) == 1
    page.choose("answer", "label")
    assert page.files == names
    page.click("undo")
    page.wait("document.querySelectorAll('.cell').length === 0")
    assert log.current() == {}
    page.click("reset")
    page.select(1)
    page.click("wrong")
    page.wait("document.querySelectorAll('.is-wrong').length === 1")
    page.select(4, 5)
    page.click("none")
    page.wait("document.querySelectorAll('.is-none').length === 2")
    page.select(6, 7)
    page.click("confirm")
    page.wait("document.querySelectorAll('.is-label').length === 2")
    kinds = [row.answer for row in log.current().values()]
    assert kinds == ["wrong", "none", "none", "label", "label"]
    browser.refresh()
    page.wait("document.querySelectorAll('.is-none').length === 2")
    page.click("undo")  # also after a reload
    page.wait("document.querySelectorAll('.is-label').length === 0")
    assert [row.answer for row in log.current().values()] == ["wrong", "none", "none"]
    served.kill()
    page.select(9)
    page.click("none")
    page.wait("!document.getElementById('problem').hidden")
    assert "all answers so far are kept" in browser.find_element(By.ID, "problem").text
    assert page.part("chosen").text == "1 selected"
    browser.get_log("browser")  # type: ignore[no-untyped-call]  # the server that has gone


def test_an_image_opens_large_and_is_answered_by_keyboard_alone(browser: Chrome, tmp_path: Path) -> None:
    run = make_run(tmp_path)
    served, log = Served(run), AnswerLog(run / "labels.csv")
    page = Images(browser, served.address)
    files = page.files
    page.part("grid").send_keys(Keys.ARROW_RIGHT, Keys.ENTER)
    page.wait("document.querySelector('dialog').open")
    assert page.part("one").find_element(By.TAG_NAME, "figcaption").text == files[1]
    shares = [float(meter.get_attribute("value") or 0) for meter in browser.find_elements(By.TAG_NAME, "meter")]
    assert sum(shares) == pytest.approx(1, abs=1e-3)
    strips = browser.find_elements(By.CSS_SELECTOR, ".strip")
    assert [len(strip.find_elements(By.TAG_NAME, "li")) for strip in strips] == [6, 6]
    keys = [key.text for key in browser.find_elements(By.CSS_SELECTOR, ".likely b")]
    assert keys == list(CLASSES), "as in the tab Answer"
    browser.switch_to.active_element.send_keys("2")
    page.wait(f"document.querySelector('dialog figcaption').textContent === {files[2]!r}")
    assert {row.file: row.label for row in log.current().values()} == {files[1]: CLASSES[1]}
    assert [key.text for key in browser.find_elements(By.CSS_SELECTOR, ".likely b")] == keys
    browser.switch_to.active_element.send_keys("n")
    page.wait(f"document.querySelector('dialog figcaption').textContent === {files[3]!r}")
    browser.switch_to.active_element.send_keys("u")
    page.wait("document.querySelectorAll('.is-none').length === 0")
    assert list(log.current()) == [files[1]]
    browser.switch_to.active_element.send_keys(Keys.ARROW_LEFT)
    page.wait(f"document.querySelector('dialog figcaption').textContent === {files[2]!r}")
    browser.switch_to.active_element.send_keys(Keys.ESCAPE)
    page.wait("!document.querySelector('dialog').open")
    page.part("grid").send_keys(Keys.SPACE, Keys.SHIFT, Keys.ARROW_RIGHT)
    assert page.part("chosen").text == "2 selected"
    served.kill()


def test_a_lasso_selects_and_near_duplicates_stand_side_by_side(browser: Chrome, served: Served) -> None:
    page = Images(browser, served.address)
    page.click("to-map")
    canvas = page.part("map").find_element(By.TAG_NAME, "canvas")
    half = canvas.size["width"] / 2 - 5  # within its round corners, and beyond all points
    pen = ActionChains(browser, duration=50).move_to_element_with_offset(canvas, -half, -half).click_and_hold()
    for x, y in ((half, -half), (half, half), (-half, half), (-half, -half)):
        pen.move_to_element_with_offset(canvas, x, y)
    pen.release().perform()
    assert page.part("chosen").text == "42 selected"
    pen = ActionChains(browser, duration=50).move_to_element_with_offset(canvas, -half, -half).click_and_hold()
    for x, y in ((0, -half), (0, half), (-half, half)):
        pen.move_to_element_with_offset(canvas, x, y)
    pen.release().perform()
    some = int(page.part("chosen").text.split()[0])
    assert 0 < some < 42
    page.click("only")
    assert page.count == f"{some} of 42 images"
    page.click("clear")
    assert page.count == "42 images"
    page.choose("sort", "alike")
    page.wait("!document.querySelector('[data-part=bound]').hidden")
    assert "group" in page.count


@pytest.mark.parametrize("width", [400, 1300])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_is_readable_fits_and_says_nothing_on_the_console(
    browser: Chrome, served: Served, width: int, scheme: str
) -> None:
    browser.get_log("browser")  # type: ignore[no-untyped-call]  # what other tests left
    page = Images(browser, served.address, width, scheme)
    if width == 400:
        page.click("to-filters")
    page.select(0)
    page.click("to-map")
    for view in ("grid", "one"):
        if view == "one":
            browser.execute_script("arguments[0].scrollIntoView({ block: 'center' })", page.cells[1])
            page.cells[1].click()
            page.wait("document.querySelector('dialog').open")
        page.wait("[...document.images].every(image => image.complete)")
        assert browser.execute_script("return document.documentElement.scrollWidth") <= width
        wider = "return [...document.querySelectorAll('dialog, .chosen')].some(e => e.scrollWidth > e.clientWidth)"
        assert not browser.execute_script(wider)
        assert browser.execute_script(CONTRAST.replace("'h1,", "'#tab-images *,button,label,h1,")) == []
        where = "dialog" if view == "one" else "#tab-images"
        controls = browser.find_elements(By.CSS_SELECTOR, f"{where} :is(button, input, select, canvas, .cell)")
        assert [
            one.get_attribute("outerHTML") for one in controls if one.is_displayed() and not one.accessible_name
        ] == []
    assert browser.get_log("browser") == []  # type: ignore[no-untyped-call]


def test_of_ten_thousand_images_only_those_in_sight_exist(browser: Chrome, crowd: str) -> None:
    page = Images(browser, crowd)
    assert page.count == "10,000 images"
    for _ in range(20):
        browser.execute_script("scrollBy(0, 9000)")
        time.sleep(0.05)
    page.wait("document.querySelectorAll('.cell').length < 100")
    browser.execute_script("scrollTo(0, document.documentElement.scrollHeight)")
    page.wait("[...document.querySelectorAll('.cell')].some(cell => cell.dataset.n === '9999')")
    page.wait("[...document.querySelectorAll('.cell img')].every(image => image.naturalWidth > 0)")
    fetched = "return performance.getEntriesByType('resource').filter(e => e.name.includes('/images/')).length"
    assert browser.execute_script(fetched) < 1000
    page.click("all")
    assert page.part("chosen").text == "10,000 selected"
    page.click("none")
    page.wait("document.querySelectorAll('.is-none').length > 0")
    page.click("undo")
    page.wait("document.querySelectorAll('.is-none').length === 0")


def test_hostile_names_are_shown_and_neither_run_nor_break_the_page(browser: Chrome, tmp_path: Path) -> None:
    run = write_run(tmp_path, trusted=15)
    rename_hostile(run)
    served = Served(run)
    browser.get_log("browser")  # type: ignore[no-untyped-call]  # what other tests left
    for width in (400, 1300):
        page = Images(browser, served.address, width)
        assert {Path(file).stem for file in page.files} <= set(HOSTILE)
        page.cells[0].click()
        page.wait("document.querySelector('dialog').open")
        assert browser.execute_script("return document.documentElement.scrollWidth") <= width
        assert not browser.execute_script(
            "const d = document.querySelector('dialog'); return d.scrollWidth > d.clientWidth"
        )
    assert browser.execute_script("return window.hurt === undefined")
    assert browser.find_elements(By.CSS_SELECTOR, "img[onerror], main script") == []
    assert browser.get_log("browser") == []  # type: ignore[no-untyped-call]
    served.kill()
