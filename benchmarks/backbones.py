"""What the backbone is worth: benchmarks of several in one table, beside how many images per second each embeds.

Each folder is one that `qurate benchmark` left; `make backbones` runs them and then this. Speeds are measured here, on
the first images of Office-31's Amazon and without the cache, so they want an idle machine. The tables go into the page
between its two marks.

    python benchmarks/backbones.py backbones/lite0 backbones/lite2 --data DIR/office31 --page docs/backbones.md
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
from pathlib import Path

import pandas as pd

from qurate.benchmark.outcome import read_outcome
from qurate.data.own_images import find_images
from qurate.embedding.backbone import freeze_backbones
from qurate.embedding.embed import embed_files
from qurate.networks.backbone_names import find_weights
from qurate.report.published import scenario_titles
from qurate.runtime.files import write_atomically
from qurate.runtime.machine import keep_freed_memory

MARKS = re.compile(r"(<!-- tables -->\n).*(<!-- end -->)", re.DOTALL)
WARM_UP, IMAGES = 16, 200


def images_per_second(backbone: str, weights: str, data: Path) -> float:
    files = find_images(data / "amazon")[: WARM_UP + IMAGES]
    frozen = freeze_backbones(backbone, find_weights(backbone, weights))
    with tempfile.TemporaryDirectory() as cache:
        embed_files(files[:WARM_UP], frozen, cache=Path(cache), device="cpu")
        found = embed_files(files[WARM_UP:], frozen, cache=Path(cache), device="cpu")
    return found.made / found.seconds


def short(backbone: str) -> str:
    """'timm/tf_efficientnet_lite0' as 'Lite0'."""
    return backbone.replace("timm/tf_efficientnet_lite", "Lite").replace("timm/", "")


def read_all(folders: list[Path]) -> pd.DataFrame:
    tables = []
    for folder in folders:
        outcome = read_outcome(folder)
        tables.append(outcome.results.assign(backbone=outcome.facts.backbone, weights=outcome.facts.weights))
    return pd.concat(tables)


def make_table(results: pd.DataFrame, backbones: list[str]) -> list[str]:
    """A row for each method, a column for each backbone: mean accuracy in percent, +- deviation between seeds."""
    lines = [f"| | {' | '.join(map(short, backbones))} |", f"|---|{'---|' * len(backbones)}"]
    by_seed = results.groupby(["title", "backbone", "seed"], sort=False)["accuracy"].mean() * 100
    for title in dict.fromkeys(results["title"]):
        cells = []
        for backbone in backbones:
            seeds = by_seed[title].get(backbone)
            spread = "" if seeds is None or len(seeds) < 2 else f" ± {seeds.std():.1f}"
            cells.append("-" if seeds is None else f"{seeds.mean():.1f}{spread}")
        lines.append(f"| {title} | {' | '.join(cells)} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--data", type=Path, required=True, help="folder of Office-31")
    parser.add_argument("--weights", default="auto")
    parser.add_argument("--page", type=Path, help="page to put the tables into; printed unless given")
    arguments = parser.parse_args()
    keep_freed_memory()
    results = read_all(arguments.folders)
    backbones = list(dict.fromkeys(results["backbone"]))
    seeds = ", ".join(map(str, sorted(results["seed"].unique())))
    names = scenario_titles(dict.fromkeys(results["scenario"]))
    lines = [f"Accuracy in percent on Office-31, mean over {' and '.join(names.values())} and seeds {seeds}.", ""]
    lines += [*make_table(results, backbones)]
    rates = [images_per_second(backbone, arguments.weights, arguments.data) for backbone in backbones]
    lines += [f"| images per second | {' | '.join(f'{rate:.0f}' for rate in rates)} |", ""]
    for scenario, title in names.items():
        lines += [f"{title}:", "", *make_table(results[results["scenario"] == scenario], backbones), ""]
    commits = ", ".join(sorted({str(commit) for commit in results["commit"]}))
    lines += [f"Images per second: {IMAGES} images on {os.cpu_count()} cores. Commit of the runs: {commits}.", ""]
    text = "\n".join(lines)
    if arguments.page is None:
        print(text)
        return
    page = arguments.page.read_text(encoding="utf-8")
    if not MARKS.search(page):
        sys.exit(f"{arguments.page} has no place for tables: '<!-- tables -->' and '<!-- end -->'.")
    write_atomically(arguments.page, MARKS.sub(lambda found: found[1] + text + found[2], page))


if __name__ == "__main__":
    main()
