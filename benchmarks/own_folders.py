"""The whole job on real images: folders of Office-31, `qurate adapt`, and the hidden labels afterwards.

Webcam is the source; three labels per class of Amazon are given by the public list, the rest of Amazon is unlabelled in
one flat folder. Folders are links, so no image is copied. The same command is run for S+T; both models are measured
with `AdaptedModel.evaluate` on the images whose labels were hidden. It is the check that the command for own folders
reaches on real images what the benchmark measures on embeddings, and how long it takes from the first image on.

    python benchmarks/own_folders.py --out /tmp/own
    git worktree add ../before 329b735
    python benchmarks/own_folders.py --out /tmp/own --before ../before/src --rounds 2

    python benchmarks/own_folders.py --out /tmp/own --unlabeled 50000

With --unlabeled there are so many unlabelled files: copies of those images, each with bytes of its own behind the
picture, so that every one is decoded and embedded. The hidden labels are those of the images themselves.

With --before the sources of another checkout run the same command in turns with these, forwards and backwards, each
from an empty cache, or with --cached from one that it has filled before; the ratio is the median over the rounds.
"""

from __future__ import annotations

import argparse
import itertools
import os
import resource
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

import qurate

BACKBONE = "timm/tf_efficientnet_lite0"
SHARED = Path(__file__).resolve().parents[2] / "shared"
DATA = Path(os.environ.get("QURATE_DATA") or SHARED / "data")
WEIGHTS = DATA.parent / "weights" / "tf_efficientnet_lite0.safetensors"
LISTS = {
    "source": "labeled_source_images_webcam.txt",
    "labeled": "labeled_target_images_amazon_3.txt",
    "unlabeled": "unlabeled_target_images_amazon_3.txt",
}
MARK = ".qurate-benchmark"
"""A file in a folder that a benchmark made: only such a folder is emptied."""


def empty_folder(root: Path) -> None:
    """Make the folder, or empty one that a benchmark made before; any other that has something in it is refused."""
    if root.is_symlink() or (root.exists() and not root.is_dir()):
        sys.exit(f"{root} is no folder. Choose another --out.")
    if root.exists() and any(root.iterdir()):
        if not (root / MARK).is_file():
            sys.exit(f"{root} is not empty, and no folder of this benchmark. Choose another --out.")
        shutil.rmtree(root)
    root.mkdir(parents=True, exist_ok=True)
    (root / MARK).touch()


def make_folders(root: Path) -> None:
    """Links to the images, by class or flat, and the hidden labels in class folders of their own."""
    for part, name in LISTS.items():
        for line in (DATA / "office31" / "splits" / name).read_text().splitlines():
            image = DATA / "office31" / line.rsplit(maxsplit=1)[0]
            label = image.parent.name
            places = [root / part / label / image.name]
            if part == "unlabeled":
                places = [root / part / f"{label}-{image.name}", root / "hidden" / label / image.name]
            for place in places:
                place.parent.mkdir(parents=True, exist_ok=True)
                place.symlink_to(image)


def make_copies(folder: Path, count: int) -> None:
    """So many files in place of the links in a folder, no two with the same content."""
    images = sorted(folder.iterdir())
    content = {image: image.read_bytes() for image in images}
    for number, image in enumerate(itertools.islice(itertools.cycle(images), count)):
        copy = folder / f"{number // 1000:03}" / f"{number:06}-{image.name}"
        copy.parent.mkdir(exist_ok=True)
        copy.write_bytes(content[image] + number.to_bytes(8, "big"))
    for image in images:
        image.unlink()


def adapt(root: Path, run: Path, cache: Path, *arguments: str, sources: Path | None = None) -> tuple[float, float]:
    """Run the command, of other sources if given, and return its seconds: by the clock, and of processor time."""
    command = [sys.executable, "-m", "qurate", "adapt", "--out", str(run), "--force"]
    for part in LISTS:
        command += [f"--{part}", str(root / part)]
    command += ["--backbone", BACKBONE, "--weights", str(WEIGHTS), *arguments]
    began, used = time.perf_counter(), os.times()
    environment = {**os.environ, "QURATE_CACHE": str(cache)}
    if sources is not None:
        environment["PYTHONPATH"] = str(sources.resolve())
    subprocess.run(command, check=True, env=environment)
    now = os.times()
    busy = now.children_user + now.children_system - used.children_user - used.children_system
    return time.perf_counter() - began, busy


def compare_sources(root: Path, before: Path, rounds: int, *arguments: str, cached: bool) -> None:
    """Time the command by two checkouts in turns, and print how many times as fast this one is."""
    sides = {"before": before, "now": Path(qurate.__file__).parents[1]}
    measured: dict[str, list[tuple[float, float]]] = {side: [] for side in sides}
    for number in range(-cached, rounds):
        for side in sides if number % 2 == 0 else tuple(sides)[::-1]:
            cache = root / (f"cache-{side}" if cached else f"cache-{side}-{number}")
            found = adapt(root, root / side, cache, *arguments, sources=sides[side])
            if number >= 0:  # else it was for the cache
                measured[side].append(found)
                load = os.getloadavg()[0]
                print(f"round {number + 1} {side}: {found[0]:.0f} s, {found[1]:.0f} s busy (load average {load:.1f})")
    pairs = list(zip(measured["before"], measured["now"], strict=True))
    wall, busy = (statistics.median(old[at] / new[at] for old, new in pairs) for at in (0, 1))
    print(f"{wall:.2f} times as fast as before, {busy:.2f} by processor time")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--out", type=Path, required=True, help="folder for links, cache and runs; one of an earlier run is emptied"
    )
    parser.add_argument("--seed", default="0")
    parser.add_argument("--before", type=Path, help="the folder src of another checkout, to run in turns with this one")
    parser.add_argument("--rounds", type=int, default=2, help="of both checkouts")
    parser.add_argument("--cached", action="store_true", help="with embeddings at hand")
    parser.add_argument("--unlabeled", type=int, default=0, help="unlabelled files, in place of the 2,724 images")
    arguments = parser.parse_args()
    if not (DATA / "office31").is_dir() or not WEIGHTS.is_file():
        sys.exit(f"This benchmark needs {DATA / 'office31'} (or QURATE_DATA) and {WEIGHTS}.")
    root: Path = arguments.out
    empty_folder(root)
    make_folders(root)
    if arguments.unlabeled:
        make_copies(root / "unlabeled", arguments.unlabeled)
    seed = ("--seed", arguments.seed)
    if arguments.before is not None:
        compare_sources(root, arguments.before, arguments.rounds, *seed, cached=arguments.cached)
        return
    seconds, busy = adapt(root, root / "run", root / "cache", *seed)
    memory = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20
    plain = ("--method", "source_target", "--selector", "none", "--no-compare")
    adapt(root, root / "plain", root / "cache", *plain, *seed)
    print(f"adapt, embedding and comparison included: {seconds:.0f} s on {os.cpu_count()} cores, {busy:.0f} s busy")
    print(f"its largest process took {memory:.1f} GB at most (load average {os.getloadavg()[0]:.1f})")
    for name in ("run", "plain"):
        found = qurate.load(root / name).evaluate(root / "hidden")
        print(f"{name}: accuracy on hidden labels {found.accuracy:.2%}, balanced {found.balanced_accuracy:.2%}")


if __name__ == "__main__":
    main()
