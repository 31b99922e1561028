"""How the tab Images of the page of a run does with many images: frame times while it scrolls, and memory.

The images are links to those of a folder, the model's embeddings and predictions are made up. The server is a process
of its own. Frame times are the distances of the frames that Chromium (headless, drawn without a graphics card) shows
while the page scrolls: at 60 frames per second one is due every 16.7 ms. On a machine that others use as well, the
main thread's own processor time per frame is the number to compare.

    python benchmarks/review_page.py --images ../shared/data/office31/amazon --count 50000
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

SPEEDS = {"reading": 20, "fast": 200, "dragging the bar": 20_000}
"""Pixels per frame."""
FRAMES = 180
WIDTH, CLASSES, GROUPS = 1280, 31, 2000
TOKEN = "measured"

SCROLL = """
const [step, frames, done] = arguments, times = [];
let way = 1;
scrollTo(0, 300);
function next(now) {
  times.push(now);
  if (times.length > frames) return done(times);
  const end = document.documentElement.scrollHeight - innerHeight;
  if (scrollY + way * step > end || scrollY + way * step < 0) way = -way;
  scrollBy(0, way * step);
  requestAnimationFrame(next);
}
requestAnimationFrame(next);
"""


def link_images(folder: Path, count: int, into: Path) -> list[Path]:
    """So many files, links to the images of a folder one after another."""
    there = sorted(path.resolve() for path in folder.rglob("*") if path.suffix.lower() in (".jpg", ".png"))
    if not there:
        raise SystemExit(f"{folder} holds no .jpg or .png image; give another --images.")
    names = [into / f"{i // 1000:03}" / f"frame_{i:06}{there[0].suffix}" for i in range(count)]
    for i, name in enumerate(names):
        name.parent.mkdir(exist_ok=True)
        name.symlink_to(there[i % len(there)])
    return names


def serve(names: list[Path], folder: Path, ready: Any) -> None:
    """The page of a made-up run, until this process is ended."""
    import torch
    import uvicorn

    from qurate.active.answers import AnswerLog
    from qurate.active.pool import Pool
    from qurate.review.app import Example, ReviewPage
    from qurate.review.runs import OpenRuns
    from qurate.review.server import listen
    from qurate.review.session import QueryOptions, Session
    from qurate.runs.model_json import ABOUT_FILE
    from qurate.runs.suggestions import Inquiry

    rng = torch.Generator().manual_seed(0)
    group = torch.randint(GROUPS, (len(names),), generator=rng)
    features = torch.randn(GROUPS, WIDTH, generator=rng)[group]
    for part in features.split(4096):
        part += 0.3 * torch.randn(part.shape, generator=rng)
    logits = (torch.randn(GROUPS, CLASSES, generator=rng) * 2)[group] + torch.randn(len(names), CLASSES, generator=rng)
    probabilities = logits.softmax(dim=1)
    trusted = torch.where(probabilities.amax(dim=1) > 0.5, probabilities.argmax(dim=1), -1)
    classes = tuple(f"class_{k}" for k in range(CLASSES))
    known = torch.rand(len(names), generator=rng)
    inquiry = Inquiry(tuple(map(str, names)), classes, Pool(features, probabilities, trusted), {}, known=known)
    session = Session(inquiry, AnswerLog(folder / "labels.csv"), QueryOptions(50, "margin", 0.2, 0))
    examples = [Example(names[k], classes[k % CLASSES], "source", features[k]) for k in range(4 * CLASSES)]
    own = listen(0)
    (folder / ABOUT_FILE).write_text("{}")  # the run is finished
    page = ReviewPage(session, examples)
    runs = OpenRuns(lambda _folder, _on_progress: page)
    runs.add(folder, page)
    app = runs.guarded(TOKEN, own.getsockname()[1])
    config = uvicorn.Config(app, http="h11", ws="none", lifespan="off", log_config=None, access_log=False)
    own.listen(128)
    ready.put((os.getpid(), own.getsockname()[1]))
    uvicorn.Server(config).run(sockets=[own])


def memory_of(process: int) -> tuple[float, float]:
    """Megabytes of a process now and at most."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    found = {line.split(":")[0]: int(line.split()[1]) / 1024 for line in lines if line.startswith(("VmRSS", "VmHWM"))}
    return found["VmRSS"], found["VmHWM"]


def work_of(process: int) -> float:
    """Seconds of processor time of a process."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def renderer_of(profile: str) -> int:
    """The process of Chromium that shows the page: the largest of those with this profile."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            command = (place / "cmdline").read_bytes().decode(errors="replace")
            if "--type=renderer" in command and profile in command:
                found.append((memory_of(int(place.name))[0], int(place.name)))
        except (OSError, KeyError):  # it has ended
            continue
    return max(found)[1]


def open_browser(profile: str) -> Any:
    from selenium.webdriver import Chrome, ChromeOptions, ChromeService

    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        raise SystemExit("chromium or chromedriver is missing; `make browser` installs them on Debian.")
    options = ChromeOptions()
    options.binary_location = chromium
    for flag in ("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--window-size=1300,800"):
        options.add_argument(flag)
    options.add_argument(f"--user-data-dir={profile}")
    browser = Chrome(options=options, service=ChromeService(driver))
    browser.set_script_timeout(600)
    return browser


def metrics(browser: Any) -> dict[str, float]:
    return {one["name"]: one["value"] for one in browser.execute_cdp_cmd("Performance.getMetrics", {})["metrics"]}


def measure(browser: Any, address: str, process: int, profile: str) -> None:
    browser.execute_cdp_cmd("Performance.enable", {"timeDomain": "threadTicks"})
    began = time.perf_counter()
    browser.get(f"{address}#images")
    await_true(browser, "[...document.querySelectorAll('.cell img')].some(image => image.naturalWidth)")
    loaded = time.perf_counter() - began
    rows = "return performance.getEntriesByType('resource').find(e => e.name.endsWith('/rows'))"
    entry = browser.execute_script(rows)
    print(f"first pictures after {loaded:.1f} s; rows: {entry['encodedBodySize'] / 1e6:.2f} MB sent, ", end="")
    print(f"{entry['decodedBodySize'] / 1e6:.2f} MB unpacked; load average {os.getloadavg()[0]:.1f}")
    for name, step in SPEEDS.items():
        before = metrics(browser)
        times = browser.execute_async_script(SCROLL, step, FRAMES)
        after = metrics(browser)
        work = 1000 * (after["TaskDuration"] - before["TaskDuration"]) / FRAMES
        gaps = sorted(b - a for a, b in itertools.pairwise(times))
        late = sum(gap > 25 for gap in gaps) / len(gaps)
        print(
            f"scrolling, {name} ({step:,} px per frame): frames {gaps[len(gaps) // 2]:.1f} ms in the median, "
            f"{gaps[int(0.95 * len(gaps))]:.1f} ms at 95 %, {gaps[-1]:.1f} ms at most, {100 * late:.1f} % late; "
            f"{work:.1f} ms of work per frame",
            flush=True,
        )
        time.sleep(1)
    tell_memory("after scrolling", browser, process, profile)
    for name, click in (("map", "document.querySelector('[data-part=to-map]').click()"), ("near-duplicates", ALIKE)):
        began, worked = time.perf_counter(), work_of(process)
        browser.execute_script(click)
        await_true(browser, "document.querySelector('main').getAttribute('aria-busy') === 'false'")
        seconds, busy = time.perf_counter() - began, work_of(process) - worked
        print(f"{name}: {seconds:.1f} s the first time, {busy:.1f} s of work of the server", flush=True)
    tell_memory("after map and near-duplicates", browser, process, profile)


ALIKE = """
const form = document.querySelector("[data-part=filters]");
form.elements.sort.value = "alike";
form.elements.sort.dispatchEvent(new Event("change", { bubbles: true }));
"""


def tell_memory(when: str, browser: Any, process: int, profile: str) -> None:
    found, (own, most), (page, _) = metrics(browser), memory_of(process), memory_of(renderer_of(profile))
    print(
        f"memory {when}: page {found['JSHeapUsedSize'] / 1e6:.0f} MB of JavaScript, {found['Nodes']:.0f} nodes, "
        f"process {page:.0f} MB; server {own:.0f} MB, at most {most:.0f} MB",
        flush=True,
    )


def await_true(browser: Any, condition: str) -> None:
    deadline = time.monotonic() + 600
    while not browser.execute_script(f"return {condition}"):
        if time.monotonic() > deadline:
            raise SystemExit(f"not within 600 seconds: {condition}")
        time.sleep(0.05)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=Path, required=True, help="a folder of images")
    parser.add_argument("--count", type=int, default=50_000)
    arguments = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(prefix="qurate-page-") as folder:
        names = link_images(arguments.images, arguments.count, Path(folder))
        ready = context.Queue()
        server = context.Process(target=serve, args=(names, Path(folder), ready), daemon=True)
        server.start()
        process, port = ready.get(timeout=600)
        features = arguments.count * WIDTH * 4 / 2**20
        print(f"{arguments.count:,} images; server {memory_of(process)[0]:.0f} MB, {features:.0f} of them embeddings")
        profile = f"{folder}/profile"
        browser = open_browser(profile)
        try:
            measure(browser, f"http://127.0.0.1:{port}/{TOKEN}/0/", process, profile)
        finally:
            browser.quit()
            server.terminate()
            server.join()


if __name__ == "__main__":
    main()
