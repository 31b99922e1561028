"""Algorithm 1: selective pseudo-labelling by deep Q-learning, line by line.

Here are lines 1-5 and 20; lines 6-18 are in `selection/dqn.py`. Processes, checkpoints, signals and callbacks are in
`selection/session.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from qurate.config import RunConfig
from qurate.data.samples import Split
from qurate.distributed import ProcessGroup, run_in_group
from qurate.networks.inference import log_probabilities
from qurate.presets import baseline_of
from qurate.selection.callbacks import Callback
from qurate.selection.pseudo_labels import pseudo_label
from qurate.selection.selectors import Selector
from qurate.selection.session import Adaptation as Adaptation
from qurate.selection.session import Checkpoint, Pretraining, RunArguments, Session, check_arguments


def fit(
    split: Split,
    config: RunConfig,
    *,
    selector: Selector | None = None,
    callbacks: Sequence[Callback] = (),
    checkpoint: Checkpoint | None = None,
    pretrained: Pretraining | None = None,
    baseline: Tensor | None = None,
) -> Adaptation:
    """Algorithm 1 with any method and any selector.

    Args:
        split: D_s, D_t, D_u; sealed labels and validation are not touched.
        config: Network, method, training, selection, seed; see `qurate.make_config`.
        selector: One of your own in place of `config.selection.selector`.
        callbacks: Called as the run goes.
        checkpoint: Keeps progress after line 1 and after each round; a run resumes from what it holds.
        pretrained: Line 1, shared by runs that differ in selection alone.
        baseline: Log-probabilities of D_u by S+T, (N_u, K), for `SelectionConfig.labeler` 'combined'; unless given,
            S+T is trained first.

    Example:
        >>> from qurate import NetworkConfig, digits_split, make_config
        >>> network = NetworkConfig("digits", bottleneck="normalized", features=64)
        >>> config = make_config("TML_SPL", network=network, steps=20, rounds=2, round_steps=5)
        >>> result = fit(digits_split(shots=3, seed=0), config)
        >>> result.stopped
        'the budget of 2 rounds is used up'
    """
    arguments = RunArguments(split, config, selector, callbacks, checkpoint, pretrained, baseline)
    check_arguments(arguments)
    if config.selection.labeler == "combined":
        arguments = arguments._replace(baseline=baseline_log_probs(arguments))
    with Session.open(arguments, follow_rank_zero) as run:
        return run_algorithm(run)


def baseline_log_probs(arguments: RunArguments) -> Tensor | None:
    """What S+T says of D_u: given, shared by an earlier run, or trained here; not trained where inputs are image files.

    There S+T would be another training of all layers (decision 57).
    """
    split, shared = arguments.split, arguments.pretrained
    unlabeled = split.target_unlabeled.inputs
    if arguments.baseline is not None or not isinstance(unlabeled, Tensor):
        return arguments.baseline
    if shared is not None and shared.baseline is not None:
        return shared.baseline
    found = log_probabilities(fit(split, baseline_of(arguments.config)).method.network, unlabeled)
    if shared is not None:
        shared.baseline = found
    return found


def run_algorithm(run: Session) -> Adaptation:
    """The lines of Algorithm 1, on every rank."""
    config = run.config
    # 1: pre-train F and C with D_s, D_t and D_u by the method's loss, Eq. (3) for TML
    run.train(line=1, steps=config.training.steps)
    # 2: D_p is empty    3: the experience pool M is empty; it is the agent's
    positives = run.positives
    # 4: while not converged
    for number in run.rounds():
        if not run.is_within(20):  # or else the run was stopped there, and resumes there
            # 5: pseudo-labels of D_u by the current F and C
            round = pseudo_label(run.trainer, run.data, positives, number, config, run.neighbors, run.baseline)
            # 6-18: which of them to trust
            positives = run.select(round)
        # 20: update F and C with D_s, D_t, D_u and D_p by the same loss
        run.train(line=20, steps=config.selection.round_steps, positives=positives)
        run.end_round(positives)
    return run.result()


def follow_rank_zero(group: ProcessGroup) -> Any:
    """Take part in the runs that rank 0 broadcasts, until it broadcasts something else.

    Returns:
        That other value.
    """
    while isinstance(arguments := group.broadcast(), RunArguments):
        with run_in_group(group):
            run_algorithm(Session(arguments, group))
    return arguments
