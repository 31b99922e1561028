"""The docs say what is so: their commands and code run, and the names and tables in them are those of the code.

The README's commands run in `test_packaging`, from an installed wheel.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
import runpy
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from tests.report.grids import W, rows, write_grid

import qurate
import qurate.config
from qurate.benchmark.grid import Grid
from qurate.benchmark.options import GridOptions
from qurate.cli import run_verb
from qurate.data.suites import load_suite
from qurate.registry import row_title

REPOSITORY = Path(__file__).resolve().parents[1]
DOCS = REPOSITORY / "docs"
PAGES = [REPOSITORY / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]
FENCE = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
PAPER = (DOCS / "paper.md").read_text()


def blocks(language: str) -> list[tuple[str, str]]:
    return [
        (f"{page.relative_to(REPOSITORY)} {i}", code)
        for page in PAGES
        for i, (kind, code) in enumerate(FENCE.findall(page.read_text()))
        if kind == language
    ]


def shortened(words: list[str]) -> list[str]:
    """The command with options that make it take seconds."""
    if words[1] == "demo":
        return [*words, "--steps", "8"]
    if words[1] == "adapt":
        return [*words, "--steps", "8", "--rounds", "1"]
    if words[1] == "benchmark":
        few = [] if "--methods" in words else ["--methods", "tml", "--selectors", "none,random"]
        return [*words, *few, "--steps", "8", "--processes", "1", "--seeds", "0", "--shots", "3"]
    return words


def run_line(line: str, patch: pytest.MonkeyPatch) -> str:
    """Run one command of a page here, or see that the file or target it names is there; its verb."""
    words = shlex.split(line, comments=True)
    if words[:1] == ["make"]:
        assert re.search(rf"^{words[1]}:", (REPOSITORY / "Makefile").read_text(), re.MULTILINE), line
    elif words[:1] == ["python"]:
        assert (REPOSITORY / words[1]).is_file(), line
    elif words[:1] == ["qurate"]:
        if words[1] == "report" and not Path(words[2]).exists():
            write_grid(Path(words[2]), [*rows(W, "tml", "confidence", 0.7, 0.8), *rows(W, "tml", "dqn", 0.8, 0.8)])
        patch.setattr(sys, "argv", shortened(words))
        run_verb()
    else:
        assert not words, f"no test knows how to run: {line}"
    return words[1] if words[:1] == ["qurate"] else ""


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Iterator[set[str]]:
    """All commands of the pages, in their order, in a folder with the example images; the verbs that ran."""
    pytest.importorskip("onnxruntime", reason="the extra onnx is not installed")
    root = tmp_path_factory.mktemp("docs")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        patch.setenv("QURATE_CACHE", str(root / "cache"))
        patch.setattr(sys, "argv", ["", "digits", "--source", "4", "--shots", "3", "--unlabeled", "5"])
        runpy.run_path(str(REPOSITORY / "examples" / "digit_images.py"), run_name="__main__")
        for _, code in blocks("toml"):
            Path(code.split()[1]).write_text(code)  # "# NAME" is its first line
        lines = dict.fromkeys(line for _, code in blocks("sh") for line in code.splitlines())  # each once
        yield {run_line(line, patch) for line in lines}


def test_the_commands_of_the_docs_run(ran: set[str]) -> None:
    assert {"demo", "check", "adapt", "predict", "evaluate", "export", "benchmark", "report"} <= ran
    described = set(re.findall(r"^\| `([\w./]+)`", (DOCS / "own_images.md").read_text(), re.MULTILINE))
    written = {path.name for path in Path("run").iterdir() if path.is_file()}
    assert written <= described, "every file that a run leaves is described"
    assert {"report.html", "predictions.csv", "positives.csv", "metrics.csv", "model.onnx"} <= written


def test_every_column_that_a_run_leaves_is_described(ran: set[str]) -> None:
    page = (DOCS / "own_images.md").read_text()
    for name in ("predictions.csv", "positives.csv", "metrics.csv"):
        part = page.split(f"**{name}**")[1].split("\n**")[0]
        header = Path("run", name).read_text().splitlines()[0].split(",")
        assert not [column for column in header if f"`{column}`" not in part], name
    kinds = {line.partition(",")[0] for line in Path("run", "metrics.csv").read_text().splitlines()[1:]}
    assert not [kind for kind in kinds if f"`{kind}`" not in page]


@pytest.mark.parametrize(("where", "code"), blocks("python"), ids=[where for where, _ in blocks("python")])
def test_the_python_of_the_docs_runs(where: str, code: str, ran: set[str], capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(code, where, "exec"), {"__name__": "docs"})
    assert capsys.readouterr().out


def test_the_tables_of_the_registries_are_current() -> None:
    tables = runpy.run_path(str(DOCS / "scripts" / "registry_tables.py"))
    for page in tables["PAGES"]:
        text = page.read_text()
        assert len(tables["PLACE"].findall(text)) == (1 if page.name == "asking.md" else 2)
        assert tables["fill"](text) == text, f"{page.name}: run `make docs-tables`"


def test_the_api_page_has_every_public_name() -> None:
    listed = re.findall(r"^::: qurate\.(\w+)$", (DOCS / "api.md").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(name for name in qurate.__all__ if name != "__version__")


def find(name: str) -> Any:
    """What a dotted name of the paper's page means, which begins in qurate or in qurate.selection."""
    for start in ("qurate", "qurate.selection"):
        try:
            return pkgutil.resolve_name(f"{start}.{name}")
        except (ImportError, AttributeError):
            continue
    raise AssertionError(f"docs/paper.md names {name}, which is not there")


def test_the_names_on_the_papers_page_are_those_of_the_code() -> None:
    cells = [line.split("|")[3] for line in PAPER.split("## Methods")[0].splitlines() if line.startswith("| ")]
    named = [name for cell in cells for name in re.findall(r"`([a-z]\w*(?:\.\w+)+)`", cell)]
    assert len(named) > 20
    for name in named:
        find(name)


def test_the_tests_on_the_papers_page_are_there() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)(::(\w+))?`", PAPER)
    assert named
    for file, _, test in named:
        assert f"def {test}" in (REPOSITORY / file).read_text(), f"{file}::{test}"


def test_the_config_fields_on_the_pages_are_there() -> None:
    configs = {name: value for name, value in vars(qurate.config).items() if name.endswith("Config")}
    registry = importlib.import_module("qurate.registry")
    for entry in (*registry.METHODS.values(), *registry.SELECTORS.values()):
        own = entry.load().Config
        configs[own.__name__] = own
    for page in PAGES:
        for config, field in re.findall(r"`([A-Z]\w*Config)\.(\w+)", page.read_text()):
            assert hasattr(configs[config], field) or field in configs[config].__dataclass_fields__, (
                f"{page.name}: {config}.{field}"
            )


def decisions_named(text: str) -> set[str]:
    """The numbers behind "decision" or "decisions", those between two that are joined by "to" as well."""
    found: set[str] = set()
    for numbers in re.findall(r"\bdecisions?\s((?:B?\d+(?:, | and | to )?)+)", text):
        found |= set(re.findall(r"B?\d+", numbers))
        for low, high in re.findall(r"(\d+) to (\d+)", numbers):
            found |= {str(number) for number in range(int(low), int(high) + 1)}
    return found


def anchors(page: Path) -> set[str]:
    """Of the headings of a page, as GitHub and MkDocs make them."""
    headings = re.findall(r"^#+ (.*)", FENCE.sub("", page.read_text()), re.MULTILINE)
    plain = [re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading) for heading in headings]
    return {re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in plain}


def test_every_link_leads_to_a_heading_that_is_there() -> None:
    links = 0
    for page in (*PAGES, REPOSITORY / "README.md", REPOSITORY / "CHANGELOG.md"):
        for target, anchor in re.findall(r"\]\(([^)#\s:]*)#([^)\s]+)\)", page.read_text()):
            there = (page.parent / target).resolve() if target else page
            assert anchor in anchors(there), f"{page.name} links to {target}#{anchor}"
            links += 1
    assert links > 50


def test_every_decision_that_is_named_has_its_row() -> None:
    rows_of = re.findall(r"^\| (B?\d+) \|", PAPER.split("## Decisions")[1], re.MULTILINE)
    assert len(rows_of) == len(set(rows_of)) > 50
    code = sorted((REPOSITORY / "src").rglob("*.py"))
    named = {path: decisions_named(path.read_text()) for path in (*PAGES, *code)}
    assert len(set().union(*named.values())) > 35
    assert {path.name: numbers - set(rows_of) for path, numbers in named.items() if numbers - set(rows_of)} == {}


def test_the_published_office_31_results_are_those_of_make_office31() -> None:
    """Rows, controls and presets of the command, each as long as its config says, and every row in the table."""
    target = re.search(r"^office31:.*?(?=^#)", (REPOSITORY / "Makefile").read_text(), re.MULTILINE | re.DOTALL)
    assert target is not None
    words = {name: tuple(given.split(",")) for name, given in re.findall(r"--(\w+) ([\w+,]+)", target[0])}
    options = GridOptions(
        "office31", Path(), methods=words["methods"], selectors=words["selectors"], presets=words["presets"],
        seeds=(0, 1, 2, 3, 4),
    )  # fmt: skip
    grid = Grid(load_suite("office31"), options)
    columns = ["scenario", "method", "selector", "shots", "seed", "steps"]
    expected = {tuple(cell.key()[name] for name in columns[:5]): cell.config.total_steps for cell in grid.cells()}
    results = pd.read_csv(DOCS / "office31" / "results.csv")
    rows_there = [tuple(row) for row in results[columns].astype(object).to_numpy().tolist()]
    assert len(rows_there) == len(expected)
    assert {row[:5]: row[5] for row in rows_there} == expected
    assert {method for _, method, selector, _, _ in expected if selector == "long"} == {"source_target", "ent", "tml"}
    table = (DOCS / "office31" / "tables.md").read_text().replace("\\", "")
    titles = {row_title(method, selector, steps) for _, method, selector, _, _, steps in rows_there}
    assert not [title for title in titles if f"\n| {title} | " not in table]


def test_our_schedule_is_the_one_that_was_measured_to_be_better() -> None:
    measured = pd.read_csv(DOCS / "office31" / "schedule.csv").groupby(["pair", "schedule"])["accuracy"].mean()
    better = {pair: of_pair.droplevel("pair").idxmax() for pair, of_pair in measured.groupby("pair")}
    assert len(better) == 2
    assert set(better.values()) == {qurate.make_config().training.schedule}


def test_the_table_of_all_methods_is_made_of_its_cells() -> None:
    script = runpy.run_path(str(REPOSITORY / "benchmarks" / "methods.py"))
    cells = script["read"]([DOCS / "methods" / "results.csv"])
    table = script["table"](cells, pd.read_csv(DOCS / "methods" / "seconds.csv"))
    assert table in (DOCS / "methods.md").read_text()


def test_the_table_of_query_strategies_is_made_of_its_cells() -> None:
    cells = pd.read_csv(DOCS / "asking" / "development.csv")
    means = 100 * cells.groupby(["scenario", "query_strategy", "asked"])[["accuracy", "unasked"]].mean()
    page = (DOCS / "asking.md").read_text()
    for strategy in cells["query_strategy"].unique():
        w, c = (means.xs((scenario, strategy)) for scenario in ("webcam:amazon", "Clipart:Art"))
        numbers = [w["accuracy"][62], *w.loc[186], *c.loc[130]]
        assert f"| `{strategy}` | {' | '.join(f'{number:.1f}' for number in numbers)} |" in page, strategy
