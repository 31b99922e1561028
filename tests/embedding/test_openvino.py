"""Embedding by OpenVINO: equal to torch, kept apart from it, and left to torch where it is not equal."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import platform
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from torch import Tensor

from qurate.data.images import ImageFiles, Transform
from qurate.embedding import openvino
from qurate.embedding.backbone import FrozenBackbone
from qurate.embedding.embed import COMPARED, embed_files, find_missing
from qurate.embedding.openvino import OpenVINOWarning, choose_engine, network_folder
from qurate.errors import ConfigError

ALONE = "QURATE_TESTS_OF_OPENVINO"
is_installed = importlib.util.find_spec("openvino") is not None
needs_openvino = pytest.mark.skipif(
    not is_installed or ALONE not in os.environ,
    reason="run by test_those_that_load_openvino_pass_in_a_process_of_theirs",
)


@pytest.mark.skipif(not is_installed, reason="the extra fast is not installed")
@pytest.mark.skipif(ALONE in os.environ, reason="this is that process")
def test_those_that_load_openvino_pass_in_their_process() -> None:
    """Beside all else that the tests load, a process with OpenVINO was seen to die when it started another one."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")} | {ALONE: "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__]
    done = subprocess.run(command, env=own, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert "passed" in done.stdout or "[100%]" in done.stdout


@pytest.fixture(autouse=True)
def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QURATE_ENGINE", "auto")
    monkeypatch.delenv("QURATE_PRECISION", raising=False)
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(openvino, "_ready", {})
    monkeypatch.setattr(openvino, "_unusable", set())


def _frozen(name: str = "test_efficientnet", seed: int = 0) -> FrozenBackbone:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        module: Any = timm.create_model(name, num_classes=0).eval()
    return FrozenBackbone(f"timm/{name}", module, module.num_features, Transform(resize=168, crop=160))


@pytest.fixture
def files(tmp_path: Path) -> ImageFiles:
    rng = np.random.default_rng(0)
    paths = [tmp_path / f"{number:02d}.png" for number in range(11)]
    for path in paths:
        Image.fromarray(rng.integers(0, 256, (30, 40, 3), dtype=np.uint8)).save(path)
    return ImageFiles(tuple(paths))


def _embed(files: ImageFiles, frozen: FrozenBackbone, cache: Path, engine: str, patch: pytest.MonkeyPatch) -> Tensor:
    patch.setenv("QURATE_ENGINE", engine)
    return embed_files(files.paths, frozen, cache=cache, device="cpu", batch_size=4).of(files)


@needs_openvino
@pytest.mark.parametrize("name", ["test_efficientnet", "test_vit", "test_resnet", "test_convnext"])
def test_embeddings_equal_those_of_torch(
    name: str, files: ImageFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QURATE_PRECISION", "float32")
    frozen = _frozen(name)
    one, two = (_embed(files, frozen, tmp_path / "cache", engine, monkeypatch) for engine in ("torch", "openvino"))
    torch.testing.assert_close(two, one, rtol=1e-4, atol=1e-4)
    assert two.dtype == torch.float32


@needs_openvino
def test_embeddings_in_bfloat16_are_close_to_those_of_torch(
    files: ImageFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frozen = _frozen()
    one = _embed(files, frozen, tmp_path / "cache", "torch", monkeypatch)
    monkeypatch.setenv("QURATE_PRECISION", "bfloat16")
    two = _embed(files, frozen, tmp_path / "cache", "openvino", monkeypatch)
    assert float(torch.cosine_similarity(one, two).min()) > 0.99


@needs_openvino
def test_the_cache_keeps_engines_and_precisions_apart(
    files: ImageFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, frozen = tmp_path / "cache", _frozen()
    for precision in ("float32", "bfloat16"):
        monkeypatch.setenv("QURATE_PRECISION", precision)
        for engine in ("torch", "openvino"):
            monkeypatch.setenv("QURATE_ENGINE", engine)
            assert len(find_missing(files.paths, frozen, cache=cache, device="cpu")) == len(files)
            _embed(files, frozen, cache, engine, monkeypatch)
            assert not find_missing(files.paths, frozen, cache=cache, device="cpu")
    abouts = [json.loads(path.read_text()) for path in cache.glob("*/about.json")]
    found = {(about["precision"], about.get("engine")) for about in abouts}
    assert found == {(kind, engine) for kind in ("float32", "bfloat16") for engine in (None, "openvino")}


def test_the_key_of_torch_is_the_one_of_before() -> None:
    frozen = _frozen()
    assert frozen.describe_space(torch.float32, "torch") == frozen.describe_space(torch.float32)
    assert "engine" not in json.loads(frozen.describe_space(torch.float32))


@needs_openvino
def test_a_network_is_converted_once_and_converted_again_where_it_is_damaged(
    files: ImageFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frozen, convert = _frozen(), openvino.convert
    converted: list[Path] = []

    def note(frozen: FrozenBackbone, folder: Path) -> None:
        converted.append(folder)
        convert(frozen, folder)

    monkeypatch.setattr(openvino, "convert", note)
    for engine in ("openvino", "auto"):
        rows = _embed(files, frozen, tmp_path / "cache", engine, monkeypatch)
    assert len(converted) == 1
    folder = network_folder(frozen, tmp_path / "cache")
    assert sorted(path.name for path in folder.parent.iterdir()) == [folder.name]  # no temporary folder is left
    (folder / "network.xml").write_text("damaged")
    openvino._ready.clear()
    for path in (tmp_path / "cache").glob("timm*/*.safetensors"):
        path.unlink()
    torch.testing.assert_close(_embed(files, frozen, tmp_path / "cache", "auto", monkeypatch), rows)
    assert len(converted) == 2
    assert (folder / "network.xml").read_text() != "damaged"


@needs_openvino
def test_a_network_that_another_process_has_put_into_the_cache_stays(
    files: ImageFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frozen, convert = _frozen(), openvino.convert
    kept = network_folder(frozen, tmp_path / "cache")

    def convert_second(frozen: FrozenBackbone, folder: Path) -> None:
        convert(frozen, folder)
        kept.mkdir()
        (kept / "network.xml").write_text("of another process")

    monkeypatch.setattr(openvino, "convert", convert_second)
    _embed(files, frozen, tmp_path / "cache", "openvino", monkeypatch)
    assert (kept / "network.xml").read_text() == "of another process"


def test_threads_compile_a_network_once_and_each_gets_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    backbones, compiled = [_frozen(seed=seed) for seed in range(3)], []  # more than are kept

    def slow(frozen: FrozenBackbone, *_: object) -> FrozenBackbone:
        compiled.append(frozen)
        time.sleep(0.05)
        return frozen

    def compile_one(frozen: FrozenBackbone) -> object:
        return openvino.compile_backbone(frozen, torch.float32, lambda: torch.zeros(1), None, 1)

    monkeypatch.setattr(openvino, "_compile", slow)
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(compile_one, backbones[:1] * 4)) == backbones[:1] * 4
        assert compiled == backbones[:1]
        assert list(pool.map(compile_one, backbones * 4)) == backbones * 4


@needs_openvino
def test_a_network_that_is_sent_to_a_cluster_computes_the_same(
    files: ImageFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frozen = _frozen()
    rows = _embed(files, frozen, tmp_path / "cache", "openvino", monkeypatch)
    crops = [frozen.transform.center(frozen.transform.read(path)) for path in files.paths]
    sent = openvino.CompiledBackbone(openvino.read_network(frozen, tmp_path / "cache"), torch.float32, streams=1)
    assert torch.equal(sent(torch.from_numpy(np.stack(crops))), rows)
    with pytest.raises(openvino.OpenVINOError, match="the cache does not have it"):
        openvino.read_network(frozen, tmp_path / "other")


@needs_openvino
def test_torch_takes_over_where_the_first_batch_differs(
    files: ImageFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frozen = _frozen()
    expected = _embed(files, frozen, tmp_path / "torch", "torch", monkeypatch)
    forward = openvino.CompiledBackbone.__call__
    monkeypatch.setattr(openvino.CompiledBackbone, "__call__", lambda self, images: 1.01 * forward(self, images))
    with pytest.warns(OpenVINOWarning, match=r"embedded by torch .* embeddings differ by 0\.01 of their length"):
        found = _embed(files, frozen, tmp_path / "cache", "auto", monkeypatch)
    assert torch.equal(found, expected)
    spaces = [path.name for path in (tmp_path / "cache").glob("timm*")]
    assert spaces == [path.name for path in (tmp_path / "torch").glob("timm*")]  # under the key of torch
    assert not list((tmp_path / "cache" / "openvino").glob("*"))  # nothing wrong is kept
    assert not find_missing(files.paths, frozen, cache=tmp_path / "cache", device="cpu")
    found = embed_files(files.paths, frozen, cache=tmp_path / "cache", device="cpu").of(files)  # says it once
    assert torch.equal(found, expected)


@needs_openvino
def test_torch_takes_over_where_a_network_cannot_be_converted(
    files: ImageFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise openvino.OpenVINOError("it cannot be converted (no such operation)")

    monkeypatch.setattr(openvino, "convert", fail)
    with pytest.warns(OpenVINOWarning, match="because it cannot be converted"):
        _embed(files, _frozen(), tmp_path / "cache", "auto", monkeypatch)
    with pytest.raises(ConfigError, match=r"^QURATE_ENGINE=openvino cannot embed with timm/test_efficientnet, because"):
        _embed(files, _frozen(), tmp_path / "cache", "openvino", monkeypatch)


@needs_openvino
def test_a_few_images_are_compared_whatever_the_batch_size(
    files: ImageFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts: list[int] = []
    original = openvino._compile

    def note(frozen: FrozenBackbone, precision: torch.dtype, pixels: Tensor, *rest: Any) -> object:
        counts.append(len(pixels))
        return original(frozen, precision, pixels, *rest)

    monkeypatch.setattr(openvino, "_compile", note)
    frozen = _frozen()
    embed_files(files.paths, frozen, cache=tmp_path / "cache", device="cpu", batch_size=len(files))
    embed_files(files.paths, frozen, cache=tmp_path / "cache", device="cpu", cached=False)
    assert counts == [COMPARED]  # a process does it once
    assert len(files) > COMPARED


@pytest.mark.parametrize("error", [ImportError("libtbb.so: not found"), OSError("not an ELF file")])
@pytest.mark.parametrize("cached", [True, False])
def test_torch_takes_over_where_openvino_cannot_be_imported(
    error: Exception, cached: bool, files: ImageFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = importlib.import_module

    def fail(name: str, package: str | None = None) -> ModuleType:
        if name == "openvino":
            raise error
        return original(name, package)

    monkeypatch.setattr(openvino, "find_spec", lambda name: object())
    monkeypatch.setattr("importlib.import_module", fail)
    with pytest.warns(OpenVINOWarning, match=rf"because OpenVINO cannot be imported \({type(error).__name__}: {error}"):
        rows = embed_files(files.paths, _frozen(), cache=tmp_path / "cache", cached=cached, device="cpu").rows
    assert rows == len(files)


@needs_openvino
def test_torch_takes_over_where_a_network_cannot_be_written(
    files: ImageFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(**_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tempfile.mkdtemp", fail)
    with pytest.warns(OpenVINOWarning, match=r"because it cannot be written to disk .*No space left"):
        embed_files(files.paths, _frozen(), cache=tmp_path / "cache", device="cpu")


def test_without_the_extra_torch_computes_and_asking_for_openvino_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(openvino, "find_spec", lambda name: None)
    assert choose_engine(_frozen(), "cpu", torch.float32) == "torch"
    monkeypatch.setenv("QURATE_ENGINE", "openvino")
    with pytest.raises(ConfigError, match=r"needs openvino, which is not installed: pip install 'qurate\[fast\]'"):
        choose_engine(_frozen(), "cpu", torch.float32)


def test_openvino_is_for_x86_and_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openvino, "find_spec", lambda name: object())
    frozen = _frozen()
    assert choose_engine(frozen, "cpu", torch.float32) == "openvino"
    assert choose_engine(frozen, "cpu", torch.float32, "torch") == "torch"  # as on clusters, and in benchmarks
    assert choose_engine(frozen, "cuda", torch.float32) == choose_engine(frozen, "cpu", torch.float16) == "torch"
    monkeypatch.setattr(platform, "machine", lambda: "arm64")
    assert choose_engine(frozen, "cpu", torch.float32) == "torch"
    monkeypatch.setenv("QURATE_ENGINE", "openvino")
    assert choose_engine(frozen, "cpu", torch.float32, "torch") == "openvino"
    with pytest.raises(ConfigError, match="computes on the CPU, in float32 or bfloat16, got device 'cuda' and float16"):
        choose_engine(frozen, "cuda", torch.float16)
    monkeypatch.setenv("QURATE_ENGINE", "onnx")
    with pytest.raises(ConfigError, match="QURATE_ENGINE must be one of auto, torch, openvino, or not set, got 'onnx'"):
        choose_engine(frozen, "cpu", torch.float32)
