"""What a time limit buys: `qurate adapt --minutes` on Office-31 webcam to amazon, each run from an empty cache.

Folders are those of `own_folders.py`. For each limit the command is run as a person would run it; then its model is
measured on the images whose labels were hidden. Printed is what the run chose, how long it took, and its accuracy.

    python benchmarks/budget.py --out /tmp/budget --minutes 3 8 30

The machine should be idle: a run that shares it chooses less.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

from own_folders import DATA, LISTS, empty_folder, make_folders

import qurate


def adapt(root: Path, run: Path, minutes: str) -> float | None:
    """Run the command with an empty cache of its own and return its seconds; nothing if it was refused."""
    command = [sys.executable, "-m", "qurate", "adapt", "--out", str(run), "--minutes", minutes]
    for part in LISTS:
        command += [f"--{part}", str(root / part)]
    began = time.perf_counter()
    done = subprocess.run(command, env={**os.environ, "QURATE_CACHE": str(root / f"cache-{minutes}")}, check=False)
    return time.perf_counter() - began if done.returncode == 0 else None


def describe(run: Path) -> str:
    """What was chosen, by config.json and by what the run left."""
    kept = json.loads((run / "config.json").read_text())
    steps, rounds = kept["run"]["training"]["steps"], kept["run"]["selection"]["rounds"]
    compared = "compared" if (run / "baseline" / "model.json").is_file() else "not compared"
    return f"{kept['backbone'].replace('timm/tf_efficientnet_', '')}, {steps} steps, {rounds} rounds, {compared}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--out", type=Path, required=True, help="folder for links, caches and runs; one of an earlier run is emptied"
    )
    parser.add_argument("--minutes", nargs="+", default=["3", "8", "30"])
    arguments = parser.parse_args()
    if not (DATA / "office31").is_dir():
        sys.exit(f"This benchmark needs {DATA / 'office31'} (or QURATE_DATA).")
    root: Path = arguments.out
    empty_folder(root)
    make_folders(root)
    rows = []
    for minutes in arguments.minutes:
        run = root / f"run-{minutes}"
        seconds = adapt(root, run, minutes)
        if seconds is None:
            rows.append(f"| {minutes} | refused: see above | | |")
            continue
        found = qurate.load(run).evaluate(root / "hidden")
        rows.append(f"| {minutes} | {describe(run)} | {seconds / 60:.1f} | {100 * found.accuracy:.1f} |")
    print("\n| `--minutes` | chosen | minutes taken | accuracy on the unlabelled |\n|---|---|---|---|")
    print("\n".join(rows))


if __name__ == "__main__":
    main()
