"""Embedding in batches; the device is a CPU here, and all else is the same."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace
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
from qurate.embedding.digests import HashedFile, hash_files
from qurate.embedding.embed import embed_files
from qurate.embedding.forward import BatchEncoder, DecodedBatch, EmbeddingError, in_order, on_cores, on_device


class _Means(nn.Module):
    """Means of the channels, from a memory that holds so many images and numbers that reach so far."""

    def __init__(self, room: int = 99, largest: float = 1e30) -> None:
        super().__init__()
        self.room = room
        self.largest = largest
        self.passed: list[int] = []
        self.cast: list[bool] = []

    def forward(self, images: Tensor) -> Tensor:
        self.passed.append(len(images))
        if len(images) > self.room:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory.")
        self.cast.append(torch.is_autocast_enabled("cpu"))
        means = images.mean(dim=(2, 3)).round()  # of pixels, which were divided by 255 and multiplied again
        return torch.where(means > self.largest, torch.inf, means) if self.cast[-1] else means


def _encoder(module: _Means, size: int, precision: torch.dtype = torch.float32) -> BatchEncoder:
    as_they_are = Transform(resize=4, crop=4, mean=(0.0, 0.0, 0.0), std=(1 / 255, 1 / 255, 1 / 255))
    frozen = FrozenBackbone("means", module, 3, as_they_are)
    return BatchEncoder(frozen, torch.device("cpu"), precision, size)


def _decoded(*values: int) -> DecodedBatch:
    pixels = torch.tensor(values, dtype=torch.uint8).view(-1, 1, 1, 1).expand(-1, 4, 4, 3)
    return DecodedBatch([None] * len(values), pixels, {})  # type: ignore[list-item]  # the files do not matter here


def test_batches_pass_together_and_come_back_apart() -> None:
    module = _Means()
    made = _encoder(module, size=8).encode(_decoded(1, 2), _decoded(), _decoded(3))
    assert [batch.vectors[:, 0].tolist() for batch in made] == [[1, 2], [], [3]]
    assert module.passed == [3]


def test_a_device_that_runs_out_of_memory_gets_half_as_many_images() -> None:
    module = _Means(room=3)
    encoder = _encoder(module, size=16)
    (made,) = encoder.encode(_decoded(*range(10)))
    assert made.vectors[:, 0].tolist() == list(range(10))
    assert encoder.size == 2
    module.passed.clear()
    encoder.encode(_decoded(1, 2, 3))
    assert module.passed == [2, 1]  # it is not tried again


def test_a_device_without_room_for_one_image_is_an_error_that_says_so() -> None:
    with pytest.raises(EmbeddingError, match=r"memory of the device \(cpu\) does not hold the backbone and one image"):
        _encoder(_Means(room=0), size=4).encode(_decoded(1, 2))


def test_other_errors_of_the_network_are_not_taken_for_want_of_memory() -> None:
    higher = replace(_decoded(1), pixels=torch.ones(1, 5, 4, 3, dtype=torch.uint8))
    with pytest.raises(RuntimeError, match="Sizes of tensors must match"):
        _encoder(_Means(), size=4).encode(_decoded(1), higher)


def test_what_does_not_fit_into_a_short_number_is_computed_in_float32() -> None:
    module = _Means(largest=100)
    (made,) = _encoder(module, size=2, precision=torch.bfloat16).encode(_decoded(1, 2, 3, 200))
    assert made.vectors[:, 0].tolist() == [1, 2, 3, 200]
    assert made.vectors.dtype == torch.float32
    assert module.cast == [True, True, False]  # the second pair overflowed


def test_a_file_that_was_written_to_stops_the_work() -> None:
    changed = DecodedBatch([], torch.empty(0, 4, 4, 3), {}, "a.png: changed while it was being embedded.")
    with pytest.raises(UnreadableImageError, match=r"a\.png: changed"):
        _encoder(_Means(), size=4).encode(_decoded(1), changed)


def test_results_come_in_order_and_few_are_under_way() -> None:
    under_way: list[Future[int]] = []
    most = 0

    def submit(item: int) -> Future[int]:
        nonlocal most
        future: Future[int] = Future()
        under_way.append(future)
        most = max(most, len(under_way))
        if len(under_way) == 3:
            for late in reversed(range(3)):  # the last is ready first
                under_way[late].set_result(10 * (item - 2 + late))
            under_way.clear()
        return future

    assert list(in_order(submit, range(9), ahead=3)) == [10 * item for item in range(9)]
    assert most == 3


def test_work_that_nobody_waits_for_any_more_is_called_off() -> None:
    futures = [Future[int]() for _ in range(4)]
    futures[0].set_exception(ValueError("bad"))
    with pytest.raises(ValueError, match="bad"):
        list(in_order(lambda item: futures[item], range(4), ahead=4))
    assert [future.cancelled() for future in futures] == [False, True, True, True]


def test_pinning_keeps_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tensor, "pin_memory", lambda self: self + 1)  # there is no GPU to pin for here
    pinned = DecodedBatch([], torch.zeros(1), {Path("a"): "why"}, "b").pin_memory()
    assert pinned.pixels.tolist() == [1]
    assert (pinned.unreadable, pinned.changed) == ({Path("a"): "why"}, "b")


CPU = torch.device("cpu")


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
