from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from qurate.runtime.files import file_lock, why_not_writable, write_atomically


def test_text_and_bytes_are_written_and_folders_made(tmp_path: Path) -> None:
    write_atomically(tmp_path / "a" / "b.txt", "über")
    write_atomically(tmp_path / "a" / "c.bin", b"\x00\x01")
    assert (tmp_path / "a" / "b.txt").read_text(encoding="utf-8") == "über"
    assert (tmp_path / "a" / "c.bin").read_bytes() == b"\x00\x01"
    assert sorted(p.name for p in (tmp_path / "a").iterdir()) == ["b.txt", "c.bin"]


def test_a_failed_move_leaves_the_old_file_and_no_rubbish(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_text("old")

    def fail(self: Path, target: Path) -> Path:
        raise OSError("disk full")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        write_atomically(path, "new")
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
    assert path.read_text() == "old"


def test_why_nothing_can_be_written_in_a_folder_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert why_not_writable(tmp_path) == why_not_writable(tmp_path / "still" / "to be made") == ""
    assert why_not_writable(tmp_path / "file" / "below") == "Not a directory"
    assert why_not_writable(tmp_path / ("x" * 300)) == "File name too long"


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_a_new_file_has_the_mode_that_the_umask_allows(tmp_path: Path, umask: int, mode: int) -> None:
    before = os.umask(umask)
    try:
        write_atomically(tmp_path / "file", "text")
        with file_lock(tmp_path / "lock"):
            pass
    finally:
        os.umask(before)
    assert [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("file", "lock")] == [mode, mode]


def test_a_file_that_is_replaced_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    path.chmod(0o600)
    write_atomically(path, "new")
    assert (path.read_text(), stat.S_IMODE(path.stat().st_mode)) == ("new", 0o600)
