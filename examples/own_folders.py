"""Adapt to folders of images in Python, then predict, evaluate and load the model again.

Make the images with `python examples/digit_images.py digits`, then run `python examples/own_folders.py digits`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import qurate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="folder written by digit_images.py")
    parser.add_argument("--steps", type=int, default=None, help="training steps before selection")
    parser.add_argument("--rounds", type=int, default=None, help="rounds of selection")
    options = parser.parse_args()
    digits: Path = options.folder

    model = qurate.adapt(
        source=digits / "typeset",
        labeled=digits / "handwritten-labelled",
        unlabeled=digits / "handwritten",
        method="tml",
        selector="balanced",
        steps=options.steps,
        rounds=options.rounds,
        out=digits / "run",  # model, tables and report.html
        force=True,  # replace the run of an earlier call
    )
    print(model)

    table = model.predict(digits / "handwritten")
    print(table.sort_values("probability").head())  # the least certain ones

    found = model.evaluate(digits / "answers")  # labels that were not used in training
    print(f"accuracy {found.accuracy:.1%}, balanced accuracy {found.balanced_accuracy:.1%}")

    again = qurate.load(digits / "run")
    assert again.predict(digits / "handwritten").equals(table)


if __name__ == "__main__":
    main()
