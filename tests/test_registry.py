"""What there is to choose from: every line of the registries leads to a class of that name."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

import pytest

from qurate.config import MethodConfig, SelectorConfig
from qurate.errors import ConfigError
from qurate.methods import Method
from qurate.registry import (
    LONG,
    METHODS,
    ORACLE,
    SELECTOR_ORDER,
    SELECTORS,
    Entry,
    Registry,
    nearest,
    resolve_pair,
    row_rank,
    row_title,
)
from qurate.selection.selectors import NamedSelector

TWO = Registry("fruit", Entry("apple", "A+E", "", "math:sin"), Entry("pear", "PEAR", "", "math:cos"))


def test_the_rows_of_the_papers_tables_are_there_in_its_order() -> None:
    printed = ["S+T", "DANN", "ADR", "CDAN", "ENT", "MME", "TML", "CML"]
    assert [entry.title for entry in METHODS.values() if entry.title in printed] == printed
    assert [name for name in SELECTORS if name in ("none", "confidence", "dqn")] == ["none", "confidence", "dqn"]
    rows = ["none", "long", "confidence", "confidence_paper", "dqn_paper", "dqn", "oracle"]
    assert [row for row in SELECTOR_ORDER if row in rows] == rows


@pytest.mark.parametrize("name", METHODS)
def test_every_method_loads_and_has_a_config_of_its_name(name: str) -> None:
    entry = METHODS[name]
    kind = entry.load()
    assert issubclass(kind, Method)
    assert issubclass(kind.Config, MethodConfig)
    assert (entry.name, kind.Config().name) == (name, name)
    assert MethodConfig.of(name) == kind.Config()
    assert entry.summary


@pytest.mark.parametrize("name", SELECTORS)
def test_every_selector_loads_and_has_a_config_of_its_name(name: str) -> None:
    entry = SELECTORS[name]
    kind = entry.load()
    assert issubclass(kind, NamedSelector)
    assert issubclass(kind.Config, SelectorConfig)
    assert (entry.name, kind.Config().name) == (name, name)
    assert SelectorConfig.of(name) == kind.Config()
    assert entry.summary


def test_every_number_of_a_method_or_selector_says_where_it_comes_from() -> None:
    kinds = [entry.load().Config for registry in (METHODS, SELECTORS) for entry in registry.values()]
    own: set[Any] = {base for kind in kinds for base in kind.__mro__ if dataclasses.is_dataclass(base)}
    for kind in own:
        source = inspect.getsource(kind)
        for field in dataclasses.fields(kind):
            if isinstance(field.default, float | int) and f"\n    {field.name}: " in source:
                words = source.split(f"\n    {field.name}: ")[1].split('"""')[1]
                assert any(word in words for word in ("Paper", "ur choice", "authors")), f"{kind.__name__}.{field.name}"


@pytest.mark.parametrize("word", ["apple", "Apple", "a+e", "A+E"])
def test_an_entry_is_found_by_name_or_title_in_any_case(word: str) -> None:
    assert TWO.find(word) is TWO["apple"]


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("aple", "fruit must be one of apple, pear, got 'aple'. Did you mean 'apple'?"),
        ("PAER", "fruit must be one of apple, pear, got 'PAER'. Did you mean 'pear'?"),
        ("zzz", "fruit must be one of apple, pear, got 'zzz'."),
        ("", "fruit must be one of apple, pear, got ''."),
        (3, "fruit must be one of apple, pear, got 3."),
    ],
)
def test_a_wrong_word_is_answered_with_all_and_with_the_nearest(word: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        TWO.find(word)
    assert str(caught.value) == message


def test_nearest_is_silent_where_nothing_is_near() -> None:
    assert nearest("margn", ["margin", "name"]) == " Did you mean 'margin'?"
    assert nearest("colour", ["margin", "name"]) == ""


@pytest.mark.parametrize(
    ("word", "pair"),
    [
        ("tml", ("tml", None)),
        ("TML", ("tml", None)),
        ("s+t", ("source_target", None)),
        ("source_target", ("source_target", None)),
        ("TML_SPL", ("tml", "confidence")),
        ("tml_dqnpl", ("tml", "dqn")),
        ("TML_DQNPL*", ("tml", "dqn")),
        ("MME+dqn", ("mme", "dqn")),
        ("mme+DQN", ("mme", "dqn")),
        ("tml+Oracle", ("tml", "oracle")),
        ("S+T+quality", ("source_target", "quality")),
        ("S+T+SLA", ("source_target+sla", None)),
        ("mme + sla + Quality", ("mme+sla", "quality")),
    ],
)
def test_a_word_names_a_method_a_row_of_the_paper_or_a_pair(word: str, pair: tuple[str, str | None]) -> None:
    assert resolve_pair(word) == pair


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("selector", [*SELECTORS, ORACLE, LONG])
def test_what_a_table_prints_is_understood(method: str, selector: str) -> None:
    chosen = None if selector == "none" else selector
    for name in (method, f"{method}+sla"):
        assert resolve_pair(row_title(name, selector)) == (name, chosen)


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("tmle", "method must be one of source_target, .*, got 'tmle'. Did you mean 'tml'?"),
        ("tml+dqnn", "selector must be one of none, .*, got 'dqnn'. Did you mean 'dqn'?"),
        ("tml+", "selector must be one of none, .*, got ''"),
        ("+dqn", "method must be one of .*, got ''"),
        ("tmle+sla", "method must be one of .*, got 'tmle'. Did you mean 'tml'?"),
        (7, "method must be one of .*, got 7"),
    ],
)
def test_a_word_that_names_nothing_says_what_is_allowed(word: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        resolve_pair(word)


def test_no_two_rows_share_a_title() -> None:
    methods = [name for method in METHODS for name in (method, f"{method}+sla")]
    titles = [row_title(method, selector) for method in methods for selector in SELECTOR_ORDER]
    assert len(set(titles)) == len(titles)


def test_rows_have_the_papers_names_and_order() -> None:
    rows = [("mme", "dqn"), ("tml", "oracle"), ("tml", "dqn"), ("tml", "none"), ("tml", "confidence"), ("ent", "none")]
    rows += [("tml", "dqn_paper"), ("somebody's", "none"), ("source_target", "none"), ("tml", "own")]
    rows += [("tml", "confidence_paper"), ("mme", "dqn_paper"), ("ent+sla", "none")]
    assert [row_title(*row) for row in sorted(rows, key=lambda row: row_rank(*row))] == [
        *("S+T", "ENT", "ENT + SLA", "TML", "somebody's", "TML_SPL", "TML_SPL (one set)", "MME + dqn_paper"),
        *("TML_DQNPL", "MME + dqn", "TML_DQNPL*", "TML + oracle", "TML + own"),
    ]
