"""Numbers as the terminal shows them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console

from qurate.cli.terminal import say

if TYPE_CHECKING:
    from qurate.evaluation import Metrics
    from qurate.report.run.record import BaselineComparison


def helping(found: BaselineComparison) -> str:
    """Whether adaptation helps, in two sentences."""
    verdict = {
        "helps": "Adaptation helps.",
        "unclear": "It is not clear whether adaptation helps.",
        "harms": "Adaptation made it worse here. Use --method source_target --selector none.",
    }[found.verdict]
    difference = found.adapted - found.baseline
    return (
        f"{verdict} On {found.images} labelled target images that neither model saw ({found.how}): adapted "
        f"{found.adapted:.1%}, S+T (trained on the labelled images alone) {found.baseline:.1%}, difference "
        f"{100 * difference:+.1f} points (95 % interval {100 * found.low:+.1f} to {100 * found.high:+.1f})."
    )


def print_metrics(found: Metrics, classes: tuple[str, ...]) -> None:
    """Accuracy, and a table of the classes."""
    from qurate.runtime.display import make_table

    counts = found.confusion.sum(dim=1).tolist()
    say(f"Accuracy {found.accuracy:.1%}, balanced accuracy {found.balanced_accuracy:.1%} on {sum(counts)} images.")
    if found.confidence is not None and found.calibration_error is not None and found.uncalibrated_error is not None:
        say(
            f"How sure the model is, on the mean: {found.confidence:.1%}. Calibration error (how far that is from how "
            f"often it is right): {100 * found.calibration_error:.1f} points, "
            f"{100 * found.uncalibrated_error:.1f} before calibration."
        )
    rows = []
    for label, (name, count) in enumerate(zip(classes, counts, strict=True)):
        if count:
            row = found.confusion[label].clone()
            right, row[label] = int(row[label]), 0
            taken_for = [f"{classes[k]} ({int(row[k])})" for k in row.argsort(descending=True)[:3] if row[k]]
            rows.append((name, str(count), str(right), f"{right / count:.1%}", ", ".join(taken_for)))
    Console().print(make_table("Per class", ("class", "images", "right", "accuracy", "mistaken for"), rows))
