"""Numbers as the terminal shows them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console

from qurate.cli.terminal import say

if TYPE_CHECKING:
    from pathlib import Path

    from qurate.evaluation import Metrics
    from qurate.report.run.record import BaselineComparison


def helping(found: BaselineComparison, out: Path) -> str:
    """Whether adaptation helps, what that rests on and what to do.

    Args:
        found: The comparison.
        out: Folder of the run.
    """
    from qurate.report.run.words import BASELINE, smallest_in_words

    verdict = {
        "helps": "Adaptation helps.",
        "unclear": f"It is not clear whether adaptation helps. {smallest_in_words(found)}",
        "harms": f"Adaptation made it worse here. Use the plain model (S+T) in {out / BASELINE} instead.",
    }[found.verdict]
    accuracy, balanced = (
        f"{100 * gain.estimate:+.1f} points (likely {100 * gain.low:+.1f} to {100 * gain.high:+.1f})"
        for gain in (found.gain, found.balanced)
    )
    return (
        f"{verdict} Estimated gain over S+T (trained on the labelled images alone): accuracy {accuracy}, balanced "
        f"accuracy {balanced}. On {found.images} labelled target images that neither model saw ({found.how}): adapted "
        f"{found.adapted:.1%}, S+T {found.baseline:.1%}. They disagree on {found.disagreement:.1%} of the unlabelled "
        "images."
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
