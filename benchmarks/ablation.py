"""What each difference of preset 'qurate' from the printed algorithm is worth on Office-31, W to A: each left out once.

    python benchmarks/ablation.py

Finished runs, by title and seed, are kept in ablation.csv and not run again; --force runs those asked for again. The
comparison with the paper's rows is `make office31`.
"""

from __future__ import annotations

import argparse
import dataclasses
import multiprocessing
import os
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from qurate.benchmark.cell import Cell, run_cell
from qurate.benchmark.results import Row, rows_to_csv, write_file
from qurate.config import DQNConfig, RunConfig
from qurate.data.samples import Split
from qurate.data.splits import read_mme_split
from qurate.embedding.embed import embed_split
from qurate.networks.backbone_names import find_weights
from qurate.presets import make_config
from qurate.runtime.files import write_atomically
from qurate.runtime.machine import keep_freed_memory
from qurate.selection.dqn import harvest
from qurate.selection.pseudo_labels import Positives, Round
from qurate.selection.selectors import Selector

REPOSITORY = Path(__file__).resolve().parents[1]
DATA = Path(os.environ.get("QURATE_DATA") or REPOSITORY.parent / "shared" / "data")
WEIGHTS = DATA.parent / "weights" / "tf_efficientnet_lite0.safetensors"
SCENARIO = "W to A"
BACKBONE = "timm/tf_efficientnet_lite0"
SEEDS = (0, 1, 2)
SHOTS = 3


def ours(seed: int, **changes: Any) -> RunConfig:
    """Preset 'qurate', with fields of its parts changed by 'part__field'."""
    config = make_config("TML_DQNPL", seed=seed)
    fields: dict[str, dict[str, Any]] = {}
    for name, value in changes.items():
        part, _, field = name.partition("__")
        fields.setdefault(part, {})[field] = value
    selection, agent = config.selection, agent_of(config)
    agent = replace(
        agent,
        episode=replace(agent.episode, **fields.get("episode", {})),
        q_learning=replace(agent.q_learning, **fields.get("q_learning", {})),
    )
    reward = replace(selection.reward, **fields.get("reward", {}))
    return replace(
        config,
        training=replace(config.training, **fields.get("training", {})),
        selection=replace(selection, selector=agent, reward=reward),
    )


def agent_of(config: RunConfig) -> DQNConfig:
    chosen = config.selection.selector
    assert isinstance(chosen, DQNConfig)
    return chosen


class HarvestOnly:
    """The harvest of preset 'qurate' with another score in place of the agent's: quality, or a random number."""

    def __init__(self, config: DQNConfig, score: str) -> None:
        self.config = config
        self.score = score

    def select(self, round: Round) -> Positives:
        """The harvest by that score."""
        scores = round.phi if self.score == "phi" else torch.rand(len(round.phi), generator=round.rng)
        return harvest(round, scores, self.config)


ROWS: dict[str, Callable[[int], RunConfig]] = {
    "preset qurate": lambda seed: ours(seed),
    "agent's score replaced by phi": lambda seed: ours(seed),
    "agent's score replaced by chance": lambda seed: ours(seed),
    "p_f from centres, not neighbours (22)": lambda seed: ours(seed, reward__center="centers"),
    "fixed tau, not class median (23)": lambda seed: ours(seed, reward__threshold="fixed"),
    "candidates at random, not even (20)": lambda seed: ours(seed, episode__even_candidates=False),
    "one episode a round (25)": lambda seed: ours(seed, episode__repeat_episodes=False),
    "equal counts per class, not adaptive (24, 51)": lambda seed: ours(seed, episode__harvest="equal"),
    "no harvest: D_p from episodes (24)": lambda seed: ours(seed, episode__harvest="none"),
    "batches drawn from D_t and D_p alike (19)": lambda seed: ours(seed, training__positive_share=None),
    "no harvest, rejected ones left out (5, 24)": lambda seed: ours(
        seed, episode__harvest="none", episode__keep_rejected=False
    ),
    "no harvest, flat Q-network (21, 24)": lambda seed: ours(seed, episode__harvest="none", episode__agent="flat"),
    "plain gradient descent for Q (26)": lambda seed: ours(seed, q_learning__optimizer="sgd"),
    "states by the trial network (8)": lambda seed: ours(seed, episode__state_network="trial"),
    "whole trial epochs (9)": lambda seed: ours(seed, episode__trial_steps=0),
    "p_c and p_f by the trial network, centres (18, 22)": lambda seed: ours(
        seed, reward__center="centers", reward__network="trial"
    ),
    "all three of the trial network (8, 9, 18, 22)": lambda seed: ours(
        seed, reward__center="centers", reward__network="trial", episode__state_network="trial", episode__trial_steps=0
    ),
    "preset paper: Algorithm 1 as printed": lambda seed: make_config("TML_DQNPL", preset="paper", seed=seed),
}


@cache
def load() -> Split:
    split = read_mme_split(DATA / "office31", "webcam", "amazon", SHOTS)
    weights = str(WEIGHTS) if WEIGHTS.is_file() else find_weights(BACKBONE, "auto")
    return embed_split(split, BACKBONE, weights)


def own_selector(title: str, config: RunConfig) -> Selector | None:
    scores = {"agent's score replaced by phi": "phi", "agent's score replaced by chance": "chance"}
    return HarvestOnly(agent_of(config), scores[title]) if title in scores else None


def run(title: str, seed: int) -> Row:
    torch.set_num_threads(1)
    keep_freed_memory()
    config = ROWS[title](seed)
    cell = Cell(
        suite="office31",
        scenario=SCENARIO,
        shots=SHOTS,
        protocol="mme",
        selector=title,
        rules=("last",),
        backbone=BACKBONE,
        weights=WEIGHTS.name,
        config=config,
    )
    result, _ = run_cell(load(), cell, config, selector=own_selector(title, config))
    return result.rows[0]


def finished(path: Path) -> list[Row]:
    if not path.exists():
        return []
    names = [field.name for field in dataclasses.fields(Row)]
    table = pd.read_csv(path).reindex(columns=names)  # one of an earlier version may lack some
    records = table.astype(object).where(table.notna(), None).to_dict("records")
    return [Row(**{str(name): value for name, value in record.items()}) for record in records]


def to_markdown(rows: list[Row]) -> str:
    frame = pd.DataFrame([dataclasses.asdict(row) for row in rows])
    lines = [f"| | {SCENARIO} | positives | of them right | seconds |", "|---|---|---|---|---|"]
    for title in ROWS:
        found = frame[frame["selector"] == title]
        if found.empty:
            continue
        accuracy = found["accuracy"].astype(float) * 100
        spread = f" ± {accuracy.std(ddof=1):.1f}" if len(found) > 1 else " (one seed)"
        right = found["positives_accuracy"].astype(float).mean()
        lines.append(
            f"| {title} | {accuracy.mean():.1f}{spread} | {found['positives'].astype(float).mean():.0f} "
            f"| {right:.1%} | {found['seconds'].mean():.0f} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="*", help="titles to run; all unless given")
    parser.add_argument("--seeds", nargs="*", type=int, default=SEEDS)
    parser.add_argument("--out", type=Path, default=REPOSITORY / "docs" / "office31")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--force", action="store_true")
    arguments = parser.parse_args()
    results = arguments.out / "ablation.csv"
    asked = [(title, seed) for title in arguments.rows or ROWS for seed in arguments.seeds]
    rows = [row for row in finished(results) if row.selector in ROWS]
    done = set() if arguments.force else {(row.selector, row.seed) for row in rows}
    to_run = [one for one in asked if one not in done]
    rows = [row for row in rows if (row.selector, row.seed) not in to_run]
    if to_run:
        load()  # embed once, before the workers start
    began = time.perf_counter()
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(arguments.processes, mp_context=context) as pool:
        for future in as_completed([pool.submit(run, *one) for one in to_run]):
            rows.append(row := future.result())
            rows.sort(key=lambda row: (list(ROWS).index(row.selector), row.seed))
            write_file(results, rows_to_csv(rows))
            minutes = (time.perf_counter() - began) / 60
            print(f"[{minutes:4.1f} min] {row.selector}, seed {row.seed}: {row.accuracy:.1%}", flush=True)
    text = to_markdown(rows)
    write_atomically(arguments.out / "ablation.md", text)
    print(text)


if __name__ == "__main__":
    main()
