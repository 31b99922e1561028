"""The sentences under a table: what the numbers are, how they came about, what they can be compared with."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from qurate.benchmark.outcome import DATA, NATURAL, Facts
from qurate.model_selection import RULES, describe_rule
from qurate.registry import LONG, PRINTED
from qurate.report.published import TRAINING, Published, PublishedTable, same_backbone, scenario_titles

_TRAINED = {"head": "frozen, head trained", "full": TRAINING}


def table_notes(facts: Facts, results: pd.DataFrame, published: Published, measure: str) -> list[str]:
    """All sentences under one table.

    Args:
        facts: What was compared.
        results: Rows of this table.
        published: Numbers that may stand in it, beside targets as they are.
        measure: What its numbers are, as results.csv calls it.
    """
    titles = [str(title) for title in results["title"].unique()]
    rule = str(results["model_selection"].iloc[0])
    natural = list(results.loc[(results[list(NATURAL)] == NATURAL).all(axis=1), "scenario"].unique())
    shown = [title for title in titles if any(published.accuracy(title, name) is not None for name in natural)]
    return [
        _measure(results, measure),
        *_changed(results),
        "Bold: the best; underlined: the best without pseudo-labels."
        + (" An oracle knows the true labels and does not compete." if "oracle" in set(results["selector"]) else ""),
        *_gaps(results, len(titles)),
        *_legend(results),
        *(["S+T is plain training on the labelled images of both domains."] if "S+T" in titles else []),
        *_agents(set(results["selector"])),
        f"Model selection {rule}: {describe_rule(rule, facts.protocol) if rule in RULES else 'a rule of your own'}.",
        *_lengths(results),
        _made_with(facts, results),
        *_published(facts, published.sources(shown)),
        *published.notes(shown, natural),
        *(_later(published) if natural else []),
    ]


def query_strategy_notes(facts: Facts, results: pd.DataFrame, measure: str, number: int) -> list[str]:
    """All sentences under a table of query strategies after so many labels."""
    strategies = [str(name) for name in results["query_strategy"].unique()]
    answers = f"After each run people were asked for {number} labels, from which a run in a third of the steps learned"
    right = "; images that were labelled count as right." if measure == "accuracy" else "."
    return [
        _measure(results, measure),
        answers + right,
        *(["'none' is the control: a run in a third of the steps, without answers."] if "none" in strategies else []),
        *_changed(results),
        "Bold: the best.",
        *_gaps(results, len(strategies)),
        *_legend(results),
        _made_with(facts, results),
        *(_active(Published(facts.suite)) if measure == "accuracy" else []),
    ]


_MEASURES = {
    "accuracy": "Accuracy in percent",
    "balanced_accuracy": "Mean over the classes of accuracy in percent",
    "unasked": "Accuracy in percent, without the images that any of these query strategies had asked about by then,",
    "ece": "Expected calibration error of the probabilities as trained, in percentage points (the lower, the better),",
    "ece_calibrated": "Expected calibration error of what `adapt` gives, calibrated on held-out labelled samples of "
    "the target, in percentage points (the lower, the better),",
    "auroc": "AUROC in percent of right against wrong predictions by their probability",
    "auroc_unknown": "AUROC in percent of images of known classes against images of unknown ones",
    "hos": "HOS in percent (harmonic mean of the accuracy on known classes, where a flagged image is wrong, and the "
    "share of images of unknown classes that are flagged)",
}


def _measure(results: pd.DataFrame, measure: str) -> str:
    seeds = sorted(int(seed) for seed in results["seed"].unique())
    what = f"{_MEASURES[measure]} on the unlabelled target"
    if len(seeds) == 1:
        return f"{what}; one seed ({seeds[0]}), so nothing is known about the spread."
    return f"{what}; mean ± standard deviation over the seeds {', '.join(str(seed) for seed in seeds)}."


_CHANGES = {"imbalance": "{}:1", "unknown": "{} unknown", "missing_classes": "{} missing"}


def change_words(changes: Sequence[int], among: Sequence[Sequence[int]]) -> str:
    """What was done to a target, as ', 20:1, 16 unknown'; only what is done to some of `among` is named.

    Args:
        changes: Values in the order of `NATURAL`.
        among: Those of all targets that it stands beside.
    """
    named = zip(_CHANGES.values(), changes, NATURAL.values(), zip(*among, strict=True), strict=True)
    return "".join(f", {words.format(value)}" for words, value, natural, every in named if set(every) != {natural})


def _changed(results: pd.DataFrame) -> list[str]:
    """What was done to the targets; nothing where they are as they are."""
    said = _thinned(results)
    if unknown := sorted(int(number) for number in results["unknown"].unique() if number):
        said.append(
            f"{_numbers(unknown)} unknown: so many classes, drawn by the seed, are hidden; their images are in the "
            "unlabelled target alone, and no accuracy or calibration error counts them."
        )
    if missing := sorted(int(number) for number in results["missing_classes"].unique() if number):
        said.append(
            f"{_numbers(missing)} missing: the unlabelled target has no images of so many of the known classes, drawn "
            "by the seed."
        )
    return said


def _numbers(values: Sequence[int]) -> str:
    return ", ".join(map(str, values))


def _thinned(results: pd.DataFrame) -> list[str]:
    """What an imbalance is; nothing where there is none."""
    ratios = sorted(int(ratio) for ratio in results["imbalance"].unique() if ratio > 1)
    if not ratios:
        return []
    natural = " 1:1 is the target as it is." if (results["imbalance"] == 1).any() else ""
    listed = ", ".join(f"{ratio}:1" for ratio in ratios)
    return [
        f"{listed}: the unlabelled target is thinned by the seed to a long tail, whose class sizes fall geometrically "
        f"until the largest is that many times the smallest.{natural}"
    ]


def _gaps(results: pd.DataFrame, rows: int) -> list[str]:
    """What is missing, counted, so that nobody takes a half-finished table for a finished one."""
    failed = int(results["accuracy"].isna().sum())
    columns = len(results[DATA].drop_duplicates())
    missing = rows * columns * results["seed"].nunique() - len(results)
    gaps = [f"{failed} failed"] if failed else []
    gaps += [f"{missing} not run"] if missing else []
    if not gaps:
        return []
    runs = missing + len(results)
    return [f"Of {runs} runs, {', '.join(gaps)}; a mean is given only where every scenario has the same seeds."]


def _legend(results: pd.DataFrame) -> list[str]:
    """'W is webcam' for every letter."""
    letters: dict[str, str] = {}
    for name, title in scenario_titles(results["scenario"].unique()).items():
        parts, short = name.split(":"), title.split(" to ")
        if name != title and parts != short:
            letters.update(zip(short, parts, strict=True))
    return [", ".join(f"{letter} is {domain}" for letter, domain in sorted(letters.items())) + "."] if letters else []


def _agents(selectors: set[str]) -> list[str]:
    """Which row is whose: the published TML_DQNPL is Algorithm 1 as printed, ours is not."""
    said = []
    if "dqn" in selectors:
        said.append(
            "TML_DQNPL* (selector dqn) is the agent with our preset, which differs from the printed algorithm by the "
            "decisions that docs/paper.md lists under Presets, above all 5 to 10, 18 to 26, 36, 57 and 58."
        )
    if PRINTED["dqn"] in selectors:
        said.append(
            f"TML_DQNPL (selector {PRINTED['dqn']}) is Algorithm 1 as printed, except for the decisions that "
            "docs/paper.md lists under Presets."
        )
    if PRINTED["confidence"] in selectors:
        said.append(
            "TML_SPL draws half of each target batch from the positives; 'one set' draws from them and the labelled "
            "target alike, as the paper may have meant it (decision 31), and takes the paper's schedule (decision 32)."
        )
    return said


def _lengths(results: pd.DataFrame) -> list[str]:
    """Which rows trained how long; nothing where that was not recorded."""
    known = results.dropna(subset=["steps"]) if "steps" in results else results[:0]
    by_length: dict[str, list[str]] = {}
    for title, steps in known.groupby("title", sort=False)["steps"]:
        shortest, longest = (f"{int(number):,}" for number in (steps.min(), steps.max()))
        length = longest if shortest == longest else f"{shortest} to {longest}"
        by_length.setdefault(length, []).append(str(title))
    if not by_length:
        return []
    said = "; ".join(f"{length} for {', '.join(titles)}" for length, titles in by_length.items())
    control = " Rows that are named by their steps are controls: no pseudo-labels, but as long a training as with them."
    return [f"Total training steps: {said}.{control if LONG in set(known['selector']) else ''}"]


def _made_with(facts: Facts, results: pd.DataFrame) -> str:
    commits = [str(commit) for commit in results["commit"].dropna().unique()] if "commit" in results else []
    commits = commits or [facts.commit or "unknown"]
    parts = [
        f"Backbone {facts.backbone or 'unknown'}"
        + (f" ({_TRAINED.get(facts.train, facts.train)})" if facts.train else "")
        + (f", weights {facts.weights}" if facts.weights not in ("", "none") else ""),
        *([f"Protocol {facts.protocol}"] if facts.protocol else []),
        *([f"{facts.steps} training steps before selection"] if facts.steps else []),
        f"qurate at {'commit' if len(commits) == 1 else 'commits'} {', '.join(commits)}",
    ]
    return ". ".join(parts) + "."


def _published(facts: Facts, sources: list[PublishedTable]) -> list[str]:
    said = []
    for table in sources:
        differs = []
        if not same_backbone(table.backbone, facts.backbone):
            differs.append("another backbone")
        if facts.train != "full":
            differs.append("all layers trained instead of a frozen backbone")
        advice = f" They come from {' and '.join(differs)}: compare differences, not levels." if differs else ""
        said.append(f"Published numbers (paper): {table.source}.{advice}")
    return said


def _later(published: Published) -> list[str]:
    if not published.later:
        return []
    first = published.later[0]
    works = ", ".join(f"{work.name} {work.mean:.1f}" for work in published.later)
    return [f"Published elsewhere, mean of the {first.scenarios} scenarios with {first.backbone}, {TRAINING}: {works}."]


def _active(published: Published) -> list[str]:
    """What active adaptation reports on this suite, to stand beside what people were asked here."""
    return [
        f"Published active adaptation ({table.source}), mean of the {table.scenarios} scenarios with {table.backbone}, "
        f"{TRAINING}, {table.percent} % of the target labelled and nothing before: "
        + ", ".join(f"{name} {mean:.1f}" for name, mean in table.rows.items())
        + ". Another network and other labels: compare differences, not levels."
        for table in published.active
    ]
