"""One adaptation from its images to its page: read, embed, fit, write, compare, add the verdict."""

from __future__ import annotations

import copy
import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from contextlib import closing, nullcontext
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn

from qurate.calibration import Calibration, fit_combination
from qurate.combined import CombinedModel, Prediction
from qurate.config import RunConfig, to_dict
from qurate.data.class_statistics import DRAW_STREAM, ClassStatistics, class_statistics
from qurate.data.domains import Domain
from qurate.data.images import check_pixels, try_all
from qurate.data.own_images import Parts, paths_of, prepare_images, read_parts, read_prepared, without_images
from qurate.data.samples import Split
from qurate.data.sources import weigh_sources
from qurate.embedding.backbone import Frozen, FrozenBackbone, freeze_backbones, freeze_module, transforms_of
from qurate.embedding.embed import embed_files, image_paths, put_embeddings
from qurate.methods import Method
from qurate.networks.heads import Network
from qurate.networks.inference import log_probabilities
from qurate.presets import is_baseline
from qurate.report.next_steps import steps_after
from qurate.report.run_page import gather_record
from qurate.report.run_text import (
    answers_in_words,
    class_warnings,
    flagged_in_words,
    improvement_in_words,
    issues_in_words,
    outcome,
)
from qurate.run_results import BaselineComparison, RunRecord
from qurate.runs.baseline import Baseline, begin_folds, find_baseline
from qurate.runs.budget import Budget, OverTime
from qurate.runs.callbacks import PhaseProgress, TensorBoardCurves
from qurate.runs.comparison import CrossFit, Plan, compare, plan_comparison
from qurate.runs.continue_from import (
    AppliedAnswers,
    PreviousRun,
    RunData,
    apply_answers,
    fingerprint_corrections,
    starts_anew,
    summarize_answers,
    take_answers,
)
from qurate.runs.files import CURVES_FOLDER, ISSUES_FILE, REPORT_FILE
from qurate.runs.full_training import train_all_layers
from qurate.runs.improvement import measure_improvement
from qurate.runs.label_issues import add_held_out_issues, add_label_issues
from qurate.runs.model import AdaptedModel, EmbeddedImages
from qurate.runs.predictions import (
    calibrate,
    calibrate_by_agreement,
    calibrate_by_previous,
    held_out_table,
    predict_all,
    predict_baseline,
    predict_record,
    train_baseline,
)
from qurate.runs.setup import Run, RunOutcome, RunSetup
from qurate.runs.suggestions import suggest_first
from qurate.runs.workload import TimeLeft, workload_of
from qurate.runtime.paths import shorten
from qurate.runtime.progress import Reporter
from qurate.runtime.randomness import generator
from qurate.runtime.tables import is_text
from qurate.runtime.tensors import tensor_digest
from qurate.selection.algorithm import Adaptation, fit
from qurate.selection.answered import Previous, fit_with_answers
from qurate.selection.crossfit import HeldOut, leave_out
from qurate.selection.q_learning.memory import readable_size
from qurate.training import memory_of_training

TOO_FEW = "No class has two labelled target images, so none can be held out. Label a few more and adapt again."
IS_BASELINE = "This run is plain training (S+T) itself, so there is nothing to compare it with."
STILL_TO_COME = (
    "The comparison with plain training (S+T) was not finished when this page was written. Re-run the command with "
    "--resume to finish it, or with --resume --no-compare to do without."
)
SWITCHED_OFF = "The comparison with plain training (S+T) was switched off. Adapt again with it to see whether it helps."
NO_TIME = (
    "The comparison with plain training (S+T) does not fit the time limit, so it was left out. Adapt again with more "
    "time to see whether adaptation helps."
)


def describe_shares(config: RunConfig) -> list[str]:
    """What each of several devices takes of a batch, in a sentence; none for one."""
    if (devices := config.execution.processes) == 1:
        return []
    whole, each = (" + ".join(str(size // n) for size in config.batch_sizes.values()) for n in (1, devices))
    return [
        f"Batches of {whole} (source, labelled and unlabelled target) are those of all {devices} devices together; "
        f"each takes {each}."
    ]


def run_pipeline(setup: RunSetup, reporter: Reporter) -> RunOutcome:
    """Read the parts, embed them, fit, write the results, compare, and add the verdict to them."""
    if setup.message:
        reporter.say(setup.message)
    reporter.say("Reading the images ...")
    places, folder, model = setup.places, setup.folder, setup.source_model
    source = places.source if model is None else source_of_model(model, setup.previous)
    parts = read_parts(source, places.labeled, places.unlabeled, missing=places.missing, cache=setup.cache)
    for line in (*parts.lines(), *describe_shares(setup.config)):
        reporter.say(line)
    parts = take_answers(parts, setup.answers)
    setup = choose_start(setup, parts)
    budget = None
    if setup.limit is not None:
        _apply_answers(setup, parts)  # what cannot be used is refused before anything is timed
        budget = Budget(setup, parts, reporter)
        setup = budget.choose()
    frozen = freeze_backbones(setup.backbone, setup.weights) if model is None else model.frozen
    check_before_work(setup, parts, frozen, reporter)
    if budget is None:
        sound, split = load_inputs(setup, parts, frozen, show_whole(setup, parts, reporter))
    else:
        setup, frozen, sound, split = load_in_time(setup, parts, frozen, reporter, budget)
    setup = choose_start(setup, sound)
    sound, split, sources, notes = weigh_sources(sound, split, setup.source_weights)
    if model is not None:
        split, notes = draw_from_model(setup, model, split)
    for line in notes:
        reporter.say(line)
    sound = dataclasses.replace(sound, notes=(*sound.notes, *notes))
    data = RunData(sound, split, _apply_answers(setup, sound))  # again, now that unreadable images are known
    with nullcontext() if folder is None else folder.begin(make_settings(setup, sound, frozen, sources), sound.table()):
        if folder is not None:
            folder.load()  # a damaged checkpoint is found before S+T is trained
        run = Run(setup, frozen, data, show_whole(setup, sound, reporter))
        plan, why_not = plan_folds(setup, sound)
        baseline = find_baseline(run, plan)
        with begin_comparison(run, plan, baseline) as folds:
            result = fit_run(run, baseline)
            folds.collect()
            run, result = continue_with_all_layers(run, result, baseline)
            done = write_results(run, result, baseline, plan, why_not)
            if not plan.folds:
                reporter.say(f"No comparison was made. {why_not}")
            elif budget is None:
                done = compare_with_baseline(run, plan, folds, result, baseline, done)
            else:
                done = compare_in_time(run, plan, folds, result, baseline, done, budget)
        reporter.say(f"The model's probabilities are {done.model.calibration}.")
        if folder is not None and done.model.no_comparison != STILL_TO_COME:
            folder.forget()
    return done


def source_of_model(model: AdaptedModel, previous: PreviousRun | None) -> Domain:
    """The source that class statistics of a model stand for: its classes, but for those that answers have added."""
    added = () if previous is None else previous.added
    name = "" if model.folder is None else model.folder.absolute().name
    return without_images(f"model {name}", [each for each in model.classes if each not in added])


def draw_from_model(setup: RunSetup, model: AdaptedModel, split: Split) -> tuple[Split, list[str]]:
    """The split with a source that is drawn from the class statistics of a model, and a note that says so."""
    drawn = statistics_of(model).of(model.classes, split.classes).draw(generator(setup.config.seed, DRAW_STREAM))
    note = (
        f"No source images were used: {len(drawn):,} embeddings were drawn from the class statistics of the model in "
        f"{shorten(model.folder)}."
    )
    return dataclasses.replace(split, source=drawn), [note]


def show_whole(setup: RunSetup, parts: Parts, reporter: Reporter) -> Reporter:
    """A reporter that is shown the time left of the whole run, where that can be told: where the head is trained."""
    if setup.train == "full" or setup.full is not None:
        return reporter
    sizes, labels = [len(part) for part in parts.split.parts.values()], parts.split.target_labeled.labels
    compare = setup.compare and setup.continued is None
    return TimeLeft(reporter, workload_of(setup.steps_taken, labels, sizes, compare=compare))


def load_in_time(
    setup: RunSetup, parts: Parts, frozen: Frozen, reporter: Reporter, budget: Budget
) -> tuple[RunSetup, Frozen, Parts, Split]:
    """`load_inputs` of what fits the time limit, and the run that it is for: less of one where embedding is slow."""
    while True:
        try:
            watched = budget.watch_embedding(show_whole(setup, parts, reporter))
            sound, split = load_inputs(setup, parts, frozen, watched)
        except OverTime:
            setup = budget.choose_again()
            frozen = freeze_backbones(setup.backbone, setup.weights)
        else:
            return budget.settle(), frozen, sound, split


def choose_start(setup: RunSetup, parts: Parts) -> RunSetup:
    """The setup, of a run that starts anew if answers about another one gave it other classes or labels."""
    return dataclasses.replace(setup, anew=starts_anew(parts, setup.previous))


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
    # an image may turn out to be unreadable
    for name in ("data", "labeled_data", "added_classes", "corrected_labels", "source_statistics"):
        known.pop(name, None)
    folder.check(known)
    before, now = folder.processes_before(), setup.config.execution.processes
    if folder.resumes and before != now:
        reporter.say(
            f"The run was started with {before} and continues with {now} processes, so numbers are added up in "
            "another order: its result can differ from that of an undisturbed one as with another seed."
        )


def make_settings(
    setup: RunSetup, parts: Parts, frozen: Frozen, sources: Sequence[Mapping[str, Any]] = ()
) -> dict[str, Any]:
    """config.json: what a resumed run must have in common with the interrupted one, and where its images are."""
    return {
        "qurate": version("qurate"),
        "train": setup.train if setup.full is None else "full",
        "backbone": frozen.name,
        "weights": setup.weights,
        "backbone_sha256": _fingerprint(frozen),
        "check_helping": setup.compare,
        "data": parts.digest,
        "labeled_data": _held_out_from(setup, parts),
        "labels": None if setup.answers is None else setup.answers.fingerprint,
        "previous": None if setup.previous is None else setup.previous.fingerprint,
        "places": setup.places.stored(),
        "started_in": str(Path.cwd()) if is_text(str(Path.cwd())) else None,
        "continued_from": None if setup.previous is None else setup.previous.stored_path,
        "compared_in": None if setup.continued is None else setup.continued.compared_in,
        "run": to_dict(setup.config),
        **({} if setup.full is None else {"full": to_dict(setup.full)}),
        **({"cut_short": True} if setup.cut_short else {}),
        **({"added_classes": list(parts.added)} if parts.added else {}),
        **({"corrected_labels": fingerprint_corrections(parts)} if parts.corrected else {}),
        **({"source_weights": setup.source_weights} if parts.sources else {}),
        **({"sources": list(sources)} if sources else {}),
        **({} if setup.source_model is None else {"source_statistics": _statistics_in(setup.source_model, parts)}),
    }


def _statistics_in(model: AdaptedModel, parts: Parts) -> dict[str, Any]:
    """What config.json says of the class statistics that stand for the source: no images, so many embeddings drawn."""
    used = statistics_of(model).of(model.classes, parts.split.classes)
    return {"source_images": 0, "drawn": int(used.drawn.sum()), "sha256": tensor_digest(used.tensors)}


def statistics_of(model: AdaptedModel) -> ClassStatistics:
    """The class statistics of a model that has them, as `check_source_model` has made sure."""
    assert model.source_statistics is not None
    return model.source_statistics


def _held_out_from(setup: RunSetup, parts: Parts) -> str | None:
    """Digest of the labelled target whose held-out images the model knows by their positions."""
    if setup.continued is None:
        return parts.labeled_digest
    kept = setup.continued.settings.get("labeled_data")
    return kept if isinstance(kept, str) else None


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
        sound = take_answers(parts.without(found.unreadable), setup.answers)
        split = put_embeddings(sound.split, found)
    elif setup.prepare is not None:
        show = partial(reporter.show, "storing images at training size")
        stored, unreadable = prepare_images(paths, transforms_of(frozen)[0], setup.prepare, show)
        sound = take_answers(parts.without(unreadable), setup.answers)
        split = read_prepared(sound.split, stored)
    else:
        _, unreadable = try_all(check_pixels, paths, partial(reporter.show, "checking images"))
        sound = take_answers(parts.without(unreadable), setup.answers)
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
    if setup.continued is not None:
        why_not = _not_compared_again(setup.continued)
    elif not setup.compare:
        why_not = NO_TIME if setup.cut_short else SWITCHED_OFF
    elif is_baseline(setup.config):
        why_not = IS_BASELINE
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


def begin_comparison(run: Run, plan: Plan, baseline: Baseline) -> CrossFit:
    """`begin_folds` of the adapted model, which is trained without the flagged images."""
    split, kept = leave_out(run.data.split, baseline.flagged)
    by_baseline = [fold.unlabeled_log_probs(kept) for fold in baseline.folds] if plan.folds else ()
    return begin_folds(run, plan, "adapted", split, by_baseline)


def fit_run(run: Run, baseline: Baseline) -> Adaptation:
    """Algorithm 1 on the images that fit a class; shorter where people have answered questions about a finished run.

    Returns:
        The result; its positives are positions in the whole of D_u.
    """
    setup, data, before = run.setup, run.data, run.setup.continued
    curves = TensorBoardCurves(None if setup.folder is None else setup.folder.work / CURVES_FOLDER)
    callbacks = (curves, PhaseProgress(run.reporter, setup.steps_taken))
    split, kept = leave_out(data.split, baseline.flagged)
    by_baseline = baseline.log_probs(split.target_unlabeled.inputs)
    with closing(curves):
        if before is None:
            result = fit(split, setup.config, checkpoint=setup.folder, callbacks=callbacks, baseline=by_baseline)
        else:
            trusted = before.trusted(paths_of(data.parts.split.target_unlabeled))
            positives = data.after_answers.keep(trusted).among(kept)
            previous = Previous(before.weights(), positives, data.applied.joined)
            result = fit_with_answers(
                split, setup.config, previous, checkpoint=setup.folder, callbacks=callbacks, baseline=by_baseline
            )
    return dataclasses.replace(
        result, positives=dataclasses.replace(result.positives, indices=kept[result.positives.indices])
    )


def continue_with_all_layers(run: Run, head: Adaptation, baseline: Baseline) -> tuple[Run, Adaptation]:
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
    split, stay = leave_out(data.split, baseline.flagged)

    def look(method: Method) -> Tensor:
        network = method.network
        frozen = freeze_module(run.frozen.name, network.backbone, network.width, transforms_of(run.frozen))
        show, device = partial(run.reporter.show, "embedding again"), setup.config.execution.device
        embedded = embed_files(image_paths(data.parts.split), frozen, cached=False, device=device, on_progress=show)
        after = dataclasses.replace(data, whole=put_embeddings(data.parts.split, embedded))
        alone = copy.deepcopy(method, {id(network.backbone): nn.Identity()})
        alone.network.transform = None
        found.append((frozen, after, alone))
        return log_probabilities(alone.network, after.split.target_unlabeled.inputs)[stay]

    asked = plan_comparison(data.parts.split.target_labeled.labels, seed=setup.config.seed)
    folds = asked.folds if setup.compare and setup.continued is None else ()
    trusted = dataclasses.replace(head, positives=head.positives.among(stay))
    images = leave_out(images, baseline.flagged)[0]
    by_baseline = [fold.unlabeled_log_probs(stay) for fold in baseline.folds]
    done = train_all_layers(
        split, images, trusted, setup.config, full, folds, look, setup.folder, run.reporter, baselines=by_baseline
    )
    run.reporter.say(done.sentence)
    if not done.kept:
        return dataclasses.replace(run, full=done), head
    if not found:
        look(done.method)
    frozen, after, method = found[0]
    after_run = dataclasses.replace(run, frozen=frozen, data=after, full=done, head=run)
    return after_run, dataclasses.replace(head, method=method)


def write_results(run: Run, result: Adaptation, baseline: Baseline, plan: Plan, why_not: str) -> RunOutcome:
    """Predict, calibrate and write model, tables and page; a comparison is still to come where there are folds."""
    folder, data = run.setup.folder, run.data
    calibration = Calibration() if plan.folds else calibrate_without_labels(run, result, baseline)
    improvement, not_measured = measure_improvement(run, baseline.network, baseline.flagged, calibration)
    run.reporter.show("writing the results", 0, 1)
    model = combine_models(run, result, baseline, calibration)
    predicted = model.predict(data.split.target_unlabeled.inputs)
    record = make_record(run, result, predicted.labels, STILL_TO_COME if plan.folds else why_not)
    record = add_label_issues(run, record)
    record = say_of_unlabeled(run, record, baseline, model, predicted)
    predictions = predict_all(record, data, model)
    if len(data.applied):
        named = predictions.set_index("file")["label"].loc[[row.file for row in data.applied.answers]].tolist()
        changed = summarize_answers(data.applied, named, record.predictions, run.setup.previous)
        changed = dataclasses.replace(changed, improvement=improvement, not_measured=not_measured)
        record = dataclasses.replace(record, answers=changed)
    adapted = make_model(run, model, no_comparison=STILL_TO_COME if plan.folds else why_not)
    record = suggest_next(run, record, adapted, predictions)
    if folder is not None and not folder.finished:
        answers = (*data.applied.answers, *data.applied.others)
        folder.write_results(adapted, record, predictions, answers, pending=bool(plan.folds))
    elif folder is not None and not plan.folds:
        folder.write_compared(adapted, record, predictions)
    run.reporter.show("writing the results", 1, 1)
    return RunOutcome(adapted, record)


def combine_models(run: Run, result: Adaptation, baseline: Baseline, calibration: Calibration) -> CombinedModel:
    """The adapted network, and S+T beside it where both are heads of one backbone."""
    network = result.method.network.cpu()
    if not run.has_heads:
        return CombinedModel(network, None, calibration)
    return CombinedModel(network, baseline.network, calibration, baseline.novelty)


def say_of_unlabeled(
    run: Run, record: RunRecord, baseline: Baseline, model: CombinedModel, predicted: Prediction
) -> RunRecord:
    """The record with the model's predictions of D_u, and with those of S+T."""
    by_baseline = None
    if baseline.network is not None:
        by_baseline = log_probabilities(baseline.network, run.of_baseline.data.split.target_unlabeled.inputs)
    return predict_record(record, predicted, by_baseline, model)


def suggest_next(run: Run, record: RunRecord, model: AdaptedModel, predictions: pd.DataFrame) -> RunRecord:
    """The record with the images to label next, where it is written; see `suggest_first`."""
    data = run.data
    if run.setup.folder is None:
        return record
    files = [file for file, problem in zip(predictions["file"], predictions["problem"], strict=True) if not problem]
    inputs, paths = data.whole.target_unlabeled.inputs, tuple(map(Path, files))
    if not files:
        return record
    if isinstance(inputs, Tensor):
        place = {str(path): i for i, path in enumerate(paths_of(data.parts.split.target_unlabeled))}
        rows = torch.tensor([place[file] for file in files])
        embeddings = inputs if torch.equal(rows, torch.arange(len(inputs))) else inputs[rows]
        seen = EmbeddedImages(paths, embeddings, model.predict_embedded(embeddings), {})
    else:
        seen = model.embed_images(paths, partial(run.reporter.show, "looking at the images"))
    trusted = dict(zip(record.positives["file"], record.positives["label"], strict=True))
    answers = {row.file: row for row in data.applied.answers}
    return dataclasses.replace(record, suggested=suggest_first(model.classes, seen, trusted, answers))


def compare_with_baseline(
    run: Run, plan: Plan, folds: CrossFit, result: Adaptation, baseline: Baseline, done: RunOutcome
) -> RunOutcome:
    """Finish the folds of the adapted model, combine it with S+T by them, and write all that this changes."""
    folder, data, record = run.setup.folder, run.data, done.record
    assert record is not None
    assert baseline.network is not None
    base = run.of_baseline
    split, _ = leave_out(base.data.split, baseline.flagged)
    held_out = HeldOut.of(folds.finish(run.reporter), baseline.folds)
    if run.full is not None and run.full.kept:
        held_out = dataclasses.replace(held_out, adapted=torch.cat([run.full.folds[n] for n in range(len(plan.folds))]))
    fitted = calibrate(held_out.baseline, held_out.labels)
    calibration = (
        fit_combination(held_out.adapted, held_out.baseline, held_out.labels)
        if run.has_heads
        else calibrate(held_out.adapted, held_out.labels)
    )
    model = combine_models(run, result, baseline, calibration)
    predicted = model.predict(data.split.target_unlabeled.inputs)
    record = say_of_unlabeled(run, record, baseline, model, predicted)
    of_baseline = log_probabilities(baseline.network, split.target_unlabeled.inputs)
    of_model = model.predict(leave_out(data.split, baseline.flagged)[0].target_unlabeled.inputs).log_probs
    found = compare(held_out.combined(calibration), plan.how, of_model, of_baseline)
    table = held_out_table(held_out, calibration, record.labeled["file"].tolist(), record.classes)
    record = dataclasses.replace(record, comparison=found, no_comparison="", held_out=table)
    record = add_held_out_issues(run, record, held_out.combined(calibration))
    adapted, predictions = make_model(run, model, found), predict_all(record, data, model)
    record = suggest_next(run, record, adapted, predictions)
    if folder is not None:
        alone = CombinedModel(baseline.network.cpu(), None, fitted, baseline.novelty)
        folder.write_baseline(
            make_model(base, alone, no_comparison=IS_BASELINE), predict_baseline(record, base.data, alone)
        )
        folder.write_compared(adapted, record, predictions)
    return RunOutcome(adapted, record)


def compare_in_time(
    run: Run, plan: Plan, folds: CrossFit, result: Adaptation, baseline: Baseline, done: RunOutcome, budget: Budget
) -> RunOutcome:
    """`compare_with_baseline`; where that cannot end in time, what there is without it, and what to do about it."""
    try:
        watched = dataclasses.replace(run, reporter=budget.watch_comparison(run.reporter, len(plan.folds)))
        return compare_with_baseline(watched, plan, folds, result, baseline, done)
    except OverTime:
        run.reporter.say("The comparison takes longer than expected and does not fit the time limit, so it is left.")
        if run.setup.folder is not None:
            run.reporter.say("The model is finished. Re-run the command with --resume to finish the comparison too.")
            return done
        return RunOutcome(dataclasses.replace(done.model, no_comparison=NO_TIME), done.record)


def calibrate_without_labels(run: Run, result: Adaptation, baseline: Baseline) -> Calibration:
    """The temperatures where no image is held out: as sure as the run before, or as often as S+T agrees."""
    setup, data, base = run.setup, run.data, run.of_baseline.data.split
    adapted = log_probabilities(result.method.network, data.split.target_unlabeled.inputs)
    if setup.continued is not None:
        sure, by_baseline = setup.continued.sure_of(paths_of(data.files.target_unlabeled)), None
        if baseline.network is not None and run.has_heads:
            by_baseline = log_probabilities(baseline.network, base.target_unlabeled.inputs)
        return calibrate_by_previous(adapted, by_baseline, setup.continued.model.calibration, sure)
    if not setup.compare or is_baseline(setup.config):
        return Calibration()
    plain = train_baseline(base, setup.config, setup.folder, run.reporter)
    return calibrate_by_agreement(adapted, log_probabilities(plain, base.target_unlabeled.inputs))


def make_model(
    run: Run, model: CombinedModel, comparison: BaselineComparison | None = None, no_comparison: str = ""
) -> AdaptedModel:
    """The whole network, from image to class, with what it is made of."""
    setup, frozen, network = run.setup, run.frozen, model.network.to("cpu")
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
        "backbone_sha256": _fingerprint(run.of_baseline.frozen),
    } | ({} if run.full is None else {"kept": run.full.sentence})
    config = dataclasses.replace(setup.config.network, backbone=frozen.name, weights="none")
    classes, known = run.data.split.classes, setup.source_model
    if known is None:
        statistics = class_statistics(run.data.split.source, len(classes))
    else:
        statistics = statistics_of(known).of(known.classes, classes)
    folder = None if setup.folder is None else setup.folder.path
    return AdaptedModel(
        network.eval(),
        config,
        classes,
        origin,
        setup.cache,
        model.calibration,
        folder,
        None if model.baseline is None else model.baseline.cpu().eval(),
        model.novelty,
        comparison,
        no_comparison,
        statistics,
    )


def make_record(run: Run, result: Adaptation, labels: Tensor, no_comparison: str) -> RunRecord:
    """What the page shows, without a comparison, for the reason given."""
    setup, data = run.setup, run.data
    return gather_record(
        data.files,
        data.split,
        result,
        labels,
        setup.steps_taken,
        (*data.parts.notes, *data.applied.notes, *([] if run.full is None else [run.full.sentence])),
        title=f"{data.parts.name}, {data.split.n_classes} classes",
        before=None if setup.folder is None else run.embed_before,  # nobody will see a map without a page
        no_comparison="" if no_comparison == TOO_FEW else no_comparison,  # the page has words of its own for that
    )


def outcome_lines(record: RunRecord | None, folder: Path | None) -> list[str]:
    """What came of a run, in sentences: did it help, what did answers change, where are the files, what is next."""
    lines: list[str] = []
    if record is not None and record.comparison is not None:
        page = outcome(record.comparison)
        lines += [f"{page.headline}.", *page.text]
    if record is not None:
        lines += [*flagged_in_words(record), *class_warnings(record)]
        if len(record.label_issues):
            where = f"{ISSUES_FILE} lists them; correct them on the page of qurate open, under Your labels."
            lines.append(f"{issues_in_words(record)[0]} {where}")
    if record is not None and record.answers is not None:
        lines += answers_in_words(record.answers)
        if (told := record.answers).corrections is not None:
            lines.append(improvement_in_words(told.improvement, told.not_measured))
    if folder is not None:
        lines.append(f"Model, predictions and tables: {folder}")
        lines.append(f"Open {folder / REPORT_FILE} in a browser to see what was learned.")
        lines += [step.line for step in steps_after(record, folder)]
    return lines
