"""Signals at moments that no other test meets."""

from __future__ import annotations

import subprocess
import sys

_AS_IT_ENDS = """
import atexit, os, signal, sys
atexit.register(os.kill, os.getpid(), signal.{which})
from qurate.cli import main
sys.argv = ["qurate", "report", "--help"]
main()
"""


def test_a_signal_after_the_work_is_done_breaks_nothing_off() -> None:
    for which in ("SIGINT", "SIGTERM"):
        code = _AS_IT_ENDS.format(which=which)
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600, check=False)
        assert (done.returncode, done.stderr) == (0, "")
