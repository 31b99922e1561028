"""`import qurate`: what it offers, and what it does not load."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import qurate

HEAVY = ("torch", "timm", "torchvision", "sklearn", "pandas", "matplotlib", "lightning_fabric", "gymnasium")


def loaded_by(code: str) -> list[str]:
    """The heavy packages that a new interpreter has after running the code."""
    show = f"import sys; print(*[name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", f"{code}\n{show}"], capture_output=True, text=True, check=True)
    return done.stdout.split()


@pytest.mark.parametrize(
    "code", ["import qurate", "import qurate.cli", "import qurate; qurate.METHODS; qurate.SELECTORS; dir(qurate)"]
)
def test_importing_loads_nothing_heavy(code: str) -> None:
    assert loaded_by(code) == []


def test_a_heavy_name_loads_its_module_when_it_is_used() -> None:
    assert "torch" in loaded_by("import qurate; qurate.Split")


@pytest.mark.parametrize("name", qurate.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(qurate, name) is not None
    assert name in dir(qurate)


def test_the_names_that_people_need_are_public() -> None:
    assert {"adapt", "fit", "load", "make_config", "RunConfig", "Callback", "QurateError"} <= set(qurate.__all__)
    assert len(qurate.__all__) == len(set(qurate.__all__))


def test_type_checkers_see_the_names_that_are_there() -> None:
    tree = ast.parse(Path(inspect.getfile(qurate)).read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    seen = {
        (alias.asname or alias.name): (node.module, alias.name)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert {*seen, "__version__"} == set(qurate.__all__)
    for name, (module, at_home) in seen.items():
        assert getattr(qurate, name) is getattr(importlib.import_module(str(module)), at_home), name


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    assert not hasattr(qurate, "adopt")


def test_no_two_things_share_a_public_name() -> None:
    """But for the verbs of the command line, which are named after what they call."""
    twins = []
    for module in pkgutil.walk_packages(qurate.__path__, "qurate."):
        if module.name.endswith("__main__") or module.name.startswith("qurate.cli"):
            continue
        for name, member in vars(importlib.import_module(module.name)).items():
            is_own = getattr(member, "__module__", None) == module.name
            if is_own and name in qurate.__all__ and member is not getattr(qurate, name):
                twins.append(f"{module.name}.{name}")
    assert twins == []
