from __future__ import annotations

import pytest
import torch

from qurate.runtime import machine


def test_threads_are_given_back_even_after_an_error() -> None:
    before = torch.get_num_threads()

    def fail_with(count: int) -> None:
        with machine.torch_threads(count):
            assert torch.get_num_threads() == count
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail_with(before + 1)
    assert torch.get_num_threads() == before


@pytest.mark.parametrize("glibc", [True, False])
def test_buffers_work_with_any_c_library(glibc: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not glibc:
        monkeypatch.setattr(machine, "_glibc", lambda: None)
    with machine.reused_buffers():
        assert float(torch.ones(1 << 20).sum()) == 1 << 20


def test_there_is_a_core() -> None:
    assert machine.available_cores() >= 1
