"""What a finished or half-finished benchmark left in its folder."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pandas as pd

from qurate.benchmark.folder import (
    ASKED,
    ASKED_AT,
    CELLS,
    CONFIG,
    ERROR,
    FACTS,
    RESULTS,
    ROUNDS,
    read_queries,
    right_at,
)
from qurate.benchmark.results import ROUND_COLUMNS, BenchmarkError, label_counts, read_results
from qurate.errors import QurateError
from qurate.registry import LONG, SLA, row_rank, row_title
from qurate.runtime.paths import is_file

UNASKED = "unasked"
"""The column of the accuracy on images that nobody asked about."""
NATURAL = {"imbalance": 1, "unknown": 0, "missing_classes": 0}
"""What a benchmark changes about a target, each with the value that changes nothing."""
DATA = ["scenario", *NATURAL]
"""What a column of a table stands for."""
CELL = [*DATA, "method", "selector", "shots", "seed"]
"""What names one run of the grid, where nobody is asked, and what compared query strategies have in common."""
KEY = [*CELL, "query_strategy", "asked", "model_selection"]
"""What names one result."""


class ReportError(QurateError, ValueError):
    """A folder that cannot be reported on; the message says what to do."""


@dataclass(frozen=True)
class Facts:
    """What was compared, for the words under every table; empty where it is not known."""

    suite: str = ""
    suite_title: str = ""
    backbone: str = ""
    weights: str = ""
    train: str = ""
    protocol: str = ""
    commit: str = ""
    steps: str = ""


@dataclass(frozen=True, eq=False)
class Outcome:
    """The results of a benchmark.

    Args:
        results: A row for each cell and model-selection rule, with its `title`; accuracy is NaN where the run failed.
        rounds: A row for each round of the cells that have a selector, with its `title`; may be empty.
        facts: What was compared.
        asked: A row for each cell that asks people and number of labels, with its `title` and the accuracy on images
            that nobody asked about (`UNASKED`); they are not among the results.
    """

    results: pd.DataFrame
    rounds: pd.DataFrame
    facts: Facts
    asked: pd.DataFrame


def read_outcome(folder: Path) -> Outcome:
    """Read results.csv, rounds.csv, benchmark.json and the errors of failed cells.

    Raises:
        ReportError: If there is nothing to report on, a file is damaged, or a result is there twice.
    """
    for name in (RESULTS, FACTS):
        if not is_file(folder / name):
            raise ReportError(
                f"{folder / name}: there is no such file. `qurate report` needs the --out folder of `qurate benchmark`."
            )
    try:
        results = read_results(folder / RESULTS)
        rounds = pd.DataFrame(columns=ROUND_COLUMNS)
        if (folder / ROUNDS).exists():
            rounds = read_results(folder / ROUNDS, ROUND_COLUMNS)
    except BenchmarkError as error:
        raise ReportError(f"{error} Re-run `qurate benchmark` with this --out: it writes the tables again.") from error
    facts, cells = _read_facts(folder / FACTS)
    results = _with_failed(results, folder, cells)
    if results.empty:
        raise ReportError(f"{folder / RESULTS}: no results yet. Let `qurate benchmark` finish a cell first.")
    _check_once(results, KEY, folder / RESULTS)
    _check_once(rounds, [*CELL, "round"], folder / ROUNDS)
    alone = results["query_strategy"] == ""
    try:
        asked = _with_unasked(results[~alone], folder)
    except BenchmarkError as error:
        raise ReportError(f"{error} Re-run `qurate benchmark` with this --out: it runs the cell again.") from error
    return Outcome(_titled(results[alone]), _titled(rounds), facts, _titled(asked))


def _check_once(table: pd.DataFrame, key: list[str], path: Path) -> None:
    twice = table[table.duplicated(key)]
    if len(twice):
        cell = ", ".join(f"{name} {twice.iloc[0][name]}" for name in key)
        raise ReportError(f"{path}: two results for {cell}. Remove the one that is out of date.")


def _with_failed(results: pd.DataFrame, folder: Path, names: set[str]) -> pd.DataFrame:
    """The results and, with accuracy NaN, the cells of the last command that ended with an error and have none."""
    failed = []
    for path in sorted(folder.glob(f"{CELLS}/*/{ERROR}")):
        if path.parent.name in names:  # else of an earlier command
            failed += _failed_rows(path.parent / CONFIG)
    known = set(results[KEY].itertuples(index=False, name=None))
    missing = [found for found in failed if tuple(found[name] for name in KEY) not in known]
    if not missing:
        return results
    table = pd.DataFrame(missing)
    return table.reindex(columns=results.columns) if results.empty else pd.concat([results, table], ignore_index=True)


def _failed_rows(path: Path) -> list[dict[str, Any]]:
    """What names the results that a failed cell should have had."""
    cell = _read_json(path)
    try:
        method = cell["config"]["method"]
        name = method["name"] + (f"+{SLA}" if method.get("source_labels") else "")
        found = {"method": name, "seed": cell["config"]["seed"]}
        found.update({name: cell[name] for name in CELL if name not in found})
        rules, strategy = cell["rules"], str(cell["query_strategy"])
        numbers = label_counts(int(cell["ask"]), int(cell["ask_rounds"])) if strategy else (0,)
        steps = cell["config"]["training"]["steps"] if found["selector"] == LONG else None  # which name the row
    except (KeyError, TypeError, ValueError) as error:
        raise _damaged(path, f"lacks {error}") from error
    kinds = dict.fromkeys(("shots", "seed", *NATURAL), int)
    if not isinstance(rules, list) or not all(isinstance(found[name], kinds.get(name, str)) for name in CELL):
        raise _damaged(path, f"has a value of the wrong kind among {', '.join([*CELL, 'rules'])}")
    return [
        {**found, "model_selection": str(rule), "steps": steps, "query_strategy": strategy, "asked": number}
        for rule in rules
        for number in numbers
    ]


def _read_json(path: Path) -> dict[str, Any]:
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        json.dumps(stored, ensure_ascii=False).encode()  # half of a character can be read, but not be written
    except (OSError, ValueError, RecursionError) as error:
        raise _damaged(path, f"cannot be read as JSON ({error})") from error
    if not isinstance(stored, dict):
        raise _damaged(path, f"must hold a table, got {type(stored).__name__}")
    return stored


def _read_facts(path: Path) -> tuple[Facts, set[str]]:
    """What was compared, and the names of the cells of the last command."""
    stored = _read_json(path)
    cells = stored.get("cells", [])
    if not isinstance(cells, list) or not all(isinstance(name, str) for name in cells):
        raise _damaged(path, "must have a list of names under 'cells'")
    texts = {}
    for field in fields(Facts):
        value = stored.get(field.name, "")
        if not isinstance(value, str | int):
            raise _damaged(path, f"must have text under '{field.name}'")
        texts[field.name] = str(value or "")
    texts["weights"] = Path(texts["weights"]).name  # a path would tell about the machine, not about the comparison
    return Facts(**texts), set(cells)


def _damaged(path: Path, what: str) -> ReportError:
    return ReportError(f"{path}: {what}. Re-run `qurate benchmark` with this --out: it writes the file again.")


def _with_unasked(results: pd.DataFrame, folder: Path) -> pd.DataFrame:
    """The rows with `UNASKED`; NaN where a cell of the comparison left no table of its samples, as in a published copy.

    That is the accuracy of a cell, after so many labels, on the samples that no cell of the comparison had asked about.
    """
    found = results.assign(**{UNASKED: float("nan")})
    for _, rows in results[results["accuracy"].notna()].groupby(CELL):
        counts = {str(name): sorted(map(int, of_cell["asked"])) for name, of_cell in rows.groupby("config")}
        paths = {name: folder / CELLS / name / ASKED for name in counts}
        if not all(path.is_file() for path in paths.values()):
            continue
        tables = {name: read_queries(path, counts[name]) for name, path in paths.items()}
        for place, row in rows.iterrows():
            number = int(row["asked"])
            asked = pd.concat([table[ASKED_AT].between(1, number) for table in tables.values()], axis=1).any(axis=1)
            found.loc[place, UNASKED] = tables[str(row["config"])].loc[~asked, right_at(number)].mean()
    return found


def _titled(table: pd.DataFrame) -> pd.DataFrame:
    """With the column `title`, rows in the order of the tables."""
    pairs = list(zip(table["method"].astype(str), table["selector"].astype(str), strict=True))
    steps = table["steps"] if "steps" in table else [None] * len(table)
    titles = [row_title(*pair, None if pd.isna(n) else int(n)) for pair, n in zip(pairs, steps, strict=True)]
    order = sorted(range(len(pairs)), key=lambda i: row_rank(*pairs[i]))
    return table.assign(title=titles).iloc[order].reset_index(drop=True)
