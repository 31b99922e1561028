"""Training the last stage of a backbone on feature maps that are cached once, against the head alone.

    python benchmarks/last_stage.py --seeds 0,1,2

Office-31 W to A, EfficientNet-Lite0, TML. "head" trains on embeddings, with the steps of the benchmarks. "last" trains
the last block of the backbone, its last convolution and the head on the maps before that block, for as long as "head"
took and for five times as long, by the clock and in this one process; the maps come from the cache like embeddings.
"""

from __future__ import annotations

import argparse
import copy
import os
import time
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any, TypeVar

from torch import Tensor, nn

from qurate.config import NetworkConfig, RunConfig
from qurate.data.batches import TrainingData
from qurate.data.samples import Labeled, Split, Unlabeled
from qurate.data.suites import load_suite, read_suite_split
from qurate.distributed import make_fabric
from qurate.embedding.backbone import FrozenBackbone, freeze_backbone
from qurate.embedding.embed import embed_split
from qurate.evaluation import evaluate
from qurate.methods import build_method
from qurate.networks.heads import Network, build_network
from qurate.presets import make_config
from qurate.runtime.machine import keep_freed_memory
from qurate.training import Trainer

SHARED = Path(__file__).resolve().parents[2] / "shared"
DATA = Path(os.environ.get("QURATE_DATA") or SHARED / "data") / "office31"
BACKBONE = "timm/tf_efficientnet_lite0"
MAPS = (192, 7, 7)
LONGER = 5
Part = TypeVar("Part", Labeled, Unlabeled)


class Before(nn.Module):
    """Lite0 up to its last block: images to feature maps, flat."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.layers = nn.Sequential(model.conv_stem, model.bn1, *list(model.blocks)[:-1])

    def forward(self, images: Tensor) -> Tensor:
        """(N, 3, 224, 224) to (N, 9408)."""
        maps: Tensor = self.layers(images)
        return maps.flatten(1)


class Last(nn.Module):
    """The rest of it: feature maps to vectors."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.layers = nn.Sequential(model.blocks[-1], model.conv_head, model.bn2, model.global_pool)

    def forward(self, maps: Tensor) -> Tensor:
        """(N, 192, 7, 7) to (N, 1280)."""
        vectors: Tensor = self.layers(maps)
        return vectors


def unfold(split: Split) -> Split:
    """Flat feature maps as they were."""

    def shaped(part: Part) -> Part:
        assert isinstance(part.inputs, Tensor), "images were embedded"
        return replace(part, inputs=part.inputs.view(-1, *MAPS))

    source, labeled, unlabeled = split.source, split.target_labeled, split.target_unlabeled
    return replace(split, source=shaped(source), target_labeled=shaped(labeled), target_unlabeled=shaped(unlabeled))


def train(split: Split, config: RunConfig, backbone: nn.Module | None, seconds: float) -> tuple[float, int, float]:
    """Accuracy in percent, steps and seconds; without a number of seconds the steps of the config."""
    network = build_network(config.network, n_classes=split.n_classes, input_width=1280, seed=config.seed)
    if backbone is not None:
        network = Network(copy.deepcopy(backbone), network.bottleneck, network.classifier, pretrained=True)
    method = build_method(config.method, network, seed=config.seed)
    trainer = Trainer(method, config.training, make_fabric(config.training), total_steps=config.total_steps)
    data, began, steps = TrainingData.of(split), time.perf_counter(), 0
    while steps < config.training.steps and (not seconds or time.perf_counter() - began < seconds):
        some = 10 if seconds else config.training.steps
        trainer.run(data, steps=some, seed=config.seed + 1000 * steps)
        steps += some
    taken = time.perf_counter() - began
    return 100 * evaluate(method, split.target_unlabeled).accuracy, steps, taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0,1,2")
    seeds = [int(seed) for seed in parser.parse_args().seeds.split(",")]
    keep_freed_memory()
    suite = load_suite("office31")
    files = read_suite_split(suite, DATA, "webcam:amazon", shots=3, seed=0, protocol="mme", validation=False)
    frozen = freeze_backbone(BACKBONE, "offline")
    maps = FrozenBackbone(f"{BACKBONE} maps", Before(frozen.module), MAPS[0] * MAPS[1] * MAPS[2], frozen.transform)
    embedded, mapped = embed_split(files, frozen, device="cpu"), unfold(embed_split(files, maps, device="cpu"))
    found: dict[str, list[tuple[float, int, float]]] = {"head": [], "last": [], f"last, {LONGER} times as long": []}
    for seed in seeds:
        network = NetworkConfig(bottleneck="normalized")
        config = make_config("tml", "none", network=network, steps=1500, seed=seed, device="cpu")
        head = train(embedded, config, None, 0.0)
        all_cores = replace(config, training=replace(config.training, threads=os.cpu_count() or 1, steps=100_000))
        last = [train(mapped, all_cores, Last(frozen.module), times * head[2]) for times in (1, LONGER)]
        for name, row in zip(found, (head, *last), strict=True):
            found[name].append(row)
            print(f"  seed {seed} {name}: {row[0]:.1f} % after {row[1]} steps, {row[2]:.0f} s", flush=True)
    for name, rows in found.items():
        accuracy, steps, seconds = (mean(row[which] for row in rows) for which in range(3))
        print(f"{name}: {accuracy:.1f} % after {steps:.0f} steps, {seconds:.0f} s")


if __name__ == "__main__":
    main()
