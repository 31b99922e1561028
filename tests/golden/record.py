"""Record what qurate computes, to the last digit, or compare it with what was recorded.

`OMP_NUM_THREADS=1 python -m tests.golden.record` runs every part and compares it with `tests/golden/*.json`; exit
code 1 if anything moved. `--write` replaces the recording. Parts can be named: `... record digits cells`.

Only public names and the command line are used, so the code underneath can be rearranged. Digests and last digits hold
for one kind of processor and one release of torch, which `machine.json` names. On another machine
`tests/golden/test_golden.py` compares accuracies within a tolerance, and the names of cells exactly.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import dataclasses
import hashlib
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import tyro
from torch import Tensor

import qurate
from qurate.benchmark.grid import Grid
from qurate.benchmark.options import GridOptions
from qurate.data.suites import load_suite
from qurate.registry import TRAINED

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
NETWORK = qurate.NetworkConfig("digits", bottleneck="normalized", features=64)
STEPS, ROUNDS, ROUND_STEPS = 40, 2, 10
TIMES = ("seconds", "commit", "waited", "date", "time", "version")
"""What differs between two equal runs."""


def machine() -> dict[str, str]:
    """What last digits depend on: processors of two makers add in another order."""
    about = Path("/proc/cpuinfo")
    lines = about.read_text(encoding="utf-8").splitlines() if about.is_file() else []
    vendor = next((line.partition(":")[2].strip() for line in lines if line.startswith("vendor_id")), "unknown")
    capability = torch.backends.cpu.get_cpu_capability()
    return {"torch": torch.__version__.partition("+")[0], "cpu": capability, "vendor": vendor}


def digest(tensors: Mapping[str, Tensor]) -> str:
    """Of names and numbers."""
    total = hashlib.sha256()
    for name, values in sorted(tensors.items()):
        total.update(name.encode())
        total.update(values.detach().cpu().contiguous().numpy().tobytes())
    return total.hexdigest()[:16]


def describe(result: qurate.Adaptation, split: qurate.Split) -> dict[str, Any]:
    """A run of `qurate.fit` in a few words that change if anything does."""
    positives = result.positives
    chosen = torch.stack([positives.indices, positives.labels]) if len(positives) else torch.empty(2, 0)
    metrics = qurate.evaluate(result.method, split.target_unlabeled)
    return {
        "weights": digest(result.method.state_dict()),
        "positives": f"{len(positives)} {digest({'positives': chosen})}",
        "accuracy": metrics.accuracy,
        "stopped": result.stopped,
    }


def digits(pairs: list[tuple[str, str, str]] | None = None) -> dict[str, Any]:
    """The digits pair: all methods with all selectors, in both presets where a selector has two."""
    if pairs is None:
        pairs = [(method, selector, "qurate") for method in TRAINED for selector in qurate.SELECTORS]
        pairs += [(method, selector, "paper") for method in TRAINED for selector in ("confidence", "dqn")]
    found = {}
    split = qurate.digits_split(shots=3, seed=0, source_per_class=20)
    for method, selector, preset in pairs:
        found[f"{method} {selector} {preset}"] = describe(qurate.fit(split, small(method, selector, preset)), split)
    return found


def small(method: str, selector: str, preset: Any = "qurate", checkpoint_steps: int = 0) -> qurate.RunConfig:
    """A run of seconds on the digits pair."""
    config = qurate.make_config(
        method,
        selector,
        preset=preset,
        network=NETWORK,
        steps=STEPS,
        rounds=ROUNDS,
        round_steps=ROUND_STEPS,
        device="cpu",
    )
    return replace(config, execution=replace(config.execution, checkpoint_steps=checkpoint_steps))


class Kept:
    """A checkpoint in memory, as the tensors that a file would hold."""

    def __init__(self) -> None:
        self.kind: Any = None
        self.tensors: dict[str, Tensor] = {}

    def load(self) -> Any:
        return self.kind.of_tensors(self.tensors) if self.kind is not None else None

    def save(self, progress: Any) -> None:
        self.kind = type(progress)
        self.tensors = {name: values.clone() for name, values in progress.tensors().items()}


class StopAt(qurate.Callback):
    """Interrupts a run at its n-th training step."""

    def __init__(self, n: int) -> None:
        self.left = n

    def on_step(self, step: int, terms: dict[str, float]) -> None:
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt


def resume() -> dict[str, Any]:
    """Stopped in the middle of line 1, and in the middle of line 20 of the second round; each ends as if it had not."""
    split = qurate.digits_split(shots=3, seed=0, source_per_class=20)
    found = {}
    for method, selector, preset in (
        ("tml", "adaptive", "qurate"),
        ("tml", "dqn", "qurate"),
        ("cdan", "dqn", "paper"),
        ("mme", "random", "qurate"),
    ):
        config = small(method, selector, preset, checkpoint_steps=3)
        whole = describe(qurate.fit(split, config), split)
        found[f"{method} {selector} {preset}"] = whole
        for line, step in (("line 1", 23), ("line 20", STEPS + ROUND_STEPS + 5)):
            kept = Kept()
            with contextlib.suppress(KeyboardInterrupt):
                qurate.fit(split, config, callbacks=(StopAt(step),), checkpoint=kept)
            resumed = describe(qurate.fit(split, config, checkpoint=kept), split)
            found[f"{method} {selector} {preset}, stopped in {line}"] = resumed
    return found


def run_command(*words: str | Path, where: Path) -> str:
    """Run the program in a folder; what it prints."""
    own = {"OMP_NUM_THREADS": "1", "QURATE_CACHE": str(where / "cache"), "QURATE_ENGINE": "torch"}
    environment = {**os.environ, **own}
    command = [sys.executable, "-m", "qurate", *map(str, words)]
    done = subprocess.run(command, cwd=where, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{shlex.join(command)} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")
    return done.stdout


def table(path: Path) -> list[dict[str, str]]:
    """A CSV file without what differs between equal runs."""
    with path.open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row.get("what") not in TIMES]
    return [{name: value for name, value in row.items() if name not in TIMES} for row in rows]


def file_digest(path: Path) -> str:
    """Of the bytes of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def images() -> dict[str, Any]:
    """A run folder from image files: model, predictions, positives, metrics, the comparison and what it predicts."""
    with tempfile.TemporaryDirectory() as folder:
        where = Path(folder)
        make = [sys.executable, str(ROOT / "examples" / "digit_images.py"), str(where / "d")]
        subprocess.run(make, check=True, stdout=subprocess.DEVNULL)
        found: dict[str, Any] = {}
        for name, options in {"default": (), "agent": ("--selector", "dqn", "--no-compare")}.items():
            run_command(
                *("adapt", "--source", "d/typeset", "--labeled", "d/handwritten-labelled"),
                *("--unlabeled", "d/handwritten", "--out", name, "--seed", "0", "--device", "cpu"),
                *("--backbone", "timm/tf_efficientnet_lite0", "--weights", "offline"),
                *("--steps", "90", "--rounds", "3", *options),
                where=where,
            )
            run_command("predict", name, "d/handwritten", "--out", f"{name}.csv", where=where)
            run_command("suggest", name, "--count", "12", "--out", f"{name}-ask.csv", where=where)
            found[name] = {
                "model": file_digest(where / name / "model.safetensors"),
                "predictions": file_digest(where / name / "predictions.csv"),
                "positives": file_digest(where / name / "positives.csv"),
                "metrics": table(where / name / "metrics.csv"),
                "predicted": file_digest(where / f"{name}.csv"),
                "suggested": file_digest(where / f"{name}-ask.csv"),
                "evaluated": run_command("evaluate", name, "--labeled", "d/answers", where=where),
            }
        found["default"]["baseline"] = file_digest(where / "default" / "baseline" / "predictions.csv")
        return found


def benchmark() -> dict[str, Any]:
    """A benchmark on the digits pair, with the rows that only a benchmark has."""
    with tempfile.TemporaryDirectory() as folder:
        run_command(
            *("benchmark", "--suite", "digits", "--methods", "tml+oracle,S+T+long,tml+adaptive", "--seeds", "0"),
            *("--steps", "40", "--imbalance", "1,5", "--calibrate", "--device", "cpu", "--out", "out"),
            where=Path(folder),
        )
        asked = "--ask 20 --ask-rounds 2 --query-strategy none,random,probability,margin,clusters,density,check"
        run_command(
            *("benchmark", "--suite", "digits", "--methods", "tml+adaptive", "--seeds", "0", "--steps", "40"),
            *("--device", "cpu", "--out", "asked", *asked.split()),
            where=Path(folder),
        )
        return {name: table(Path(folder) / name / "results.csv") for name in ("out", "asked")} | {
            "rounds": table(Path(folder) / "out" / "rounds.csv")
        }


def shared_data() -> Path | None:
    """The folder that holds office31/, if it is at hand."""
    data = Path(os.environ.get("QURATE_DATA") or ROOT.parent / "shared" / "data")
    return data if (data / "office31" / "splits").is_dir() else None


def office31() -> dict[str, Any]:
    """Office-31, webcam to amazon, seed 0, at full length."""
    if (data := shared_data()) is None:
        return {}
    with tempfile.TemporaryDirectory() as folder:
        run_command(
            *("benchmark", "--suite", "office31", "--data", data / "office31", "--scenarios", "webcam:amazon"),
            *("--methods", "S+T,tml,tml+adaptive,tml+dqn", "--seeds", "0", "--device", "cpu", "--out", "out"),
            *("--backbone", "timm/tf_efficientnet_lite0", "--weights", "offline"),
            where=Path(folder),
        )
        return {name: table(Path(folder) / "out" / f"{name}.csv") for name in ("results", "rounds")}


def cells() -> dict[str, Any]:
    """Names of all cells of the grids in the Makefile."""
    found = {}
    for target in ("office31", "long_tail", "asking", "backbones"):
        made = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True, check=True)
        lines = made.stdout.replace("\\\n", " ").splitlines()
        loop = re.search(r"for name in ([^;]*);", made.stdout)
        for line in lines:
            if (start := line.find("qurate benchmark")) < 0:
                continue
            for backbone in loop[1].split() if loop else ["$name"]:
                words = shlex.split(line[start:].partition("||")[0].replace("$name", backbone))
                grid = to_grid(words[2:])
                names = [cell.name for cell in grid.cells()]
                key = target if not loop else f"{target} {backbone}"
                found[key] = {
                    "cells": len(names),
                    "first": names[:3],
                    "all": hashlib.sha256(" ".join(names).encode()).hexdigest()[:16],
                }
    return found


def to_grid(words: list[str]) -> Grid:
    """The grid of a command line of the Makefile, with weights that need no files."""
    options = tyro.cli(GridOptions, args=words, return_unknown_args=True)[0]
    weights = "+".join(["offline"] * len((options.backbone or "").split("+")))
    return Grid(load_suite(options.suite), dataclasses.replace(options, data=Path(), weights=weights))


PARTS: dict[str, Callable[[], dict[str, Any]]] = {
    "digits": digits,
    "resume": resume,
    "images": images,
    "benchmark": benchmark,
    "office31": office31,
    "cells": cells,
}


def differences(before: Any, now: Any, where: str = "") -> list[str]:
    """Where two recordings differ."""
    if isinstance(before, dict) and isinstance(now, dict):
        names = [*before, *(name for name in now if name not in before)]
        return [line for name in names for line in differences(before.get(name), now.get(name), f"{where} / {name}")]
    if isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        pairs = zip(before, now, strict=True)
        return [line for i, (a, b) in enumerate(pairs) for line in differences(a, b, f"{where} / {i}")]
    return [] if before == now else [f"{where}: was {before!r}, is {now!r}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("parts", nargs="*", help=f"any of {', '.join(PARTS)}; all unless named")
    parser.add_argument("--write", action="store_true", help="replace the recording")
    options = parser.parse_args()
    torch.set_num_threads(1)
    moved = 0
    for name in options.parts or PARTS:
        path = HERE / f"{name}.json"
        now = json.loads(json.dumps(PARTS[name]()))
        if options.write:
            if now:
                path.write_text(json.dumps(now, indent=1) + "\n", encoding="utf-8")
            print(f"{name}: recorded", flush=True)
            continue
        if not now:
            print(f"{name}: left out, for its data are not at hand", flush=True)
            continue
        lines = differences(json.loads(path.read_text(encoding="utf-8")), now)
        print(f"{name}: {'equal' if not lines else f'{len(lines)} differences'}", *lines[:40], sep="\n  ", flush=True)
        moved += len(lines)
    if options.write:
        (HERE / "machine.json").write_text(json.dumps(machine()) + "\n", encoding="utf-8")
    sys.exit(1 if moved else 0)


if __name__ == "__main__":
    main()
