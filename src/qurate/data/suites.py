"""Benchmark suites: domains, scenarios, layout on disk, public lists; long-tailed, unknown and missing classes."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from qurate.config import Bottleneck, Protocol
from qurate.data.digits import CLASSES as DIGITS
from qurate.data.digits import digits_split
from qurate.data.domains import domain_of, read_folder
from qurate.data.list_files import list_repeated, move_rows, parse_list
from qurate.data.samples import UNKNOWN, DataError, Labeled, SealedLabels, Split, Unlabeled, check_integer, take
from qurate.data.splits import read_mme_split, split_target
from qurate.errors import ConfigError
from qurate.networks.backbones import check_backbone
from qurate.runtime.paths import is_file, list_some
from qurate.runtime.validation import AT_MOST, Allowed, Checked, Count, Positive, StepsOrDefault, show

_STREAM, _HIDING = 0x7A11, 0x41DE  # random streams of their own: they move no other draw of the same seed


def thin_to_tail(split: Split, imbalance: int, seed: int) -> Split:
    """The split with D_u thinned so that class sizes fall geometrically, from the largest to 1/R of it.

    The class of rank r (0, 1, ...) among K keeps max(1, round(n R^(-r / (K - 1)))) of its samples, where n is the size
    of the largest class, or all where it has fewer. The seed decides the order of the classes and which samples stay,
    whatever R is: a larger R gives a subset. Samples keep their order; no other part is touched.

    The true classes are read here, where the split is drawn, and are sealed again.

    Args:
        split: Its D_u must have true labels, all of them known.
        imbalance: R, at least 1, which keeps everything.
        seed: Of the draw, at least 0.

    Raises:
        DataError: If an argument is not allowed, or the class of a sample is not known.

    Example:
        >>> from qurate.data.digits import digits_split
        >>> split = digits_split(shots=3, seed=0)
        >>> len(split.target_unlabeled), len(thin_to_tail(split, 20, seed=0).target_unlabeled)
        (1767, 612)
    """
    check_integer("thin_to_tail: imbalance", imbalance, 1)
    check_integer("thin_to_tail: seed", seed, 0)
    if imbalance == 1:
        return split
    whole = split.target_unlabeled
    labels = torch.full((len(whole),), -1) if whole.sealed is None else whole.sealed.open_for_evaluation()
    if unknown := int((labels < 0).sum()):
        raise DataError(
            f"thin_to_tail: the class of every unlabelled target sample must be known, but of {unknown} of "
            f"{len(whole)} it is not. Leave them out, or use imbalance 1."
        )
    kept = _draw_tail(labels, int(imbalance), np.random.default_rng((int(seed), _STREAM)))
    return replace(split, target_unlabeled=Unlabeled(take(whole.inputs, kept), SealedLabels(labels[kept])))


def _draw_tail(labels: Tensor, imbalance: int, rng: np.random.Generator) -> Tensor:
    """Positions that stay, in order; classes without a sample have no rank."""
    present, sizes = labels.unique(return_counts=True)
    ranks = rng.permutation(len(present))
    last = max(1, len(present) - 1)
    kept = []
    for label, rank in zip(present, ranks, strict=True):
        members = (labels == label).nonzero().squeeze(1)
        most = max(1, round(int(sizes.max()) * imbalance ** (-int(rank) / last)))
        kept.append(members[torch.from_numpy(rng.permutation(len(members)))[:most]])
    return torch.cat(kept).sort().values


def hide_classes(split: Split, unknown: int, missing: int, seed: int) -> Split:
    """The split with some classes unknown, and others missing from D_u.

    Samples of an unknown class stay in D_u, with the sealed label `UNKNOWN`, and leave all other parts; the known
    classes are numbered anew, in their order. Samples of a missing class leave D_u alone. The seed puts the classes in
    a random order, whose first are unknown and whose last are missing: more unknown classes include fewer ones.

    The true classes are read here, where the split is drawn, and are sealed again.

    Args:
        split: Its D_u must have true labels.
        unknown: How many classes are unknown; two must stay known.
        missing: How many of the known ones are missing; one must stay.
        seed: Of the draw, at least 0.

    Raises:
        DataError: If an argument is not allowed, or no class of D_u is known.
    """
    for argument, value in (("unknown", unknown), ("missing", missing), ("seed", seed)):
        check_integer(f"hide_classes: {argument}", value, 0)
    if not unknown and not missing:
        return split
    whole = split.target_unlabeled
    if whole.sealed is None:
        raise DataError("hide_classes: the true classes of the unlabelled target are not known. Hide none.")
    if problem := too_many_hidden(split.n_classes, unknown, missing):
        raise DataError(f"hide_classes: {problem}")
    order = torch.from_numpy(np.random.default_rng((int(seed), _HIDING)).permutation(split.n_classes))
    known = order[unknown:].sort().values
    renumbered = torch.full((split.n_classes,), UNKNOWN)
    renumbered[known] = torch.arange(len(known))
    labels = whole.sealed.open_for_evaluation()
    stays = (~torch.isin(labels, order[split.n_classes - missing :])).nonzero().squeeze(1)
    labels = torch.where(labels < 0, labels, renumbered[labels])[stays]
    return Split(
        tuple(split.classes[label] for label in known.tolist()),
        _renumber(split.source, renumbered),
        _renumber(split.target_labeled, renumbered),
        Unlabeled(take(whole.inputs, stays), SealedLabels(labels)),
        None if split.validation is None else _renumber(split.validation, renumbered),
    )


def too_many_hidden(classes: int, unknown: int, missing: int) -> str:
    """Why not so many of the classes can be unknown or missing, in a sentence; empty where they can."""
    if unknown <= classes - 2 and missing <= classes - unknown - 1:
        return ""
    return (
        f"of {classes} classes at least two must stay known, and one of them must stay in the unlabelled target, got "
        f"{unknown} unknown and {missing} missing. Hide fewer."
    )


def _renumber(part: Labeled, table: Tensor) -> Labeled:
    labels = table[part.labels]
    kept = (labels >= 0).nonzero().squeeze(1)
    return Labeled(take(part.inputs, kept), labels[kept])


BUILT_IN = Path(__file__).parent / "catalog"
Title = Annotated[str, Allowed("text that is not empty", lambda text: text.strip() != "")]
Name = Annotated[
    str, Allowed("letters, digits, spaces and . _ -, a letter or digit first", re.compile(r"[^\W_][\w .-]*").fullmatch)
]
Several = Annotated[int, Allowed("at least 2", lambda n: n >= 2), AT_MOST]
PROTOCOLS: tuple[Protocol, ...] = get_args(Protocol)
VALIDATION_SHOTS = 3
"""Validation samples of each class under protocol 'drawn', if asked for; as many as the public lists have."""


@dataclass(frozen=True)
class SuiteDomain(Checked):
    """One domain of a suite.

    Args:
        name: As scenarios and lists call it.
        folders: What its folder may be called, below the folder of the data.
        images: How many images it has; None where that is not known.
    """

    name: Name
    folders: tuple[Title, ...]
    images: Positive | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.folders:
            raise ConfigError("SuiteDomain.folders must have at least one name, got none.")


@dataclass(frozen=True)
class Suite(Checked):
    """What is compared on: pairs of domains of one data set.

    Args:
        name: Of its file.
        title: For tables.
        classes: K.
        domains: By name.
        scenarios: Pairs 'source:target', in the order of the tables.
        backbone: Default backbone; for the suites of the literature the paper's.
        bottleneck: Layer before the classifier when all layers are trained; the paper's.
        published: Where the images can be had.
        published_lists: Where the lists can be had.
        lists: Folders, relative to that of the data, in which the lists of the MME reference code may lie; without any,
            domains are folders of class folders.
        whole_classes: Classes of the data set that this one is a part of; 0 if of none.
        steps: Training steps before selection; 0 for the default of a run.
        generated: 'digits' for the pair that is made, not read; else empty.
    """

    name: Title
    title: Title
    classes: Several
    domains: Mapping[str, SuiteDomain]
    scenarios: tuple[str, ...]
    backbone: Title
    bottleneck: Bottleneck = "linear"
    published: str = ""
    published_lists: str = ""
    lists: tuple[Title, ...] = ()
    whole_classes: Count = 0
    steps: StepsOrDefault = 0
    generated: Literal["", "digits"] = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.domains) < 2:
            raise ConfigError(f"Suite lacks 'domains': at least two tables [domains.NAME], got {len(self.domains)}.")
        if not self.scenarios:
            raise ConfigError("Suite.scenarios must have at least one 'source:target', got none.")
        for scenario in self.scenarios:
            check_scenario(self, scenario)
        if self.generated and self.classes != len(DIGITS):
            raise ConfigError(f"Suite.classes must be {len(DIGITS)} where generated is 'digits', got {self.classes}.")
        if not self.generated:
            check_backbone(self.backbone)

    @property
    def protocols(self) -> tuple[Protocol, ...]:
        """How its targets can be split; lists allow all."""
        return PROTOCOLS if self.lists else ("drawn",)

    def find_lists(self, data: Path) -> Path | None:
        """The folder of the lists, if it exists."""
        return next((data / folder for folder in self.lists if (data / folder).is_dir()), None)


def suite_names() -> list[str]:
    """The suites that come with the package."""
    return sorted(path.stem for path in BUILT_IN.glob("*.toml"))


def load_suite(name: str) -> Suite:
    """A suite by its name, or from the TOML file at that path.

    Raises:
        DataError: If there is no such suite, or its file says what it must not.

    Example:
        >>> load_suite("office31").scenarios
        ('webcam:amazon', 'dslr:amazon')
    """
    path = BUILT_IN / f"{name}.toml" if name in suite_names() else Path(str(name))
    if path.suffix != ".toml" or not is_file(path):
        known = ", ".join(suite_names())
        raise DataError(f"`suite` must be one of {known} or the path of a TOML file, got {show(name)}.")
    try:
        return _to_suite(path.stem, tomllib.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, RecursionError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise DataError(
            f"{path}: {str(reason).rstrip('.')}. A suite needs title, classes, backbone, scenarios = "
            "['source:target', ...] and a table [domains.NAME] for each domain; see docs/benchmark.md."
        ) from error


def _to_suite(name: str, stored: dict[str, Any]) -> Suite:
    if "name" in stored:
        raise ConfigError("Suite has no 'name': it is called as its file is. Give it a title")
    domains = stored.get("domains", {})
    if not isinstance(domains, dict) or not all(isinstance(about, dict) for about in domains.values()):
        raise ConfigError(f"Suite.domains must be tables [domains.NAME], got {show(domains)}")
    found = {
        domain: SuiteDomain.from_dict({"folders": [domain], **about, "name": domain})
        for domain, about in domains.items()
    }
    return Suite.from_dict({**stored, "name": name, "domains": found})


def check_scenario(suite: Suite, scenario: str) -> tuple[str, str]:
    """Source and target of 'source:target', which must be a pair of the suite's domains."""
    pair = str(scenario).split(":")
    if len(pair) != 2 or pair[0] == pair[1] or not set(pair) <= set(suite.domains):
        raise DataError(
            f"a scenario of {suite.title} must be 'source:target' with two different domains of "
            f"{list_some(suite.domains)}, got {show(scenario)}."
        )
    return pair[0], pair[1]


def read_suite_split(
    suite: Suite, data: Path, scenario: str, *, shots: int, seed: int, protocol: Protocol, validation: bool = False
) -> Split:
    """The split of one cell.

    Args:
        suite: What to read.
        data: Folder of its images; a generated suite needs none.
        scenario: 'source:target'.
        shots: Labelled target samples of each class; 1 or 3 unless the protocol is 'drawn'.
        seed: Of the draw under 'drawn', and of generated data; lists are the same for every seed.
        protocol: 'mme' and 'clean' read the public lists, 'drawn' draws from each class at random.
        validation: Draw validation samples too; lists always have them.

    Raises:
        DataError: If something is missing.
    """
    held = VALIDATION_SHOTS if validation else 0
    if suite.generated:
        return digits_split(shots=shots, seed=seed, validation_shots=held)
    source, target = (suite.domains[name] for name in check_scenario(suite, scenario))
    folders = {domain.name: find_folder(suite, domain, data) for domain in (source, target)}
    if not suite.lists:
        first, second = (read_folder(data / folders[domain.name], name=domain.name) for domain in (source, target))
        return split_target(first, second, shots=shots, seed=seed, validation_shots=held)
    lists = suite.find_lists(data)
    if lists is None:
        raise DataError(f"{suite.title}: {missing_lists(suite, data)}")
    if protocol != "drawn":
        return read_mme_split(data, source.name, target.name, shots, protocol, lists, folders)
    whole = []
    for domain in (source, target):  # all listed images, whose classes are a part of what is on disk
        path = source_list(lists, domain)
        rows = move_rows(parse_list(path), folders)
        whole.append(domain_of(list_repeated(rows, data, name=domain.name, where=str(path))))
    return split_target(*whole, shots=shots, seed=seed, validation_shots=held)


def find_folder(suite: Suite, domain: SuiteDomain, data: Path) -> str:
    """The folder of a domain, which must be there."""
    for folder in domain.folders:
        if (data / folder).is_dir():
            return folder
    raise DataError(
        f"{suite.title}: domain '{domain.name}' is missing: {data} has no folder {list_some(domain.folders)}. "
        f"{where_published(suite.published)}"
    )


def missing_lists(suite: Suite, data: Path) -> str:
    """Where the lists should be and where they can be had."""
    places = list_some(str(data / folder) for folder in suite.lists)
    return f"the lists are missing: there is no folder {places}. {where_published(suite.published_lists, 'They are')}"


def where_published(address: str, it_is: str = "It is") -> str:
    """Where images or lists can be had, as a sentence."""
    return f"{it_is} published at {address}." if address else "The suite names no address."


def source_list(lists: Path, domain: SuiteDomain) -> Path:
    """The list of all images of a domain."""
    return lists / f"labeled_source_images_{domain.name}.txt"
