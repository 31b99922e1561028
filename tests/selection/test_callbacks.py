"""Who listens to a run is told of each of its parts, once and in order."""

from __future__ import annotations

import inspect

from tests.selection.problem import blobs, config

from qurate.methods import Method
from qurate.selection.algorithm import fit
from qurate.selection.callbacks import Action, Callback, Callbacks, RoundRecord
from qurate.selection.pseudo_labels import Positives


class Diary(Callback):
    """Writes down what it is told; steps are counted."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.methods: set[int] = set()

    def on_start(self, method: Method) -> None:
        self.lines.append("start")
        self.methods.add(id(method))

    def on_memory(self, peak: int) -> None:
        assert peak > 2**20  # bytes
        self.lines.append("memory")

    def on_step(self, step: int, terms: dict[str, float]) -> None:
        assert terms["loss"] > 0
        if step == 1:
            self.lines.append("steps")
        self.steps = step

    def on_pretrained(self, method: Method) -> None:
        self.lines.append(f"pretrained after {self.steps}")
        self.methods.add(id(method))

    def on_waited(self, waited: float, seconds: float) -> None:
        assert 0 <= waited < seconds
        self.lines.append("waited")

    def on_round_start(self, number: int) -> None:
        self.lines.append(f"round {number}")

    def on_action(self, action: Action) -> None:
        if self.lines[-1] != "actions":
            self.lines.append("actions")

    def on_round(self, record: RoundRecord, method: Method, positives: Positives) -> None:
        assert record.positives == len(positives)
        self.lines.append(f"end of {record.round} after {self.steps}")
        self.methods.add(id(method))


def test_a_listener_hears_all_of_a_run_in_order_and_so_does_the_next() -> None:
    first, second = Diary(), Diary()
    result = fit(blobs(), config(rounds=2), callbacks=[first, second])
    one_round = ["round {0}", "actions", "steps", "end of {0} after 10"]
    assert first.lines == [
        *("memory", "start", "steps", "pretrained after 60"),
        *[line.format(number) for number in (0, 1) for line in one_round],
        "waited",
    ]
    assert first.lines == second.lines
    assert first.methods == {id(result.method)}


def test_callbacks_pass_on_everything_there_is_to_hear() -> None:
    hears = {name for name, _ in inspect.getmembers(Callback, inspect.isfunction) if name.startswith("on_")}
    assert hears == {name for name in vars(Callbacks(())) if name.startswith("on_")}
    assert hears == {name for name in vars(Diary) if name.startswith("on_")}


def test_the_base_hears_and_does_nothing() -> None:
    assert fit(blobs(), config("none"), callbacks=[Callback()]).rounds == ()
