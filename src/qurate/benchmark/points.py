"""The models that a run passes through, measured as they come; training sees nothing of it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from torch import Tensor

from qurate.config import RunConfig
from qurate.data.samples import Split
from qurate.evaluation import evaluate, measure, predict_probabilities, pseudo_label_accuracy, true_labels
from qurate.model_selection import LABEL_FREE, choose_model
from qurate.selection.algorithm import Event
from qurate.selection.pseudo_labels import Positives
from qurate.training import Trainer

POINTS = 8
"""Models to choose from in a run without rounds, evenly spaced over its training. Our choice."""


@dataclass(frozen=True)
class Point:
    """One model of a run.

    Args:
        accuracy: On the hidden labels of D_u.
        balanced_accuracy: Mean over classes.
        positives: Size of D_p when the model was made.
        positives_accuracy: Share of right ones; None if there are none.
        scores: What each rule thinks of the model.
    """

    accuracy: float
    balanced_accuracy: float
    positives: int
    positives_accuracy: float | None
    scores: Mapping[str, float]


class Watch:
    """Follows a run by its events and measures its models: after pre-training, after each round, and on the way.

    Args:
        split: For D_u and validation.
        rules: Whose scores to compute.
        steps: Steps of pre-training after which to look too.
        keep: Whether to keep the state of the trainer after pre-training.
    """

    def __init__(
        self, split: Split, rules: Collection[str], *, steps: Collection[int] = (), keep: bool = False
    ) -> None:
        if "validation" in rules and split.validation is None:
            raise ValueError(
                "Watch: rule 'validation' needs validation samples and the split has none: its classes are too small. "
                "Leave the rule out."
            )
        self.points: list[Point] = []
        self.pretrained: Mapping[str, Tensor] | None = None
        self._split = split
        self._rules = rules
        self._steps = frozenset(steps)
        self._keep = keep
        self._trainer: Trainer | None = None

    def on_event(self, event: Event) -> None:
        """For `adapt`."""
        if event.what == "build F and C":
            self._trainer = event.data["trainer"]
        elif event.line == 2:
            self._steps = frozenset()  # steps of rounds are counted from 1 again
            if self._keep and self._trainer is not None:
                self.pretrained = self._trainer.state_dict()
            self._look(Positives.none())
        elif event.line == 20:
            self._look(event.data["chosen"])

    def on_step(self, step: int, terms: dict[str, float]) -> None:
        """For `adapt`."""
        if step in self._steps:
            self._look(Positives.none())

    def chosen(self, rule: str) -> Point:
        """The model that a rule takes."""
        if rule == "last":
            return self.points[-1]
        return self.points[choose_model([point.scores[rule] for point in self.points])]

    def _look(self, positives: Positives) -> None:
        assert self._trainer is not None, "adapt tells of F and C before anything else"
        method, unlabeled = self._trainer.method, self._split.target_unlabeled
        probabilities = predict_probabilities(method, unlabeled.inputs)
        metrics = measure(probabilities.argmax(dim=1), true_labels(unlabeled), self._split.n_classes)
        scores = {name: score(probabilities) for name, score in LABEL_FREE.items() if name in self._rules}
        if "validation" in self._rules:
            assert self._split.validation is not None, "see __init__"
            scores["validation"] = evaluate(method, self._split.validation).accuracy
        scores["oracle"] = metrics.accuracy
        right = pseudo_label_accuracy(positives.indices, positives.labels, unlabeled)
        self.points.append(Point(metrics.accuracy, metrics.balanced_accuracy, len(positives), right, scores))


def steps_to_look(config: RunConfig, rules: Collection[str]) -> tuple[int, ...]:
    """Where to look during the training of a run without rounds, before its end; nowhere if only the last counts."""
    if config.selection.selector != "none" or set(rules) == {"last"}:
        return ()
    return tuple(config.training.steps * i // POINTS for i in range(1, POINTS))
