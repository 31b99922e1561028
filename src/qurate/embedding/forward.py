"""Image files through a frozen backbone in batches: on the cores, on a device, or on a Ray cluster."""

from __future__ import annotations

import platform
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from qurate.data.images import Transform, UnreadableImageError
from qurate.embedding.backbone import FrozenBackbone
from qurate.embedding.digests import HashedFile, file_status
from qurate.embedding.openvino import CompiledBackbone, OpenVINOError, StoredNetwork
from qurate.errors import ConfigError, QurateError
from qurate.runtime.cluster import RETRIES
from qurate.runtime.compute import torch_threads
from qurate.runtime.machine import available_cores, keep_freed_memory

CPU_BATCH = 8
"""Images per forward pass of one CPU worker: 4 to 16 were about equally fast, larger ones only took more memory.
Our choice."""
DEVICE_BATCH = 256
"""Images per forward pass on an accelerator to begin with; halved where its memory does not hold them. Our choice."""
DECODED_BATCH = 16
"""Images that a process decodes before it hands them to the accelerator: 10 MB at 224 pixels. Our choice."""
CLUSTER_BATCH = 32
"""Images per Ray task that uses a GPU; without one it is `CPU_BATCH`. Our choice."""

_MOST_WORKERS = 16  # each holds the activations of a batch, or decoded images
_MOST_PER_GPU = 8  # Ray tasks that share one GPU, each with a copy of the backbone in its memory

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


class EmbeddingError(QurateError, RuntimeError):
    """Images cannot be embedded; the message says why and what to do."""


class EmbeddedBatch(NamedTuple):
    """One batch after the network.

    Args:
        files: The B files that could be read, in order.
        vectors: Their embeddings, (B, width) float32 on the CPU.
        unreadable: The other files, and why.
    """

    files: list[HashedFile]
    vectors: Tensor
    unreadable: dict[Path, str]


Embed = Callable[[Iterable[Sequence[HashedFile]]], Generator[EmbeddedBatch, None, None]]
"""Batches of files to their embeddings, in order. Batches are taken a little ahead of the results."""


@dataclass(frozen=True, eq=False)
class DecodedBatch:
    """One batch before the network.

    Args:
        files: The B files that could be read, in order.
        pixels: Their centre crops, (B, crop, crop, 3) uint8.
        unreadable: The other files, and why.
        changed: The error for a file that was written to after it was hashed; empty if there is none.
    """

    files: list[HashedFile]
    pixels: Tensor
    unreadable: dict[Path, str]
    changed: str = ""

    def pin_memory(self) -> DecodedBatch:
        """The batch in page-locked memory; torch's loader calls it."""
        return replace(self, pixels=self.pixels.pin_memory())


def decode(batch: Sequence[HashedFile], transform: Transform, folder: Path = Path()) -> DecodedBatch:
    """Decode, resize and crop a batch; relative paths begin at the folder."""
    crops: list[NDArray[np.uint8]] = []
    files: list[HashedFile] = []
    unreadable: dict[Path, str] = {}
    changed = ""
    for file in batch:
        try:
            image = transform.read(folder / file.path)
            if file_status(folder / file.path) != file.status:
                changed = f"{file.path}: changed while it was being embedded. Embed again when nothing writes to it."
                break
        except UnreadableImageError as error:
            unreadable[file.path] = str(error)
            continue
        crops.append(transform.center(image))
        files.append(file)
    pixels = np.stack(crops) if crops else np.empty((0, transform.crop, transform.crop, 3), np.uint8)
    return DecodedBatch(files, torch.from_numpy(pixels), unreadable, changed)


class BatchEncoder:
    """A backbone on one device, which takes batches that the device's memory holds.

    Args:
        frozen: The backbone; it is moved to the device.
        device: Where it computes.
        precision: What it computes in.
        size: Images per forward pass to begin with; halved whenever the device runs out of memory.
        compiled: The same backbone in OpenVINO, which then computes.
    """

    def __init__(
        self,
        frozen: FrozenBackbone,
        device: torch.device,
        precision: torch.dtype,
        size: int,
        compiled: CompiledBackbone | None = None,
    ) -> None:
        self.size = size
        self._width = frozen.width
        self._transform = frozen.transform
        self._device = device
        self._precision = precision
        self._compiled = compiled
        self._module = frozen.module.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]

    def encode(self, *batches: DecodedBatch) -> list[EmbeddedBatch]:
        """Embed batches together, in one forward pass if the memory allows.

        Raises:
            UnreadableImageError: If a file of them was written to in the meantime.
            EmbeddingError: If the device has too little memory for a single image.
        """
        for batch in batches:
            if batch.changed:
                raise UnreadableImageError(batch.changed)
        vectors = self._encode_pixels([batch.pixels for batch in batches])
        parts = vectors.split([len(batch.files) for batch in batches])
        return [EmbeddedBatch(one.files, rows, one.unreadable) for one, rows in zip(batches, parts, strict=True)]

    @torch.inference_mode()
    def _encode_pixels(self, pixels: Sequence[Tensor]) -> Tensor:
        if not any(len(part) for part in pixels):
            return torch.empty(0, self._width)
        while True:
            try:
                parts = [part.to(self._device, non_blocking=True) for part in pixels]
                moved = torch.cat(parts) if len(parts) > 1 else parts[0]
                return torch.cat([self._forward(part) for part in moved.split(self.size)]).to("cpu")
            except RuntimeError as error:
                if not isinstance(error, torch.cuda.OutOfMemoryError) and "out of memory" not in str(error).lower():
                    raise
                if self.size == 1:
                    raise EmbeddingError(
                        f"The memory of the device ({self._device}) does not hold the backbone and one image. "
                        "Use `device='cpu'` or a smaller backbone, or end what else uses the device."
                    ) from error
                self.size = max(1, self.size // 2)
            if self._device.type == "cuda":
                torch.cuda.empty_cache()  # outside of `except`, where the error keeps the tensors alive

    def _forward(self, pixels: Tensor) -> Tensor:
        reduced = self._precision != torch.float32
        if self._compiled is not None:
            vectors = self._compiled(pixels)
        else:
            images = self._prepare(pixels)
            with torch.autocast(self._device.type, dtype=self._precision) if reduced else nullcontext():
                vectors = self._module(images).float()
        if reduced and not bool(vectors.isfinite().all()):  # float16 ends at 65,504, and some networks go beyond
            vectors = self._module(self._prepare(pixels)).float()
        return vectors

    def _prepare(self, pixels: Tensor) -> Tensor:
        return self._transform.normalize(pixels).contiguous(memory_format=torch.channels_last)


def in_order(submit: Callable[[_Item], Future[_Result]], items: Iterable[_Item], ahead: int) -> Iterator[_Result]:
    """Results of submitted items, in their order; at most `ahead` are pending."""
    pending: deque[Future[_Result]] = deque()
    try:
        for item in items:
            pending.append(submit(item))
            if len(pending) >= ahead:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        for future in pending:
            future.cancel()


def core_workers() -> int:
    """Threads that embed on the cores of this machine."""
    return min(available_cores(), _MOST_WORKERS)


def on_cores(
    frozen: FrozenBackbone, precision: torch.dtype, size: int, compiled: CompiledBackbone | None = None
) -> Embed:
    """Threads that each decode a batch and pass it through the network on one core.

    While one decodes another computes, and none waits for the others inside an operation.
    """
    cores, workers = available_cores(), core_workers()
    encoder = BatchEncoder(frozen, torch.device("cpu"), precision, size, compiled)

    def work(batch: Sequence[HashedFile]) -> EmbeddedBatch:
        return encoder.encode(decode(batch, frozen.transform))[0]

    def embed(batches: Iterable[Sequence[HashedFile]]) -> Generator[EmbeddedBatch, None, None]:
        with (
            torch_threads(cores // workers),
            ThreadPoolExecutor(workers, thread_name_prefix="qurate-embed") as pool,
        ):
            yield from in_order(lambda batch: pool.submit(work, batch), batches, 2 * workers)

    return embed


def on_device(
    frozen: FrozenBackbone, device: torch.device, precision: torch.dtype, size: int, workers: int = 0
) -> Embed:
    """Processes that decode, and a device that takes what they decoded, `size` images at once.

    Args:
        frozen: The backbone.
        device: Where it computes.
        precision: What it computes in.
        size: Images per forward pass to begin with.
        workers: Processes that decode; one per core unless given.
    """
    encoder = BatchEncoder(frozen, device, precision, size)
    count = workers or core_workers()

    def embed(batches: Iterable[Sequence[HashedFile]]) -> Generator[EmbeddedBatch, None, None]:
        group: list[DecodedBatch] = []
        for decoded in _decode_in_processes(batches, frozen.transform, count, pinned=device.type == "cuda"):
            full = sum(len(batch.files) for batch in [*group, decoded]) > encoder.size
            if group and (full or decoded.changed):
                yield from encoder.encode(*group)
                group.clear()
            group.append(decoded)
        if group:
            yield from encoder.encode(*group)

    return embed


class _BatchDataset(Dataset[DecodedBatch]):
    def __init__(self, transform: Transform) -> None:
        self._transform = transform

    def __getitems__(self, batch: Sequence[HashedFile]) -> DecodedBatch:
        return decode(batch, self._transform)


def _no_collation(decoded: DecodedBatch) -> DecodedBatch:
    return decoded


def _decode_in_processes(
    batches: Iterable[Sequence[HashedFile]], transform: Transform, workers: int, *, pinned: bool
) -> Iterator[DecodedBatch]:
    loader: DataLoader[DecodedBatch] = DataLoader(
        _BatchDataset(transform),
        batch_sampler=batches,  # type: ignore[arg-type]  # any iterable of lists does
        collate_fn=_no_collation,  # type: ignore[arg-type]  # what __getitems__ gave
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


class ClusterTasks(NamedTuple):
    """Ray tasks that embed: on 'cpu' or 'cuda', how many at once, and the share of a GPU that each takes."""

    device: str
    parallel: int
    gpus: float


def choose_cluster_tasks(resources: Mapping[str, float], device: str) -> ClusterTasks:
    """Tasks for a cluster with these resources, by Ray's names: each on a CPU, and on its share of a GPU if it has any.

    Raises:
        ConfigError: If the cluster has no such device.
    """
    cpus, gpus = max(1, int(resources.get("CPU", 1))), int(resources.get("GPU", 0))
    if device == "cpu" or (device == "auto" and not gpus):
        return ClusterTasks("cpu", cpus, 0.0)
    if device not in ("auto", "cuda") or not gpus:
        raise ConfigError(
            f"`device={device!r}` cannot be used on this Ray cluster, which has {cpus} CPUs and {gpus} GPUs. Use "
            "`device='cpu'`, or a cluster with GPUs."
        )
    each = min(max(1, cpus // gpus), _MOST_PER_GPU)
    return ClusterTasks("cuda", each * gpus, int(10_000 / each) / 10_000)  # Ray counts in parts of 10,000


def on_cluster(
    frozen: FrozenBackbone,
    tasks: ClusterTasks,
    precision: torch.dtype,
    size: int,
    network: StoredNetwork | None = None,
) -> Embed:
    """Ray tasks that each decode a batch and pass it through the network on one thread, in OpenVINO if it is given so.

    Ray gives the batch of a lost worker to another. Every machine must see the images at the same paths; the backbone
    is sent to them.
    """
    import ray
    from ray.exceptions import RayError

    remote: Any = ray.remote(num_cpus=1, num_gpus=tasks.gpus, max_retries=RETRIES, max_calls=0)  # 0: processes stay
    task: Any = remote(_embed_in_task)
    sent = ray.put((frozen, tasks.device, precision, size, network, Path.cwd()))
    job = [sent]  # a list: fetched once by each process

    def submit(batch: Sequence[HashedFile]) -> Future[EmbeddedBatch | QurateError]:
        future: Future[EmbeddedBatch | QurateError] = task.remote(job, batch).future()
        return future

    def embed(batches: Iterable[Sequence[HashedFile]]) -> Generator[EmbeddedBatch, None, None]:
        try:
            for result in in_order(submit, batches, 2 * tasks.parallel):
                if isinstance(result, QurateError):
                    raise result
                yield result
        except RayError as error:
            raise EmbeddingError(
                f"A worker of the Ray cluster failed, or was lost {RETRIES + 1} times with the same images ({error}). "
                "What was embedded before is kept; embed again to continue."
            ) from error

    return embed


_last_job: dict[bytes, tuple[BatchEncoder, Transform, Path]] = {}
"""In a process of the cluster: what the last task had."""


def _embed_in_task(job: list[Any], batch: Sequence[HashedFile]) -> EmbeddedBatch | QurateError:
    """In a process of the cluster: the embeddings of a batch, or an error of ours, as a value."""
    try:
        key = job[0].binary()
        if key not in _last_job:
            import ray

            keep_freed_memory()
            torch.set_num_threads(1)
            frozen, device, precision, size, network, folder = ray.get(job[0])
            _last_job.clear()
            compiled = None if network is None else CompiledBackbone(network, precision, streams=1)
            encoder = BatchEncoder(frozen, torch.device(device), precision, size, compiled)
            _last_job[key] = encoder, frozen.transform, folder
        encoder, transform, folder = _last_job[key]
        return encoder.encode(decode(batch, transform, folder))[0]
    except OpenVINOError as error:
        return OpenVINOError(f"on {platform.node()}, a machine of the Ray cluster, {error}")
    except QurateError as error:
        return error
