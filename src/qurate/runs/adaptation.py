"""Your own images: from three folders to a model, its predictions, and whether adaptation helped."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, get_args

from torch import Tensor

from qurate.config import Device, NetworkConfig, RunConfig, to_dict
from qurate.data.embedding.embed import embed_files, embed_images, image_paths, put_embeddings
from qurate.data.embedding.frozen import FrozenBackbone, freeze_backbone
from qurate.data.images import find_unreadable
from qurate.data.parts import Parts, Place, read_parts
from qurate.data.samples import Inputs, Split
from qurate.errors import ConfigError
from qurate.expectation import expect, say_time
from qurate.methods import Method
from qurate.networks.heads import Network
from qurate.presets import Preset, make_config
from qurate.report.run.gather import gather_record
from qurate.report.run.record import Comparison, RunRecord
from qurate.runs.comparison import Plan, compare, is_baseline, plan_comparison
from qurate.runs.folder import CURVES_FOLDER, RunFolder
from qurate.runs.model import AdaptedModel, load_model
from qurate.runs.settings import BACKBONE, Train, find_weights
from qurate.runs.tracking import Tracker
from qurate.runtime.progress import Audience, follow
from qurate.selection.algorithm import Adaptation, fit
from qurate.selection.callbacks import Callback
from qurate.selection.q_learning.memory import readable_size


@dataclass(frozen=True, eq=False)
class Outcome:
    """What a run leaves.

    Args:
        model: The adapted model.
        record: What its page shows; None where the run was finished before and its model only loaded.
    """

    model: AdaptedModel
    record: RunRecord | None


def adapt(
    source: Place,
    labeled: Place,
    unlabeled: Place,
    *,
    method: str = "tml",
    selector: str | None = None,
    preset: Preset = "qurate",
    backbone: str = BACKBONE,
    weights: str = "auto",
    train: Train = "head",
    steps: int | None = None,
    rounds: int | None = None,
    seed: int = 0,
    out: Place | None = None,
    resume: bool = False,
    force: bool = False,
    compare: bool = True,
    missing: Literal["error", "drop"] = "error",
    config: RunConfig | None = None,
    device: Device = "auto",
    cache: Path | None = None,
    progress: bool = True,
) -> AdaptedModel:
    """Adapt an image classifier from labelled source images to a target with few labels.

    Args:
        source: Labelled source images: class folders, a list file or a CSV table.
        labeled: Labelled target images, likewise, of the same classes.
        unlabeled: Unlabelled target images: any folder, nested or flat, a list or a table.
        method: How the network learns: one of `qurate.METHODS`.
        selector: Which pseudo-labels to trust: none, confidence, quality, balanced, random, dqn; 'dqn' unless given.
        preset: How the agent of selector 'dqn' is set up: 'qurate', or 'paper' for the printed algorithm.
        backbone: 'timm/NAME.TAG', 'torchvision/vgg16' or 'torchvision/resnet34'.
        weights: 'pretrained' (download), 'offline' (of the extra `qurate[offline]`), or the path of a weight file;
            'auto' takes the offline ones where they are installed and fit the backbone, else the pretrained ones.
        train: 'head' trains on embeddings of the frozen backbone, in minutes; 'full' trains all layers, slowly.
        steps: Training steps before selection; the preset's unless given.
        rounds: Most rounds of selection; the preset's unless given.
        seed: Decides everything random; the same seed gives the same result on CPU.
        out: Run folder for model, predictions and page; None writes nothing.
        resume: Continue an interrupted run in `out`; a finished one is loaded.
        force: Overwrite a run in `out`.
        compare: Also train S+T and compare, on held-out labelled target images.
        missing: What to do with a class that source or labelled target lacks: 'error', or 'drop' it.
        config: The whole run, in place of method, selector, preset, steps, rounds, seed and device.
        device: 'auto', 'cpu', 'cuda', 'mps'.
        cache: Folder of the embedding cache; the user's unless given.
        progress: Show what the run does: bars in a terminal and in a notebook, elsewhere a line for each phase.

    Raises:
        DataError: If the images cannot be used as given.
        BackboneError: If the backbone or its weights cannot be had.
        RunError: If `out` cannot be written or holds another run.

    Example:
        >>> model = qurate.adapt("studio", "phone-labelled", "phone", out="run")  # needs images  # doctest: +SKIP
        >>> model.predict("new-photos")  # needs images  # doctest: +SKIP
    """
    weights = find_weights(backbone, weights)
    run = config or make_config(
        method,
        selector,
        preset=preset,
        network=trained_network(train, backbone, weights),
        steps=steps,
        rounds=rounds,
        seed=seed,
        device=device,
    )
    return run_adaptation(
        source,
        labeled,
        unlabeled,
        run,
        backbone=backbone,
        weights=weights,
        train=train,
        out=out,
        resume=resume,
        force=force,
        compare=compare,
        missing=missing,
        cache=cache,
        progress=progress,
    ).model


def trained_network(train: Train, backbone: str, weights: str) -> NetworkConfig:
    """What is trained: the layers after a frozen backbone, on its embeddings, or the backbone as well."""
    if train not in get_args(Train):
        raise ConfigError(f"train must be one of {', '.join(get_args(Train))}, got {train!r}.")
    network = NetworkConfig(bottleneck="normalized")
    return dataclasses.replace(network, backbone=backbone, weights=weights) if train == "full" else network


def run_adaptation(
    source: Place,
    labeled: Place,
    unlabeled: Place,
    config: RunConfig,
    *,
    backbone: str,
    weights: str,
    train: Train,
    out: Place | None = None,
    resume: bool = False,
    force: bool = False,
    compare: bool = True,
    missing: Literal["error", "drop"] = "error",
    cache: Path | None = None,
    progress: bool = True,
    audience: Audience | None = None,
) -> Outcome:
    """`adapt` with its words understood, see there; an `audience` is told in place of bars.

    Returns:
        The model, and the record of its run beside it.
    """
    folder = None if out is None else RunFolder(out)
    with follow(progress) if audience is None else nullcontext(audience) as hears:
        if folder is not None:
            folder.claim(resume=resume, force=force)
            if resume and folder.finished:
                hears.say(f"{folder.path} is already finished.")
                return Outcome(load_model(folder.path), None)
        hears.say("Reading the images ...")
        parts = read_parts(source, labeled, unlabeled, missing=missing, cache=cache)
        for line in parts.lines():
            hears.say(line)
        frozen = freeze_backbone(backbone, weights)
        return _Job(config, train, weights, frozen, compare, cache, folder, hears).run(parts)


@dataclass(frozen=True, eq=False)
class _Job:
    """One adaptation, after its arguments were understood."""

    config: RunConfig
    train: Train
    weights: str
    frozen: FrozenBackbone
    check_helping: bool
    cache: Path | None
    folder: RunFolder | None
    audience: Audience

    def run(self, parts: Parts) -> Outcome:
        if self.folder is not None:
            known = self._settings(parts)
            del known["data"]  # an image may turn out to be unreadable
            self.folder.check(known)  # before the work begins
        expected = expect(parts.split, self.config, self.frozen, len(self._plan(parts).folds), self.cache)
        self.audience.say(f"Expected time: {say_time(expected)}.")
        parts, split = self._prepare(parts)
        plan = self._plan(parts)
        if self.folder is not None:
            self.folder.begin(self._settings(parts))
        tracker = Tracker(None if self.folder is None else self.folder.path / CURVES_FOLDER)
        callbacks = (tracker, _Phases(self.audience, self.config))
        result = fit(split, self.config, checkpoint=self.folder, callbacks=callbacks)
        tracker.close()
        comparison = self._compare(split, plan)
        self.audience.show("writing the page", 0, 1)
        record = self._record(parts, split, result, comparison, plan)
        model = self._model(result.method, split.classes)
        if self.folder is not None:
            self.folder.finish(model, record)
        self.audience.show("writing the page", 1, 1)
        return Outcome(model, record)

    def _plan(self, parts: Parts) -> Plan:
        plan = plan_comparison(parts.split.target_labeled.labels, seed=self.config.seed)
        return Plan(plan.how, ()) if not self.check_helping or is_baseline(self.config) else plan

    def _prepare(self, parts: Parts) -> tuple[Parts, Split]:
        """What training is given, and the parts without the images that turned out to be unreadable."""
        paths = image_paths(parts.split)
        if self.train == "full":
            sound = parts.without(find_unreadable(paths, partial(self.audience.show, "checking images")))
            split = sound.split
        else:
            found = embed_files(
                paths,
                self.frozen,
                cache=self.cache,
                device=self.config.training.device,
                on_progress=partial(self.audience.show, "embedding"),
            )
            sound = parts.without(found.unreadable)
            split = put_embeddings(sound.split, found)
        for line in sound.lines():
            if line not in parts.lines():
                self.audience.say(line)
        return sound, split

    def _settings(self, parts: Parts) -> dict[str, Any]:
        """What a resumed run must have in common with the interrupted one."""
        return {
            "qurate": version("qurate"),
            "train": self.train,
            "backbone": self.frozen.name,
            "weights": self.weights,
            "backbone_sha256": self._fingerprint(),
            "check_helping": self.check_helping,
            "data": parts.digest,
            "run": to_dict(self.config),
        }

    def _fingerprint(self) -> str:
        return hashlib.sha256(self.frozen.identity.encode()).hexdigest()

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

    def _model(self, method: Method, classes: tuple[str, ...]) -> AdaptedModel:
        network = method.network.to("cpu")
        config = dataclasses.replace(self.config.network, backbone=self.frozen.name, weights="none")
        if self.train == "head":
            network = Network(
                self.frozen.module.to("cpu"),
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
        return AdaptedModel(network.eval(), config, classes, origin, cache=self.cache)

    def _record(
        self, parts: Parts, split: Split, result: Adaptation, comparison: Comparison | None, plan: Plan
    ) -> RunRecord:
        notes = parts.notes
        if self.check_helping and not plan.folds:
            notes = (*notes, _IS_BASELINE if is_baseline(self.config) else _TOO_FEW)
        title = f"{parts.name}, {split.n_classes} classes"
        return gather_record(
            parts.split, split, result, comparison, self.config, notes, title=title, before=self._before
        )

    def _before(self, inputs: Inputs) -> Tensor:
        if isinstance(inputs, Tensor):
            return inputs
        return embed_images(inputs, self.frozen, cache=self.cache, device=self.config.training.device)


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


_TOO_FEW = "No comparison: no class has two labelled target images, so none can be held out. Label a few more."
_IS_BASELINE = "No comparison: this run is S+T itself."
