"""What the command line says before it loads anything heavy."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest
from tests.own_images import paint
from tests.report.grids import in_rounds, write_grid
from tests.report.grids import rows as rows_of
from tests.runs.written import write_run
from tests.test_public_surface import HEAVY

from qurate.cli import VERBS
from qurate.registry import SELECTORS, TRAINED
from qurate.runs.files import LabelFormat
from qurate.runs.result_tables import SUGGESTED
from qurate.runtime.tables import read_csv, to_csv

RUN = f"""
import sys
from qurate.cli import run_verb
try:
    run_verb()
finally:
    print("loaded:", *[name for name in {HEAVY} if name in sys.modules], file=sys.stderr)
"""


def run(*words: str) -> tuple[int, str, str, list[str]]:
    """Exit code, standard output, standard error, and the heavy packages that were loaded."""
    done = subprocess.run([sys.executable, "-c", RUN, *words], capture_output=True, text=True, timeout=120)
    said, _, loaded = done.stderr.rpartition("loaded:")
    return done.returncode, done.stdout, said, loaded.split()


@pytest.mark.parametrize("verb", VERBS)
def test_the_help_of_a_verb_loads_nothing_heavy(verb: str) -> None:
    code, out, _, loaded = run(verb, "--help")
    assert (code, loaded) == (0, [])
    assert f"usage: qurate {verb}" in out
    assert "(default: None)" not in " ".join(out.replace("│", " ").split())


def test_a_sentence_of_the_help_is_broken_only_where_the_line_ends() -> None:
    _, out, _, _ = run("suggest", "--help")
    assert "probability, runner_up, query_strategy, why. (required)" in out


@pytest.mark.parametrize("words", [(), ("--help",)])
def test_the_help_names_every_verb_and_loads_nothing_heavy(words: tuple[str, ...]) -> None:
    code, out, _, loaded = run(*words)
    assert (code, loaded) == (0, [])
    for verb in VERBS:
        assert f"• {verb} " in out


def test_the_version_loads_nothing_heavy() -> None:
    from qurate import __version__

    assert run("--version") == (0, f"qurate {__version__}\n", "", [])


ADAPT = ("adapt", "--source", "a", "--labeled", "b", "--unlabeled", "c", "--out", "d")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("adopt",), "adopt"),
        (("adapt", "--sorce", "a"), "--sorce"),
        ((*ADAPT, "--device", "tpu"), "invalid choice 'tpu'"),
        (("review", "run"), "there is no command 'review'. Did you mean 'qurate open'?"),
        (("adpat",), "Did you mean 'qurate adapt'?"),
        ((*ADAPT, "--method", "tlm"), "method must be one of source_target, "),
        ((*ADAPT, "--selector", "best"), "selector must be one of none, confidence"),
        (
            (*ADAPT, "--config", "e", "--method", "tml", "--preset", "paper"),
            "--method, --preset cannot be given",
        ),
        ((*ADAPT, "--config", "no-such.json"), "no-such.json: cannot be read as a JSON or TOML file"),
        (ADAPT, "--source must be a folder of class folders, a list file ('path class' per line)"),
        ((*ADAPT, "--seed", "-1"), "--seed must be between 0 and 4294967295, got -1"),
        (("predict", "no-such-run", "b", "--out", "c.csv"), "must be the folder of a finished run"),
        (("export", "no-such-run"), "must be the folder of a finished run"),
        (("suggest", "no-such-run", "--count", "3", "--out", "c.csv"), "must be the folder of a finished run"),
        (
            ("suggest", "r", "--count", "3", "--out", "c.csv", "--query-strategy", "dense"),
            "--query-strategy must be one of random",
        ),
        (("check", "--source", "a"), "check needs --source, --labeled and --unlabeled together"),
        (("benchmark", "--suite", "digits", "--out", "a", "--seeds", "one"), "--seeds must be integers"),
        (("benchmark", "--suite", "digits", "--out", "a", "--presets", "mine"), "preset must be one of"),
    ],
)
def test_a_wrong_word_is_found_before_anything_heavy_is_loaded(words: tuple[str, ...], said: str) -> None:
    code, out, err, loaded = run(*words)
    assert (code, loaded) == (2, [])
    assert said in out + err
    assert "loading" not in err


def test_what_is_about_to_be_done_is_said_before_pytorch_is_loaded(tmp_path: Path) -> None:
    code, _, err, loaded = run("embed", str(tmp_path))
    assert code == 2
    assert "torch" in loaded
    assert err.splitlines()[0] == f"qurate: embedding '{tmp_path}'; loading PyTorch ..."
    assert "images must be a folder" in err.splitlines()[1]


LIGHT = {
    "check": "check --source {place}/source --labeled {place}/labeled --unlabeled {place}/unlabeled",
    "check of lists": "check --source {place}/source.csv --labeled {place}/labeled.txt --unlabeled {place}/unlabeled",
    "suggest": "suggest {run} --count 2 --out {new}",
    "report": "report {grid}",
    **{f"export as {name}": f"export {{run}} --format {name} --out {{new}}" for name in get_args(LabelFormat)},
}
"""Commands that work on files and tables alone, so that they need no PyTorch; every `--help` is tested above."""
FIRST = {
    "check": "checking {place}/source",
    "suggest": "choosing 2 images of {run} to label; loading pandas ...",
    "report": "making tables and figures of {grid}; loading pandas and Matplotlib ...",
    "export": "writing the labels of {run} to {new}; loading pandas ...",
}
LAST = {
    "check": "Next, to adapt to these images: qurate adapt --source {place}/source",
    "suggest": "Next, to learn from the answers: qurate adapt --from {run} --labels {new} --out {run}-2",
    "report": "Open {grid}/report/tables.html in a browser to see tables and figures together.",
    "label-studio": "Next, to learn from the answers: qurate adapt --from {run} --labels EXPORT.json",
    "fiftyone": "In Python: fiftyone.Dataset.from_dir('{new}', fiftyone.types.FiftyOneImageClassification",
    "imagefolder": "In Python: datasets.load_dataset(\"imagefolder\", data_dir='{new}')",
    "folders": "Next, to measure the model, when images in the wrong folder have been moved: qurate evaluate {run}",
}


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Images, a finished run with its list of suggestions, and a finished benchmark."""
    place = tmp_path_factory.mktemp("place")
    finished = write_run(place)
    predictions = read_csv(finished / "predictions.csv").head(3)
    suggested = predictions.assign(label="", predicted="blue", runner_up="été", query_strategy="density", why="why")
    (finished / "suggestions.csv").write_bytes(to_csv(suggested[SUGGESTED]))
    for part, separator, header in (("source.csv", ",", "path,label\n"), ("labeled.txt", " ", "")):
        files = sorted((place / Path(part).stem).rglob("*.*"))
        rows = [f"{file}{separator}{file.parent.name.replace(' ', '_')}\n" for file in files if file.is_file()]
        (place / part).write_text(header + "".join(rows), encoding="utf-8")
    results = rows_of("A to B", "tml", "none", 0.5, 0.6) + rows_of("A to B", "tml", "adaptive", 0.6, 0.7)
    grid = write_grid(place / "grid", results, in_rounds("A to B", "adaptive", 0, 0.5, 0.6))
    return {"place": str(place), "run": str(finished), "grid": str(grid)}


@pytest.mark.parametrize("what", LIGHT)
def test_a_command_on_files_and_tables_needs_no_pytorch(what: str, places: dict[str, str], tmp_path: Path) -> None:
    named = {**places, "new": str(tmp_path / "new")}
    code, out, err, loaded = run(*LIGHT[what].format(**named).split())
    assert (code, {"torch", "timm", "torchvision"} & set(loaded)) == (0, set()), err
    assert err.startswith(f"qurate: {FIRST[what.split()[0]].format(**named)}")
    (last,) = (line for word, line in LAST.items() if word in what.split())
    assert out.splitlines()[-1].startswith(last.format(**named))


def test_an_export_is_replaced_only_by_force(places: dict[str, str], tmp_path: Path) -> None:
    words = ("export", places["run"], "--format", "folders", "--out", str(tmp_path / "new"))
    assert [run(*words)[0], run(*words, "--force")[0]] == [0, 0]
    code, _, err, _ = run(*words)
    assert code == 2
    assert "pass --force to replace it" in " ".join(err.split())


def test_the_help_lists_the_registries() -> None:
    out = " ".join(run("adapt", "--help")[1].replace("│", " ").split())
    assert f"How the network learns: {', '.join(TRAINED)};" in out
    assert f"Which pseudo-labels to trust: {', '.join(SELECTORS)}." in out


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no full device here")
@pytest.mark.parametrize("word", ["--version", "--help"])
def test_a_standard_output_that_is_full_is_named(word: str) -> None:
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "qurate", word]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=120)
    assert done.returncode == 2
    said = "qurate: standard output: cannot be written (No space left on device), so lines are missing there.\n"
    assert done.stderr.replace("\n", " ").split() == said.split()


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_outputs_are_no_error(closed: str, tmp_path: Path) -> None:
    for part in ("source/a", "source/b", "labeled/a", "labeled/b", "unlabeled/a", "unlabeled/b"):
        paint(tmp_path / part / "0.png", (60, 60, 200), seed=len(part))
    line = f"{sys.executable} -m qurate check --source source --labeled labeled --unlabeled unlabeled {closed}"
    done = subprocess.run(line, shell=True, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0
    assert "Traceback" not in done.stderr
    assert ("0 problems" in done.stdout) == (closed == "2>&-")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("file,label\na.png,cat\n".encode("utf-16"), "l.csv: must be a UTF-8 text file, got UTF-16. Save it as UTF-8."),
        (b"file;label\na.png;cat\n", "l.csv: columns must be separated by commas, got semicolons in 'file;label'."),
    ],
)
def test_labels_of_another_kind_are_named_before_anything_heavy_is_loaded(
    tmp_path: Path, content: bytes, says: str
) -> None:
    (tmp_path / "l.csv").write_bytes(content)
    for part in ("source", "labeled", "unlabeled"):
        (tmp_path / part).mkdir()
    places = [word for part in ("source", "labeled", "unlabeled") for word in (f"--{part}", str(tmp_path / part))]
    code, _, said, loaded = run("adapt", *places, "--labels", str(tmp_path / "l.csv"), "--out", str(tmp_path / "run"))
    assert (code, loaded) == (2, [])
    assert says in " ".join(said.split())
