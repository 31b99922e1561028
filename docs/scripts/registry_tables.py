"""Write the tables of methods, selectors and query strategies into their pages: `make docs-tables`.

A table stands after `<!-- methods -->`, `<!-- selectors -->` or `<!-- query_strategies -->`, and before
`<!-- end -->`. Rows come from `qurate.registry`.
"""

from __future__ import annotations

import re
from pathlib import Path

from qurate.registry import METHODS, QUERY_STRATEGIES, SELECTORS

REPOSITORY = Path(__file__).resolve().parents[2]
PAGES = (REPOSITORY / "docs" / "methods.md", REPOSITORY / "docs" / "asking.md")
PLACE = re.compile(r"<!-- (methods|selectors|query_strategies) -->\n.*?<!-- end -->", re.DOTALL)


def make_tables() -> dict[str, str]:
    """Markdown by the name of its place."""
    methods = [f"| `{entry.name}` | {entry.title} | {entry.summary} |" for entry in METHODS.values()]
    selectors = [f"| `{entry.name}` | {entry.summary} |" for entry in SELECTORS.values()]
    strategies = [f"| `{entry.name}` | {entry.summary} |" for entry in QUERY_STRATEGIES.values()]
    return {
        "methods": "\n".join(
            ["| method | in tables | what it does with the unlabelled target |", "|---|---|---|", *methods]
        ),
        "query_strategies": "\n".join(["| query strategy | which images it chooses |", "|---|---|", *strategies]),
        "selectors": "\n".join(["| selector | which pseudo-labels it trusts |", "|---|---|", *selectors]),
    }


def fill(page: str) -> str:
    """The page with its tables as the registry has them."""
    tables = make_tables()
    return PLACE.sub(lambda found: f"<!-- {found[1]} -->\n{tables[found[1]]}\n<!-- end -->", page)


if __name__ == "__main__":
    for path in PAGES:
        path.write_text(fill(path.read_text()))
