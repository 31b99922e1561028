"""Query labels, learn from the answers, repeat: a loop with an annotator of your own.

Make the images with `python examples/digit_images.py digits`, then run `python examples/ask_a_person.py digits`. The
annotator here looks up the answer in the folder answers/; yours may show the image to a person.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import qurate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="folder written by digit_images.py")
    parser.add_argument("--turns", type=int, default=2, help="number of queries")
    parser.add_argument("--count", type=int, default=20, help="images per query")
    parser.add_argument("--steps", type=int, default=None, help="training steps before selection")
    parser.add_argument("--rounds", type=int, default=None, help="rounds of selection")
    options = parser.parse_args()
    digits: Path = options.folder
    parts = (digits / "typeset", digits / "handwritten-labelled", digits / "handwritten")

    def annotate(file: str) -> str:
        return next((digits / "answers").glob(f"*/{Path(file).name}")).parent.name

    for turn in range(options.turns + 1):  # remove the answers of an earlier execution
        (digits / f"asked-{turn}" / "labels.csv").unlink(missing_ok=True)
    model = qurate.adapt(*parts, steps=options.steps, rounds=options.rounds, out=digits / "asked-0", force=True)
    print(f"before: {model.evaluate(digits / 'answers').accuracy:.1%}")
    for turn in range(1, options.turns + 1):
        table = model.suggest(options.count, random_share=0.2)
        table["label"] = [annotate(file) for file in table["file"]]
        table.to_csv(digits / "answers.csv", index=False)
        model = qurate.adapt(labels=digits / "answers.csv", previous=model, out=digits / f"asked-{turn}", force=True)
        # This includes the images that were asked about, which the model was trained on.
        print(f"after {turn * options.count} answers: {model.evaluate(digits / 'answers').accuracy:.1%}")


if __name__ == "__main__":
    main()
