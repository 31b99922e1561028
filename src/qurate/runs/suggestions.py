"""What to label next: the unlabelled images of a run, and those that a query strategy chooses."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import pandas as pd
import torch
from torch import Tensor

from qurate.active.answers import LABELS_FILE, Answer, AnswerLog
from qurate.active.pool import Pool
from qurate.active.strategies import NamedStrategy, QueryStrategy, RandomStrategy
from qurate.data.class_names import NO_FIT
from qurate.data.images import OnProgress
from qurate.data.own_images import StrPath, find_images
from qurate.data.samples import check_positions
from qurate.errors import ConfigError, DataError
from qurate.registry import QUERY_STRATEGIES
from qurate.runs.files import POSITIVES_FILE, PREDICTIONS_FILE
from qurate.runs.image_sources import start_folder_of
from qurate.runs.model import AdaptedModel, EmbeddedImages
from qurate.runs.options import DEFAULT_QUERY_STRATEGY
from qurate.runs.result_tables import MOST_KEPT, SUGGESTED, read_run_table, read_suggested
from qurate.runtime.paths import list_some
from qurate.runtime.validation import LARGEST_SEED, MOST, show

BORDER = "border"
"""In place of a query strategy, of an image that is between known and unknown."""


class Question(NamedTuple):
    """An image that a person is asked about.

    Args:
        image: Its position among those of the inquiry.
        query_strategy: That chose it; 'random' for the random part, 'border' for the part at the border.
        why: In a sentence.
    """

    image: int
    query_strategy: str
    why: str


@dataclass(frozen=True, eq=False)
class Inquiry:
    """Unlabelled images to ask about.

    Args:
        files: N readable images, as predictions.csv names them.
        classes: Names of the K classes.
        pool: The same images as the model sees them; nothing in it is answered.
        unreadable: Images that cannot be asked about, and why.
        learned: Kinds of the answers that the model has learned from, by file; they cannot show how often it is right.
        base: The folder that relative files are in, if it is not the current one.
        known: How well each image fits any class, (N,); None where that was not measured.
        border: What `known` is where flagged images meet the others; 0 where none is flagged.
        flagged: How many of the images, the last ones, fit no class; nobody is asked about them.
    """

    files: tuple[str, ...]
    classes: tuple[str, ...]
    pool: Pool
    unreadable: Mapping[Path, str]
    learned: Mapping[str, str] = field(default_factory=dict)
    base: Path = Path()
    known: Tensor | None = None
    border: float = 0.0
    flagged: int = 0

    @property
    def paths(self) -> list[Path]:
        """Where each file is."""
        return [self.base / file for file in self.files]

    @cached_property
    def place(self) -> dict[str, int]:
        """Position of each file."""
        return {file: i for i, file in enumerate(self.files)}

    @cached_property
    def predicted(self) -> list[int]:
        """The most probable class of each image."""
        labels: list[int] = self.pool.probabilities.argmax(dim=1).tolist()
        return labels

    def after(self, answers: Mapping[str, Answer]) -> Pool:
        """The pool as it is with these answers, without what is flagged: they are certain, and nobody is asked again.

        An answer that only calls a prediction wrong leaves its image open.
        """
        probabilities, closed = self.pool.probabilities.clone(), torch.zeros(len(self.files), dtype=torch.bool)
        for file, answer in answers.items():
            if file in self.place and answer.answer != "wrong":
                closed[self.place[file]] = True
                if answer.label in self.classes:
                    probabilities[self.place[file]] = 0.0
                    probabilities[self.place[file], self.classes.index(answer.label)] = 1.0
        pool = replace(self.pool, probabilities=probabilities, closed=closed)
        return pool.first(len(self.files) - self.flagged) if self.flagged else pool

    def draw(
        self,
        count: int,
        query_strategy: str | QueryStrategy,
        *,
        random_share: float,
        seed: int,
        answers: Mapping[str, Answer] | None = None,
        border_share: float = 0.0,
    ) -> list[Question]:
        """Choose the next questions; the random ones, and those at the border, are spread evenly among the others.

        Args:
            count: How many.
            query_strategy: Which of the others are chosen; a name, or one of your own.
            random_share: Part of them that is drawn at random.
            seed: Decides everything random.
            answers: What was answered already, by file.
            border_share: Part of them that is asked about because it is between known and unknown, where `known` is
                measured; the random ones come first.
        """
        check_query(count, query_strategy, random_share, seed)
        strategy = QUERY_STRATEGIES.find(query_strategy).load()() if isinstance(query_strategy, str) else query_strategy
        name = query_strategy if isinstance(query_strategy, str) else type(query_strategy).__name__
        pool = self.after(answers or {})
        whole = min(count, len(pool.open))
        random = RandomStrategy().ask(pool, math.ceil(random_share * whole), seed)
        assert pool.closed is not None
        closed = pool.closed.clone()
        closed[random] = True
        border = self._at_border(~closed, min(int(border_share * whole), whole - len(random)))
        closed[border] = True
        others = strategy.ask(replace(pool, closed=closed), count - len(random) - len(border), seed)
        check_positions(others, len(closed), f"what {name} asks about")
        if len(others.unique()) != len(others) or bool(closed[others].any()):
            raise DataError(
                f"{name} must ask about different images that are open in the pool, got one twice or a closed one."
            )
        chosen = [
            *self._explain(RandomStrategy(), "random", pool, random),
            *(Question(image, BORDER, self._why_at_border(image)) for image in border.tolist()),
            *self._explain(strategy, name, pool, others),
        ]
        place = [(i + 0.5) / len(part) for part in (random, border, others) for i in range(len(part))]
        return [chosen[i] for i in sorted(range(len(chosen)), key=lambda i: place[i])]

    def _at_border(self, is_open: Tensor, count: int) -> Tensor:
        """Positions of the open images whose `known` is nearest to the border, the nearest first."""
        if self.known is None:
            return torch.empty(0, dtype=torch.int64)
        places = is_open.nonzero().squeeze(1)
        return places[(self.known[places] - self.border).abs().argsort(stable=True)[:count]]

    def _why_at_border(self, image: int) -> str:
        assert self.known is not None
        known = f"{100 * float(self.known[image]):.1f} in 100 images of your classes fit no better"
        if self.border:
            return f"It is between what fits your classes and what fits none: {known}."
        return f"It is among those that fit your classes worst: {known}."

    def _explain(self, strategy: QueryStrategy, name: str, pool: Pool, asked: Tensor) -> list[Question]:
        reasons = [f"Chosen by {name}."] * len(asked)
        if isinstance(strategy, NamedStrategy):
            reasons = strategy.explain(pool, asked, self.classes)
        return [Question(i, name, why) for i, why in zip(asked.tolist(), reasons, strict=True)]

    def table(self, questions: Sequence[Question]) -> pd.DataFrame:
        """Questions as a table: file, label (empty), predicted, probability, runner_up, query_strategy, why."""
        values, labels = self.pool.probabilities.topk(2, dim=1)
        rows = []
        for i, strategy, why in questions:
            first, second = (self.classes[label] for label in labels[i].tolist())
            rows.append((self.files[i], "", first, float(values[i, 0]), second, strategy, why))
        return pd.DataFrame(rows, columns=SUGGESTED)


def check_query(count: object, query_strategy: object, random_share: object, seed: object) -> None:
    """Check the arguments of a query before any work."""
    if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= MOST:
        raise ConfigError(f"count must be an integer between 1 and {MOST}, got {show(count)}.")
    if not isinstance(random_share, int | float) or not 0 <= random_share <= 1:
        raise ConfigError(f"random_share must be between 0 and 1, got {show(random_share)}.")
    if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed <= LARGEST_SEED:
        raise ConfigError(f"seed must be an integer between 0 and {LARGEST_SEED}, got {show(seed)}.")
    if isinstance(query_strategy, str) or not hasattr(query_strategy, "ask"):
        QUERY_STRATEGIES.find(query_strategy)  # type: ignore[arg-type]  # whose error lists what is allowed


class RunImages(NamedTuple):
    """Images that a person may be asked about.

    Args:
        files: The images.
        trusted: Pseudo-labels of the run, by file.
        learned: Kinds of the answers that the run has learned from, by file: 'label', 'none' or 'wrong'.
        base: The folder that relative ones are in, if it is not the current one.
        flagged: Images that the run found to fit no class; they are shown, and nobody is asked about them.
    """

    files: Sequence[Path]
    trusted: Mapping[str, str] = {}
    learned: Mapping[str, str] = {}
    base: Path = Path()
    flagged: Sequence[Path] = ()


def make_inquiry(model: AdaptedModel, images: RunImages, on_progress: OnProgress | None = None) -> Inquiry:
    """Let the model look at images that a person may be asked about."""
    files, trusted, learned, base, flagged = images
    name_of = {base / file: str(file) for file in (*files, *flagged)}
    seen = model.embed_images(list(name_of), on_progress)
    shown = sum(base / file not in seen.unreadable for file in flagged)
    if len(seen.files) == shown:
        raise DataError(
            f"none of the {len(files)} unlabelled images can be read: {list_some(seen.unreadable.values(), 3)}."
        )
    names = tuple(name_of[file] for file in seen.files)
    pool = _make_pool(names, model.classes, seen, trusted)
    inquiry = Inquiry(names, model.classes, pool, seen.unreadable, learned, base, flagged=shown)
    if (novelty := model.novelty) is None:
        return inquiry
    return replace(inquiry, known=seen.predicted.known, border=novelty.border)


def look_at(model: AdaptedModel, images: RunImages, on_progress: OnProgress, warn: Callable[[str], None]) -> Inquiry:
    """The images of a run as its model sees them; `warn` is told how many cannot be read."""
    inquiry = make_inquiry(model, images, on_progress)
    if inquiry.unreadable:
        count = len(images.files) + len(images.flagged)
        lost = f"{len(inquiry.unreadable)} of {count} images cannot be read and are left out"
        warn(f"{lost}: {list_some(inquiry.unreadable, 3)}.")
    return inquiry


def suggest_first(
    classes: tuple[str, ...], seen: EmbeddedImages, trusted: Mapping[str, str], answers: Mapping[str, Answer]
) -> pd.DataFrame:
    """The first questions about a run by the default strategy: suggestions.csv, which `suggest` and the page show.

    Args:
        classes: Names of the K classes.
        seen: The images without a problem in predictions.csv, in its order, as the model of the run sees them.
        trusted: Pseudo-labels of the run, by file.
        answers: What the run has learned from, by file.
    """
    names = tuple(map(str, seen.files))
    inquiry = Inquiry(names, classes, _make_pool(names, classes, seen, trusted), {})
    return inquiry.table(inquiry.draw(MOST_KEPT, DEFAULT_QUERY_STRATEGY, random_share=0.0, seed=0, answers=answers))


def _make_pool(names: Sequence[str], classes: Sequence[str], seen: EmbeddedImages, trusted: Mapping[str, str]) -> Pool:
    number = {name: i for i, name in enumerate(classes)}
    labels = torch.tensor([number.get(trusted.get(name, ""), -1) for name in names], dtype=torch.int64)
    by_baseline = seen.predicted.baseline
    return Pool(seen.embeddings, seen.probabilities, labels, None, None if by_baseline is None else by_baseline.exp())


def read_run_images(folder: Path) -> RunImages:
    """The unlabelled images that a run was given and could read, and the pseudo-labels that it trusted."""
    predictions = read_run_table(folder, PREDICTIONS_FILE, "file", "problem")
    files, flagged = ([*map(Path, predictions.loc[predictions["problem"] == why, "file"])] for why in ("", NO_FIT))
    positives = read_run_table(folder, POSITIVES_FILE, "file", "label")
    answers = zip(predictions["file"], predictions["answer"], strict=True) if "answer" in predictions else ()
    learned = {file: kind for file, kind in answers if kind}
    trusted = dict(zip(positives["file"], positives["label"], strict=True))
    return RunImages(files, trusted, learned, start_folder_of(folder), flagged)


def suggest_images(
    model: AdaptedModel,
    count: int,
    images: StrPath | Sequence[StrPath] | None,
    query_strategy: str | QueryStrategy,
    *,
    random_share: float,
    seed: int,
    on_progress: OnProgress | None = None,
) -> pd.DataFrame:
    """See `AdaptedModel.suggest`."""
    check_query(count, query_strategy, random_share, seed)
    answers: dict[str, Answer] = {}
    if images is not None:
        chosen = RunImages(find_images(images))
    elif model.folder is None:
        raise ConfigError("`images` must be given, because this model was not loaded from a run nor written as one.")
    else:
        answers = AnswerLog(model.folder / LABELS_FILE).current()
        if (table := read_suggested(model.folder, count, query_strategy, random_share, answers)) is not None:
            return table
        chosen = read_run_images(model.folder)
    inquiry = make_inquiry(model, chosen, on_progress)
    return inquiry.table(inquiry.draw(count, query_strategy, random_share=random_share, seed=seed, answers=answers))
