"""A run that was killed and resumed ends as one that was not."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import safetensors.torch
import torch
from tests.selection.problem import blobs, config, our_config

from qurate.config import EpisodeConfig, RunConfig
from qurate.data.batches import TrainingData
from qurate.selection.algorithm import SELECTORS, Adaptation, DQNSelector, Event, adapt, build_selector
from qurate.selection.checkpoint import Progress
from qurate.training import start

OURS = our_config(rounds=3)


def printed() -> RunConfig:
    """Algorithm 1 as printed: written-out steps, and states so large that the Q-network is kept as products."""
    run = config(rounds=3, episode=EpisodeConfig(candidates=40, actions=8))
    q_learning = dataclasses.replace(run.selection.q_learning, hidden=(128, 16), optimizer="sgd")
    return dataclasses.replace(
        run,
        network=dataclasses.replace(run.network, bottleneck="linear"),
        selection=dataclasses.replace(run.selection, q_learning=q_learning),
    )


RUNS = {
    "printed": printed(),
    "flat": config(rounds=3),
    "ours": OURS,
    "cdan": config("balanced", method="cdan", rounds=3),
    "adr": config("random", method="adr", rounds=3),
    "none": config("none"),
}


class File:
    """A checkpoint as a run folder keeps it: safetensors, nothing else."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def load(self) -> Progress | None:
        return Progress.of_tensors(safetensors.torch.load_file(self.path)) if self.path.exists() else None

    def save(self, progress: Progress) -> None:
        safetensors.torch.save_file(progress.tensors(), self.path)


class KilledError(Exception):
    """Raised where a process would have been killed."""


def kill_at(count: int) -> list[Event]:
    """Events of a run, which ends with the given one."""

    class Deadly(list[Event]):
        def append(self, event: Event) -> None:
            super().append(event)
            if len(self) == count:
                raise KilledError

    return Deadly()


def assert_equal(first: Adaptation, second: Adaptation) -> None:
    for name, values in first.method.state_dict().items():
        assert torch.equal(values, second.method.state_dict()[name]), name
    for part in dataclasses.fields(first.positives):
        one, other = (getattr(result.positives, part.name) for result in (first, second))
        assert torch.equal(one.nan_to_num(9), other.nan_to_num(9)), part.name
    assert [(r.round, r.positives, r.new) for r in first.rounds] == [
        (r.round, r.positives, r.new) for r in second.rounds
    ]
    assert first.stopped == second.stopped


@pytest.mark.parametrize("name", RUNS)
def test_killed_anywhere_a_run_resumes_to_the_same_bits(name: str, tmp_path: Path) -> None:
    run, split = RUNS[name], blobs()
    events: list[Event] = []
    whole = adapt(split, run, on_event=events.append)
    rounds = [i for i, event in enumerate(events, 1) if event.line == 20]
    for count in sorted({1, 2, len(events) // 2, *rounds, *[end + 1 for end in rounds[:-1]]}):
        checkpoint = File(tmp_path / f"{count}.safetensors")
        with pytest.raises(KilledError):
            adapt(split, run, on_event=kill_at(count).append, checkpoint=checkpoint)
        assert_equal(whole, adapt(split, run, checkpoint=checkpoint))


def test_the_printed_run_is_one_with_products() -> None:
    run, split = printed(), blobs()
    selector = build_selector(run.selection, start(split, run), TrainingData.of(split), seed=0)
    assert isinstance(selector, DQNSelector)
    assert selector.agent.pooled is not None


def test_killed_twice_and_again_after_the_end(tmp_path: Path) -> None:
    split, checkpoint = blobs(), File(tmp_path / "c.safetensors")
    whole = adapt(split, OURS)
    for count in (60, 90):
        with pytest.raises(KilledError):
            adapt(split, OURS, on_event=kill_at(count).append, checkpoint=checkpoint)
    assert_equal(whole, adapt(split, OURS, checkpoint=checkpoint))
    events: list[Event] = []
    assert_equal(whole, adapt(split, OURS, checkpoint=checkpoint, on_event=events.append))
    assert {event.line for event in events} == {0}  # nothing was left to do


@pytest.mark.parametrize("selector", SELECTORS)
def test_progress_survives_a_file(selector: str, tmp_path: Path) -> None:
    run: RunConfig = config(selector)
    checkpoint = File(tmp_path / "c.safetensors")
    adapt(blobs(), run, checkpoint=checkpoint)
    progress = checkpoint.load()
    assert progress is not None
    again = Progress.of_tensors(progress.tensors()).tensors()
    assert {name: values.tolist() for name, values in progress.tensors().items() if "positives" not in name} == {
        name: values.tolist() for name, values in again.items() if "positives" not in name
    }
