"""A frozen backbone at work: its identity, and rows from image files with decoding beside the network."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from qurate.data.embedding.contents import Content, stamp_of
from qurate.data.images import Transform, UnreadableImageError, read_image
from qurate.errors import ConfigError
from qurate.networks.backbones import BackboneError, build_backbone, check_backbone
from qurate.runtime.checksums import tensor_digest
from qurate.runtime.machine import available_cores, torch_threads

_MOST_WORKERS = 16  # each holds the activations of a batch


@dataclass(frozen=True, eq=False)
class FrozenBackbone:
    """A backbone that only embeds.

    Args:
        name: As `build_backbone` knows it.
        module: Images (N, 3, crop, crop) to (N, width), in evaluation mode.
        width: Length of an embedding.
        transform: How image files are prepared.
    """

    name: str
    module: nn.Module
    width: int
    transform: Transform

    @cached_property
    def identity(self) -> str:
        """All that decides what an image's embedding is, as JSON; equal texts, equal embeddings."""
        about = {
            "backbone": self.name,
            "weights": _digest(self.module),
            "transform": asdict(self.transform),
            "width": self.width,
        }
        return json.dumps(about, sort_keys=True, indent=2) + "\n"


def freeze_backbone(name: str, weights: str) -> FrozenBackbone:
    """A backbone for embedding.

    Raises:
        BackboneError: If it takes no image files, would be random, or its weights cannot be obtained.
    """
    check_backbone(name)
    if weights == "none":
        raise BackboneError(
            "`weights='none'` would embed with random weights. Pass `weights='pretrained'`, `weights='offline'` or "
            "`weights=FILE`."
        )
    backbone = build_backbone(name, weights, input_width=1)
    assert backbone.transform is not None, "a backbone of photographs says how they are prepared"
    return FrozenBackbone(name, backbone.module.eval(), backbone.width, backbone.transform)


def choose_device(device: str) -> torch.device:
    """The device of that name; for 'auto' the best there is.

    Raises:
        ConfigError: If this machine has no such device.
    """
    there = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if device != "auto":
        if not there.get(device.partition(":")[0], False):
            raise ConfigError(f"`device={device!r}` cannot be used on this machine. Use `device='cpu'`.")
        return torch.device(device)
    if torch.cuda.is_available():
        return torch.device("cuda")
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")


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


Embed = Callable[[Sequence[Content]], Iterator[Made]]
"""Files to their embeddings, batch by batch in order."""


@contextmanager
def embedder(frozen: FrozenBackbone, device: torch.device, batch_size: int) -> Iterator[Embed]:
    """Workers that decode and embed, for the length of the block.

    On a CPU every worker takes a batch through decoding and the network on a core of its own: while one
    decodes another computes, and none waits for the others inside an operation. Elsewhere the workers decode
    and take turns at the device.
    """
    on_cpu = device.type == "cpu"
    cores = available_cores()
    workers = min(cores, _MOST_WORKERS)
    module = frozen.module.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    turn = nullcontext() if on_cpu else threading.Lock()

    def embed_batch(batch: Sequence[Content]) -> Made:
        images, unreadable = _prepare(batch, frozen.transform)
        if not images:
            return Made([], torch.empty(0, frozen.width), unreadable)
        with turn, torch.inference_mode():
            inputs = torch.stack(images).to(device).contiguous(memory_format=torch.channels_last)
            vectors: Tensor = module(inputs).to("cpu", torch.float32)
        return Made([content for content in batch if content.path not in unreadable], vectors, unreadable)

    with ExitStack() as stack:
        stack.enter_context(torch_threads(cores // workers if on_cpu else 1))
        pool = stack.enter_context(ThreadPoolExecutor(workers, thread_name_prefix="qurate-embed"))
        yield lambda contents: pool.map(embed_batch, _batches(contents, batch_size))


def _batches(contents: Sequence[Content], size: int) -> list[Sequence[Content]]:
    return [contents[start : start + size] for start in range(0, len(contents), size)]


def _prepare(batch: Sequence[Content], transform: Transform) -> tuple[list[Tensor], dict[Path, str]]:
    """The images as tensors, and why others cannot be read."""
    images: list[Tensor] = []
    unreadable: dict[Path, str] = {}
    for content in batch:
        try:
            image = read_image(content.path)
        except UnreadableImageError as error:
            unreadable[content.path] = str(error)
            continue
        if stamp_of(content.path) != content.stamp:
            raise UnreadableImageError(
                f"{content.path}: changed while it was being embedded. Embed again when nothing writes to it."
            )
        images.append(transform.for_testing(image))
    return images, unreadable


def _digest(module: nn.Module) -> str:
    counts = "num_batches_tracked"  # of training steps; no output depends on it
    return tensor_digest({name: values for name, values in module.state_dict().items() if not name.endswith(counts)})
