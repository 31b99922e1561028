"""Several processes in one run: the leader says what is run, decides once which pseudo-labels to trust, and writes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from torch import Tensor

from qurate.config import RunConfig
from qurate.data.samples import Split, Unlabeled
from qurate.errors import QurateError
from qurate.runtime.company import Company, present_company, together
from qurate.selection.callbacks import Callback
from qurate.selection.checkpoint import Checkpoint, Progress
from qurate.selection.checks import check_positives
from qurate.selection.continuation import Previous
from qurate.selection.positives import Positives
from qurate.selection.pseudo_labels import Round
from qurate.selection.selectors.base import Selector
from qurate.selection.selectors.none import NoneSelector


class LeaderError(QurateError, RuntimeError):
    """The leading process failed, so the others cannot go on; it says why itself."""


class Follower:
    """The selector of a process that does not decide."""

    def select(self, round: Round) -> Positives:
        """Nobody asks it."""
        raise NotImplementedError("The leader selects.")


@dataclass(frozen=True, eq=False)
class Kept:
    """The checkpoint of a process that does not write: what the leader found."""

    progress: Progress | None

    def load(self) -> Progress | None:
        """What the leader found."""
        return self.progress

    def save(self, progress: Progress) -> None:
        """The leader does."""


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


def agree(company: Company, task: Task) -> Task:
    """The run that the leader was called with, in every process; hidden labels do not leave the leader."""
    if not company.leads:
        heard: Task = company.tell()
        return heard
    split, config, selector = task.split, task.config, task.selector
    kept = None if task.checkpoint is None else Kept(task.checkpoint.load())
    blind = replace(split, target_unlabeled=Unlabeled(split.target_unlabeled.inputs), validation=None)
    plain = config.selection.selector.name == "none" if selector is None else isinstance(selector, NoneSelector)
    follower = selector if plain else Follower()
    company.tell(task._replace(split=blind, selector=follower, callbacks=(), checkpoint=kept))
    return task


def decide(selector: Selector, round: Round) -> Positives:
    """Lines 6-18: what the selector trusts; in company the leader asks it, and all hear the answer.

    Raises:
        ConfigError: If these are no positives.
        DataError: If they point to no sample of the round, or to no class.
        LeaderError: In the other processes, if the leader's selector failed.
    """
    company, positives = present_company(), None
    if company is not None and not company.leads:
        positives = company.tell()
        if positives is None:
            raise LeaderError("The leading process could not select.")
        return positives  # type: ignore[no-any-return]
    try:
        with together(None):
            positives = selector.select(round)
            check_positives(positives, selector, round)
            return positives
    finally:
        if company is not None:
            company.tell(positives)
