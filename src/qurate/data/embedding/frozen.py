"""A frozen backbone at work: its identity, and rows from image files with decoding beside the network."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from qurate.data.embedding.contents import Content, Stamp, stamp_of
from qurate.data.images import Transform, UnreadableImageError, read_image
from qurate.networks.backbones import BackboneError, build_backbone
from qurate.runtime.machine import available_cores, reused_buffers, torch_threads

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

    def describe(self) -> str:
        """All that decides what an image's embedding is, as JSON; equal texts, equal embeddings."""
        about = {
            "backbone": self.name,
            "weights": _digest(self.module),
            "transform": asdict(self.transform),
            "width": self.width,
        }
        return json.dumps(about, sort_keys=True, indent=2) + "\n"


class View(NamedTuple):
    """One row to be made. View 0 is the test transform; the key seeds crop and flip of the others."""

    path: Path
    stamp: Stamp
    key: bytes
    number: int


def view_of(content: Content, number: int) -> View:
    """A view of a file; equal contents have equal keys."""
    key = content.digest
    if number:
        key = hashlib.sha256(key + number.to_bytes(4, "big")).digest()
    return View(content.path, content.stamp, key, number)


def freeze_backbone(name: str, weights: str) -> FrozenBackbone:
    """A backbone for embedding.

    Raises:
        BackboneError: If it takes no image files, would be random, or its weights cannot be had.
    """
    if weights == "none":
        raise BackboneError(
            "weights='none' would embed with random weights. Use 'pretrained' or the path of a weight file, or "
            "train the backbone on the images themselves."
        )
    backbone = build_backbone(name, weights, input_width=1)
    if backbone.transform is None:
        raise BackboneError(
            f"Backbone {name!r} takes no image files. Use 'timm/NAME.TAG', 'torchvision/vgg16' or "
            "'torchvision/resnet34'."
        )
    return FrozenBackbone(name, backbone.module.eval(), backbone.width, backbone.transform)


def choose_device(device: str) -> torch.device:
    """The device of that name; for 'auto' the best there is."""
    if device != "auto":
        return torch.device(device)
    if torch.cuda.is_available():
        return torch.device("cuda")
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")


Embed = Callable[[Sequence[View]], Iterator[Tensor]]
"""Views to their embeddings, batch by batch in order, each (B, width) float32 on the CPU."""


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

    def embed_batch(views: Sequence[View]) -> Tensor:
        images = torch.stack([_prepare(view, frozen.transform) for view in views])
        with turn, torch.inference_mode():
            images = images.to(device).contiguous(memory_format=torch.channels_last)
            vectors: Tensor = module(images).to("cpu", torch.float32)
        return vectors

    with ExitStack() as stack:
        if on_cpu:
            stack.enter_context(reused_buffers())
        stack.enter_context(torch_threads(cores // workers if on_cpu else 1))
        pool = stack.enter_context(ThreadPoolExecutor(workers, thread_name_prefix="qurate-embed"))
        yield lambda views: pool.map(embed_batch, _batches(views, batch_size))


def _batches(views: Sequence[View], size: int) -> list[Sequence[View]]:
    return [views[start : start + size] for start in range(0, len(views), size)]


def _prepare(view: View, transform: Transform) -> Tensor:
    image = read_image(view.path)
    if stamp_of(view.path) != view.stamp:
        raise UnreadableImageError(
            f"{view.path}: changed while it was being embedded. Embed again when nothing writes to it."
        )
    if view.number == 0:
        return transform.for_testing(image)
    seed = int.from_bytes(view.key[:8], "big") >> 1
    return transform.for_training(image, torch.Generator().manual_seed(seed))


def _digest(module: nn.Module) -> str:
    digest = hashlib.sha256()
    for name, values in sorted(module.state_dict().items()):
        if not name.endswith("num_batches_tracked"):  # counts training steps; no output depends on it
            digest.update(f"{name} {values.dtype} {tuple(values.shape)}\n".encode())
            digest.update(values.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy())
    return digest.hexdigest()
