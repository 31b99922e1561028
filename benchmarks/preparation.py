"""What the preparation of images and several views of each are worth, with a frozen backbone.

    python benchmarks/preparation.py --seeds 0,1,2

Office-31 W to A: accuracy in percent of S+T and TML, the mean over seeds. Views are the centre, its mirror image, and
the four corners of the resized image. "averaged" embeds an image as the mean
over its views; "drawn" trains on every view of a labelled image as if it were an image of its own, which is to draw one
at random in each step, and averages the unlabelled ones. Embedding takes as many times as long as there are views.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean, stdev
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from qurate.benchmark.executors import Worker
from qurate.benchmark.grid import Grid
from qurate.data.samples import Labeled, Split, Unlabeled
from qurate.data.suites import load_suite
from qurate.embedding.backbone import FrozenBackbone, freeze_backbone
from qurate.embedding.embed import embed_split
from qurate.evaluation import evaluate
from qurate.networks.backbones import join_vectors
from qurate.runtime.machine import keep_freed_memory
from qurate.selection.algorithm import fit

REPOSITORY = Path(__file__).resolve().parents[1]
DATA = Path(os.environ.get("QURATE_DATA") or REPOSITORY.parent / "shared" / "data") / "office31"
LITE = "timm/tf_efficientnet_lite"
METHODS = ("S+T", "tml")

Part = TypeVar("Part", Labeled, Unlabeled)

View = tuple[float, float, bool]
"""How far down and to the right the crop begins, in shares of the room there is, and whether it is mirrored."""
CENTRE, MIRRORED = (0.5, 0.5, False), (0.5, 0.5, True)
CORNERS = tuple((down, right, False) for down in (0.0, 1.0) for right in (0.0, 1.0))


class Seen(nn.Module):
    """A backbone that sees a part of an image, perhaps mirrored."""

    def __init__(self, module: nn.Module, crop: int, view: View) -> None:
        super().__init__()
        self.module, self.crop, self.view = module, crop, view

    def forward(self, images: Tensor) -> Tensor:
        """(N, 3, resize, resize) to (N, width)."""
        down, right, mirrored = self.view
        room = images.shape[-1] - self.crop
        top, left = int(down * room), int(right * room)
        part = images[:, :, top : top + self.crop, left : left + self.crop]
        vectors: Tensor = self.module(part.flip(-1) if mirrored else part)
        return vectors


def with_view(frozen: FrozenBackbone, view: View) -> FrozenBackbone:
    """The same backbone, seeing one view of each image."""
    if view == CENTRE:
        return frozen
    size = frozen.transform
    return FrozenBackbone(
        f"{frozen.name} {view}", Seen(frozen.module, size.crop, view), frozen.width, replace(size, crop=size.resize)
    )


Join = Callable[[Sequence[Tensor]], Tensor]


def combine(splits: Sequence[Split], join: Join) -> Split:
    """Splits of the same images as one, their rows combined."""
    return replace(
        splits[0],
        source=_join([split.source for split in splits], join),
        target_labeled=_join([split.target_labeled for split in splits], join),
        target_unlabeled=_join([split.target_unlabeled for split in splits], join),
    )


def _join(parts: Sequence[Part], join: Join) -> Part:
    return replace(parts[0], inputs=join([_rows(part) for part in parts]))


def _rows(part: Labeled | Unlabeled) -> Tensor:
    assert isinstance(part.inputs, Tensor), "images were embedded"
    return part.inputs


def average(rows: Sequence[Tensor]) -> Tensor:
    """The mean of several views."""
    return torch.stack(list(rows)).mean(dim=0)


def drawn(splits: Sequence[Split]) -> Split:
    """Labelled images once for each view; unlabelled ones averaged."""

    def all_views(parts: Sequence[Labeled]) -> Labeled:
        return Labeled(torch.cat([_rows(part) for part in parts]), torch.cat([part.labels for part in parts]))

    return replace(
        combine(splits, average),
        source=all_views([split.source for split in splits]),
        target_labeled=all_views([split.target_labeled for split in splits]),
    )


class Measured:
    """Splits of embeddings, and what the methods make of them."""

    def __init__(self, seeds: Sequence[int]) -> None:
        grid = Grid(
            load_suite("office31"),
            DATA,
            scenarios=("webcam:amazon",),
            methods=METHODS,
            selectors=("none",),
            seeds=tuple(seeds),
            backbone=f"{LITE}0",
            weights="offline",
        )
        self.cells = grid.cells()
        self.images = Worker(grid.suite, DATA, "offline").read(self.cells[0])

    def embed(self, frozen: FrozenBackbone, views: Sequence[View] = (CENTRE,)) -> list[Split]:
        """The split seen in each way."""
        return [embed_split(self.images, with_view(frozen, view), device="cpu") for view in views]

    def show(self, name: str, split: Split) -> None:
        """Train each method with each seed, and print a row."""
        torch.set_num_threads(1)
        found: dict[tuple[str, str], list[float]] = {}
        for cell in self.cells:
            done = fit(split, cell.config)
            accuracy = evaluate(done.method, split.target_unlabeled).accuracy
            found.setdefault((cell.config.method.name, cell.selector), []).append(100 * accuracy)
        shown = " | ".join(f"{mean(values):.1f} ± {stdev(values):.1f}" for values in found.values())
        print(f"| {name} | {shown} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0,1,2")
    keep_freed_memory()
    measured = Measured([int(seed) for seed in parser.parse_args().seeds.split(",")])
    lite0, lite2 = (freeze_backbone(f"{LITE}{number}", "offline") for number in (0, 2))
    print("| | S+T | TML |\n|---|---|---|")
    (plain,) = measured.embed(lite0)
    measured.show("Lite0, as it is", plain)
    bicubic = replace(lite0, transform=replace(lite0.transform, interpolation="bicubic"))
    measured.show("bicubic", measured.embed(bicubic)[0])
    whole = replace(lite0, transform=replace(lite0.transform, resize=lite0.transform.crop))
    measured.show("nothing cut off", measured.embed(whole)[0])
    larger = replace(lite0, transform=replace(lite0.transform, crop=lite0.transform.resize))
    measured.show("256 pixels, nothing cut off", measured.embed(larger)[0])
    mirrored = measured.embed(lite0, (CENTRE, MIRRORED))
    measured.show("2 views averaged", combine(mirrored, average))
    measured.show("2 views drawn", drawn(mirrored))
    many = [*mirrored, *measured.embed(lite0, CORNERS)]
    measured.show("6 views averaged", combine(many, average))
    measured.show("6 views drawn", drawn(many))
    (other,) = measured.embed(lite2)
    measured.show("Lite2, as it is", other)
    both = [plain, other]
    measured.show("Lite0+Lite2, unit length", combine(both, join_vectors))
    measured.show("Lite0+Lite2, not scaled", combine(both, lambda rows: torch.cat(list(rows), dim=1)))
    measured.show("Lite0+Lite2, layer norm", combine(both, standardised))


def standardised(rows: Sequence[Tensor]) -> Tensor:
    """Each number of a vector with mean 0 and deviation 1 within its vector."""
    return torch.cat([F.layer_norm(part, part.shape[1:]) for part in rows], dim=1)


if __name__ == "__main__":
    main()
