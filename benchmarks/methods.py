"""All methods in one table: what `make methods` measured, with paired tests and minutes.

    python benchmarks/methods.py methods/office31 methods/office_home --csv docs/methods/results.csv

or, from the cells in the docs:

    python benchmarks/methods.py docs/methods/results.csv

Each argument is a folder of `qurate benchmark` or a table that --csv wrote. A row for each method and selector, a
column for each scenario and number of labels: the mean accuracy over the seeds. Methods that are fitted do not depend
on the seed: one result stands for all. The default is compared with each row over all columns and seeds that have
both, by the paired sign-flip test, corrected for many by Holm. Minutes are those of a cell on one core, the mean over
the seeds and columns of one suite; cells of other rows ran on the other core.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import pandas as pd

from qurate.registry import FITTED, row_rank, row_title
from qurate.report.statistics import correct_for_many, sign_flip_interval, sign_flip_p_value

DEFAULT = ("tml", "adaptive")
COLUMN = ["scenario", "shots"]
KEPT = [*COLUMN, "method", "selector", "seed", "accuracy", "balanced_accuracy", "seconds", "config", "commit"]


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
    keys = sorted({(str(m), str(s)) for m, s in zip(cells["method"], cells["selector"], strict=True)}, key=lambda key: row_rank(*key))
    means = repeated.pivot_table(index=["method", "selector"], columns=COLUMN, values="accuracy")
    suites = cells.assign(scenario=cells["scenario"].str.lower())
    minutes = suites.pivot_table(index=["method", "selector"], columns="scenario", values="seconds") / 60
    by_pair = repeated.pivot_table(index=[*COLUMN, "seed"], columns=["method", "selector"], values="accuracy")
    differences = {key: compare(by_pair, key) for key in keys if key != DEFAULT and DEFAULT in by_pair}
    differences = {key: values for key, values in differences.items() if values}
    p_values = correct_for_many([sign_flip_p_value(values) for values in differences.values()])
    tested = dict(zip(differences, p_values, strict=True))
    names = [f"{scenario}, {shots}" for scenario, shots in means.columns]
    head = [*names, "default minus row (95 %)", "pairs", "p", *(f"minutes, {name}" for name in minutes.columns)]
    lines = ["| | " + " | ".join(head) + " |", "|---|" + "---:|" * len(head)]
    for key in keys:
        values = differences.get(key, [])
        interval = sign_flip_interval(values) if values else None
        gain = f"{sum(values) / len(values):+.1f}" if values else ""
        gain += "" if interval is None else f" ({interval[0]:+.1f} to {interval[1]:+.1f})"
        p = "" if key not in tested else "< 0.01" if tested[key] < 0.01 else f"{tested[key]:.2f}"
        shown = ["" if pd.isna(value) else f"{100 * value:.1f}" for value in means.loc[key]]
        took = ["" if pd.isna(value) else f"{value:.2f}" for value in minutes.loc[key]]
        title = f"**{row_title(*key)}**" if key == DEFAULT else row_title(*key)
        cellsof = [title, *shown, gain, str(len(values) or ""), p, *took]
        lines.append("| " + " | ".join(cellsof) + " |")
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
