"""A session of questions and answers, without the page and the server."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch

from qurate.active.answers import AccuracyEstimate, Answer, AnswerLog, current_answers, disagreements, estimate_accuracy
from qurate.active.strategies import QueryStrategy, RandomStrategy, label_support
from qurate.data.class_names import NO_CLASS, check_class_name
from qurate.errors import DataError
from qurate.runs.continue_from import LEAST_PER_CLASS
from qurate.runs.improvement import LEAST_RANDOM
from qurate.runs.suggestions import Inquiry, Question

CHOICES = 9
"""Likely classes that are offered; there are nine keys."""
FEW_CLASSES = 10
"""Up to so many classes, all are offered: each has a key of its own."""
BORDER_SHARE = 0.2
"""Part of the questions that is about images between known and unknown: answers there show what fits no class, which a
query strategy does not ask for. Our choice: one in five, as of those that are drawn at random."""
MOST_DISAGREEMENTS = 50
"""Images with different answers that are listed."""
LONGEST_NAME = 60
"""Letters of the name of a person."""
HELD = 60.0
"""Seconds for which a question that one tab shows is not given to another. Our choice."""


@dataclass(frozen=True)
class QueryOptions:
    """How many questions at a time, the query strategy, the share drawn at random, and the seed."""

    count: int
    query_strategy: str | QueryStrategy
    random_share: float
    seed: int


class LabelIssue(NamedTuple):
    """A label that the run doubts: a row of label_issues.csv."""

    file: str
    part: str
    given: str
    suggested: str
    probability: float


class Session:
    """Questions of one server, answered in any number of tabs.

    Args:
        inquiry: The images of the run.
        log: Where the answers go; others may write to it meanwhile.
        options: What to ask.
        issues: Labels of people that the run doubts, the worst first.
        check_helping: Whether a run that starts anew is compared with plain training, as this one was.
    """

    def __init__(
        self,
        inquiry: Inquiry,
        log: AnswerLog,
        options: QueryOptions,
        issues: Sequence[LabelIssue] = (),
        *,
        check_helping: bool = True,
    ) -> None:
        self.inquiry, self.log, self.options, self.issues = inquiry, log, options, issues
        self.check_helping = check_helping
        self.questions: list[Question] = []
        self._held: dict[int, tuple[str, float]] = {}
        self._lock = threading.Lock()  # for these two; never held while the disk is asked
        answered = sum(row.asked != "check" for row in self._new_answers().values())
        self.ask_more(options.count - answered % options.count)  # what an earlier server left of its last questions

    def ask_more(self, count: int | None = None) -> int:
        """Add questions about images that have neither an answer nor a question; how many were added.

        Args:
            count: How many at most; as the options say unless given.
        """
        answers = self.log.current()
        with self._lock:
            known = {question.image for question in self.questions}
            placeholder = Answer("", "", "", "none", "", "", "")  # so that an image is not asked about twice
            waiting = {self.inquiry.files[image]: placeholder for image in known}
            drawn = self.inquiry.draw(
                self.options.count if count is None else count,
                self.options.query_strategy,
                random_share=self.options.random_share,
                seed=self.options.seed,
                answers={**waiting, **answers},
                border_share=BORDER_SHARE,
            )
            more = [question for question in drawn if question.image not in known]
            self.questions = [*self.questions, *more]
            return len(more)

    def next_question(
        self, tab: str, later: Collection[int] = (), now_shown: int | None = None
    ) -> dict[str, Any] | None:
        """The next question for a tab, or None when all are answered.

        Args:
            tab: The tab that asks; its question is not given to other tabs for a while.
            later: Images that this tab has put off; they come last.
            now_shown: The image that the tab showed before it was loaded again; it stays, unless it has an answer.
        """
        now, waiting = time.monotonic(), self._open()
        with self._lock:
            taken = {image for image, (by, since) in self._held.items() if by != tab and now - since < HELD}
            order = sorted(
                waiting,
                key=lambda one: (one.image in taken, one.image != now_shown, one.image in later),
            )
            if not order:
                return None
            self._held = {image: held for image, held in self._held.items() if held[0] != tab}
            question = order[0]
            self._held[question.image] = (tab, now)
        return {
            "image": question.image,
            "file": self.inquiry.files[question.image],
            "query_strategy": question.query_strategy,
            "why": question.why,
            "choices": self.choices(question.image),
            "following": [question.image for question in order[1:3]],
        }

    def choices(self, image: int) -> list[dict[str, Any]]:
        """The classes with a key, in the order of the keys, and their probabilities for an image.

        Few classes keep their own order, so that a key always means the same class; of many, the likeliest come first.
        """
        row = self.inquiry.pool.probabilities[image]
        labels = range(len(row)) if len(row) <= FEW_CLASSES else row.topk(CHOICES).indices.tolist()
        return [{"label": k, "probability": float(row[k])} for k in labels]

    def answer(self, given: Sequence[Mapping[str, Any]], by: object = "") -> str:
        """Save answers that were given at once.

        Args:
            given: Of each its `image`, or several `images`, or its `issue`, its `answer` and, where that is 'label',
                its `label`, the number of a class, or its `name`, which may be that of a new class.
            by: Who answers; may be empty.

        Returns:
            Their id.

        Raises:
            DataError: If one makes no sense; then none is saved.
        """
        person = _check_person(by)
        strategies, added = self._strategies(), self.added_classes()
        rows = []
        for image, one in _each_image(given):
            kind, issue = one.get("answer"), one.get("issue")
            if kind not in ("label", "none", "wrong"):
                raise DataError("an answer must be one of 'label', 'none', 'wrong'.")
            if issue is not None:
                if type(issue) is not int or not 0 <= issue < len(self.issues) or kind == "wrong":
                    raise DataError("an answer about a label must have its number, and be one of 'label', 'none'.")
                doubted = self.issues[issue]
                about = {"file": doubted.file, "predicted": doubted.suggested, "asked": "check"}
            elif type(image) is not int or not 0 <= image < len(self.inquiry.files):
                raise DataError("the image of an answer must be the number of an image.")
            else:
                predicted = self.inquiry.predicted[image]
                if kind == "wrong":  # it denies the pseudo-label, which the final model need not predict any more
                    predicted = self._trusted.get(image, predicted)
                about = {
                    "file": self.inquiry.files[image],
                    "predicted": self.inquiry.classes[predicted],
                    "asked": strategies.get(image, "check"),
                }
            label = self._class_of(one, added) if kind == "label" else ""
            rows.append({**about, "answer": str(kind), "label": label, "by": person})
        if not rows:
            raise DataError("there must be at least one answer.")
        return self.log.add(rows)

    def label_issues(self) -> list[dict[str, Any]]:
        """The doubted labels, and what was answered about each: a class, 'none', or nothing."""
        answers = self.log.current()
        return [
            {**issue._asdict(), "said": (row.label or NO_CLASS) if (row := answers.get(issue.file)) else ""}
            for issue in self.issues
        ]

    def _class_of(self, given: Mapping[str, Any], added: Collection[str]) -> str:
        """The class of an answer, by its number or its name; a new name is checked."""
        classes, label, name = self.inquiry.classes, given.get("label"), given.get("name")
        if isinstance(name, str):
            return name if name in classes or name in added else check_class_name(name, (*classes, *added))
        if type(label) is not int or not 0 <= label < len(classes):
            raise DataError("the label of an answer must be the number of a class.")
        return classes[label]

    def added_classes(self) -> dict[str, int]:
        """Classes that the model does not have but answers name, the first named first, and of how many images."""
        names = [row.label for row in self.answers().values() if row.label]
        return dict(Counter(name for name in names if name not in self.inquiry.classes))

    def summary(self) -> dict[str, Any]:
        """Progress, and the accuracy of the model; answers that it has learned from do not count.

        `relabeled` are the labels of people that answers correct: the next run learns from these too.
        """
        answers = self._new_answers()
        labeled = [row for row in answers.values() if row.answer == "label"]
        return {
            "answered": len(answers),
            "labeled": len(labeled),
            "corrected": sum(row.label != row.predicted for row in labeled),
            "random": sum(row.asked == "random" for row in labeled),
            "none": sum(answer.answer == "none" for answer in answers.values()),
            "relabeled": sum(one["said"] not in ("", one["given"]) for one in self.label_issues()),
            "left": len(self._open()),
            "added": [{"name": name, "images": images} for name, images in self.added_classes().items()],
            "needed": LEAST_PER_CLASS,
            "random_needed": LEAST_RANDOM,
            "check_helping": self.check_helping,
            "estimate": self.estimate()._asdict(),
            "damaged": self.log.damaged,
            "disagreements": self._disagreements(),
        }

    def _disagreements(self) -> list[dict[str, Any]]:
        """Images about which people said different things, what each said, and what counts: the last."""
        rows = self.log.rows()
        counts = current_answers(rows)
        return [
            {
                "image": self.inquiry.place[file],
                "file": file,
                "said": [{"by": name, "label": label} for name, label in said.items()],
                "counts": f"not {row.predicted}" if (row := counts[file]).answer == "wrong" else row.label or NO_CLASS,
            }
            for file, said in disagreements(rows).items()
            if file in self.inquiry.place
        ][:MOST_DISAGREEMENTS]

    def estimate(self) -> AccuracyEstimate:
        """Accuracy by the random part; the model cannot name a new class, so that counts as no class."""
        classes, answers = self.inquiry.classes, self._new_answers()
        none = {file: row._replace(answer="none") for file, row in answers.items() if row.label not in ("", *classes)}
        return estimate_accuracy(self._random_order, {**answers, **none}, self._predictions)

    def trusted_classes(self) -> list[dict[str, int]]:
        """Of each class with pseudo-labels: its number, how many there are, and how many have no answer."""
        answers = self.answers()
        counts: dict[int, list[int]] = {}
        for image, label in self._trusted.items():
            total = counts.setdefault(label, [0, 0])
            total[0] += 1
            total[1] += self.inquiry.files[image] not in answers
        return [{"label": k, "trusted": total, "open": left} for k, (total, left) in sorted(counts.items())]

    def trusted_images(self, label: int, count: int) -> dict[str, Any]:
        """Pseudo-labels of a class without an answer, the most doubtful first.

        Args:
            label: The number of the class.
            count: Most to give.
        """
        answers = self.answers()
        rows = torch.tensor([image for image, k in self._trusted.items() if k == label], dtype=torch.int64)
        rows = rows[[self.inquiry.files[i] not in answers for i in rows.tolist()]]
        order = label_support(self.inquiry.after(answers), rows, torch.full_like(rows, label)).argsort(stable=True)
        images = [{"image": image, "file": self.inquiry.files[image]} for image in rows[order[:count]].tolist()]
        return {"label": label, "open": len(rows), "images": images}

    @cached_property
    def _random_order(self) -> list[str]:
        order = RandomStrategy().ask(self.inquiry.after({}), len(self.inquiry.files), self.options.seed)
        files = [self.inquiry.files[image] for image in order.tolist()]
        return [file for file in files if file not in self.inquiry.learned]

    @cached_property
    def _predictions(self) -> dict[str, str]:
        names = [self.inquiry.classes[label] for label in self.inquiry.predicted]
        return dict(zip(self.inquiry.files, names, strict=True))

    @cached_property
    def _trusted(self) -> dict[int, int]:
        labels = self.inquiry.pool.trusted
        return {} if labels is None else {i: k for i, k in enumerate(labels.tolist()) if k >= 0}

    def _strategies(self) -> dict[int, str]:
        return {question.image: question.query_strategy for question in self.questions}

    def answers(self) -> dict[str, Answer]:
        """The answers that count, of images of this run."""
        return {file: answer for file, answer in self.log.current().items() if file in self.inquiry.place}

    def _new_answers(self) -> dict[str, Answer]:
        """Answers that the model has not learned from; an image that was only called wrong may get a class later."""
        learned = self.inquiry.learned
        answers = self.answers().items()
        return {file: row for file, row in answers if file not in learned or (learned[file] == "wrong" != row.answer)}

    def _open(self) -> list[Question]:
        """What is still to be answered: first the images that somebody called wrong without saying what they are."""
        answers = self.answers()
        wrong = {self.inquiry.place[file]: one.predicted for file, one in answers.items() if one.answer == "wrong"}
        strategies = self._strategies()
        first = [
            Question(image, strategies.get(image, "check"), f"Somebody said that it is not {name}. What is it?")
            for image, name in wrong.items()
        ]
        waiting = [question for question in self.questions if self.inquiry.files[question.image] not in answers]
        return first + waiting


def _each_image(given: Sequence[Mapping[str, Any]]) -> Iterator[tuple[object, Mapping[str, Any]]]:
    """Each image with its answer."""
    for one in given:
        images = one.get("images")
        for image in images if isinstance(images, list) else [one.get("image")]:
            yield image, one


def _check_person(name: object) -> str:
    """The name of who answers.

    Raises:
        DataError: If it is none.
    """
    if not isinstance(name, str) or len(name) > LONGEST_NAME or not all(map(str.isprintable, name)):
        raise DataError(f"the name of who answers must be one line of at most {LONGEST_NAME} letters.")
    return name.strip()
