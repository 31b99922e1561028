"""One adaptation at work: embed, train, write the results, then compare and add the verdict."""

from __future__ import annotations

import dataclasses
import hashlib
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pandas as pd
from torch import Tensor

from qurate.active.answers import AnswersFile
from qurate.calibration import Calibration
from qurate.config import RunConfig, to_dict
from qurate.data.images import check_pixels, try_all
from qurate.data.own_images import Parts, paths_of, prepare_images, read_prepared
from qurate.data.samples import Inputs, Split
from qurate.embedding.backbone import Frozen, FrozenBackbone, transforms_of
from qurate.embedding.embed import embed_files, image_paths, put_embeddings
from qurate.methods import Method
from qurate.networks.heads import Network
from qurate.networks.inference import log_probabilities
from qurate.report.run_page import gather_record
from qurate.run_results import RunRecord
from qurate.runs.comparison import Plan, compare, cross_fit, plan_comparison
from qurate.runs.continue_from import (
    AppliedAnswers,
    PreviousRun,
    RunData,
    apply_answers,
    summarize_answers,
)
from qurate.runs.files import CURVES_FOLDER, REPORT_FILE
from qurate.runs.folder import RunFolder
from qurate.runs.image_sources import Places, Train
from qurate.runs.model import AdaptedModel
from qurate.runs.predictions import (
    calibrate,
    calibrate_by_agreement,
    calibrate_by_previous,
    calibrate_record,
    held_out_table,
    predict_all,
    predict_baseline,
    train_baseline,
)
from qurate.runtime.progress import Audience
from qurate.selection.algorithm import Adaptation, fit
from qurate.selection.answered import Previous, fit_with_answers, shorten
from qurate.selection.callbacks import Action, Callback, RoundRecord
from qurate.selection.crossfit import HeldOut, is_baseline
from qurate.selection.pseudo_labels import Positives
from qurate.selection.q_learning.memory import readable_size
from qurate.training import memory_of_training

EVERY = 10
"""Steps between two points of a curve."""


class Tracker(Callback):
    """Writes losses, rewards and the number of positives as TensorBoard scalars; does nothing without the extra.

    Args:
        folder: Where the event files go; None writes nothing.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder if find_spec("tensorboard") is not None else None
        self._writer: Any = None
        self._steps = 0
        self._actions = 0

    def on_step(self, step: int, terms: dict[str, float]) -> None:
        """Terms of the loss, every few steps."""
        self._steps += 1
        if self._steps % EVERY == 0:
            for name, value in terms.items():
                self._write(f"training/{name}", value, self._steps)

    def on_action(self, action: Action) -> None:
        """Reward and phi of each action."""
        self._actions += 1
        self._write("selection/reward", action.reward, self._actions)
        self._write("selection/phi", action.phi, self._actions)

    def on_round(self, record: RoundRecord, method: Method, positives: Positives) -> None:
        """Positives of each round."""
        self._write("rounds/positives", record.positives, record.round)
        self._write("rounds/new", record.new, record.round)

    def close(self) -> None:
        """Flush what was written."""
        if self._writer is not None:
            self._writer.close()

    def _write(self, name: str, value: float, step: int) -> None:
        if self._folder is None:
            return
        if self._writer is None:  # not before there is something to write: a run may be refused
            from torch.utils.tensorboard import SummaryWriter  # needs the extra

            self._writer = SummaryWriter(str(self._folder))
        self._writer.add_scalar(name, value, step)


TOO_FEW = "No class has two labelled target images, so none can be held out. Label a few more and adapt again."
STILL_TO_COME = (
    "The comparison with plain training (S+T) was not finished when this page was written. Re-run the command with "
    "--resume to finish it, or with --resume --no-compare to do without."
)
_IS_BASELINE = "This run is plain training (S+T) itself, so there is nothing to compare it with."
_SWITCHED_OFF = (
    "The comparison with plain training (S+T) was switched off. Adapt again with it to see whether it helps."
)


class Phases(Callback):
    """Shows pre-training and each round as a phase.

    Args:
        audience: Told of them.
        config: The run.
    """

    def __init__(self, audience: Audience, config: RunConfig) -> None:
        self._audience = audience
        self._selection = config.selection
        self._loads = config.network.backbone != "none"
        self._phase, self._total = "pre-training", config.training.steps

    def on_memory(self, peak: int) -> None:
        """Say it once."""
        self._audience.say(f"Expected memory: about {readable_size(peak)}.")

    def on_step(self, step: int, terms: dict[str, float]) -> None:
        """Move on."""
        self._audience.show(self._phase, step, self._total)

    def on_waited(self, waited: float, seconds: float) -> None:
        """Say it where images are decoded for each step."""
        if self._loads and seconds:
            self._audience.say(
                f"The network waited for data in {waited / seconds:.0%} of {seconds:.0f} seconds of training."
            )

    def on_round_start(self, number: int) -> None:
        """A new phase."""
        self._phase, self._total = f"round {number + 1} of {self._selection.rounds}", self._selection.round_steps
        self._audience.show(self._phase, 0, self._total)


def why_not_compared(config: RunConfig, check_helping: bool, previous: PreviousRun | None) -> str:
    """Why a run has no comparison, as a sentence or two."""
    if previous is not None:
        is_calibrated = previous.model.calibration.by != "nothing"
        kept = "are made as sure as that run's" if is_calibrated else "are not calibrated, as those of that run"
        return (
            f"This run learns from answers about {previous.folder} and repeats neither its comparison with plain "
            "training (S+T) nor its calibration, which would take longer than the run itself. Its probabilities "
            f"{kept}, and what "
            f"{previous.compared / REPORT_FILE} says of whether adaptation helped holds for the model before the "
            "answers."
        )
    if not check_helping:
        return _SWITCHED_OFF
    return _IS_BASELINE if is_baseline(config) else TOO_FEW


@dataclass(frozen=True, eq=False)
class RunOutcome:
    """What a run leaves.

    Args:
        model: The adapted model.
        record: What its page shows; None where the run was finished before and its model only loaded.
        leads: Whether this process did it, and did not only help another one.
    """

    model: AdaptedModel
    record: RunRecord | None
    leads: bool = True


@dataclass(frozen=True, eq=False)
class Job:
    """One adaptation, after its arguments were understood.

    Args:
        config: The run.
        weights: Where the backbone's weights come from.
        frozen: The backbone as it came.
        check_helping: Whether to compare with S+T.
        cache: Folder of the embedding cache; the user's unless given.
        folder: Where the run is written, if anywhere.
        audience: Told what the run does.
        places: Where the images are.
        answers_file: What people said of them, if anything.
        previous: The run that the answers are about, if any.
        prepare: Folder where images are stored at training size, if they are.
    """

    config: RunConfig
    weights: str
    frozen: Frozen
    check_helping: bool
    cache: Path | None
    folder: RunFolder | None
    audience: Audience
    places: Places
    answers_file: AnswersFile | None = None
    previous: PreviousRun | None = None
    prepare: Path | None = None

    @property
    def train(self) -> Train:
        """What is trained."""
        return "head" if self.config.network.backbone == "none" else "full"

    def run(self, parts: Parts) -> RunOutcome:
        """Do it."""
        if self.previous is not None:
            self.previous.check(parts, self.frozen)
        for line in self._apply_answers(parts).lines(self.previous):  # made again when unreadable images are known
            self.audience.say(line)
        if self.folder is not None:
            known = self._settings(parts)
            del known["data"]  # an image may turn out to be unreadable
            self.folder.check(known)  # before the work begins
            before, now = self.folder.processes_before(), self.config.execution.processes
            if self.folder.resumes and before != now:
                self.audience.say(
                    f"The run was started with {before} and continues with {now} processes, so numbers are added up in "
                    "another order: its result can differ from that of an undisturbed one as with another seed."
                )
        parts, split = self._prepare(parts)
        if self.train == "full":  # it is measured on a few images, so not before all were looked at
            room = readable_size(memory_of_training(parts.split, self.config))
            self.audience.say(f"Expected memory of training: about {room} in each process.")
        with nullcontext() if self.folder is None else self.folder.begin(self._settings(parts)):
            return self._work(RunData(parts, split, self._apply_answers(parts)))

    def _apply_answers(self, parts: Parts) -> AppliedAnswers:
        file = self.answers_file
        return AppliedAnswers.none() if file is None else apply_answers(file, parts, self.previous)

    @property
    def _trained(self) -> RunConfig:
        """The run with the steps that it takes."""
        return self.config if self.previous is None else shorten(self.config)

    def _work(self, data: RunData) -> RunOutcome:
        """Train and write the results; then compare, and add the verdict."""
        plan, folder, split = self._plan(data.parts), self.folder, data.split
        result = self._fit(data)
        self.audience.show("writing the results", 0, 1)
        log_probs = log_probabilities(result.method.network, split.target_unlabeled.inputs)
        calibration = Calibration() if plan.folds else self._without_labels(data, log_probs)
        record = calibrate_record(self._record(data, result, plan), log_probs, calibration)
        predictions = predict_all(record, data, result.method)
        record = self._with_answers(record, data, predictions)
        model = self._model(result.method, split.classes, calibration)
        if folder is not None and not folder.finished:
            answers = (*data.applied.answers, *data.applied.others)
            folder.write_results(model, record, predictions, answers, pending=bool(plan.folds))
        elif folder is not None and not plan.folds:
            folder.write_page(record)
        self.audience.show("writing the results", 1, 1)
        if plan.folds:
            baseline = train_baseline(split, self.config, folder, self.audience)
            baseline_log_probs = log_probabilities(baseline.network, split.target_unlabeled.inputs)
            folds = self._cross_fit(split, plan)
            record = dataclasses.replace(
                record, comparison=compare(folds, plan.how, log_probs, baseline_log_probs), no_comparison=""
            )
            held_out = HeldOut.join(folds)
            record = calibrate_record(record, log_probs, calibration := calibrate(held_out.adapted, held_out.labels))
            record = dataclasses.replace(record, held_out=held_out_table(held_out, calibration))
            model = dataclasses.replace(model, calibration=calibration)
            if folder is not None:
                fitted = calibrate(held_out.baseline, held_out.labels)
                predictions = predict_baseline(baseline_log_probs, record, data, baseline, fitted)
                folder.write_baseline(self._model(baseline, split.classes, fitted), predictions)
                folder.write_calibrated(model, record, predict_all(record, data, result.method))
        else:
            self.audience.say(f"No comparison was made. {self._why_not_compared()}")
        self.audience.say(f"The model's probabilities are {model.calibration}.")
        if folder is not None:
            folder.forget()
        return RunOutcome(model, record)

    def _fit(self, data: RunData) -> Adaptation:
        """Algorithm 1; shorter where people have answered questions about a finished run."""
        folder, split = self.folder, data.split
        tracker = Tracker(None if folder is None else folder.work / CURVES_FOLDER)
        callbacks = (tracker, Phases(self.audience, self._trained))
        if self.previous is None:
            result = fit(split, self.config, checkpoint=folder, callbacks=callbacks)
        else:
            trusted = self.previous.trusted(paths_of(data.parts.split.target_unlabeled))
            previous = Previous(self.previous.weights(), data.after_answers.keep(trusted), data.applied.joined)
            result = fit_with_answers(split, self.config, previous, checkpoint=folder, callbacks=callbacks)
        tracker.close()
        return result

    def _with_answers(self, record: RunRecord, data: RunData, predictions: pd.DataFrame) -> RunRecord:
        """The record with what the answers changed."""
        if not len(data.applied):
            return record
        named = predictions.set_index("file")["label"].loc[[row.file for row in data.applied.answers]].tolist()
        changed = summarize_answers(data.applied, named, record.predictions, self.previous)
        return dataclasses.replace(record, answers=changed)

    def _plan(self, parts: Parts) -> Plan:
        """Which labelled images to hold out: none that people were asked about, for those are harder than most."""
        plan = plan_comparison(parts.split.target_labeled.labels, seed=self.config.seed)
        compares = self.check_helping and not is_baseline(self.config) and self.previous is None
        return plan if compares else Plan(plan.how, ())

    def _why_not_compared(self) -> str:
        return why_not_compared(self.config, self.check_helping, self.previous)

    def _prepare(self, parts: Parts) -> tuple[Parts, Split]:
        """What training is given, and the parts without the images that turned out to be unreadable."""
        paths = image_paths(parts.split)
        if self.train == "full" and self.prepare is not None:
            show = partial(self.audience.show, "storing images at training size")
            stored, unreadable = prepare_images(paths, transforms_of(self.frozen)[0], self.prepare, show)
            sound = parts.without(unreadable)
            split = read_prepared(sound.split, stored)
        elif self.train == "full":
            _, unreadable = try_all(check_pixels, paths, partial(self.audience.show, "checking images"))
            sound = parts.without(unreadable)
            split = sound.split
        else:
            found = embed_files(
                paths,
                self.frozen,
                cache=self.cache,
                device=self.config.execution.device,
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
            "labels": None if self.answers_file is None else self.answers_file.fingerprint,
            "previous": None if self.previous is None else self.previous.fingerprint,
            "places": self.places.stored(),
            "compared_in": None if self.previous is None else self.previous.compared_in,
            "run": to_dict(self.config),
        }

    def _fingerprint(self) -> str:
        return hashlib.sha256(self.frozen.identity.encode()).hexdigest()

    def _cross_fit(self, split: Split, plan: Plan) -> tuple[HeldOut, ...]:
        done = {} if self.folder is None else self.folder.load_folds(split, plan.folds)
        if done is None:
            self.audience.say("What was kept of the comparison is damaged, so it starts again.")
        keep = None if self.folder is None else self.folder.save_folds
        return cross_fit(split, self.config, plan.folds, self.audience, done=done, on_fold=keep)

    def _without_labels(self, data: RunData, log_probs: Tensor) -> Calibration:
        """The temperature where no image is held out: as sure as the run before, or as often as S+T says the same."""
        if self.previous is not None:
            sure = self.previous.sure_of(paths_of(data.files.target_unlabeled))
            return calibrate_by_previous(log_probs, self.previous.model.calibration, sure)
        if not self.check_helping or is_baseline(self.config):
            return Calibration()
        baseline = train_baseline(data.split, self.config, self.folder, self.audience)
        return calibrate_by_agreement(
            log_probs, log_probabilities(baseline.network, data.split.target_unlabeled.inputs)
        )

    def _model(self, method: Method, classes: tuple[str, ...], calibration: Calibration) -> AdaptedModel:
        network = method.network.to("cpu")
        config = dataclasses.replace(self.config.network, backbone=self.frozen.name, weights="none")
        if self.train == "head":
            network = Network(
                self.frozen.module.to("cpu"),
                network.bottleneck,
                network.classifier,
                pretrained=True,
                transform=self.frozen.transform if isinstance(self.frozen, FrozenBackbone) else None,
            )
        origin = {
            "qurate": version("qurate"),
            "trained": self.train,
            "weights": self.weights,
            "backbone_sha256": self._fingerprint(),
        }
        folder = None if self.folder is None else self.folder.path
        return AdaptedModel(network.eval(), config, classes, origin, self.cache, calibration, folder)

    def _record(self, data: RunData, result: Adaptation, plan: Plan) -> RunRecord:
        """What the page shows, the comparison still to come."""
        why = STILL_TO_COME if plan.folds else self._why_not_compared()
        return gather_record(
            data.files,
            data.split,
            result,
            self._trained,
            (*data.parts.notes, *data.applied.notes),
            title=f"{data.parts.name}, {data.split.n_classes} classes",
            before=None if self.folder is None else self._before,  # nobody will see a map without a page
            no_comparison="" if why == TOO_FEW else why,  # the page has words of its own for that
        )

    def _before(self, inputs: Inputs) -> Tensor:
        if isinstance(inputs, Tensor):
            return inputs
        device = self.config.execution.device
        return embed_files(inputs.paths, self.frozen, strict=True, cache=self.cache, device=device).of(inputs)
