"""Images through a frozen backbone once, into a memory-mapped cache keyed by content."""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from torch import Tensor

from qurate.data.embedding.cache import EmbeddingCache
from qurate.data.embedding.contents import read_contents
from qurate.data.embedding.frozen import FrozenBackbone, View, choose_device, freeze_backbone, view_of
from qurate.data.embedding.work import EmbeddingError, EmbeddingWork, OnProgress
from qurate.data.images import ImageFiles
from qurate.data.samples import Inputs, Labeled, Split, Unlabeled


def default_cache() -> Path:
    """The cache of this user: `QURATE_CACHE`, or `qurate/embeddings` in the user's cache folder."""
    if named := os.environ.get("QURATE_CACHE"):
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "qurate" / "embeddings"


def embed_images(
    files: ImageFiles,
    backbone: str,
    weights: str,
    *,
    cache: Path | None = None,
    device: str = "auto",
    batch_size: int | None = None,
    on_progress: OnProgress | None = None,
) -> Tensor:
    """Embeddings of image files under the test transform; made once, then read from the cache.

    Args:
        files: N images.
        backbone: 'timm/NAME.TAG', 'torchvision/vgg16' or 'torchvision/resnet34'.
        weights: 'pretrained', or the path of a weight file.
        cache: Folder of the cache; `default_cache()` unless given.
        device: 'auto', 'cpu', 'cuda', 'mps'.
        batch_size: Images a forward pass; chosen for the device unless given.
        on_progress: Called at the start and after each batch.

    Returns:
        (N, width) float32, in memory.

    Raises:
        UnreadableImageError: If an image is missing or cannot be decoded; what was embedded before is kept.
        BackboneError: If the backbone takes no image files or its weights cannot be had.

    Example:
        >>> embed_images(files, "timm/resnet34.tv_in1k", "pretrained").shape  # downloads  # doctest: +SKIP
        torch.Size([4110, 512])
    """
    frozen = freeze_backbone(backbone, weights)
    return embed_with(frozen, files, cache=cache, device=device, batch_size=batch_size, on_progress=on_progress)


def embed_with(
    frozen: FrozenBackbone,
    files: ImageFiles,
    *,
    cache: Path | None = None,
    device: str = "auto",
    batch_size: int | None = None,
    on_progress: OnProgress | None = None,
) -> Tensor:
    """`embed_images` by a backbone that is at hand already; see there."""
    return _embed([(files, 1)], frozen, cache, device, batch_size, on_progress)[0].squeeze(1)


def embed_views(
    files: ImageFiles,
    backbone: str,
    weights: str,
    *,
    views: int,
    cache: Path | None = None,
    device: str = "auto",
    batch_size: int | None = None,
    on_progress: OnProgress | None = None,
) -> Tensor:
    """Embeddings of several views of each image: the test view, then random crops, flipped half of the time.

    A view depends on the image's content and the view's number alone, so that it can be cached.

    Args:
        files: N images.
        backbone: See `embed_images`, as for the arguments and errors that are not named here.
        weights: See `embed_images`.
        views: V, at least 1.
        cache: See `embed_images`.
        device: See `embed_images`.
        batch_size: See `embed_images`.
        on_progress: See `embed_images`.

    Returns:
        (N, V, width) float32, in memory; `[:, 0]` is what `embed_images` returns.
    """
    frozen = freeze_backbone(backbone, weights)
    return _embed([(files, views)], frozen, cache, device, batch_size, on_progress)[0]


@dataclass(frozen=True)
class Filled:
    """What `fill_cache` did.

    Args:
        rows: Embeddings wanted; equal images share one.
        made: How many of them were not there.
        seconds: What making them took.
        folder: Where they are.
    """

    rows: int
    made: int
    seconds: float
    folder: Path


def fill_cache(
    files: ImageFiles,
    backbone: str,
    weights: str,
    *,
    views: int = 1,
    cache: Path | None = None,
    device: str = "auto",
    batch_size: int | None = None,
    on_progress: OnProgress | None = None,
) -> Filled:
    """Embed images ahead of time; nothing but the cache is left of it. Arguments and errors: see `embed_views`."""
    _check_positive(views, batch_size)
    work = _find_work([(files, views)], freeze_backbone(backbone, weights), cache, on_progress)[0]
    missing, began = len(work.store.missing(list(work.wanted))), time.perf_counter()
    work.complete(choose_device(device), batch_size)
    return Filled(len(work.wanted), missing, time.perf_counter() - began, work.store.folder)


def embed_split(
    split: Split,
    backbone: str,
    weights: str,
    *,
    views: int = 1,
    cache: Path | None = None,
    device: str = "auto",
    batch_size: int | None = None,
    on_progress: OnProgress | None = None,
) -> Split:
    """The same split with embeddings in place of image files; sealed labels stay sealed.

    All parts go through in one pass, an image that is in several of them once. Parts that are tensors stay.

    Args:
        split: Image files in some or all of its parts.
        backbone: See `embed_images`, as for the arguments and errors that are not named here.
        weights: See `embed_images`.
        views: Rows a sample in source and target_labeled: with more than one, all samples' test views come
            first, then all second views, and so on, each with its label. D_u and validation keep one.
        cache: See `embed_images`.
        device: See `embed_images`.
        batch_size: See `embed_images`.
        on_progress: See `embed_images`.
    """
    inputs: dict[str, tuple[Inputs, int]] = {
        "source": (split.source.inputs, views),
        "target_labeled": (split.target_labeled.inputs, views),
        "target_unlabeled": (split.target_unlabeled.inputs, 1),
    }
    if split.validation is not None:
        inputs["validation"] = (split.validation.inputs, 1)
    files = {name: (part, count) for name, (part, count) in inputs.items() if isinstance(part, ImageFiles)}
    if not files:
        return split
    frozen = freeze_backbone(backbone, weights)
    rows = _embed(list(files.values()), frozen, cache, device, batch_size, on_progress)
    parts = {name: _embedded(getattr(split, name), part) for name, part in zip(files, rows, strict=True)}
    return replace(split, **parts)  # type: ignore[arg-type]  # each name keeps its own kind


def _embedded(part: Labeled | Unlabeled, rows: Tensor) -> Labeled | Unlabeled:
    """The part with rows (N, V, width) in place of its files, the first views of all samples first."""
    inputs = rows.transpose(0, 1).flatten(0, 1).contiguous()
    if isinstance(part, Unlabeled):
        return Unlabeled(inputs, part.sealed)
    return Labeled(inputs, part.labels.repeat(rows.shape[1]))


def _embed(
    parts: Sequence[tuple[ImageFiles, int]],
    frozen: FrozenBackbone,
    cache: Path | None,
    device: str,
    batch_size: int | None,
    on_progress: OnProgress | None,
) -> list[Tensor]:
    """Rows of several parts, each (N, V, width), in one pass over what is not in the cache."""
    _check_positive(min(views for _, views in parts), batch_size)
    work, rows = _find_work(parts, frozen, cache, on_progress)
    work.complete(choose_device(device), batch_size)
    return [
        work.store.take([row.key for row in part]).view(len(files), views, frozen.width)
        for (files, views), part in zip(parts, rows, strict=True)
    ]


def _check_positive(views: int, batch_size: int | None) -> None:
    for name, value in (("views", views), ("batch_size", batch_size)):
        if value is not None and value < 1:
            raise ValueError(f"{name} must be positive, got {value}.")


def _find_work(
    parts: Sequence[tuple[ImageFiles, int]],
    frozen: FrozenBackbone,
    cache: Path | None,
    on_progress: OnProgress | None,
) -> tuple[EmbeddingWork, list[list[View]]]:
    """All rows that are wanted, and those of each part."""
    root = cache or default_cache()
    store = _open_cache(root, frozen)
    contents = read_contents([path for files, _ in parts for path in files.paths], root / "digests.sqlite")
    rows = [[view_of(contents[path], view) for path in files.paths for view in range(views)] for files, views in parts]
    return EmbeddingWork(store, frozen, {row.key: row for part in rows for row in part}, on_progress), rows


def _open_cache(root: Path, frozen: FrozenBackbone) -> EmbeddingCache:
    if root.exists() and not root.is_dir():
        raise EmbeddingError(f"{root}: the embedding cache must be a folder, and this is a file. Pass another path.")
    about = frozen.describe()
    space = hashlib.sha256(about.encode()).hexdigest()
    readable = re.sub(r"[^A-Za-z0-9._]+", "-", frozen.name)
    return EmbeddingCache(root / f"{readable}-{space[:16]}", space, frozen.width, about)
