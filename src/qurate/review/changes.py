"""Two runs side by side: what a run that learned from answers names otherwise than the run before it."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from qurate.config import read_settings
from qurate.errors import ConfigError
from qurate.report.run_text import improvement_in_words
from qurate.run_results import Improvement
from qurate.runs.files import CONFIG_FILE, METRICS_FILE, PREDICTIONS_FILE
from qurate.runs.image_sources import start_folder_of
from qurate.runs.model_json import file_of
from qurate.runs.result_tables import read_run_table

MOST_MOVES = 12
"""Changes from one class to another that are listed."""
_NUMBERS = ("images", "before", "now", "low", "high")


def run_before(run: Path) -> Path | None:
    """The run whose answers a run learned from, as its config.json says; None where there is none."""
    try:
        path = read_settings(file_of(run, CONFIG_FILE)).get("continued_from")
    except ConfigError:  # missing or damaged
        return None
    return Path(path) if isinstance(path, str) and path else None


def runs_after(run: Path) -> list[Path]:
    """Runs beside a run that learned from answers about it, the newest last."""
    wanted = run.resolve()
    found = []
    for settings in run.absolute().parent.glob(f"*/{CONFIG_FILE}"):
        before = run_before(settings.parent)
        if before is not None and before.resolve() == wanted:
            found.append(settings.parent)
    return sorted(found, key=lambda folder: (folder / CONFIG_FILE).stat().st_mtime)


def describe_changes(before: Path, now: Path) -> dict[str, Any]:
    """What changed from one run to the next: classes, images, and whether it is better on the random part.

    Images with an answer in one of the runs, or with a problem such as that they fit no class, are no changes of the
    model. They are left out, and counted.

    Raises:
        RunError: If a table of theirs is missing or damaged.
    """
    first, second = _predictions(before), _predictions(now)
    shared = [(first[file], second[file]) for file in first if file in second]
    answered = sum(bool(a.answer or b.answer) for a, b in shared)
    both = [(a.label, b.label) for a, b in shared if not any((*a[1:], *b[1:]))]
    changed = [(a, b) for a, b in both if a != b]
    was, gone, come = Counter(a for a, _ in both), Counter(a for a, _ in changed), Counter(b for _, b in changed)
    names = sorted({*was, *come}, key=lambda name: (-gone[name] - come[name], name))
    better = _improvement(now)
    return {
        "before": before.absolute().name,
        "now": now.absolute().name,
        "improvement": None if better is None else asdict(better),
        "words": improvement_in_words(better, "The report of the new run says why."),
        "images": len(both),
        "changed": len(changed),
        "left_out": {"answered": answered, "problem": len(shared) - len(both) - answered},
        "classes": [
            {"name": k, "before": was[k], "gone": gone[k], "come": come[k], "now": was[k] - gone[k] + come[k]}
            for k in names
        ],
        "moves": [{"from": a, "to": b, "images": n} for (a, b), n in Counter(changed).most_common(MOST_MOVES)],
    }


class _Predicted(NamedTuple):
    """A row of predictions.csv."""

    label: str
    problem: str
    answer: str


def _predictions(run: Path) -> dict[Path, _Predicted]:
    """What a run says of each image, by its path."""
    table, base = read_run_table(run, PREDICTIONS_FILE, "file", "label", "problem"), start_folder_of(run)
    if "answer" not in table:
        table = table.assign(answer="")
    rows = table[["file", *_Predicted._fields]].itertuples(index=False)
    return {(base / file).absolute(): _Predicted(*values) for file, *values in rows}


def _improvement(run: Path) -> Improvement | None:
    table = read_run_table(run, METRICS_FILE, "what", "value")
    values = dict(zip(table["what"], table["value"], strict=True))
    try:
        images, *shares = (float(values[f"improvement_{name}"]) for name in _NUMBERS)
    except (KeyError, ValueError):
        return None
    return Improvement(int(images), *shares)
