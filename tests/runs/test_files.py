"""A run replaces another so that a kill at any moment leaves a usable model."""

from __future__ import annotations

from pathlib import Path

import pytest

from qurate.errors import RunError
from qurate.runs.files import Replacement, holds_run, lock_run
from qurate.runs.model_json import STAGE, file_of

NEW = ("config.json", "checkpoint.safetensors", "predictions.csv", "report.html", "model.safetensors", "model.json")
OLD = (*NEW, "comparison.safetensors", "model.onnx", "notes.txt")


class KilledError(Exception):
    """Raised where a process would have been killed."""


def two_runs(root: Path) -> Replacement:
    for names, place, text in ((OLD, root, "old"), (NEW, root / STAGE, "new")):
        (place / "tensorboard").mkdir(parents=True)
        (place / "tensorboard" / "events").write_text(text)
        for name in names:
            (place / name).write_text(text)
    return Replacement(root)


@pytest.mark.parametrize("moment", range(30))
def test_a_kill_at_any_moment_is_mended(tmp_path: Path, moment: int, monkeypatch: pytest.MonkeyPatch) -> None:
    replacement, left = two_runs(tmp_path), [moment]

    def killed(method: str) -> None:
        real = getattr(Path, method)

        def act(path: Path, *arguments: object, **options: object) -> object:
            if left[0] == 0:
                raise KilledError
            left[0] -= 1
            return real(path, *arguments, **options)

        monkeypatch.setattr(Path, method, act)

    for method in ("replace", "rename", "unlink"):
        killed(method)
    try:
        replacement.move_into_place()
    except KilledError:
        assert replacement.finished
    monkeypatch.undo()
    model = {file_of(tmp_path, name).read_text() for name in ("model.json", "model.safetensors")}
    assert model == {"new"}
    if replacement.finished:
        replacement.move_into_place()
    assert {file.name for file in tmp_path.iterdir()} == {*NEW, "tensorboard", "notes.txt"}
    assert {(tmp_path / name).read_text() for name in (*NEW, "tensorboard/events")} == {"new"}


def test_a_stage_that_is_not_whole_is_not_looked_at(tmp_path: Path) -> None:
    replacement = two_runs(tmp_path)
    (replacement.path / "model.json").unlink()
    assert (replacement.unfinished, replacement.finished) == (True, False)
    assert file_of(tmp_path, "model.safetensors").read_text() == "old"
    replacement.remove()
    assert (replacement.unfinished, replacement.finished) == (False, False)


def test_one_process_at_a_time(tmp_path: Path) -> None:
    with lock_run(tmp_path), pytest.raises(RunError, match="another process is at work here"), lock_run(tmp_path):
        pass
    with lock_run(tmp_path):
        pass


def test_a_folder_of_another_program_is_no_run(tmp_path: Path) -> None:
    assert not holds_run(tmp_path)
    (tmp_path / "config.json").write_text('{"architectures": []}')
    assert not holds_run(tmp_path)
    (tmp_path / "config.json").write_text('{"qurate": "0.2"}')
    assert holds_run(tmp_path)
    (tmp_path / "config.json").write_text('{"qur')
    assert holds_run(tmp_path)
