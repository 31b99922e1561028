"""The page in a real browser, by clicking and typing."""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
import torch
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver import Chrome, Keys
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait
from tests.own_images import COLORS, paint
from tests.report.test_run_browser import CONTRAST, show, tallest
from tests.report.test_run_browser import browser as browser
from tests.review.served import Served
from tests.runs.written import CLASSES, HOSTILE, rename_hostile, write_run

from qurate.active.answers import AnswerLog
from qurate.active.pool import Pool
from qurate.run_results import LABEL_ISSUES
from qurate.runs.suggestions import Inquiry

uvicorn = pytest.importorskip("uvicorn", reason="the extra review is not installed")

PATIENCE = 120
"""Seconds to wait for a page on a busy machine."""


class Page:
    """What a person sees and does."""

    def __init__(self, browser: Chrome, address: str, width: int = 1300, scheme: str = "light") -> None:
        self.browser = browser
        browser.get("about:blank")  # to the same address with a fragment, a browser would not load anything
        show(browser, f"{address}#answer", width, scheme)
        self.wait(lambda: self["one"].is_displayed() or self["done"].is_displayed())

    def __getitem__(self, name: str) -> WebElement:
        return self.browser.find_element(By.ID, name)

    def wait(self, condition: Callable[[], object]) -> None:
        """Wait until something holds and the page is ready for the next click: while it saves, it takes none."""
        WebDriverWait(self.browser, PATIENCE, 0.05, [StaleElementReferenceException]).until(
            lambda _: self.ready and condition()
        )

    @property
    def ready(self) -> bool:
        return self.browser.find_element(By.TAG_NAME, "main").get_attribute("aria-busy") == "false"

    def all_named(self, selector: str) -> bool:
        """Whether every control that is shown has a name for a screen reader."""
        controls = [one for one in self.browser.find_elements(By.CSS_SELECTOR, selector) if one.is_displayed()]
        return len(controls) > 0 and all(control.accessible_name for control in controls)

    @property
    def answered(self) -> int:
        return int(self["count"].text.split()[0].replace(",", ""))

    @property
    def left(self) -> int:
        return int(self["count"].text.split(", ")[1].split()[0].replace(",", ""))

    @property
    def image(self) -> str:
        return str(self["image"].get_attribute("src"))

    def press(self, *keys: str) -> None:
        self.browser.switch_to.active_element.send_keys(*keys)

    def answer(self, how: Callable[[], object], change: int = 1) -> None:
        """Do something, and wait until it is saved and the next question is there."""
        before, image = self.answered, self.image
        how()
        self.wait(lambda: self.answered == before + change and (self.image != image or self["done"].is_displayed()))

    def choose(self, word: str, *keys: str) -> None:
        """Type a class into the search, by keyboard alone."""
        self.press("/")
        self.wait(lambda: self.browser.switch_to.active_element.get_attribute("id") == "search")
        self.press(word)
        self.wait(lambda: self.browser.find_elements(By.CSS_SELECTOR, "#found li"))
        self.press(*keys, Keys.ENTER)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(tmp_path, unlabeled=14, trusted=9)


def test_a_whole_session_with_undo_reload_kill_and_restart(browser: Chrome, run: Path) -> None:
    server = Served(run, "--count", "35")
    log = AnswerLog(run / "labels.csv")
    page = Page(browser, server.address)
    assert (page.answered, page.left) == (0, 35)
    assert "nothing is known of the accuracy" in page["estimate"].text
    ways: list[Callable[[], object]] = [
        lambda: page.press("1"),
        lambda: page.press("2"),
        lambda: page.press("n"),
        lambda: browser.find_elements(By.CSS_SELECTOR, "#choices button")[0].click(),
        lambda: browser.find_elements(By.CSS_SELECTOR, "#choices button")[1].click(),
        lambda: page.choose("ét"),
        lambda: page.choose("e", Keys.ARROW_DOWN),
        lambda: page["none"].click(),
    ]
    for number in range(20):
        page.answer(ways[number % len(ways)])
    assert (page.answered, page.left) == (20, 15)
    kinds = [row.answer for row in log.rows()]
    assert kinds.count("none") == 5
    assert log.rows()[5].label == "été"
    assert "95 % interval" in page["estimate"].text
    last = log.rows()[-1]
    page.answer(lambda: page.press("u"), change=-1)
    assert last.file not in log.current()
    assert page["image"].get_attribute("alt") == f"Image to label: {Path(last.file).name}"
    page.answer(lambda: page.press("1"))
    browser.refresh()
    page.wait(lambda: page["one"].is_displayed() and page.answered == 20)
    page.answer(lambda: page["undo"].click(), change=-1)  # also after a reload
    page.answer(lambda: page.press("1"))
    for number in range(10):
        page.answer(ways[number % 3])
    before = {file: answer.label for file, answer in log.current().items()}
    assert len(before) == page.answered == 30
    server.kill()
    page.press("1")
    page.wait(lambda: page["problem"].is_displayed())
    assert "all answers so far are kept" in page["problem"].text
    again = Served(run, "--count", "35")
    page = Page(browser, again.address)
    assert (page.answered, page.left) == (30, 5), "what was left of the questions"
    assert {file: answer.label for file, answer in AnswerLog(log.path).current().items()} == before
    for left in (5, 7):
        for _ in range(left):
            page.answer(lambda: page.press("1"))
        assert page["done"].is_displayed()
        if left == 5:
            page["more"].click()
            page.wait(lambda: page.left == 7)
    assert len(log.current()) == 42
    assert (log.damaged, page["estimate"].text[:8]) == (0, "Accuracy")
    page["more"].click()
    page.wait(lambda: "nothing left" in page["done-title"].text)
    again.kill()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    served = Served(write_run(tmp_path_factory.mktemp("page"), unlabeled=14, trusted=20), "--count", "30")
    yield served
    served.kill()


def test_a_class_of_pseudo_labels_is_confirmed_at_once_and_wrong_ones_are_asked_about(
    browser: Chrome, run: Path
) -> None:
    server, log = Served(run), AnswerLog(run / "labels.csv")
    page = Page(browser, server.address)
    page.press("g")
    page.wait(lambda: page["grid"].is_displayed() and browser.find_elements(By.CSS_SELECTOR, "#cells button"))
    cells = browser.find_elements(By.CSS_SELECTOR, "#cells button")
    shown = len(cells)
    cells[0].click()
    cells[1].send_keys(Keys.SPACE)
    assert page["confirm-grid"].text == f"Confirm {shown - 2}, reject 2"
    page["confirm-grid"].click()
    page.wait(lambda: page.answered == shown)
    assert sorted(row.answer for row in log.rows()) == ["label"] * (shown - 2) + ["wrong"] * 2
    assert {row.label for row in log.rows() if row.answer == "label"} == {log.rows()[0].predicted}
    page["to-one"].click()
    page.wait(lambda: page["one"].is_displayed() and "Somebody said" in page["why"].text)
    rejected = [row.file for row in log.rows() if row.answer == "wrong"]
    assert page["file"].text in {Path(file).name for file in rejected}
    page.answer(lambda: page.press("2"), change=0)
    page["to-grid"].click()
    page.wait(lambda: page["grid"].is_displayed())
    page["undo-grid"].click()
    page.wait(lambda: len(log.rows()) == shown + 2)
    page["undo-grid"].click()
    page.wait(lambda: page.answered == 0)
    assert log.current() == {}
    server.kill()


@pytest.mark.parametrize(("width", "scheme"), [(1300, "light"), (400, "dark")])
def test_a_label_of_ones_own_is_corrected_by_a_click(browser: Chrome, run: Path, width: int, scheme: str) -> None:
    paint(run.parent / "wrong.png", COLORS[CLASSES[0]], seed=7)
    about = f"{run.parent / 'wrong.png'},,source,{CLASSES[1]},{CLASSES[0]},0.97,0.01"
    (run / "label_issues.csv").write_text(f"{','.join(LABEL_ISSUES)}\n{about}\n")
    (run / "config.json").write_text(json.dumps({"check_helping": False}))
    server, log = Served(run), AnswerLog(run / "labels.csv")
    page = Page(browser, server.address, width, scheme)
    page["to-issues"].click()
    page.wait(lambda: browser.find_elements(By.CSS_SELECTOR, "#doubted li"))
    assert "1 of 1 are left to check" in page["issues-about"].text
    assert page.all_named("#issues button, #issues select")
    assert browser.execute_script(CONTRAST) == []
    browser.find_element(By.CSS_SELECTOR, "#doubted button").click()
    page.wait(lambda: "0 of 1 are left" in page["issues-about"].text)
    (row,) = log.current().values()
    assert (row.file, row.answer, row.label) == (str(run.parent / "wrong.png"), "label", CLASSES[0])
    page["to-next"].click()
    page.wait(lambda: "but without the comparison with plain training, as this run." in page["tab-next"].text)
    page["to-answer"].click()
    page.wait(page["undo-issues"].is_displayed)
    page["undo-issues"].click()
    page.wait(lambda: "1 of 1 are left" in page["issues-about"].text)
    assert log.current() == {}
    server.kill()


def test_two_tabs_show_different_images_and_keep_each_others_answers(browser: Chrome, run: Path) -> None:
    server, log = Served(run), AnswerLog(run / "labels.csv")
    first = Page(browser, server.address)
    one, image = browser.current_window_handle, first.image
    browser.switch_to.new_window("tab")
    second = Page(browser, server.address)
    assert second.image != image
    for _ in range(3):
        second.answer(lambda: second.press("1"))
    two = browser.current_window_handle
    browser.switch_to.window(one)
    before = first.image
    first.press("2")
    first.wait(lambda: first.image != before and first.answered == 4)
    browser.switch_to.window(two)
    second.press("u")
    second.wait(lambda: second.answered == 3)
    assert sorted(row.label == row.predicted for row in log.current().values()) == [False, True, True]
    browser.close()
    browser.switch_to.window(one)
    server.kill()


@pytest.mark.parametrize("width", [400, 1300])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_is_readable_fits_and_says_nothing_on_the_console(
    browser: Chrome, server: Served, width: int, scheme: str
) -> None:
    browser.get_log("browser")  # type: ignore[no-untyped-call]  # what other tests left
    page = Page(browser, server.address, width, scheme)
    for view in ("one", "grid"):
        page[f"to-{view}"].click()
        page.wait(page[view].is_displayed)
        page.wait(lambda: browser.execute_script("return [...document.images].every(i => i.complete)"))
        assert browser.execute_script("return document.documentElement.scrollWidth") <= width
        assert browser.execute_script(CONTRAST.replace("'h1,", "'button,label,option,#estimate,#count,h1,")) == []
        shown = f"#{view} button, #{view} input, #{view} select, .views button, #tabs a"
        page.wait(partial(page.all_named, shown))
        broken = "return [...document.images].filter(i => i.src && i.naturalWidth === 0 && i.loading !== 'lazy').length"
        assert browser.execute_script(broken) == 0
    ground = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert ground == ("rgb(20, 23, 26)" if scheme == "dark" else "rgb(251, 250, 247)")
    assert browser.get_log("browser") == []  # type: ignore[no-untyped-call]


def test_single_keys_can_be_switched_off_and_later_puts_off(browser: Chrome, server: Served) -> None:
    page = Page(browser, server.address)
    image = page.image
    page["keys"].click()
    browser.execute_script("document.getElementById('question').focus()")
    page.press("l")
    page.press("1")
    time.sleep(0.5)  # nothing must come
    assert (page.image, page.answered) == (image, 0)
    page["keys"].click()
    browser.execute_script("document.getElementById('question').focus()")
    page.press("l")
    page.wait(lambda: page.image != image)
    assert page.answered == 0


def test_a_class_is_added_by_keyboard_or_mouse_and_not_by_a_typing_error(browser: Chrome, run: Path) -> None:
    server, log = Served(run), AnswerLog(run / "labels.csv")
    page, hostile = Page(browser, server.address), "<img src=x onerror=window.hurt=1>"
    image = page.image
    page.choose(hostile)  # and Enter alone
    time.sleep(0.5)  # nothing must come
    assert (page.image, page.answered) == (image, 0)
    page["search"].send_keys(Keys.ESCAPE)
    page.answer(lambda: page.choose(hostile, Keys.ARROW_DOWN))
    assert (
        f"New class for the next run: \u2068{hostile}\u2069 (1 of the 3 images that it needs)." in page["estimate"].text
    )
    page.answer(lambda: page.choose("onerror"))  # it is found like the others
    page["search"].click()
    page["search"].send_keys("mug")
    page.wait(lambda: browser.find_elements(By.CSS_SELECTOR, "#found li"))
    said, offered = browser.find_elements(By.CSS_SELECTOR, "#found li")
    assert said.text == "No class has \u201c\u2068mug\u2069\u201d in its name."
    assert offered.text.startswith("Add the class \u2068mug\u2069")
    page.answer(offered.click)
    page.choose("None", Keys.ARROW_DOWN)
    page.wait(lambda: page["problem"].is_displayed())
    assert "Not saved: " in page["problem"].text
    assert [row.label for row in log.rows()] == [hostile, hostile, "mug"]
    for width in (400, 1300):
        size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": False}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    assert browser.execute_script("return window.hurt === undefined")
    browser.get_log("browser")  # type: ignore[no-untyped-call]  # the refusal is one
    server.kill()


@pytest.fixture
def crowd(tmp_path: Path) -> Iterator[str]:
    """A page about 10,000 images, all of them links to a few."""
    from tests.review.asked import open_runs

    from qurate.review.app import Example, ReviewPage
    from qurate.review.server import listen
    from qurate.review.session import QueryOptions, Session

    for name, color in COLORS.items():
        paint(tmp_path / f"{name}.png", color, seed=1)
    names = [tmp_path / f"{name}.png" for name in CLASSES]
    for i in range(10_000):
        (tmp_path / f"{i}.png").hardlink_to(names[i % 3])
    rng = torch.Generator().manual_seed(0)
    probabilities = torch.randn(10_000, 3, generator=rng).softmax(dim=1)
    pool = Pool(torch.randn(10_000, 4, generator=rng), probabilities, probabilities.argmax(dim=1))
    inquiry = Inquiry(tuple(str(tmp_path / f"{i}.png") for i in range(10_000)), CLASSES, pool, {})
    session = Session(inquiry, AnswerLog(tmp_path / "labels.csv"), QueryOptions(10_000, "margin", 0.1, 0))
    examples = [Example(path, path.stem, "source") for path in names]
    own = listen(0)
    port = own.getsockname()[1]
    app = open_runs(tmp_path, ReviewPage(session, examples)).guarded("token", port)
    config = uvicorn.Config(app, http="h11", ws="none", lifespan="off", log_config=None, access_log=False)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [own]})
    thread.start()
    yield f"http://127.0.0.1:{port}/token/0/"
    server.should_exit = True
    thread.join()
    own.close()


def test_ten_thousand_images_are_not_all_loaded(browser: Chrome, crowd: str) -> None:
    page = Page(browser, crowd)
    assert (page.answered, page.left) == (0, 10_000)
    for _ in range(3):
        page.answer(lambda: page.press("1"))
    page.press("g")
    page.wait(lambda: page["grid"].is_displayed() and browser.find_elements(By.CSS_SELECTOR, "#cells button"))
    assert len(browser.find_elements(By.CSS_SELECTOR, "#cells button")) == 30
    page.wait(lambda: browser.execute_script("return [...document.images].every(i => i.complete)"))
    fetched = "return performance.getEntriesByType('resource').filter(e => e.name.includes('/images/')).length"
    assert browser.execute_script(fetched) < 50
    assert (page.answered, page.left) == (3, 9_997)


def test_hostile_names_are_shown_and_neither_run_nor_break_the_page(browser: Chrome, tmp_path: Path) -> None:
    run = write_run(tmp_path, trusted=15)
    rename_hostile(run)
    server = Served(run, "--count", "18", "--query-strategy", "random")
    browser.get_log("browser")  # type: ignore[no-untyped-call]  # what other tests left
    page = Page(browser, server.address)

    def check_layout() -> None:
        for width in (400, 1300):
            size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": False}
            browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
            assert browser.execute_script("return document.documentElement.scrollWidth") <= width

    seen = set()
    for _ in range(page.left):
        check_layout()
        assert tallest(browser, "#choices button") < 250
        seen.add(str(page["image"].get_attribute("alt")).removeprefix("Image to label: ").removesuffix(".png"))
        image = page.image
        page.press("l")
        page.wait(lambda image=image: page.image != image)  # type: ignore[misc]
    assert seen == set(HOSTILE)
    page.press("/")
    page.press("x")
    page.wait(lambda: browser.find_elements(By.CSS_SELECTOR, "#found li"))
    assert tallest(browser, "#found li") < 150
    page["search"].clear()
    browser.execute_script("document.getElementById('question').focus()")
    page.choose("onerror")
    page.wait(lambda: page.answered == 1)
    page.press("g")
    page.wait(lambda: page["grid"].is_displayed() and browser.find_elements(By.CSS_SELECTOR, "#cells button"))
    check_layout()
    options = [option.text for option in browser.find_elements(By.CSS_SELECTOR, "#class option")]
    assert options[0].startswith(f"\u2068{HOSTILE[0]}\u2069 (")
    page.wait(lambda: browser.execute_script("return [...document.images].every((each) => each.complete)"))
    assert browser.execute_script("return window.hurt === undefined")
    assert browser.find_elements(By.CSS_SELECTOR, "img[onerror], main script") == []
    assert browser.get_log("browser") == []  # type: ignore[no-untyped-call]
    server.kill()
    assert [row.label for row in AnswerLog(run / "labels.csv").rows()] == [HOSTILE[0]]


def test_the_address_keeps_the_tab_and_a_link_that_names_none_shows_the_outcome(
    browser: Chrome, server: Served
) -> None:
    page = Page(browser, server.address)
    shown = ["progress", "outcome", "images", "answer", "next"]
    for name in shown:
        page[f"to-{name}"].click()
        page.wait(page[f"tab-{name}"].is_displayed)
        browser.refresh()
        page.wait(page[f"tab-{name}"].is_displayed)
        assert [other for other in shown if page[f"tab-{other}"].is_displayed()] == [name]
        assert page[f"to-{name}"].get_attribute("aria-current") == "page"
    browser.get(f"{server.address}#<b>")
    browser.refresh()
    page.wait(page["tab-outcome"].is_displayed)


def test_every_run_that_learned_from_the_answers_is_shown_the_newest_first(browser: Chrome, run: Path) -> None:
    for number, name in enumerate(("run-2", "run-3")):
        shutil.copytree(run, run.parent / name)
        (run.parent / name / "config.json").write_text(json.dumps({"continued_from": str(run)}))
        os.utime(run.parent / name / "config.json", (number, number))
    server = Served(run)
    page = Page(browser, server.address)
    page["to-next"].click()
    page.wait(lambda: len(browser.find_elements(By.CSS_SELECTOR, "#after .go-on")) == 2)
    shown = [link.text for link in browser.find_elements(By.CSS_SELECTOR, "#after .go-on")]
    assert shown == ["Go on in run-3", "Go on in run-2"]
    for number in (1, 2):
        found = browser.execute_script(f"return fetch('../{number}/status?load=0').then(reply => reply.json())")
        assert (found["ready"], found["loaded"]) == (False, None), "only its own page needs its model"
    server.kill()


def test_a_next_run_that_cannot_be_asked_about_any_more_does_not_keep_one_from_learning(
    browser: Chrome, run: Path
) -> None:
    shutil.copytree(run, run.parent / "run-2")
    (run.parent / "run-2" / "config.json").write_text(json.dumps({"continued_from": str(run)}))
    server = Served(run)
    page = Page(browser, server.address)
    page.answer(lambda: page.press("1"))
    browser.execute_script(
        """
        const real = window.fetch, run = { title: "run-2", state: "working", phase: "", lines: [] };
        window.fetch = async (where, ...rest) => {
          if (!String(where).includes("../1/status")) return real(where, ...rest);
          if (window.fails) throw new TypeError("gone");
          return Response.json(run);
        };
        """
    )
    page["to-next"].click()
    page.wait(lambda: browser.find_elements(By.CSS_SELECTOR, "#after progress"))
    assert not page["learn"].is_enabled()
    browser.execute_script("window.fails = true")
    page.wait(lambda: not browser.find_elements(By.CSS_SELECTOR, "#after progress"))
    assert page["learn"].is_enabled()
    server.kill()


def test_a_reload_keeps_the_question_a_name_is_kept_and_wrong_can_say_what_it_is(browser: Chrome, run: Path) -> None:
    server, log = Served(run), AnswerLog(run / "labels.csv")
    page = Page(browser, server.address)
    page.press("l")
    page.wait(lambda: page["status"].get_attribute("textContent") == "Put off.")
    image = page.image
    browser.refresh()
    page.wait(lambda: page["one"].is_displayed() and page.image)
    assert page.image == image
    page["by"].send_keys("Zoë", Keys.TAB)
    browser.refresh()
    page.wait(lambda: page["one"].is_displayed() and page["by"].get_attribute("value") == "Zoë")
    keys = [key.text for key in browser.find_elements(By.CSS_SELECTOR, "#choices b")]
    page.answer(lambda: page.press("2"))
    assert [key.text for key in browser.find_elements(By.CSS_SELECTOR, "#choices b")] == keys == list(CLASSES)
    assert [(row.label, row.by) for row in log.rows()] == [(CLASSES[1], "Zoë")]
    page["to-grid"].click()
    page.wait(lambda: browser.find_elements(By.CSS_SELECTOR, "#cells button"))
    cell = browser.find_elements(By.CSS_SELECTOR, "#cells button")[0]
    cell.click()
    options = browser.find_elements(By.CSS_SELECTOR, "#cells select option")
    assert [option.text for option in options][:1] == ["What is it?"]
    options[1].click()
    named, shown = options[1].text, len(browser.find_elements(By.CSS_SELECTOR, "#cells button"))
    page["confirm-grid"].click()
    page.wait(lambda: len(log.rows()) == 1 + shown)
    assert [row.label for row in log.rows()[1:]].count(named) == 1
    assert "wrong" not in {row.answer for row in log.rows()}
    page["to-next"].click()
    page.wait(lambda: page["learn"].is_enabled())
    assert f"{1 + shown} new answers" in page["tab-next"].text
    browser.execute_script("localStorage.clear()")
    server.kill()
