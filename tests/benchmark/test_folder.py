from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from qurate.benchmark import folder

git = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")


def in_package(path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(folder, "PACKAGE", path)
    return folder.current_commit.__wrapped__()


@git
def test_a_checkout_is_named_by_its_commit_and_a_changed_one_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "package"
    package.mkdir()
    assert in_package(package, monkeypatch) == "unknown"
    (package / "__init__.py").touch()
    run = ("git", "-c", "user.name=x", "-c", "user.email=x@x", "-C", str(tmp_path))
    subprocess.run((*run, "init", "-q"), check=True)
    assert in_package(package, monkeypatch) == "unknown"  # below a repository, but not of it
    subprocess.run((*run, "add", "."), check=True)
    subprocess.run((*run, "commit", "-qm", "first"), check=True)
    head = subprocess.run((*run, "rev-parse", "HEAD"), check=True, capture_output=True, text=True).stdout[:12]
    assert in_package(package, monkeypatch) == head
    (tmp_path / "notes.txt").touch()  # not of the package
    assert in_package(package, monkeypatch) == head
    (package / "__init__.py").write_text("changed = True")
    assert in_package(package, monkeypatch) == f"{head}+dirty"


def test_without_git_the_commit_is_not_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert in_package(tmp_path, monkeypatch) == "unknown"
