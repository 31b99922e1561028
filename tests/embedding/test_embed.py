from __future__ import annotations

import contextlib
import errno
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import timm
import torch
from PIL import Image
from torch import Tensor

from qurate.data.images import ImageFiles, Transform, UnreadableImageError, read_image
from qurate.data.samples import Labeled, SealedLabels, Split, Unlabeled, join
from qurate.embedding import backbone as frozen
from qurate.embedding import digests as contents
from qurate.embedding import embed as embedding_work
from qurate.embedding.backbone import freeze_backbone
from qurate.embedding.cache import EmbeddingCache, EmbeddingCacheError, EmbeddingCacheWarning
from qurate.embedding.digests import default_cache
from qurate.embedding.embed import embed_files, embed_split
from qurate.embedding.forward import EmbeddingError
from qurate.networks import backbone_names as names
from qurate.networks.backbone_names import BackboneError
from qurate.networks.backbones import Backbone, build_backbone

TINY = "timm/test_efficientnet"


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> str:
    return _save_weights(tmp_path_factory.mktemp("weights") / "tiny.safetensors", seed=0)


def _save_weights(path: Path, seed: int, name: str = TINY) -> str:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        module = timm.create_model(name.removeprefix("timm/"), num_classes=0)
    safetensors.torch.save_file(module.state_dict(), path)
    return str(path)


@pytest.fixture
def files(tmp_path: Path) -> ImageFiles:
    folder = tmp_path / "images"
    folder.mkdir()
    return ImageFiles(tuple(_draw(folder / f"{number:02d}.png", number) for number in range(12)))


def _draw(path: Path, seed: int) -> Path:
    pixels = np.random.default_rng(seed).integers(0, 256, (20, 24 + seed, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)
    return path


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def passed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The size of every batch that passes a backbone."""
    sizes: list[int] = []

    def build(name: str, weights: str, input_width: int | None = None) -> Backbone:
        backbone = build_backbone(name, weights, input_width)
        backbone.module.register_forward_pre_hook(lambda _, inputs: sizes.append(len(inputs[0])))
        return backbone

    monkeypatch.setattr(frozen, "build_backbone", build)
    return sizes


def _embed(files: ImageFiles, name: str, weights: str, **options: Any) -> Tensor:
    return embed_files(files.paths, freeze_backbone(name, weights), strict=True, **options).of(files)


def _plain_loop(files: ImageFiles, name: str, weights: str) -> Tensor:
    backbone = build_backbone(name, weights)
    assert backbone.transform is not None
    backbone.module.eval()
    with torch.no_grad():
        rows = [backbone.module(backbone.transform.for_testing(read_image(path))[None]) for path in files.paths]
    return torch.cat(rows)


def _shards(cache: Path) -> list[Path]:
    return sorted(cache.glob("*/*.safetensors"))


def test_embeddings_equal_a_plain_loop(files: ImageFiles, weights: str, cache: Path) -> None:
    threads = torch.get_num_threads()
    rows = _embed(files, TINY, weights, cache=cache, batch_size=5)
    assert rows.dtype == torch.float32
    torch.testing.assert_close(rows, _plain_loop(files, TINY, weights), rtol=1e-4, atol=1e-5)
    assert torch.get_num_threads() == threads
    assert not rows.requires_grad
    assert not rows.is_inference()


def test_no_files_have_no_embeddings(weights: str, cache: Path) -> None:
    assert _embed(ImageFiles(()), TINY, weights, cache=cache).shape[0] == 0


def test_the_second_call_passes_nothing_and_returns_the_same(
    files: ImageFiles, weights: str, cache: Path, passed: list[int]
) -> None:
    calls: list[tuple[int, int]] = []
    first = _embed(files, TINY, weights, cache=cache, on_progress=lambda done, all: calls.append((done, all)))
    assert calls == [(0, 12), (8, 12), (12, 12), (12, 12)]
    assert sum(passed) == 12
    second = _embed(files, TINY, weights, cache=cache)
    assert sum(passed) == 12
    assert torch.equal(first, second)


def test_only_a_changed_file_is_embedded_again(files: ImageFiles, weights: str, cache: Path, passed: list[int]) -> None:
    first = _embed(files, TINY, weights, cache=cache)
    _draw(files.paths[3], seed=99)
    passed.clear()
    second = _embed(files, TINY, weights, cache=cache)
    assert sum(passed) == 1
    same = torch.arange(12) != 3
    assert torch.equal(first[same], second[same])
    assert not torch.allclose(first[3], second[3])


def test_content_counts_and_not_the_path(files: ImageFiles, weights: str, cache: Path, passed: list[int]) -> None:
    first = _embed(files, TINY, weights, cache=cache)
    moved = files.paths[0].rename(files.paths[0].with_name("moved.png"))
    passed.clear()
    again = _embed(ImageFiles((moved, moved, *files.paths[1:])), TINY, weights, cache=cache)
    assert passed == []
    assert torch.equal(again, torch.cat([first[:1], first]))


def test_digests_are_remembered_until_the_file_changes(
    files: ImageFiles, weights: str, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contents, "_SETTLED_NS", -1)
    memory = cache / "digests.sqlite"
    before, _ = contents.hash_files(files.paths, memory)
    read: list[Path] = []
    digest = contents._digest

    def counted(path: Path) -> bytes:
        read.append(path)
        return digest(path)

    monkeypatch.setattr(contents, "_digest", counted)
    assert contents.hash_files(files.paths, memory) == (before, {})
    assert read == []
    _draw(files.paths[2], seed=98)
    assert contents.hash_files(files.paths, memory)[0][files.paths[2]] != before[files.paths[2]]
    assert read == [files.paths[2]]


def test_a_damaged_memory_of_digests_is_made_anew(files: ImageFiles, weights: str, cache: Path) -> None:
    first = _embed(files, TINY, weights, cache=cache)
    (cache / "digests.sqlite").write_bytes(b"no database " * 1000)
    with pytest.warns(UserWarning, match=r"digests\.sqlite: damaged"):
        assert torch.equal(_embed(files, TINY, weights, cache=cache), first)


def test_a_locked_memory_of_digests_is_waited_for_only_shortly_and_said(
    files: ImageFiles, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contents, "_SETTLED_NS", -1)
    assert contents._LOCK_SECONDS <= 2
    before, _ = contents.hash_files(files.paths, cache / "digests.sqlite")
    with contextlib.closing(sqlite3.connect(cache / "digests.sqlite")) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.warns(EmbeddingCacheWarning, match=r"digests\.sqlite: locked by another process") as warned:
            assert contents.hash_files(files.paths, cache / "digests.sqlite")[0] == before
    assert len(warned) == 1  # nothing is remembered, so it is not waited for again


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes here")
def test_a_memory_of_digests_that_is_a_pipe_is_not_waited_for(files: ImageFiles, cache: Path) -> None:
    cache.mkdir(exist_ok=True)
    os.mkfifo(cache / "digests.sqlite")
    assert len(contents.hash_files(files.paths, cache / "digests.sqlite")[0]) == len(files)


@pytest.mark.parametrize("damage", ["flipped", "cut", "emptied"])
def test_a_damaged_shard_is_noticed_and_only_its_rows_made_again(
    files: ImageFiles, weights: str, cache: Path, passed: list[int], monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    monkeypatch.setattr(embedding_work, "SHARD_ROWS", 5)
    first = _embed(files, TINY, weights, cache=cache)
    sizes = {path: safetensors.torch.load_file(path)["keys"].shape[0] for path in _shards(cache)}
    assert sorted(sizes.values()) == [2, 5, 5]
    broken = max(sizes, key=lambda path: (sizes[path], path.name))
    content = bytearray(broken.read_bytes())
    content[-7] ^= 1
    broken.write_bytes({"flipped": bytes(content), "cut": bytes(content[:-9]), "emptied": b""}[damage])
    passed.clear()
    with pytest.warns(EmbeddingCacheWarning, match=f"{broken.name}: damaged"):
        second = _embed(files, TINY, weights, cache=cache)
    assert sum(passed) == 5
    torch.testing.assert_close(second, first, rtol=1e-4, atol=1e-5)
    assert torch.equal(_embed(files, TINY, weights, cache=cache), second)
    assert sum(passed) == 5


def test_foreign_files_in_the_cache_are_named_ignored_and_left(
    files: ImageFiles, weights: str, tmp_path: Path, cache: Path, passed: list[int]
) -> None:
    first = _embed(files, TINY, weights, cache=cache)
    folder = _shards(cache)[0].parent
    (folder / "notes.txt").write_text("mine")
    other = _save_weights(tmp_path / "other.safetensors", seed=1)
    _embed(ImageFiles(files.paths[:3]), TINY, other, cache=cache)
    (stray,) = (path for path in _shards(cache) if path.parent != folder)
    stray.rename(folder / stray.name)
    passed.clear()
    with pytest.warns(EmbeddingCacheWarning) as caught:
        assert torch.equal(_embed(files, TINY, weights, cache=cache), first)
    messages = sorted(str(warning.message) for warning in caught)
    assert len(messages) == 2
    assert "another backbone, weights or transform" in messages[0] + messages[1]
    assert "notes.txt: not a file of the embedding cache" in messages[0] + messages[1]
    assert passed == []
    assert (folder / stray.name).exists()
    assert (folder / "notes.txt").read_text() == "mine"


def test_a_cache_that_is_a_file_is_refused_where_it_is_required(
    files: ImageFiles, weights: str, tmp_path: Path
) -> None:
    (tmp_path / "cache").write_text("")
    with pytest.raises(EmbeddingError, match="must be a folder"):
        embed_files(files.paths, freeze_backbone(TINY, weights), cache=tmp_path / "cache", required=True)
    with pytest.warns(EmbeddingCacheWarning, match="cannot be written"):
        assert len(_embed(files, TINY, weights, cache=tmp_path / "cache")) == 12


def test_a_cache_that_always_loses_rows_ends_in_an_error(
    files: ImageFiles, weights: str, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(EmbeddingCache, "add", lambda *_: None)
    with pytest.raises(EmbeddingError, match="disappear"):
        _embed(files, TINY, weights, cache=cache)


def test_backbone_weights_and_transform_each_make_another_space(weights: str, tmp_path: Path) -> None:
    one = freeze_backbone(TINY, weights)
    resnet = _save_weights(tmp_path / "resnet.safetensors", 0, "timm/test_resnet")
    others = [
        freeze_backbone("timm/test_resnet", resnet),
        freeze_backbone(TINY, _save_weights(tmp_path / "other.safetensors", seed=1)),
        frozen.FrozenBackbone(one.name, one.module, one.width, Transform(resize=300)),
    ]
    spaces = {one.identity, *(other.identity for other in others)}
    assert len(spaces) == 4
    copied = tmp_path / "copied.pth"
    torch.save(safetensors.torch.load_file(weights), copied)
    assert freeze_backbone(TINY, str(copied)).identity == one.identity


def test_random_weights_and_backbones_without_images_are_refused(weights: str) -> None:
    with pytest.raises(BackboneError, match="random weights"):
        freeze_backbone(TINY, "none")
    with pytest.raises(BackboneError, match="There is no backbone 'none'"):
        freeze_backbone("none", "pretrained")


def test_an_unreadable_file_is_named_before_any_work(
    files: ImageFiles, weights: str, cache: Path, passed: list[int]
) -> None:
    files.paths[11].write_text("no image")
    with pytest.raises(UnreadableImageError, match=r"11\.png"):
        _embed(files, TINY, weights, cache=cache)
    files.paths[11].unlink()
    with pytest.raises(UnreadableImageError, match=r"11\.png"):
        _embed(files, TINY, weights, cache=cache)
    assert passed == []


def test_a_truncated_image_costs_nothing_that_was_embedded_before(
    files: ImageFiles, weights: str, cache: Path, passed: list[int]
) -> None:
    whole = files.paths[9].read_bytes()
    files.paths[9].write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UnreadableImageError, match=r"09\.png"):
        _embed(files, TINY, weights, cache=cache, batch_size=3)
    files.paths[9].write_bytes(whole)
    passed.clear()
    rows = _embed(files, TINY, weights, cache=cache)
    assert sum(passed) == 1  # all others were embedded
    torch.testing.assert_close(rows, _plain_loop(files, TINY, weights), rtol=1e-4, atol=1e-5)


def test_unreadable_files_are_noted_and_the_rest_is_embedded(
    files: ImageFiles, weights: str, cache: Path, passed: list[int]
) -> None:
    whole = files.paths[9].read_bytes()
    files.paths[9].write_bytes(whole[: len(whole) // 2])
    copy = files.paths[0].with_name("copy.png")
    copy.write_bytes(files.paths[9].read_bytes())
    files.paths[2].write_text("no image")
    gone = files.paths[0].with_name("gone.png")
    given, calls = [*files.paths, copy, gone], list[tuple[int, int]]()
    frozen_backbone = freeze_backbone(TINY, weights)
    found = embed_files(given, frozen_backbone, cache=cache, batch_size=1, on_progress=lambda *call: calls.append(call))
    assert set(found.unreadable) == {files.paths[2], files.paths[9], copy, gone}
    assert str(copy) in found.unreadable[copy]
    assert "no such file" in found.unreadable[gone]
    assert (found.rows, found.made, sum(passed)) == (10, 10, 10)
    assert calls[-1] == (12, 12)
    readable = ImageFiles(tuple(path for path in given if path not in found.unreadable))
    expected = _plain_loop(readable, TINY, weights)
    torch.testing.assert_close(found.of(readable), expected, rtol=1e-4, atol=1e-5)
    again = embed_files(given, frozen_backbone, cache=cache)
    assert (again.made, set(again.unreadable)) == (0, set(found.unreadable))


def test_without_the_cache_nothing_is_written(files: ImageFiles, weights: str, cache: Path) -> None:
    found = embed_files(files.paths, freeze_backbone(TINY, weights), cache=cache, cached=False)
    torch.testing.assert_close(found.of(files), _plain_loop(files, TINY, weights), rtol=1e-4, atol=1e-5)
    assert _shards(cache) == []


def test_a_file_that_changes_meanwhile_is_refused_and_the_rows_before_it_stay(
    files: ImageFiles, weights: str, cache: Path, passed: list[int]
) -> None:
    def change(done: int, total: int) -> None:
        if done == 0:
            _draw(files.paths[11], seed=97)

    with pytest.raises(UnreadableImageError, match=r"11\.png: changed while"):
        _embed(files, TINY, weights, cache=cache, batch_size=1, on_progress=change)
    passed.clear()
    assert embed_files(files.paths[:11], freeze_backbone(TINY, weights), cache=cache).made == 0
    assert passed == []


def _split(files: ImageFiles) -> Split:
    paths = files.paths
    return Split(
        classes=("a", "b"),
        source=Labeled(ImageFiles(paths[:5]), torch.tensor([0, 1, 0, 1, 1])),
        target_labeled=Labeled(ImageFiles(paths[5:7]), torch.tensor([1, 0])),
        target_unlabeled=Unlabeled(ImageFiles(paths[:3:-1]), SealedLabels(torch.arange(8) % 2)),
        validation=Labeled(ImageFiles(paths[4:6]), torch.tensor([1, 1])),
    )


def test_a_split_keeps_order_labels_and_seals(
    files: ImageFiles, weights: str, cache: Path, passed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: SealedLabels) -> Tensor:
        raise AssertionError("sealed labels were opened")

    monkeypatch.setattr(SealedLabels, "open_for_evaluation", refuse)
    split = _split(files)
    embedded = embed_split(split, TINY, weights, cache=cache)
    assert sum(passed) == 12  # images in several parts pass once
    rows = _embed(files, TINY, weights, cache=cache)
    assert isinstance(embedded.source.inputs, Tensor)
    assert isinstance(embedded.target_unlabeled.inputs, Tensor)
    assert torch.equal(embedded.source.inputs, rows[:5])
    assert torch.equal(embedded.target_unlabeled.inputs, rows[4:].flip(0))
    assert embedded.source.labels.tolist() == split.source.labels.tolist()
    assert embedded.target_unlabeled.sealed is split.target_unlabeled.sealed
    assert embedded.validation is not None
    assert torch.equal(torch.as_tensor(embedded.validation.inputs), rows[4:6])
    assert embed_split(embedded, TINY, weights, cache=cache) is embedded


_PROCESS = """
import os, signal, sys, time
from pathlib import Path
from qurate.embedding import embed as embeddings
from qurate.embedding import backbone as frozen
from qurate.embedding import embed as embedding_work
from qurate.data.images import ImageFiles

folder, weights, cache, killed_at, meeting, members = sys.argv[1:]
embedding_work.SHARD_ROWS = 4
files = ImageFiles(tuple(sorted(Path(folder).glob("*.png"))))
passed = []
build = frozen.build_backbone

def counted(*args, **kwargs):
    backbone = build(*args, **kwargs)
    backbone.module.register_forward_pre_hook(lambda _, inputs: passed.append(len(inputs[0])))
    return backbone

def on_progress(done, total):
    if done >= int(killed_at):
        os.kill(os.getpid(), signal.SIGKILL)
    (Path(meeting) / str(os.getpid())).touch()
    while len(list(Path(meeting).iterdir())) < int(members):  # nobody begins before all are here
        time.sleep(0.005)

frozen.build_backbone = counted
backbone = frozen.freeze_backbone("timm/test_efficientnet", weights)
rows = embeddings.embed_files(
    files.paths, backbone, strict=True, cache=Path(cache), batch_size=2, on_progress=on_progress
).of(files)
assert rows.shape[0] == 12 and rows.isfinite().all()
print(sum(passed))
"""


def _start(
    files: ImageFiles, weights: str, cache: Path, *, killed_at: int = 99, members: int = 1
) -> subprocess.Popen[str]:
    meeting = cache.parent / "meeting"
    meeting.mkdir(exist_ok=True)
    arguments = [files.paths[0].parent, weights, cache, killed_at, meeting, members]
    return subprocess.Popen(
        [sys.executable, "-c", _PROCESS, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_killed_run_is_resumed(files: ImageFiles, weights: str, cache: Path, passed: list[int]) -> None:
    process = _start(files, weights, cache, killed_at=6)
    process.communicate(timeout=300)
    assert process.returncode == -signal.SIGKILL
    assert len(_shards(cache)) == 1
    rows = _embed(files, TINY, weights, cache=cache)
    assert sum(passed) == 12 - 4  # the one whole shard was kept
    torch.testing.assert_close(rows, _plain_loop(files, TINY, weights), rtol=1e-4, atol=1e-5)


def test_two_processes_at_once_share_the_work_and_both_get_all_rows(
    files: ImageFiles, weights: str, cache: Path, passed: list[int]
) -> None:
    processes = [_start(files, weights, cache, members=2) for _ in range(2)]
    results = [process.communicate(timeout=300) for process in processes]
    assert [err for _, err in results] == ["", ""]
    assert sum(int(out) for out, _ in results) == 12  # they shared the work
    rows = _embed(files, TINY, weights, cache=cache)
    assert passed == []
    torch.testing.assert_close(rows, _plain_loop(files, TINY, weights), rtol=1e-4, atol=1e-5)
    assert len(_shards(cache)) == 3
    assert list(cache.glob("*/.*")) == []


def test_a_claim_is_exclusive_and_ends_with_its_block(cache: Path) -> None:
    one, two = (EmbeddingCache(cache, "space", 2) for _ in range(2))
    keys = [bytes(32)]
    with one.claim(keys, wait=False) as first, two.claim(keys, wait=False) as second:
        assert (first, second) == (True, False)
    with two.claim(keys, wait=False) as third:
        assert third


def test_shards_are_made_in_one_stream_and_the_same_rows_make_the_same_bytes(
    files: ImageFiles, weights: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedding_work, "SHARD_ROWS", 2)
    sizes: list[int] = []
    locked: list[int] = []

    def look(done: int, total: int) -> None:
        sizes.append(len(_shards(tmp_path / "one")))
        locked.append(len(list((tmp_path / "one").glob("*/.*.lock"))))

    _embed(files, TINY, weights, cache=tmp_path / "one", batch_size=1, on_progress=look)
    assert sizes[-1] == 6
    assert max(locked) > 1  # the next shards were begun before the last was written
    assert locked[-1] == 0
    for name, number in (("two", 2), ("three", 2)):  # shards do not depend on who comes when
        _embed(files, TINY, weights, cache=tmp_path / name, batch_size=number)
    two, three = ([path.read_bytes() for path in _shards(tmp_path / name)] for name in ("two", "three"))
    assert two == three


def test_the_default_cache_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("QURATE_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_cache() == tmp_path / "qurate" / "embeddings"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert default_cache() == Path.home() / ".cache" / "qurate" / "embeddings"
    monkeypatch.setenv("QURATE_CACHE", str(tmp_path / "mine"))
    assert default_cache() == tmp_path / "mine"


def test_real_images_and_weights_equal_a_plain_loop(office31: Path, office31_weights: Path, cache: Path) -> None:
    paths = sorted((office31 / "webcam" / "images").glob("*/frame_0001.jpg"))[:8]
    files, name = ImageFiles(tuple(paths)), "timm/tf_efficientnet_lite0"
    rows = _embed(files, name, str(office31_weights), cache=cache, batch_size=3)
    assert rows.shape == (8, 1280)
    torch.testing.assert_close(rows, _plain_loop(files, name, str(office31_weights)), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EACCES])
def test_a_cache_that_cannot_be_written_is_done_without_unless_it_is_required(
    files: ImageFiles, weights: str, cache: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(path: Path, content: str | bytes) -> None:
        raise OSError(number, "refused")

    frozen_backbone = freeze_backbone(TINY, weights)
    monkeypatch.setattr("qurate.embedding.cache.write_atomically", refuse)
    with pytest.warns(EmbeddingCacheWarning, match=r"cannot be written \(refused\). Embeddings are made without it"):
        rows = embed_files(files.paths, frozen_backbone, strict=True, cache=cache).of(files)
    torch.testing.assert_close(rows, _plain_loop(files, TINY, weights), rtol=1e-4, atol=1e-5)
    with pytest.raises(EmbeddingCacheError, match=r"cannot be written \(refused\). Make room, or pass another `cache`"):
        embed_files(files.paths, frozen_backbone, cache=cache, required=True)


def test_a_user_without_a_home_has_a_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    for name in ("QURATE_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    assert default_cache().name == "embeddings"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"backbone": "fast"}, ("timm/tf_efficientnet_lite0.in1k", "offline")),
        ({"backbone": "auto", "image_size": 192}, ("timm/tf_efficientnet_lite2.in1k@192", "offline")),
        ({"backbone": "timm/tf_efficientnet_lite1"}, ("timm/tf_efficientnet_lite1", "offline")),
        ({"backbone": "timm/test_resnet"}, ("timm/test_resnet", "pretrained")),
        (
            {"backbone": "timm/tf_efficientnet_lite0", "weights": "pretrained"},
            ("timm/tf_efficientnet_lite0", "pretrained"),
        ),
    ],
)
def test_a_split_knows_the_words_and_weights_of_the_command_line(
    given: dict[str, Any], expected: tuple[str, str], files: ImageFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    class AskedError(Exception):
        pass

    def freeze(name: str, weights: str) -> None:
        raise AskedError(name, weights)

    monkeypatch.setattr(names, "find_spec", lambda name: object())  # the offline weights are installed
    monkeypatch.setattr(names, "is_downloaded", lambda name: False)
    monkeypatch.setattr(names, "hub_answers", lambda: False)
    monkeypatch.setattr(names, "seconds_per_image", lambda device: 0.01)
    monkeypatch.setattr(embedding_work, "freeze_backbones", freeze)
    with pytest.raises(AskedError) as caught:
        embed_split(_split(files), **given)
    assert caught.value.args == expected


def test_very_many_embeddings_that_half_precision_does_not_hold_stay_as_they_are(
    files: ImageFiles, weights: str, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = embed_files(list(files.paths), freeze_backbone(TINY, weights), cache=cache)
    monkeypatch.setattr("qurate.embedding.embed.MOST_IN_MEMORY", len(files) - 1)
    monkeypatch.setattr("qurate.embedding.embed._PART", 2)
    last = found.files[files.paths[-1]].digest
    take = EmbeddingCache.take

    def take_large(store: EmbeddingCache, keys: Sequence[bytes]) -> Tensor:
        return take(store, keys) * torch.tensor([1e9 if key == last else 1.0 for key in keys])[:, None]

    monkeypatch.setattr(EmbeddingCache, "take", take_large)
    rows = found.of(files)
    assert rows.dtype == torch.float32
    assert torch.equal(rows[-1:], take_large(found.stores[0], [last]))
    assert torch.equal(rows[:1], found.of(ImageFiles(files.paths[:1]))), "those before are not rounded either"
    for second, kind in ((rows, torch.float32), (rows[:1], torch.float16)):
        joined = join(torch.zeros(3, rows.shape[1], dtype=torch.float16), second)
        assert isinstance(joined, Tensor)
        assert joined.dtype == kind
        assert torch.equal(joined[3:], second.to(kind))


def test_very_many_embeddings_are_half_precision_in_a_file_that_is_mapped(
    files: ImageFiles, weights: str, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = _embed(files, TINY, weights, cache=cache)
    monkeypatch.setattr("qurate.embedding.embed.MOST_IN_MEMORY", len(files) - 1)
    monkeypatch.setattr("qurate.embedding.embed._PART", 2)
    many, shards = _embed(files, TINY, weights, cache=cache), _shards(cache)
    assert few.dtype == torch.float32
    assert torch.equal(many, few.half())
    assert "float16" in str(many.dtype)
    assert not [path for path in cache.rglob("*") if path.is_file() and path.name.startswith("tmp")]
    assert shards == _shards(cache)
    maps = Path("/proc/self/maps")
    if maps.exists():
        assert str(cache) in maps.read_text(), "it is mapped, not in memory"
