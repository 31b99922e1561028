"""One adaptation from its images to its page: read, embed, fit, write, compare, add the verdict."""

from __future__ import annotations

import copy
import dataclasses
import hashlib
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from qurate.active.answers import AnswersFile
from qurate.calibration import Calibration
from qurate.config import RunConfig, TrainingConfig, to_dict
from qurate.data.images import check_pixels, try_all
from qurate.data.own_images import Parts, paths_of, prepare_images, read_parts, read_prepared
from qurate.data.samples import Inputs, Split
from qurate.distributed import describe_shares
from qurate.embedding.backbone import Frozen, FrozenBackbone, freeze_backbones, freeze_module, transforms_of
from qurate.embedding.embed import embed_files, image_paths, put_embeddings
from qurate.methods import Method
from qurate.networks.heads import Network
from qurate.networks.inference import log_probabilities
from qurate.report.run_page import gather_record
from qurate.report.run_text import answers_in_words, outcome
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
from qurate.runs.full_training import FullTraining, full_config, train_all_layers
from qurate.runs.image_sources import Places, is_text
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
from qurate.runtime.options import Train
from qurate.runtime.progress import Reporter
from qurate.selection.algorithm import Adaptation, fit
from qurate.selection.answered import Previous, fit_with_answers, shorten
from qurate.selection.callbacks import Action, Callback, RoundRecord
from qurate.selection.crossfit import HeldOut, is_baseline
from qurate.selection.pseudo_labels import Positives
from qurate.selection.q_learning.memory import readable_size
from qurate.training import memory_of_training

TOO_FEW = "No class has two labelled target images, so none can be held out. Label a few more and adapt again."
STILL_TO_COME = (
    "The comparison with plain training (S+T) was not finished when this page was written. Re-run the command with "
    "--resume to finish it, or with --resume --no-compare to do without."
)


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
        taken = self.full if self.previous is None else dataclasses.replace(self.full, steps=-(-self.full.steps // 3))
        return full_config(self.config, network, taken)

    @property
    def steps_taken(self) -> RunConfig:
        """The run with the steps that it takes: fewer where it learns from answers about a finished one."""
        return self.config if self.previous is None else shorten(self.config)


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


def run_pipeline(setup: RunSetup, reporter: Reporter) -> RunOutcome:
    """Read the parts, embed them, fit, write the results, compare, and add the verdict to them."""
    if setup.message:
        reporter.say(setup.message)
    reporter.say("Reading the images ...")
    places, folder = setup.places, setup.folder
    parts = read_parts(places.source, places.labeled, places.unlabeled, missing=places.missing, cache=setup.cache)
    for line in (*parts.lines(), *filter(None, [describe_shares(setup.config)])):
        reporter.say(line)
    frozen = freeze_backbones(setup.backbone, setup.weights)
    check_before_work(setup, parts, frozen, reporter)
    sound, split = load_inputs(setup, parts, frozen, reporter)
    data = RunData(sound, split, _apply_answers(setup, sound))  # again, now that unreadable images are known
    with nullcontext() if folder is None else folder.begin(make_settings(setup, sound, frozen)):
        run = Run(setup, frozen, data, reporter)
        plan, why_not = plan_folds(setup, sound)
        result = fit_run(run)
        run, result = continue_with_all_layers(run, result)
        done, log_probs = write_results(run, result, plan, why_not)
        if plan.folds:
            done = compare_with_baseline(run.head or run, plan, result.method, done, log_probs, run)
        else:
            reporter.say(f"No comparison was made. {why_not}")
        reporter.say(f"The model's probabilities are {done.model.calibration}.")
        if folder is not None:
            folder.forget()
    return done


def _apply_answers(setup: RunSetup, parts: Parts) -> AppliedAnswers:
    return AppliedAnswers.none() if setup.answers is None else apply_answers(setup.answers, parts, setup.previous)


def check_before_work(setup: RunSetup, parts: Parts, frozen: Frozen, reporter: Reporter) -> None:
    """Make sure that the images fit the previous run, the answers the images, and the folder all of it."""
    folder, previous = setup.folder, setup.previous
    if previous is not None:
        previous.check(parts, frozen)
    for line in _apply_answers(setup, parts).lines(previous):
        reporter.say(line)
    if folder is None:
        return
    known = make_settings(setup, parts, frozen)
    del known["data"]  # an image may turn out to be unreadable
    folder.check(known)
    before, now = folder.processes_before(), setup.config.execution.processes
    if folder.resumes and before != now:
        reporter.say(
            f"The run was started with {before} and continues with {now} processes, so numbers are added up in "
            "another order: its result can differ from that of an undisturbed one as with another seed."
        )


def make_settings(setup: RunSetup, parts: Parts, frozen: Frozen) -> dict[str, Any]:
    """config.json: what a resumed run must have in common with the interrupted one, and where its images are."""
    return {
        "qurate": version("qurate"),
        "train": setup.train if setup.full is None else "full",
        "backbone": frozen.name,
        "weights": setup.weights,
        "backbone_sha256": _fingerprint(frozen),
        "check_helping": setup.compare,
        "data": parts.digest,
        "labels": None if setup.answers is None else setup.answers.fingerprint,
        "previous": None if setup.previous is None else setup.previous.fingerprint,
        "places": setup.places.stored(),
        "started_in": str(Path.cwd()) if is_text(str(Path.cwd())) else None,
        "compared_in": None if setup.previous is None else setup.previous.compared_in,
        "run": to_dict(setup.config),
    } | ({} if setup.full is None else {"full": to_dict(setup.full)})


def _fingerprint(frozen: Frozen) -> str:
    return hashlib.sha256(frozen.identity.encode()).hexdigest()


def load_inputs(setup: RunSetup, parts: Parts, frozen: Frozen, reporter: Reporter) -> tuple[Parts, Split]:
    """The parts without the images that turn out to be unreadable, and what training is given of them.

    That is embeddings where only the head is trained, else the images themselves or what was stored of them.
    """
    paths = image_paths(parts.split)
    if setup.train == "head":
        show = partial(reporter.show, "embedding")
        found = embed_files(paths, frozen, cache=setup.cache, device=setup.config.execution.device, on_progress=show)
        sound = parts.without(found.unreadable)
        split = put_embeddings(sound.split, found)
    elif setup.prepare is not None:
        show = partial(reporter.show, "storing images at training size")
        stored, unreadable = prepare_images(paths, transforms_of(frozen)[0], setup.prepare, show)
        sound = parts.without(unreadable)
        split = read_prepared(sound.split, stored)
    else:
        _, unreadable = try_all(check_pixels, paths, partial(reporter.show, "checking images"))
        sound = parts.without(unreadable)
        split = sound.split
    for line in sound.lines():
        if line not in parts.lines():
            reporter.say(line)
    if (full := setup.config if setup.train == "full" else setup.full_config) is not None:
        room = readable_size(memory_of_training(sound.split, full))
        reporter.say(f"Expected memory of training: about {room} in each process.")
    return sound, split


def plan_folds(setup: RunSetup, parts: Parts) -> tuple[Plan, str]:
    """Which labelled images to hold out for the comparison, and why none, in a sentence or two.

    Images that people were asked about are not among them, for these are harder than most.
    """
    plan = plan_comparison(parts.split.target_labeled.labels, seed=setup.config.seed)
    if setup.previous is not None:
        why_not = _not_compared_again(setup.previous)
    elif not setup.compare:
        why_not = (
            "The comparison with plain training (S+T) was switched off. Adapt again with it to see whether it helps."
        )
    elif is_baseline(setup.config):
        why_not = "This run is plain training (S+T) itself, so there is nothing to compare it with."
    else:
        return plan, "" if plan.folds else TOO_FEW
    return Plan(plan.how, ()), why_not


def _not_compared_again(previous: PreviousRun) -> str:
    is_calibrated = previous.model.calibration.by != "nothing"
    kept = "are made as sure as that run's" if is_calibrated else "are not calibrated, as those of that run"
    return (
        f"This run learns from answers about {previous.folder} and repeats neither its comparison with plain training "
        "(S+T) nor its calibration, which would take longer than the run itself. Its probabilities "
        f"{kept}, and what {previous.compared / REPORT_FILE} says of whether adaptation helped holds for the model "
        "before the answers."
    )


def fit_run(run: Run) -> Adaptation:
    """Algorithm 1; shorter where people have answered questions about a finished run."""
    setup, data, before = run.setup, run.data, run.setup.previous
    curves = TensorBoardCurves(None if setup.folder is None else setup.folder.work / CURVES_FOLDER)
    callbacks = (curves, PhaseProgress(run.reporter, setup.steps_taken))
    if before is None:
        result = fit(data.split, setup.config, checkpoint=setup.folder, callbacks=callbacks)
    else:
        trusted = before.trusted(paths_of(data.parts.split.target_unlabeled))
        previous = Previous(before.weights(), data.after_answers.keep(trusted), data.applied.joined)
        result = fit_with_answers(data.split, setup.config, previous, checkpoint=setup.folder, callbacks=callbacks)
    curves.close()
    return result


def continue_with_all_layers(run: Run, head: Adaptation) -> tuple[Run, Adaptation]:
    """Train all layers after the head, if the run asks for it, and go on with the better of the two.

    The fully trained network goes on as the head was: on the images as its backbone embeds them.
    """
    setup, data, full = run.setup, run.data, run.setup.full_config
    if full is None:
        return run, head
    images = data.files
    if setup.prepare is not None:
        show = partial(run.reporter.show, "storing images at training size")
        stored, _ = prepare_images(image_paths(images), transforms_of(run.frozen)[0], setup.prepare, show)
        images = read_prepared(images, stored)
    found: list[tuple[Frozen, RunData, Method]] = []

    def look(method: Method) -> Tensor:
        network = method.network
        frozen = freeze_module(run.frozen.name, network.backbone, network.width, transforms_of(run.frozen))
        show, device = partial(run.reporter.show, "embedding again"), setup.config.execution.device
        embedded = embed_files(image_paths(data.parts.split), frozen, cached=False, device=device, on_progress=show)
        after = dataclasses.replace(data, whole=put_embeddings(data.parts.split, embedded))
        alone = copy.deepcopy(method, {id(network.backbone): nn.Identity()})
        alone.network.transform = None
        found.append((frozen, after, alone))
        return log_probabilities(alone.network, after.split.target_unlabeled.inputs)

    asked = plan_comparison(data.parts.split.target_labeled.labels, seed=setup.config.seed)
    folds = asked.folds if setup.compare and setup.previous is None else ()
    done = train_all_layers(data.split, images, head, setup.config, full, folds, look, setup.folder, run.reporter)
    run.reporter.say(done.sentence)
    if not done.kept:
        return dataclasses.replace(run, full=done), head
    if not found:
        look(done.method)
    frozen, after, method = found[0]
    after_run = dataclasses.replace(run, frozen=frozen, data=after, full=done, head=run)
    return after_run, dataclasses.replace(head, method=method)


def write_results(run: Run, result: Adaptation, plan: Plan, why_not: str) -> tuple[RunOutcome, Tensor]:
    """Predict, calibrate and write model, tables and page; a comparison is still to come where there are folds.

    Returns:
        The outcome so far, and the log-probabilities of D_u, (N_u, K).
    """
    folder, data = run.setup.folder, run.data
    run.reporter.show("writing the results", 0, 1)
    log_probs = log_probabilities(result.method.network, data.split.target_unlabeled.inputs)
    calibration = Calibration() if plan.folds else calibrate_without_labels(run, log_probs)
    record = make_record(run, result, STILL_TO_COME if plan.folds else why_not)
    record = calibrate_record(record, log_probs, calibration)
    predictions = predict_all(record, data, result.method)
    if len(data.applied):
        named = predictions.set_index("file")["label"].loc[[row.file for row in data.applied.answers]].tolist()
        changed = summarize_answers(data.applied, named, record.predictions, run.setup.previous)
        record = dataclasses.replace(record, answers=changed)
    model = make_model(run, result.method, calibration)
    if folder is not None and not folder.finished:
        answers = (*data.applied.answers, *data.applied.others)
        folder.write_results(model, record, predictions, answers, pending=bool(plan.folds))
    elif folder is not None and not plan.folds:
        folder.write_page(record)
    run.reporter.show("writing the results", 1, 1)
    return RunOutcome(model, record), log_probs


def compare_with_baseline(
    run: Run, plan: Plan, method: Method, done: RunOutcome, log_probs: Tensor, kept_run: Run
) -> RunOutcome:
    """Train S+T and the folds, calibrate on held-out images, and write all that this changes.

    Args:
        run: The run.
        plan: Its folds.
        method: The adapted F and C.
        done: What the run left so far.
        log_probs: Of D_u by the adapted model, (N_u, K).
        kept_run: The run of the adapted model: another one where all layers were trained after the head.
    """
    setup, folder, data, record = run.setup, run.setup.folder, run.data, done.record
    assert record is not None
    baseline = train_baseline(data.split, setup.config, folder, run.reporter)
    baseline_log_probs = log_probabilities(baseline.network, data.split.target_unlabeled.inputs)
    kept = {} if folder is None else folder.load_folds(data.split, plan.folds)
    if kept is None:
        run.reporter.say("What was kept of the comparison is damaged, so it starts again.")
    save = None if folder is None else folder.save_folds
    folds = cross_fit(data.split, setup.config, plan.folds, run.reporter, done=kept, on_fold=save)
    folds = folds if kept_run.full is None else kept_run.full.put_into(folds)
    found, held_out = compare(folds, plan.how, log_probs, baseline_log_probs), HeldOut.join(folds)
    calibration = calibrate(held_out.adapted, held_out.labels)
    record = calibrate_record(record, log_probs, calibration)
    table = held_out_table(held_out, calibration)
    record = dataclasses.replace(record, comparison=found, no_comparison="", held_out=table)
    model = dataclasses.replace(done.model, calibration=calibration)
    if folder is not None:
        fitted = calibrate(held_out.baseline, held_out.labels)
        predictions = predict_baseline(baseline_log_probs, record, data, baseline, fitted)
        folder.write_baseline(make_model(run, baseline, fitted), predictions)
        folder.write_calibrated(model, record, predict_all(record, kept_run.data, method))
    return RunOutcome(model, record)


def calibrate_without_labels(run: Run, log_probs: Tensor) -> Calibration:
    """The temperature where no image is held out: as sure as the run before, or as often as S+T agrees.

    `log_probs` are those of D_u, (N_u, K).
    """
    setup, data = run.setup, run.data
    if setup.previous is not None:
        sure = setup.previous.sure_of(paths_of(data.files.target_unlabeled))
        return calibrate_by_previous(log_probs, setup.previous.model.calibration, sure)
    if not setup.compare or is_baseline(setup.config):
        return Calibration()
    baseline = train_baseline(data.split, setup.config, setup.folder, run.reporter)
    return calibrate_by_agreement(log_probs, log_probabilities(baseline.network, data.split.target_unlabeled.inputs))


def make_model(run: Run, method: Method, calibration: Calibration) -> AdaptedModel:
    """The whole network, from image to class, with what it is made of."""
    setup, frozen, network = run.setup, run.frozen, method.network.to("cpu")
    if setup.train == "head":
        network = Network(
            frozen.module.to("cpu"),
            network.bottleneck,
            network.classifier,
            pretrained=True,
            transform=frozen.transform if isinstance(frozen, FrozenBackbone) else None,
        )
    origin = {
        "qurate": version("qurate"),
        "trained": setup.train if run.head is None else "full",
        "weights": setup.weights,
        "backbone_sha256": _fingerprint(frozen if run.head is None else run.head.frozen),
    } | ({} if run.full is None else {"kept": run.full.sentence})
    config = dataclasses.replace(setup.config.network, backbone=frozen.name, weights="none")
    folder = None if setup.folder is None else setup.folder.path
    return AdaptedModel(network.eval(), config, run.data.split.classes, origin, setup.cache, calibration, folder)


def make_record(run: Run, result: Adaptation, no_comparison: str) -> RunRecord:
    """What the page shows, without a comparison, for the reason given."""
    setup, data = run.setup, run.data

    def embed_before(inputs: Inputs) -> Tensor:
        if run.head is not None:  # its split holds the embeddings by the frozen backbone
            before, after = run.head.data.split.parts, data.split.parts
            inputs = next(before[name].inputs for name in after if after[name].inputs is inputs)
        if isinstance(inputs, Tensor):
            return inputs
        device = setup.config.execution.device
        return embed_files(inputs.paths, run.frozen, strict=True, cache=setup.cache, device=device).of(inputs)

    return gather_record(
        data.files,
        data.split,
        result,
        setup.steps_taken,
        (*data.parts.notes, *data.applied.notes, *([] if run.full is None else [run.full.sentence])),
        title=f"{data.parts.name}, {data.split.n_classes} classes",
        before=None if setup.folder is None else embed_before,  # nobody will see a map without a page
        no_comparison="" if no_comparison == TOO_FEW else no_comparison,  # the page has words of its own for that
    )


def outcome_lines(record: RunRecord | None, folder: Path | None) -> list[str]:
    """What came of a run, in sentences: whether adaptation helped, what answers changed, where the files are."""
    lines: list[str] = []
    if record is not None and record.comparison is not None:
        page = outcome(record.comparison)
        lines += [f"{page.headline}.", *page.text]
    if record is not None and record.answers is not None:
        lines += answers_in_words(record.answers)
    if folder is not None:
        lines.append(f"Model, predictions and tables: {folder}")
        lines.append(f"Open {folder / REPORT_FILE} in a browser to see what was learned.")
    return lines


class PhaseProgress(Callback):
    """Shows pre-training and each round as a phase.

    Args:
        reporter: Shown them.
        config: The run.
    """

    def __init__(self, reporter: Reporter, config: RunConfig) -> None:
        self._reporter = reporter
        self._selection = config.selection
        self._loads = config.network.backbone != "none"
        self._phase, self._total = "pre-training", config.training.steps

    def on_memory(self, peak: int) -> None:
        """Say it once."""
        self._reporter.say(f"Expected memory: about {readable_size(peak)}.")

    def on_step(self, step: int, terms: dict[str, float]) -> None:
        """Move on."""
        self._reporter.show(self._phase, step, self._total)

    def on_waited(self, waited: float, seconds: float) -> None:
        """Say it where images are decoded for each step."""
        if self._loads and seconds:
            self._reporter.say(
                f"The network waited for data in {waited / seconds:.0%} of {seconds:.0f} seconds of training."
            )

    def on_round_start(self, number: int) -> None:
        """A new phase."""
        self._phase, self._total = f"round {number + 1} of {self._selection.rounds}", self._selection.round_steps
        self._reporter.show(self._phase, 0, self._total)


EVERY = 10
"""Steps between two points of a curve."""


class TensorBoardCurves(Callback):
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
