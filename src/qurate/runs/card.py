"""The model card of a run: README.md, for people who find the folder, and for hubs that show such a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from qurate.report.run_tables import class_rows
from qurate.report.run_text import how_sure, outcome
from qurate.run_results import RunRecord
from qurate.runs.files import BASELINE_FOLDER, CARD_MARK, EXPORT_FILE, REPORT_FILE
from qurate.runtime.commands import NextStep, predict_with

_STATISTICS = (
    "The model holds class statistics of the embeddings of its source, from which `qurate adapt --from-model` begins; "
    "the mean of a class with one source image is the embedding of that image."
)


def make_card(record: RunRecord, about: dict[str, Any], run: Path) -> str:
    """The card as Markdown: what the model is, whether adaptation helped, its classes, and how to use it.

    Args:
        record: What the run left.
        about: model.json of the run.
        run: Its folder.
    """
    found = outcome(record.comparison, record.no_comparison, record.answers)
    is_harmful = record.comparison is not None and record.comparison.verdict == "harms"
    name = f"{run.name}/{BASELINE_FOLDER}" if is_harmful else run.name
    export = NextStep("", ("export", name, "--format", "onnx"))
    rows = [
        f"| {_cell(row['label'])} | {row['source']} | {row['labeled']} | {row['predictions']} |"
        for row in class_rows(record)
    ]
    of_statistics = "class statistics of one domain, in a saved model and without images of it,"
    origin = of_statistics if record.drawn else "labelled images of one domain"
    trained = "all layers trained" if about.get("trained") == "full" else "layers after it trained"
    lines = [
        "---",
        "library_name: qurate",
        "pipeline_tag: image-classification",
        "---",
        CARD_MARK,
        f"# {_cell(record.title)}",
        "",
        f"An image classifier of {len(record.classes)} classes, adapted from {origin} to another "
        f"with {len(record.labeled):,} labelled and {len(record.predictions):,} unlabelled images. Backbone: "
        f"`{about['network']['backbone']}`, {trained}; qurate {about.get('qurate', '')}.",
        "",
        f"## {found.headline}",
        "",
        *[f"{_cell(text)}\n" for text in (*found.text, *how_sure(record)[:1]) if text],
        "The counts below are of images. No accuracy is known of a class without labelled images to measure it on.",
        "",
        "| class | source | labelled target | predicted |",
        "|---|---:|---:|---:|",
        *rows,
        "",
        *([_STATISTICS, ""] if about.get("source_statistics") else []),
        "## How to use it",
        "",
        "From the folder that holds this one, in the shell:",
        "",
        "```sh",
        predict_with(name).command,
        "```",
        "",
        "In Python:",
        "",
        "```python",
        "import qurate",
        "",
        f"model = qurate.load({name!r})",
        'print(model.predict("IMAGES"))  # a folder, paths, PIL images or arrays',
        'print(model.predict_proba("IMAGES", top_k=3))',
        "```",
        "",
        f"Without qurate, as ONNX: this writes `{EXPORT_FILE}`, which holds its classes and how images are prepared.",
        "",
        "```sh",
        export.command,
        "```",
        "",
        "Its input is prepared so:",
        "",
        *[f"- {_cell(line)}" for line in about["how to use"]],
        "",
        f"`{REPORT_FILE}` shows what was learned"
        + (f"; `{BASELINE_FOLDER}/` is plain training (S+T)." if record.comparison is not None else "."),
        "",
    ]
    return "\n".join(lines)


def _cell(text: str) -> str:
    """A text in one line in which nothing but code between backticks is Markdown."""
    line = " ".join(text.split()).replace("\\", "\\\\").replace("<", "&lt;")
    for mark in ("|", "*", "_", "["):
        line = line.replace(mark, f"\\{mark}")
    return line
