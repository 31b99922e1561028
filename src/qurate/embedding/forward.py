"""Files through a frozen backbone: decoded, batched and passed on, on the cores, on a device or on a Ray cluster."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from qurate.data.images import Transform, UnreadableImageError
from qurate.embedding.backbone import FrozenBackbone
from qurate.embedding.cache import Content, stamp_of
from qurate.errors import ConfigError, QurateError
from qurate.runtime.cluster import RETRIES
from qurate.runtime.machine import available_cores, keep_freed_memory, torch_threads

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


class EmbeddingError(QurateError, RuntimeError):
    """Images cannot be embedded; the message says why and what to do."""


class Made(NamedTuple):
    """What became of one batch.

    Args:
        contents: The B files that could be read, in order.
        vectors: Their embeddings, (B, width) float32 on the CPU.
        unreadable: The other files, and why.
    """

    contents: list[Content]
    vectors: Tensor
    unreadable: dict[Path, str]


Embed = Callable[[Iterable[Sequence[Content]]], Iterator[Made]]
"""Batches of files to their embeddings, in order. Batches are asked for a little ahead of the results."""


@dataclass(frozen=True, eq=False)
class Decoded:
    """One batch, ready for the network.

    Args:
        contents: The B files that could be read, in order.
        images: (B, 3, crop, crop) float32.
        unreadable: The other files, and why.
        changed: What to say of a file that was written to in the meantime; empty if there is none.
    """

    contents: list[Content]
    images: Tensor
    unreadable: dict[Path, str]
    changed: str = ""

    def pin_memory(self) -> Decoded:
        """The batch in memory that a GPU can fetch by itself; torch's loader asks for it."""
        return replace(self, images=self.images.pin_memory())

    def made(self, vectors: Tensor) -> Made:
        """The batch with its embeddings."""
        return Made(self.contents, vectors, self.unreadable)


def decode(batch: Sequence[Content], transform: Transform, folder: Path = Path()) -> Decoded:
    """The images of a batch as one tensor, and why others cannot be read; relative paths begin at the folder."""
    images: list[Tensor] = []
    contents: list[Content] = []
    unreadable: dict[Path, str] = {}
    changed = ""
    for content in batch:
        try:
            image = transform.read(folder / content.path)
            if stamp_of(folder / content.path) != content.stamp:
                changed = f"{content.path}: changed while it was being embedded. Embed again when nothing writes to it."
                break
        except UnreadableImageError as error:
            unreadable[content.path] = str(error)
            continue
        images.append(transform.for_testing(image))
        contents.append(content)
    side = transform.crop
    return Decoded(contents, torch.stack(images) if images else torch.empty(0, 3, side, side), unreadable, changed)


class Passage:
    """The way through a backbone on one device, in batches that its memory holds.

    Args:
        frozen: The backbone; it is moved to the device.
        device: Where it computes.
        precision: What it computes in.
        size: Images per forward pass to begin with; halved whenever the device runs out of memory.
    """

    def __init__(self, frozen: FrozenBackbone, device: torch.device, precision: torch.dtype, size: int) -> None:
        self.size = size
        self._width = frozen.width
        self._device = device
        self._precision = precision
        self._module = frozen.module.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]

    def embed(self, batch: Decoded) -> Made:
        """One batch."""
        return self.embed_all([batch])[0]

    def embed_all(self, batches: Sequence[Decoded]) -> list[Made]:
        """Several batches in one forward pass, if the memory allows.

        Raises:
            UnreadableImageError: If a file of them was written to in the meantime.
            EmbeddingError: If the device has too little memory for a single image.
        """
        for batch in batches:
            if batch.changed:
                raise UnreadableImageError(batch.changed)
        counts = [len(batch.contents) for batch in batches]
        rows = self._embed([batch.images for batch in batches]).split(counts)
        return [batch.made(vectors) for batch, vectors in zip(batches, rows, strict=True)]

    @torch.inference_mode()
    def _embed(self, images: Sequence[Tensor]) -> Tensor:
        while True:
            try:
                return self._try(images)
            except RuntimeError as error:
                if not _is_out_of_memory(error):
                    raise
                if self.size == 1:
                    raise EmbeddingError(
                        f"The memory of the device ({self._device}) does not hold the backbone and one image. "
                        "Use `device='cpu'` or a smaller backbone, or end what else uses the device."
                    ) from error
                self.size = max(1, self.size // 2)
            if self._device.type == "cuda":
                torch.cuda.empty_cache()  # outside of `except`, where the error keeps the tensors alive

    def _try(self, images: Sequence[Tensor]) -> Tensor:
        if not any(len(part) for part in images):
            return torch.empty(0, self._width)
        parts = [part.to(self._device, non_blocking=True) for part in images]
        moved = torch.cat(parts) if len(parts) > 1 else parts[0]
        rows = [self._forward(part.contiguous(memory_format=torch.channels_last)) for part in moved.split(self.size)]
        return torch.cat(rows).to("cpu")

    def _forward(self, images: Tensor) -> Tensor:
        reduced = self._precision != torch.float32
        with torch.autocast(self._device.type, dtype=self._precision) if reduced else nullcontext():
            vectors: Tensor = self._module(images).float()
        if reduced and not bool(vectors.isfinite().all()):  # float16 ends at 65,504, and some networks go beyond
            vectors = self._module(images).float()
        return vectors


def _is_out_of_memory(error: RuntimeError) -> bool:
    return isinstance(error, torch.cuda.OutOfMemoryError) or "out of memory" in str(error).lower()


def in_order(submit: Callable[[_Item], Future[_Result]], items: Iterable[_Item], ahead: int) -> Iterator[_Result]:
    """The results of work that is done elsewhere, in the order of the items; no more than `ahead` are under way."""
    waiting: deque[Future[_Result]] = deque()
    try:
        for item in items:
            waiting.append(submit(item))
            if len(waiting) >= ahead:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        for future in waiting:
            future.cancel()


CPU_BATCH = 8
"""Images per forward pass of one CPU worker: 4 to 16 were about equally fast, larger ones only took more memory.
Our choice."""
DEVICE_BATCH = 256
"""Images per forward pass on an accelerator to begin with; halved where its memory does not hold them. Our choice."""
DECODED_BATCH = 16
"""Images that a process decodes before it hands them to the accelerator: 10 MB at 224 pixels. Our choice."""

_MOST_WORKERS = 16  # each holds the activations of a batch, or decoded images


@contextmanager
def on_cores(frozen: FrozenBackbone, precision: torch.dtype, size: int) -> Iterator[Embed]:
    """Workers that take a batch through decoding and the network, each on a core of its own.

    While one decodes another computes, and none waits for the others inside an operation.
    """
    cores = available_cores()
    workers = min(cores, _MOST_WORKERS)
    passage = Passage(frozen, torch.device("cpu"), precision, size)

    def work(batch: Sequence[Content]) -> Made:
        return passage.embed(decode(batch, frozen.transform))

    with (
        torch_threads(cores // workers),
        ThreadPoolExecutor(workers, thread_name_prefix="qurate-embed") as pool,
    ):
        yield lambda batches: in_order(lambda batch: pool.submit(work, batch), batches, 2 * workers)


@contextmanager
def on_device(
    frozen: FrozenBackbone, device: torch.device, precision: torch.dtype, size: int, workers: int = 0
) -> Iterator[Embed]:
    """Processes that decode, and a device that computes what they decoded, `size` images at once.

    Args:
        frozen: The backbone.
        device: Where it computes.
        precision: What it computes in.
        size: Images per forward pass to begin with.
        workers: Processes that decode; one per core unless given.
    """
    passage = Passage(frozen, device, precision, size)
    count = workers or min(available_cores(), _MOST_WORKERS)

    def embed(batches: Iterable[Sequence[Content]]) -> Iterator[Made]:
        group: list[Decoded] = []
        for decoded in _decode_beside(batches, frozen.transform, count, pinned=device.type == "cuda"):
            full = sum(len(some.contents) for some in [*group, decoded]) > passage.size
            if group and (full or decoded.changed):
                yield from passage.embed_all(group)
                group.clear()
            group.append(decoded)
        if group:
            yield from passage.embed_all(group)

    yield embed


class _Files(Dataset[Decoded]):
    """What the processes of a loader do: a batch of files in, decoded images out."""

    def __init__(self, transform: Transform) -> None:
        self._transform = transform

    def __getitems__(self, batch: Sequence[Content]) -> Decoded:
        return decode(batch, self._transform)


def _as_it_is(decoded: Decoded) -> Decoded:
    return decoded


def _decode_beside(
    batches: Iterable[Sequence[Content]], transform: Transform, workers: int, *, pinned: bool
) -> Iterator[Decoded]:
    loader: DataLoader[Decoded] = DataLoader(
        _Files(transform),
        batch_sampler=batches,  # type: ignore[arg-type]  # any iterable of lists does
        collate_fn=_as_it_is,  # type: ignore[arg-type]  # what __getitems__ gave
        num_workers=workers,
        pin_memory=pinned,
        generator=torch.Generator(),  # else the loader draws from the global one
    )
    try:
        yield from loader
    except RuntimeError as error:
        if "DataLoader worker" not in str(error):
            raise
        raise EmbeddingError(
            "A process that decoded images was ended from outside, perhaps for want of memory. What was embedded "
            "before is kept; embed again to continue."
        ) from error


CLUSTER_BATCH = 32
"""Images per task that uses a GPU; without one it is as many as on this machine. Our choice."""

_MOST_PER_GPU = 8  # processes that decode for one GPU, each with a copy of the backbone in its memory


class Room(NamedTuple):
    """Where tasks run.

    Args:
        device: 'cpu' or 'cuda'.
        tasks: How many at once.
        gpus: What each takes of a GPU.
    """

    device: str
    tasks: int
    gpus: float


def choose_room(resources: Mapping[str, float], device: str) -> Room:
    """Where tasks run in a cluster: each on a CPU, and on its share of a GPU where there are any.

    Args:
        resources: What the cluster has, by Ray's names.
        device: 'auto', 'cpu' or 'cuda'.

    Raises:
        ConfigError: If the cluster has no such device.
    """
    cpus, gpus = max(1, int(resources.get("CPU", 1))), int(resources.get("GPU", 0))
    if device == "cpu" or (device == "auto" and not gpus):
        return Room("cpu", cpus, 0.0)
    if device not in ("auto", "cuda") or not gpus:
        raise ConfigError(
            f"`device={device!r}` cannot be used on this Ray cluster, which has {cpus} CPUs and {gpus} GPUs. Use "
            "`device='cpu'`, or a cluster with GPUs."
        )
    each = min(max(1, cpus // gpus), _MOST_PER_GPU)
    return Room("cuda", each * gpus, int(10_000 / each) / 10_000)  # Ray counts in parts of 10,000


@contextmanager
def on_cluster(frozen: FrozenBackbone, room: Room, precision: torch.dtype, size: int) -> Iterator[Embed]:
    """Tasks that take a batch through decoding and the network, each on one thread.

    Ray gives the batch of a lost worker to another. Every machine must see the images at the same paths; the backbone
    is sent to them.
    """
    import ray
    from ray.exceptions import RayError

    ask: Any = ray.remote(num_cpus=1, num_gpus=room.gpus, max_retries=RETRIES, max_calls=0)  # 0: processes stay
    task: Any = ask(_embed_there)
    job = _Job(frozen, room.device, precision, size, Path.cwd())
    sent = [ray.put(job)]  # in a list: each process fetches it once, not each task

    def submit(batch: Sequence[Content]) -> Future[Made | QurateError]:
        future: Future[Made | QurateError] = task.remote(sent, batch).future()
        return future

    def embed(batches: Iterable[Sequence[Content]]) -> Iterator[Made]:
        try:
            for made in in_order(submit, batches, 2 * room.tasks):
                if isinstance(made, QurateError):
                    raise made
                yield made
        except RayError as error:
            raise EmbeddingError(
                f"A worker of the Ray cluster failed, or was lost {RETRIES + 1} times with the same images ({error}). "
                "What was embedded before is kept; embed again to continue."
            ) from error

    yield embed


class _Job(NamedTuple):
    """What a process of the cluster has to know."""

    frozen: FrozenBackbone
    device: str
    precision: torch.dtype
    size: int
    folder: Path

    def passage(self) -> Passage:
        return Passage(self.frozen, torch.device(self.device), self.precision, self.size)


_at_hand: dict[bytes, tuple[_Job, Passage]] = {}
"""In a process of the cluster: what the last task had."""


def _embed_there(sent: list[Any], batch: Sequence[Content]) -> Made | QurateError:
    """In a process of the cluster: the embeddings of a batch, or an error of ours, as it is."""
    key = sent[0].binary()
    if key not in _at_hand:
        import ray

        keep_freed_memory()
        torch.set_num_threads(1)
        fetched: _Job = ray.get(sent[0])
        _at_hand.clear()
        _at_hand[key] = fetched, fetched.passage()
    job, passage = _at_hand[key]
    try:
        return passage.embed(decode(batch, job.frozen.transform, job.folder))
    except QurateError as error:
        return error
