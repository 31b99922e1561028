"""The machine: cores, freed memory, precision. Loads no torch."""

from __future__ import annotations

import ctypes
import os
from functools import cache
from pathlib import Path
from typing import Any

# Numbers of glibc's <malloc.h>.
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD, _MMAP_MAX, _ARENA_MAX = -1, -2, -3, -4, -8
_GIB = 1 << 30
_BFLOAT16 = {"avx512_bf16", "amx_bf16", "bf16"}  # as Linux calls it: of x86 twice, of ARM


def available_cores() -> int:
    """The cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@cache
def multiplies_bfloat16() -> bool:
    """Whether the processor itself multiplies bfloat16; elsewhere float32 is faster."""
    try:
        return says_bfloat16(Path("/proc/cpuinfo").read_text())
    except OSError:  # not Linux
        return False


def says_bfloat16(cpuinfo: str) -> bool:
    """Whether the text of /proc/cpuinfo lists bfloat16 among the processor's abilities."""
    lines = (line.partition(":") for line in cpuinfo.splitlines())
    return any(name.strip() in ("flags", "Features") and _BFLOAT16 & set(what.split()) for name, _, what in lines)


def keep_freed_memory() -> None:
    """Keep freed buffers for the next allocation, for as long as this process lives.

    glibc returns every large buffer to the kernel, which hands it out again page by page, zeroed: up to half of the
    time of a network on a CPU. The settings hold for the whole process and cannot be read back, so a library function
    must not call this; the command line and worker processes do, once. Calling it again changes nothing. Does nothing
    where the C library is not glibc.
    """
    libc = _glibc()
    if libc is None:
        return
    libc.mallopt(_TRIM_THRESHOLD, 2 * _GIB - 1)
    libc.mallopt(_TOP_PAD, _GIB // 16)
    libc.mallopt(_ARENA_MAX, 1)  # a thread's own arena is made of pieces too small for these buffers
    if not libc.mallopt(_MMAP_THRESHOLD, _GIB):  # older ones refuse more than 32 MiB
        libc.mallopt(_MMAP_MAX, 0)


def _glibc() -> Any:
    try:
        libc = ctypes.CDLL(None)
        return libc if hasattr(libc, "gnu_get_libc_version") and hasattr(libc, "mallopt") else None
    except (OSError, TypeError):  # no such way to open the C library here
        return None
