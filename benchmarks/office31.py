"""The Office-31 comparison of docs/office31.md: every row on W to A and D to A, three seeds, cached embeddings.

    python benchmarks/office31.py                    # the table
    python benchmarks/office31.py --suite ablation   # the differences of preset 'qurate', each left out

Finished cells are kept in results.csv beside the table and not run again; --force starts over.
"""

from __future__ import annotations

import argparse
import dataclasses
import multiprocessing
import os
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import pandas as pd
import torch

from qurate.benchmark.cells import run_cell
from qurate.benchmark.published import Published
from qurate.benchmark.results import Row, read_results, write_results
from qurate.config import MethodConfig, NetworkConfig, RunConfig, SelectionConfig, TrainingConfig
from qurate.data.embeddings import embed_split
from qurate.data.samples import Split
from qurate.data.splits import read_mme_split
from qurate.files import write_atomically
from qurate.presets import with_preset
from qurate.selection.algorithm import harvest
from qurate.selection.pseudo_labels import Positives, Round
from qurate.selection.selectors import Selector, share_now

REPOSITORY = Path(__file__).resolve().parents[1]
DATA = Path(os.environ.get("QURATE_DATA") or REPOSITORY.parent / "shared" / "data")
WEIGHTS = DATA.parent / "weights" / "tf_efficientnet_lite0.safetensors"
SCENARIOS = {"W to A": ("webcam", "amazon"), "D to A": ("dslr", "amazon")}
SEEDS = (0, 1, 2)
SHOTS = 3
PUBLISHED = Published("office31", SHOTS)


@dataclass(frozen=True)
class Cell:
    """One run: a row of the table on a scenario with a seed."""

    title: str
    scenario: str
    seed: int


def base_config(method: str, selector: str = "none", seed: int = 0) -> RunConfig:
    return RunConfig(
        NetworkConfig(bottleneck="normalized"),
        MethodConfig(name=method),
        TrainingConfig(),
        SelectionConfig(selector=selector),
        seed,
    )


def ours(seed: int, **changes: object) -> RunConfig:
    """Preset 'qurate', with fields of its parts changed by 'part.field'."""
    config = with_preset(base_config("tml", seed=seed), "qurate")
    for name, value in changes.items():
        part, _, field = name.partition("__")
        if part == "training":
            config = replace(config, training=replace(config.training, **{field: value}))
        else:
            changed = replace(getattr(config.selection, part), **{field: value})
            config = replace(config, selection=replace(config.selection, **{part: changed}))
    return config


class HarvestOnly:
    """The harvest of preset 'qurate' with another score in place of the agent's: quality, or a random number."""

    def __init__(self, config: SelectionConfig, score: str) -> None:
        self.config = config
        self.score = score

    def select(self, round: Round) -> Positives:
        """The harvest by that score."""
        scores = round.phi if self.score == "phi" else torch.rand(len(round.phi), generator=round.rng)
        return harvest(round, scores, share_now(self.config, round.progress))


TABLE = {
    "S+T": lambda seed: base_config("source_target", seed=seed),
    "ENT": lambda seed: base_config("ent", seed=seed),
    "MME": lambda seed: base_config("mme", seed=seed),
    "TML": lambda seed: base_config("tml", seed=seed),
    "CML": lambda seed: base_config("cml", seed=seed),
    "TML_SPL": lambda seed: base_config("tml", "confidence", seed),
    "TML + quality": lambda seed: base_config("tml", "quality", seed),
    "TML + class-balanced quality": lambda seed: base_config("tml", "balanced", seed),
    "TML + random": lambda seed: base_config("tml", "random", seed),
    "TML_DQNPL": lambda seed: ours(seed),
    "oracle": lambda seed: base_config("tml", "oracle", seed),
}
BASELINES = {
    "DANN": lambda seed: base_config("dann", seed=seed),
    "ADR": lambda seed: base_config("adr", seed=seed),
    "CDAN": lambda seed: base_config("cdan", seed=seed),
}
ABLATION = {
    "preset qurate": lambda seed: ours(seed),
    "agent's score replaced by phi": lambda seed: ours(seed),
    "agent's score replaced by chance": lambda seed: ours(seed),
    "p_f from centres, not neighbours (22)": lambda seed: ours(seed, reward__center="centers"),
    "fixed tau, not class median (23)": lambda seed: ours(seed, reward__threshold="fixed"),
    "candidates at random, not even (20)": lambda seed: ours(seed, episode__even_candidates=False),
    "one episode a round (25)": lambda seed: ours(seed, episode__repeat_episodes=False),
    "no harvest: D_p from episodes (24)": lambda seed: ours(seed, episode__harvest=False),
    "batches drawn from D_t and D_p alike (19)": lambda seed: ours(seed, training__positive_share=None),
    "no harvest, rejected ones left out (5, 24)": lambda seed: ours(
        seed, episode__harvest=False, episode__keep_rejected=False
    ),
    "no harvest, flat Q-network (21, 24)": lambda seed: ours(seed, episode__harvest=False, episode__agent="flat"),
    "plain gradient descent for Q (26)": lambda seed: ours(seed, q_learning__optimizer="sgd"),
    "states by the trial network (8)": lambda seed: ours(seed, episode__state_network="trial"),
    "whole trial epochs (9)": lambda seed: ours(seed, episode__trial_steps=0),
    "p_c and p_f by the trial network, centres (18, 22)": lambda seed: ours(
        seed, reward__center="centers", reward__network="trial"
    ),
    "all three of the trial network (8, 9, 18, 22)": lambda seed: ours(
        seed, reward__center="centers", reward__network="trial", episode__state_network="trial", episode__trial_steps=0
    ),
    "preset paper: Algorithm 1 as printed": lambda seed: with_preset(base_config("tml", seed=seed), "paper"),
}
SUITES = {
    "table": (TABLE, tuple(SCENARIOS)),
    "baselines": (BASELINES, tuple(SCENARIOS)),
    "ablation": (ABLATION, ("W to A",)),
}


@cache
def load(scenario: str) -> Split:
    source, target = SCENARIOS[scenario]
    split = read_mme_split(DATA / "office31", source, target, SHOTS)
    return embed_split(split, "timm/tf_efficientnet_lite0", str(WEIGHTS))


def own_selector(title: str, config: RunConfig) -> Selector | None:
    scores = {"agent's score replaced by phi": "phi", "agent's score replaced by chance": "chance"}
    return HarvestOnly(config.selection, scores[title]) if title in scores else None


def run(cell: Cell, suite: str) -> tuple[Cell, Row]:
    torch.set_num_threads(1)
    config = SUITES[suite][0][cell.title](cell.seed)
    row = run_cell(
        load(cell.scenario),
        config,
        scenario=cell.scenario,
        shots=SHOTS,
        selector_name=cell.title,
        selector=own_selector(cell.title, config),
    )
    return cell, row


def finished(path: Path) -> list[Row]:
    if not path.exists():
        return []
    table = read_results(path)
    records = table.astype(object).where(table.notna(), None).to_dict("records")
    names = [field.name for field in dataclasses.fields(Row)]
    return [Row(**{name: record[name] for name in names}) for record in records]


def to_markdown(rows: list[Row], suite: str, minutes: float) -> str:
    frame = pd.DataFrame([dataclasses.asdict(row) for row in rows])
    titles, scenarios = SUITES[suite]
    lines = ["| | " + " | ".join(scenarios) + " | mean | positives | of them right | seconds | published |"]
    lines.append("|---" * (len(scenarios) + 6) + "|")
    for title in titles:
        of_title = frame[frame["selector"] == title]
        if of_title.empty:
            continue
        cells = []
        for scenario in scenarios:
            found = of_title[of_title["scenario"] == scenario]["accuracy"].astype(float) * 100
            spread = f" ± {found.std(ddof=1):.1f}" if len(found) > 1 else " (one seed)"
            cells.append(f"{found.mean():.1f}{spread}" if len(found) else "")
        mean = of_title.groupby("scenario")["accuracy"].mean().astype(float).mean() * 100
        positives = pd.to_numeric(of_title["positives"]).mean()
        right = pd.to_numeric(of_title["positives_accuracy"]).mean() * 100
        numbers = [PUBLISHED.accuracy(title, scenario) for scenario in scenarios]
        published = " / ".join(f"{number}" for number in numbers if number is not None)
        chosen = ["", ""] if pd.isna(positives) else [f"{positives:.0f}", f"{right:.1f}" if right == right else ""]
        cells += [f"{mean:.1f}", *chosen, f"{of_title['seconds'].mean():.0f}", published]
        lines.append(f"| {title} | " + " | ".join(cells) + " |")
    lines.append("")
    lines.append(f"{len(rows)} runs in {minutes:.0f} minutes." if minutes else f"{len(rows)} runs.")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suite", choices=SUITES, default="table")
    parser.add_argument("--rows", nargs="*", help="titles to run; all unless given")
    parser.add_argument("--seeds", nargs="*", type=int, default=SEEDS)
    parser.add_argument("--out", type=Path, default=REPOSITORY / "docs" / "office31")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--force", action="store_true")
    arguments = parser.parse_args()
    titles, scenarios = SUITES[arguments.suite]
    results = arguments.out / f"{arguments.suite}.csv"
    rows = [] if arguments.force else finished(results)
    done = {(row.selector, row.scenario, row.seed) for row in rows}
    cells = [
        Cell(title, scenario, seed)
        for title in arguments.rows or titles
        for scenario in scenarios
        for seed in arguments.seeds
        if (title, scenario, seed) not in done
    ]
    for scenario in scenarios:
        load(scenario)  # embed once, before the workers start
    began = time.perf_counter()
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(arguments.processes, mp_context=context) as pool:
        for future in as_completed([pool.submit(run, cell, arguments.suite) for cell in cells]):
            cell, row = future.result()
            rows.append(row)
            write_results(rows, results)
            elapsed = (time.perf_counter() - began) / 60
            print(
                f"[{elapsed:4.1f} min, {len(rows)} done] {cell.scenario}, seed {cell.seed}, {cell.title}: "
                f"{row.accuracy:.1%}",
                flush=True,
            )
    minutes = (time.perf_counter() - began) / 60 if len(cells) == len(rows) else 0.0
    order = {title: i for i, title in enumerate(titles)}
    rows.sort(key=lambda row: (order.get(row.selector, 99), row.scenario, row.seed))
    write_results(rows, results)
    text = to_markdown(rows, arguments.suite, minutes)
    write_atomically(arguments.out / f"{arguments.suite}.md", text)
    print(text)


if __name__ == "__main__":
    main()
