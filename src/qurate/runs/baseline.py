"""S+T of a run: trained, or taken from the run before, with its folds and the images that fit none of the classes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from qurate.data.samples import Inputs, Split
from qurate.networks.heads import Network
from qurate.networks.inference import log_probabilities
from qurate.novelty import FALSE_DISCOVERY_RATE, Novelty
from qurate.presets import baseline_of
from qurate.runs.comparison import CrossFit, Model, Plan, plan_comparison
from qurate.runs.continue_from import RunData
from qurate.runs.predictions import train_baseline
from qurate.runs.setup import Run
from qurate.selection.crossfit import Fold, score_novelty


@dataclass(frozen=True, eq=False)
class Baseline:
    """S+T of a run, and what it says of images that fit none of the classes.

    Args:
        network: S+T; None where the run has none.
        folds: What S+T without some labelled images says of those; none where nothing is held out.
        novelty: How well images fit the classes; None where that is not measured.
        flagged: Which images of D_u fit none, and are not trained on, (N_u,) bool.
    """

    network: Network | None
    folds: tuple[Fold, ...]
    novelty: Novelty | None
    flagged: Tensor

    def log_probs(self, inputs: Inputs) -> Tensor | None:
        """What S+T says of embeddings; None where the run has none, or trains the backbone."""
        if self.network is None or not isinstance(inputs, Tensor):
            return None
        return log_probabilities(self.network, inputs)


def find_baseline(run: Run, plan: Plan) -> Baseline:
    """Train S+T and its folds, or take that of the run before, and find the images that fit none of the classes."""
    setup, data, reporter = run.setup, run.data, run.reporter
    split, none = data.split, torch.zeros(len(data.split.target_unlabeled), dtype=torch.bool)
    if setup.continued is not None:
        model = setup.continued.model
        network, novelty, flagged = model.baseline, model.novelty, none
        if network is not None and novelty is not None and setup.train == "head":
            unlabeled, answered = split.target_unlabeled.inputs, embeddings_of_no_class(data)
            assert isinstance(unlabeled, Tensor), "embeddings"
            if setup.continued.settings.get("labeled_data") == data.parts.labeled_digest:
                novelty, flagged = score_novelty(split, network, novelty.folds, answered)
            else:  # held-out images are known by their positions in D_t
                flagged = novelty.flags(unlabeled)
                reporter.say(
                    "The labelled target images are other ones than in the first of these runs. Which images fit no "
                    "class is decided as in that run; to decide it anew, run adapt without --from."
                )
        return _say_flagged(run, Baseline(network, (), novelty, flagged))
    if not plan.folds and setup.folder is not None and setup.folder.pending:  # its network was trained with a baseline
        plan = plan_comparison(data.parts.split.target_labeled.labels, seed=setup.config.seed)
    if not plan.folds:
        return Baseline(None, (), None, none)
    with begin_folds(run, plan, "baseline", split) as training:
        network = train_baseline(split, setup.config, setup.folder, reporter)
        folds = training.finish(reporter)
    if setup.train == "full":
        return Baseline(network, folds, None, none)
    novelty, flagged = score_novelty(split, network, folds, embeddings_of_no_class(data))
    return _say_flagged(run, Baseline(network, folds, novelty, flagged))


def embeddings_of_no_class(data: RunData) -> Tensor | None:
    """Embeddings of the images that people said are of no class, (N_0, width); None where there are none."""
    is_none, answered = data.applied.is_none, data.answered
    return answered[is_none] if isinstance(answered, Tensor) and bool(is_none.any()) else None


def _say_flagged(run: Run, baseline: Baseline) -> Baseline:
    if count := int(baseline.flagged.sum()):
        run.reporter.say(
            f"{count} of {len(baseline.flagged)} unlabelled images fit none of the classes and are left out of "
            f"training. About {FALSE_DISCOVERY_RATE:.0%} of them may fit one after all; the page shows them."
        )
    return baseline


def begin_folds(run: Run, plan: Plan, model: Model, split: Split, baselines: Sequence[Tensor | None] = ()) -> CrossFit:
    """Trains S+T or the adapted model without the images of each fold; those that were done before a stop are kept.

    Other processes begin while this one trains the model on all labelled images.
    """
    folder, config = run.setup.folder, run.setup.config
    kept = {} if folder is None else folder.load_folds(run.data.split, plan.folds)
    if kept is None:
        run.reporter.say("What was kept of the comparison is damaged, so it starts again.")
    done = dict(kept or {})

    def save(number: int, fold: Fold) -> None:
        done[model, number] = fold
        if folder is not None:
            folder.save_folds(done)

    of_model = {number: fold for (name, number), fold in done.items() if name == model}
    title, chosen = ("S+T", baseline_of(config)) if model == "baseline" else ("comparison", config)
    return CrossFit(
        split, chosen, plan.folds, title=title, baselines=baselines, done=of_model, on_fold=save, beside=True
    )
