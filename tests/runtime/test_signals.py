from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from qurate.runtime.signals import defer_signals


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_waits_for_the_end_of_the_block(stop: signal.Signals) -> None:
    class Stop(BaseException):
        pass

    def raise_stop(number: int, _: object) -> None:
        raise Stop

    def stop_within(reached: list[int]) -> None:
        with defer_signals():
            os.kill(os.getpid(), stop)
            reached.append(1)

    reached: list[int] = []
    before = signal.signal(stop, raise_stop)
    try:
        with pytest.raises(Stop):
            stop_within(reached)
        assert reached == [1]
        assert signal.getsignal(stop) is raise_stop
    finally:
        signal.signal(stop, before)


def test_a_process_that_is_started_in_the_block_does_not_hear_control_c_but_hears_sigterm() -> None:
    sleep = [sys.executable, "-c", "import time; print('ready', flush=True); time.sleep(30)"]
    with defer_signals():
        child = subprocess.Popen(sleep, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    with child.stdout:
        assert child.stdout.readline() == "ready\n"
        child.send_signal(signal.SIGINT)
        child.send_signal(signal.SIGTERM)
        assert child.wait(30) == -signal.SIGTERM
