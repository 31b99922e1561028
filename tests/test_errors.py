"""Every error of ours has one base, and stays the builtin error that it was."""

from __future__ import annotations

import importlib
import inspect
import pkgutil

import pytest

import qurate
from qurate.errors import QurateError


def exceptions_of_the_package() -> list[type[Exception]]:
    """The exception classes that a module of qurate defines; warnings are no errors."""
    found = []
    for module in pkgutil.walk_packages(qurate.__path__, "qurate."):
        if not module.name.endswith("__main__"):
            for _, member in inspect.getmembers(importlib.import_module(module.name), inspect.isclass):
                if issubclass(member, Exception) and not issubclass(member, Warning):
                    found.append(member)
    return sorted({one for one in found if one.__module__.startswith("qurate.")}, key=lambda one: one.__name__)


def test_the_list_is_not_empty() -> None:
    names = {error.__name__ for error in exceptions_of_the_package()}
    assert {"ConfigError", "DataError", "TrainingError", "RunError"} <= names


@pytest.mark.parametrize("error", exceptions_of_the_package(), ids=lambda error: error.__name__)
def test_an_error_is_a_qurate_error_and_a_builtin_one(error: type[Exception]) -> None:
    assert issubclass(error, QurateError)
    assert error is QurateError or issubclass(error, ValueError | RuntimeError | ArithmeticError)
