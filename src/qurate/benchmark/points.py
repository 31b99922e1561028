"""The models that a run passes through, measured as they come; training sees nothing of it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from qurate.benchmark.results import BenchmarkError
from qurate.calibration import at_temperature
from qurate.config import RunConfig
from qurate.data.samples import Split
from qurate.evaluation import (
    calibration_error,
    evaluate,
    measure,
    predict_probabilities,
    pseudo_label_accuracy,
    true_labels,
)
from qurate.methods import Method
from qurate.model_selection import LABEL_FREE, choose_model
from qurate.selection.callbacks import Callback, RoundRecord
from qurate.selection.positives import Positives

POINTS = 8
"""Models to choose from in a run without rounds, evenly spaced over its training. Our choice."""


@dataclass(frozen=True)
class Point:
    """One model of a run.

    Args:
        accuracy: On the hidden labels of D_u.
        balanced_accuracy: Mean over classes.
        ece: Expected calibration error.
        ece_calibrated: The same at the temperature of the run; None where it has none.
        positives: Size of D_p when the model was made.
        positives_accuracy: Share of right ones; None if there are none.
        scores: What each rule thinks of the model.
    """

    accuracy: float
    balanced_accuracy: float
    ece: float
    ece_calibrated: float | None
    positives: int
    positives_accuracy: float | None
    scores: Mapping[str, float]


class Watch(Callback):
    """Measures the models of a run: after pre-training, after each round, and on the way.

    Args:
        split: For D_u and validation.
        rules: Whose scores to compute.
        steps: Steps of pre-training after which to look too.
        temperature: To measure calibrated probabilities at too, if there is one.
    """

    def __init__(
        self,
        split: Split,
        rules: Collection[str],
        *,
        steps: Collection[int] = (),
        temperature: float | None = None,
    ) -> None:
        if "validation" in rules and split.validation is None:
            raise BenchmarkError(
                "model selection by validation needs validation samples and the split has none: its classes are too "
                "small. Leave the rule out."
            )
        self.points: list[Point] = []
        self.temperature = temperature
        self._split = split
        self._rules = rules
        self._steps = frozenset(steps)
        self._method: Method | None = None

    def on_start(self, method: Method) -> None:
        """The method that is trained."""
        self._method = method

    def on_step(self, step: int, terms: dict[str, float]) -> None:
        """Look on the way."""
        if step in self._steps:
            assert self._method is not None, "training begins after on_start"
            self._look(self._method, Positives.none())

    def on_pretrained(self, method: Method) -> None:
        """Look, and no more on the way: steps of rounds are counted from 1 again."""
        self._steps = frozenset()
        self._look(method, Positives.none())

    def on_round(self, record: RoundRecord, method: Method, positives: Positives) -> None:
        """Look."""
        self._look(method, positives)

    def chosen(self, rule: str) -> Point:
        """The model that a rule takes."""
        if rule == "last":
            return self.points[-1]
        return self.points[choose_model([point.scores[rule] for point in self.points])]

    def _look(self, method: Method, positives: Positives) -> None:
        unlabeled = self._split.target_unlabeled
        probabilities = predict_probabilities(method, unlabeled.inputs)
        truth = true_labels(unlabeled)
        metrics = measure(probabilities.argmax(dim=1), truth, self._split.n_classes)
        scores = {name: score(probabilities) for name, score in LABEL_FREE.items() if name in self._rules}
        if "validation" in self._rules:
            assert self._split.validation is not None, "see __init__"
            scores["validation"] = evaluate(method, self._split.validation).accuracy
        scores["oracle"] = metrics.accuracy
        right = pseudo_label_accuracy(positives.indices, positives.labels, unlabeled)
        calibrated = None
        if self.temperature is not None:
            calibrated = calibration_error(at_temperature(probabilities.log(), self.temperature), truth)
        self.points.append(
            Point(
                metrics.accuracy,
                metrics.balanced_accuracy,
                calibration_error(probabilities, truth),
                calibrated,
                len(positives),
                right,
                scores,
            )
        )


def steps_to_look(config: RunConfig, rules: Collection[str]) -> tuple[int, ...]:
    """Where to look during the training of a run without rounds, before its end; nowhere if only the last counts."""
    if config.selection.selector.name != "none" or set(rules) == {"last"}:
        return ()
    return tuple(config.training.steps * i // POINTS for i in range(1, POINTS))
