"""The data audit: what hinders adaptation in three folders. Nothing is written. Loads no torch."""

from __future__ import annotations

import hashlib
import os
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

from qurate.data.images import OnProgress, read_image, try_all
from qurate.data.list_files import list_labeled, list_sources, list_unlabeled
from qurate.data.listing import (
    HIDDEN,
    NO_IMAGE,
    DataWarning,
    Listing,
    describe_counts,
    describe_range,
    describe_sources,
    find_new,
    join_listings,
)
from qurate.embedding.digests import hash_files
from qurate.errors import DataError
from qurate.runtime.paths import StrPath, count, list_some

FEW_LABELS = 3
"""Fewer labels per class than this are too few to count on; the paper has 1 or 3."""
FEW_UNLABELED = 10
"""Fewer unlabelled images than this for each class give little to adapt to."""
IMBALANCE = 10.0
"""A class this many times larger than another is worth a word."""
SMALL_SIDE = 32
"""An image with a side of fewer pixels than this shows little to a backbone that looks at 224."""
LONG_SHAPE = 4.0
"""An image this many times longer than wide is squeezed beyond recognition."""


@dataclass(frozen=True)
class CheckReport:
    """What `check_data` found.

    Args:
        summary: What each part holds.
        problems: What adaptation would stop at; each says what to do.
        warnings: What it would accept, but a person should look at.
    """

    summary: tuple[str, ...]
    problems: tuple[str, ...]
    warnings: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether the data can be adapted with as they are."""
        return not self.problems

    def lines(self) -> list[str]:
        """The report, one finding per line."""
        found = [f"Problem: {text}" for text in self.problems] + [f"Warning: {text}" for text in self.warnings]
        verdict = f"{_count(self.problems, 'problem')}, {_count(self.warnings, 'warning')}."
        return [*self.summary, *found, verdict if found else "No problems found."]


@dataclass(frozen=True)
class Picture:
    """One readable image: where it is, whose class, its size, and the digest of its pixels."""

    part: str
    path: Path
    label: str | None
    size: tuple[int, int]
    digest: bytes


def check_data(
    source: StrPath | Sequence[StrPath] | Listing,
    labeled: StrPath | Listing,
    unlabeled: StrPath | Listing,
    *,
    on_progress: OnProgress | None = None,
) -> CheckReport:
    """Look at every image of the three parts and say what is wrong with them.

    Images are the same if their decoded pixels are, whatever the files are called.

    Args:
        source: Class folders, a list file or a CSV table; or several.
        labeled: The same for the labelled target images.
        unlabeled: Any folder, a list or a table; labels in it are not looked at.
        on_progress: Called after each image.

    Example:
        >>> report = check_data("photos", "sketches/labeled", "nowhere")
        >>> report.ok
        False
        >>> print(report.lines()[-1])
        3 problems, 0 warnings.
    """
    domains: dict[str, Listing] = {}
    problems: list[str] = []
    of_sources: list[str] = []
    for part, given in (("source", source), ("labeled", labeled), ("unlabeled", unlabeled)):
        try:
            if isinstance(given, str | os.PathLike | Listing):
                domains[part] = _read(part, given)
            else:
                domains[part], of_sources = _read_sources(given)
        except DataError as error:
            said = str(error).replace(f"`{part}`", part)
            problems.append(said if said.startswith(part) else f"{part}: {said}")
    by_part, unreadable = _look_at_all(domains, on_progress)
    summary = [_describe(part, by_part[part], domain) for part, domain in domains.items()]
    summary[1:1] = of_sources
    problems += _class_problems(domains, by_part)
    problems += [] if problems else _refusals(domains, unreadable)
    found = [
        *_skipped_warnings(domains, unreadable),
        *_duplicate_warnings(by_part),
        *_count_warnings(by_part),
        *_size_warnings(by_part),
    ]
    return CheckReport(tuple(summary), tuple(problems), tuple(found))


def _read_sources(given: StrPath | Sequence[StrPath]) -> tuple[Listing, list[str]]:
    """All sources together, and a sentence on each where there are several."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)
        sources = list_sources(given)
    whole = join_listings(list(sources.values()))
    labels = {name: [each.classes[k] for k in each.labels if k >= 0] for name, each in sources.items()}
    return whole, describe_sources(labels, whole.classes) if len(sources) > 1 else []


def _read(part: str, given: StrPath | Listing) -> Listing:
    """The part as adaptation reads it, without warnings: the report says what is skipped."""
    if isinstance(given, Listing):
        return given
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)
        found = list_unlabeled(given, part) if part == "unlabeled" else list_labeled(given, part)
        return found.without_unnamed() if part == "labeled" else found


def _refusals(domains: Mapping[str, Listing], unreadable: Mapping[Path, str]) -> list[str]:
    """What `adapt` would refuse besides, from its own check."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)
        try:
            sound = {part: domain.without(unreadable) for part, domain in domains.items()}
            contents, _ = hash_files(path for domain in sound.values() for path in domain.paths)
            find_new(sound["unlabeled"], sound["labeled"], contents)
        except DataError as error:
            return [str(error)]
    return []


def _look_at_all(
    domains: Mapping[str, Listing], on_progress: OnProgress | None
) -> tuple[dict[str, list[Picture]], dict[Path, str]]:
    """The readable images of each part, and why the other files cannot be read."""
    paths = [path for domain in domains.values() for path in domain.paths]
    found, unreadable = try_all(_look, paths, on_progress)
    by_part: dict[str, list[Picture]] = {part: [] for part in domains}
    for part, domain in domains.items():
        for path, label in zip(domain.paths, domain.labels, strict=True):
            if path in found:
                name = domain.classes[label] if label >= 0 and part != "unlabeled" else None
                by_part[part].append(Picture(part, path, name, *found[path]))
    return by_part, unreadable


def _look(path: Path) -> tuple[tuple[int, int], bytes]:
    image = read_image(path)
    return image.size, hashlib.sha256(str(image.size).encode() + image.tobytes()).digest()


def _describe(part: str, pictures: Sequence[Picture], domain: Listing) -> str:
    if not pictures:
        return f"{part}: no readable image."
    text = f"{part}: {_count(pictures)}"
    if counts := _class_counts(pictures):
        text += f", {describe_counts(counts)}"
    sides = [side for picture in pictures for side in picture.size]
    text += f", sides of {describe_range(sides)} pixels"
    passed_over = sum(skip.reason in (HIDDEN, NO_IMAGE) for skip in domain.skipped)
    return text + (f"; {passed_over} hidden or other files skipped." if passed_over else ".")


def _class_counts(pictures: Sequence[Picture]) -> Counter[str]:
    return Counter(picture.label for picture in pictures if picture.label is not None)


def _class_problems(domains: Mapping[str, Listing], by_part: Mapping[str, Sequence[Picture]]) -> Iterator[str]:
    counts = {part: _class_counts(by_part[part]) for part in ("source", "labeled") if part in domains}
    for part, sizes in counts.items():
        if by_part[part] and not domains[part].classes:
            yield f"{part} must have labels, but no image has a class. Fill in the column label."
        elif nameless := [picture.path for picture in by_part[part] if picture.label is None]:
            yield f"{part} has {_count(nameless)} without class: {list_some(nameless, 3)}. Label or remove them."
        if empty := [name for name in domains[part].classes if not sizes[name]]:
            yield f"{part} has classes without a readable image: {list_some(empty)}. Add images or remove the classes."
        if part == "source" and len(sizes) < 2:
            yield f"source must have at least two classes, got {list_some(sizes) or 'none'}. Is it the right folder?"
    if len(counts) == 2 and all(domains[part].classes for part in counts):
        for part, other in (("source", "labeled"), ("labeled", "source")):
            if names := [name for name in domains[part].classes if name not in domains[other].classes]:
                likely = _same_but_for_spelling(names, domains[other].classes)
                hint = f" Spelled differently there: {likely}." if likely else ""
                label = "Label an image of each in labeled, rename" if part == "source" and not likely else "Rename"
                drop = "" if likely else " `adapt --missing drop` does without them."
                yield f"Only {part} has {list_some(names)}.{hint} {label} the classes alike, or remove those.{drop}"


def _same_but_for_spelling(names: Sequence[str], others: Sequence[str]) -> str:
    def plain(name: str) -> str:
        return "".join(filter(str.isalnum, name.casefold()))

    known = {plain(name): name for name in others}
    return ", ".join(f"'{name}' as '{known[plain(name)]}'" for name in names if plain(name) in known)


def _skipped_warnings(domains: Mapping[str, Listing], unreadable: Mapping[Path, str]) -> Iterator[str]:
    for part, domain in domains.items():
        reasons = [f"{skip.path}: {skip.reason}" for skip in domain.skipped if skip.reason not in (HIDDEN, NO_IMAGE)]
        reasons += [unreadable[path] for path in domain.paths if path in unreadable]
        if reasons:
            yield f"{part} has {_count(reasons, 'file')} to be left out: {list_some(reasons, 5)}."


def _duplicate_warnings(by_part: Mapping[str, Sequence[Picture]]) -> Iterator[str]:
    same: dict[bytes, list[Picture]] = defaultdict(list)
    for pictures in by_part.values():
        for picture in pictures:
            same[picture.digest].append(picture)
    groups = [group for group in same.values() if len(group) > 1]
    if torn := [group for group in groups if len({picture.label for picture in group} - {None}) > 1]:
        examples = list_some((" = ".join(f"{p.path} ({p.label})" for p in group if p.label) for group in torn), 3)
        yield f"{_count(torn)} with more than one class: {examples}. Keep the right one."
    for part in by_part:
        if inside := [members for group in groups if len(members := [p for p in group if p.part == part]) > 1]:
            examples = list_some((f"{members[0].path} = {members[1].path}" for members in inside), 3)
            yield f"{part} holds {_count(inside)} more than once: {examples}. Remove the copies."
    for first, second in combinations(by_part, 2):
        if shared := [group for group in groups if {first, second} <= {picture.part for picture in group}]:
            pairs = [[next(p for p in group if p.part == part) for part in (first, second)] for group in shared]
            examples = list_some((f"{one.path} = {two.path}" for one, two in pairs), 3)
            yield f"{_count(shared)} both in {first} and in {second}: {examples}. Remove them from {second}."


def _count_warnings(by_part: Mapping[str, Sequence[Picture]]) -> Iterator[str]:
    counts = {part: _class_counts(by_part.get(part, ())) for part in ("source", "labeled")}
    for part, sizes in counts.items():
        if sizes and max(sizes.values()) >= IMBALANCE * min(sizes.values()):
            (large, most), (small, least) = sizes.most_common()[0], sizes.most_common()[-1]
            yield f"{part} is uneven: {most} of '{large}' but {least} of '{small}'. More of the small ones help."
    if few := [name for name, size in counts["labeled"].items() if size < FEW_LABELS]:
        yield (
            f"labeled has fewer than {FEW_LABELS} images of {list_some(few)}. Every further label counts; how much "
            "adaptation helped cannot be told well from so few."
        )
    n_classes = len(counts["source"])
    if "unlabeled" in by_part and len(by_part["unlabeled"]) < FEW_UNLABELED * n_classes:
        yield (
            f"unlabeled has {_count(by_part['unlabeled'])} for {n_classes} classes. Adaptation learns from them: "
            f"{FEW_UNLABELED * n_classes} or more are better."
        )


def _size_warnings(by_part: Mapping[str, Sequence[Picture]]) -> Iterator[str]:
    for part, pictures in by_part.items():
        if small := [picture for picture in pictures if min(picture.size) < SMALL_SIDE]:
            yield f"{part} has {_count(small)} with a side under {SMALL_SIDE} pixels: {_with_sizes(small)}."
        if long := [picture for picture in pictures if max(picture.size) > LONG_SHAPE * min(picture.size)]:
            yield f"{part} has {_count(long)} over {LONG_SHAPE:g} times as long as wide: {_with_sizes(long)}."


def _with_sizes(pictures: Sequence[Picture]) -> str:
    return list_some((f"{picture.path} ({picture.size[0]} x {picture.size[1]})" for picture in pictures), 3)


def _count(things: Sequence[object], what: str = "image") -> str:
    return count(len(things), what)
