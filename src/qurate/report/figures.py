"""Figures of a benchmark as PNG: accuracy against shots, rounds and labels."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TypeVar

import pandas as pd
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from qurate.benchmark.options import QUERY_STRATEGY_ORDER
from qurate.benchmark.outcome import DATA, NATURAL
from qurate.registry import PLAIN
from qurate.report.page import count
from qurate.report.table_notes import change_words
from qurate.report.tables import MEAN, Table

Line = TypeVar("Line")
_COLORS = ("#2f6fb0", "#c2571a", "#2b8a57", "#b03a68", "#7557bd", "#857000", "#0d8587", "#865437")
_GRAY = "#59616b"
MOST_LINES = 14
"""Lines that can be told apart in one figure. Our choice."""


def shots_figure(tables: Sequence[Table]) -> bytes | None:
    """Accuracy against labels per class: a line for each row, the mean over scenarios, with a band of one deviation.

    Args:
        tables: Of one rule of model selection, one for each number of shots.

    Returns:
        None with fewer than two numbers of shots: there is no line to draw.
    """
    if len(tables) < 2:
        return None
    figure = Figure(figsize=(8.0, 4.8), dpi=150, layout="constrained")
    axes = figure.subplots()
    lines = readable(shots_lines(tables))
    styles = _styles({row.title: row.selector for table in tables for row in table.rows if row.title in lines})
    for title, line in lines.items():
        _draw(axes, line, title, styles[title])
    _finish(axes, "labels per class in the target", "accuracy, percent")
    axes.set_xticks([table.shots for table in tables])
    shown = "mean over the scenarios" if tables[-1].columns[-1] == MEAN else tables[-1].columns[-1]
    axes.set_title(f"{shown}; model selection: {tables[0].model_selection}", fontsize=10, loc="left")
    _legend(figure, lines, axes)
    return _png(figure)


def shots_lines(tables: Sequence[Table]) -> dict[str, pd.DataFrame]:
    """For each row of the tables its points (x, mean, spread); a table without the row's mean gives no point."""
    points: dict[str, list[tuple[float, float, float]]] = {}
    for table in tables:
        for row in table.rows:
            cell = row.cells[-1]
            if cell.mean is not None:
                points.setdefault(row.title, []).append((table.shots, cell.mean, cell.spread or 0.0))
    return {title: pd.DataFrame(found, columns=["x", "mean", "spread"], dtype=float) for title, found in points.items()}


def readable(lines: dict[str, Line]) -> dict[str, Line]:
    """All lines by title, or where they are too many plain methods and TML with its selectors, as in the paper.

    Where there are none of those either, the first ones.
    """
    if len(lines) <= MOST_LINES:
        return lines
    chosen = {title: line for title, line in lines.items() if title.startswith("TML") or " + " not in title}
    return chosen or dict(list(lines.items())[:MOST_LINES])


def rounds_figure(rounds: pd.DataFrame) -> bytes | None:
    """Accuracy by round, and below it the share of D_u that is positive; a column of panels for each number of shots.

    Args:
        rounds: Of an `Outcome`.

    Returns:
        None where no row has rounds.
    """
    if rounds.empty:
        return None
    rounds = rounds[rounds["title"].isin(readable(dict.fromkeys(rounds["title"])))]
    shots = sorted(int(n) for n in rounds["shots"].unique())
    figure = Figure(figsize=(2.6 + 4.2 * len(shots), 6.4), dpi=150, layout="constrained")
    panels = figure.subplots(2, len(shots), squeeze=False, sharex=True, sharey="row")
    styles = _styles(dict(zip(rounds["title"], rounds["selector"], strict=True)))
    values = {"accuracy": "accuracy, percent", "coverage": "trusted pseudo-labels, percent"}
    for column, n in enumerate(shots):
        here = rounds[rounds["shots"] == n]
        for panel, (value, name) in enumerate(values.items()):
            for title, line in round_lines(here, value).items():
                _draw(panels[panel, column], line, title, styles[title])
            _finish(panels[panel, column], "round" if panel else "", name if column == 0 else "")
        panels[0, column].set_title(f"{count(n, 'label')} per class", fontsize=10, loc="left")
        panels[1, column].xaxis.set_major_locator(MaxNLocator(integer=True))
    _legend(figure, round_lines(rounds[rounds["shots"] == shots[-1]], "accuracy"), panels[0, -1])
    return _png(figure)


def asking_figure(asked: pd.DataFrame) -> bytes | None:
    """Accuracy by number of labels asked for: a line for each query strategy, a panel for each row and kind of target.

    Args:
        asked: Of an `Outcome`.

    Returns:
        None where nobody was asked.
    """
    if asked.empty:
        return None
    panels = list(asked.groupby(["title", "shots", *NATURAL], sort=False))
    figure = Figure(figsize=(2.6 + 4.6 * len(panels), 4.4), dpi=150, layout="constrained")
    drawn = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
    there = {str(name) for name in asked["query_strategy"]}
    styles = _styles(
        {name: name for name in [*QUERY_STRATEGY_ORDER, *sorted(there - set(QUERY_STRATEGY_ORDER))] if name in there}
    )
    for place, (_, rows) in enumerate(panels):
        for strategy, line in asking_lines(rows).items():
            _draw(drawn[place], line, strategy, styles[strategy])
        _finish(drawn[place], "labels asked for", "" if place else "accuracy, percent")
        first = rows.iloc[0]
        change = [int(first[name]) for name in NATURAL]
        about = f"{first['title']}, {count(int(first['shots']), 'label')} per class{change_words(change, [change])}"
        drawn[place].set_title(about, fontsize=10, loc="left")
        drawn[place].set_xticks(sorted(rows["asked"].unique()))
    _legend(figure, asking_lines(panels[-1][1]), drawn[-1])
    return _png(figure)


def asking_lines(asked: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """For each query strategy its points (x, mean, spread): mean over scenarios, then mean and spread over seeds.

    Args:
        asked: Of one row of the benchmark, number of shots and kind of target.
    """
    return round_lines(asked.assign(title=asked["query_strategy"], round=asked["asked"]), "accuracy")


def round_lines(rounds: pd.DataFrame, value: str) -> dict[str, pd.DataFrame]:
    """For each row its points by round (x, mean, spread): mean over scenarios, then mean and spread over seeds.

    A run that stopped early keeps its last value; a seed counts only where it has all scenarios, each with every
    imbalance and number of unknown and missing classes.

    Args:
        rounds: Of one number of shots.
        value: Column to draw, a share.
    """
    lines = {}
    for title, of_title in rounds.groupby("title", sort=False):
        cells = of_title.pivot_table(index=["seed", *DATA], columns="round", values=value).ffill(axis=1) * 100
        complete = cells.groupby("seed").size() == len(rounds[DATA].drop_duplicates())
        by_seed = cells.groupby("seed").mean()[complete]
        line = pd.DataFrame({"x": by_seed.columns.astype(float), "mean": by_seed.mean().to_numpy()})
        line["spread"] = by_seed.std(ddof=1).fillna(0.0).to_numpy()
        if line["mean"].notna().any():
            lines[str(title)] = line.dropna()
    return lines


def _styles(selectors: dict[str, str]) -> dict[str, tuple[str, str]]:
    """Dashed without pseudo-labels, solid with them, dotted for an oracle; colours repeat after eight of a kind."""
    styles, used = {}, {"--": 0, "-": 0}
    for title, selector in selectors.items():
        if selector == "oracle":
            styles[title] = (_GRAY, ":")
            continue
        kind = "--" if selector in PLAIN else "-"
        styles[title] = (_COLORS[used[kind] % len(_COLORS)], kind)
        used[kind] += 1
    return styles


def _draw(axes: Axes, line: pd.DataFrame, title: str, style: tuple[str, str]) -> None:
    color, kind = style
    axes.plot(
        line["x"], line["mean"], label=title, marker="o", markersize=3.5, linewidth=1.6, color=color, linestyle=kind
    )
    if line["spread"].any():
        low, high = line["mean"] - line["spread"], line["mean"] + line["spread"]
        axes.fill_between(line["x"], low, high, color=color, alpha=0.1, linewidth=0)


def _finish(axes: Axes, across: str, up: str) -> None:
    axes.set_xlabel(across)
    axes.set_ylabel(up)
    axes.grid(axis="y", color="#dedbd3", linewidth=0.7)
    axes.spines[["top", "right"]].set_visible(False)


def _legend(figure: Figure, lines: dict[str, pd.DataFrame], axes: Axes) -> None:
    """Beside the panels, in the order in which the lines end."""
    handles = {str(line.get_label()): line for line in axes.get_lines()}
    ordered = sorted(lines, key=lambda title: -float(lines[title]["mean"].iloc[-1]))
    figure.legend(handles=[handles[title] for title in ordered], loc="outside right upper", frameon=False, fontsize=9)


def _png(figure: Figure) -> bytes:
    stream = io.BytesIO()
    with rc_context({"text.parse_math": False}):  # a name may hold dollar signs
        figure.savefig(stream, format="png", metadata={"Software": None})  # the same bytes with every version
    return stream.getvalue()
