"""Is a run that learned from answers better than the run before? Measured on the answers that were drawn at random.

The new model has learned from all answers, so models like it are trained without some of them, in folds, and judged on
those; the run before had not learned from any of them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from qurate.active.answers import Answer, paired_interval
from qurate.calibration import Calibration, combine
from qurate.networks.heads import Network
from qurate.networks.inference import log_probabilities
from qurate.run_results import Improvement
from qurate.runs.comparison import CrossFit
from qurate.runs.continue_from import AppliedAnswers, PreviousRun, whole_path
from qurate.runs.setup import Run
from qurate.runtime.randomness import generator
from qurate.selection.answered import shorten
from qurate.selection.crossfit import FOLDS, Fold, leave_out

LEAST_RANDOM = 5
"""Answers drawn at random from which on two runs are compared. Our choice."""


def measure_improvement(
    run: Run, baseline: Network | None, flagged: Tensor, calibration: Calibration
) -> tuple[Improvement | None, str]:
    """How much better the run is than the one before; or why that is not known, as a sentence.

    Args:
        run: A run that learned from answers.
        baseline: S+T of the first run, which has learned from no answer; None where there is none.
        flagged: Which images of D_u are not trained on, (N_u,) bool.
        calibration: Of the new model.
    """
    setup, data = run.setup, run.data
    if setup.previous is None:
        return None, ""
    chosen = drawn_at_random(data.applied, setup.previous, len(data.parts.split.target_labeled))
    if not setup.compare:
        why = "left out because of the time limit of an earlier run" if setup.cut_short else "switched off"
        return None, f"The comparison was {why}."
    if setup.anew:
        return None, "The run started anew, and its plain training (S+T) has learned all answers."
    if len(chosen) < LEAST_RANDOM:
        return None, (
            f"{len(chosen) or 'None'} of the new answers with a class {'was' if len(chosen) < 2 else 'were'} drawn at "
            f"random, and that takes {LEAST_RANDOM}. 'qurate open' draws one in five at random, 'qurate suggest' with "
            "--random-share 0.2."
        )
    if not run.has_heads or setup.full is not None:
        return None, "All layers were trained, so training again without some answers would take too long."
    split, _ = leave_out(data.split, flagged)
    places = torch.tensor(list(chosen))[torch.randperm(len(chosen), generator=generator(setup.config.seed, 27))]
    places = places[split.target_labeled.labels[places].argsort(stable=True)]  # each class in all folds
    folds = [places[number::FOLDS].sort().values for number in range(FOLDS)]
    inputs, unlabeled = split.target_labeled.inputs, split.target_unlabeled.inputs
    assert isinstance(inputs, Tensor), "embeddings"
    assert isinstance(unlabeled, Tensor), "embeddings"
    by_baseline: list[Tensor] = []
    if baseline is not None:
        of_unlabeled = log_probabilities(baseline, unlabeled)
        by_baseline = [torch.cat([of_unlabeled, log_probabilities(baseline, inputs[fold])]) for fold in folds]
    title = "check against the run before"
    with CrossFit(split, shorten(setup.config), folds, title=title, baselines=by_baseline) as training:
        found = Fold.join(training.finish(run.reporter))
    of_baseline = None if baseline is None else log_probabilities(baseline, inputs[found.images])
    named = combine(found.log_probs, of_baseline, calibration).argmax(dim=1)
    now = (named == found.labels).tolist()
    before = [_was_right(chosen[place], setup.previous) for place in found.images.tolist()]
    gained, lost = (sum(a and not b for a, b in zip(*pair, strict=True)) for pair in ((now, before), (before, now)))
    low, high = paired_interval(gained, lost, len(now))
    return Improvement(len(now), sum(before) / len(now), sum(now) / len(now), low, high), ""


def drawn_at_random(applied: AppliedAnswers, previous: PreviousRun, first: int) -> dict[int, Answer]:
    """New answers with a class about images that were drawn at random, by their positions in D_t.

    Args:
        applied: All answers.
        previous: The run that they are about.
        first: Position in D_t of the first image that joined it by an answer.
    """
    found, place = {}, first
    for number, (row, label) in enumerate(zip(applied.answers, applied.labels.tolist(), strict=True)):
        if label < 0:
            continue
        path = whole_path(row.file)
        is_new = number >= applied.earlier and path in previous.predicted and path not in previous.learned
        if is_new and row.asked == "random":
            found[place] = row
        place += 1
    return found


def _was_right(row: Answer, previous: PreviousRun) -> bool:
    return previous.predicted[whole_path(row.file)] == row.label
