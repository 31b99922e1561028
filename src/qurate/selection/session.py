"""What surrounds Algorithm 1: process group, checkpoints and resuming, signals, callbacks, checks of arguments."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple, Protocol, Self, TypeAlias, runtime_checkable

import torch
from torch import Tensor

from qurate.config import ExecutionConfig, RunConfig, SelectionConfig
from qurate.data.batches import TrainingData
from qurate.data.samples import DataError, Split, Unlabeled, check_positions, describe
from qurate.distributed import ProcessGroup, init_process_group, run_in_group
from qurate.errors import ConfigError, QurateError
from qurate.methods import Method
from qurate.methods.fitted import FittedMethod
from qurate.runtime.paths import count
from qurate.runtime.randomness import random_state, stream_seed
from qurate.runtime.signals import DeferredSignals
from qurate.runtime.tensors import below
from qurate.selection.callbacks import Callback, Callbacks, RoundRecord
from qurate.selection.pseudo_labels import Positives, Round, find_neighbors
from qurate.selection.selectors import NoneSelector, Selector, build_selector
from qurate.training import OnStep, Trainer, start

StateDict: TypeAlias = dict[str, Tensor]


@runtime_checkable
class Stateful(Protocol):
    """A selector that carries something from round to round, as torch's stateful objects do."""

    def state_dict(self) -> StateDict:
        """All it carries."""
        ...

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue from there."""
        ...


@dataclass(frozen=True, eq=False)
class Adaptation:
    """What `fit` returns.

    Args:
        method: The trained F and C; `qurate.evaluate(method, part)` measures it.
        positives: D_p at the end, each with why it was trusted.
        stopped: Why the rounds ended.
        rounds: One record per round.
    """

    method: Method
    positives: Positives
    stopped: str
    rounds: tuple[RoundRecord, ...]


@dataclass(eq=False)
class Pretraining:
    """Line 1 of runs that differ in selection alone: the first of them fills it in, the others start from it.

    With the schedule 'progress' they must be of equal length too, for the rates of line 1 depend on it.

    Args:
        state: Of the trainer after line 1; None until a run has done it.
        seconds: What line 1 took.
        baseline: Log-probabilities of D_u by S+T, (N_u, K); None until a run has trained S+T.
    """

    state: Mapping[str, Tensor] | None = None
    seconds: float = 0.0
    baseline: Tensor | None = None


@dataclass(frozen=True, eq=False)
class MidTraining:
    """Where a run is in the middle of training F and C.

    Args:
        line: 1 or 20.
        steps: Steps of it that are done.
        random: States of torch's own generators.
        selected: D_p that line 20 trains with.
    """

    line: int
    steps: int
    random: Tensor
    selected: Positives | None = None

    def tensors(self) -> StateDict:
        """All of it as one flat dictionary."""
        state = {"line": torch.tensor(self.line), "steps": torch.tensor(self.steps), "random": self.random}
        return state if self.selected is None else state | _prefixed("selected.", vars(self.selected))

    @classmethod
    def of_tensors(cls, state: Mapping[str, Tensor]) -> MidTraining | None:
        """What `tensors` made into a dictionary; None of an empty one."""
        if not state:
            return None
        selected = below("selected.", state)
        trusted = Positives(**selected) if selected else None
        return cls(int(state["line"]), int(state["steps"]), state["random"], trusted)


@dataclass(frozen=True, eq=False)
class Progress:
    """Everything that the rest of a run depends on, beside its data and config.

    Args:
        positives: D_p.
        neighbors: Found once, after pre-training; None unless the reward asks for them.
        rounds: The rounds that are done.
        unchanged: For how many rounds D_p has not changed.
        trainer: Weights, optimiser and step, as they were saved.
        selector: State of the selector, as it was saved.
        mid_training: Where it is in the middle of line 1 or 20; None between two lines.
    """

    positives: Positives = field(default_factory=Positives.none)
    neighbors: Tensor | None = None
    rounds: tuple[RoundRecord, ...] = ()
    unchanged: int = 0
    trainer: StateDict = field(default_factory=dict)
    selector: StateDict = field(default_factory=dict)
    mid_training: MidTraining | None = None

    @property
    def next_round(self) -> int:
        """Number of the round that follows."""
        return len(self.rounds)

    def converged(self, config: SelectionConfig) -> bool:
        """Line 4: whether the budget of rounds is used up, or D_p has not changed for long enough (decision 13)."""
        return self.next_round >= config.rounds or self.unchanged >= config.patience

    def after(self, positives: Positives, seconds: float) -> Self:
        """After one round more, which ended with this D_p."""
        new = len(positives.pairs() - self.positives.pairs())
        rounds = (*self.rounds, RoundRecord(self.next_round, len(positives), new, seconds))
        unchanged = self.unchanged + 1 if positives.same_as(self.positives) else 0
        return replace(self, positives=positives, rounds=rounds, unchanged=unchanged, mid_training=None)

    def tensors(self) -> StateDict:
        """All of it as one flat dictionary, for a file."""
        columns = {part.name: [getattr(each, part.name) for each in self.rounds] for part in fields(RoundRecord)}
        state = {"unchanged": torch.tensor(self.unchanged)}
        state |= _prefixed("trainer.", self.trainer) | _prefixed("selector.", self.selector)
        state |= _prefixed("positives.", vars(self.positives))
        state |= {f"rounds.{name}": torch.tensor(values, dtype=torch.float64) for name, values in columns.items()}
        if self.neighbors is not None:
            state["neighbors"] = self.neighbors
        if self.mid_training is not None:
            state |= _prefixed("mid_training.", self.mid_training.tensors())
        return {name: values.detach().cpu().contiguous() for name, values in state.items()}

    @classmethod
    def of_tensors(cls, state: Mapping[str, Tensor]) -> Progress:
        """What `tensors` made into a dictionary.

        Raises:
            ValueError: If it is none of this version.
        """
        state = {name: values.clone() for name, values in state.items()}  # the memory of a file need not be aligned
        try:
            if strange := {name.partition(".")[0] for name in state} - {part.name for part in fields(cls)}:
                raise KeyError(min(strange))
            records = zip(*(state[f"rounds.{part.name}"].tolist() for part in fields(RoundRecord)), strict=True)
            return cls(
                positives=Positives(**below("positives.", state)),
                neighbors=state.get("neighbors"),
                rounds=tuple(RoundRecord(int(n), int(size), int(new), seconds) for n, size, new, seconds in records),
                unchanged=int(state["unchanged"]),
                trainer=below("trainer.", state),
                selector=below("selector.", state),
                mid_training=MidTraining.of_tensors(below("mid_training.", state)),
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a checkpoint of this version of qurate: {error}") from error


class Checkpoint(Protocol):
    """Where progress is kept. `runs.RunFolder` keeps it in a file."""

    def load(self) -> Progress | None:
        """What was saved last, or None at the beginning."""
        ...

    def save(self, progress: Progress) -> None:
        """Replace what was saved before."""
        ...


class Checkpointer:
    """Saves the progress of a run between the lines and while F and C train.

    Args:
        checkpoint: Where; nowhere if None.
        config: How often.
        trainer: F and C.
        selector: Its state is saved if it has one.
    """

    def __init__(
        self, checkpoint: Checkpoint | None, config: ExecutionConfig, trainer: Trainer, selector: Selector
    ) -> None:
        self._checkpoint, self._config, self._trainer, self._selector = checkpoint, config, trainer, selector
        self._signals = DeferredSignals()
        self._saved = time.monotonic()

    def restore(self) -> Progress | None:
        """Load progress, trainer and selector; None if there is nothing to resume."""
        progress = None if self._checkpoint is None else self._checkpoint.load()
        if progress is not None:
            self._trainer.load_state_dict(progress.trainer)
            if isinstance(self._selector, Stateful):
                self._selector.load_state_dict(progress.selector)
        return progress

    def save(self, progress: Progress) -> None:
        """Save the progress with the states of trainer and selector."""
        if self._checkpoint is not None:
            state = self._selector.state_dict() if isinstance(self._selector, Stateful) else {}
            self._checkpoint.save(replace(progress, trainer=self._trainer.state_dict(), selector=state))
        self._saved = time.monotonic()

    @contextmanager
    def during(
        self, on_step: OnStep, progress: Progress, line: int, selected: Positives | None = None
    ) -> Iterator[OnStep]:
        """Defer SIGINT and SIGTERM within the block to the end of a training step, after its checkpoint.

        Args:
            on_step: Called after each step.
            progress: At the beginning of the line.
            line: 1 or 20.
            selected: D_p that line 20 trains with.

        Yields:
            What to call after each step instead.
        """
        every, minutes = self._config.checkpoint_steps, self._config.checkpoint_minutes

        def on_step_and_save(step: int, terms: dict[str, float]) -> None:
            on_step(step, terms)
            is_late = bool(minutes) and time.monotonic() - self._saved >= 60 * minutes
            if self._signals.received or is_late or (every and step % every == 0):
                random = random_state(self._trainer.fabric.device)
                self.save(replace(progress, mid_training=MidTraining(line, step, random, selected)))
            if self._signals.received:
                self._signals.deliver()

        if self._checkpoint is None:
            yield on_step
            return
        with self._signals.defer():
            yield on_step_and_save


class RankZeroError(QurateError, RuntimeError):
    """Rank 0 failed and reports why; the other ranks cannot go on."""


class RankZeroSelector:
    """The selector of the other ranks, to which rank 0 broadcasts its positives."""

    def select(self, round: Round) -> Positives:
        """Never called."""
        raise NotImplementedError("Rank 0 selects.")


@dataclass(frozen=True, eq=False)
class LoadedCheckpoint:
    """The checkpoint of the other ranks, which do not write: what rank 0 has loaded."""

    progress: Progress | None

    def load(self) -> Progress | None:
        """What rank 0 has loaded."""
        return self.progress

    def save(self, progress: Progress) -> None:
        """Nothing: rank 0 saves."""


class RunArguments(NamedTuple):
    """The arguments of `fit`, as rank 0 broadcasts them."""

    split: Split
    config: RunConfig
    selector: Selector | None = None
    callbacks: Sequence[Callback] = ()
    checkpoint: Checkpoint | None = None
    pretrained: Pretraining | None = None
    baseline: Tensor | None = None


def broadcast_arguments(group: ProcessGroup, arguments: RunArguments) -> RunArguments:
    """The arguments of rank 0 on every rank; hidden labels do not leave rank 0."""
    if not group.is_rank_zero:
        received: RunArguments = group.broadcast()
        return received
    split, config, selector, _, checkpoint, *_ = arguments
    has_rounds = not (config.selection.selector.name == "none" if selector is None else _is_none(selector))
    group.broadcast(
        arguments._replace(
            split=replace(split, target_unlabeled=Unlabeled(split.target_unlabeled.inputs), validation=None),
            selector=RankZeroSelector() if has_rounds else selector,
            callbacks=(),
            checkpoint=None if checkpoint is None else LoadedCheckpoint(checkpoint.load()),
        )
    )
    return arguments


class Session:
    """One run of Algorithm 1: its data, F and C, selector and callbacks; skips what was done before a stop.

    Args:
        arguments: Of `fit`; on every rank those that rank 0 has broadcast.
        group: The processes that train together; None for one.
    """

    def __init__(self, arguments: RunArguments, group: ProcessGroup | None = None) -> None:
        self.config = arguments.config
        self.data, self.trainer = TrainingData.of(arguments.split), start(arguments.split, self.config, group)
        self._group = group
        self.callbacks = Callbacks(arguments.callbacks)
        self.selector = arguments.selector or build_selector(
            self.config, self.trainer.method.network, len(self.data.unlabeled), self.callbacks
        )
        self.callbacks.on_start(self.trainer.method)
        self.baseline = None if arguments.baseline is None else arguments.baseline.detach().cpu().float()
        is_fitted = isinstance(self.trainer.method, FittedMethod)
        self._shared = None if is_fitted else arguments.pretrained  # what is fitted has no state to share
        self._checkpointer = Checkpointer(arguments.checkpoint, self.config.execution, self.trainer, self.selector)
        restored = self._checkpointer.restore()
        self._progress = restored or Progress()
        self._is_pretrained = restored is not None and not self.is_within(1)
        if is_fitted and restored is not None:  # nor one to resume from
            positives = restored.positives
            self.trainer.run(self.data.with_positives(positives.indices, positives.labels), steps=0, seed=0)

    @classmethod
    @contextmanager
    def open(cls, arguments: RunArguments, follow: Callable[[ProcessGroup], Any]) -> Iterator[Self]:
        """Start a run, with the processes that its config asks for.

        Args:
            arguments: Of `fit`; those of rank 0 count.
            follow: What the other processes call to take part in runs.
        """
        group = init_process_group(arguments.config.execution, follow)
        with run_in_group(group):
            yield cls(arguments if group is None else broadcast_arguments(group, arguments), group)

    @property
    def positives(self) -> Positives:
        """D_p: that of line 20 where the run was stopped in the middle of it, otherwise that of the last round."""
        mid = self._progress.mid_training
        return self._progress.positives if mid is None or mid.selected is None else mid.selected

    @property
    def neighbors(self) -> Tensor | None:
        """The nearest target samples of each sample of D_u after line 1; None unless the reward asks for them."""
        reward = self.config.selection.reward
        if reward.center == "neighbors" and self._progress.neighbors is None:
            found = find_neighbors(self.trainer.method.network, self.data, reward.neighbors, group=self._group)
            self._progress = replace(self._progress, neighbors=found)
        return self._progress.neighbors

    def is_within(self, line: int) -> bool:
        """Whether the run was stopped in the middle of a line and has not yet resumed."""
        mid = self._progress.mid_training
        return mid is not None and mid.line == line

    def rounds(self) -> Iterator[int]:
        """Line 4: the numbers of the rounds that are left, while not converged; none without a selector."""
        while not _is_none(self.selector) and not self._progress.converged(self.config.selection):
            self._round_began = time.perf_counter()
            self.callbacks.on_round_start(self._progress.next_round)
            yield self._progress.next_round

    def select(self, round: Round) -> Positives:
        """Lines 6-18: the positives that the selector trusts; rank 0 calls it and broadcasts them.

        Raises:
            ConfigError: If the selector returns something else.
            DataError: If they point to no sample of the round, or to no class.
            RankZeroError: On the other ranks, if the selector failed on rank 0.
        """
        self._progress = replace(self._progress, positives=round.positives)  # relabelled, perhaps
        group, positives = self._group, None
        if group is not None and not group.is_rank_zero:
            positives = group.broadcast()
            if positives is None:
                raise RankZeroError("The selector failed on rank 0.")
            return positives  # type: ignore[no-any-return]
        try:
            positives = self.selector.select(round)
            _check_positives(positives, self.selector, round)
            return positives
        finally:
            if group is not None:
                group.broadcast(positives)

    def train(self, *, line: int, steps: int, positives: Positives | None = None) -> None:
        """Lines 1 and 20: train F and C with D_s, D_t, D_u and D_p, or do what is left of it after a stop.

        Args:
            line: 1 or 20.
            steps: Of the whole line.
            positives: D_p; None in line 1.
        """
        if line == 1 and self._is_pretrained:
            return
        if line == 1 and self._shared is not None and self._shared.state is not None:
            self.trainer.load_state_dict(self._shared.state)
            self._end_pretraining()
            return
        began, mid = time.perf_counter(), self._progress.mid_training
        number = () if line == 1 else (self._progress.next_round,)
        data = self.data if positives is None else self.data.with_positives(positives.indices, positives.labels)
        with self._checkpointer.during(self.callbacks.on_step, self._progress, line, positives) as on_step:
            self.trainer.run(
                data,
                steps=steps,
                seed=stream_seed(self.config.seed, line, *number),
                on_step=on_step,
                first=0 if mid is None else mid.steps,
                random=None if mid is None else mid.random,
            )
        if line == 1:
            if self._shared is not None:
                self._shared.state, self._shared.seconds = self.trainer.state_dict(), time.perf_counter() - began
            self._end_pretraining()

    def _end_pretraining(self) -> None:
        self._progress = replace(self._progress, mid_training=None)
        self.callbacks.on_pretrained(self.trainer.method)
        self._checkpointer.save(self._progress)

    def end_round(self, positives: Positives) -> None:
        """Record a round that ended with this D_p, report it and save the progress."""
        self._progress = self._progress.after(positives, time.perf_counter() - self._round_began)
        self.callbacks.on_round(self._progress.rounds[-1], self.trainer.method, positives)
        self._checkpointer.save(self._progress)

    def result(self) -> Adaptation:
        """What the run ended with."""
        self.callbacks.on_waited(self.trainer.waited, self.trainer.seconds)
        progress, config = self._progress, self.config.selection
        if _is_none(self.selector):
            stopped = "no selector: the base model is the result"
        elif progress.unchanged >= config.patience:
            stopped = f"the trusted pseudo-labels did not change for {count(config.patience, 'round')}"
        else:
            stopped = f"the budget of {count(config.rounds, 'round')} is used up"
        return Adaptation(self.trainer.method, progress.positives, stopped, progress.rounds)


def check_arguments(arguments: RunArguments) -> None:
    """Check the arguments of `fit`, before anything is built.

    Raises:
        DataError: If it is not a Split.
        ConfigError: If another argument is not what it must be.
    """
    split, config, selector, callbacks, checkpoint, pretrained, baseline = arguments
    if not isinstance(split, Split):
        raise DataError(f"fit: split must be a Split, for example from split_target(...), got {describe(split)}.")
    if not isinstance(config, RunConfig):
        raise ConfigError(f"fit: config must be a RunConfig, such as make_config('tml') makes, got {describe(config)}.")
    config.check_shares()
    if selector is not None and (isinstance(selector, type) or not callable(getattr(selector, "select", None))):
        raise ConfigError(
            f"fit: selector must be an object with a method select(round), got {describe(selector)}. Selectors with "
            "a name are chosen by make_config(selector=...)."
        )
    wrong = (
        [callbacks] if not isinstance(callbacks, Sequence) else [x for x in callbacks if not isinstance(x, Callback)]
    )
    if wrong:
        raise ConfigError(f"fit: callbacks must be a list of Callback objects, got {describe(wrong[0])}.")
    if checkpoint is not None and not all(callable(getattr(checkpoint, verb, None)) for verb in ("load", "save")):
        raise ConfigError(
            f"fit: checkpoint must be an object with load() and save(progress), got {describe(checkpoint)}."
        )
    if pretrained is not None and not isinstance(pretrained, Pretraining):
        raise ConfigError(f"fit: pretrained must be a Pretraining, got {describe(pretrained)}.")
    shape = (len(split.target_unlabeled), split.n_classes)
    if baseline is not None and not (
        isinstance(baseline, Tensor)
        and baseline.shape == shape
        and baseline.is_floating_point()
        and bool((baseline.exp().sum(dim=1) - 1).abs().max() < 1e-3)
    ):
        raise DataError(
            f"fit: baseline must be log-probabilities of D_u {shape}, rows of which add up to 1 as probabilities, "
            f"got {describe(baseline)}."
        )


def _check_positives(positives: object, selector: object, round: Round) -> None:
    where = f"{type(selector).__name__}.select"
    if not isinstance(positives, Positives):
        raise ConfigError(
            f"{where} must return Positives, such as round.positives_at(indices), got {describe(positives)}."
        )
    check_positions(positives.indices, len(round.pseudo_labels), f"{where}: indices")
    check_positions(positives.labels, round.n_classes, f"{where}: labels")


def _is_none(selector: Selector) -> bool:
    return isinstance(selector, NoneSelector)


def _prefixed(prefix: str, state: Mapping[str, Tensor]) -> StateDict:
    return {f"{prefix}{name}": values for name, values in state.items()}
