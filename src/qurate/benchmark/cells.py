"""One cell of a comparison: a method with a selector on a split, measured on the hidden labels."""

from __future__ import annotations

import time

from qurate.benchmark.results import Row
from qurate.config import RunConfig
from qurate.data.samples import Split
from qurate.evaluation import evaluate, pseudo_label_accuracy, true_labels
from qurate.selection.algorithm import OnEvent, adapt
from qurate.selection.selectors import OracleSelector, Selector
from qurate.training import OnStep


def run_cell(
    split: Split,
    config: RunConfig,
    *,
    scenario: str,
    shots: int,
    selector_name: str | None = None,
    selector: Selector | None = None,
    on_event: OnEvent | None = None,
    on_step: OnStep | None = None,
) -> Row:
    """Run Algorithm 1 with a config and measure it.

    Args:
        split: The data.
        config: What to run; `config.selection.selector` may be 'oracle' here, which takes right labels only.
        scenario: For the row.
        shots: For the row.
        selector_name: Name in the row, where `config.selection.selector` does not say enough.
        selector: One of your own.
        on_event: Called after each line of Algorithm 1.
        on_step: Called after each training step.
    """
    began = time.perf_counter()
    if config.selection.selector == "oracle":
        selector = OracleSelector(true_labels(split.target_unlabeled))
    result = adapt(split, config, selector=selector, on_event=on_event, on_step=on_step)
    seconds = time.perf_counter() - began
    metrics = evaluate(result.method, split.target_unlabeled)
    positives = result.positives
    none = config.selection.selector == "none" and selector is None
    return Row(
        scenario=scenario,
        method=config.method.name,
        selector=selector_name or config.selection.selector,
        shots=shots,
        seed=config.seed,
        accuracy=metrics.accuracy,
        balanced_accuracy=metrics.balanced_accuracy,
        positives=None if none else len(positives),
        positives_accuracy=pseudo_label_accuracy(positives.indices, positives.labels, split.target_unlabeled),
        seconds=seconds,
    )
