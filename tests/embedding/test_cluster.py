"""Embedding on a Ray that is started here: the cache is the same to the byte, and a lost worker costs its batch."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import timm
import torch
from PIL import Image
from torch import Tensor, nn

from qurate.cli import run_verb
from qurate.data.images import Transform, UnreadableImageError
from qurate.embedding import embed as work
from qurate.embedding import openvino
from qurate.embedding.backbone import FrozenBackbone
from qurate.embedding.embed import embed_files
from qurate.embedding.forward import EmbeddingError, choose_cluster_tasks
from qurate.errors import ConfigError
from qurate.runtime.cluster import start_ray, stop_ray


class _Means(nn.Module):
    """Means of channels; notes each batch, and kills its process at the batch of one image, so many times."""

    def __init__(self, notes: Path, deaths: int = 0) -> None:
        super().__init__()
        self.layer = nn.Conv2d(3, 5, 3)
        self.notes = notes
        self.deaths = deaths

    def forward(self, images: Tensor) -> Tensor:
        died = len(list(self.notes.glob("died-*")))
        if died < self.deaths and len(images) == 1:
            (self.notes / f"died-{died}").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        number = int.from_bytes(os.urandom(8), "big")
        (self.notes / f"passed-{os.getpid()}-{number}-{len(images)}").touch()
        rows: Tensor = self.layer(images).mean(dim=(2, 3))
        return rows


def _frozen(notes: Path, deaths: int = 0) -> FrozenBackbone:
    notes.mkdir()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module = _Means(notes, deaths).eval()
    return FrozenBackbone("means", module, 5, Transform(resize=20, crop=16))


@pytest.fixture(scope="module")
def cluster() -> Iterator[Mapping[str, float]]:
    pytest.importorskip("ray", reason="the extra ray is not installed")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(__file__).parents[2]))  # the workers must find the tests
        try:
            yield start_ray("local", 2)
        finally:
            stop_ray()


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    monkeypatch.setattr(work, "SHARD_ROWS", 6)
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    paths = [Path(f"{number:02d}.png") for number in range(20)]  # relative: workers begin elsewhere
    for path in paths:
        Image.fromarray(rng.integers(0, 256, (24, 24, 3), dtype=np.uint8)).save(path)
    paths[7].write_bytes(paths[7].read_bytes()[:100])
    return paths


def _files_of(cache: Path) -> dict[str, bytes]:
    found = {str(path.relative_to(cache)): path for path in cache.rglob("*") if path.is_file()}
    return {name: path.read_bytes() for name, path in found.items() if "sqlite" not in name}


def _passed(notes: Path) -> int:
    return sum(int(path.name.rpartition("-")[2]) for path in notes.glob("passed-*"))


def test_the_cache_is_the_same_to_the_byte_though_a_worker_is_lost(
    cluster: Mapping[str, float], files: list[Path], tmp_path: Path
) -> None:
    alone = embed_files(files, _frozen(tmp_path / "a"), cache=tmp_path / "alone", device="cpu", batch_size=2)
    notes = tmp_path / "b"
    shared = embed_files(files, _frozen(notes, deaths=1), cache=tmp_path / "shared", cluster=cluster, batch_size=2)
    assert _files_of(tmp_path / "alone") == _files_of(tmp_path / "shared")
    assert (shared.made, set(shared.unreadable)) == (alone.made, set(alone.unreadable)) == (19, {files[7]})
    assert len(list(notes.glob("died-*"))) == 1
    assert _passed(notes) == 19  # the lost worker had one batch, which nobody else had done
    assert len({path.name.split("-")[1] for path in notes.glob("passed-*")}) > 1  # several processes shared the work


def test_a_batch_whose_workers_are_lost_again_and_again_ends_in_an_error_and_costs_no_other(
    cluster: Mapping[str, float], files: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qurate.embedding.forward.RETRIES", 1)
    frozen = _frozen(tmp_path / "notes", deaths=99)
    with pytest.raises(EmbeddingError, match="was lost 2 times with the same images"):
        embed_files(files, frozen, cache=tmp_path / "cache", cluster=cluster, batch_size=2)
    assert _files_of(tmp_path / "cache")  # what came before is kept


def test_a_file_that_changes_meanwhile_is_named_without_a_trace_of_ray(
    cluster: Mapping[str, float], files: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def change(done: int, total: int) -> None:
        if done == 0:
            Image.new("RGB", (30, 30)).save(files[0])

    with pytest.raises(UnreadableImageError, match=r"^\S+\.png: changed while it was being embedded"):
        embed_files(files, _frozen(tmp_path / "notes"), cache=tmp_path / "c", cluster=cluster, on_progress=change)


def test_the_verb_shares_the_work_and_ends_up_with_the_same_cache(
    cluster: Mapping[str, float], files: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    safetensors.torch.save_file(timm.create_model("test_efficientnet", num_classes=0).state_dict(), "w.safetensors")
    joined: list[str] = []

    def join(address: str, processes: int) -> Mapping[str, float]:
        joined.append(address)
        return cluster

    monkeypatch.setattr("qurate.runtime.cluster.start_ray", join)
    monkeypatch.setattr("qurate.runtime.cluster.stop_ray", lambda: joined.append("left"))
    command = ("qurate", "embed", ".", "--backbone", "timm/test_efficientnet", "--weights", "w.safetensors")
    for words in (("--cache", "alone"), ("--cache", "shared", "--ray", "somewhere")):
        monkeypatch.setattr(sys, "argv", [*command, *words])
        run_verb()
    assert joined == ["somewhere", "left"]
    assert _files_of(tmp_path / "alone") == _files_of(tmp_path / "shared") != {}


@pytest.mark.parametrize("engine", ["auto", "openvino"])
def test_a_worker_that_cannot_use_openvino_says_so_and_is_asked_to_by_name_only(
    engine: str,
    cluster: Mapping[str, float],
    files: list[Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("QURATE_ENGINE", engine)
    monkeypatch.setattr(openvino, "find_spec", lambda name: object())
    monkeypatch.setattr(work, "compile_backbone", lambda *_: None)  # works here, and not there
    monkeypatch.setattr(work, "read_network", lambda *_: openvino.StoredNetwork(b"damaged", b""))
    frozen = _frozen(tmp_path / "notes")
    if engine == "auto":
        assert embed_files(files, frozen, cache=tmp_path / "cache", cluster=cluster).rows == len(files) - 1
        return
    with pytest.raises(ConfigError, match=r"^QURATE_ENGINE=openvino .* a machine of the Ray cluster, .* cannot be"):
        embed_files(files, frozen, cache=tmp_path / "cache", cluster=cluster)


def test_tasks_take_a_cpu_each_and_a_share_of_a_gpu() -> None:
    assert choose_cluster_tasks({"CPU": 6.0}, "auto") == ("cpu", 6, 0.0)
    assert choose_cluster_tasks({"CPU": 32.0, "GPU": 4.0}, "auto") == ("cuda", 32, 0.125)
    assert choose_cluster_tasks({"CPU": 6.0, "GPU": 2.0}, "cuda") == ("cuda", 6, 0.3333)
    assert choose_cluster_tasks({"CPU": 64.0, "GPU": 1.0}, "cuda") == ("cuda", 8, 0.125)
    assert choose_cluster_tasks({"CPU": 6.0, "GPU": 2.0}, "cpu") == ("cpu", 6, 0.0)
    with pytest.raises(ConfigError, match="which has 2 CPUs and 0 GPUs"):
        choose_cluster_tasks({"CPU": 2.0}, "cuda")
    with pytest.raises(ConfigError, match="device='mps'"):
        choose_cluster_tasks({"CPU": 2.0, "GPU": 1.0}, "mps")
