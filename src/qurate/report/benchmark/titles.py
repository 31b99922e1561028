"""What rows and columns of the tables are called, and their order."""

from __future__ import annotations

from collections.abc import Iterable

from qurate.methods import METHODS

SELECTORS = ("none", "confidence", "quality", "balanced", "random", "dqn_paper", "dqn", "oracle")
"""Selectors in the order of the tables: without pseudo-labels first, the oracle, which knows the truth, last."""
_OF_THE_PAPER = {("tml", "confidence"): "TML_SPL", ("tml", "dqn"): "TML_DQNPL"}


def row_title(method: str, selector: str) -> str:
    """The name of a row: the paper's where it has one, else 'METHOD + selector'.

    Example:
        >>> row_title("source_target", "none"), row_title("tml", "dqn"), row_title("mme", "quality")
        ('S+T', 'TML_DQNPL', 'MME + quality')
    """
    title = METHODS[method].title if method in METHODS else method
    return _OF_THE_PAPER.get((method, selector), title if selector == "none" else f"{title} + {selector}")


def row_rank(method: str, selector: str) -> tuple[int, int, str]:
    """Sorts rows as the paper does: by selector, then by method; names that nobody knows come last."""
    methods = list(METHODS)
    return (
        SELECTORS.index(selector) if selector in SELECTORS else len(SELECTORS),
        methods.index(method) if method in methods else len(methods),
        row_title(method, selector),
    )


def scenario_title(scenario: str) -> str:
    """'webcam:amazon' as the paper writes it: 'W to A'. What is no pair of domains stays as it is."""
    domains = [domain.strip() for domain in scenario.split(":")]
    return " to ".join(domain[0].upper() for domain in domains) if len(domains) == 2 and all(domains) else scenario


def scenario_titles(scenarios: Iterable[str]) -> dict[str, str]:
    """A title for each scenario: the paper's short form, or whole names where two would read the same.

    Example:
        >>> scenario_titles(["webcam:amazon", "dslr:amazon"])
        {'webcam:amazon': 'W to A', 'dslr:amazon': 'D to A'}
        >>> scenario_titles(["real:clipart", "rainy:clipart"])
        {'real:clipart': 'real to clipart', 'rainy:clipart': 'rainy to clipart'}
    """
    names = list(scenarios)
    domains = {domain.strip() for name in names for domain in name.split(":")}
    clear = len({domain[:1].upper() for domain in domains}) == len(domains)
    return {name: scenario_title(name) if clear else " to ".join(name.split(":")) for name in names}
