"""What the options of a run mean, a run whose images are read, and what it leaves."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from qurate.active.answers import AnswersFile
from qurate.config import RunConfig, TrainingConfig
from qurate.data.samples import Inputs
from qurate.data.sources import SourceWeights
from qurate.embedding.backbone import Frozen
from qurate.embedding.embed import embed_files
from qurate.run_results import RunRecord
from qurate.runs.continue_from import PreviousRun, RunData
from qurate.runs.folder import RunFolder
from qurate.runs.full_training import FullTraining, full_config
from qurate.runs.image_sources import Places
from qurate.runs.model import AdaptedModel
from qurate.runtime.options import Train
from qurate.runtime.progress import Reporter
from qurate.selection.answered import shorten, third

Clock = Callable[[], float]
"""Seconds since some moment, as `time.monotonic` gives them."""


class TimeLimit:
    """How long a run may take, from now on.

    Args:
        seconds: All of it.
        kept: The options among `backbone`, `compare`, `steps` and `rounds` that were given, and are not chosen.
        clock: Tells the time.
    """

    def __init__(self, seconds: float, kept: Collection[str] = (), clock: Clock = time.monotonic) -> None:
        self.seconds, self.kept, self.clock = seconds, frozenset(kept), clock
        self._end = clock() + seconds

    @property
    def left(self) -> float:
        """Seconds that are left; negative once it is over."""
        return self._end - self.clock()


@dataclass(frozen=True, eq=False)
class RunSetup:
    """What the options of a run mean.

    Args:
        config: The run; that of the head, where all layers are trained after it.
        backbone: By its whole name.
        weights: Where its weights come from.
        places: Where the images are.
        compare: Whether to compare with S+T.
        previous: The run that the answers are about, if any.
        answers: What people said of the images, if anything.
        cache: Folder of the embedding cache; the user's unless given.
        prepare: Folder where images are stored at training size, if they are.
        folder: Where the run is written, if anywhere.
        message: What was chosen and why, where a word such as 'auto' left the choice to us.
        full: How all layers are trained after the head; None if they are not.
        anew: Whether the run starts anew although it is about answers to another one: where its classes differ.
        limit: How long the run may take; backbone, comparison, steps and rounds are then chosen by `runs.budget`.
        cut_short: Whether a time limit, not a person, decided that there is no comparison.
        source_weights: How much each of several sources counts.
        source_model: A saved model whose class statistics stand for the source, if any.
    """

    config: RunConfig
    backbone: str
    weights: str
    places: Places
    compare: bool = True
    previous: PreviousRun | None = None
    answers: AnswersFile | None = None
    cache: Path | None = None
    prepare: Path | None = None
    folder: RunFolder | None = None
    message: str = ""
    full: TrainingConfig | None = None
    anew: bool = False
    limit: TimeLimit | None = None
    cut_short: bool = False
    source_weights: SourceWeights = "images"
    source_model: AdaptedModel | None = None

    @property
    def continued(self) -> PreviousRun | None:
        """The run that this one continues, if any."""
        return None if self.anew else self.previous

    @property
    def train(self) -> Train:
        """What Algorithm 1 trains."""
        return "head" if self.config.network.backbone == "none" else "full"

    @property
    def full_config(self) -> RunConfig | None:
        """The run that trains all layers after the head."""
        if self.full is None:
            return None
        network = dataclasses.replace(self.config.network, backbone=self.backbone, weights=self.weights)
        taken = self.full if self.continued is None else dataclasses.replace(self.full, steps=third(self.full.steps))
        return full_config(self.config, network, taken)

    @property
    def steps_taken(self) -> RunConfig:
        """The run with the steps that it takes: fewer where it learns from answers about a finished one."""
        return self.config if self.continued is None else shorten(self.config)


@dataclass(frozen=True, eq=False)
class RunOutcome:
    """What a run leaves.

    Args:
        model: The adapted model.
        record: What its page shows; None where the model was only loaded, as that of a run that was finished before, or
            this process only helped another one.
    """

    model: AdaptedModel
    record: RunRecord | None


@dataclass(frozen=True, eq=False)
class Run:
    """A run whose images are read and embedded.

    Args:
        setup: What its options mean.
        frozen: The backbone that embedded them.
        data: The images.
        reporter: Shown the progress.
        full: All layers trained after the head, if they were.
        head: The run of the head, where `frozen` is the backbone that was trained after it.
    """

    setup: RunSetup
    frozen: Frozen
    data: RunData
    reporter: Reporter
    full: FullTraining | None = None
    head: Run | None = None

    @property
    def of_baseline(self) -> Run:
        """The run with the embeddings that S+T takes."""
        return self.head or self

    @property
    def has_heads(self) -> bool:
        """Whether the adapted network and S+T are heads of one backbone."""
        return self.setup.train == "head" and self.head is None

    def embed_before(self, inputs: Inputs) -> Tensor:
        """Embeddings of a part of it, (N, width), by the backbone as it came."""
        if self.head is not None:  # its split holds the embeddings by the frozen backbone
            before, after = self.head.data.split.parts, self.data.split.parts
            inputs = next(before[name].inputs for name in after if after[name].inputs is inputs)
        if isinstance(inputs, Tensor):
            return inputs
        setup, device = self.setup, self.setup.config.execution.device
        return embed_files(inputs.paths, self.frozen, strict=True, cache=setup.cache, device=device).of(inputs)
