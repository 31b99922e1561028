"""What is missing in a local copy of a suite. Nothing is written."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from typing import NamedTuple

from qurate.data.checks import CheckReport
from qurate.data.domains import read_folder
from qurate.data.images import ImageFiles
from qurate.data.list_files import move_rows, parse_list
from qurate.data.samples import DataError, Split
from qurate.data.suites import (
    Suite,
    SuiteDomain,
    find_folder,
    missing_lists,
    read_suite_split,
    source_list,
    where_published,
)
from qurate.runtime.paths import list_some

SHOTS = (1, 3)
"""Shots that the public lists exist for."""


def check_suite(suite: Suite, data: Path | None) -> CheckReport:
    """Compare a local copy with what the suite says of itself. No image is decoded.

    Args:
        suite: What should be there.
        data: Folder of its images; a generated suite needs none.

    Example:
        >>> from qurate.data.suites import load_suite
        >>> check_suite(load_suite("digits"), None).ok
        True
    """
    if suite.generated:
        return CheckReport((f"{suite.title}: made when it is used ({suite.published}); nothing to check.",), (), ())
    about = (
        f"{suite.title}: {len(suite.domains)} domains, {suite.classes} classes, {len(suite.scenarios)} scenarios "
        f"({', '.join(suite.scenarios)})."
    )
    if data is None or not data.is_dir():
        where = "none was given; pass --data DIR" if data is None else f"{data} is not a folder"
        problem = f"data must be the folder of {suite.title}, but {where}. {where_published(suite.published)}"
        return CheckReport((about,), (problem,), ())
    found = _Findings(suite, data)
    lists = suite.find_lists(data)
    if suite.lists and lists is None:
        found.problems.append(missing_lists(suite, data))
    for domain in suite.domains.values():
        found.check_domain(domain, lists)
    if lists is not None:
        found.check_lists(lists)
    return CheckReport((about, *found.summary), tuple(found.problems), tuple(found.warnings))


class Overlap(NamedTuple):
    """How many different files two parts share, and how many the second part holds."""

    first: str
    second: str
    shared: int
    size: int


def find_overlaps(split: Split) -> list[Overlap]:
    """Every pair of parts of a split of image files that share some; files are the same if their real paths are.

    Example:
        >>> find_overlaps(read_mme_split("data/office31", "webcam", "amazon", shots=3))  # images  # doctest: +SKIP
        [Overlap(first='target_unlabeled', second='validation', shared=93, size=93)]
    """
    inputs = {name: part.inputs for name, part in split.parts.items()}
    files = {name: given.paths for name, given in inputs.items() if isinstance(given, ImageFiles)}
    found = {name: {path.resolve() for path in paths} for name, paths in files.items()}
    pairs = [(first, second, len(found[first] & found[second])) for first, second in combinations(found, 2)]
    return [Overlap(first, second, count, len(files[second])) for first, second, count in pairs if count]


class _Findings:
    """What is found of a suite in a folder."""

    def __init__(self, suite: Suite, data: Path) -> None:
        self.suite = suite
        self.data = data
        self.summary: list[str] = []
        self.problems: list[str] = []
        self.warnings: list[str] = []
        self._sound: set[str] = set()

    def check_domain(self, domain: SuiteDomain, lists: Path | None) -> None:
        """Its folder and its list of all images, or its class folders."""
        before = len(self.problems)
        try:
            folder = find_folder(self.suite, domain, self.data)
            if self.suite.lists:
                self._check_class_folders(domain, self.data / folder, lists is not None)
                if lists is not None:
                    self._check_source_list(domain, folder, lists)
            else:
                content = read_folder(self.data / folder, name=domain.name)
                self.summary.append(f"{domain.name} ({folder}): {len(content)} images, {len(content.classes)} classes.")
                self._check_counts(domain, f"folder {folder}", len(content), len(content.classes))
        except DataError as error:
            self.problems.append(str(error))
        if len(self.problems) == before:
            self._sound.add(domain.name)

    def check_lists(self, lists: Path) -> None:
        """The lists of every target whose domain is sound: all there, their files there, what they share."""
        targets: dict[str, str] = {}
        for scenario in self.suite.scenarios:
            if set(scenario.split(":")) <= self._sound:
                targets.setdefault(scenario.partition(":")[2], scenario)
        for target, scenario in targets.items():
            for shots in SHOTS:
                try:
                    split = read_suite_split(self.suite, self.data, scenario, shots=shots, seed=0, protocol="mme")
                except DataError as error:
                    self.problems.append(f"lists in {lists}: {error}")
                    continue
                found = find_overlaps(split)
                if shared := [f"{one.shared} of {one.size} of {one.second} are also in {one.first}" for one in found]:
                    overlap = f"{target}, {shots}-shot lists overlap: {'; '.join(shared)}"
                    self.warnings.append(f"{overlap}. Protocol 'clean' takes them apart.")

    def _check_class_folders(self, domain: SuiteDomain, folder: Path, has_lists: bool) -> None:
        """More classes on disk than wanted are harmless where lists choose among them."""
        classes = sum(1 for child in folder.iterdir() if child.is_dir())
        if self.suite.whole_classes and classes == self.suite.whole_classes:
            expected = f"the {self.suite.classes} of {self.suite.title}"
            text = f"{domain.name} has the {classes} classes of the whole data set, not {expected}."
            if has_lists:
                self.warnings.append(f"{text} The lists choose the right ones, and only those are read.")
            else:
                self.problems.append(f"{text} The lists, which are missing, would choose the right ones.")

    def _check_source_list(self, domain: SuiteDomain, folder: str, lists: Path) -> None:
        rows = move_rows(parse_list(source_list(lists, domain)), {domain.name: folder})
        classes = len({row.label for row in rows})
        self.summary.append(f"{domain.name} ({folder}): {len(rows)} images listed, {classes} classes.")
        self._check_counts(domain, source_list(lists, domain).name, len(rows), classes)
        if missing := [row.path for row in rows if not (self.data / row.path).is_file()]:
            self.problems.append(
                f"{domain.name}: {len(missing)} of {len(rows)} listed images are missing: {list_some(missing, 3)}. "
                f"{where_published(self.suite.published)}"
            )

    def _check_counts(self, domain: SuiteDomain, where: str, images: int, classes: int) -> None:
        suite = self.suite
        if classes != suite.classes:
            whole = classes == suite.whole_classes
            why = f": that is the whole data set, of which {suite.title} is a part" if whole else ""
            self.problems.append(f"{domain.name}: {where} has {classes} classes, expected {suite.classes}{why}.")
        if domain.images is not None and images != domain.images:
            self.problems.append(f"{domain.name}: {where} has {images} images, expected {domain.images} as published.")
