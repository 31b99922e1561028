"""Continue from a finished run and the answers about it: its settings, its answers, and what they changed."""

from __future__ import annotations

import dataclasses
import hashlib
import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence, Sized
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn

from qurate.active.answers import LABELS_FILE, Answer, AnswersFile, count_right, is_conclusive
from qurate.config import RunConfig, TrainingConfig
from qurate.data.class_names import NO_CLASS, check_class_name
from qurate.data.own_images import Parts, paths_of
from qurate.data.samples import Inputs, Labeled, Split, take
from qurate.data.sources import SourceWeights
from qurate.embedding.backbone import Frozen, transforms_of
from qurate.errors import ConfigError, DataError, RunError
from qurate.methods import build_method
from qurate.networks.backbone_names import find_weights
from qurate.networks.heads import Network
from qurate.run_results import Corrections, RunAnswers
from qurate.runs.files import CONFIG_FILE, POSITIVES_FILE, PREDICTIONS_FILE
from qurate.runs.image_sources import is_without_source, read_settings_of, start_folder
from qurate.runs.model import AdaptedModel, load
from qurate.runs.model_json import file_of
from qurate.runs.options import run_folder
from qurate.runs.result_tables import read_run_table
from qurate.runtime.paths import StrPath, count, list_some, shorten
from qurate.runtime.tables import is_text, to_csv
from qurate.runtime.tensors import tensor_digest
from qurate.selection.answered import Answered, answer
from qurate.selection.pseudo_labels import Positives

LEAST_PER_CLASS = 3
"""Answers that make a new name a class of the run: as many as labelled images of the other classes, mostly. Our
choice."""
_NUMBERS = ("reward", "phi", "classifier_prob", "center_prob", "entropy_drop")


@dataclass(frozen=True, eq=False)
class PreviousRun:
    """A finished run: its config.json, its model, predictions.csv and positives.csv; all cells of these are text."""

    folder: Path
    settings: Mapping[str, Any]
    config: RunConfig
    model: AdaptedModel
    predictions: pd.DataFrame
    positives: pd.DataFrame

    @property
    def labels(self) -> Path:
        """Where the answers about it are."""
        return self.folder / LABELS_FILE

    @property
    def stored_path(self) -> str | None:
        """Its folder for config.json; None where the path is no valid text."""
        path = str(self.folder.absolute())
        return path if is_text(path) else None

    @property
    def compared(self) -> Path:
        """The run whose page shows whether adaptation helped: this one, or the first of its chain."""
        back = self.settings.get("compared_in")
        return Path(back) if isinstance(back, str) and back else self.folder

    @property
    def compared_in(self) -> str | None:
        """The same for config.json; None where the path is no valid text."""
        return str(self.compared) if is_text(str(self.compared)) else None

    @property
    def added(self) -> tuple[str, ...]:
        """Classes that people added while answering about the runs before it."""
        names = self.settings.get("added_classes")
        return tuple(name for name in names if isinstance(name, str)) if isinstance(names, list) else ()

    @cached_property
    def fingerprint(self) -> dict[str, Any]:
        """Digests of what a run that continues from it depends on."""
        weights = tensor_digest(self.model.network.state_dict())
        positives = hashlib.sha256(to_csv(self.positives)).hexdigest()
        baseline = None if self.model.baseline is None else tensor_digest(self.model.baseline.state_dict())
        return {"model": weights, "positives": positives, "baseline": baseline}

    @cached_property
    def predicted(self) -> dict[str, str]:
        """Its prediction for each image, by absolute path."""
        return _labels_by_path(self.predictions)

    def sure_of(self, files: Sequence[Path]) -> float:
        """Mean probability of its predictions for these images; 1 where its table has none."""
        if "probability" not in self.predictions:
            return 1.0
        wanted = {whole_path(file) for file in files}
        rows = self.predictions[[whole_path(file) in wanted for file in self.predictions["file"]]]
        sure = pd.to_numeric(rows["probability"], errors="coerce").clip(0, 1).mean()
        return 1.0 if math.isnan(sure) else float(sure)

    @cached_property
    def learned(self) -> dict[str, tuple[str, str]]:
        """The answers that it had learned from, kind and class, by absolute path."""
        if not {"answer", "answer_label"} <= set(self.predictions):
            return {}
        rows = self.predictions[["file", "answer", "answer_label"]].itertuples(index=False)
        return {whole_path(file): (answer, label) for file, answer, label in rows if answer}

    def understand(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Config, backbone, weights and so on of a run that learns from answers about it; `weights` may be given."""
        config = self.config
        backbone, weights = self.settings.get("backbone"), given.get("weights") or self.settings.get("weights")
        if not isinstance(backbone, str) or not isinstance(weights, str):
            raise RunError(f"{self.folder / CONFIG_FILE}: damaged (it does not name the backbone and its weights).")
        if not is_without_source(self.settings):  # else the model brings them
            weights = find_weights(backbone, weights)
        if config.network.backbone != "none":
            config = dataclasses.replace(config, network=dataclasses.replace(config.network, weights=weights))
        full = self.settings.get("full")
        after: dict[str, Any] = {} if not isinstance(full, dict) else {"full": TrainingConfig.from_dict(full)}
        after["compare"] = self.settings.get("check_helping", True) is not False
        after["cut_short"] = self.settings.get("cut_short") is True
        after["source_weights"] = read_source_weights(self.settings)
        return {"config": config, "backbone": backbone, "weights": weights, **after}

    def check(self, parts: Parts, frozen: Frozen) -> None:
        """Check that its model fits these classes and images, before any work; classes may be added by answers."""
        self.trusted(paths_of(parts.split.target_unlabeled))
        own = tuple(name for name in self.model.classes if name not in self.added)
        wanted = parts.split.classes[: parts.split.n_classes - len(parts.added)]
        if own != wanted:
            differ = [name for name in (*own, *wanted) if name not in own or name not in wanted]
            what = f"these differ: {list_some(differ)}" if differ else "their order differs"
            raise DataError(
                f"a run that learns from answers about {self.folder} must have its {len(own)} classes, and {what}. "
                "Give the images of that run, or give `labels` without `previous` for a whole run."
            )
        if self.model.transforms != transforms_of(frozen):
            raise ConfigError(
                f"the images of {self.folder} were prepared in another way than this version of qurate does for "
                f"{self.settings.get('backbone')}, so no run can learn from answers about it. Give `labels` without "
                "`previous` for a whole run."
            )
        identity = hashlib.sha256(frozen.identity.encode()).hexdigest()
        if self.settings.get("backbone_sha256", identity) != identity:
            raise ConfigError(
                f"a run that learns from answers about {self.folder} must have its backbone, "
                f"{self.settings.get('backbone')}, with the same weights; these are others. Pass its weights as "
                "`weights=FILE`."
            )

    def weights(self) -> dict[str, Tensor]:
        """State of its method: its F and C, and the initial state of what a method has beside them."""
        network = self.model.network
        if self.config.network.backbone == "none":  # only the head was trained
            network = Network(nn.Identity(), network.bottleneck, network.classifier, pretrained=network.pretrained)
        return build_method(self.config.method, network, seed=self.config.seed).state_dict()

    def trusted(self, files: Sequence[Path]) -> Positives:
        """Its D_p, as positions in a D_u of these files, without images that are not among them."""
        place, table = {whole_path(file): i for i, file in enumerate(files)}, self.positives
        places = [place.get(whole_path(file), -1) for file in table["file"]]
        try:
            labels = [self.model.classes.index(label) for label in table["label"]]
            rounds = [int(number) for number in table["round"]]
            where, named, since = (torch.tensor(column, dtype=torch.int64) for column in (places, labels, rounds))
            numbers = [torch.tensor([float(x) if x else math.nan for x in table[name]]) for name in _NUMBERS]
        except (ValueError, OverflowError, RuntimeError) as error:  # torch has its own words for numbers too large
            path = self.folder / POSITIVES_FILE
            raise RunError(f"{path}: damaged ({error}). Adapt again without `previous`.") from error
        whole = Positives(where, named, since, *numbers)
        return whole.take(whole.indices >= 0)


def read_previous(run: StrPath | AdaptedModel) -> PreviousRun:
    """Read a finished run to continue from, by its folder or its model.

    Raises:
        ConfigError: If the model was not written as a run.
        ModelError: If the run is not finished, or its model is damaged.
        RunError: If its tables are missing or damaged.
    """
    settings = read_settings_of(run_folder(run))
    folder = Path(run_folder(run))
    config = RunConfig.from_file(file_of(folder, CONFIG_FILE))
    predictions = read_run_table(folder, PREDICTIONS_FILE, "file", "label")
    positives = read_run_table(folder, POSITIVES_FILE, "file", "label", "round", *_NUMBERS)
    if (base := start_folder(settings)) != Path():
        predictions, positives = (
            table.assign(file=[str(base / file) for file in table["file"]]) for table in (predictions, positives)
        )
    return PreviousRun(folder, settings, config, load(folder), predictions, positives)


def whole_path(file: Path | str) -> str:
    """The absolute path of an image, by which tables of several runs are joined; links are not followed."""
    return os.path.abspath(file)  # noqa: PTH100  # Path.absolute keeps '..'


def _labels_by_path(table: pd.DataFrame) -> dict[str, str]:
    return dict(zip(map(whole_path, table["file"]), table["label"], strict=True))


_LEAST_LEFT = 2
"""Unlabelled images that must be left to adapt to."""


@dataclass(frozen=True, eq=False)
class AppliedAnswers:
    """Answers about unlabelled images of a run.

    Args:
        indices: Positions in D_u; first the images of which the previous run had learned the same answer.
        answers: The answer to each, with the file as predictions.csv of this run names it.
        labels: The class of each, -1 where it has none, (N_a,) int64.
        earlier: How many of them the previous run had learned from.
        others: Answers about other images.
        notes: Sentences on what could not be used.
    """

    indices: Tensor
    answers: tuple[Answer, ...]
    labels: Tensor
    earlier: int = 0
    others: tuple[Answer, ...] = ()
    notes: tuple[str, ...] = ()

    @classmethod
    def none(cls) -> AppliedAnswers:
        """Those of a run without answers."""
        return cls(torch.empty(0, dtype=torch.int64), (), torch.empty(0, dtype=torch.int64))

    def __len__(self) -> int:
        return len(self.answers)

    @property
    def is_none(self) -> Tensor:
        """Which of them say that the image is of no class of the run, (N_a,) bool."""
        return torch.tensor([row.answer != "wrong" for row in self.answers], dtype=torch.bool) & (self.labels < 0)

    @property
    def joined(self) -> int:
        """How many images the new answers add to D_t."""
        return int((self.labels[self.earlier :] >= 0).sum())

    def lines(self, previous: PreviousRun | None) -> list[str]:
        """A summary for the person who started the run, one sentence each."""
        if not len(self):
            return [*self.notes]
        start = "" if previous is None else f" They are about {previous.folder}."
        earlier = f", and {self.earlier} that the run before had learned from" if self.earlier else ""
        new = count(len(self) - self.earlier, "answer")
        return [f"{new} to learn from, {self.joined} with a class{earlier}.{start}", *self.notes]

    def apply(self, split: Split) -> Answered:
        """The split after the answers: labelled images have joined D_t, all answered ones have left D_u."""
        if not len(self):
            return Answered(split, torch.arange(len(split.target_unlabeled)), 0)
        return answer(split, self.indices, self.labels)


def read_source_weights(settings: Mapping[str, Any]) -> SourceWeights:
    """How a run weighs its sources, by its config.json."""
    kept = settings.get("source_weights")
    if isinstance(kept, list) and kept and all(isinstance(weight, int | float) and weight > 0 for weight in kept):
        return tuple(map(float, kept))
    return "learned" if kept == "learned" else "images"


@dataclass(frozen=True, eq=False)
class RunData:
    """The readable images of a run, the same as inputs of the network (`whole`), and the answers about them."""

    parts: Parts
    whole: Split
    applied: AppliedAnswers

    @cached_property
    def files(self) -> Split:
        """The image files after the answers."""
        return self.applied.apply(self.parts.split).split

    @cached_property
    def after_answers(self) -> Answered:
        """The inputs after the answers."""
        return self.applied.apply(self.whole)

    @property
    def split(self) -> Split:
        """What is trained on."""
        return self.after_answers.split

    @property
    def answered(self) -> Inputs:
        """Inputs of the images that have an answer, in the order of `applied`."""
        return take(self.whole.target_unlabeled.inputs, self.applied.indices)


def take_answers(parts: Parts, answers: AnswersFile | None) -> Parts:
    """The parts with the classes that answers add, and with the labels that they correct.

    Raises:
        DataError: If a name is none for a class, or a class would lose its last labelled image of a domain.
    """
    return parts if answers is None else correct_labels(add_classes(parts, answers), answers)


def add_classes(parts: Parts, answers: AnswersFile | None) -> Parts:
    """The parts with the classes that answers add: names of their own that enough unlabelled images were given.

    Raises:
        DataError: If a name is none for a class.
    """
    counts = Counter() if answers is None else _new_names(answers, parts)
    return parts.add_classes(sorted(name for name, images in counts.items() if images >= LEAST_PER_CLASS))


def correct_labels(parts: Parts, answers: AnswersFile) -> Parts:
    """The parts with the labels that answers give images of source and labelled target; the files stay as they are.

    An image whose answer is 'none' or 'wrong' is left out.

    Raises:
        DataError: If a name is no class of the parts, or a class would lose its last labelled image of a domain.
    """
    split, corrected = parts.split, dict(parts.corrected)
    said = {whole_path(row.file): row.label for row in answers.current.values()}

    def correct(part: Labeled, where: str) -> Labeled:
        labels = part.labels.clone()
        for i, path in enumerate(map(whole_path, paths_of(part))):
            if path in said:
                if said[path] not in ("", NO_CLASS, *split.classes):
                    raise DataError(
                        f"labels: {answers.path}: {shorten(path)} is a labelled image, and {shorten(said[path])!r} is "
                        "no class of this run. Correct the name, or answer none to leave the image out."
                    )
                labels[i] = split.classes.index(said[path]) if said[path] in split.classes else -1
                if labels[i] != part.labels[i]:
                    corrected[path] = said[path] if labels[i] >= 0 else ""
        if lost := sorted(set(part.labels.tolist()) - set(labels.tolist())):
            raise DataError(
                f"labels: {answers.path}: with the corrected labels {list_some([split.classes[k] for k in lost])} "
                f"would have no image left in the {where}. Answer about one of its images again, or add images."
            )
        kept = (labels >= 0).nonzero().squeeze(1)
        return Labeled(take(part.inputs, kept), labels[kept])

    source, labeled = correct(split.source, "source"), correct(split.target_labeled, "labelled target")
    split = dataclasses.replace(split, source=source, target_labeled=labeled)
    return dataclasses.replace(parts, split=split, corrected=corrected)


def fingerprint_corrections(parts: Parts) -> dict[str, Any] | None:
    """How many labels of the parts answers have corrected, and a digest of which; None where there are none."""
    if not parts.corrected:
        return None
    rows = sorted("\0".join(pair) for pair in parts.corrected.items())
    digest = hashlib.sha256("\n".join(rows).encode("utf-8", errors="surrogateescape"))
    return {"images": len(rows), "sha256": digest.hexdigest()}


def _new_names(answers: AnswersFile, parts: Parts) -> Counter[str]:
    """Names in answers about unlabelled images that are no classes of the parts, and of how many images each."""
    files, classes = {whole_path(file) for file in paths_of(parts.split.target_unlabeled)}, parts.split.classes
    rows = [row for row in answers.current.values() if row.label and whole_path(row.file) in files]
    counts = Counter(row.label for row in rows if row.label not in (*classes, NO_CLASS))
    for name in counts:
        try:
            sound = check_class_name(name, (*classes, *counts))
        except DataError as error:
            raise DataError(f"labels: {answers.path}: {error} Answer about those images again.") from error
        if sound != name:
            raise DataError(f"labels: {answers.path}: {name!a} must be written {sound!a}. Correct it there.")
    return counts


def apply_answers(answers_file: AnswersFile, parts: Parts, previous: PreviousRun | None) -> AppliedAnswers:
    """Find the images that answers are about.

    Raises:
        DataError: If none of the answers is new and of use, or too few unlabelled images would be left.
    """
    files, classes = paths_of(parts.split.target_unlabeled), parts.split.classes
    place = {whole_path(file): i for i, file in enumerate(files)}
    predicted, learned = ({}, {}) if previous is None else (previous.predicted, previous.learned)
    found: dict[int, Answer] = {}
    others: list[Answer] = []
    is_known: dict[int, bool] = {}
    for row in answers_file.current.values():
        path = whole_path(row.file)
        if path not in place:
            others.append(row)
            continue
        i = place[path]
        found[i] = row._replace(file=str(files[i]), predicted=row.predicted or predicted.get(path, ""))
        is_known[i] = learned.get(path) == (row.answer, row.label)
    order = sorted(found, key=lambda i: not is_known[i])  # stable: otherwise in the order of the file
    answers = tuple(found[i] for i in order)
    labels = [classes.index(row.label) if row.label in classes else -1 for row in answers]
    labeled = {whole_path(file) for name in ("source", "labeled") for file in paths_of(parts.domains[name])}
    lost = sum(whole_path(row.file) not in labeled for row in others)
    applied = AppliedAnswers(
        torch.tensor(order, dtype=torch.int64),
        answers,
        torch.tensor(labels, dtype=torch.int64),
        sum(is_known.values()),
        tuple(others),
        (
            *_notes(answers_file, lost),
            *_notes_on_labels(parts, previous),
            *_notes_on_classes(parts, _new_names(answers_file, parts), answers, previous),
        ),
    )
    if not len(applied) and lost == len(others):
        raise DataError(
            f"labels: none of the {count(len(answers_file.current), 'answer')} of {answers_file.path} is about an "
            "image of this run, by its file name. Is it the file of another run? Where its paths are relative, run "
            "from the folder that it was started in."
        )
    _check(applied, answers_file, parts, previous)
    return applied


def _relabels(parts: Parts, previous: PreviousRun) -> bool:
    """Whether the labelled images have other labels than in the run before."""
    return fingerprint_corrections(parts) != previous.settings.get("corrected_labels")


def starts_anew(parts: Parts, previous: PreviousRun | None) -> bool:
    """Whether the classes or the labels of labelled images are other ones than in the run before."""
    return previous is not None and (parts.split.classes != previous.model.classes or _relabels(parts, previous))


def _notes_on_labels(parts: Parts, previous: PreviousRun | None) -> list[str]:
    """How many labels answers corrected, and whether the run starts anew for that."""
    notes = []
    if parts.corrected:
        gone = sum(not label for label in parts.corrected.values())
        left_out = f", and {count(gone, 'image')} left out" if gone else ""
        notes.append(
            f"labels: {count(len(parts.corrected) - gone, 'label')} of labelled images corrected{left_out}, as the "
            "answers say; the files stay as they are."
        )
    if previous is not None and _relabels(parts, previous):
        notes.append(
            "labels: the labels of labelled images are other ones than in the run before, from which plain training "
            "(S+T) and the comparison had learned. So the run starts anew."
        )
    return notes


def _notes_on_classes(
    parts: Parts, too_few: Mapping[str, int], answers: Sequence[Answer], previous: PreviousRun | None
) -> list[str]:
    """Which classes answers add, which names need more images, and which classes of the run before are gone."""
    before = () if previous is None else previous.model.classes
    anew = "" if previous is None else " So the run starts anew."
    notes = []
    if new := [name for name in parts.added if name not in before]:
        images = sum(row.label in new for row in answers)
        what = "a new class" if len(new) == 1 else f"{len(new)} new classes"
        notes.append(f"labels: {list_some(new)} {_are(new)} {what}, by {count(images, 'answer')}.{anew}")
    if too_few:
        shown = ", ".join(f"'{shorten(name)}' ({images})" for name, images in sorted(too_few.items())[:3])
        more = f" and {len(too_few) - 3} more" if len(too_few) > 3 else ""
        notes.append(
            f"labels: {shown}{more} {_are(too_few)} no class of the run, for a new class needs {LEAST_PER_CLASS} "
            "images; until then these images count as answered 'none'."
        )
    if previous is not None and (gone := [name for name in previous.added if name not in parts.split.classes]):
        notes.append(
            f"labels: {list_some(gone)} {_are(gone)} no class any more, for fewer than {LEAST_PER_CLASS} answers name "
            f"{'it' if len(gone) == 1 else 'them'}.{anew}"
        )
    return notes


def _are(names: Sized) -> str:
    return "is" if len(names) == 1 else "are"


def _notes(file: AnswersFile, lost: int) -> list[str]:
    notes = []
    if file.damaged:
        notes.append(
            f"labels: {count(file.damaged, 'row')} of {file.path} cannot be understood, as a kill in the middle of "
            "writing leaves one; such rows do not count."
        )
    if lost:
        notes.append(
            f"labels: {count(lost, 'answer')} of {file.path} concern images that are not among those of this run, by "
            "their file names; they change nothing."
        )
    return notes


def _check(applied: AppliedAnswers, file: AnswersFile, parts: Parts, previous: PreviousRun | None) -> None:
    n_files = len(parts.split.target_unlabeled)
    # as many as it had learned: nothing was taken back either
    if (
        previous is not None
        and applied.earlier == len(applied) == len(previous.learned)
        and not _relabels(parts, previous)
    ):
        confirmed = count(len(applied.others), "label")
        only = f" {confirmed} were only confirmed, from which there is nothing to learn." if applied.others else ""
        raise DataError(
            f"labels: {previous.folder} has learned from all of the {count(len(file.current), 'answer')} of "
            f"{file.path} already.{only} Answer more, for example on the page of 'qurate open {previous.folder}'."
        )
    if n_files - len(applied) < _LEAST_LEFT:
        raise DataError(
            f"labels: {len(applied)} of the {n_files} unlabelled images are answered, and at least {_LEAST_LEFT} "
            "without an answer must be left to adapt to. Add unlabelled images, or use the model that there is."
        )


def summarize_answers(
    applied: AppliedAnswers, named: Sequence[str], predictions: pd.DataFrame, previous: PreviousRun | None
) -> RunAnswers:
    """Count answers and what they changed.

    Args:
        applied: The answers.
        named: The class that the new model gives each of its images.
        predictions: Of the new model for the images without an answer; columns file, label.
        previous: The run that the answers are about, if any.
    """
    new, labels = applied.answers[applied.earlier :], applied.labels[applied.earlier :].tolist()
    labeled = [row for row, label in zip(new, labels, strict=True) if label >= 0]
    wrong = sum(row.answer == "wrong" for row in new)
    asked = [
        row._replace(answer="none") if row.label and (label < 0 or _is_new(row.label, previous)) else row
        for row, label in zip(new, labels, strict=True)
    ]  # the model that was asked could not have named a new class
    known = [row for row in asked if row.predicted]
    judged = [row for row in known if row.answer != "none"]
    now = zip(new, labels, named[applied.earlier :], strict=True)
    drawn = [row for row in known if row.asked == "random"]
    if previous is not None:
        drawn = [row for row in drawn if is_conclusive(row, previous.predicted.get(whole_path(row.file), ""))]
    chance = count_right(drawn)
    pairs = Counter((row.predicted, row.label) for row in labeled if row.predicted and row.predicted != row.label)
    return RunAnswers(
        labeled=len(labeled),
        none=len(new) - len(labeled) - wrong,
        wrong=wrong,
        earlier=applied.earlier,
        judged=len(judged),
        right=sum(row.label == row.predicted for row in judged),
        right_now=sum(row.label == name for row, label, name in now if label >= 0),
        random=chance.images,
        random_right=chance.right,
        random_low=chance.low,
        random_high=chance.high,
        confusions=tuple((*pair, n) for pair, n in sorted(pairs.items(), key=lambda item: (-item[1], item[0]))),
        corrections=None if previous is None else _corrections(new, predictions, previous),
    )


def _is_new(label: str, previous: PreviousRun | None) -> bool:
    return previous is not None and label not in previous.model.classes


def _corrections(new: Sequence[Answer], predictions: pd.DataFrame, previous: PreviousRun) -> Corrections:
    trusted = _labels_by_path(previous.positives)
    pairs = [(row, trusted[whole_path(row.file)]) for row in new if whole_path(row.file) in trusted]
    left = [(row.file, label, row.label or row.answer) for row, label in pairs if row.label != label]
    before = [previous.predicted.get(whole_path(file), "") for file in predictions["file"]]
    return Corrections(
        run=str(previous.folder),
        positives=len(previous.positives),
        confirmed=len(pairs) - len(left),
        left=pd.DataFrame(left, columns=["file", "label", "answer"]),
        open=sum(map(bool, before)),
        changed=sum(old not in ("", now) for old, now in zip(before, predictions["label"], strict=True)),
    )
