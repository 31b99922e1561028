"""The whole report, from the files of a benchmark to its own."""

from __future__ import annotations

import re
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from tests.report.grids import D, W, in_rounds, row, rows, write_grid

from qurate.benchmark.outcome import ReportError
from qurate.benchmark.results import BenchmarkError
from qurate.cli import run_verb
from qurate.report.benchmark_report import write_report

RESULTS = [
    *rows(W, "source_target", "none", 0.60, 0.62), *rows(D, "source_target", "none", 0.71, 0.70),
    *rows(W, "tml", "confidence", 0.70, 0.72), *rows(D, "tml", "confidence", 0.80, None),
    *rows(W, "tml", "dqn", 0.80, 0.82), *rows(D, "tml", "dqn", 0.80, 0.82),
    *rows(W, "tml", "oracle", 0.90, 0.90),
    *rows(W, "tml", "dqn", 0.70, 0.70, shots=1), *rows(D, "tml", "dqn", 0.70, 0.70, shots=1),
]  # fmt: skip
ROUNDS = [*in_rounds(W, "dqn", 0, 0.6, 0.7), *in_rounds(D, "dqn", 0, 0.6, 0.7)]
HOSTILE = "<script>alert(1)</script> & | $x_1$ %\\"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_grid(tmp_path / "bench", RESULTS, ROUNDS)


def test_all_files_are_written_and_written_again_the_same(folder: Path) -> None:
    _, files = write_report(folder)
    names = ["tables.md", "tables.tex", "tables.html", "shots.png", "rounds.png"]
    assert [file.name for file in files] == names
    first = [file.read_bytes() for file in files]
    write_report(folder)
    assert [file.read_bytes() for file in files] == first
    assert sorted(path.name for path in (folder / "report").iterdir()) == sorted(names)


def test_a_figure_that_is_no_longer_true_goes_away_and_other_files_stay(folder: Path) -> None:
    write_report(folder)
    (folder / "report" / "own.txt").touch()
    write_grid(folder, rows(W, "tml", "none", 0.5))
    (folder / "rounds.csv").unlink()
    write_report(folder)
    assert sorted(path.name for path in (folder / "report").glob("*")) == [
        "own.txt", "tables.html", "tables.md", "tables.tex",
    ]  # fmt: skip


def test_markdown_marks_best_published_failed_and_missing(folder: Path) -> None:
    write_report(folder)
    page = (folder / "report" / "tables.md").read_text()
    lines = {line.split(" | ")[0].strip("| "): line for line in page.split("## Larger")[0].splitlines()}
    assert "| **81.0 ± 1.4** |" in page
    assert "<ins>61.0 ± 1.4</ins><br><sub>paper 73.2 (\u221212.2)</sub>" in lines["S+T"]
    assert "80.0<br><sub>1 of 2 seeds, 1 failed</sub><br><sub>paper 77.2 (+2.8)</sub>" in lines["TML_SPL"]
    assert lines["TML + oracle"] == "| TML + oracle | 90.0 ± 0.0 | \u2013 | \u2013 |"
    assert "![Accuracy against labels per class" in page
    assert "](shots.png)" in page


def test_latex_balances_and_has_a_cell_for_every_column(folder: Path) -> None:
    write_report(folder)
    source = (folder / "report" / "tables.tex").read_text()
    body = re.sub(r"\\[{}]", "", source)
    assert body.count("{") == body.count("}")
    assert len(re.findall(r"\\begin\{tabular\}", source)) == 2
    lines = [line for line in source.splitlines() if line.endswith(r"\\")]
    assert {len(re.findall(r"(?<!\\)&", line)) for line in lines} == {3}
    assert r"TML\_DQNPL* & \textbf{81.0 $\pm$ 1.4} & \textbf{81.0 $\pm$ 1.4} & \textbf{81.0 $\pm$ 1.4} \\" in source
    assert r"\scriptsize paper 73.2 ($-$12.2)" in source


class Words(HTMLParser):
    """Tags, attributes and text of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href")]


def test_the_page_needs_nothing_else(folder: Path) -> None:
    write_report(folder)
    words = Words()
    words.feed((folder / "report" / "tables.html").read_text())
    assert words.tags.count("img") == 2
    assert words.tags.count("u") == 3
    assert len(words.addresses) >= 2
    assert all(address.startswith(("data:", "#")) for address in words.addresses)


def test_names_of_others_are_escaped_everywhere(tmp_path: Path) -> None:
    results = [
        row(f"{HOSTILE}:b", HOSTILE, HOSTILE, 0, 0.5, 3, HOSTILE),
        row(f"{HOSTILE}:b", "x", "y", 0, 0.5, 3, HOSTILE),
    ]
    folder = write_grid(
        tmp_path, results, None, suite_title=HOSTILE, backbone=HOSTILE, protocol=HOSTILE, commit=HOSTILE
    )
    write_report(folder)
    words = Words()
    words.feed((folder / "report" / "tables.html").read_text())
    assert "script" not in words.tags
    markdown = (folder / "report" / "tables.md").read_text()
    assert "<script" not in markdown
    assert not re.search(r"(?<!\\)\|(?![ -]|$)", markdown, re.MULTILINE)
    latex = (folder / "report" / "tables.tex").read_text()
    assert not re.search(r"(?<!\\)[_%#](?!.*`qurate report`| Needs)", latex.split("\n", 1)[1].replace("{%\n", ""))


def test_no_machine_path_is_in_any_file(folder: Path, tmp_path: Path) -> None:
    _, files = write_report(folder, tmp_path / "docs" / "digits")
    assert files[0] == tmp_path / "docs" / "digits" / "tables.md"
    for file in files:
        assert str(tmp_path).encode() not in file.read_bytes()
        assert b"/home" not in file.read_bytes()
    assert not (folder / "report").exists()


def run(monkeypatch: pytest.MonkeyPatch, *words: str) -> None:
    monkeypatch.setattr(sys, "argv", ["qurate", "report", *words])
    run_verb()


def test_the_verb_prints_tables_and_comparison_within_100_columns_and_says_where_the_files_are(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    run(monkeypatch, str(folder), "--reference", "TML_SPL")
    printed = capsys.readouterr().out
    *lines, where, page = printed.rstrip("\n").split("\n")
    assert max(map(len, lines)) <= 100
    assert page == f"Open {folder / 'report' / 'tables.html'} in a browser to see tables and figures together."
    assert where == f"Written to {folder / 'report'}: tables.md, tables.tex, tables.html, shots.png, rounds.png"
    assert "81.0 ± 1.4" in printed
    assert "73.2 \u221212.2" in printed
    assert "TML_SPL against" in printed
    assert "It takes 7 pairs or more." in " ".join(printed.split())
    assert printed.count("A is amazon") == 1  # said once, though there are two tables


def test_brackets_in_names_are_printed_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "[red]a"
    write_grid(tmp_path, [*rows(name, name, "none", 0.5, rule=name), *rows(name, "tml", "none", 0.4, rule=name)])
    run(monkeypatch, str(tmp_path))
    printed = capsys.readouterr().out
    assert printed.count(name) >= 5  # title, column, row, and reference and rule of the comparison


def test_a_table_of_twelve_scenarios_comes_in_parts_that_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    domains = ["Art", "Clipart", "Product", "Real"]
    scenarios = [f"{a}:{b}" for a in domains for b in domains if a != b]
    results = [r for name in scenarios for m in ("mme", "tml") for r in rows(name, m, "none", 0.611, 0.622)]
    write_grid(tmp_path, results, suite="office-home", suite_title="Office-Home")
    monkeypatch.setenv("COLUMNS", "100")
    run(monkeypatch, str(tmp_path))
    printed = capsys.readouterr().out
    tables = printed.split("Larger than chance")[0]
    heads = [word for line in tables.splitlines() if " to " in line and "┃" in line for word in line.split("┃")]
    shown = [head.strip() for head in heads if " to " in head]
    assert len(shown) == 12
    assert shown[:3] == ["R to C", "R to P", "R to A"]  # as the paper has them
    assert max(map(len, tables.splitlines())) <= 100
    assert "…" not in tables


def test_files_that_no_report_left_are_not_overwritten_and_an_interrupted_report_is(folder: Path) -> None:
    own = folder / "own"
    own.mkdir()
    (own / "tables.md").write_text("mine")
    with pytest.raises(ReportError, match=r"tables\.md was not written by `qurate report`\. Choose another `out`"):
        write_report(folder, own)
    assert (own / "tables.md").read_text() == "mine"
    assert len(list(own.iterdir())) == 1
    write_report(folder)
    whole = {file.name: file.read_bytes() for file in (folder / "report").iterdir()}
    for name in set(whole) - {"tables.html"}:  # which is written first
        (folder / "report" / name).unlink()
    write_report(folder)
    assert {file.name: file.read_bytes() for file in (folder / "report").iterdir()} == whole


def test_a_place_that_cannot_be_written_is_refused_before_anything_is_drawn(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qurate.report.benchmark_report.make_report", lambda *_, **__: pytest.fail("drawn"))
    (folder / "file").touch()
    with pytest.raises(BenchmarkError, match="`out` must be a folder that can be written"):
        write_report(folder, folder / "file")


@pytest.mark.parametrize(
    ("break_it", "message"),
    [
        (lambda folder: (folder / "results.csv").unlink(), "needs the --out folder of `qurate benchmark`"),
        (lambda folder: (folder / "benchmark.json").unlink(), "needs the --out folder of `qurate benchmark`"),
        (lambda folder: (folder / "benchmark.json").write_text("{"), "cannot be read"),
        (lambda folder: (folder / "results.csv").write_text("a,b\n1,2\n"), "lacks the columns"),
        (lambda folder: write_grid(folder, []), "no results yet"),
        (lambda folder: write_grid(folder, [*RESULTS, RESULTS[0]]), "two results for scenario webcam:amazon"),
    ],
)
def test_a_folder_that_cannot_be_reported_on_is_refused_in_one_line(
    folder: Path, break_it: object, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert callable(break_it)
    break_it(folder)
    with pytest.raises(ReportError, match=re.escape(message)):
        write_report(folder)
    with pytest.raises(SystemExit) as stop:
        run(monkeypatch, str(folder))
    assert stop.value.code == 2
    assert message in capsys.readouterr().err
