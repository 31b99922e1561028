"""What a backbone is called: its model, after '@' its image size and its pooling of tokens, and '+' between several."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Literal, get_args

from qurate.errors import ConfigError

Pooling = Literal["class", "mean", "both"]
POOLINGS: tuple[Pooling, ...] = get_args(Pooling)

_MEMBER = re.compile(rf"(?P<model>.+?)(?:@(?P<size>[0-9]{{1,6}}))?(?:@(?P<pooling>{'|'.join(POOLINGS)}))?")


@dataclass(frozen=True)
class Member:
    """One backbone of a name.

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


def members_of(name: str) -> tuple[Member, ...]:
    """The backbones that a name joins, one or more.

    Raises:
        ConfigError: If it is no text, or one of them is empty.

    Example:
        >>> members_of("timm/vit_small_patch14_dinov2@224@mean")
        (Member(model='timm/vit_small_patch14_dinov2', image_size=224, pooling='mean'),)
        >>> [member.model for member in members_of("timm/resnet18+timm/resnet34")]
        ['timm/resnet18', 'timm/resnet34']
    """
    if not isinstance(name, str) or not name:
        raise ConfigError(f"backbone must be text, got {name!r}.")
    members = []
    for word in name.split("+"):
        found = _MEMBER.fullmatch(word)
        if found is None:
            raise ConfigError(f"backbone must be one name, or several with '+' between them, got {name!r}.")
        members.append(Member(found["model"], int(found["size"] or 0), found["pooling"] or ""))
    return tuple(members)


def name_with(name: str, image_size: int | None = None, pooling: str | None = None) -> str:
    """The name of the same backbones at an image size, and with a pooling.

    Args:
        name: Of one or several.
        image_size: For all of them; None leaves each as it is named.
        pooling: Likewise.

    Raises:
        ConfigError: If one is named with another size or pooling, or a value is not allowed.

    Example:
        >>> name_with("timm/vit_small_patch14_dinov2", 224)
        'timm/vit_small_patch14_dinov2@224'
    """
    if image_size is not None and (type(image_size) is not int or not 1 <= image_size <= 4096):
        raise ConfigError(f"`image_size` must be between 1 and 4096 pixels, got {image_size!r}.")
    if pooling is not None and pooling not in POOLINGS:
        raise ConfigError(f"`pooling` must be one of {', '.join(POOLINGS)}, got {pooling!r}.")
    members = []
    for member in members_of(name):
        if (image_size and member.image_size not in (0, image_size)) or (
            pooling and member.pooling not in ("", pooling)
        ):
            raise ConfigError(f"backbone '{member}' says its size or pooling itself. Leave out the other one.")
        members.append(replace(member, image_size=image_size or member.image_size, pooling=pooling or member.pooling))
    return "+".join(str(member) for member in members)


def check_trainable(name: str) -> None:
    """Whether all layers of a backbone can be trained.

    Raises:
        ConfigError: If the name joins several.
    """
    if len(members_of(name)) > 1:
        raise ConfigError(
            f"several backbones, '{name}', can be put side by side only frozen. Use `train='head'`, or one of them."
        )


def weights_of(name: str, weights: str) -> tuple[str, ...]:
    """The weights of each backbone of a name: one word for all, or as many with '+' between them.

    Raises:
        ConfigError: If there are more or fewer.

    Example:
        >>> weights_of("timm/resnet18+timm/resnet34", "pretrained")
        ('pretrained', 'pretrained')
    """
    count = len(members_of(name))
    words = weights.split("+") if count > 1 else [weights]
    if len(words) not in (1, count) or not all(words):
        raise ConfigError(
            f"`weights` must be one for all {count} backbones of '{name}', or one for each with '+' between them, got "
            f"{weights!r}."
        )
    return tuple(words * count if len(words) == 1 else words)
