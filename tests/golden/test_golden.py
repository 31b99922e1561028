"""A small part of the recording, in every run of the tests.

On the machine of the recording (`machine.json`: release of torch, maker and instructions of the processor) every digit
is expected: digests of the weights and positives, accuracies to the last digit. Elsewhere rounding differs and grows
over the steps, so only accuracies are compared, within 8 points for these runs of 40 steps, and the names of cells,
which do not depend on it.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from tests.golden import record

PAIRS = [
    ("source_target", "none", "qurate"),
    ("mme", "confidence", "qurate"),
    ("tml", "adaptive", "qurate"),
    ("tml", "dqn", "qurate"),
    ("tml", "dqn", "paper"),
]
TOLERANCE = 0.08


def recorded(part: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((record.HERE / f"{part}.json").read_text(encoding="utf-8"))
    return found


@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
def test_runs_on_the_digits_pair_are_as_recorded(pair: tuple[str, str, str]) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        ((name, now),) = record.digits([pair]).items()
    finally:
        torch.set_num_threads(threads)
    before = recorded("digits")[name]
    if record.machine() == recorded("machine"):
        assert now == before
    assert now["accuracy"] == pytest.approx(before["accuracy"], abs=TOLERANCE)


def test_cells_of_the_grids_in_the_makefile_have_the_names_that_finished_cells_have() -> None:
    assert record.cells() == recorded("cells")


def test_a_difference_is_found() -> None:
    before = {"a": {"b": [1, 2]}}
    assert record.differences(before, {"a": {"b": [1, 3]}}) == [" / a / b / 1: was 2, is 3"]
    assert record.differences(before, {"a": {}}) == [" / a / b: was [1, 2], is None"]
