"""All methods in one table: what `make methods` measured, with paired tests.

    python benchmarks/methods.py methods/office31 methods/office_home --csv docs/methods/results.csv

or, from the cells in the docs:

    python benchmarks/methods.py docs/methods/results.csv

Each argument is a folder of `qurate benchmark` or a table that --csv wrote. A row for each method and selector, a
column for each scenario and number of labels: the mean accuracy over the seeds. Methods that are fitted do not depend
on the seed: one result stands for all. The default is compared with each row over all columns and seeds that have
both, by the paired sign-flip test, whose interval excludes zero where p <= 0.05; it is not corrected for the many
rows. `benchmarks/head_rate.py --methods ...` measures how long a step of each method takes.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import pandas as pd

from qurate.registry import FITTED, row_rank, row_title
from qurate.report.published import scenario_titles
from qurate.report.statistics import sign_flip_interval

DEFAULT = ("tml", "adaptive")
COLUMN = ["scenario", "shots"]
KEPT = [*COLUMN, "method", "selector", "seed", "accuracy", "balanced_accuracy", "config", "commit"]


def read(paths: list[Path]) -> pd.DataFrame:
    """One result a row, fitted methods repeated for every seed that others have."""
    tables = [pd.read_csv(path / "results.csv" if path.is_dir() else path)[KEPT] for path in paths]
    return pd.concat(tables, ignore_index=True).sort_values(KEPT[:5], kind="stable", ignore_index=True)


def repeat_fitted(cells: pd.DataFrame) -> pd.DataFrame:
    """The first result of each fitted method for all seeds."""
    fitted = cells["method"].isin(FITTED)
    first = cells[fitted].drop_duplicates([*COLUMN, "method", "selector"]).drop(columns="seed")
    seeds = cells.loc[~fitted, [*COLUMN, "seed"]].drop_duplicates()
    return pd.concat([cells[~fitted], first.merge(seeds, on=COLUMN)], ignore_index=True)


def compare(by_pair: pd.DataFrame, row: tuple[str, str]) -> list[float]:
    """The default minus a row, in points, for each column and seed that has both."""
    both = by_pair[[DEFAULT, row]].dropna()
    return (100 * (both[DEFAULT] - both[row])).tolist()


def table(cells: pd.DataFrame) -> str:
    """The table, in Markdown."""
    repeated = repeat_fitted(cells)
    rows = {(str(method), str(selector)) for method, selector in cells[["method", "selector"]].itertuples(index=False)}
    keys = sorted(rows, key=lambda row: row_rank(*row))
    means = repeated.pivot_table(index=["method", "selector"], columns=COLUMN, values="accuracy")
    by_pair = repeated.pivot_table(index=[*COLUMN, "seed"], columns=["method", "selector"], values="accuracy")
    scenarios, shots = (means.columns.get_level_values(level) for level in COLUMN)
    titles = scenario_titles(map(str, scenarios))
    names = [f"{titles[str(scenario)]}, {count}" for scenario, count in zip(scenarios, shots, strict=True)]
    head = [*names, "default minus row (95 %)", "pairs"]
    lines = ["| | " + " | ".join(head) + " |", "|---|" + "---:|" * len(head)]
    for key in keys:
        values = compare(by_pair, key) if key != DEFAULT and DEFAULT in by_pair else []
        interval = sign_flip_interval(values) if values else None
        gain = f"{sum(values) / len(values):+.1f}" if values else ""
        gain += "" if interval is None else f" ({interval[0]:+.1f} to {interval[1]:+.1f})"
        accuracies: list[float] = means.loc[[key]].to_numpy()[0].tolist()
        shown = ["" if math.isnan(value) else f"{100 * value:.1f}" for value in accuracies]
        title = f"**{row_title(*key)}**" if key == DEFAULT else row_title(*key)
        lines.append("| " + " | ".join([title, *shown, gain, str(len(values) or "")]) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, nargs="+", help="folders of qurate benchmark, or tables of --csv")
    parser.add_argument("--csv", type=Path, help="where the cells go")
    options = parser.parse_args()
    cells = read(options.results)
    if options.csv is not None:
        options.csv.parent.mkdir(parents=True, exist_ok=True)
        cells.to_csv(options.csv, index=False)
    print(table(cells))


if __name__ == "__main__":
    main()
