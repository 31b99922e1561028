"""Figures of the page as SVG: no pixels, no scripts, and their colours follow the page's light or dark style.

Charts place things in percent across and pixels down, so that text keeps its size on a phone; the map of the
embeddings has a view box and scales. matplotlib's SVG can do neither.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from xml.etree import ElementTree

import numpy as np
import pandas as pd
from markupsafe import Markup
from matplotlib.ticker import MaxNLocator

from qurate.report.numbers import signed
from qurate.report.run.labels import place_labels, spread_colors
from qurate.report.run.picture import PLACES
from qurate.report.run.record import BaselineComparison

COLORS = 8
"""Colours k0 to k7 of the style sheet."""
GROUPS = 5
"""Groups of equal width by how sure the model is; held-out images are few. Our choice."""
KINDS = {"uncalibrated": "kept", "probability": "new"}
"""Styles of the dots before and after calibration."""
MOST_LABELS = 40
"""Classes named in the map; of more, the largest."""
_MAP = 400.0
_EDGE = 14.0
_LETTER = 6.4  # width of a letter and height of a line at the size that the style sheet gives names
_LINE = 12.0


def interval_figure(comparison: BaselineComparison) -> Markup | None:
    """The estimated gain with its interval, against zero."""
    found = comparison.gain
    low, middle, high = found.low * 100, found.estimate * 100, found.high * 100
    if not all(math.isfinite(number) for number in (low, middle, high)):
        return None
    left, right = min(low, middle, 0.0), max(high, middle, 0.0)
    span = max(right - left, 1.0)

    def across(points: float) -> str:
        return f"{25 + 50 * (points - left) / span:.2f}%"

    svg = _svg(
        92,
        f"Difference between the adapted model and plain training: {signed(middle, 1)} points, "
        f"interval from {signed(low, 1)} to {signed(high, 1)} points.",
        "chart",
    )
    _add(svg, "line", "axis", x1=across(0), x2=across(0), y1=28, y2=66)
    _add(svg, "line", "whisker", x1=across(low), x2=across(high), y1=46, y2=46)
    _add(svg, "circle", "dot", cx=across(middle), cy=46, r=6)
    _text(svg, f"{signed(middle, 1)} ({signed(low, 1)} to {signed(high, 1)})", across(middle), 18, "value")
    _text(svg, "no difference", across(0), 82, "quiet")
    return _markup(svg)


def reliability_figure(held_out: pd.DataFrame) -> Markup | None:
    """How often the model is right against how sure it is, in groups of held-out images; larger groups, larger dots."""
    if held_out.empty:
        return None
    base, top, groups = 226.0, 20.0, []
    for kind in ("uncalibrated", "probability"):
        bins = np.minimum((held_out[kind].to_numpy(float) * GROUPS).astype(int), GROUPS - 1)
        for _, group in held_out.groupby(bins):
            groups.append((kind, float(group[kind].mean()), float(group["right"].mean()), len(group)))
    said = [f"{sure:.0%} sure, {right:.0%} right" for kind, sure, right, _ in groups if kind == "probability"]
    svg = _svg(250, f"How often the model is right on held-out images: {'; '.join(said)}.", "chart")
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        y = base - share * (base - top)
        _add(svg, "line", "grid" if share else "axis", x1="12%", x2="94%", y1=y, y2=y)
        _text(svg, f"{share:.0%}", "0%", y + 4, "tick")
        _text(svg, f"{share:.0%}", f"{12 + 82 * share:.2f}%", base + 18, "quiet")
    _add(svg, "line", "axis", x1="12%", x2="94%", y1=base, y2=top)
    for kind, sure, right, size in groups:
        radius, y = 4 + 10 * math.sqrt(size / len(held_out)), base - right * (base - top)
        dot = _add(svg, "circle", KINDS[kind], cx=f"{12 + 82 * sure:.2f}%", cy=y, r=radius)
        ElementTree.SubElement(dot, "title").text = f"{sure:.0%} sure, right on {right:.0%} of {size} images"
    return _markup(svg)


def rounds_figure(rounds: pd.DataFrame) -> Markup | None:
    """A bar for each round: positives kept from before, and new ones on top."""
    if rounds.empty:
        return None
    total, names = rounds["positives"].to_numpy(int), [str(number) for number in rounds["round"]]
    base, top = 206.0, 24.0
    ticks = MaxNLocator(4, steps=[1, 2, 5, 10], integer=True).tick_values(0, max(1, int(total.max())))
    scale = (base - top) / float(ticks[-1])
    svg = _svg(
        240,
        f"Trusted pseudo-labels by round: {total[0]} in round {names[0]}, {total[-1]} in round {names[-1]}.",
        "chart",
    )
    for tick in map(int, ticks):
        y = base - tick * scale
        _add(svg, "line", "grid" if tick else "axis", x1="0%", x2="100%", y1=y, y2=y)
        _text(svg, f"{tick:,}", "0%", y - 4, "tick")
    every = math.ceil(len(total) / 10)
    room = len(total) * len(f"{total.max():,}") <= 32  # else numbers would meet on a phone
    slot = 88 / len(total)
    width = min(slot * 0.72, 9)
    for i, (name, high, new) in enumerate(zip(names, total, rounds["new"].to_numpy(int), strict=True)):
        center, ends = 12 + slot * (i + 0.5), i in (0, len(total) - 1)
        bar = {"x": f"{center - width / 2:.2f}%", "width": f"{width:.2f}%"}
        group = ElementTree.SubElement(svg, "g")
        ElementTree.SubElement(group, "title").text = f"Round {name}: {high} trusted, {new} of them new"
        kept = max(high - new, 0)
        for kind, foot, head in (("kept", 0, kept), ("new", kept, high)):
            _add(group, "rect", kind, **bar, y=base - head * scale, height=(head - foot) * scale)
        if i % every == 0 or ends:
            _text(svg, name, f"{center:.2f}%", base + 18, "quiet")
        if room or ends:
            _text(svg, f"{high:,}", f"{center:.2f}%", base - high * scale - 6, "value")
    return _markup(svg)


def embedding_figures(embedding: pd.DataFrame, classes: Sequence[str]) -> tuple[Markup, Markup] | None:
    """Maps of the embeddings before and after; classes are named where their target images lie.

    Colours repeat after eight classes; neighbours get different ones, as on a map of countries.
    """
    finite = np.isfinite(embedding[PLACES].to_numpy(float)).all(axis=1)
    points = embedding[finite & embedding["label"].isin(list(classes)).to_numpy()]
    if points.empty:
        return None
    maps = {when: points.assign(**_fitted(points, when)) for when in ("before", "after")}
    medians = {when: _medians(placed) for when, placed in maps.items()}
    colors = spread_colors([medians["before"].to_numpy(), medians["after"].to_numpy()], COLORS)
    color_of = dict(zip(medians["after"].index, colors, strict=True))
    before, after = (_map(maps[when], medians[when], color_of, when) for when in ("before", "after"))
    return before, after


def _map(points: pd.DataFrame, medians: pd.DataFrame, color_of: dict[str, int], when: str) -> Markup:
    anchors = medians.head(MOST_LABELS).to_numpy()
    names = [_short(str(name)) for name in medians.index[:MOST_LABELS]]
    above = anchors - [0.0, _LINE]  # a name must not hide the dots it names
    middles = place_labels(above, [len(name) * _LETTER + 5 for name in names], _LINE, _MAP)
    svg = _svg(
        0,
        f"Map of the embeddings {when} adaptation: {len(points)} images, "
        f"the names of {len(middles) - middles.count(None)} classes where their target images lie.",
        "map",
    )
    source = points[points["part"] == "source"]
    if len(source):
        _add(svg, "path", "source", d=_dots(source))
    for part in ("unlabeled", "labeled"):
        for label, group in points[points["part"] == part].groupby("label", sort=True):
            # A ring around labelled images: the same dots, a little larger, in the page's ink below.
            if part == "labeled":
                _add(svg, "path", "ring", d=_dots(group))
            dots = _add(svg, "path", f"{part} k{color_of[str(label)]}", d=_dots(group))
            ElementTree.SubElement(dots, "title").text = str(label)
    for name, (x, y), middle in zip(names, anchors, middles, strict=True):
        if middle is None:
            continue
        if math.hypot(middle[0] - x, middle[1] - y) > 2 * _LINE:
            _add(svg, "line", "leader", x1=float(x), y1=float(y), x2=middle[0], y2=middle[1])
        _text(svg, name, f"{middle[0]:.1f}", middle[1] + 3.5, "name")
    return _markup(svg)


def _fitted(points: pd.DataFrame, when: str) -> dict[str, np.ndarray]:
    """Coordinates moved and scaled to fill the map, far outliers brought back to its edge; y grows downwards."""
    values = points[[f"x_{when}", f"y_{when}"]].to_numpy(float)
    low, high = np.percentile(values, [0.5, 99.5], axis=0)
    span = np.where(high > low, high - low, 1.0) / 0.9
    placed = np.clip((values - (low + high) / 2) / span, -0.5, 0.5) * (_MAP - 2 * _EDGE) + _MAP / 2
    return {"x": placed[:, 0], "y": _MAP - placed[:, 1]}


def _medians(points: pd.DataFrame) -> pd.DataFrame:
    """Where the target images of each class lie, the largest class first; source images where there are none."""
    target = points[points["part"] != "source"]
    only_source = points[~points["label"].isin(target["label"])]
    groups = pd.concat([target, only_source]).groupby("label", sort=True)[["x", "y"]]
    order = groups.size().sort_values(ascending=False, kind="stable").index
    return groups.median().loc[order]


def _dots(points: pd.DataFrame) -> str:
    """One path for many dots: strokes of no length with round ends."""
    return "".join(f"M{x:.1f} {y:.1f}h0" for x, y in zip(points["x"], points["y"], strict=True))


def _short(name: str) -> str:
    return name if len(name) <= 18 else name[:17] + "…"


def _svg(height: int, description: str, kind: str) -> ElementTree.Element:
    size = {"height": str(height), "width": "100%"} if height else {"viewBox": f"0 0 {_MAP:.0f} {_MAP:.0f}"}
    return ElementTree.Element("svg", {"role": "img", "aria-label": description, "class": kind, **size})


def _add(parent: ElementTree.Element, tag: str, kind: str, **attributes: str | float) -> ElementTree.Element:
    values = {name: f"{value:.1f}" if isinstance(value, float) else str(value) for name, value in attributes.items()}
    return ElementTree.SubElement(parent, tag, {"class": kind, **values})


def _text(parent: ElementTree.Element, words: str, x: str, y: float, kind: str) -> None:
    _add(parent, "text", kind, x=x, y=float(y)).text = words


def _markup(svg: ElementTree.Element) -> Markup:
    return Markup(ElementTree.tostring(svg, encoding="unicode"))  # ElementTree has escaped every name
