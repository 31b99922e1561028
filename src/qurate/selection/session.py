"""What surrounds Algorithm 1: checkpoints and resuming, several processes, checks of its arguments."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple, Protocol, Self, TypeAlias, runtime_checkable

import torch
from torch import Tensor

from qurate.config import ExecutionConfig, RunConfig, SelectionConfig
from qurate.data.samples import DataError, Split, Unlabeled, check_positions, describe
from qurate.errors import ConfigError, QurateError
from qurate.runtime.process_group import ProcessGroup, current_group, use_group
from qurate.runtime.randomness import random_state
from qurate.runtime.signals import Stops
from qurate.runtime.tensors import below
from qurate.selection.answered import Previous
from qurate.selection.callbacks import Callback, RoundRecord
from qurate.selection.pseudo_labels import Positives, Round
from qurate.selection.selectors import NoneSelector, Selector
from qurate.training import OnStep, Trainer

State: TypeAlias = dict[str, Tensor]


@runtime_checkable
class Remembers(Protocol):
    """A selector that carries something from round to round; one without is the same in every round."""

    def state_dict(self) -> State:
        """All it carries."""
        ...

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue from there."""
        ...


@dataclass(frozen=True, eq=False)
class Within:
    """Where a run is in the middle of training F and C.

    Args:
        line: 1 or 20.
        steps: Steps of it that are done.
        random: States of torch's own generators.
        chosen: D_p that line 20 trains with.
    """

    line: int
    steps: int
    random: Tensor
    chosen: Positives | None = None

    def tensors(self) -> State:
        """All of it as one flat dictionary."""
        state = {"line": torch.tensor(self.line), "steps": torch.tensor(self.steps), "random": self.random}
        if self.chosen is not None:
            state |= {f"chosen.{part.name}": getattr(self.chosen, part.name) for part in fields(Positives)}
        return state

    @classmethod
    def of_tensors(cls, state: Mapping[str, Tensor]) -> Within | None:
        """What `tensors` made into a dictionary; None of an empty one."""
        if not state:
            return None
        chosen = below("chosen.", state)
        return cls(int(state["line"]), int(state["steps"]), state["random"], Positives(**chosen) if chosen else None)


@dataclass(frozen=True, eq=False)
class Progress:
    """Everything that what is left of a run depends on, beside its data and config.

    Args:
        positives: D_p.
        neighbors: Found once, after pre-training; None unless the reward asks for them.
        rounds: The rounds that are done.
        unchanged: For how many rounds D_p has not changed.
        trainer: Weights, optimiser and step, as they were saved.
        selector: What the selector remembers, as it was saved.
        within: Where it is in the middle of training; None between two lines.
    """

    positives: Positives
    neighbors: Tensor | None
    rounds: tuple[RoundRecord, ...] = ()
    unchanged: int = 0
    trainer: State = field(default_factory=dict)
    selector: State = field(default_factory=dict)
    within: Within | None = None

    def at(self, line: int) -> Within | None:
        """Where the run is in the middle of a line; None if it is not there."""
        return self.within if self.within is not None and self.within.line == line else None

    @property
    def next_round(self) -> int:
        """Number of the round that follows."""
        return len(self.rounds)

    def converged(self, config: SelectionConfig) -> bool:
        """Line 4: whether the budget of rounds is used up, or D_p has not changed for long enough (decision 13)."""
        return self.next_round >= config.rounds or self.unchanged >= config.patience

    def why_stopped(self, config: SelectionConfig) -> str:
        """The same in words."""
        if self.unchanged >= config.patience:
            return f"the trusted pseudo-labels did not change for {_rounds(config.patience)}"
        return f"the budget of {_rounds(config.rounds)} is used up"

    def after(self, positives: Positives, before: Positives, seconds: float) -> Self:
        """After one round more.

        Args:
            positives: D_p now.
            before: D_p when the round began.
            seconds: What it took.
        """
        new = len(positives.pairs() - before.pairs())
        record = RoundRecord(self.next_round, len(positives), new, seconds)
        unchanged = self.unchanged + 1 if positives.same_as(before) else 0
        rounds = (*self.rounds, record)
        return replace(self, positives=positives, rounds=rounds, unchanged=unchanged, within=None)

    def tensors(self) -> State:
        """All of it as one flat dictionary, for a file."""
        state = {f"trainer.{name}": values for name, values in self.trainer.items()}
        state |= {f"selector.{name}": values for name, values in self.selector.items()}
        state |= {f"positives.{part.name}": getattr(self.positives, part.name) for part in fields(Positives)}
        if self.neighbors is not None:
            state["neighbors"] = self.neighbors
        for part in fields(RoundRecord):
            state[f"rounds.{part.name}"] = torch.tensor(
                [getattr(record, part.name) for record in self.rounds], dtype=torch.float64
            )
        state["unchanged"] = torch.tensor(self.unchanged)
        if self.within is not None:
            state |= {f"within.{name}": values for name, values in self.within.tensors().items()}
        return {name: values.detach().cpu().contiguous() for name, values in state.items()}

    @classmethod
    def of_tensors(cls, state: Mapping[str, Tensor]) -> Progress:
        """What `tensors` made into a dictionary.

        Raises:
            ValueError: If it is of a run that began with a later round, as those with answers did during 0.2.
        """
        if int(state.get("first", torch.tensor(0))):
            raise ValueError("an earlier version of qurate began it with a later round")
        state = {name: values.clone() for name, values in state.items()}  # a file's own memory is aligned anyhow
        columns = {name: values.tolist() for name, values in below("rounds.", state).items()}
        counted = zip(columns["round"], columns["positives"], columns["new"], columns["seconds"], strict=True)
        return cls(
            positives=Positives(**below("positives.", state)),
            neighbors=state.get("neighbors"),
            rounds=tuple(RoundRecord(int(n), int(size), int(new), seconds) for n, size, new, seconds in counted),
            unchanged=int(state["unchanged"]),
            trainer=below("trainer.", state),
            selector=below("selector.", state),
            within=Within.of_tensors(below("within.", state)),
        )


class Checkpoint(Protocol):
    """Where progress is kept. `runs.RunFolder` keeps it in a file."""

    def load(self) -> Progress | None:
        """What was saved last, or None at the beginning."""
        ...

    def save(self, progress: Progress) -> None:
        """Replace what was saved before."""
        ...


def save(checkpoint: Checkpoint | None, progress: Progress, trainer: Trainer, selector: Selector) -> None:
    """Keep where a run is, if it has a checkpoint."""
    if checkpoint is not None:
        remembered = selector.state_dict() if isinstance(selector, Remembers) else {}
        checkpoint.save(replace(progress, trainer=trainer.state_dict(), selector=remembered))


def restore(checkpoint: Checkpoint | None, trainer: Trainer, selector: Selector) -> Progress | None:
    """Put trainer and selector where they were; None if there is nothing to continue from."""
    progress = None if checkpoint is None else checkpoint.load()
    if progress is not None:
        trainer.load_state_dict(progress.trainer)
        if isinstance(selector, Remembers):
            selector.load_state_dict(progress.selector)
    return progress


def resumed(within: Within | None) -> dict[str, Any]:
    """What `Trainer.run` is told of the steps that were taken before."""
    return {} if within is None else {"first": within.steps, "random": within.random}


def _rounds(count: int) -> str:
    return "1 round" if count == 1 else f"{count} rounds"


class Keeper:
    """Keeps where a run is while F and C train, lines 1 and 20.

    Args:
        checkpoint: Where; nowhere if None.
        config: How often.
        trainer: F and C.
        selector: Who selects.
    """

    def __init__(
        self, checkpoint: Checkpoint | None, config: ExecutionConfig, trainer: Trainer, selector: Selector
    ) -> None:
        self._checkpoint, self._config, self._trainer, self._selector = checkpoint, config, trainer, selector
        self._stops = Stops()
        self._kept = time.monotonic()

    def save(self, progress: Progress) -> None:
        """Keep where the run is between two lines."""
        save(self._checkpoint, progress, self._trainer, self._selector)
        self._kept = time.monotonic()

    @contextmanager
    def during(
        self, on_step: OnStep, progress: Progress, line: int, chosen: Positives | None = None
    ) -> Iterator[OnStep]:
        """A block in which F and C train; Ctrl-C and SIGTERM wait for the end of a step, and for its checkpoint.

        Args:
            on_step: Told of each step.
            progress: Where the run was when the line began.
            line: 1 or 20.
            chosen: D_p that line 20 trains with.

        Yields:
            Who is to be told of each step.
        """

        def told(step: int, terms: dict[str, float]) -> None:
            on_step(step, terms)
            if self._stops.asked or self._is_due(step):
                random = random_state(self._trainer.fabric.device)
                self.save(replace(progress, within=Within(line, step, random, chosen)))
            if self._stops.asked:
                self._stops.let_through()

        if self._checkpoint is None:
            yield on_step
            return
        with self._stops.held():
            yield told

    def _is_due(self, step: int) -> bool:
        every, minutes = self._config.checkpoint_steps, self._config.checkpoint_minutes
        return bool(every and step % every == 0) or bool(minutes and time.monotonic() - self._kept >= 60 * minutes)


class RankZeroError(QurateError, RuntimeError):
    """Rank 0 failed and reports why; the other ranks cannot go on."""


class Follower:
    """The selector of a process that does not decide."""

    def select(self, round: Round) -> Positives:
        """Nobody asks it."""
        raise NotImplementedError("Rank 0 selects.")


@dataclass(frozen=True, eq=False)
class Kept:
    """The checkpoint of a rank that does not write: what rank 0 loaded."""

    progress: Progress | None

    def load(self) -> Progress | None:
        """What rank 0 loaded."""
        return self.progress

    def save(self, progress: Progress) -> None:
        """Rank 0 does."""


class Task(NamedTuple):
    """The arguments of `fit`, see there."""

    split: Split
    config: RunConfig
    selector: Selector | None
    callbacks: tuple[Callback, ...]
    checkpoint: Checkpoint | None
    pretrained: Mapping[str, Tensor] | None
    previous: Previous | None
    pretrains: bool = False
    """Whether it is line 1 alone: the arguments of `pretrain`."""


def agree(group: ProcessGroup, task: Task) -> Task:
    """The run that rank 0 was called with, in every process; hidden labels do not leave rank 0."""
    if not group.is_rank_zero:
        task_of_rank_zero: Task = group.broadcast()
        return task_of_rank_zero
    split, config, selector = task.split, task.config, task.selector
    kept = None if task.checkpoint is None else Kept(task.checkpoint.load())
    blind = replace(split, target_unlabeled=Unlabeled(split.target_unlabeled.inputs), validation=None)
    plain = config.selection.selector.name == "none" if selector is None else isinstance(selector, NoneSelector)
    follower = selector if plain else Follower()
    group.broadcast(task._replace(split=blind, selector=follower, callbacks=(), checkpoint=kept))
    return task


def decide(selector: Selector, round: Round) -> Positives:
    """Lines 6-18: what the selector trusts; in a process group rank 0 calls it and broadcasts the result.

    Raises:
        ConfigError: If these are no positives.
        DataError: If they point to no sample of the round, or to no class.
        RankZeroError: In the other processes, if the selector failed on rank 0.
    """
    group, positives = current_group(), None
    if group is not None and not group.is_rank_zero:
        positives = group.broadcast()
        if positives is None:
            raise RankZeroError("The selector failed on rank 0.")
        return positives  # type: ignore[no-any-return]
    try:
        with use_group(None):
            positives = selector.select(round)
            check_positives(positives, selector, round)
            return positives
    finally:
        if group is not None:
            group.broadcast(positives)


def check_fit(
    split: object,
    config: object,
    selector: object,
    callbacks: object,
    checkpoint: object,
    pretrained: object,
    previous: object,
) -> None:
    """The arguments of `fit`, before anything is built.

    Raises:
        DataError: If it is not a Split.
        ConfigError: If another argument is not what it must be.
    """
    if not isinstance(split, Split):
        raise DataError(f"fit: split must be a Split, for example from split_target(...), got {describe(split)}.")
    if not isinstance(config, RunConfig):
        raise ConfigError(f"fit: config must be a RunConfig, such as make_config('tml') makes, got {describe(config)}.")
    if selector is not None and (isinstance(selector, type) or not callable(getattr(selector, "select", None))):
        raise ConfigError(
            f"fit: selector must be an object with a method select(round), got {describe(selector)}. Selectors with "
            "a name are chosen by make_config(selector=...)."
        )
    if not isinstance(callbacks, Sequence) or not all(isinstance(each, Callback) for each in callbacks):
        raise ConfigError(f"fit: callbacks must be a list of Callback objects, got {_kinds(callbacks)}.")
    if checkpoint is not None and not all(callable(getattr(checkpoint, verb, None)) for verb in ("load", "save")):
        raise ConfigError(
            f"fit: checkpoint must be an object with load() and save(progress), got {describe(checkpoint)}."
        )
    if pretrained is not None and not isinstance(pretrained, Mapping):
        raise ConfigError(f"fit: pretrained must be what pretrain(...) gives, got {describe(pretrained)}.")
    if previous is not None:
        _check_previous(previous, split, pretrained)


def _check_previous(previous: object, split: Split, pretrained: object) -> None:
    if not isinstance(previous, Previous):
        raise ConfigError(f"fit: previous must be a Previous, got {describe(previous)}.")
    if pretrained is not None:
        raise ConfigError("fit: previous and pretrained cannot be combined. Give one of them.")
    check_positions(previous.positives.indices, len(split.target_unlabeled), "fit: previous.positives.indices")
    check_positions(previous.positives.labels, split.n_classes, "fit: previous.positives.labels")
    if previous.answered >= len(split.target_labeled):
        raise DataError(
            f"fit: previous.answered must be below the {len(split.target_labeled)} samples of D_t, got "
            f"{previous.answered}."
        )


def check_positives(positives: object, selector: object, round: Round) -> None:
    """What a selector chose.

    Raises:
        ConfigError: If these are no positives.
        DataError: If they point to no sample of the round, or to no class.
    """
    where = f"{type(selector).__name__}.select"
    if not isinstance(positives, Positives):
        raise ConfigError(
            f"{where} must return Positives, such as round.positives_at(indices), got {describe(positives)}."
        )
    check_positions(positives.indices, len(round.pseudo_labels), f"{where}: indices")
    check_positions(positives.labels, round.n_classes, f"{where}: labels")


def _kinds(values: object) -> str:
    if not isinstance(values, Sequence):
        return describe(values)
    return next(describe(each) for each in values if not isinstance(each, Callback))
