from __future__ import annotations

import torch

from qurate.runtime.machine import at_least_float32, without_autocast


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
