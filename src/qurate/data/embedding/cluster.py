"""Embedding on a Ray cluster: a task for each batch, wherever there is room."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch

from qurate.data.embedding.batches import Embed, EmbeddingError, Made, Passage, decode, in_order
from qurate.data.embedding.contents import Content
from qurate.data.embedding.frozen import FrozenBackbone
from qurate.errors import ConfigError, QurateError
from qurate.runtime.cluster import RETRIES
from qurate.runtime.machine import keep_freed_memory

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
