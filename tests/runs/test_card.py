"""The model card."""

from __future__ import annotations

import ast
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from tests.report.run_runs import HARMS, HELPS, finished_run

from qurate.run_results import BaselineComparison
from qurate.runs.card import make_card
from qurate.runs.files import CARD_FILE, CARD_MARK, CONFIG_FILE, Replacement, is_our_card

ABOUT: dict[str, Any] = {
    "network": {"backbone": "timm/a.b"},
    "qurate": "0.3",
    "trained": "head",
    "how to use": ["Resize to 9 x 9 pixels."],
}


@pytest.mark.parametrize(
    ("comparison", "said"), [(HELPS, "Adaptation helped"), (HARMS, "Adaptation looks harmful"), (None, "could not be")]
)
def test_it_has_the_verdict_the_classes_and_how_to_use_it(
    comparison: BaselineComparison | None, said: str, tmp_path: Path
) -> None:
    names = ("a|b", "pen <1>", "two\nlines")
    card = make_card(finished_run(tmp_path, names, comparison=comparison), ABOUT, tmp_path / "my run")
    assert card.startswith("---\nlibrary_name: qurate\n")
    assert CARD_MARK in card
    assert said in card
    rows = [line for line in card.splitlines() if re.fullmatch(r"\| .* \| 4 \| 2 \| 12 \|", line)]
    assert [row.split(" | ")[0] for row in rows] == ["| a\\|b", "| pen &lt;1>", "| two lines"]
    if comparison is not None:
        assert f"{comparison.gain.estimate * 100:+.1f} points".replace("-", "\u2212") in card
    shells = re.findall(r"```sh\n(.*?)\n```", card, re.DOTALL)
    name = "my run/baseline" if comparison is HARMS else "my run"
    assert [shlex.split(shell)[1:3] for shell in shells] == [["predict", name], ["export", name]]
    (python,) = re.findall(r"```python\n(.*?)\n```", card, re.DOTALL)
    ast.parse(python)
    assert f"qurate.load({name!r})" in python
    assert "- Resize to 9 x 9 pixels." in card


def test_it_says_that_statistics_of_the_source_go_with_the_model(tmp_path: Path) -> None:
    run, said = finished_run(tmp_path, ("a", "b")), "class with one source image is the embedding of that image."
    assert said not in make_card(run, ABOUT | {"source_statistics": None}, tmp_path)
    assert said in make_card(run, ABOUT | {"source_statistics": {"images": 8}}, tmp_path)


def test_a_readme_of_a_person_is_kept(tmp_path: Path) -> None:
    path = tmp_path / CARD_FILE
    assert is_our_card(path)
    path.write_text(f"---\n---\n{CARD_MARK}\nold", encoding="utf-8")
    assert is_our_card(path)
    replace_run(tmp_path, "new")
    assert path.read_text(encoding="utf-8").endswith("new")
    path.write_text("Notes of mine.", encoding="utf-8")
    assert not is_our_card(path)
    replace_run(tmp_path, "newer")
    assert path.read_text(encoding="utf-8") == "Notes of mine."


def replace_run(run: Path, text: str) -> None:
    """Move a run with a card into place, as `--force` does."""
    new = Replacement(run)
    new.path.mkdir()
    (new.path / CONFIG_FILE).write_text("{}", encoding="utf-8")
    (new.path / CARD_FILE).write_text(f"{CARD_MARK}\n{text}", encoding="utf-8")
    new.move_into_place()
