"""Image files as network inputs: decoding, the two transforms of the protocol. Loads torch only to make tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image, ImageOps

from qurate.errors import ConfigError, DataError, QurateError
from qurate.runtime.machine import available_cores
from qurate.runtime.paths import StrPath

if TYPE_CHECKING:
    import torch
    from torch import Tensor

OnProgress = Callable[[int, int], None]
"""Called with how many images are done and how many there are."""

ENOUGH = 3
"""A large JPEG is decoded at a half, a quarter or an eighth of its size where each side is still this many times the
side that it is resized to. Our choice: embeddings then move by a seventh of what another filter for resizing would
move them by (docs/performance.md)."""

Interpolation = Literal["bilinear", "bicubic"]
_FILTERS = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}

Read = TypeVar("Read")


class UnreadableImageError(QurateError, ValueError):
    """An image file that cannot be decoded; the message names the file and the way out."""


@dataclass(frozen=True)
class ImageFiles:
    """Inputs that are still on disk: one image file per sample."""

    paths: tuple[Path, ...]

    def __len__(self) -> int:
        return len(self.paths)

    def __repr__(self) -> str:
        first = f", first {str(self.paths[0])!r}" if self.paths else ""
        return f"ImageFiles({len(self)} files{first})"


@dataclass(frozen=True)
class Transform:
    """How a decoded image becomes a tensor: resize, crop, normalise.

    Training draws the crop and the flip at random; testing takes the centre. Paper: the protocol of the
    MME reference code, resize 256 x 256, crop 224, flip.

    Args:
        resize: Side in pixels of the square that every image is resized to.
        crop: Side in pixels of the square cut from it.
        mean: Mean of each colour channel, subtracted.
        std: Standard deviation of each colour channel, divided by.
        interpolation: Of the resizing, with Pillow's antialiasing.
    """

    resize: int = 256
    crop: int = 224
    mean: tuple[float, float, float] = (0.485, 0.456, 0.406)
    std: tuple[float, float, float] = (0.229, 0.224, 0.225)
    interpolation: Interpolation = "bilinear"

    def __post_init__(self) -> None:
        if not 0 < self.crop <= self.resize:
            raise ConfigError(
                f"Transform: crop must be between 1 and resize ({self.resize}), got {self.crop}. "
                "Choose a smaller crop or a larger resize."
            )
        if self.interpolation not in _FILTERS:
            raise ConfigError(
                f"Transform: interpolation must be one of {', '.join(_FILTERS)}, got {self.interpolation!r}."
            )

    def to_dict(self) -> dict[str, Any]:
        """As files say it; those of before knew no interpolation but bilinear, so that one is not named."""
        return {name: value for name, value in asdict(self).items() if (name, value) != ("interpolation", "bilinear")}

    def read(self, path: Path) -> Image.Image:
        """Decode one file, with no more pixels than resizing needs.

        Raises:
            UnreadableImageError: If the file is missing, truncated or no image.
        """
        return read_image(path, least=ENOUGH * self.resize)

    def for_testing(self, image: Image.Image) -> Tensor:
        """The centre crop, (3, crop, crop) float32."""
        import torch

        return self.normalize(torch.from_numpy(self.center(image)))

    def center(self, image: Image.Image) -> NDArray[np.uint8]:
        """The centre crop before it is normalised, (crop, crop, 3)."""
        offset = (self.resize - self.crop) // 2
        return self._crop(image, top=offset, left=offset)

    def normalize(self, pixels: Tensor) -> Tensor:
        """Pixels (..., crop, crop, 3) of uint8 as the network takes them, (..., 3, crop, crop) float32."""
        import torch

        mean, std = (torch.tensor(values, device=pixels.device).view(3, 1, 1) for values in (self.mean, self.std))
        return pixels.movedim(-1, -3).to(torch.float32).div_(255).sub_(mean).div_(std)

    def for_training(self, image: Image.Image, generator: torch.Generator) -> Tensor:
        """A random crop, flipped half of the time, (3, crop, crop) float32."""
        import torch

        room = self.resize - self.crop + 1
        top, left = torch.randint(room, (2,), generator=generator).tolist()
        flip = bool(torch.randint(2, (1,), generator=generator))
        cropped = self.normalize(torch.from_numpy(self._crop(image, top=top, left=left)))
        return cropped.flip(-1) if flip else cropped

    def resized(self, image: Image.Image) -> Image.Image:
        """The square that is cut from."""
        return image.resize((self.resize, self.resize), _FILTERS[self.interpolation])

    def _crop(self, image: Image.Image, top: int, left: int) -> NDArray[np.uint8]:
        """A window of the resized square, (crop, crop, 3).

        Where the side of the square is a power of two, the window's corners in the image are exact in floating point:
        the window alone is then made, which is faster, with the same pixels.
        """
        right, bottom = left + self.crop, top + self.crop
        if self.resize & (self.resize - 1) or image.size == (self.resize, self.resize):
            window = self.resized(image).crop((left, top, right, bottom))
        else:
            x, y = (side / self.resize for side in image.size)
            box = (left * x, top * y, right * x, bottom * y)
            window = image.resize((self.crop, self.crop), _FILTERS[self.interpolation], box)
        return np.array(window, dtype=np.uint8)


def read_image(path: Path, least: int | None = None) -> Image.Image:
    """Decode one file to RGB, upright by its EXIF tag.

    Args:
        path: The file.
        least: A JPEG may be decoded at a half, a quarter or an eighth of its size where both sides keep this many
            pixels, which is up to four times as fast; smaller ones, and other formats, are decoded as they are.

    Raises:
        UnreadableImageError: If the file is missing, truncated or no image.
    """
    if path.exists() and not path.is_file():  # opening a pipe would wait for ever
        raise UnreadableImageError(f"{path}: not a regular file. Remove it, or give the image itself.")
    try:
        if path.suffix == ".npy":  # an image that `prepare_images` has stored
            return Image.fromarray(np.load(path, allow_pickle=False))
        with Image.open(path) as image:
            if least is not None:
                image.draft(None, (least, least))
            image.load()
            return _to_rgb(_upright(image))
    except Exception as error:  # PIL's format readers raise whatever their parsers meet
        raise unreadable_image(path, error) from error


def unreadable_image(path: Path, error: Exception) -> UnreadableImageError:
    """What to say of a file that could not be read as an image."""
    if isinstance(error, FileNotFoundError):
        return UnreadableImageError(f"{path}: no such file. Check the list or folder that names it.")
    if isinstance(error, OSError) and error.errno is not None:  # of the system; PIL's own have no number
        return UnreadableImageError(f"{path}: cannot be read ({error.strerror}). Check its permissions.")
    return UnreadableImageError(f"{path}: cannot be decoded as an image ({error}). Replace the file or remove it.")


def try_all(
    read: Callable[[Path], Read], paths: Iterable[Path], on_progress: OnProgress | None = None
) -> tuple[dict[Path, Read], dict[Path, str]]:
    """What `read` makes of each file, and of those that it cannot read the reason."""

    def attempt(path: Path) -> Read | UnreadableImageError:
        try:
            return read(path)
        except UnreadableImageError as error:
            return error

    listed = list(paths)
    found: dict[Path, Read] = {}
    unreadable: dict[Path, str] = {}
    pool = ThreadPoolExecutor(min(available_cores(), 8))
    try:
        for done, (path, result) in enumerate(zip(listed, pool.map(attempt, listed), strict=True), start=1):
            if isinstance(result, UnreadableImageError):
                unreadable[path] = str(result)
            else:
                found[path] = result
            if on_progress is not None:
                on_progress(done, len(listed))
    finally:
        pool.shutdown(cancel_futures=True)  # Ctrl-C must not wait for the rest
    return found, unreadable


def check_pixels(path: Path) -> None:
    """Decode a file and forget it; UnreadableImageError if that fails."""
    read_image(path)


def check_header(path: Path) -> None:
    """Read the header of an image file; UnreadableImageError if it is none. Damage further in shows on decoding."""
    try:
        with Image.open(path):
            pass
    except Exception as error:  # PIL's format readers raise whatever their parsers meet
        raise unreadable_image(path, error) from error


def _upright(image: Image.Image) -> Image.Image:
    """The image turned as its EXIF tag says; the same one, and not a copy, where it is upright."""
    try:
        is_upright = image.getexif().get(ExifTags.Base.Orientation, 1) == 1
        return image if is_upright else ImageOps.exif_transpose(image)
    except Exception:  # a damaged tag says nothing of the pixels, which are sound
        return image


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I;16") or image.mode in ("I", "F"):
        # PIL clips these to 255 when it converts; keep the whole range instead.
        values = np.nan_to_num(np.asarray(image, dtype=np.float32))
        white = _white_level(image.mode, float(values.max()))
        image = Image.fromarray(np.clip(values / white * 255, 0, 255).astype(np.uint8))
    if image.mode in ("P", "LA", "RGBA", "PA"):
        rgba = image.convert("RGBA")
        background = Image.new("RGBA", rgba.size, "white")
        image = Image.alpha_composite(background, rgba)
    return image if image.mode == "RGB" else image.convert("RGB")


def _white_level(mode: str, brightest: float) -> float:
    """The value that means white: 16-bit grey knows it, integers and floats of other files do not say."""
    if mode.startswith("I;16"):
        return 65535.0
    levels = (1.0, 255.0, 65535.0) if mode == "F" else (255.0, 65535.0)
    return next((level for level in levels if brightest <= level), brightest)


Images: TypeAlias = StrPath | Image.Image | NDArray[Any] | Sequence[StrPath | Image.Image | NDArray[Any]]
"""What a model can look at: files by where they are, or images in memory."""


def images_in_memory(given: object) -> list[Image.Image] | None:
    """PIL images, and arrays (H, W), (H, W, 3), (H, W, 4) of uint8 as such, one or several; None for paths.

    Raises:
        DataError: If an array is no image, or there is no image, or only some are in memory.
    """
    if isinstance(given, Image.Image) or (isinstance(given, np.ndarray) and given.dtype.kind not in "UO"):
        images: list[Any] = list(given) if isinstance(given, np.ndarray) and given.ndim == 4 else [given]
    elif isinstance(given, Sequence) and any(isinstance(one, Image.Image | np.ndarray) for one in given):
        images = list(given)
    else:
        return None
    return [_as_image(image) for image in images]


def _as_image(image: object) -> Image.Image:
    if isinstance(image, Image.Image):
        image = _upright(image)  # a PNG would lose the orientation
        return image if image.mode in _PNG_MODES else image.convert("RGB")
    if not isinstance(image, np.ndarray):
        raise DataError(
            f"images must be all paths or all in memory, got {type(image).__name__} among images in memory."
        )
    is_color = image.ndim == 3 and image.shape[2] in (3, 4)
    if image.dtype != np.uint8 or not (is_color or image.ndim == 2) or not image.size:
        raise DataError(
            "an image in memory must be an array (H, W, 3), (H, W, 4) or (H, W) of uint8, got "
            f"{image.shape} of {image.dtype}. Multiply by 255 where numbers are between 0 and 1."
        )
    return Image.fromarray(image)


_PNG_MODES = ("1", "L", "LA", "P", "RGB", "RGBA", "I;16")
