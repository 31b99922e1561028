"""How far Algorithm 1 is: what a killed run needs to end as if it had not been killed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Protocol, Self, TypeAlias, runtime_checkable

import torch
from torch import Tensor

from qurate.config import SelectionConfig
from qurate.runtime.states import below
from qurate.selection.callbacks import RoundRecord
from qurate.selection.positives import Positives
from qurate.selection.selectors.base import Selector
from qurate.training import Trainer

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
