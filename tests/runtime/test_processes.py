"""Worker processes: what is kept between calls, what is lost, and how they end."""

from __future__ import annotations

import math
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import pytest
import torch

from qurate.runtime.processes import SpawnedProcess, WorkerProcess, report_progress


class Counting:
    """Counts its calls."""

    calls = 0

    def __call__(self, argument: str) -> object:
        self.calls += 1
        report_progress(10 * self.calls)
        if argument == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if argument == "fail":
            raise ValueError("as asked")
        return self.calls, os.environ.get(argument), signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_a_task_is_kept_between_calls_and_replaced_with_its_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2]))  # the process must find the tests
    with WorkerProcess(pickle.dumps(Counting()), environment={"OF_A_WORKER": "yes"}) as worker:
        assert worker.submit("OF_A_WORKER").result() == (1, "yes", True)
        assert worker.submit("NOWHERE").result() == (2, None, True)
        assert worker.progress == 20
        with pytest.raises(ValueError, match="as asked"):
            worker.submit("fail").result()
        with pytest.raises(BrokenProcessPool):
            worker.submit("die").result()
        assert worker.submit("OF_A_WORKER").result() == (1, "yes", True)


def test_a_script_without_a_guard_is_not_run_again(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import math, pickle\n"
        "from qurate.runtime.processes import WorkerProcess\n"
        "print('once')\n"
        "with WorkerProcess(pickle.dumps(math.sqrt)) as worker:\n"
        "    print(worker.submit(4.0).result())\n"
    )
    done = subprocess.run((sys.executable, str(script)), capture_output=True, text=True, timeout=300, check=False)
    assert (done.stdout, done.returncode) == ("once\n2.0\n", 0), done.stderr


def test_a_process_ends_when_the_one_that_started_it_is_killed(tmp_path: Path) -> None:
    command = (
        "import os, pickle, time\n"
        "from qurate.runtime.processes import WorkerProcess\n"
        "worker = WorkerProcess(pickle.dumps(eval))\n"
        "print(worker.submit('__import__(\"os\").getpid()').result(), flush=True)\n"
        "worker.submit('__import__(\"time\").sleep(600)')\n"
        "time.sleep(600)\n"
    )
    parent = subprocess.Popen((sys.executable, "-c", command), stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    parent.stdout.close()
    end = time.monotonic() + 60
    while Path(f"/proc/{child}").exists() and "zombie" not in Path(f"/proc/{child}/status").read_text():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_a_builtin_is_a_task_too() -> None:
    with WorkerProcess(pickle.dumps(math.sqrt), silent=True) as worker:
        assert worker.submit(9.0).result() == 3.0


def test_a_closed_worker_leaves_no_thread_that_python_would_write_to_at_exit() -> None:
    worker = WorkerProcess(pickle.dumps(math.sqrt))
    worker.submit(4.0)
    worker.close()
    assert not [thread for thread in threading.enumerate() if "Executor" in type(thread).__name__]


def fail_when_ready(ready: Callable[[], None]) -> None:
    ready()
    raise ValueError(f"with {torch.get_num_threads()} threads")


def test_a_spawned_process_says_that_it_is_ready_and_why_it_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2]))
    process = SpawnedProcess(pickle.dumps(fail_when_ready), environment={"OMP_NUM_THREADS": "2"})
    assert process.why_failed(None) == ""
    assert process.why_failed(None) == "ValueError: with 2 threads"
    process.close()


def test_a_spawned_process_that_cannot_begin_says_why() -> None:
    process = SpawnedProcess(b"no pickle", environment={})
    assert "UnpicklingError" in process.why_failed(None)
    process.close()
