"""Every command and code block of the README and the docs runs."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.report.benchmark.grids import W, rows, write_grid

from qurate.cli import main

REPOSITORY = Path(__file__).resolve().parents[1]
PAGES = [REPOSITORY / "README.md", REPOSITORY / "CONTRIBUTING.md", *sorted((REPOSITORY / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
FEWER = {
    "adapt": ["--steps", "8", "--rounds", "2"],
    "benchmark": ["--steps", "8", "--processes", "1", "--methods", "tml", "--selectors", "none,random", "--seeds", "0"],
}
"""Added to a verb, so that a test takes seconds."""


def blocks(language: str) -> list[tuple[str, str]]:
    return [
        (f"{page.name} {i}", code)
        for page in PAGES
        for i, (kind, code) in enumerate(FENCE.findall(page.read_text()))
        if kind == language
    ]


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two domains of three classes: coloured noise, brighter in the target."""
    root, rng = tmp_path_factory.mktemp("docs"), np.random.default_rng(0)

    def save(folder: str, label: int, count: int, light: int) -> None:
        for i in range(count):
            pixels = rng.integers(0, 60, (40, 40, 3)) + light
            pixels[..., label] += 120
            path = root / "photos" / folder / f"{label}-{i}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(path)

    for label, name in enumerate(("cup", "lamp", "phone")):
        save(f"studio/{name}", label, 5, 0)
        save(f"phone-labelled/{name}", label, 3, 50)
        save("phone", label, 5, 50)
    return root


def test_the_commands_of_the_readme_run_in_their_order(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime", reason="the extra onnx is not installed")
    monkeypatch.chdir(photos)
    monkeypatch.setenv("QURATE_CACHE", str(photos / "cache"))
    verbs = []
    for _, code in blocks("toml"):
        Path(code.split()[1]).write_text(code)  # "# NAME" is its first line
    for _, code in blocks("sh"):
        for line in code.splitlines():
            words = shlex.split(line, comments=True)
            if words[:1] == ["make"]:
                assert re.search(rf"^{words[1]}:", (REPOSITORY / "Makefile").read_text(), re.MULTILINE), line
            elif words[:1] == ["python"]:
                assert (REPOSITORY / words[1]).is_file(), line
            elif words[:1] == ["qurate"]:
                verbs.append(words[1])
                if words[1] == "report" and not Path(words[2]).exists():
                    write_grid(
                        Path(words[2]), [*rows(W, "tml", "confidence", 0.7, 0.8), *rows(W, "tml", "dqn", 0.8, 0.8)]
                    )
                monkeypatch.setattr(sys, "argv", words + FEWER.get(words[1], []))
                main()
            else:
                assert not words, f"no test knows how to run: {line}"
    assert {"check", "adapt", "predict", "evaluate", "export", "benchmark", "report"} <= set(verbs)
    assert {"report.html", "predictions.csv", "positives.csv", "model.safetensors"} <= {
        path.name for path in (photos / "run").iterdir()
    }


@pytest.mark.parametrize(("where", "code"), blocks("python"), ids=[where for where, _ in blocks("python")])
def test_the_python_of_the_docs_runs(
    where: str, code: str, photos: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(photos)
    monkeypatch.setenv("QURATE_CACHE", str(photos / "cache"))
    if "qurate.adapt(" in code:  # the whole job, with fewer steps
        import qurate
        from qurate.runs.settings import make_config

        config = make_config(steps=8, rounds=2)
        whole = qurate.adapt
        monkeypatch.setattr("qurate.adapt", lambda **parts: whole(**parts, config=config))
    exec(compile(code, where, "exec"), {"__name__": "docs"})
    assert capsys.readouterr().out
