"""Seconds from the start of each command to its first line and to its end, on a small run that is made first.

    python benchmarks/startup.py --weights tf_efficientnet_lite0.safetensors
    python benchmarks/startup.py --other ../before/src --rounds 5

The first line is what a person sees first, on either output. Every command runs in a process of its own; a command of
this checkout and the same of the other one take turns, and the table has the median over the rounds. The first round
only fills the caches of the system and is not counted. Commands that the other checkout lacks are left out there.
Measure on an idle machine.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

REPOSITORY = Path(__file__).resolve().parents[1]
PARTS = (
    "--source digits/typeset --labeled digits/handwritten-labelled --unlabeled digits/handwritten --steps 8 --rounds 1"
)
IMAGES = PARTS.partition(" --steps")[0]
COMMANDS = {
    "help": "--help",
    "check": f"check {IMAGES}",
    "adapt": f"adapt {PARTS} --out new {{network}}",
    "predict": "predict run digits/handwritten --out new",
    "evaluate": "evaluate run --labeled digits/handwritten-labelled",
    "suggest": "suggest run --count 10 --out new",
    "suggest by the model": "suggest run --count 10 --query-strategy margin --out new",
    "export of labels": "export run --format folders --out new",
    "export as ONNX": "export run --out new",
    "embed": "embed digits/handwritten {network}",
    "backbones": "backbones",
    "report": "report grid --out new",
}
"""`open` and `demo` are left out: the one runs until it is stopped, the other is a benchmark."""


class Seconds(NamedTuple):
    """Of one process: to its first line and to its end."""

    first: float
    end: float


def measure(words: Sequence[str], source: Path, place: Path) -> Seconds | None:
    """Run a command of a checkout; None where it fails."""
    new = place / "new"
    shutil.rmtree(new, ignore_errors=True)
    new.unlink(missing_ok=True)
    begin = time.perf_counter()
    with subprocess.Popen(
        [sys.executable, "-m", "qurate", *words],
        cwd=place,
        env=_environment(source, place),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        first = time.perf_counter() - begin
        rest = process.stdout.read()
    if process.returncode != 0:
        print((line + rest).decode(errors="replace").strip().splitlines()[-1], file=sys.stderr)
        return None
    return Seconds(first, time.perf_counter() - begin)


def _environment(source: Path, place: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(source), "QURATE_CACHE": str(place / "cache"), "PYTHONUNBUFFERED": "1"}


def prepare(place: Path, network: str) -> None:
    """Example images, a run and a benchmark of seconds."""
    script = [sys.executable, str(REPOSITORY / "examples" / "digit_images.py"), "digits", "--unlabeled", "10"]
    grid = "benchmark --suite digits --methods tml --selectors none,random --steps 8 --processes 1 --seeds 0 --shots 3"
    lines = [f"adapt {PARTS} --out run {network}", f"{grid} --out grid"]
    for command in (script, *([sys.executable, "-m", "qurate", *line.split()] for line in lines)):
        subprocess.run(command, cwd=place, env=_environment(REPOSITORY / "src", place), check=True, capture_output=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Seconds to the first line and to the end of each command.")
    parser.add_argument("--other", type=Path, help="folder `src` of another checkout")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--weights", default="auto", help="weights of the default backbone, or 'offline'")
    parser.add_argument("--commands", default=",".join(COMMANDS), help="some of them, with commas")
    arguments = parser.parse_args()
    sides = {"this": REPOSITORY / "src"} | ({"other": arguments.other.resolve()} if arguments.other else {})
    weights = Path(arguments.weights)
    network = f"--weights {weights.resolve() if weights.is_file() else arguments.weights}"
    with tempfile.TemporaryDirectory(prefix="qurate-startup-") as folder:
        prepare(Path(folder), network)
        print(f"{'seconds':22}" + "".join(f"{f'{side}: first':>14}{'end':>8}" for side in sides))
        for name in arguments.commands.split(","):
            words = COMMANDS[name].format(network=network).split()
            found: dict[str, list[Seconds]] = {side: [] for side in sides}
            for turn in range(arguments.rounds + 1):
                for side, source in sides.items():
                    seconds = measure(words, source, Path(folder)) if turn == 0 or found[side] else None
                    found[side] += [seconds] if seconds is not None else []
            cells = ""
            for times in found.values():
                counted = times[1:]
                first, end = (
                    (f"{statistics.median(column):.2f}" for column in zip(*counted, strict=True)) if counted else "--"
                )
                cells += f"{first:>14}{end:>8}"
            print(f"{name:22}{cells}", flush=True)


if __name__ == "__main__":
    main()
