"""What to label first, before any run: target images that a linear model of the source is asked about."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Unpack

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from qurate.active.pool import Pool
from qurate.active.strategies import QueryStrategy
from qurate.data.domains import Domain, domain_of, leave_out
from qurate.data.images import ImageFiles, OnProgress
from qurate.data.list_files import list_sources
from qurate.data.listing import join_listings
from qurate.data.own_images import paths_of, read_unlabeled
from qurate.embedding.backbone import choose_device, freeze_backbones
from qurate.embedding.embed import MOST_IN_MEMORY, embed_files
from qurate.errors import DataError
from qurate.networks.backbone_names import find_backbone
from qurate.novelty import mean_direction, unit
from qurate.registry import nearest
from qurate.runs.options import BACKBONE, COLD_START_STRATEGY, BackboneOptions
from qurate.runs.suggestions import Inquiry, check_query
from qurate.runtime.paths import StrPath, list_some

_INVERSE_PENALTY = 30.0
"""C of the linear model, on embeddings of length 1. Our choice."""


def suggest(
    source: StrPath | Sequence[StrPath],
    unlabeled: StrPath,
    count: int,
    *,
    query_strategy: str | QueryStrategy = COLD_START_STRATEGY,
    random_share: float = 0.0,
    seed: int = 0,
    cache: StrPath | None = None,
    on_progress: OnProgress | None = None,
    **backbone: Unpack[BackboneOptions],
) -> pd.DataFrame:
    """Which target images a person should label first, before any run.

    A linear model of the source takes the place of the model of a run; see `predict_by_source`.

    Args:
        source: Labelled source images: class folders, a list file or a CSV table; or several of them.
        unlabeled: Target images: any folder, a list or a table.
        count: How many to label.
        query_strategy: How they are chosen: one of `qurate.QUERY_STRATEGIES`, or a `QueryStrategy` of your own.
        random_share: Part of them that is drawn at random instead, between 0 and 1.
        seed: Decides everything random.
        cache: Folder of the embedding cache; the user's unless given.
        on_progress: Called with the number of images that are embedded, and of all.
        **backbone: `backbone`, `weights`, `image_size` and `pooling`, as of `qurate.adapt`.

    Returns:
        Columns file, label (empty, for the answer), predicted, probability, runner_up, query_strategy and why; in the
        order of asking. With answers, written as CSV to the current folder, it is the `labeled` of `qurate.adapt`.

    Raises:
        ConfigError: If an argument is not allowed.
        DataError: If the images cannot be used.
        BackboneError: If the backbone or its weights cannot be obtained.

    Example:
        >>> table = qurate.suggest("studio", "phone", 90)  # needs images  # doctest: +SKIP
    """
    check_query(count, query_strategy, random_share, seed)
    for name in backbone:
        if name not in BackboneOptions.__annotations__:
            known = BackboneOptions.__annotations__
            raise TypeError(f"suggest() got an unexpected keyword argument {name!r}.{nearest(name, known)}")
    first = domain_of(join_listings(list(list_sources(source).values())))
    second = read_unlabeled(unlabeled, "unlabeled")
    _check_source(first)
    paths = [*paths_of(first), *paths_of(second)]
    name, weights, _ = find_backbone(
        backbone.get("backbone", BACKBONE),
        backbone.get("weights", "auto"),
        backbone.get("image_size"),
        backbone.get("pooling"),
        look=lambda: (len(paths), choose_device("auto")),
    )
    place = None if cache is None else Path(cache)
    found = embed_files(paths, freeze_backbones(name, weights), cache=place, on_progress=on_progress)
    first, second = (leave_out(domain, found.unreadable) for domain in (first, second))
    _check_source(first)  # without what turned out to be unreadable
    ours, theirs = (found.of(ImageFiles(paths_of(domain))) for domain in (first, second))
    pool = Pool(theirs, predict_by_source(ours, first.labels, theirs, len(first.classes)))
    inquiry = Inquiry(tuple(map(str, paths_of(second))), first.classes, pool, found.unreadable)
    return inquiry.table(inquiry.draw(count, query_strategy, random_share=random_share, seed=seed))


def _check_source(source: Domain) -> None:
    if without := int((source.labels < 0).sum()):
        raise DataError(
            f"source must have a class for every image, but {without} of {len(source)} have none. Label them, or leave "
            "them out."
        )
    classes = [name for name, size in zip(source.classes, source.class_sizes().tolist(), strict=True) if size]
    if len(classes) < 2:
        raise DataError(f"source must have at least two classes, got {list_some(classes)}. Is it the right folder?")


def predict_by_source(source: Tensor, labels: Tensor, target: Tensor, n_classes: int) -> Tensor:
    """Probabilities of the target by logistic regression on the source.

    Embeddings have length 1, and each domain its mean subtracted, which removes what all images of a domain share.

    Args:
        source: Embeddings, (N, d).
        labels: Of them, (N,) int64.
        target: Embeddings, (M, d).
        n_classes: K; a class without an image in the source has probability 0.

    Returns:
        (M, K).
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # a rough model will do
        model = LogisticRegression(C=_INVERSE_PENALTY).fit(_center(source, mean_direction(source)), labels.numpy())
    probabilities, middle = torch.zeros(len(target), n_classes), mean_direction(target)
    for part, found in zip(target.split(MOST_IN_MEMORY), probabilities.split(MOST_IN_MEMORY), strict=True):
        found[:, model.classes_] = torch.from_numpy(model.predict_proba(_center(part, middle))).float()
    return probabilities


def _center(embeddings: Tensor, middle: Tensor) -> NDArray[np.float64]:
    centered: NDArray[np.float64] = unit(unit(embeddings) - middle).double().numpy()
    return centered
