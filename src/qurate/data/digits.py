"""The embedded pair: typeset digits (source) and handwritten digits (target), no download.

Both are 8x8 and made the same way: a 32x32 bitmap, white on black, of which each 4x4 block is summed to one
of 17 grey levels. That is how the handwritten digits that scikit-learn ships were made, so the gap between
the domains is one of shape, not of resolution or brightness.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from numbers import Integral
from pathlib import Path

import matplotlib
import numpy as np
import torch
from numpy.random import Generator
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont
from sklearn.datasets import load_digits
from torch import Tensor

from qurate.data.samples import Labeled, SealedLabels, Split, Unlabeled
from qurate.errors import ConfigError
from qurate.runtime.validation import LARGEST_SEED, MOST, show

CLASSES = tuple("0123456789")

FONTS = (
    "DejaVuSans.ttf",
    "DejaVuSans-Bold.ttf",
    "DejaVuSans-Oblique.ttf",
    "DejaVuSans-BoldOblique.ttf",
    "DejaVuSansMono.ttf",
    "DejaVuSansMono-Bold.ttf",
    "DejaVuSansMono-Oblique.ttf",
    "DejaVuSansMono-BoldOblique.ttf",
    "DejaVuSerif.ttf",
    "DejaVuSerif-Bold.ttf",
    "DejaVuSerif-Italic.ttf",
    "DejaVuSerif-BoldItalic.ttf",
    "STIXGeneral.ttf",
    "STIXGeneralBol.ttf",
    "STIXGeneralItalic.ttf",
    "STIXGeneralBolIta.ttf",
    "cmb10.ttf",
    "cmr10.ttf",
    "cmss10.ttf",
    "cmti10.ttf",
    "cmtt10.ttf",
)
"""The fonts in matplotlib's data folder that have lining figures for all ten digits."""

SMALLEST = 174
"""Handwritten digits of the smallest class."""

CANVAS = 32  # pixels a side before the blocks are summed, as in the handwritten set
BLOCK = 4
LEVELS = BLOCK * BLOCK

SCALE = (0.9, 1.05)  # height of the digit over the height of the canvas
SHIFT = 2.0  # canvas pixels, each way
ROTATION = 10.0  # degrees, each way
STROKES = (0, 1)  # canvas pixels added around the outline

_SOURCE, _TARGET = 0, 1  # a random stream each: the source does not move when the target's draw does


def digits_split(*, shots: int = 3, seed: int, source_per_class: int = 200, validation_shots: int = 0) -> Split:
    """Typeset to handwritten digits, with a few labels per class in the target.

    For one seed the labelled target samples of n shots are among those of n + 1 shots, the validation
    samples are the same at any number of shots, and the source is the same throughout.

    Args:
        shots: Labelled handwritten digits of each class.
        seed: Of the typeset geometry and of the draw of labelled, validation and unlabelled samples.
        source_per_class: Typeset digits of each class.
        validation_shots: Handwritten digits of each class kept for model selection; 0 for none.

    Returns:
        The split; images are (N, 1, 8, 8) float32 in [0, 1].

    Example:
        >>> split = digits_split(shots=3, seed=0, source_per_class=20)
        >>> len(split.source), len(split.target_labeled), len(split.target_unlabeled)
        (200, 30, 1767)
    """
    check_shots(shots, validation_shots)
    _check_integer("digits_split: seed", seed, 0, LARGEST_SEED)
    _check_integer("digits_split: source_per_class", source_per_class, 1, MOST)
    images, labels = handwritten_digits()
    order = torch.from_numpy(np.random.default_rng((seed, _TARGET)).permutation(len(labels)))
    members = [order[labels[order] == k] for k in range(len(CLASSES))]
    # Labelled from the front and validation from the back of each class: neither moves when the other grows.
    labeled = torch.cat([member[:shots] for member in members])
    validation = torch.cat([member[len(member) - validation_shots :] for member in members])
    # In drawn order: the set is stored 0, 1, 2, ..., so stored positions would give labels away.
    unlabeled = order[~torch.isin(order, torch.cat([labeled, validation]))]
    return Split(
        classes=CLASSES,
        source=typeset_digits(source_per_class, seed),
        target_labeled=Labeled(images[labeled], labels[labeled]),
        target_unlabeled=Unlabeled(images[unlabeled], SealedLabels(labels[unlabeled])),
        validation=Labeled(images[validation], labels[validation]) if validation_shots else None,
    )


def typeset_digits(per_class: int, seed: int, fonts: Sequence[str] = FONTS) -> Labeled:
    """Digits set in matplotlib's fonts, each a little shifted, scaled, turned and thickened at random.

    The same seed gives the same images; a smaller `per_class` gives the first of a larger one.

    Args:
        per_class: Images of each digit.
        seed: Of the choice of font and geometry.
        fonts: Files in matplotlib's font folder to choose from.

    Returns:
        10 * per_class images, (N, 1, 8, 8) float32 in [0, 1], their labels running 0, 1, ..., 9, 0, 1, ...
    """
    _check_integer("typeset_digits: per_class", per_class, 1, MOST)
    _check_integer("typeset_digits: seed", seed, 0, LARGEST_SEED)
    rng = np.random.default_rng((seed, _SOURCE))
    images = np.stack([_render(digit, rng, fonts) for _ in range(per_class) for digit in CLASSES])
    labels = torch.arange(len(CLASSES)).repeat(per_class)
    return Labeled(torch.from_numpy(images).unsqueeze(1), labels)


def handwritten_digits() -> tuple[Tensor, Tensor]:
    """Images of all 1797 handwritten digits that scikit-learn ships, (1797, 1, 8, 8) float32 in [0, 1], and labels."""
    digits = load_digits()
    images = torch.from_numpy(digits.images / LEVELS).float().unsqueeze(1)
    return images, torch.from_numpy(digits.target).long()


def check_shots(shots: int, validation_shots: int = 0) -> None:
    """Refuse more handwritten digits of each class than there are: one of the smallest class must stay unlabelled."""
    _check_integer("digits_split: validation_shots", validation_shots, 0, SMALLEST - 2)
    _check_integer("digits_split: shots", shots, 1, SMALLEST - 1 - validation_shots)


def _check_integer(where: str, value: object, least: int, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, Integral) or not least <= int(value) <= most:
        raise ConfigError(f"{where} must be an integer between {least} and {most}, got {show(value)}.")


def _render(digit: str, rng: Generator, fonts: Sequence[str]) -> NDArray[np.float32]:
    """One typeset digit, (8, 8) in [0, 1], its font and geometry drawn from `rng`."""
    name = fonts[int(rng.integers(len(fonts)))]
    stroke = STROKES[rng.integers(len(STROKES))]
    height = CANVAS * rng.uniform(*SCALE) - 2 * stroke
    shift = rng.uniform(-SHIFT, SHIFT, size=2)
    font = _font(name, size=height / _height_per_em(name, digit))
    left, top, right, bottom = font.getbbox(digit)
    corner = (CANVAS - left - right) / 2 + shift[0], (CANVAS - top - bottom) / 2 + shift[1]
    canvas = Image.new("L", (CANVAS, CANVAS))
    ImageDraw.Draw(canvas).text(corner, digit, fill=255, font=font, stroke_width=stroke)
    turned = canvas.rotate(rng.uniform(-ROTATION, ROTATION), resample=Image.Resampling.BICUBIC)
    # Mean of each 4x4 block, rounded to the 17 levels of the handwritten set.
    blocks = np.asarray(turned.reduce(BLOCK), dtype=np.float32) / 255
    return (np.round(blocks * LEVELS) / LEVELS).astype(np.float32)


@cache
def _height_per_em(name: str, digit: str) -> float:
    """Height of the digit over the font's size: like the handwritten ones, each is to fill the canvas."""
    _, top, _, bottom = _font(name, size=200).getbbox(digit)
    return (bottom - top) / 200


def _font(name: str, size: float) -> ImageFont.FreeTypeFont:
    path = Path(matplotlib.get_data_path()) / "fonts" / "ttf" / name
    # The basic layout is in every Pillow; the other depends on what else is installed.
    return ImageFont.truetype(path, size, layout_engine=ImageFont.Layout.BASIC)
