"""The tab Images: all unlabelled images of a run as columns, what each is like, near-duplicates, and a map."""

from __future__ import annotations

import math
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from qurate.active.pool import nearest
from qurate.review.session import Session

ALIKE = 6
"""Images that are shown beside one: as many of the labelled ones, and of the unlabelled ones."""
PARTNERS = 5
"""Nearest images of which near-duplicates are sought, for each. Our choice."""
LEAST_COSINE = 0.8
"""Of near-duplicates; the page can ask for more likeness, not for less. Our choice."""
MOST_ANCHORS = 1500
"""Images that are placed by t-SNE; the others lie among the nearest of these. Our choice: a few seconds of work."""
_NEIGHBORS = 3
_SLICE = 4096


class Gallery:
    """All images of a session.

    Args:
        session: Its images and answers.
        examples: Embeddings of the labelled images that the page can show, (E, width); none unless given.
        numbers: Of each its number among the examples of the page.
    """

    def __init__(self, session: Session, examples: Tensor | None = None, numbers: Sequence[int] = ()) -> None:
        self._session, self._inquiry = session, session.inquiry
        self._features = self._inquiry.pool.features
        self._examples = F.normalize(torch.zeros(0, self._features.shape[1]) if examples is None else examples.float())
        self._numbers = list(numbers)
        self._lock = threading.Lock()  # what takes seconds is computed once, however many tabs ask

    def rows(self) -> dict[str, Any]:
        """What never changes of each image, in columns.

        Of each its `file` without the `folder` that all have in common, the `label` that the model predicts, its
        `probability`, `known` (null where that was not measured) and its trusted pseudo-label `pseudo` (-1 for none).
        And which images are `flagged`, and which had an answer that the run has `learned`.
        """
        inquiry, pool = self._inquiry, self._inquiry.pool
        folder = _common_folder(inquiry.files)
        return {
            "folder": folder,
            "file": [file[len(folder) :] for file in inquiry.files],
            "label": inquiry.predicted,
            "probability": [round(p, 6) for p in pool.probabilities.amax(dim=1).tolist()],
            "known": None if inquiry.known is None else [_shorten(value) for value in inquiry.known.tolist()],
            "pseudo": [-1] * len(inquiry.files) if pool.trusted is None else pool.trusted.tolist(),
            "flagged": list(range(len(inquiry.files) - inquiry.flagged, len(inquiry.files))),
            "learned": sorted(inquiry.place[file] for file in inquiry.learned if file in inquiry.place),
        }

    def answers(self) -> dict[str, Any]:
        """The answers that count: the number of the image, the kind, and the name of the class of each."""
        place, given = self._inquiry.place, self._session.answers()
        return {"answers": [[place[file], row.answer, row.label] for file, row in given.items()]}

    def likeness(self, image: int) -> dict[str, Any]:
        """The classes with a key, as in a question, the labelled images most like it, and the unlabelled ones.

        Labelled are the examples of the run, and images that were given a class by an answer.

        Args:
            image: Its number.
        """
        own = F.normalize(self._features[image].float(), dim=0)
        cosines = _times(self._features, own) / self._lengths
        cosines[image] = -2.0
        answered = {self._inquiry.place[file]: row.label for file, row in self._session.answers().items() if row.label}
        labeled: list[dict[str, Any]] = [
            {"example": number, "cosine": cosine}
            for number, cosine in zip(self._numbers, (self._examples @ own).tolist(), strict=True)
        ]
        labeled += [
            {"image": other, "label": name, "cosine": float(cosines[other])}
            for other, name in answered.items()
            if other != image
        ]
        labeled.sort(key=lambda one: -one["cosine"])
        found = cosines.topk(min(ALIKE, len(cosines) - 1))
        alike = zip(found.indices.tolist(), found.values.tolist(), strict=True)
        return {
            "choices": self._session.choices(image),
            "labeled": labeled[:ALIKE],
            "alike": [{"image": other, "cosine": cosine} for other, cosine in alike],
        }

    def duplicates(self) -> dict[str, Any]:
        """Pairs of images that are near-duplicates, the most alike first: `first`, `second` and `cosine` of each."""
        with self._lock:
            return self._duplicates

    def map(self) -> dict[str, Any]:
        """A place of each image such that like ones lie together: `x` and `y` between 0 and 1."""
        with self._lock:
            return self._map

    @cached_property
    def _duplicates(self) -> dict[str, Any]:
        pairs, cosines = _near_pairs(self._features, self._lengths)
        order = cosines.argsort(descending=True, stable=True)
        first, second = pairs[order].unbind(dim=1)
        rounded = [round(value, 4) for value in cosines[order].tolist()]
        return {"first": first.tolist(), "second": second.tolist(), "cosine": rounded, "least": LEAST_COSINE}

    @cached_property
    def _map(self) -> dict[str, Any]:
        from qurate.report.run_figures import flatten  # with scikit-learn and Matplotlib, which nothing else here needs

        count = len(self._features)
        anchors = torch.arange(count)
        if count > MOST_ANCHORS:
            anchors = torch.randperm(count, generator=torch.Generator().manual_seed(0))[:MOST_ANCHORS].sort().values
        placed = torch.from_numpy(flatten(self._features[anchors], seed=0)).float()
        units, places = F.normalize(self._features[anchors].float()), torch.empty(count, 2)
        for rows in torch.arange(count).split(_SLICE):
            found = (F.normalize(self._features[rows].float()) @ units.T).topk(min(_NEIGHBORS, len(anchors)), dim=1)
            weights = (1.001 - found.values.clamp(max=1.0)).reciprocal().unsqueeze(2)
            places[rows] = (placed[found.indices] * weights).sum(dim=1) / weights.sum(dim=1)
        places[anchors] = placed
        low, high = places.amin(dim=0), places.amax(dim=0)
        x, y = ((places - low) / (high - low).clamp(min=1e-6)).unbind(dim=1)
        return {name: [round(value, 4) for value in values.tolist()] for name, values in (("x", x), ("y", y))}

    @cached_property
    def _lengths(self) -> Tensor:
        parts = self._features.split(_SLICE)  # very many are float16
        return torch.cat([torch.linalg.vector_norm(part.float(), dim=1) for part in parts]).clamp(min=1e-12)


def _times(features: Tensor, vector: Tensor) -> Tensor:
    return torch.cat([part.float() @ vector for part in features.split(2**16)])


def _near_pairs(features: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Pairs (P, 2) of images, each once, whose cosine is at least `LEAST_COSINE`, and their cosines (P,)."""
    rows = torch.arange(len(features))
    around = nearest(features, rows, PARTNERS)
    pairs = torch.stack([rows.unsqueeze(1).expand_as(around), around], dim=2).reshape(-1, 2)
    pairs = pairs.sort(dim=1).values.unique(dim=0)
    cosines = [
        (features[part[:, 0]].float() * features[part[:, 1]].float()).sum(dim=1)
        / (lengths[part[:, 0]] * lengths[part[:, 1]])
        for part in pairs.split(_SLICE)
    ]
    values = torch.cat(cosines)
    near = values >= LEAST_COSINE
    return pairs[near], values[near]


def _common_folder(files: Sequence[str]) -> str:
    """What all names begin with, up to and with a separator; empty where they have nothing in common."""
    common = os.path.commonprefix(files)  # noqa: RUF071  # cut back to a folder in the next line
    return common[: max(common.rfind(separator) for separator in "/\\") + 1]


def _shorten(value: float) -> float | None:
    return float(f"{value:.4g}") if math.isfinite(value) else None


class PictureCache:
    """Encoded pictures, until they take more than some bytes; then those that were not asked for longest go.

    Args:
        most: Bytes.
    """

    def __init__(self, most: int) -> None:
        self._most, self._bytes = most, 0
        self._kept: OrderedDict[object, bytes] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: object, make: Callable[[], bytes]) -> bytes:
        """The picture of a key; made where there is none."""
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
        made = make()
        with self._lock:
            if key not in self._kept:
                self._kept[key] = made
                self._bytes += len(made)
            while self._bytes > self._most:
                self._bytes -= len(self._kept.popitem(last=False)[1])
        return made
