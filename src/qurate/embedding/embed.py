"""Embeddings of images: what the cache lacks is computed, shard by shard."""

from __future__ import annotations

import hashlib
import math
import re
import shutil
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from qurate.config import Pooling
from qurate.data.images import ImageFiles, OnProgress, UnreadableImageError, check_header, try_all
from qurate.data.samples import DataError, Split, describe
from qurate.embedding.backbone import Frozen, FrozenBackbone, choose_device, choose_precision, freeze_backbones
from qurate.embedding.cache import EmbeddingCache
from qurate.embedding.digests import HashedFile, default_cache, digest_index, hash_files, with_copies
from qurate.embedding.forward import (
    CLUSTER_BATCH,
    CPU_BATCH,
    DECODED_BATCH,
    DEVICE_BATCH,
    ClusterTasks,
    Embed,
    EmbeddingError,
    choose_cluster_tasks,
    core_workers,
    decode,
    on_cluster,
    on_cores,
    on_device,
)
from qurate.embedding.openvino import Engine, OpenVINOError, choose_engine, compile_backbone, read_network, refuse
from qurate.networks.backbone_names import find_backbone
from qurate.networks.backbones import join_vectors
from qurate.runtime.compute import fits_half, torch_threads
from qurate.runtime.paths import is_file

MOST_IN_MEMORY = 100_000
"""Rows of one part up to which they are float32 in memory. Our choice: 0.5 GB, 1280 wide."""
_PART = 2**14
SHARD_ROWS = 512
"""Rows per shard: what is lost, at most, when the process is killed, but for the batches under way. Our choice."""
COMPARED = 2
"""Images of which OpenVINO's embeddings are compared with torch's. Our choice: a wrong conversion shows in each."""


@dataclass(eq=False)
class _PendingShard:
    """Rows on their way to the cache."""

    claim: ExitStack  # ends our claim on them when it is closed
    left: int  # files that have yet to come back
    keys: list[bytes] = field(default_factory=list)
    rows: list[Tensor] = field(default_factory=list)


class _EmbeddingWork:
    """Rows that are wanted, and the making of those that are missing.

    Args:
        store: Where rows are looked up and put.
        wanted: A file for each row, by the digest of its content.
        size: Files per batch that is handed out.
        on_progress: Called with how many rows there are and how many are wanted: at the start and after each batch.
    """

    def __init__(
        self, store: EmbeddingCache, wanted: dict[bytes, HashedFile], size: int, on_progress: OnProgress | None = None
    ) -> None:
        self.store = store
        self.wanted = wanted
        self.size = size
        self.on_progress = on_progress
        self.unreadable: dict[Path, str] = {}
        self._left = 0

    def missing(self) -> list[HashedFile]:
        """Files without a row, but for those that were found unreadable."""
        missing = self.store.missing(list(self.wanted))
        return [file for key, file in self.wanted.items() if key in missing and file.path not in self.unreadable]

    def complete(self, start: Callable[[], Embed]) -> None:
        """Embed what is missing, beside other processes that may be doing the same; note what cannot be read.

        `start` prepares the forward pass, and is called only if something is missing.
        """
        embed: Embed | None = None
        for _ in range(3):  # once, unless a shard goes bad between being written and being read
            files = self.missing()
            self._report(len(files))
            if not files:
                return
            embed = embed or start()
            shards = [files[first : first + SHARD_ROWS] for first in range(0, len(files), SHARD_ROWS)]
            others: list[list[HashedFile]] = []
            self._embed_shards(shards, embed, others)
            for shard in others:  # one by one: who waits for others holds nothing that others wait for
                self._embed_shards([shard], embed, None)
        raise EmbeddingError(
            "Embeddings disappear or change after they were written to the cache. Check the disk, or pass another "
            "cache folder."
        )

    def _embed_shards(
        self, shards: list[list[HashedFile]], embed: Embed, others: list[list[HashedFile]] | None
    ) -> None:
        """Embed shards in one stream and write each when it is whole; on an error, the rows that came before it."""
        claimed: deque[_PendingShard] = deque()
        try:
            with closing(embed(self._claim(shards, claimed, others))) as stream:
                for batch in stream:
                    shard, count = claimed[0], len(batch.files) + len(batch.unreadable)
                    shard.keys += [file.digest for file in batch.files]
                    shard.rows.append(batch.vectors)
                    shard.left -= count
                    self.unreadable |= batch.unreadable
                    self._report(self._left - count)
                    if shard.left == 0:
                        self._write(claimed.popleft())
        finally:
            while claimed:
                self._write(claimed.popleft())

    def _claim(
        self, shards: list[list[HashedFile]], claimed: deque[_PendingShard], others: list[list[HashedFile]] | None
    ) -> Iterator[Sequence[HashedFile]]:
        """Batches of the shards that this process makes; those of other processes are noted, or waited for."""
        for shard in shards:
            keys = [file.digest for file in shard]
            with ExitStack() as stack:
                if not stack.enter_context(self.store.claim(keys, wait=others is None)):
                    assert others is not None, "a claim that was waited for is ours"
                    others.append(shard)
                    continue
                missing = self.store.missing(keys)
                self._left -= len(shard) - len(missing)
                files = [file for file in shard if file.digest in missing]
                if not files:
                    continue
                claimed.append(_PendingShard(stack.pop_all(), len(files)))
            for start in range(0, len(files), self.size):
                yield files[start : start + self.size]

    def _write(self, shard: _PendingShard) -> None:
        with shard.claim:
            if shard.keys:
                self.store.add(shard.keys, torch.cat(shard.rows))

    def _report(self, left: int) -> None:
        self._left = left
        if self.on_progress is not None:
            self.on_progress(len(self.wanted) - left, len(self.wanted))


@dataclass(frozen=True, eq=False)
class Embeddings:
    """Embeddings of files.

    Args:
        stores: The rows of each backbone.
        files: The files that could be hashed, by path.
        unreadable: The files without an embedding, and why.
        made: How many rows were not in the store before.
        seconds: What making them took.
    """

    stores: tuple[EmbeddingCache, ...]
    files: Mapping[Path, HashedFile]
    unreadable: Mapping[Path, str]
    made: int
    seconds: float

    @property
    def rows(self) -> int:
        """How many embeddings there are; equal images share one."""
        return len({file.digest for path, file in self.files.items() if path not in self.unreadable})

    def of(self, images: ImageFiles) -> Tensor:
        """Rows of readable files, (N, width): float32 in memory, or of very many float16 in a file that is mapped.

        Where a number is too large for float16 they are float32 in such a file.
        """
        keys = [self.files[path].digest for path in images.paths]
        if len(keys) <= MOST_IN_MEMORY:
            return self._take(keys)
        try:
            return self._copy(keys, np.float16)
        except OverflowError:
            return self._copy(keys, np.float32)

    def _copy(self, keys: Sequence[bytes], kind: type[np.floating[Any]]) -> Tensor:
        rows = self._map(len(keys), kind)
        for start in range(0, len(keys), _PART):
            some = self._take(keys[start : start + _PART])
            if rows.dtype == torch.float16 and not fits_half(some):
                raise OverflowError("a number is too large for half precision")
            rows[start : start + _PART] = some
        return rows

    def _take(self, keys: Sequence[bytes]) -> Tensor:
        rows = [store.take(keys) for store in self.stores]
        return rows[0] if len(rows) == 1 else join_vectors(rows)

    def _map(self, count: int, kind: type[np.floating[Any]]) -> Tensor:
        """Empty rows (count, width) in a file without a name that goes with them; in memory if it cannot be mapped."""
        folder, shape = self.stores[0].folder, (count, sum(store.width for store in self.stores))
        with suppress(OSError):  # nobody may write there
            needed = math.prod(shape) * np.dtype(kind).itemsize
            if folder is not None and shutil.disk_usage(folder).free > 2 * needed:  # a full disk ends the process
                with tempfile.TemporaryFile(dir=folder) as file:
                    return torch.from_numpy(np.memmap(file, kind, "w+", shape=shape))
        return torch.from_numpy(np.empty(shape, kind))


def embed_files(
    paths: Sequence[Path],
    frozen: Frozen,
    *,
    cache: Path | None = None,
    cached: bool = True,
    required: bool = False,
    strict: bool = False,
    device: str = "auto",
    cluster: Mapping[str, float] | None = None,
    batch_size: int | None = None,
    engine_default: Literal["auto", "torch"] = "auto",
    on_progress: OnProgress | None = None,
) -> Embeddings:
    """Embed files under the test transform, each content once; what cannot be read is noted, and the rest is embedded.

    Args:
        paths: Files, images or not. One that is in the cache is not decoded.
        frozen: The backbone; several are cached each by itself, and progress counts an image once for each.
        cache: Folder of the cache; `default_cache()` unless given.
        cached: Whether to use the cache; not for a backbone that no other run will have.
        required: Whether a cache that cannot be written is an error; otherwise it is a warning, and the work continues.
        strict: Raise if a file cannot be read: where its header shows it, before the work on the others begins.
        device: 'auto', 'cpu', 'cuda', 'mps'.
        cluster: What the Ray cluster has that this process joined (`runtime.cluster.start_ray`); its machines then do
            the work, and the cache ends up as it would without them.
        batch_size: Images per forward pass; chosen for the device unless given. An accelerator whose memory does not
            hold so many takes fewer.
        engine_default: What computes unless `QURATE_ENGINE` names it: the fastest that is installed, or torch. On a
            cluster, whose machines may lack the other, it is torch.
        on_progress: Called at the start and after each batch.

    Raises:
        UnreadableImageError: If a file changes in the meantime, or with `strict` cannot be read; what was embedded
            before is kept.
        EmbeddingError: If the cache is required and is no folder.
        EmbeddingCacheError: If the cache is required and cannot be written.
    """
    if batch_size is not None and batch_size < 1:
        raise EmbeddingError(f"batch_size must be 1 or more, got {batch_size}.")
    root = Path(cache or default_cache())
    if cached and required and is_file(root):
        raise EmbeddingError(f"{root}: the embedding cache must be a folder, and this is a file. Pass another `cache`.")
    target = choose_device(device) if cluster is None else choose_cluster_tasks(cluster, device)
    on_ray = isinstance(target, ClusterTasks)
    files, unreadable = hash_files(paths, digest_index(root))
    wanted, folder = _each_content(paths, files), root if cached else None
    stores: list[EmbeddingCache] = []
    made, began, members = 0, time.perf_counter(), frozen.members

    def report(done: int, total: int) -> None:
        if on_progress is not None:
            on_progress((len(stores) - 1) * total + done, len(members) * total)

    for member in members:
        kind = target.device if isinstance(target, ClusterTasks) else target.type
        precision = choose_precision(member.module, kind)
        engine = choose_engine(member, kind, precision, "torch" if on_ray else engine_default)
        while True:
            stores.append(_open_cache(folder, member, precision, engine, required))
            size, start = _embedder(member, target, precision, batch_size)
            work = _EmbeddingWork(stores[-1], wanted, size, report)
            missing = work.missing()
            if strict:
                _refuse(unreadable | try_all(check_header, [file.path for file in missing])[1])
            if engine == "openvino":
                start = partial(_in_openvino, start, member, precision, missing[:COMPARED], folder, on_ray)
            try:
                work.complete(start)
                break
            except OpenVINOError as error:  # before the first row, but for a cluster's
                refuse(member, precision, error)
                stores.pop()
                engine = "torch"
        unreadable |= with_copies(work.unreadable, files)
        if strict:
            _refuse(unreadable)
        made = max(made, len(missing) - len(work.unreadable))
    return Embeddings(tuple(stores), files, unreadable, made, time.perf_counter() - began)


def find_missing(
    paths: Sequence[Path], frozen: FrozenBackbone, *, cache: Path | None = None, device: str = "auto"
) -> list[Path]:
    """The files that `embed_files` would have to embed, each content once."""
    root = Path(cache or default_cache())
    files, _ = hash_files(paths, digest_index(root))
    kind = choose_device(device).type
    precision = choose_precision(frozen.module, kind)
    store = _open_cache(root, frozen, precision, choose_engine(frozen, kind, precision), required=False)
    wanted = _each_content(paths, files)
    missing = store.missing(list(wanted))
    return [file.path for digest, file in wanted.items() if digest in missing]


def _each_content(paths: Sequence[Path], files: Mapping[Path, HashedFile]) -> dict[bytes, HashedFile]:
    """The first file of each content, by its digest, of those that could be hashed."""
    found: dict[bytes, HashedFile] = {}
    for path in paths:
        if path in files:
            found.setdefault(files[path].digest, files[path])
    return found


def _open_cache(
    root: Path | None, frozen: FrozenBackbone, precision: torch.dtype, engine: Engine, required: bool
) -> EmbeddingCache:
    about = frozen.describe_space(precision, engine)
    space = hashlib.sha256(about.encode()).hexdigest()
    readable = re.sub(r"[^A-Za-z0-9._]+", "-", frozen.name)
    folder = None if root is None else root / f"{readable}-{space[:16]}"
    return EmbeddingCache(folder, space, frozen.width, about, required=required)


def _embedder(
    frozen: FrozenBackbone, target: torch.device | ClusterTasks, precision: torch.dtype, batch_size: int | None
) -> tuple[int, Callable[[], Embed]]:
    """Files per batch that is handed out, and what prepares the forward pass."""
    if isinstance(target, ClusterTasks):
        size = batch_size or (CPU_BATCH if target.device == "cpu" else CLUSTER_BATCH)
        return size, partial(on_cluster, frozen, target, precision, size)
    if target.type == "cpu":
        size = batch_size or CPU_BATCH
        return size, partial(on_cores, frozen, precision, size)
    size = batch_size or DEVICE_BATCH
    return min(size, DECODED_BATCH), partial(on_device, frozen, target, precision, size)


def _in_openvino(
    start: Callable[..., Embed],
    frozen: FrozenBackbone,
    precision: torch.dtype,
    first: Sequence[HashedFile],
    cache: Path | None,
    on_ray: bool,
) -> Embed:
    """Prepare the forward pass in OpenVINO, after a comparison with torch; OpenVINOError if they differ."""

    def pixels() -> Tensor:
        found = decode(first, frozen.transform).pixels
        return found if len(found) else torch.zeros(1, *found.shape[1:], dtype=torch.uint8)  # none can be read

    with torch_threads(1):  # on a busy machine more would mostly wait for each other
        compiled = compile_backbone(frozen, precision, pixels, cache, core_workers())
    return start(network=read_network(frozen, cache)) if on_ray else start(compiled=compiled)


def _refuse(unreadable: Mapping[Path, str]) -> None:
    if unreadable:
        first, *rest = unreadable.values()
        raise UnreadableImageError(f"{first} {len(rest)} more images cannot be read." if rest else first)


def embed_split(
    split: Split,
    backbone: Frozen | str,
    weights: str = "auto",
    *,
    image_size: int | None = None,
    pooling: Pooling | None = None,
    cache: Path | None = None,
    device: str = "auto",
    batch_size: int | None = None,
    on_progress: OnProgress | None = None,
) -> Split:
    """The same split with embeddings in place of image files; sealed labels stay sealed.

    All parts go through in one pass, an image that is in several of them once. Parts that are tensors stay. Torch
    computes unless `QURATE_ENGINE` says otherwise, so that a result does not depend on what else is installed.

    Args:
        split: Image files in some or all of its parts.
        backbone: 'timm/NAME.TAG', 'torchvision/vgg16' or 'torchvision/resnet34', several with '+' between them, one of
            the words 'fast', 'good', 'best' and 'auto', or one that was built already.
        weights: Of a backbone given by name: 'pretrained', 'offline', the path of a weight file, or 'auto', which is
            'offline' where those weights are installed, else 'pretrained'.
        image_size: Of a backbone given by name: the side of its images in pixels; the model's own unless given.
        pooling: Likewise: what becomes of a transformer's tokens; what the model was made for unless given.
        cache: See `embed_files`.
        device: See `embed_files`.
        batch_size: See `embed_files`.
        on_progress: See `embed_files`.

    Raises:
        UnreadableImageError: If an image is missing or cannot be decoded; the others are in the cache by then.
        BackboneError: If the backbone takes no image files or its weights cannot be obtained.
    """
    if not isinstance(split, Split):
        raise DataError(f"embed_split: split must be a Split, got {describe(split)}.")
    paths = image_paths(split)
    if not paths:
        return split
    frozen = backbone
    if isinstance(frozen, str):
        name, found_weights, _ = find_backbone(
            frozen, weights, image_size, pooling, look=lambda: (len(paths), choose_device(device))
        )
        frozen = freeze_backbones(name, found_weights)
    found = embed_files(
        paths,
        frozen,
        strict=True,
        cache=cache,
        device=device,
        batch_size=batch_size,
        engine_default="torch",
        on_progress=on_progress,
    )
    return put_embeddings(split, found)


def image_paths(split: Split) -> list[Path]:
    """The image files of all parts, part by part."""
    inputs = [part.inputs for part in split.parts.values()]
    return [path for files in inputs if isinstance(files, ImageFiles) for path in files.paths]


def put_embeddings(split: Split, found: Embeddings) -> Split:
    """The split with embeddings in place of image files, all of which must be among those found."""
    return split.convert_inputs(lambda inputs: found.of(inputs) if isinstance(inputs, ImageFiles) else inputs)
