from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tests.data.files import image_files

from qurate.data.batches import ImageDataset
from qurate.data.images import ENOUGH, Interpolation, Transform, UnreadableImageError, read_image
from qurate.errors import ConfigError


def _saved(path: Path, image: Image.Image, **options: Any) -> Path:
    image.save(path, **options)
    return path


def _pixel(image: Image.Image, x: int = 0, y: int = 0) -> tuple[int, ...]:
    value = image.getpixel((x, y))
    assert isinstance(value, tuple)
    return tuple(int(v) for v in value)


@pytest.mark.parametrize(
    ("mode", "color", "suffix", "expected"),
    [
        ("RGB", (200, 10, 30), "png", (200, 10, 30)),
        ("L", 77, "png", (77, 77, 77)),
        ("1", 1, "png", (255, 255, 255)),
        ("RGBA", (0, 0, 0, 0), "png", (255, 255, 255)),
        ("RGBA", (9, 8, 7, 255), "png", (9, 8, 7)),
        ("LA", (40, 255), "png", (40, 40, 40)),
        ("P", 0, "gif", (0, 0, 0)),
        ("CMYK", (0, 0, 0, 255), "tif", (0, 0, 0)),
    ],
)
def test_every_colour_mode_becomes_rgb(
    tmp_path: Path, mode: str, color: int | tuple[int, ...], suffix: str, expected: tuple[int, ...]
) -> None:
    image = read_image(_saved(tmp_path / f"a.{suffix}", Image.new(mode, (3, 2), color)))
    assert image.mode == "RGB"
    assert image.size == (3, 2)
    assert _pixel(image) == expected


def test_a_cmyk_jpeg_is_read_without_inversion(tmp_path: Path) -> None:
    image = read_image(_saved(tmp_path / "a.jpg", Image.new("CMYK", (8, 8), (0, 255, 255, 0)), quality=95))
    red, green, blue = _pixel(image)
    assert red > 240
    assert green < 15
    assert blue < 15


@pytest.mark.parametrize(("value", "expected"), [(65535, 255), (32768, 127), (200, 0), (0, 0)])
def test_16_bit_grey_keeps_its_range(tmp_path: Path, value: int, expected: int) -> None:
    image = Image.fromarray(np.full((2, 2), value, dtype=np.uint16))
    assert _pixel(read_image(_saved(tmp_path / "a.png", image))) == (expected,) * 3


@pytest.mark.parametrize(("value", "expected"), [(0.5, 127), (100.0, 100), (65535.0, 255), (np.nan, 0), (-3.0, 0)])
def test_float_grey_is_scaled_by_its_range(tmp_path: Path, value: float, expected: int) -> None:
    image = Image.fromarray(np.full((2, 2), value, dtype=np.float32))
    assert _pixel(read_image(_saved(tmp_path / "a.tif", image))) == (expected,) * 3


def test_exif_turns_the_image_upright(tmp_path: Path) -> None:
    image = Image.new("RGB", (4, 2), "white")
    image.putpixel((0, 0), (255, 0, 0))
    exif = Image.Exif()
    exif[0x0112] = 6  # turn by 90 degrees clockwise to view
    upright = read_image(_saved(tmp_path / "a.png", image, exif=exif))
    assert upright.size == (2, 4)
    assert _pixel(upright, 1, 0) == (255, 0, 0)


@pytest.mark.parametrize("method", ["load", "tobytes"])  # read, or written again after the pixels were turned
def test_a_damaged_exif_tag_leaves_the_image_as_it_is(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise SyntaxError("not a TIFF file")

    exif = Image.Exif()
    exif[0x0112] = 6
    path = _saved(tmp_path / "a.jpg", Image.new("RGB", (4, 2)), exif=exif)
    monkeypatch.setattr(f"PIL.Image.Exif.{method}", fail)
    assert read_image(path).size == (4, 2)


def _text(path: Path) -> None:
    path.write_text("no image")


def _empty(path: Path) -> None:
    path.touch()


def _truncated(path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    Image.fromarray(noise).save(path)
    path.write_bytes(path.read_bytes()[:1500])


def _missing(_: Path) -> None:
    pass


@pytest.mark.parametrize("spoil", [_text, _empty, _truncated, _missing, Path.mkdir])
def test_an_unreadable_file_is_named(tmp_path: Path, spoil: Callable[[Path], None]) -> None:
    path = tmp_path / "tür auf.jpg"
    spoil(path)
    with pytest.raises(UnreadableImageError, match=r"tür auf\.jpg"):
        read_image(path)


@pytest.mark.parametrize("size", [(1, 1), (1, 300), (500, 20)])
def test_any_size_fits_the_network(size: tuple[int, int]) -> None:
    tensor = Transform(resize=32, crop=24).for_testing(Image.new("RGB", size, "white"))
    assert tensor.shape == (3, 24, 24)
    assert tensor.dtype == torch.float32


def test_test_transform_is_the_normalised_centre() -> None:
    pixels = np.zeros((8, 8, 3), dtype=np.uint8)
    pixels[2:6, 2:6] = 255
    transform = Transform(resize=8, crop=4, mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25))
    assert torch.equal(transform.for_testing(Image.fromarray(pixels)), torch.full((3, 4, 4), 2.0))


@pytest.mark.parametrize(
    ("interpolation", "by"), [("bilinear", Image.Resampling.BILINEAR), ("bicubic", Image.Resampling.BICUBIC)]
)
def test_images_are_resized_by_the_interpolation(interpolation: Interpolation, by: Image.Resampling) -> None:
    image = Image.fromarray(np.random.default_rng(0).integers(0, 255, (30, 50, 3), dtype=np.uint8))
    found = Transform(20, 20, (0.0, 0.0, 0.0), (1.0, 1.0, 1.0), interpolation).for_testing(image)
    assert torch.equal(found.permute(1, 2, 0), torch.from_numpy(np.array(image.resize((20, 20), by))) / 255)


def test_another_interpolation_is_refused_and_only_it_is_written() -> None:
    with pytest.raises(ConfigError, match="bilinear, bicubic, got 'nearest'"):
        Transform(interpolation="nearest")  # type: ignore[arg-type]  # on purpose
    assert "interpolation" not in Transform().to_dict()  # as in files of before
    assert Transform(interpolation="bicubic").to_dict()["interpolation"] == "bicubic"


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize("resize", [64, 50])  # of a power of two the window alone is made
def test_the_window_has_the_pixels_of_the_whole_square(interpolation: Interpolation, resize: int) -> None:
    rng = np.random.default_rng(0)
    transform = Transform(resize, 40, interpolation=interpolation)
    generator = torch.Generator().manual_seed(0)
    sides = [(64, 64), (64, 300), (33, 64), (1, 1), (1000, 3), *rng.integers(1, 400, (20, 2)).tolist()]
    for width, height in sides:
        image = Image.fromarray(rng.integers(0, 256, (height, width, 3), dtype=np.uint8))
        square = np.asarray(transform.resized(image))
        start = (resize - 40) // 2
        assert (transform.center(image) == square[start : start + 40, start : start + 40]).all(), image.size
        drawn = transform.for_training(image, generator)
        windows = np.lib.stride_tricks.sliding_window_view(square, (40, 40), axis=(0, 1))
        both = torch.stack([drawn, drawn.flip(-1)])
        whole = transform.normalize(torch.from_numpy(windows.reshape(-1, 3, 40, 40).transpose(0, 2, 3, 1).copy()))
        assert (both[:, None] == whole).flatten(2).all(dim=2).any()


def test_training_crops_are_windows_of_the_image_or_of_its_mirror() -> None:
    ramp = np.tile(np.arange(6, dtype=np.uint8)[:, None, None], (1, 6, 3)) * 6
    ramp += np.arange(6, dtype=np.uint8)[None, :, None]  # each pixel's value is its place
    transform = Transform(resize=6, crop=4, mean=(0, 0, 0), std=(1, 1, 1))
    image = Image.fromarray(ramp)
    seen = set()
    for seed in range(60):
        crop = transform.for_training(image, torch.Generator().manual_seed(seed))
        values = (crop[0] * 255).round().to(torch.int64)
        flipped = bool(values[0, 0] > values[0, -1])
        upright = values.flip(-1) if flipped else values
        top, left = divmod(int(upright[0, 0]), 6)
        assert upright.tolist() == ramp[top : top + 4, left : left + 4, 0].tolist()
        seen.add((top, left, flipped))
    assert len(seen) == 3 * 3 * 2


def test_crop_larger_than_resize_is_refused() -> None:
    with pytest.raises(ValueError, match="crop must be between 1 and resize"):
        Transform(resize=10, crop=11)


def test_the_draw_decides_the_crop(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    files = image_files([_saved(tmp_path / "a.png", Image.fromarray(noise))])
    dataset = ImageDataset(files, Transform(resize=64, crop=16))
    assert len(dataset) == 1
    assert torch.equal(dataset[0, 5], dataset[0, 5])
    assert not torch.equal(dataset[0, 5], dataset[0, 6])
    assert torch.equal(dataset[0, -1], dataset.transform.for_testing(Image.fromarray(noise)))


def _photo(size: tuple[int, int]) -> Image.Image:
    """Waves from coarse to fine, and some noise."""
    x, y = np.meshgrid(np.linspace(0, 1, size[0]), np.linspace(0, 1, size[1]))
    waves = np.stack([np.sin(40 * x * x), np.sin(60 * y * x), np.sin(25 * (x + y) ** 2)], axis=2)
    noise = np.random.default_rng(0).normal(0, 8, waves.shape)
    return Image.fromarray(np.clip(127 + 90 * waves + noise, 0, 255).astype(np.uint8))


@pytest.mark.parametrize(
    ("size", "read"),
    [
        ((767, 900), (767, 900)),
        ((768, 768), (384, 384)),
        ((1535, 5000), (768, 2500)),
        ((1536, 1600), (384, 400)),
        ((6144, 6144), (768, 768)),
    ],
)
def test_a_large_jpeg_is_decoded_at_a_part_of_its_size(
    tmp_path: Path, size: tuple[int, int], read: tuple[int, int]
) -> None:
    path = _saved(tmp_path / "a.jpg", Image.new("RGB", size))
    assert read_image(path).size == size
    assert read_image(path, least=384).size == read
    assert read_image(_saved(tmp_path / "a.png", Image.new("RGB", size)), least=384).size == size


@pytest.mark.parametrize("side", [300, 1000])  # of Amazon and DSLR in Office-31
def test_images_of_office31_are_decoded_whole_for_the_protocol(tmp_path: Path, side: int) -> None:
    path = _saved(tmp_path / "a.jpg", _photo((side, side)))
    assert np.array_equal(np.asarray(Transform().read(path)), np.asarray(read_image(path)))


def test_a_jpeg_decoded_smaller_is_the_same_picture_once_it_is_resized(tmp_path: Path) -> None:
    transform = Transform(resize=128, crop=112)
    path = _saved(tmp_path / "a.jpg", _photo((1600, 1200)), quality=92)
    whole, part = read_image(path), transform.read(path)
    assert min(part.size) >= ENOUGH * 128
    assert part.size < whole.size
    change = (transform.for_testing(part) - transform.for_testing(whole)).abs()
    sharper = whole.resize((128, 128), Image.Resampling.BICUBIC)
    assert change.mean() < 0.2 * (transform.for_testing(sharper) - transform.for_testing(whole)).abs().mean()


def test_a_jpeg_decoded_smaller_is_upright_and_a_truncated_one_is_still_noticed(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    path = _saved(tmp_path / "a.jpg", _photo((800, 400)), exif=exif)
    assert read_image(path, least=100).size == (100, 200)
    path.write_bytes(path.read_bytes()[:-2000])
    with pytest.raises(UnreadableImageError, match="cannot be decoded"):
        read_image(path, least=100)
