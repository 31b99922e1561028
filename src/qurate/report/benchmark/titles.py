"""What the columns of the tables are called; rows are named by `qurate.registry`."""

from __future__ import annotations

from collections.abc import Iterable


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
