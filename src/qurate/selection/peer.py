"""A process that trains with another one: `python -m qurate.selection.peer NUMBER PORT DEVICE DEVICES`.

It takes part in one run after another, as the leader calls them, and ends when nobody can write to it any more.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from dataclasses import replace
from typing import Any

import torch

from qurate.config import TrainingConfig
from qurate.distributed import Place, meet
from qurate.embedding.backbone import choose_device
from qurate.runtime.machine import keep_freed_memory
from qurate.runtime.process_group import READY
from qurate.runtime.signals import STOPS
from qurate.selection.algorithm import follow_leader


def take_part(number: int, port: int, device: Any, devices: int) -> None:
    """Take part in runs until the leader is gone."""
    for stop in STOPS:  # they are for the leader, with whom this process ends
        signal.signal(stop, signal.SIG_IGN)
    threading.Thread(target=_end_with_leader, daemon=True).start()
    keep_freed_memory()
    if choose_device(device).type == "cuda":
        torch.ones(1, device=f"cuda:{number}")  # one that cannot be used is better known before the others wait
    print(READY, flush=True)
    os.dup2(2, 1)  # nobody reads on
    follow_leader(meet(replace(TrainingConfig(), device=device, devices=devices), Place(number, port)))


def _end_with_leader() -> None:
    sys.stdin.read()
    os._exit(0)  # whoever started this is gone


if __name__ == "__main__":
    take_part(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
