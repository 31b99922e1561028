"""Results of cells that asked: how good each is on the images that no asker of the comparison asked about."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from qurate.benchmark.asked_samples import ASKED_AT, read_asked, right_at
from qurate.benchmark.folder import ASKED, CELLS

UNASKED = "unasked"
"""The column of that accuracy."""
COMPARED = ["scenario", "method", "selector", "shots", "seed", "imbalance"]
"""What askers have in common that are compared."""


def with_unasked(results: pd.DataFrame, folder: Path) -> pd.DataFrame:
    """The rows with `UNASKED`; NaN where a cell of the comparison left no table of its samples, as in a published copy.

    Args:
        results: Rows with an asker.
        folder: Of the benchmark.

    Raises:
        BenchmarkError: If a table is damaged.
    """
    found = results.assign(**{UNASKED: float("nan")})
    for _, rows in results[results["accuracy"].notna()].groupby(COMPARED):
        cells = {
            str(name): (folder / CELLS / str(name) / ASKED, sorted(int(n) for n in of_cell["asked"]))
            for name, of_cell in rows.groupby("config")
        }
        if not all(path.is_file() for path, _ in cells.values()):
            continue
        tables = {name: read_asked(path, numbers) for name, (path, numbers) in cells.items()}
        for place, row in rows.iterrows():
            found.loc[place, UNASKED] = _accuracy(tables, str(row["config"]), int(row["asked"]))
    return found


def _accuracy(tables: dict[str, pd.DataFrame], name: str, number: int) -> float:
    """Of one cell, after so many labels, on the samples that nobody had asked about by then."""
    asked = pd.concat([table[ASKED_AT].between(1, number) for table in tables.values()], axis=1).any(axis=1)
    return float(tables[name].loc[~asked, right_at(number)].mean())
