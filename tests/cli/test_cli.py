"""What the command line says before it loads anything heavy."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest
from tests.own_images import paint
from tests.report.grids import in_rounds, rows, write_grid
from tests.runs.written import write_run
from tests.test_public_surface import HEAVY

from qurate.cli import VERBS
from qurate.registry import METHODS, SELECTORS
from qurate.runs.files import LabelFormat

RUN = f"""
import sys
from qurate.cli import run_verb
try:
    run_verb()
finally:
    print("loaded:", *[name for name in {HEAVY} if name in sys.modules], file=sys.stderr)
"""


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run."""
    return write_run(tmp_path_factory.mktemp("place"))


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
    assert "(default: None)" not in out


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
        (("suggest", "r", "--count", "3", "--out", "c.csv", "--asker", "dense"), "--asker must be one of random"),
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


def test_a_report_needs_no_pytorch(tmp_path: Path) -> None:
    results = rows("A to B", "tml", "none", 0.5, 0.6) + rows("A to B", "tml", "adaptive", 0.6, 0.7)
    folder = write_grid(tmp_path / "grid", results, in_rounds("A to B", "adaptive", 0, 0.5, 0.6))
    code, out, err, loaded = run("report", str(folder))
    assert (code, "torch" in loaded) == (0, False), err
    assert err.startswith(f"qurate: making tables and figures of {folder}; loading pandas and Matplotlib ...")
    assert (
        out.splitlines()[-1]
        == f"Open {folder / 'report' / 'tables.html'} in a browser to see tables and figures together."
    )


@pytest.mark.parametrize("format", get_args(LabelFormat))
def test_labels_are_exported_without_pytorch(format: str, finished: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    code, said, err, loaded = run("export", str(finished), "--format", format, "--out", str(out))
    assert (code, "torch" in loaded) == (0, False), err
    assert err.startswith(f"qurate: writing the labels of {finished} to {out}; loading pandas ...")
    assert said.startswith(f"18 images. Folder: {out}")
    last = {
        "label-studio": f"qurate adapt --from {finished} --labels EXPORT.json --out {finished}-2",
        "fiftyone": f"from_dir('{out}', fiftyone.types.FiftyOneImageClassificationDataset)",
        "imagefolder": f"load_dataset(\"imagefolder\", data_dir='{out}')",
        "folders": f"qurate evaluate {finished} --labeled {out}",
    }
    assert said.splitlines()[-1].endswith(last[format])
    code, _, err, _ = run("export", str(finished), "--format", format, "--out", str(out))
    assert code == 2
    assert "pass --force to replace it" in " ".join(err.split())


def test_the_help_lists_the_registries() -> None:
    out = " ".join(run("adapt", "--help")[1].replace("│", " ").split())
    assert f"How the network learns: {', '.join(METHODS)};" in out
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
