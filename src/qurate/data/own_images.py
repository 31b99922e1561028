"""Images as people have them: a folder, a list or a table for each part, and what was understood of it."""

from __future__ import annotations

import glob
import hashlib
import io
import os
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd
import torch

from qurate.data.domains import Domain, domain_of, leave_out, listing_of, match_classes
from qurate.data.images import ImageFiles, OnProgress, Transform, try_all
from qurate.data.list_files import list_labeled, list_sources, list_unlabeled, parse_paths, path_of
from qurate.data.listing import DataWarning, find_new, join_listings, list_folder
from qurate.data.samples import Labeled, Split, Unlabeled
from qurate.data.splits import split_parts
from qurate.embedding.digests import HashedFile, digest_index, hash_files, with_copies
from qurate.errors import DataError
from qurate.runtime.files import write_atomically
from qurate.runtime.paths import IMAGE_SUFFIXES, as_path, is_file, is_folder, list_some, shorten
from qurate.runtime.paths import StrPath as StrPath

Missing = Literal["error", "drop"]
"""What is done with a class that one side lacks."""


_FOREIGN_SUFFIXES = frozenset(
    {".arw", ".avif", ".cr2", ".dng", ".heic", ".heif", ".jfif", ".jp2", ".jxl", ".nef", ".psd", ".svg"}
)
"""Kinds of images that are not read, but are not passed over in silence either."""


def count_images(*paths: StrPath) -> int:
    """About how many images there are: files of folders by their names, lines of lists and tables."""
    count = 0
    for path in paths:
        if is_file(Path(path)):
            count += sum(1 for line in Path(path).read_bytes().splitlines() if line.strip())
        else:
            names = (name for _, _, files in os.walk(path) for name in files)
            count += sum(Path(name).suffix.lower() in IMAGE_SUFFIXES for name in names)
    return count


@dataclass(frozen=True, eq=False)
class Parts:
    """The three parts of a run, read and matched.

    Args:
        domains: 'source', 'labeled' and 'unlabeled' as they were read.
        contents: Digests of all their files.
        missing: What is done with a class that one side lacks.
        split: Image files; nothing is sealed, for no one knows the hidden labels.
        notes: Sentences on what was left out.
        added: Classes without an image in `source` and `labeled`, which people added while answering; the last of all.
        corrected: Images of `source` and `labeled` whose label people corrected, by absolute path, and the class that
            they have now; empty for those that are left out.
        sources: Names of the source domains, where there are several.
        source_of: Position among them, for each image of `source`.
    """

    domains: Mapping[str, Domain]
    contents: Mapping[Path, HashedFile]
    missing: Missing
    split: Split
    notes: tuple[str, ...]
    added: tuple[str, ...] = ()
    corrected: Mapping[str, str] = field(default_factory=dict)
    sources: tuple[str, ...] = ()
    source_of: Mapping[Path, int] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Source and target, by their folders' names."""
        return f"{self.domains['source'].name} to {self.domains['unlabeled'].name}"

    @property
    def source_domains(self) -> torch.Tensor:
        """Which source each of D_s is of, (N_s,) int64; for several sources."""
        return torch.tensor([self.source_of[path] for path in paths_of(self.split.source)])

    @property
    def source_labels(self) -> dict[str, list[str]]:
        """The class of each image of D_s, by the name of its source; nothing where there is one source."""
        found: dict[str, list[str]] = {name: [] for name in self.sources}
        if self.sources:
            for number, label in zip(self.source_domains.tolist(), self.split.source.labels.tolist(), strict=True):
                found[self.sources[number]].append(self.split.classes[label])
        return found

    @property
    def digest(self) -> str:
        """Of all contents and labels: equal data, equal digest, wherever it lies."""
        split = self.split
        return self._digest_of(split.source, split.target_labeled, split.target_unlabeled)

    @property
    def labeled_digest(self) -> str:
        """Of the labelled target alone, in its order."""
        return self._digest_of(self.split.target_labeled)

    def _digest_of(self, *parts: Labeled | Unlabeled) -> str:
        whole = hashlib.sha256("\n".join(self.split.classes).encode())
        for part in parts:
            assert isinstance(part.inputs, ImageFiles)
            labels = part.labels.tolist() if isinstance(part, Labeled) else [-1] * len(part)
            for path, label in zip(part.inputs.paths, labels, strict=True):
                whole.update(self.contents[path].digest + int(label).to_bytes(8, "big", signed=True))
            whole.update(b"end of part")
        return whole.hexdigest()

    def table(self) -> pd.DataFrame:
        """What the digest is of: part, file, class and content of each image."""
        split, rows = self.split, []
        parts: dict[str, Labeled | Unlabeled] = {"source": split.source, "labeled": split.target_labeled}
        for name, part in (parts | {"unlabeled": split.target_unlabeled}).items():
            labels = part.labels.tolist() if isinstance(part, Labeled) else [-1] * len(part)
            for path, label in zip(paths_of(part), labels, strict=True):
                named = self.split.classes[label] if label >= 0 else ""
                rows.append((name, str(path), named, self.contents[path].digest.hex()))
        return pd.DataFrame(rows, columns=["part", "file", "label", "sha256"])

    def lines(self) -> list[str]:
        """What was understood, one sentence each."""
        split = self.split
        shots = torch.bincount(split.target_labeled.labels, minlength=split.n_classes)
        few = f"{int(shots.min())}" if shots.min() == shots.max() else f"{int(shots.min())} to {int(shots.max())}"
        return [
            f"{split.n_classes} classes: {list_some(split.classes, 5)}.",
            *([f"Source: {len(split.source)} labelled images."] if len(split.source) else []),
            f"Target: {len(split.target_labeled)} labelled images ({few} per class), "
            f"{len(split.target_unlabeled)} unlabelled.",
            *self.notes,
        ]

    def without(self, unreadable: Mapping[Path, str]) -> Parts:
        """The parts without files that turned out to be unreadable, and whatever has the same content.

        Where there are any, the result has no added classes and no corrected labels.

        Raises:
            DataError: If too little is left.
        """
        if not unreadable:
            return self
        everywhere = with_copies(unreadable, self.contents)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DataWarning)  # the notes say it
            domains = {name: leave_out(domain, everywhere) for name, domain in self.domains.items()}
        found = match_parts(domains, self.contents, self.missing)
        return replace(found, sources=self.sources, source_of=self.source_of)

    def add_classes(self, names: Sequence[str]) -> Parts:
        """The parts with more classes, of which they have no labelled image."""
        added = (*self.added, *names)
        return replace(self, split=replace(self.split, classes=(*self.split.classes, *names)), added=added)

    def labeled_copies(self) -> dict[Path, Path]:
        """The unlabelled images that are no part of the split, each with the labelled image that it is the same as."""
        given = (
            paths_of(self.split.target_labeled),
            paths_of(self.domains["labeled"]),
        )  # an answer may have dropped some
        labeled = {self.contents[path].digest: path for paths in reversed(given) for path in reversed(paths)}
        kept = set(paths_of(self.split.target_unlabeled))
        left_out = [path for path in paths_of(self.domains["unlabeled"]) if path not in kept]
        return {path: labeled[self.contents[path].digest] for path in left_out}


def read_parts(
    source: StrPath | Sequence[StrPath] | Domain,
    labeled: StrPath,
    unlabeled: StrPath,
    *,
    missing: Missing = "error",
    cache: Path | None = None,
) -> Parts:
    """Read the parts of a run. Files are hashed, but no image is decoded: `Parts.without` leaves out what breaks later.

    Args:
        source: Labelled source: class folders, a list file (one `path class` per line) or a CSV table; or several; or
            a domain that was read before, as one without images has no place.
        labeled: Labelled target, likewise, of the same classes.
        unlabeled: Unlabelled target: any folder, nested or flat, a list or a table. Images that are also in `labeled`,
            by content, are left out.
        missing: What to do with a class that one side lacks: `error` raises, `drop` leaves it out.
        cache: Where digests of files are remembered.

    Raises:
        DataError: If a part is missing or empty, or the classes do not match.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)  # the notes say it
        sources = {} if isinstance(source, Domain) else list_sources(source)
        domains = {
            "source": source if isinstance(source, Domain) else domain_of(join_listings(list(sources.values()))),
            "labeled": domain_of(list_labeled(labeled, "labeled").without_unnamed()),
            "unlabeled": read_unlabeled(unlabeled, "unlabeled"),
        }
        paths = [path for domain in domains.values() for path in paths_of(domain)]
        contents, unreadable = hash_files(paths, digest_index(cache))
        domains = {name: leave_out(domain, unreadable) for name, domain in domains.items()}
    parts = match_parts(domains, contents, missing)
    if len(sources) < 2:
        return parts
    source_of = {path: number for number, listing in enumerate(sources.values()) for path in listing.paths}
    return replace(parts, sources=tuple(sources), source_of=source_of)


def without_images(name: str, classes: Sequence[str]) -> Domain:
    """A source of which only the classes are known."""
    return Domain(name, ImageFiles(()), torch.empty(0, dtype=torch.int64), tuple(classes))


def read_labeled(where: StrPath, argument: str) -> Domain:
    """A labelled domain from a folder of class folders, a list file or a CSV table, by what is there."""
    return domain_of(list_labeled(where, argument))


def read_unlabeled(where: StrPath, argument: str) -> Domain:
    """A domain without labels from any folder, list or table; labels that a list has are not read."""
    return domain_of(list_unlabeled(where, argument))


def find_images(images: StrPath | Sequence[StrPath]) -> list[Path]:
    """Files to predict, readable or not: those of a folder by their names, of a glob, of a list or table, or one.

    Raises:
        DataError: If there is none.
    """
    allowed = f"a folder, a glob, a list file or paths with at least one image ({', '.join(sorted(IMAGE_SUFFIXES))})"
    if isinstance(images, str | os.PathLike):
        place = as_path(images, "images", allowed)
        found = _images_below(place) if is_folder(place) else _images_named(place)
    elif isinstance(images, Iterable):
        found = [as_path(image, "images", allowed) for image in images]
    else:
        raise DataError(f"images must be {allowed}, got {type(images).__name__}.")
    if not found:
        raise DataError(f"images must be {allowed}, got none at {shorten(images)}.")
    return found


def _images_below(root: Path) -> list[Path]:
    below = [
        file for file in list_folder(root)[1] if not any(part.startswith(".") for part in file.relative_to(root).parts)
    ]
    if foreign := [file for file in below if file.suffix.lower() in _FOREIGN_SUFFIXES]:
        warnings.warn(
            f"{root}: {len(foreign)} images of a kind that qurate does not read are left out: "
            f"{list_some((file.relative_to(root) for file in foreign), 3)}. Save them as PNG or JPEG.",
            DataWarning,
            stacklevel=3,
        )
    return [file for file in below if file.suffix.lower() in IMAGE_SUFFIXES]


def _images_named(place: Path) -> list[Path]:
    """One image, or the files that a list or a glob names."""
    if is_file(place):
        is_image = place.suffix.lower() in IMAGE_SUFFIXES
        return [place] if is_image else [path_of(row, place.parent) for row in parse_paths(place)]
    try:
        named = glob.glob(os.fspath(place), recursive=True)  # noqa: PTH207  # any pattern
    except (OSError, re.error):
        return []
    return [file for file in sorted(map(Path, named)) if not is_folder(file)]


def paths_of(part: Domain | Labeled | Unlabeled) -> tuple[Path, ...]:
    """The image files of a part."""
    assert isinstance(part.inputs, ImageFiles), "parts are read from files"
    return part.inputs.paths


def match_parts(domains: Mapping[str, Domain], contents: Mapping[Path, HashedFile], missing: Missing) -> Parts:
    """The parts of one split, with notes on what is no part of it.

    Raises:
        DataError: If they are not enough to adapt with.
    """
    notes = [note for name, domain in domains.items() for note in _skipped(name, domain)]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", DataWarning)
        source, labeled = match_classes(domains["source"], domains["labeled"], missing=missing)
    notes += [str(warning.message) for warning in caught]
    everything = domains["unlabeled"]
    kept = find_new(listing_of(everything), listing_of(labeled), contents)
    if left_out := len(everything) - len(kept):
        images = "1 image is" if left_out == 1 else f"{left_out} images are"
        notes.append(f"unlabeled: {images} also in labeled, by content, and left out of training.")
    unlabeled = everything.keep(torch.tensor(kept))
    notes += _copies((source, labeled), unlabeled, contents)
    split = split_parts(source if len(source) else labeled, labeled, unlabeled)
    if not len(source):
        split = replace(split, source=Labeled(source.inputs, source.labels))
    return Parts(domains, contents, missing, split, tuple(notes))


def _copies(labeled: Sequence[Domain], unlabeled: Domain, contents: Mapping[Path, HashedFile]) -> list[str]:
    """A sentence on the images that are in the parts more than once, by content, and where to read which they are."""
    classes: dict[bytes, set[str]] = {contents[path].digest: set() for path in paths_of(unlabeled)}
    for domain in labeled:
        for path, label in zip(paths_of(domain), domain.labels.tolist(), strict=True):
            classes.setdefault(contents[path].digest, set()).add(domain.classes[label])
    copies = sum(map(len, labeled)) + len(unlabeled) - len(classes)
    in_several = sum(len(names) > 1 for names in classes.values())
    if not copies:
        return []
    are = "1 image is a copy of another" if copies == 1 else f"{copies} images are copies of others"
    several = f"; {in_several} {'has' if in_several == 1 else 'have'} more than one class" if in_several else ""
    return [f"{are}, by content{several}. 'qurate check' lists them and says what to do."]


def _skipped(name: str, domain: Domain) -> list[str]:
    """Sentences on the files of a part that are no samples, one for each reason."""
    by_reason: dict[str, list[str]] = {}
    for skip in domain.skipped:
        reason = skip.reason.removeprefix(f"{skip.path}: ").removesuffix(" Replace the file or remove it.")
        by_reason.setdefault(reason.replace(str(skip.path), skip.path.name).rstrip("."), []).append(skip.path.name)
    return [
        f"{name}: {len(files)} {'file' if len(files) == 1 else 'files'} left out, {reason}: {list_some(files, 3)}."
        for reason, files in by_reason.items()
    ]


def prepare_images(
    paths: Iterable[Path], transform: Transform, folder: Path, on_progress: OnProgress | None = None
) -> tuple[dict[Path, Path], dict[Path, str]]:
    """Store images as arrays of the size that they are cut from; those that are there already stay.

    An array is what `Transform` makes of the image before it crops, so a run on it is the same to the last bit. A file
    is named by the image's path, size and time of change, and by how it is resized.

    Returns:
        The array of each image, of resize * resize * 3 bytes, and the reason for those that cannot be read.
    """
    return try_all(partial(_store, folder, transform), paths, on_progress)


def read_prepared(split: Split, stored: dict[Path, Path]) -> Split:
    """The split on the stored arrays."""
    return split.convert_inputs(lambda files: ImageFiles(tuple(stored[path] for path in files.paths)))  # type: ignore[union-attr]


def _store(folder: Path, transform: Transform, path: Path) -> Path:
    about = path.stat() if path.is_file() else None
    changed = (about.st_size, about.st_mtime_ns) if about is not None else ()
    named = (transform.resize, transform.interpolation, str(path.absolute()), *changed)
    digest = hashlib.sha256(repr(named).encode(errors="surrogateescape")).hexdigest()
    place = folder / digest[:2] / f"{digest[:32]}.npy"
    if not _is_whole(place, transform.resize):
        resized = transform.resized(transform.read(path))
        content = io.BytesIO()
        np.save(content, np.asarray(resized, dtype=np.uint8), allow_pickle=False)
        write_atomically(place, content.getvalue())
    return place


def _is_whole(place: Path, side: int) -> bool:
    """Whether an array of this size is stored there."""
    try:
        return bool(np.load(place, mmap_mode="r", allow_pickle=False).shape == (side, side, 3))
    except (OSError, ValueError, EOFError):  # not there, or damaged
        return False
