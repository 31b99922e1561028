"""What a finished or half-finished benchmark left in its folder."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from pathlib import Path

import pandas as pd

from qurate.benchmark.folder import CELLS, CONFIG, ERROR, FACTS, RESULTS, ROUNDS
from qurate.benchmark.results import read_results
from qurate.errors import QurateError
from qurate.registry import row_rank, row_title

CELL = ["scenario", "method", "selector", "shots", "seed"]
"""What names one run of the grid."""
KEY = [*CELL, "model_selection"]
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
    """

    results: pd.DataFrame
    rounds: pd.DataFrame
    facts: Facts


def read_outcome(folder: Path) -> Outcome:
    """Read results.csv, rounds.csv, benchmark.json and the errors of failed cells.

    Raises:
        ReportError: If there is nothing to report on, or a cell is there twice.
    """
    for name in (RESULTS, FACTS):
        if not (folder / name).is_file():
            raise ReportError(
                f"{folder / name}: there is no such file. `qurate report` needs the --out folder of `qurate benchmark`."
            )
    try:
        results = read_results(folder / RESULTS)
        rounds = pd.read_csv(folder / ROUNDS) if (folder / ROUNDS).is_file() else pd.DataFrame(columns=CELL)
        stored = json.loads((folder / FACTS).read_text(encoding="utf-8"))
        facts = _facts(stored)
        results = _with_failed(results, folder, set(stored.get("cells", ())))
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise ReportError(f"{folder}: cannot be read ({error}). Was it written by `qurate benchmark`?") from error
    if results.empty:
        raise ReportError(f"{folder / RESULTS}: no results yet. Let `qurate benchmark` finish a cell first.")
    twice = results[results.duplicated(KEY)]
    if len(twice):
        cell = ", ".join(f"{name} {twice.iloc[0][name]}" for name in KEY)
        raise ReportError(f"{folder / RESULTS}: two results for {cell}. Remove the one that is out of date.")
    return Outcome(_titled(results), _titled(rounds), facts)


def _with_failed(results: pd.DataFrame, folder: Path, names: set[str]) -> pd.DataFrame:
    """The results and, with accuracy NaN, the cells of the last command that ended with an error and have none."""
    failed = []
    for path in sorted(folder.glob(f"{CELLS}/*/{ERROR}")):
        if path.parent.name not in names:  # of an earlier command
            continue
        cell = json.loads((path.parent / CONFIG).read_text(encoding="utf-8"))
        found = {"method": cell["config"]["method"]["name"], "seed": cell["config"]["seed"]}
        found.update({name: cell[name] for name in CELL if name not in found})
        failed += [{**found, "model_selection": rule} for rule in cell["rules"]]
    known = set(results[KEY].itertuples(index=False, name=None))
    missing = [found for found in failed if tuple(found[name] for name in KEY) not in known]
    if not missing:
        return results
    table = pd.DataFrame(missing)
    return table.reindex(columns=results.columns) if results.empty else pd.concat([results, table], ignore_index=True)


def _titled(table: pd.DataFrame) -> pd.DataFrame:
    """With the column `title`, rows in the order of the tables."""
    pairs = list(zip(table["method"].astype(str), table["selector"].astype(str), strict=True))
    order = sorted(range(len(pairs)), key=lambda i: row_rank(*pairs[i]))
    return table.assign(title=[row_title(*pair) for pair in pairs]).iloc[order].reset_index(drop=True)


def _facts(stored: object) -> Facts:
    known = stored if isinstance(stored, dict) else {}
    texts = {field.name: str(known.get(field.name) or "") for field in fields(Facts)}
    texts["weights"] = Path(texts["weights"]).name  # a path would tell about the machine, not about the comparison
    return Facts(**texts)
