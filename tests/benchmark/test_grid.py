from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
from tests.benchmark.tiny_grid import tiny_grid

from qurate.benchmark.grid import Grid
from qurate.benchmark.options import GridOptions
from qurate.benchmark.results import BenchmarkError
from qurate.config import DQNConfig, ExecutionConfig
from qurate.data.samples import DataError
from qurate.data.suites import load_suite
from qurate.errors import QurateError
from qurate.presets import agent_selection
from qurate.registry import LONG, ORACLE, SELECTORS, TRAINED

OFFICE = load_suite("office31")


def office(execution: ExecutionConfig | None = None, **changes: Any) -> Grid:
    about: dict[str, Any] = {"data": Path(), "methods": ("tml",), "selectors": ("none",), "seeds": (0,)}
    options = GridOptions("office31", **({**about, "weights": "pretrained"} | changes))
    return Grid(OFFICE, options, execution or ExecutionConfig())


def test_the_order_of_cells_is_that_of_the_registries_whatever_was_said() -> None:
    one = tiny_grid(methods=("ent", "source_target"), selectors=("dqn", "none"), seeds=(1, 0, 1), shots=(3, 1))
    other = tiny_grid(methods=("source_target", "ent"), selectors=("none", "dqn"), seeds=(0, 1), shots=(1, 3))
    assert one.cells() == other.cells()
    assert len({cell.name for cell in one.cells()}) == len(one.cells()) == 2 * 2 * 2 * 2
    first = one.cells()[0]
    assert (first.shots, first.config.method.name, first.selector, first.config.seed) == (1, "source_target", "none", 0)


@pytest.mark.parametrize("selector", [*SELECTORS, ORACLE, LONG])
def test_whatever_is_listed_is_a_row(selector: str) -> None:
    assert office(selectors=(selector,)).pairs() == [("tml", selector)]


def test_a_pair_is_taken_alone_and_other_methods_with_every_selector() -> None:
    grid = office(methods=("tml+dqn", "all", "tml", "ent+confidence"), selectors=("none",))
    pairs = grid.pairs()
    assert len(pairs) == len(TRAINED) + 2
    assert [pair for pair in pairs if pair[1] != "none"] == [("ent", "confidence"), ("tml", "dqn")]
    assert pairs.index(("tml", "none")) + 1 == pairs.index(("tml", "dqn"))
    assert [(cell.config.method.name, cell.selector) for cell in grid.cells()][: len(pairs)] == pairs


def test_rows_of_the_papers_tables_are_named_as_it_names_them_in_any_case() -> None:
    grid = office(methods=("s+t", "Tml_Spl", "TML_DQNPL", "MME"), selectors=("none",))
    assert grid.pairs() == [("source_target", "none"), ("mme", "none"), ("tml", "confidence"), ("tml", "dqn")]


def test_selectors_are_compared_on_the_same_training() -> None:
    cells = office(selectors=("confidence", "quality", "balanced", "random", "dqn", "oracle")).cells()
    assert len({cell.config.training for cell in cells}) == 1
    assert cells[0].config.training.positive_share == 0.5


@pytest.mark.parametrize(
    "change",
    [
        {"seeds": (1,)},
        {"shots": (1,)},
        {"protocol": "clean"},
        {"model_selection": ("last", "snd")},
        {"steps": 7},
        {"backbone": "timm/resnet18"},
        {"weights": "offline"},
        {"train": "full"},
        {"selectors": ("dqn",)},
        {"scenarios": ("dslr:amazon",)},
        {"imbalance": (5,)},
        {"unknown": (5,)},
        {"missing_classes": (5,)},
        {"calibrate": True},
        {"query_strategy": ("none",), "ask": 2},
    ],
)
def test_whatever_decides_the_result_names_the_cell(change: dict[str, Any]) -> None:
    assert office().cells()[0].name != office(**change).cells()[0].name


def test_how_cells_are_run_does_not_name_them_but_what_changes_their_result_does() -> None:
    names = [cell.name for cell in office().cells()]
    assert [cell.name for cell in office(ExecutionConfig(device="cpu", devices=2, workers=3)).cells()] == names
    assert set(names).isdisjoint(cell.name for cell in office(precision="bf16-mixed").cells())


def test_each_imbalance_is_a_group_of_cells_with_a_pre_training_of_its_own() -> None:
    cells = office(imbalance=(20, 1, 20), selectors=("none", "random"), scenarios=("webcam:amazon",)).cells()
    assert [(cell.imbalance, cell.selector) for cell in cells] == [
        (1, "none"),
        (1, "random"),
        (20, "none"),
        (20, "random"),
    ]
    assert len({cell.pretraining for cell in cells}) == 2
    assert ("imbalance 20" in cells[0].title(), "imbalance 20" in cells[-1].title()) == (False, True)


def test_each_number_of_hidden_classes_is_a_group_of_cells_with_a_pre_training_of_its_own() -> None:
    cells = office(unknown=(16, 0), missing_classes=(0, 2), scenarios=("webcam:amazon",)).cells()
    assert [(cell.unknown, cell.missing_classes) for cell in cells] == [(0, 0), (0, 2), (16, 0), (16, 2)]
    assert len({cell.name for cell in cells}) == len({cell.pretraining for cell in cells}) == 4
    assert cells[0].name == office(scenarios=("webcam:amazon",)).cells()[0].name
    assert cells[3].title() == "webcam:amazon 3-shot unknown 16 missing 2 tml none seed 0"


def test_weights_are_named_by_content_and_not_by_place(tmp_path: Path) -> None:
    names = []
    for folder, content in (("a", b"1"), ("b", b"1"), ("c", b"2")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "w.safetensors").write_bytes(content)
        names.append(office(weights=str(tmp_path / folder / "w.safetensors")).cells()[0].name)
    assert names[0] == names[1] != names[2]


def test_cells_that_differ_in_selection_alone_share_pre_training_and_no_others() -> None:
    selectors = ("none", "confidence", "balanced", "dqn", "oracle")
    cells = office(selectors=selectors, scenarios=("webcam:amazon",)).cells()
    assert len(cells) == 5
    assert len({cell.pretraining for cell in cells}) == 1
    others = [grid.cells()[0] for grid in (office(seeds=(1,)), office(shots=(1,)), office(steps=9))]
    assert len({cell.pretraining for cell in [*cells, *others]}) == 4


def test_cells_whose_rates_follow_progress_share_pre_training_only_at_equal_length() -> None:
    def lengths_and_keys(schedule: Literal["steps", "progress"]) -> tuple[int, int, int]:
        cells = office(selectors=("none", "confidence", "balanced"), scenarios=("webcam:amazon",)).cells()
        runs = [replace(cell.config, training=replace(cell.config.training, schedule=schedule)) for cell in cells]
        changed = [replace(cell, config=run) for cell, run in zip(cells, runs, strict=True)]
        return len(cells), len({run.total_steps for run in runs}), len({cell.pretraining for cell in changed})

    assert lengths_and_keys("steps") == (3, 2, 1)
    assert lengths_and_keys("progress") == (3, 2, 2)


def test_the_two_agents_are_the_two_presets_and_steps_shorten_rounds_in_proportion() -> None:
    cells = office(selectors=("dqn",), presets=("qurate", "paper"), scenarios=("webcam:amazon",)).cells()
    assert [cell.selector for cell in cells] == ["dqn_paper", "dqn"]
    printed, ours = (cell.config for cell in cells)
    assert ours.selection == agent_selection("qurate")
    assert printed.selection == agent_selection("paper")
    assert (ours.training.positive_share, printed.training.positive_share) == (0.5, None)
    short = office(selectors=("dqn",), steps=150).cells()[0].config
    assert (short.training.steps, short.selection.round_steps) == (150, 20)
    digits = tiny_grid(selectors=("dqn",), presets=("paper",), steps=40).cells()[0].config.selection
    assert isinstance(digits.selector, DQNConfig)
    assert (digits.rounds, digits.round_steps, digits.selector.episode.state_network) == (4, 10, "trial")


def test_the_preset_paper_is_a_row_of_selector_confidence_too() -> None:
    cells = office(methods=("TML_SPL",), presets=("qurate", "paper"), scenarios=("webcam:amazon",)).cells()
    assert [cell.selector for cell in cells] == ["confidence", "confidence_paper"]
    assert [cell.config.training.positive_share for cell in cells] == [0.5, None]


def test_a_control_trains_as_long_as_a_row_with_a_selector() -> None:
    words = ("S+T", "S+T+long", "tml+Long", "tml+balanced", "tml+dqn")
    cells = office(methods=words, scenarios=("webcam:amazon",)).cells()
    assert [(cell.config.method.name, cell.selector, cell.config.total_steps) for cell in cells] == [
        ("source_target", "none", 1500),
        ("source_target", "long", 3100),
        ("tml", "long", 3100),
        ("tml", "balanced", 3100),
        ("tml", "dqn", 3100),
    ]
    assert cells[1].config.selection.selector.name == "none"
    assert tiny_grid(methods=("tml",), selectors=("long",), steps=40).cells()[0].config.total_steps == 80


def test_full_training_takes_the_papers_network() -> None:
    network = office(train="full").cells()[0].config.network
    assert (network.backbone, network.bottleneck) == ("torchvision/vgg16", "none")
    network = office(train="full", backbone="timm/resnet18").cells()[0].config.network
    assert (network.backbone, network.bottleneck) == ("timm/resnet18", "linear")
    assert office().cells()[0].config.network.bottleneck == "normalized"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"methods": ("best",)}, "method must be one of source_target, "),
        ({"methods": ("tml+best",)}, "selector must be one of none, confidence.*got 'best'"),
        ({"methods": ()}, "`methods` must be a comma-separated list of at least one, got none"),
        ({"selectors": ()}, "`selectors` must be a comma-separated list of at least one, got none"),
        ({"selectors": ("dqn_paper",)}, "'dqn_paper' is chosen by `selectors='dqn'` and `presets='paper'`"),
        (
            {"selectors": ("dqn",), "presets": ("ours",)},
            "preset must be one of qurate, paper, got 'ours'",
        ),
        ({"model_selection": ("test",)}, "`model_selection` must be one of last, validation"),
        ({"protocol": "fair"}, "`protocol` must be one of 'mme', 'clean', 'drawn'"),
        ({"shots": (5,)}, r"`shots` must be 1 or 3 under protocol 'mme'.*got \[5\]. Use `protocol='drawn'`"),
        ({"shots": (0,)}, "`shots` must be between 1 and 4294967295, got '0'"),
        ({"seeds": (-1,)}, "`seeds` must be between 0 and 4294967295, got '-1'"),
        ({"imbalance": ()}, "`imbalance` must be a comma-separated list of at least one, got none"),
        ({"unknown": (-1,)}, "`unknown` must be between 0 and 4294967295, got '-1'"),
        ({"missing_classes": (1.5,)}, "`missing_classes` must be integers"),
        ({"unknown": (0, 30)}, "`unknown` and `missing_classes`: of 31 classes at least two must stay known"),
        ({"unknown": (20,), "missing_classes": (11,)}, "got 20 unknown and 11 missing. Hide fewer"),
        ({"imbalance": (0,)}, "`imbalance` must be between 1 and 4294967295, got '0'"),
        ({"shots": 3}, "`shots` must be a tuple, got 3"),
        ({"steps": -5}, "`steps` must be between 1 and 1000000, got -5"),
        ({"backbone": "timm/resnet-nine"}, "There is no backbone 'timm/resnet-nine'. Allowed: 'timm/NAME.TAG'"),
        ({"data": None}, "`data` must be the folder of Office-31, got none"),
    ],
)
def test_what_is_not_allowed_is_refused_with_what_is(change: dict[str, Any], said: str) -> None:
    with pytest.raises(QurateError, match=said):
        office(**change)


def test_a_scenario_is_two_domains_of_the_suite() -> None:
    with pytest.raises(DataError, match="two different domains of 'amazon', 'dslr', 'webcam', got 'webcam:real'"):
        office(scenarios=("webcam:real",))
    with pytest.raises(BenchmarkError, match="`protocol` must be one of drawn"):
        tiny_grid(protocol="mme")


def test_cells_that_ask_are_named_by_who_asks_for_how_many_and_in_how_many_rounds() -> None:
    def named(strategy: tuple[str, ...], ask: int, rounds: int) -> list[str]:
        return [
            cell.name
            for cell in office(selectors=("random",), query_strategy=strategy, ask=ask, ask_rounds=rounds).cells()
        ]

    names = [*named(("random", "none"), 6, 2), *named(("random",), 6, 3), *named(("random",), 12, 2)]
    assert len(set(names)) == len(names) == 4 * 2  # two scenarios each


def test_query_strategies_come_in_the_order_of_the_tables_and_share_all_that_comes_before_them() -> None:
    cells = office(
        selectors=("random",), scenarios=("webcam:amazon",), query_strategy=("density", "none"), ask=6
    ).cells()
    assert [cell.query_strategy for cell in cells] == ["none", "density"]
    assert len({cell.pretraining for cell in cells}) == len({cell.base for cell in cells}) == 1
    (plain,) = office(selectors=("random",), scenarios=("webcam:amazon",)).cells()
    assert (cells[0].base, cells[0].pretraining) == (plain, plain.pretraining)
    assert cells[0].label_counts == (0, 6)
    assert plain.label_counts == (0,)
    assert cells[1].title() == "webcam:amazon 3-shot tml random asking density for 6 in 1 seed 0"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"ask": 7, "ask_rounds": 2}, "multiple of `ask_rounds`.*got 7 labels in 2 rounds"),
        ({"query_strategy": ("density", "nobody")}, "`query_strategy`: .* must be one of random, .*, got 'nobody'"),
        ({"ask": None}, "`query_strategy` needs `ask`"),
        ({"ask": 0}, "`ask` must be between 1 and"),
        ({"model_selection": ("last", "snd")}, "needs `model_selection` 'last' alone.*got last, snd"),
        ({"calibrate": True}, "`ask` and `calibrate` cannot be combined"),
        ({"selectors": ("oracle",)}, "selector 'oracle' cannot be combined"),
        ({"selectors": ("random", "none"), "query_strategy": ("check",)}, "'none' and 'long' trust none"),
    ],
)
def test_asking_that_cannot_be_done_is_said_before_any_work(change: dict[str, Any], said: str) -> None:
    asking: dict[str, Any] = {"query_strategy": ("density",), "ask": 6, "selectors": ("random",)}
    with pytest.raises(QurateError, match=said):
        office(**(asking | change))
