r"""All methods in one table: what `make methods` measured, with paired tests.

    python benchmarks/methods.py methods/office31 methods/office_home --csv docs/methods/results.csv \
      --seconds docs/methods/seconds.csv

or, from the cells in the docs:

    python benchmarks/methods.py docs/methods/results.csv --seconds docs/methods/seconds.csv

Each argument is a folder of `qurate benchmark` or a table that --csv wrote. A row for each method and selector, a
column for each scenario and number of labels: the mean accuracy over the seeds. Methods that are fitted do not depend
on the seed: one result stands for all. The default is compared with each row over all columns and seeds that have
both, by the paired sign-flip test: the interval is that of the row alone, the p-values are corrected for the number
of rows (Holm). `benchmarks/method_seconds.py` measures the seconds of a row.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import pandas as pd

from qurate.registry import FITTED, row_rank, row_title
from qurate.report.published import scenario_titles
from qurate.report.statistics import correct_for_many, sign_flip_interval, sign_flip_p_value

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


def compare(by_pair: pd.DataFrame, others: list[tuple[str, str]]) -> dict[tuple[str, str], list[str]]:
    """The default minus each other row: points with their interval, corrected p, and pairs of column and seed."""
    reference = by_pair[DEFAULT]
    differences = {row: (100 * (reference - by_pair[row])).dropna().tolist() for row in others}
    differences = {row: values for row, values in differences.items() if values}  # of a folder that is not finished
    corrected = correct_for_many([sign_flip_p_value(values) for values in differences.values()])
    found = {}
    for (row, values), p_value in zip(differences.items(), corrected, strict=True):
        interval = sign_flip_interval(values)
        limits = "" if interval is None else f" ({interval[0]:+.1f} to {interval[1]:+.1f})"
        found[row] = [f"{sum(values) / len(values):+.1f}{limits}", show_p(p_value), str(len(values))]
    return found


def show_p(p_value: float) -> str:
    """Two digits, or that it is smaller."""
    return "< 0.01" if p_value < 0.01 else f"{p_value:.2f}"


def table(cells: pd.DataFrame, seconds: pd.DataFrame) -> str:
    """The table, in Markdown."""
    repeated = repeat_fitted(cells)
    rows = {(str(method), str(selector)) for method, selector in cells[["method", "selector"]].itertuples(index=False)}
    keys = sorted(rows, key=lambda row: row_rank(*row))
    means = 100 * repeated.pivot_table(index=["method", "selector"], columns=COLUMN, values="accuracy")
    by_pair = repeated.pivot_table(index=[*COLUMN, "seed"], columns=["method", "selector"], values="accuracy")
    compared = compare(by_pair, [key for key in keys if key != DEFAULT]) if DEFAULT in keys else {}
    times = seconds.set_index(["method", "selector"])["seconds"].to_dict()
    scenarios, shots = (means.columns.get_level_values(level) for level in COLUMN)
    titles = scenario_titles(map(str, scenarios))
    names = [f"{titles[str(scenario)]}, {count}" for scenario, count in zip(scenarios, shots, strict=True)]
    head = [*names, "default minus row (95 %)", "corrected p", "pairs", "seconds"]
    lines = ["| | " + " | ".join(head) + " |", "|---|" + "---:|" * len(head)]
    for key in keys:
        accuracies: list[float] = means.loc[[key]].to_numpy()[0].tolist()
        shown = ["" if math.isnan(value) else f"{value:.1f}" for value in accuracies]
        title = f"**{row_title(*key)}**" if key == DEFAULT else row_title(*key)
        taken = f"{times[key]:.{int(times[key] < 10)}f}" if key in times else ""
        lines.append("| " + " | ".join([title, *shown, *compared.get(key, [""] * 3), taken]) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, nargs="+", help="folders of qurate benchmark, or tables of --csv")
    parser.add_argument("--csv", type=Path, help="where the cells go")
    parser.add_argument("--seconds", type=Path, required=True, help="table of method_seconds.py")
    options = parser.parse_args()
    cells = read(options.results)
    if options.csv is not None:
        options.csv.parent.mkdir(parents=True, exist_ok=True)
        cells.to_csv(options.csv, index=False)
    print(table(cells, pd.read_csv(options.seconds)))


if __name__ == "__main__":
    main()
