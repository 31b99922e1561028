"""What Q-learning costs in memory, said before anything is allocated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from qurate.config import QLearningConfig
from qurate.selection.q_learning import agent as agent_module
from qurate.selection.q_learning.agent import DeepQAgent
from qurate.selection.q_learning.memory import (
    available_memory,
    check_memory,
    expected_peak,
    memory_cost,
    resident_memory,
)
from qurate.selection.q_learning.networks import QNetworkKind
from qurate.selection.q_learning.pool import OversizeStateError

KINDS: list[QNetworkKind] = ["flat", "relational"]
PAPER = QLearningConfig(batch_size=32, pool_bytes=512 * 2**20)
SMALL = QLearningConfig(hidden=(16, 8), batch_size=4, learning_rate=1e-2, pool_bytes=100_000)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
@pytest.mark.parametrize("target_update", [0, 5])
def test_the_cost_is_that_of_the_real_agent(kind: QNetworkKind, optimizer: Any, target_update: int) -> None:
    config = QLearningConfig(
        hidden=(16, 8), batch_size=4, optimizer=optimizer, target_update=target_update, pool_bytes=10_000
    )
    cost = memory_cost((6, 7), 6, config, kind)
    agent = DeepQAgent(kind, (6, 7), 6, config, seed=0)
    agent.remember(torch.zeros(6, 7), 0, 1.0, torch.ones(6, 7), torch.ones(6), terminated=False, last=False)
    agent.learn()
    parameters = list(agent.network.parameters())
    assert cost.weights == sum(parameter.numel() for parameter in parameters)
    real = sum(p.nbytes + p.grad.nbytes for p in parameters if p.grad is not None)
    for slots in agent.optimizer.state.values():
        real += sum(value.nbytes for value in slots.values() if isinstance(value, Tensor) and value.dim() > 0)
    if agent.target_network is not None:
        real += sum(p.nbytes for p in agent.target_network.parameters())
    assert cost.network_bytes == real
    assert cost.state_numbers == 6 * 7
    assert cost.pool_transitions == agent.pool.slots - 1
    assert cost.pool_bytes >= agent.pool.nbytes > cost.pool_bytes - cost.pool_slot_bytes
    assert cost.total_bytes == cost.network_bytes + cost.batch_bytes + cost.pool_bytes


def test_the_costs_of_the_paper_in_words() -> None:
    domainnet = memory_cost((352, 638), 100, PAPER)
    assert domainnet.lines()[:2] == [
        "state: 224,576 numbers, 0.9 MB",
        "Q-network (flat): 231 M weights, 3.7 GB with gradients and optimiser",
    ]
    assert domainnet.lines()[3] == "pool: 596 transitions, 0.5 GB"
    office_home = memory_cost((957_030,), 100, PAPER)
    assert office_home.lines()[:2] == [
        "state: 957,030 numbers, 3.8 MB",
        "Q-network (flat): 981 M weights, 15.7 GB with gradients and optimiser",
    ]
    shared = memory_cost((100, 638), 100, PAPER, "relational")
    assert shared.lines()[1].startswith("Q-network (relational): 1,179,649 weights, ")


def test_an_oversize_state_fails_before_anything_is_allocated(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("build_q_network", "ExperiencePool"):
        monkeypatch.setattr(agent_module, name, lambda *_, **__: pytest.fail("allocated"))
    with pytest.raises(OversizeStateError) as caught:
        DeepQAgent("flat", (957_030,), 100, PAPER, seed=0, available_bytes=8 * 10**9)
    message = str(caught.value)
    total = memory_cost((957_030,), 100, PAPER).total_bytes
    assert f"needs {total:,} bytes (16.5 GB)" in message
    assert "8,000,000,000 bytes (8.0 GB) are available" in message
    assert all(line in message for line in memory_cost((957_030,), 100, PAPER).lines())
    assert all(way in message for way in ("EpisodeConfig.candidates", "state_features", "'relational'", "pool_bytes"))
    with pytest.raises(OversizeStateError, match="are available"):
        DeepQAgent("flat", (10**9,), 100, QLearningConfig(pool_bytes=10**15), seed=0)  # of this machine
    with pytest.raises(OversizeStateError, match=r"holds 0 transitions .* 64 are needed"):
        DeepQAgent("flat", (10**9,), 100, PAPER, seed=0)


def test_what_fits_passes() -> None:
    cost = memory_cost((10,), 2, SMALL)
    check_memory(cost, cost.total_bytes)
    check_memory(cost, None)
    with pytest.raises(OversizeStateError):
        check_memory(cost, cost.total_bytes - 1)


def test_available_memory_is_that_of_a_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreadable(_: Path) -> str:
        raise FileNotFoundError

    reported = available_memory()
    assert reported is not None
    monkeypatch.setattr(Path, "read_text", unreadable)
    physical = available_memory()
    assert physical is not None
    assert 2**20 < reported <= physical


def test_the_peak_is_said_before_anything_is_allocated() -> None:
    small, large = (
        memory_cost((352, 638), 100, QLearningConfig(pool_bytes=size), "flat") for size in (10**8, 4 * 10**9)
    )
    here = resident_memory()
    if here is None:
        pytest.skip("this system does not say what a process holds")
    said = [expected_peak(cost, 18_000, 638) for cost in (small, large)]
    assert said[1] - said[0] == pytest.approx(3.9e9, rel=0.02)
    views = 4 * 4 * 18_000 * 638
    assert said[0] == pytest.approx(here + small.total_bytes + 8 * small.weights + views, rel=0.02)
