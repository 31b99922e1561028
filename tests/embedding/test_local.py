"""Embedding by processes that decode and a device that computes; the device is a CPU here, and all else is the same."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from qurate.data.images import ImageFiles, Transform, UnreadableImageError
from qurate.embedding import embed
from qurate.embedding import forward as local
from qurate.embedding.backbone import FrozenBackbone
from qurate.embedding.cache import HashedFile, hash_files
from qurate.embedding.embed import embed_files
from qurate.embedding.forward import DecodedBatch, EmbeddingError, on_cores, on_device

CPU = torch.device("cpu")


class _Means(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.passed: list[int] = []

    def forward(self, images: Tensor) -> Tensor:
        self.passed.append(len(images))
        return images.mean(dim=(2, 3))


@pytest.fixture
def frozen() -> FrozenBackbone:
    return FrozenBackbone("means", _Means(), 3, Transform(resize=8, crop=6))


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    rng = np.random.default_rng(0)
    paths = [tmp_path / f"{number:02d}.png" for number in range(11)]
    for path in paths:
        Image.fromarray(rng.integers(0, 256, (9, 9, 3), dtype=np.uint8)).save(path)
    paths[4].write_bytes(paths[4].read_bytes()[:60])
    return paths


def _batches(files: Sequence[Path], size: int) -> list[list[HashedFile]]:
    contents = list(hash_files(files)[0].values())
    return [contents[start : start + size] for start in range(0, len(contents), size)]


def test_processes_decode_and_the_device_takes_their_batches_together(
    frozen: FrozenBackbone, files: list[Path]
) -> None:
    expected = list(on_cores(frozen, torch.float32, 2)(_batches(files, 2)))
    module = frozen.module
    assert isinstance(module, _Means)
    assert sorted(module.passed) == [1, 1, 2, 2, 2, 2]
    module.passed.clear()
    found = list(on_device(frozen, CPU, torch.float32, 4, workers=2)(_batches(files, 2)))
    assert module.passed == [4, 3, 3]  # one of the third batch cannot be read
    assert [made.files for made in found] == [made.files for made in expected]
    assert [list(made.unreadable) for made in found] == [[], [], [files[4]], [], [], []]
    for one, two in zip(found, expected, strict=True):
        assert torch.equal(one.vectors, two.vectors)


def test_a_device_fills_the_cache_as_the_cores_do(
    frozen: FrozenBackbone, files: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    readable = ImageFiles(tuple(path for path in files if path != files[4]))
    expected = embed_files(files, frozen, cache=tmp_path / "one").of(readable)

    def instead(frozen: FrozenBackbone, precision: torch.dtype, size: int) -> object:
        return on_device(frozen, CPU, precision, size, workers=1)

    monkeypatch.setattr(embed, "on_cores", instead)
    assert torch.equal(embed_files(files, frozen, cache=tmp_path / "two").of(readable), expected)
    one, two = (
        {path.relative_to(root): path.read_bytes() for path in root.rglob("*.safetensors")}
        for root in (tmp_path / "one", tmp_path / "two")
    )
    assert one == two != {}


def test_a_file_that_changes_meanwhile_is_named_as_it_is_by_the_cores(
    frozen: FrozenBackbone, files: list[Path]
) -> None:
    batches = _batches(files[:2], 1)
    Image.new("RGB", (30, 30)).save(files[1])
    stream = on_device(frozen, CPU, torch.float32, 1, workers=1)(batches)
    assert len(next(stream).files) == 1
    with pytest.raises(UnreadableImageError, match=r"^\S+01\.png: changed while it was being embedded"):
        next(stream)


def test_a_process_that_is_killed_while_it_decodes_is_an_error_of_ours(
    frozen: FrozenBackbone, files: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(batch: Sequence[HashedFile], transform: Transform) -> DecodedBatch:
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("still alive")

    monkeypatch.setattr(local, "decode", die)
    with pytest.raises(EmbeddingError, match="was ended from outside"):
        list(on_device(frozen, CPU, torch.float32, 1, workers=1)(_batches(files, 2)))


def test_a_device_is_given_whole_batches_and_its_loader_small_ones(frozen: FrozenBackbone) -> None:
    size, start = embed._embedder(frozen, torch.device("cuda"), torch.float16, None)
    assert (size, start.args[-1]) == (16, 256)  # type: ignore[attr-defined]
    size, start = embed._embedder(frozen, torch.device("cuda"), torch.float16, 4)
    assert (size, start.args[-1]) == (4, 4)  # type: ignore[attr-defined]
    assert embed._embedder(frozen, CPU, torch.float32, None)[0] == 8
