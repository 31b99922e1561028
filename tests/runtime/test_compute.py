"""How torch computes within a block."""

from __future__ import annotations

import pytest
import torch

from qurate.runtime.compute import at_least_float32, fits_half, torch_threads, without_autocast


def test_threads_are_given_back_even_after_an_error() -> None:
    before = torch.get_num_threads()

    def fail_with(count: int) -> None:
        with torch_threads(count):
            assert torch.get_num_threads() == count
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail_with(before + 1)
    assert torch.get_num_threads() == before


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


@pytest.mark.parametrize(
    ("numbers", "fits"), [([], True), ([65504.0, -65504.0], True), ([0.0, 65505.0], False), ([-1e5, 0.0], False)]
)
def test_half_precision_ends_at_65504(numbers: list[float], fits: bool) -> None:
    assert fits_half(torch.tensor(numbers)) is fits
    assert not fits_half(torch.tensor([torch.nan, 0.0]))
    assert fits_half(torch.tensor([1.0]).half())


def test_only_halves_are_raised() -> None:
    kinds = [torch.bfloat16, torch.float16, torch.float32, torch.float64]
    raised = [at_least_float32(torch.ones(2, dtype=kind)).dtype for kind in kinds]
    assert raised == [torch.float32, torch.float32, torch.float32, torch.float64]
