"""Which qurate made a result."""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]


@cache
def current_commit() -> str:
    """Twelve digits of the commit of this checkout, '+dirty' if the package changed since; 'unknown' outside one."""
    try:
        _git("ls-files", "--error-unmatch", "__init__.py")  # a package installed below another repository is not of it
        commit = _git("rev-parse", "--short=12", "HEAD").strip()
        return commit + ("+dirty" if _git("status", "--porcelain", "--", ".").strip() else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _git(*words: str) -> str:
    return subprocess.run(("git", "-C", str(PACKAGE), *words), capture_output=True, text=True, check=True).stdout
