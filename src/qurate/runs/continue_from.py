"""A run that learns from what people answered about a finished one: its settings, its answers, what they changed."""

from __future__ import annotations

import csv
import dataclasses
import hashlib
import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn

from qurate.active.answers import LABELS_FILE, Answer, count_right, current_answers, parse_answers, tells
from qurate.config import RunConfig
from qurate.data.domains import list_some
from qurate.data.own_images import Parts, paths_of
from qurate.data.samples import Inputs, Split, take
from qurate.embedding.backbone import Frozen, transforms_of
from qurate.errors import ConfigError, DataError, RunError
from qurate.methods import build_method
from qurate.networks.backbone_names import find_weights
from qurate.networks.heads import Network
from qurate.run_results import Corrections, RunAnswers
from qurate.runs.files import CONFIG_FILE, POSITIVES_FILE, PREDICTIONS_FILE
from qurate.runs.image_sources import check_beside_previous, is_text, read_settings_of
from qurate.runs.model import AdaptedModel, load
from qurate.runs.model_json import file_of, read_about
from qurate.runs.suggestions import read_run_table
from qurate.runtime.paths import StrPath, as_path
from qurate.runtime.tables import read_csv, to_csv, unguard
from qurate.runtime.tensors import tensor_digest
from qurate.selection.answered import Answered, answer
from qurate.selection.pseudo_labels import Positives

_ALLOWED = "labels.csv of a run, or a CSV table with the columns file and label, as 'qurate suggest' writes one"


@dataclass(frozen=True, eq=False)
class AnswersFile:
    """Answers about images, as a file holds them.

    Args:
        path: The file.
        current: The answer that counts for each image, by the name that the file gives it.
        damaged: Rows that could not be understood.
    """

    path: Path
    current: dict[str, Answer]
    damaged: int = 0

    def after(self, earlier: AnswersFile) -> AnswersFile:
        """These answers beside earlier ones; of two about one image, this file's counts."""
        before = {file: row for file, row in earlier.current.items() if file not in self.current}
        return AnswersFile(self.path, {**before, **self.current}, earlier.damaged + self.damaged)

    @property
    def fingerprint(self) -> dict[str, Any]:
        """How many answers count, and a digest of what they say."""
        rows = sorted("\0".join((row.file, row.answer, row.label)) for row in self.current.values())
        digest = hashlib.sha256("\n".join(rows).encode("utf-8", errors="surrogateescape"))
        return {"answers": len(rows), "sha256": digest.hexdigest()}


def read_answers(where: StrPath, *, allow_empty: bool = False) -> AnswersFile:
    """The answers of a file.

    Args:
        where: labels.csv of a run, or a table with the columns `file` and `label` and perhaps `predicted` and `asker`;
            rows without a label are no answers.
        allow_empty: Accept a file without an answer.

    Raises:
        DataError: If the file is missing, of another kind, or holds no answer.
        TableError: If it is a table that cannot be read.
    """
    path = as_path(where, "labels", _ALLOWED)
    try:
        content = path.read_bytes()
    except OSError as error:
        reason = error.strerror or error
        raise DataError(f"labels must be {_ALLOWED}, got {path}: cannot be read ({reason}).") from error
    if _is_table(content):
        found = AnswersFile(path, _of_table(path))
    else:
        rows, damaged = parse_answers(content)
        found = AnswersFile(path, current_answers(rows), damaged)
    if not found.current and not allow_empty:
        lost = f" {found.damaged} rows cannot be understood." if found.damaged else ""
        raise DataError(f"labels must be {_ALLOWED}, with answers in it; {path} holds none that counts.{lost}")
    return found


def _is_table(content: bytes) -> bool:
    """Whether the columns are those of a table of suggestions rather than of labels.csv."""
    first = content.decode("utf-8-sig", errors="surrogateescape").partition("\n")[0].rstrip("\r")
    try:
        names = {unguard(name) for name in next(csv.reader([first], strict=True), [])}
    except csv.Error:
        return False
    return {"file", "label"} <= names and "answer" not in names


def _of_table(path: Path) -> dict[str, Answer]:
    """The rows that have a label, as answers."""
    table = read_csv(path)
    when = datetime.fromtimestamp(path.stat().st_mtime, UTC).isoformat(timespec="seconds")
    columns = [table[name] if name in table else [""] * len(table) for name in ("file", "label", "predicted", "asker")]
    found: dict[str, Answer] = {}
    for file, written, predicted, asker in zip(*columns, strict=True):
        label = written.strip()
        if file and label:
            act = hashlib.sha256(f"{file}\0{label}".encode("utf-8", errors="surrogateescape")).hexdigest()[:12]
            found[file] = Answer(act, when, file, "label", label, predicted, asker)
    return found


_NUMBERS = ("reward", "phi", "classifier_prob", "center_prob", "entropy_drop")


@dataclass(frozen=True, eq=False)
class PreviousRun:
    """A finished run.

    Args:
        folder: Where it is.
        settings: Its config.json.
        config: The run that these describe.
        model: Its model.
        predictions: predictions.csv, all of it text.
        positives: positives.csv, likewise.
    """

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
    def compared(self) -> Path:
        """The run whose page says whether adaptation helped: this one, or the first that it goes back to."""
        back = self.settings.get("compared_in")
        return Path(back) if isinstance(back, str) and back else self.folder

    @property
    def compared_in(self) -> str | None:
        """The same for config.json; None where the path is no valid text."""
        return str(self.compared) if is_text(str(self.compared)) else None

    @cached_property
    def fingerprint(self) -> dict[str, Any]:
        """What a run that learns from answers about it depends on."""
        weights = {name: values.cpu() for name, values in self.model.network.state_dict().items()}
        return {"model": tensor_digest(weights), "positives": hashlib.sha256(to_csv(self.positives)).hexdigest()}

    @cached_property
    def predicted(self) -> dict[str, str]:
        """Its prediction of each image, by absolute path."""
        return {whole_path(file): label for file, label in self.predictions[["file", "label"]].itertuples(index=False)}

    def sure_of(self, files: Sequence[Path]) -> float:
        """Mean probability that its model gave the classes it named in these images; 1 where its table does not say."""
        if "probability" not in self.predictions:
            return 1.0
        wanted = {whole_path(file) for file in files}
        rows = self.predictions[[whole_path(file) in wanted for file in self.predictions["file"]]]
        sure = pd.to_numeric(rows["probability"], errors="coerce").clip(0, 1).mean()
        return 1.0 if math.isnan(sure) else float(sure)

    @cached_property
    def learned(self) -> dict[str, tuple[str, str]]:
        """What it had been told already: the answer and the class, by absolute path."""
        if not {"answer", "answer_label"} <= set(self.predictions):
            return {}
        rows = self.predictions[["file", "answer", "answer_label"]].itertuples(index=False)
        return {whole_path(file): (answer, label) for file, answer, label in rows if answer}

    def understand(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Config, backbone and weights of a run that learns from answers about it.

        Args:
            given: Words and numbers that were given beside it.

        Raises:
            ConfigError: If they say anything but where the weights are and where to train.
            RunError: If its own settings are damaged.
        """
        check_beside_previous(given)
        config = self.config
        if "device" in given:
            config = dataclasses.replace(
                config, execution=dataclasses.replace(config.execution, device=given["device"])
            )
        backbone, weights = self.settings.get("backbone"), given.get("weights") or self.settings.get("weights")
        if not isinstance(backbone, str) or not isinstance(weights, str):
            raise RunError(f"{self.folder / CONFIG_FILE}: damaged (it does not name the backbone and its weights).")
        weights = find_weights(backbone, weights)
        if config.network.backbone != "none":
            config = dataclasses.replace(config, network=dataclasses.replace(config.network, weights=weights))
        return {"config": config, "backbone": backbone, "weights": weights}

    def check(self, parts: Parts, frozen: Frozen) -> None:
        """Make sure that its model is one of these classes and images, before any work.

        Raises:
            DataError: If the classes are others.
            ConfigError: If the backbone, its weights or the preparation of images are.
            RunError: If positives.csv is damaged.
        """
        self.trusted(paths_of(parts.split.target_unlabeled))
        own, wanted = self.model.classes, parts.split.classes
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
        """State of its method: F and C as they were. What a method has beside them begins anew, as at the start."""
        kept = self.model.network
        network = kept
        if self.config.network.backbone == "none":  # only the head was trained
            network = Network(nn.Identity(), kept.bottleneck, kept.classifier, pretrained=kept.pretrained)
        return build_method(self.config.method, network, seed=self.config.seed).state_dict()

    def trusted(self, files: Sequence[Path]) -> Positives:
        """Its D_p, as positions in a D_u of these files; what is not among them is left out.

        Raises:
            RunError: If positives.csv is damaged.
        """
        place = {whole_path(file): i for i, file in enumerate(files)}
        table = self.positives
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
    """A run that answers are about.

    Args:
        run: Its folder, or its model.

    Raises:
        ConfigError: If the model was not written as a run.
        ModelError: If the run is not finished, or its model is damaged.
        RunError: If its tables are missing or damaged.
    """
    if isinstance(run, AdaptedModel):
        if run.folder is None:
            raise ConfigError(
                "previous: this model was not written as a run. Adapt with `out`, or give a run's folder."
            )
        run = run.folder
    read_about(run)  # which judges what was given
    folder = Path(run)
    settings = read_settings_of(folder)
    config = RunConfig.from_file(file_of(folder, CONFIG_FILE))
    predictions = read_run_table(folder, PREDICTIONS_FILE, "file", "label")
    positives = read_run_table(folder, POSITIVES_FILE, "file", "label", "round", *_NUMBERS)
    return PreviousRun(folder, settings, config, load(folder), predictions, positives)


def whole_path(file: Path | str) -> str:
    """One name for an image, however a table spells it: its absolute path; links are not followed."""
    return os.path.abspath(file)  # noqa: PTH100  # Path.absolute keeps '..'


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
        others: Answers about other images, as they were given.
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
        """That of a run without answers."""
        return cls(torch.empty(0, dtype=torch.int64), (), torch.empty(0, dtype=torch.int64))

    def __len__(self) -> int:
        return len(self.answers)

    @property
    def joined(self) -> int:
        """How many images the new answers add to D_t."""
        return int((self.labels[self.earlier :] >= 0).sum())

    def lines(self, previous: PreviousRun | None) -> list[str]:
        """What was understood, one sentence each."""
        if not len(self):
            return []
        start = "" if previous is None else f" They are about {previous.folder}."
        earlier = f", and {self.earlier} that the run before had learned from" if self.earlier else ""
        new = _rows(len(self) - self.earlier, "answer")
        return [f"{new} to learn from, {self.joined} with a class{earlier}.{start}", *self.notes]

    def apply(self, split: Split) -> Answered:
        """The split with what was said: labelled images have joined D_t, all that were answered have left D_u."""
        if not len(self):
            return Answered(split, torch.arange(len(split.target_unlabeled)), 0)
        return answer(split, self.indices, self.labels)


@dataclass(frozen=True, eq=False)
class RunData:
    """What a run works on.

    Args:
        parts: The images that were given, without the unreadable ones.
        whole: The same as the network is given them, before any answer.
        applied: What people said of them.
    """

    parts: Parts
    whole: Split
    applied: AppliedAnswers

    @cached_property
    def files(self) -> Split:
        """Image files, with what was said."""
        return self.applied.apply(self.parts.split).split

    @property
    def split(self) -> Split:
        """What training is given."""
        return self.after_answers.split

    @cached_property
    def after_answers(self) -> Answered:
        """What the answers make of the whole."""
        return self.applied.apply(self.whole)

    @property
    def answered(self) -> Inputs:
        """The images that people answered about, in the order of the applied."""
        return take(self.whole.target_unlabeled.inputs, self.applied.indices)


def apply_answers(answers_file: AnswersFile, parts: Parts, previous: PreviousRun | None) -> AppliedAnswers:
    """Find the images that answers are about.

    Args:
        answers_file: The answers.
        parts: The images of the run.
        previous: The run that they are about, if any.

    Raises:
        DataError: If none of the answers is new and of use, or too few unlabelled images would be left.
    """
    files, classes = paths_of(parts.split.target_unlabeled), parts.split.classes
    place = {whole_path(file): i for i, file in enumerate(files)}
    found: dict[int, Answer] = {}
    for row in answers_file.current.values():
        if (i := place.get(whole_path(row.file), -1)) >= 0:
            found[i] = _named(row, files[i], previous)
    order = sorted(found, key=lambda i: not _was_learned(found[i], previous))  # stable: otherwise as they were given
    earlier = sum(_was_learned(row, previous) for row in found.values())
    answers = tuple(found[i] for i in order)
    number = {name: k for k, name in enumerate(classes)}
    applied = AppliedAnswers(
        torch.tensor(order, dtype=torch.int64),
        answers,
        torch.tensor([number.get(row.label, -1) for row in answers], dtype=torch.int64),
        earlier,
        tuple(row for row in answers_file.current.values() if whole_path(row.file) not in place),
        tuple(_notes(answers_file, answers, classes, len(answers_file.current) - len(found))),
    )
    _check(applied, answers_file, len(files), previous)
    return applied


def _named(row: Answer, file: Path, previous: PreviousRun | None) -> Answer:
    """An answer under the name that its image has in this run, with what the previous model said of it."""
    predicted = row.predicted
    if not predicted and previous is not None:
        predicted = previous.predicted.get(whole_path(file), "")
    return row._replace(file=str(file), predicted=predicted)


def _was_learned(row: Answer, previous: PreviousRun | None) -> bool:
    return previous is not None and previous.learned.get(whole_path(row.file)) == (row.answer, row.label)


def _notes(file: AnswersFile, answers: Sequence[Answer], classes: Sequence[str], lost: int) -> list[str]:
    strange = [row.label for row in answers if row.label and row.label not in classes]
    notes = []
    if file.damaged:
        notes.append(
            f"labels: {_rows(file.damaged, 'row')} of {file.path} cannot be understood, as a kill in the middle of "
            "writing leaves one; such rows do not count."
        )
    if lost:
        notes.append(
            f"labels: {_rows(lost, 'answer')} of {file.path} concern images that are not among the unlabelled ones of "
            "this run, by their file names; they change nothing."
        )
    if strange:
        notes.append(
            f"labels: {_rows(len(strange), 'answer')} of {file.path} name a class that this run does not have "
            f"({list_some(sorted(set(strange)), 3)}); these images leave the unlabelled ones and join no class."
        )
    return notes


def _rows(number: int, noun: str) -> str:
    return f"1 {noun}" if number == 1 else f"{number} {noun}s"


def _check(applied: AppliedAnswers, file: AnswersFile, n_files: int, previous: PreviousRun | None) -> None:
    count = _rows(len(file.current), "answer")
    if not len(applied):
        raise DataError(
            f"labels: none of the {count} of {file.path} is about an unlabelled image of this run, by its file name. "
            "Is it the file of another run? Where its paths are relative, run from the folder that it was started in."
        )
    if previous is not None and applied.earlier == len(applied) == len(
        previous.learned
    ):  # nothing was taken back either
        raise DataError(
            f"labels: {previous.folder} has learned from all of the {count} of {file.path} already. Answer more, for "
            f"example on the page of 'qurate review {previous.folder}'."
        )
    if n_files - len(applied) < _LEAST_LEFT:
        raise DataError(
            f"labels: {len(applied)} of the {n_files} unlabelled images are answered, and at least {_LEAST_LEFT} "
            "without an answer must be left to adapt to. Add unlabelled images, or use the model that there is."
        )


def summarize_answers(
    applied: AppliedAnswers, named: Sequence[str], predictions: pd.DataFrame, previous: PreviousRun | None
) -> RunAnswers:
    """Count what came of the answers.

    Args:
        applied: The answers.
        named: The class that the new model gives each of its images.
        predictions: What the new model says of the images without an answer; columns file, label.
        previous: The run that the answers are about, if any.
    """
    new, labels = applied.answers[applied.earlier :], applied.labels[applied.earlier :].tolist()
    labeled = [row for row, label in zip(new, labels, strict=True) if label >= 0]
    wrong = sum(row.answer == "wrong" for row in new)
    known = [row for row in new if row.predicted]
    judged = [row for row in known if row.answer != "none"]
    now = zip(new, labels, named[applied.earlier :], strict=True)
    drawn = [row for row in known if row.asked == "random"]
    if previous is not None:
        drawn = [row for row in drawn if tells(row, previous.predicted.get(whole_path(row.file), ""))]
    chance = count_right(drawn)
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
        confusions=_confusions(labeled),
        corrections=None if previous is None else _corrections(new, predictions, previous),
    )


def _confusions(labeled: Sequence[Answer]) -> tuple[tuple[str, str, int], ...]:
    """What was predicted, what it is, and how often; the most frequent first."""
    pairs = Counter((row.predicted, row.label) for row in labeled if row.predicted and row.predicted != row.label)
    return tuple((*pair, n) for pair, n in sorted(pairs.items(), key=lambda item: (-item[1], item[0])))


def _corrections(new: Sequence[Answer], predictions: pd.DataFrame, previous: PreviousRun) -> Corrections:
    trusted = {whole_path(file): label for file, label in previous.positives[["file", "label"]].itertuples(index=False)}
    pairs = [(row, trusted[whole_path(row.file)]) for row in new if whole_path(row.file) in trusted]
    left = [(row.file, label, row.label or row.answer) for row, label in pairs if row.label != label]
    pairs_now = [
        (previous.predicted.get(whole_path(file), ""), label)
        for file, label in predictions[["file", "label"]].itertuples(index=False)
    ]
    return Corrections(
        run=str(previous.folder),
        positives=len(previous.positives),
        confirmed=len(pairs) - len(left),
        left=pd.DataFrame(left, columns=["file", "label", "answer"]),
        open=sum(bool(before) for before, _ in pairs_now),
        changed=sum(before != now for before, now in pairs_now if before),
    )
