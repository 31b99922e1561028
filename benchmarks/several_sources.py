"""Several sources into one target: each alone, all joined, with equal and with learned weights.

    python benchmarks/several_sources.py --data ../shared/data

Office-31: Webcam and DSLR to Amazon, embedded by Lite0. Digits: typeset in sans-serif, serif and inverted Computer
Modern to handwritten. 'Joined' is what one folder of all images gives, 'learned' what `--source-weights learned` does.
The last columns are the learned weights.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from qurate.config import NetworkConfig, RunConfig
from qurate.data.digits import FONTS, digits_split, typeset_digits
from qurate.data.samples import Labeled, Split
from qurate.data.sources import choose_weights, weigh_domains
from qurate.data.suites import load_suite, read_suite_split
from qurate.embedding.embed import embed_split
from qurate.evaluation import evaluate
from qurate.presets import make_config
from qurate.runtime.machine import keep_freed_memory
from qurate.selection.algorithm import fit

ROWS = {"S+T": ("source_target", "none"), "TML + adaptive": ("tml", "adaptive")}
FAMILIES = {"sans": ("DejaVuSans",), "serif": ("DejaVuSerif", "STIX"), "inverted": ("cm",)}
SETS = ("office31", "digits")
Case = tuple[Split, dict[str, Labeled]]
"""A split, and its sources by name."""


def read_office31(data: Path, seed: int) -> Case:
    parts = {}
    for name in ("webcam", "dslr"):
        scenario, suite = f"{name}:amazon", load_suite("office31")
        split = read_suite_split(suite, data / "office31", scenario, shots=3, seed=seed, protocol="mme")
        parts[name] = embed_split(replace(split, validation=None), "timm/tf_efficientnet_lite0", "offline")
    return parts["webcam"], {name: part.source for name, part in parts.items()}


def read_digits(seed: int) -> Case:
    sources = {
        name: typeset_digits(60, seed, [font for font in FONTS if font.startswith(starts)])
        for name, starts in FAMILIES.items()
    }
    other = sources["inverted"]
    assert isinstance(other.inputs, Tensor)
    return digits_split(shots=3, seed=seed), sources | {"inverted": Labeled(1 - other.inputs, other.labels)}


def flat(part: Labeled) -> Labeled:
    assert isinstance(part.inputs, Tensor)
    return Labeled(part.inputs.flatten(1), part.labels)


def arms(split: Split, sources: dict[str, Labeled]) -> Iterator[tuple[str, Labeled, str]]:
    """Name, source and learned weights of each row."""
    inputs = [part.inputs for part in sources.values() if isinstance(part.inputs, Tensor)]
    joined = Labeled(torch.cat(inputs), torch.cat([part.labels for part in sources.values()]))
    domains = torch.cat([torch.full((len(part.labels),), number) for number, part in enumerate(sources.values())])
    for name, part in sources.items():
        yield name, part, ""
    yield "joined", joined, ""
    yield "equal", weigh_domains(joined, domains, torch.ones(len(sources))), ""
    learned, _ = choose_weights("learned", flat(joined), domains, flat(split.target_labeled), split.n_classes)
    said = ", ".join(f"{name} {weight:.2f}" for name, weight in zip(sources, learned.tolist(), strict=True))
    yield "learned", weigh_domains(joined, domains, learned), said


def config_of(kind: str, row: str, seed: int) -> RunConfig:
    if kind == "digits":
        network = NetworkConfig("digits", bottleneck="normalized")
        return make_config(*ROWS[row], network=network, seed=seed, steps=600)
    return make_config(*ROWS[row], seed=seed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with office31")
    parser.add_argument("--sets", default=",".join(SETS))
    parser.add_argument("--rows", default=",".join(ROWS))
    parser.add_argument("--seeds", default="0,1,2")
    options = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    print("| set | seed | source | row | accuracy | learned weights |")
    print("|---|---:|---|---|---:|---|")
    for kind in options.sets.split(","):
        for seed in map(int, options.seeds.split(",")):
            split, sources = read_digits(seed) if kind == "digits" else read_office31(options.data, seed)
            for name, source, said in arms(split, sources):
                for row in options.rows.split(","):
                    method = fit(replace(split, source=source), config_of(kind, row, seed)).method
                    accuracy = 100 * evaluate(method, split.target_unlabeled).accuracy
                    print(f"| {kind} | {seed} | {name} | {row} | {accuracy:.1f} | {said} |", flush=True)


if __name__ == "__main__":
    main()
