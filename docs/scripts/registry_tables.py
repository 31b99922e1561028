"""Write the tables of methods, selectors and askers into the pages that have a place for them: `make docs-tables`.

A place is `<!-- methods -->`, `<!-- selectors -->` or `<!-- askers -->`, and ends with
`<!-- end -->`. Rows come from `qurate.registry`.
"""

from __future__ import annotations

import re
from pathlib import Path

from qurate.registry import ASKERS, METHODS, SELECTORS

REPOSITORY = Path(__file__).resolve().parents[2]
PAGES = (REPOSITORY / "README.md", REPOSITORY / "docs" / "methods.md", REPOSITORY / "docs" / "asking.md")
PLACE = re.compile(r"<!-- (methods|selectors|askers) -->\n.*?<!-- end -->", re.DOTALL)


def make_tables() -> dict[str, str]:
    """Markdown by the name of its place."""
    methods = [f"| `{entry.name}` | {entry.title} | {entry.summary} |" for entry in METHODS.values()]
    selectors = [f"| `{entry.name}` | {entry.summary} |" for entry in SELECTORS.values()]
    askers = [f"| `{entry.name}` | {entry.summary} |" for entry in ASKERS.values()]
    return {
        "methods": "\n".join(
            ["| method | in tables | what it does with the unlabelled target |", "|---|---|---|", *methods]
        ),
        "askers": "\n".join(["| asker | which images it would have you label |", "|---|---|", *askers]),
        "selectors": "\n".join(["| selector | which pseudo-labels it trusts |", "|---|---|", *selectors]),
    }


def fill(page: str) -> str:
    """The page with its tables as the registry has them."""
    tables = make_tables()
    return PLACE.sub(lambda found: f"<!-- {found[1]} -->\n{tables[found[1]]}\n<!-- end -->", page)


if __name__ == "__main__":
    for path in PAGES:
        path.write_text(fill(path.read_text()))
