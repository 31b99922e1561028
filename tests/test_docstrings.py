"""Every example in a docstring runs and gives what it says."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import qurate

MODULES = [found.name for found in pkgutil.walk_packages(qurate.__path__, "qurate.") if "__main__" not in found.name]


def examples(module: str) -> list[doctest.DocTest]:
    found = doctest.DocTestFinder(exclude_empty=True).find(importlib.import_module(module))
    return [one for one in found if one.examples]


@pytest.mark.parametrize("module", MODULES)
def test_the_examples_of_a_module_run(module: str) -> None:
    for example in examples(module):
        words: list[str] = []
        runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS, verbose=False)
        assert runner.run(example, out=words.append).failed == 0, "".join(words)


def test_there_are_examples_and_those_that_are_skipped_say_why() -> None:
    found = [one for module in MODULES for test in examples(module) for one in test.examples]
    skipped = [one.source for one in found if one.options.get(doctest.SKIP)]
    assert len(found) - len(skipped) >= 30
    assert [source for source in skipped if "#" not in source.partition("# doctest")[0]] == []
