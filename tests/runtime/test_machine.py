"""The machine: cores, freed memory, precision."""

from __future__ import annotations

import pytest
import torch

from qurate.runtime import machine


class Libc:
    """A C library that notes what it is told."""

    def __init__(self, *, refuses: int | None = None) -> None:
        self.told: dict[int, int] = {}
        self.refuses = refuses

    def mallopt(self, number: int, value: int) -> int:
        self.told[number] = value
        return int(number != self.refuses)


def test_freed_memory_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    libc = Libc()
    monkeypatch.setattr(machine, "_glibc", lambda: libc)
    machine.keep_freed_memory()
    once = dict(libc.told)
    machine.keep_freed_memory()
    assert libc.told == once
    assert once[machine._MMAP_THRESHOLD] == 1 << 30
    assert machine._MMAP_MAX not in once


def test_an_older_c_library_is_asked_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    libc = Libc(refuses=machine._MMAP_THRESHOLD)
    monkeypatch.setattr(machine, "_glibc", lambda: libc)
    machine.keep_freed_memory()
    assert libc.told[machine._MMAP_MAX] == 0


def test_another_c_library_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_glibc", lambda: None)
    machine.keep_freed_memory()
    assert float(torch.ones(1 << 20).sum()) == 1 << 20


def test_there_is_a_core() -> None:
    assert machine.available_cores() >= 1


@pytest.mark.parametrize(
    ("cpuinfo", "able"),
    [
        ("processor\t: 0\nflags\t\t: fpu avx512f avx512_bf16\n", True),
        ("flags : fpu amx_bf16 amx_tile\n", True),
        ("Features : fp asimd bf16\n", True),
        ("flags : fpu avx512f avx512_vnni\nmodel name : avx512_bf16\n", False),
        ("", False),
    ],
)
def test_bfloat16_is_read_from_what_linux_says_of_the_processor(cpuinfo: str, able: bool) -> None:
    assert machine.says_bfloat16(cpuinfo) is able
