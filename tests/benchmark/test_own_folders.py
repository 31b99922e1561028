"""The benchmarks on folders of images empty no folder but their own."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.mark.parametrize("name", ["own_folders", "budget"])
def test_a_folder_of_somebody_else_is_refused_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    benchmark, shared = importlib.import_module(name), importlib.import_module("own_folders")
    (tmp_path / "office31").mkdir()
    (tmp_path / "weights").touch()
    for module in (benchmark, shared):
        monkeypatch.setattr(module, "DATA", tmp_path)
    monkeypatch.setattr(shared, "WEIGHTS", tmp_path / "weights")
    image = tmp_path / "mine" / "source" / "cup" / "1.jpg"
    image.parent.mkdir(parents=True)
    image.touch()
    monkeypatch.setattr("sys.argv", [name, "--out", str(tmp_path / "mine")])
    with pytest.raises(SystemExit, match="is not empty, and no folder of this benchmark"):
        benchmark.main()
    assert image.is_file()


def test_a_folder_of_a_benchmark_is_emptied_but_not_what_its_links_show(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    empty_folder = importlib.import_module("own_folders").empty_folder
    image, place = tmp_path / "1.jpg", tmp_path / "made"
    image.touch()
    empty_folder(place)
    (place / "1.jpg").symlink_to(image)
    empty_folder(place)
    assert not (place / "1.jpg").is_symlink()
    assert image.is_file()
    (tmp_path / "link").symlink_to(place)
    with pytest.raises(SystemExit, match="is no folder"):
        empty_folder(tmp_path / "link")
