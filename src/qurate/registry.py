"""What there is to choose from: training methods, selectors and query strategies, one line each.

Help texts, titles of tables and the tables of the docs are made of these lines. A class is imported when it is asked
for, so that listing names loads nothing heavy.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from qurate.errors import ConfigError


@dataclass(frozen=True)
class Entry:
    """One method, selector or query strategy.

    Args:
        name: In configs, on the command line and in results.csv.
        title: In tables.
        summary: What it does, in a few words.
        where: Its class, as 'module:Class'.
        has_network: Whether a method trains a network; one without is fitted to embeddings once.
    """

    name: str
    title: str
    summary: str
    where: str
    has_network: bool = True

    def load(self) -> Any:
        """The class."""
        module, _, attribute = self.where.partition(":")
        return getattr(importlib.import_module(module), attribute)


class Registry(Mapping[str, Entry]):
    """Entries by name, in the order of the tables.

    Args:
        what: 'method', 'selector' or 'query strategy', for messages.
        entries: All of them.
    """

    def __init__(self, what: str, *entries: Entry) -> None:
        self.what = what
        self._entries = {entry.name: entry for entry in entries}
        self._by_word = {word.casefold(): entry for entry in entries for word in (entry.name, entry.title)}

    def __getitem__(self, name: str) -> Entry:
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, word: str) -> Entry:
        """The entry of a name or a title, in any case.

        Raises:
            ConfigError: If there is none; the message lists all and names the nearest.
        """
        if not self.has(word):
            raise ConfigError(f"{self.what} must be one of {', '.join(self)}, got {word!r}.{nearest(word, self)}")
        return self._by_word[word.casefold()]

    def has(self, word: object) -> bool:
        """Whether it is the name or the title of an entry, in any case."""
        return isinstance(word, str) and word.casefold() in self._by_word


def nearest(word: object, known: Iterable[str]) -> str:
    """' Did you mean ...?' for a word that is close to a known one, else nothing."""
    close = difflib.get_close_matches(str(word).casefold(), list(known), n=1)
    return f" Did you mean {close[0]!r}?" if close else ""


def _method(name: str, title: str, summary: str, where: str) -> Entry:
    return Entry(name, title, summary, f"qurate.methods.{where}")


def _fitted(name: str, title: str, summary: str, where: str) -> Entry:
    return Entry(name, title, summary, f"qurate.methods.{where}", has_network=False)


def _selector(name: str, summary: str, where: str) -> Entry:
    return Entry(name, name, summary, f"qurate.selection.{where}")


def _strategy(name: str, summary: str, where: str) -> Entry:
    return Entry(name, name, summary, f"qurate.active.strategies:{where}")


METHODS = Registry(
    "method",
    _method("source_target", "S+T", "nothing: the baseline to beat", "source_target:SourceTarget"),
    _method("dann", "DANN", "features that a domain discriminator cannot tell apart", "dann:DomainAdversarial"),
    _method("adr", "ADR", "features on which two dropout passes of the classifier agree", "adr:AdversarialDropout"),
    _method("cdan", "CDAN", "like dann, on features multiplied by predictions", "cdan:ConditionalDomainAdversarial"),
    _method("ent", "ENT", "confident predictions (entropy minimisation)", "ent:EntropyMinimization"),
    _method("mme", "MME", "minimax entropy between classifier and features", "mme:MinimaxEntropy"),
    _method("tml", "TML", "low entropy; a margin on the labelled target (the paper's base model)", "tml:TargetMargin"),
    _method("cml", "CML", "like tml, with the margin on the source too (the paper's ablation)", "cml:CompleteMargin"),
    _method("adamatch", "AdaMatch", "predictions of a weak view, aligned and above a threshold", "adamatch:AdaMatch"),
    _method("cdac", "CDAC", "adversarial clusters of samples that are alike", "cdac:AdaptiveClustering"),
    _method("decota", "DECOTA", "two classifiers teach each other on mixtures", "decota:CoTraining"),
    _method(
        "mcl",
        "MCL",
        "consistency with the source (by transport), of classes and of samples",
        "mcl:MultiLevelConsistency",
    ),
    _fitted("knn", "k-NN", "nothing: the nearest labelled images vote", "practice:Neighbors"),
    _fitted("logistic", "LR", "nothing: logistic regression on both domains", "practice:Logistic"),
    _fitted(
        "logistic_weighted",
        "LR weighted",
        "nothing: like logistic, with the labelled target counting as much as the source",
        "practice:WeightedLogistic",
    ),
    _fitted(
        "logistic_centered",
        "LR centred",
        "subtracts its mean, and the source's from the source; then like logistic",
        "practice:CenteredLogistic",
    ),
    _fitted("label_spreading", "Label spreading", "a graph over which labels spread", "practice:Spreading"),
    _fitted("self_training", "Self-training", "logistic regression on its confident labels", "practice:SelfTraining"),
    _fitted("pace", "PACE", "its covariance, and then confident labels, for each backbone", "pace:PACE"),
    _fitted("mixture", "Mixture", "a Gaussian mixture whose neighbours agree (as TransCLIP)", "mixture:Mixture"),
)
"""Methods, by what they do with the unlabelled target: those that train in the order of the paper's tables, then those
that are fitted."""
TRAINED = tuple(entry.name for entry in METHODS.values() if entry.has_network)
"""Methods that train a network."""
FITTED = tuple(name for name in METHODS if name not in TRAINED)
"""Methods that train none, and are fitted to embeddings once."""
GROUPS = {"all": TRAINED, "fitted": FITTED}
"""Words of a benchmark for several methods."""

SELECTORS = Registry(
    "selector",
    _selector("none", "no pseudo-labels", "selectors:NoneSelector"),
    _selector("confidence", "those with a probability above 0.9 (the paper's SPL)", "selectors:ConfidenceSelector"),
    _selector("quality", "those above the paper's quality threshold: phi > tau", "selectors:QualitySelector"),
    _selector("balanced", "the best by phi within each pseudo-class, a growing share", "selectors:BalancedSelector"),
    _selector("share", "the best by phi, a growing share of all", "selectors:ShareSelector"),
    _selector(
        "adaptive",
        "a growing share, balanced as far as the predicted classes are of equal size",
        "selectors:AdaptiveSelector",
    ),
    _selector("random", "random ones, for comparison", "selectors:RandomSelector"),
    _selector("dqn", "those that a deep Q-network chooses (the paper's agent)", "dqn:DQNSelector"),
)
"""Selectors, by which pseudo-labels they trust."""

QUERY_STRATEGIES = Registry(
    "query strategy",
    _strategy("random", "random ones: the control, and an unbiased sample", "RandomStrategy"),
    _strategy("probability", "those whose most probable class has the lowest probability", "ProbabilityStrategy"),
    _strategy("margin", "those whose two most probable classes are closest", "MarginStrategy"),
    _strategy("clusters", "cluster centres, by k-means weighted by entropy", "ClustersStrategy"),
    _strategy("density", "centres of neighbourhoods that the model is uncertain about", "DensityStrategy"),
    _strategy("degree", "images near many uncertain ones, each in a different place", "DegreeStrategy"),
    _strategy("badge", "those whose labels would change the last layer most, in different ways", "BadgeStrategy"),
    _strategy("committee", "those on which the adapted model and S+T disagree, in dense places", "CommitteeStrategy"),
    _strategy("check", "trusted pseudo-labels that are most likely wrong", "CheckStrategy"),
)
"""Query strategies, by which images they choose to be labelled next."""

DEFAULT_SELECTOR = "adaptive"
"""Selector unless another is given. Our choice, by docs/long_tail; preset 'paper' has the agent."""
ORACLE = "oracle"
"""The selector of a benchmark that takes right labels only: no method, it shows the room that is left."""
LONG = "long"
"""The control of a benchmark: no selector, but as many training steps as a row with one takes."""
SLA = "sla"
"""Stands after the name of a method whose source labels are adapted, 'mme+sla' (`qurate.methods.source_labels`)."""
PLAIN = ("none", LONG)
"""Rows without pseudo-labels."""
PRINTED = {"confidence": "confidence_paper", "dqn": "dqn_paper"}
"""What results of a selector with preset 'paper' are called in results.csv."""
ROWS = {"confidence": ("confidence", PRINTED["confidence"]), "dqn": (PRINTED["dqn"], "dqn")}
"""Selectors with a row per preset, in the order of the tables; any other selector has one row, of its name."""
SELECTOR_ORDER = (*PLAIN, *(row for name in SELECTORS if name not in PLAIN for row in ROWS.get(name, (name,))), ORACLE)
"""Selectors in the order of a benchmark's tables."""

PAIRS = {"TML_SPL": ("tml", "confidence"), "TML_DQNPL": ("tml", "dqn")}
"""Pairs of method and selector that have a name in the paper, with whatever preset."""
TITLES = {
    ("tml", "confidence"): "TML_SPL",
    ("tml", PRINTED["confidence"]): "TML_SPL (one set)",
    ("tml", PRINTED["dqn"]): "TML_DQNPL",
    ("tml", "dqn"): "TML_DQNPL*",
}
"""Rows of tables that have a name. The paper's TML_DQNPL is Algorithm 1 as printed; the star marks our preset."""


def split_sla(word: str) -> tuple[str, bool]:
    """A method without the suffix 'sla', and whether it had one: 'mme+sla', 'MME + SLA'."""
    method, plus, last = str(word).rpartition("+")
    return (method.strip(), True) if plus and last.strip().casefold() == SLA else (word, False)


def find_method(word: str) -> str:
    """The name of a method by its name or title in any case, with '+sla' where its source labels are adapted.

    Raises:
        ConfigError: If there is none.
    """
    method, is_adapted = split_sla(word)
    return METHODS.find(method).name + (f"+{SLA}" if is_adapted else "")


def resolve_pair(word: str) -> tuple[str, str | None]:
    """Method and selector of a word: a method, a row of the tables, or 'method+selector'; in any case.

    TML_DQNPL is the agent with whatever preset is chosen; the star of our own row may be there or not.

    Raises:
        ConfigError: If it names none.

    Example:
        >>> resolve_pair("tml_spl"), resolve_pair("S+T"), resolve_pair("mme+dqn"), resolve_pair("MME + SLA + quality")
        (('tml', 'confidence'), ('source_target', None), ('mme', 'dqn'), ('mme+sla', 'quality'))
    """
    for title, pair in PAIRS.items():
        if str(word).casefold().removesuffix("*") == title.casefold():
            return pair
    method, plus, selector = str(word).rpartition("+")
    if not plus or METHODS.has(word) or split_sla(word)[1]:
        return find_method(word), None
    name, chosen = find_method(method.strip()), selector.strip()
    return name, chosen.casefold() if chosen.casefold() in (ORACLE, LONG) else SELECTORS.find(chosen).name


def goes_with(method: str, selector: str) -> bool:
    """Whether a selector has a meaning for a method: the agent trains networks, and what is fitted has no steps."""
    return METHODS[split_sla(method)[0]].has_network or selector not in ("dqn", PRINTED["dqn"], LONG)


def row_title(method: str, selector: str, steps: int | None = None) -> str:
    """The name of a row: the paper's where it has one, else 'METHOD + selector'.

    Args:
        method: In results.csv.
        selector: In results.csv.
        steps: Training steps, which name a control of equal length.

    Example:
        >>> row_title("source_target", "none"), row_title("tml", "dqn"), row_title("mme+sla", "quality")
        ('S+T', 'TML_DQNPL*', 'MME + SLA + quality')
        >>> row_title("tml", "long", 3100)
        'TML (3,100 steps)'
    """
    if (method, selector) in TITLES:
        return TITLES[method, selector]
    name, is_adapted = split_sla(method)
    title = (METHODS[name].title if name in METHODS else name) + (" + SLA" if is_adapted else "")
    if selector == LONG and steps is not None:
        return f"{title} ({steps:,} steps)"
    return title if selector == "none" else f"{title} + {selector}"


def row_rank(method: str, selector: str) -> tuple[int, int, str]:
    """Sorts rows as the paper does: by selector, then by method; unknown names come last."""
    methods, name = list(METHODS), split_sla(method)[0]
    return (
        SELECTOR_ORDER.index(selector) if selector in SELECTOR_ORDER else len(SELECTOR_ORDER),
        methods.index(name) if name in methods else len(methods),
        row_title(method, selector),
    )
