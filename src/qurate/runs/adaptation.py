"""Your own images: from three folders to a model, its predictions, and whether adaptation helped."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, Protocol

from torch import Tensor

from qurate.config import Device, NetworkConfig, RunConfig, to_dict
from qurate.data.embedding.embed import embed_images, embed_split
from qurate.data.embedding.frozen import FrozenBackbone, freeze_backbone
from qurate.data.parts import Parts, Place, read_parts
from qurate.data.samples import Inputs, Split
from qurate.expectation import expect, say_time
from qurate.methods import Method
from qurate.networks.heads import Network
from qurate.presets import make_config
from qurate.report.run.gather import gather_record, metrics_table
from qurate.report.run.record import Comparison, RunRecord
from qurate.runs.comparison import Plan, compare, is_baseline, plan_comparison
from qurate.runs.folder import CURVES_FOLDER, RunFolder
from qurate.runs.model import AdaptedModel, load_model
from qurate.runs.settings import BACKBONE, Train, find_weights
from qurate.runs.tracking import Tracker
from qurate.selection.algorithm import Adaptation, fit
from qurate.selection.callbacks import Callback
from qurate.selection.q_learning.memory import readable_size


class Audience(Protocol):
    """Who is told what a run does; the command line's shows bars."""

    def say(self, line: str) -> None:
        """A sentence."""
        ...

    def show(self, phase: str, done: int, total: int) -> None:
        """How far a phase is."""
        ...


class _Nobody:
    def say(self, line: str) -> None:
        pass

    def show(self, phase: str, done: int, total: int) -> None:
        pass


def adapt(
    source: Place,
    labeled: Place,
    unlabeled: Place,
    *,
    method: str = "tml",
    selector: str = "dqn",
    backbone: str = BACKBONE,
    weights: str = "auto",
    train: Train = "head",
    seed: int = 0,
    out: Place | None = None,
    resume: bool = False,
    force: bool = False,
    check_helping: bool = True,
    missing: Literal["error", "drop"] = "error",
    config: RunConfig | None = None,
    device: Device = "auto",
    cache: Path | None = None,
    audience: Audience | None = None,
) -> AdaptedModel:
    """Adapt an image classifier from labelled source images to a target with few labels.

    Args:
        source: Labelled source images: class folders, a list file or a CSV table.
        labeled: Labelled target images, likewise, of the same classes.
        unlabeled: Unlabelled target images: any folder, nested or flat, a list or a table.
        method: How the network learns: one of `qurate.METHODS`.
        selector: Which pseudo-labels to trust: none, confidence, quality, balanced, random, dqn.
        backbone: 'timm/NAME.TAG', 'torchvision/vgg16' or 'torchvision/resnet34'.
        weights: 'pretrained' (download), 'offline' (of the extra `qurate[offline]`), or the path of a weight file;
            'auto' takes the offline ones where they are installed and fit the backbone, else the pretrained ones.
        train: 'head' trains on embeddings of the frozen backbone, in minutes; 'full' trains all layers, slowly.
        seed: Decides everything random; the same seed gives the same result on CPU.
        out: Run folder for model, predictions and page; None writes nothing.
        resume: Go on with an interrupted run in `out`; a finished one is loaded.
        force: Overwrite a run in `out`.
        check_helping: Also train S+T and compare, on held-out labelled target images.
        missing: What to do with a class that source or labelled target lacks: 'error', or 'drop' it.
        config: Everything else, in place of method, selector, train's network and seed; see `make_config`.
        device: 'auto', 'cpu', 'cuda', 'mps'.
        cache: Folder of the embedding cache; the user's unless given.
        audience: Told what was understood and how far the run is.

    Raises:
        DataError: If the images cannot be used as given.
        BackboneError: If the backbone or its weights cannot be had.
        RunError: If `out` cannot be written or holds another run.

    Example:
        >>> model = qurate.adapt("studio", "phone-labelled", "phone", out="run")  # doctest: +SKIP
        >>> model.predict("new-photos")  # doctest: +SKIP
    """
    hears, weights = audience or _Nobody(), find_weights(backbone, weights)
    network = NetworkConfig(bottleneck="normalized")
    if train == "full":
        network = NetworkConfig(backbone, weights, "normalized")
    run = config or make_config(method, selector, network=network, seed=seed, device=device)
    folder = None if out is None else RunFolder(out)
    if folder is not None:
        folder.claim(resume=resume, force=force)
        if resume and folder.finished:
            hears.say(f"{folder.path} is finished already.")
            return load_model(folder.path)
    hears.say("Reading and checking the images ...")
    parts = read_parts(source, labeled, unlabeled, missing=missing, cache=cache)
    for line in parts.lines():
        hears.say(line)
    frozen = freeze_backbone(backbone, weights)
    job = _Job(parts, run, train, backbone, weights, frozen, check_helping, device, cache, folder, hears)
    if folder is not None:
        folder.begin(job.settings())
    return job.run()


@dataclass(frozen=True, eq=False)
class _Job:
    """One call of `adapt`, after its arguments were understood."""

    parts: Parts
    config: RunConfig
    train: Train
    backbone: str
    weights: str
    frozen: FrozenBackbone
    check_helping: bool
    device: str
    cache: Path | None
    folder: RunFolder | None
    audience: Audience

    def run(self) -> AdaptedModel:
        plan = plan_comparison(self.parts.split.target_labeled.labels, seed=self.config.seed)
        if not self.check_helping or is_baseline(self.config):
            plan = Plan(plan.how, ())
        expected = expect(self.parts.split, self.config, self.backbone, self.weights, len(plan.folds), self.cache)
        self.audience.say(f"Expected time: {say_time(expected)}.")
        split = self._embed() if self.train == "head" else self.parts.split
        tracker = Tracker(None if self.folder is None else self.folder.path / CURVES_FOLDER)
        callbacks = (tracker, _Phases(self.audience, self.config))
        result = fit(split, self.config, checkpoint=self.folder, callbacks=callbacks)
        tracker.close()
        comparison = self._compare(split, plan)
        self.audience.show("writing the page", 0, 1)
        record = self._record(split, result, comparison, plan)
        model = dataclasses.replace(self._model(result.method), record=record)
        if self.folder is not None:
            self.folder.finish(model, metrics_table(record))
        self.audience.show("writing the page", 1, 1)
        return model

    def settings(self) -> dict[str, Any]:
        """What a resumed run must have in common with the interrupted one."""
        return {
            "qurate": version("qurate"),
            "train": self.train,
            "backbone": self.backbone,
            "weights": self.weights,
            "backbone_sha256": self._fingerprint(),
            "check_helping": self.check_helping,
            "data": self.parts.digest,
            "run": to_dict(self.config),
        }

    def _fingerprint(self) -> str:
        return hashlib.sha256(self.frozen.describe().encode()).hexdigest()

    def _embed(self) -> Split:
        return embed_split(
            self.parts.split,
            self.backbone,
            self.weights,
            cache=self.cache,
            device=self.device,
            on_progress=lambda done, total: self.audience.show("embedding", done, total),
        )

    def _compare(self, split: Split, plan: Plan) -> Comparison | None:
        if not plan.folds:
            return None
        done = [] if self.folder is None else self.folder.load_folds()
        return compare(
            split,
            self.config,
            plan,
            done=done,
            on_fold=None if self.folder is None else self.folder.save_folds,
            listen=lambda phase, total: _Count(self.audience, phase, total),
        )

    def _model(self, method: Method) -> AdaptedModel:
        network = method.network.to("cpu")
        config = dataclasses.replace(self.config.network, backbone=self.backbone, weights="none")
        if self.train == "head":
            network = Network(
                self.frozen.module,
                network.bottleneck,
                network.classifier,
                pretrained=True,
                transform=self.frozen.transform,
            )
        origin = {
            "qurate": version("qurate"),
            "trained": self.train,
            "weights": self.weights,
            "backbone_sha256": self._fingerprint(),
        }
        return AdaptedModel(network.eval(), config, self.parts.split.classes, origin, cache=self.cache)

    def _record(self, split: Split, result: Adaptation, comparison: Comparison | None, plan: Plan) -> RunRecord:
        notes = self.parts.notes
        if self.check_helping and not plan.folds:
            notes = (*notes, _IS_BASELINE if is_baseline(self.config) else _TOO_FEW)
        files, title = self.parts.split, f"{self.parts.name}, {split.n_classes} classes"
        return gather_record(files, split, result, comparison, self.config, notes, title=title, before=self._before)

    def _before(self, inputs: Inputs) -> Tensor:
        if isinstance(inputs, Tensor):
            return inputs
        return embed_images(inputs, self.backbone, self.weights, cache=self.cache, device=self.device)


class _Phases(Callback):
    """Shows pre-training and each round as a phase."""

    def __init__(self, audience: Audience, config: RunConfig) -> None:
        self._audience = audience
        self._selection = config.selection
        self._phase, self._total = "pre-training", config.training.steps

    def on_memory(self, peak: int) -> None:
        """Say it once."""
        self._audience.say(f"Expected memory: about {readable_size(peak)}.")

    def on_step(self, step: int, terms: dict[str, float]) -> None:
        """Move on."""
        self._audience.show(self._phase, step, self._total)

    def on_round_start(self, number: int) -> None:
        """A new phase."""
        self._phase, self._total = f"round {number + 1} of {self._selection.rounds}", self._selection.round_steps
        self._audience.show(self._phase, 0, self._total)


class _Count(Callback):
    """Counts all steps of one training, whatever its rounds."""

    def __init__(self, audience: Audience, phase: str, total: int) -> None:
        self._audience, self._phase, self._total = audience, phase, total
        self._done = itertools.count(1)

    def on_step(self, step: int, terms: dict[str, float]) -> None:
        """One more."""
        self._audience.show(self._phase, next(self._done), self._total)


_TOO_FEW = "Nothing to compare on: no class has two labelled target images, so none can be held out. Label a few more."
_IS_BASELINE = "Nothing to compare with: this run is S+T itself."
