"""Figures of a run's page as SVG: they follow the page's light or dark style."""

from __future__ import annotations

import math
from collections.abc import Sequence
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import torch
from markupsafe import Markup
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray
from sklearn.decomposition import PCA
from sklearn.manifold import TSNE
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]  # scikit-learn's
from torch import Tensor

from qurate.report.page import signed
from qurate.run_results import BaselineComparison

Points = NDArray[np.float64]

MOST_POINTS = 1500
"""Images in the picture; more are neither seen apart nor drawn in time. Our choice."""
ITERATIONS = 500
"""Of t-SNE. Our choice: scikit-learn's 1,000 take twice as long, and like images lie as close together after 500."""
PLACES = ["x_before", "y_before", "x_after", "y_after"]
"""Columns of the picture."""
COLORS = 8
"""Colours k0 to k7 of the style sheet."""
GROUPS = 5
"""Groups of equal width by how sure the model is; held-out images are few. Our choice."""
MOST_LABELS = 40
"""Classes named in the map; of more, the largest."""
_MAP = 400.0
_EDGE = 14.0
_LETTER = 6.4  # width of a letter and height of a line at the size that the style sheet gives names
_LINE = 12.0


def spread_colors(maps: Sequence[Points], n_colors: int) -> list[int]:
    """A colour for each class such that classes of one colour lie far apart, in every map.

    Greedy: each class takes a colour not used yet, else the one whose nearest user is farthest.

    Args:
        maps: Positions of the same classes, each (K, 2).
        n_colors: How many colours there are.
    """
    distances = np.min([np.linalg.norm(places[:, None] - places, axis=2) for places in maps], axis=0)
    colors: list[int] = []
    for i, row in enumerate(distances):
        users = [[row[j] for j in range(i) if colors[j] == color] for color in range(n_colors)]
        colors.append(int(np.argmax([min(found, default=np.inf) for found in users])))
    return colors


def place_labels(
    anchors: Points, widths: Sequence[float], height: float, side: float
) -> list[tuple[float, float] | None]:
    """Middles of boxes that begin at their anchors, (K, 2), and are pushed apart within a square until none overlaps.

    None for a box that would still cover an earlier one.
    """
    centers = [[float(x), float(y)] for x, y in anchors]
    sizes = [(width, height) for width in widths]
    for _ in range(300):
        moved = [_push_apart(centers, sizes, i, j) for i in range(len(centers)) for j in range(i)]
        for center, size in zip(centers, sizes, strict=True):
            for axis in (0, 1):
                reach = size[axis] / 2 + 4
                center[axis] = max(reach, min(center[axis], side - reach))
        if not any(moved):
            break
    placed: list[tuple[float, float] | None] = []
    for i, (x, y) in enumerate(centers):
        free = all(placed[j] is None or min(_overlaps(centers, sizes, i, j)) <= 1 for j in range(i))
        placed.append((x, y) if free else None)
    return placed


def _push_apart(centers: list[list[float]], sizes: list[tuple[float, float]], i: int, j: int) -> bool:
    """Move two overlapping boxes apart, each half of the shorter way; plain numbers, since there are many pairs."""
    overlaps = _overlaps(centers, sizes, i, j)
    if min(overlaps) <= 0:
        return False
    axis = overlaps.index(min(overlaps))
    push = (overlaps[axis] / 2 + 0.25) * (1.0 if centers[i][axis] >= centers[j][axis] else -1.0)
    centers[i][axis] += push
    centers[j][axis] -= push
    return True


def _overlaps(centers: list[list[float]], sizes: list[tuple[float, float]], i: int, j: int) -> list[float]:
    """How far two boxes reach into each other across and down; they overlap where both are positive."""
    return [(sizes[i][axis] + sizes[j][axis]) / 2 - abs(centers[i][axis] - centers[j][axis]) for axis in (0, 1)]


def choose_points(points: pd.DataFrame, seed: int) -> Tensor:
    """Positions of the images that a map shows, in order: labelled target images first, then others at random."""
    order = np.random.default_rng(seed).permutation(len(points))
    labeled_first = (points["part"].to_numpy()[order] != "labeled").argsort(kind="stable")
    return torch.from_numpy(np.sort(order[labeled_first][:MOST_POINTS]))


def draw_picture(points: pd.DataFrame, before: Tensor, after: Tensor, *, seed: int) -> pd.DataFrame:
    """Where each image lies among the others, before and after.

    Args:
        points: Columns file, part, label; one row per image.
        before: Embeddings by the backbone as it came, (N, width).
        after: Features F(x) of the adapted model, (N, d).
        seed: Decides which images are shown and how t-SNE begins.

    Returns:
        At most `MOST_POINTS` of the rows, with the columns `PLACES`.
    """
    shown = choose_points(points, seed)
    table = points.iloc[shown.numpy()].reset_index(drop=True)
    for name, vectors in (("before", before), ("after", after)):
        places = flatten(vectors[shown], seed)
        table[f"x_{name}"], table[f"y_{name}"] = places[:, 0], places[:, 1]
    return table


def flatten(vectors: Tensor, seed: int) -> Points:
    """Two numbers per row: t-SNE of cosine distances, or principal components where there are few rows."""
    rows = torch.nn.functional.normalize(vectors.double(), dim=1).numpy()
    if np.allclose(rows, rows[:1]):  # t-SNE would divide by a spread of zero, and crash the process
        return np.zeros((len(rows), 2))
    if len(rows) < 30:
        wide = np.pad(rows, ((0, 0), (0, max(0, 2 - rows.shape[1]))))
        few: Points = PCA(2, random_state=seed).fit_transform(wide)
        return few
    if rows.shape[1] > 50:
        rows = PCA(min(50, len(rows)), random_state=seed, svd_solver="randomized").fit_transform(rows)
    perplexity = min(30.0, (len(rows) - 1) / 3)
    tsne = TSNE(2, perplexity=perplexity, max_iter=ITERATIONS, init="pca", random_state=seed, n_jobs=1)
    with threadpool_limits(1):  # its threads wait for each other at every step: 37 s for 4 s of work on two busy cores
        places: Points = tsne.fit_transform(rows)
    return places


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
    groups_text = [f"{sure:.0%} sure, {right:.0%} right" for kind, sure, right, _ in groups if kind == "probability"]
    svg = _svg(250, f"How often the model is right on held-out images: {'; '.join(groups_text)}.", "chart")
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        y = base - share * (base - top)
        _add(svg, "line", "grid" if share else "axis", x1="12%", x2="94%", y1=y, y2=y)
        _text(svg, f"{share:.0%}", "0%", y + 4, "tick")
        _text(svg, f"{share:.0%}", f"{12 + 82 * share:.2f}%", base + 18, "quiet")
    _add(svg, "line", "axis", x1="12%", x2="94%", y1=base, y2=top)
    for kind, sure, right, size in groups:
        radius, y = 4 + 10 * math.sqrt(size / len(held_out)), base - right * (base - top)
        dot = _add(
            svg, "circle", "new" if kind == "probability" else "kept", cx=f"{12 + 82 * sure:.2f}%", cy=y, r=radius
        )
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
    before, after = _fitted(points, "before"), _fitted(points, "after")
    medians = [_medians(before), _medians(after)]
    colors = spread_colors([places.to_numpy() for places in medians], COLORS)
    color_of = dict(zip(medians[1].index, colors, strict=True))
    return _map(before, medians[0], color_of, "before"), _map(after, medians[1], color_of, "after")


def _map(points: pd.DataFrame, medians: pd.DataFrame, color_of: dict[str, int], when: str) -> Markup:
    anchors = medians.head(MOST_LABELS).to_numpy()
    names = [name if len(name) <= 18 else name[:17] + "…" for name in map(str, medians.index[:MOST_LABELS])]
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


def _fitted(points: pd.DataFrame, when: str) -> pd.DataFrame:
    """With x and y moved and scaled to fill the map, far outliers brought back to its edge; y grows downwards."""
    values = points[[f"x_{when}", f"y_{when}"]].to_numpy(float)
    low, high = np.percentile(values, [0.5, 99.5], axis=0)
    span = np.where(high > low, high - low, 1.0) / 0.9
    placed = np.clip((values - (low + high) / 2) / span, -0.5, 0.5) * (_MAP - 2 * _EDGE) + _MAP / 2
    return points.assign(x=placed[:, 0], y=_MAP - placed[:, 1])


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
