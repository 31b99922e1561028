"""The machine: cores, threads, freed memory, precision."""

from __future__ import annotations

import pytest
import torch

from qurate.runtime import machine
from qurate.runtime.compute import at_least_float32, without_autocast


def test_threads_are_given_back_even_after_an_error() -> None:
    before = torch.get_num_threads()

    def fail_with(count: int) -> None:
        with machine.torch_threads(count):
            assert torch.get_num_threads() == count
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail_with(before + 1)
    assert torch.get_num_threads() == before


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


def test_products_inside_of_autocast_are_whole_in_the_block_and_halved_after_it() -> None:
    rows = torch.randn(3, 3, generator=torch.Generator().manual_seed(0))
    with torch.autocast("cpu", torch.bfloat16):
        with without_autocast(rows.device):
            whole = rows @ rows
        halved = rows @ rows
    assert torch.equal(whole, rows @ rows)
    assert halved.dtype == torch.bfloat16
    with without_autocast(rows.device):
        assert torch.equal(rows @ rows, whole)


def test_only_halves_are_raised() -> None:
    kinds = [torch.bfloat16, torch.float16, torch.float32, torch.float64]
    raised = [at_least_float32(torch.ones(2, dtype=kind)).dtype for kind in kinds]
    assert raised == [torch.float32, torch.float32, torch.float32, torch.float64]
