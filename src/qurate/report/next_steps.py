"""What to do after a run: one or two commands, by its outcome."""

from __future__ import annotations

from pathlib import Path

from qurate.report.run_tables import moved_in
from qurate.run_results import RunAnswers, RunRecord
from qurate.runtime.commands import NextStep, open_run, predict_with


def steps_after(record: RunRecord | None, run: Path) -> list[NextStep]:
    """Use the model where it helped, else label more; both where some images are worth a look all the same.

    Args:
        record: What the run found; None where it was finished before.
        run: Its folder, as the commands are to name it.
    """
    if record is None:
        return [open_run(run), predict_with(run)]
    steps, page = _by_outcome(record, run), open_run(run)
    if record.label_issues.empty:
        return steps
    correct = NextStep("check labels that may be wrong (under Your labels) and answer questions, on a page", page.words)
    return [correct if step == page else step for step in steps] if page in steps else [steps[0], correct]


def _by_outcome(record: RunRecord, run: Path) -> list[NextStep]:
    comparison = record.comparison
    if comparison is not None and comparison.verdict == "harms":
        return [open_run(run), predict_with(run / "baseline")]
    if record.answers is not None and (before := record.answers.corrections) is not None:
        return _after_answers(record.answers, run, Path(before.run))
    is_clear = comparison is not None and comparison.verdict == "helps"
    has_strange = bool(record.flagged and record.flagged.flagged) or bool(moved_in(record))
    if not is_clear or has_strange:
        return [open_run(run), predict_with(run)]
    return [predict_with(run), NextStep("use it without qurate", ("export", str(run), "--format", "onnx"))]


def _after_answers(answers: RunAnswers, run: Path, before: Path) -> list[NextStep]:
    """After a run that learned from answers about another."""
    better = answers.improvement
    if better is None:
        measure = NextStep(
            "see whether it is better, for each of both runs", ("evaluate", str(run), "--labeled", "DIR")
        )
        return [measure, open_run(run)]
    if better.high < 0:
        return [predict_with(before), open_run(run)]
    return [predict_with(run), open_run(run)] if better.low > 0 else [open_run(run), predict_with(run)]
