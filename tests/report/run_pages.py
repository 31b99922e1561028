"""The page of a run, written and read back as a tree of elements."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

from qurate.report.run_page import write_run_page
from qurate.run_results import RunRecord

VOID = {"meta", "link", "img", "br", "wbr", "input", "hr"}
PARTS = ("outcome", "labels", "domains", "chosen", "rounds", "classes", "sure", "map", "next", "steps", "about")


class Page(HTMLParser):
    """Elements, and text by the nearest enclosing section; fails where tags do not match."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.html = html
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.text: dict[str, str] = {}
        self._open: list[str] = []
        self._section = ""
        self.feed(html)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.elements.append((tag, values))
        if tag == "section":
            self._section = values["id"]
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] not in ("style", "title"):
            self.text[self._section] = self.text.get(self._section, "") + data

    def all(self, tag: str, **wanted: str) -> list[dict[str, str]]:
        """Attributes of the elements of a tag that have these."""
        return [a for t, a in self.elements if t == tag and all(a.get(k) == v for k, v in wanted.items())]

    def said(self, part: str) -> str:
        """The text of a section with plain spaces and minus signs."""
        return " ".join(self.text[part].split()).replace("\u2212", "-")


def written(record: RunRecord, tmp_path: Path) -> Page:
    path = tmp_path / "run" / "report.html"
    write_run_page(record, path)
    assert [file.name for file in path.parent.iterdir()] == ["report.html"]
    return Page(path.read_text(encoding="utf-8"))
