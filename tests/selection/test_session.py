"""A run that was stopped ends as one that was not; a wrong argument is named before anything is built."""

from __future__ import annotations

import dataclasses
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from tests.selection.problem import agent_of, blobs, config, our_config

from qurate.config import EpisodeConfig, NetworkConfig, RunConfig
from qurate.data.samples import Labeled, Split, Unlabeled
from qurate.errors import QurateError
from qurate.methods import Method
from qurate.presets import make_config
from qurate.registry import SELECTORS
from qurate.selection.algorithm import Adaptation, fit
from qurate.selection.callbacks import Action, Callback, RoundRecord
from qurate.selection.dqn import DQNSelector
from qurate.selection.pseudo_labels import Positives, Round
from qurate.selection.selectors import build_selector
from qurate.selection.session import Pretraining, Progress
from qurate.training import start

OURS = our_config(rounds=3)


def printed() -> RunConfig:
    """Algorithm 1 as printed: states so large that the Q-network is kept as products."""
    run = config(rounds=3, episode=EpisodeConfig(candidates=40, actions=8))
    agent = agent_of(run)
    q_learning = dataclasses.replace(agent.q_learning, hidden=(128, 16), optimizer="sgd")
    selector = dataclasses.replace(agent, q_learning=q_learning)
    return dataclasses.replace(
        run,
        network=dataclasses.replace(run.network, bottleneck="linear"),
        selection=dataclasses.replace(run.selection, selector=selector),
    )


RUNS = {
    "printed": printed(),
    "flat": config(rounds=3),
    "ours": OURS,
    "cdan": config("balanced", method="cdan", rounds=3),
    "adr": config("random", method="adr", rounds=3),
    "none": config("none"),
    "progress": dataclasses.replace(OURS, training=dataclasses.replace(OURS.training, schedule="progress")),
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


class Events(Callback):
    """Counts what it is told, and may end the process at one of them.

    Args:
        deadly: The number of the event that kills; none unless given.
    """

    def __init__(self, deadly: int = 0) -> None:
        self.names: list[str] = []
        self.deadly = deadly

    def hear(self, name: str) -> None:
        self.names.append(name)
        if len(self.names) == self.deadly:
            raise KilledError

    def on_start(self, method: Method) -> None:
        self.hear("start")

    def on_step(self, step: int, terms: dict[str, float]) -> None:
        if step % 5 == 0:
            self.hear("step")

    def on_pretrained(self, method: Method) -> None:
        self.hear("pretrained")

    def on_round_start(self, number: int) -> None:
        self.hear("round start")

    def on_action(self, action: Action) -> None:
        self.hear("action")

    def on_round(self, record: RoundRecord, method: Method, positives: Positives) -> None:
        self.hear("round")


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
    events = Events()
    whole = fit(split, run, callbacks=[events])
    ends = [i for i, name in enumerate(events.names, 1) if name == "round"]
    assert len(ends) == len(whole.rounds)
    for count in sorted({1, 2, len(events.names) // 2, *ends, *[end + 1 for end in ends[:-1]]}):
        checkpoint = File(tmp_path / f"{count}.safetensors")
        with pytest.raises(KilledError):
            fit(split, run, callbacks=[Events(count)], checkpoint=checkpoint)
        assert_equal(whole, fit(split, run, checkpoint=checkpoint))


@pytest.mark.parametrize("name", ["ours", "adr", "none", "progress"])
def test_killed_in_the_middle_of_training_a_run_goes_on_from_its_last_checkpoint(name: str, tmp_path: Path) -> None:
    run, split = RUNS[name], blobs()
    run = dataclasses.replace(run, execution=dataclasses.replace(run.execution, checkpoint_steps=3))
    events = Events()
    whole = fit(split, run, callbacks=[events])
    steps = [i for i, name in enumerate(events.names, 1) if name == "step"]
    for count in (steps[1], steps[-2], steps[-1]):
        checkpoint = File(tmp_path / f"{count}.safetensors")
        with pytest.raises(KilledError):
            fit(split, run, callbacks=[Events(count)], checkpoint=checkpoint)
        kept, after = checkpoint.load(), Events()
        assert kept is not None
        assert kept.mid_training is not None
        assert kept.mid_training.steps % 3 == 0
        assert_equal(whole, fit(split, run, checkpoint=checkpoint, callbacks=[after]))
        assert after.names.count("step") < len(steps) - steps.index(count) + 1


class Asked(Callback):
    """Sends this process a signal at a step."""

    def __init__(self, which: signal.Signals) -> None:
        self.which, self.after = which, 0

    def on_step(self, step: int, terms: dict[str, float]) -> None:
        if step == 7:
            os.kill(os.getpid(), self.which)
        if step > 7:
            self.after += 1


class StoppedError(Exception):
    """What a handler of the caller raises."""


@pytest.mark.parametrize("which", [signal.SIGTERM, signal.SIGINT])
def test_asked_to_stop_a_run_keeps_its_step_first(which: signal.Signals, tmp_path: Path) -> None:
    split, checkpoint, asked = blobs(), File(tmp_path / "c.safetensors"), Asked(which)

    def refuse(number: int, frame: object) -> None:
        raise StoppedError

    before = signal.signal(which, refuse)
    try:
        with pytest.raises(StoppedError):
            fit(split, OURS, callbacks=[asked], checkpoint=checkpoint)
        assert signal.getsignal(which) is refuse
    finally:
        signal.signal(which, before)
    kept = checkpoint.load()
    assert kept is not None
    assert kept.mid_training is not None
    assert (kept.mid_training.line, kept.mid_training.steps, asked.after) == (1, 7, 0)
    assert_equal(fit(split, OURS), fit(split, OURS, checkpoint=checkpoint))


def test_the_printed_run_is_one_with_products() -> None:
    run, split = printed(), blobs()
    network = start(split, run).method.network
    selector = build_selector(run, network, len(split.target_unlabeled), Callback())
    assert isinstance(selector, DQNSelector)
    assert selector.agent.pooled is not None


def test_killed_twice_and_again_after_the_end(tmp_path: Path) -> None:
    split, checkpoint = blobs(), File(tmp_path / "c.safetensors")
    whole = fit(split, OURS)
    first, second = Events(30), Events(25)
    for events in (first, second):
        with pytest.raises(KilledError):
            fit(split, OURS, callbacks=[events], checkpoint=checkpoint)
    assert ("pretrained" in first.names, "pretrained" in second.names) == (True, False)  # it went on
    assert "round" in second.names
    assert_equal(whole, fit(split, OURS, checkpoint=checkpoint))
    after = Events()
    assert_equal(whole, fit(split, OURS, checkpoint=checkpoint, callbacks=[after]))
    assert after.names == ["start"]  # nothing was left to do


@pytest.mark.parametrize("selector", SELECTORS)
def test_progress_survives_a_file(selector: str, tmp_path: Path) -> None:
    checkpoint = File(tmp_path / "c.safetensors")
    result = fit(blobs(), config(selector), checkpoint=checkpoint)
    progress = checkpoint.load()
    assert progress is not None
    assert progress.rounds == result.rounds
    for part in dataclasses.fields(Positives):
        one, other = (getattr(positives, part.name) for positives in (progress.positives, result.positives))
        assert torch.equal(one.nan_to_num(9), other.nan_to_num(9)), part.name
    trained = {f"method.{name}": values for name, values in result.method.state_dict().items()}
    assert all(torch.equal(progress.trainer[name], values) for name, values in trained.items())
    assert len(progress.selector) > 0 or selector != "dqn"
    again = Progress.of_tensors(progress.tensors()).tensors()
    assert again.keys() == progress.tensors().keys()
    for name, values in progress.tensors().items():
        assert torch.equal(values.nan_to_num(9), again[name].nan_to_num(9)), name


def test_a_checkpoint_that_cannot_be_read_says_so_in_one_sentence() -> None:
    state = Progress().tensors()
    assert Progress.of_tensors(state).next_round == 0
    with pytest.raises(ValueError, match="not a checkpoint of this version of qurate: 'within'"):
        Progress.of_tensors(state | {"within.line": torch.tensor(1)})
    del state["unchanged"]
    with pytest.raises(ValueError, match="not a checkpoint of this version of qurate: 'unchanged'"):
        Progress.of_tensors(state)


CONFIG = make_config("TML_SPL", steps=2, rounds=1, round_steps=1, device="cpu")
SPLIT = Split(
    ("a", "b"),
    Labeled(torch.randn(6, 4), torch.tensor([0, 1] * 3)),
    Labeled(torch.randn(2, 4), torch.tensor([0, 1])),
    Unlabeled(torch.randn(5, 4)),
)


class Chooses:
    """A custom selector."""

    def __init__(self, chosen: Any) -> None:
        self.chosen = chosen

    def select(self, round: Round) -> Positives:
        return round.positives_at(self.chosen)


class Returns(Chooses):
    """Another, that does not ask the round."""

    def select(self, round: Round) -> Positives:
        return self.chosen  # type: ignore[no-any-return]  # the wrong thing


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"split": "digits"}, "split must be a Split, for example .* got str"),
        ({"config": "tml"}, r"config must be a RunConfig, such as make_config\('tml'\) makes, got str"),
        ({"selector": "dqn"}, r"selector must be an object with a method select\(round\), got str"),
        ({"selector": Chooses}, "selector must be an object .* got type"),
        ({"callbacks": Callback()}, "callbacks must be a list of Callback objects, got Callback"),
        ({"callbacks": [Callback(), print]}, "callbacks must be a list of Callback objects, got builtin_function"),
        ({"checkpoint": "folder"}, r"checkpoint must be an object with load\(\) and save\(progress\), got str"),
        ({"pretrained": 5}, "pretrained must be a Pretraining, got int"),
        ({"pretrained": Pretraining({"x": torch.zeros(1)})}, "The state is of another network, method or optimiser"),
        ({"selector": Returns([1])}, r"Returns.select must return Positives, such as round.positives_at\(indices\)"),
        ({"selector": Chooses([0, 1])}, r"indices must be a tensor \(N,\) of int64 between 0 and 4, got list"),
        ({"selector": Chooses(torch.arange(9))}, r"indices must be a tensor .* between 0 and 4, got 0 to 8"),
    ],
)
def test_a_wrong_argument_is_named_with_what_is_allowed(change: dict[str, Any], said: str) -> None:
    with pytest.raises(QurateError, match=said):
        fit(**{"split": SPLIT, "config": CONFIG, **change})


def with_source(inputs: torch.Tensor) -> Split:
    return Split(("a", "b"), Labeled(inputs, torch.tensor([0, 1] * 3)), SPLIT.target_labeled, SPLIT.target_unlabeled)


@pytest.mark.parametrize(
    ("split", "config", "said"),
    [
        (with_source(torch.randn(6, 1, 8, 8)), CONFIG, "source.inputs must be .* embeddings; a network for images has"),
        (
            with_source(torch.randn(6, 5)),
            CONFIG,
            r"target_labeled.inputs must be a tensor \(N, 5\).*got a tensor",
        ),
        (with_source(torch.ones(6, 4, dtype=torch.int64)), CONFIG, "must be a tensor of floating-point numbers"),
        (SPLIT, make_config(network=NetworkConfig("digits")), r"must be a tensor \(N, 1, height, width\) of images"),
    ],
)
def test_a_network_that_cannot_read_the_split_says_so(split: Split, config: RunConfig, said: str) -> None:
    with pytest.raises(QurateError, match=said):
        fit(split, config)


def test_a_selector_may_choose_none() -> None:
    assert len(fit(SPLIT, CONFIG, selector=Chooses(torch.arange(0))).positives) == 0
