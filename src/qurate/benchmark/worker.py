"""Who runs cells: a process that keeps the data and the pre-training of the last one, and what it went on from."""

from __future__ import annotations

import traceback
import warnings
from dataclasses import replace
from pathlib import Path

import torch

from qurate.benchmark.asked_cell import Base, run_asked_cell
from qurate.benchmark.cells import Cell, CellResult, Pretrained, run_cell
from qurate.benchmark.commit import current_commit
from qurate.config import RunConfig
from qurate.data.catalog import Suite, read_suite_split
from qurate.data.domains import DataWarning
from qurate.data.embedding.embed import embed_split
from qurate.data.images import OnProgress
from qurate.data.lopsided import thin_to_tail
from qurate.data.samples import Split


class Worker:
    """Runs cells one after another, and says what went wrong instead of stopping.

    Args:
        suite: Where splits come from.
        data: Folder of its images.
        weights: Weights as this machine finds them: a word or a file.
    """

    def __init__(self, suite: Suite, data: Path | None, weights: str) -> None:
        self.suite = suite
        self.data = data
        self.weights = weights
        self.commit = current_commit()  # of the process that starts the benchmark, once for all its workers
        self._split: tuple[object, Split] | None = None
        self._pretrained: Pretrained | None = None
        self._base: Base | None = None

    def run(self, cell: Cell) -> CellResult:
        """The result of a cell, or its error."""
        torch.set_num_threads(1)  # several workers share the cores, and small heads lose by more
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DataWarning)  # said once, before the workers began
                split = self.load(cell)
            config = self.localize(cell.config)
            if cell.asker:
                result, self._base = run_asked_cell(
                    split, cell, config, before=self._pretrained, base=self._base, commit=self.commit
                )
                self._pretrained = self._base.pretrained
            else:
                result, self._pretrained = run_cell(split, cell, config, before=self._pretrained, commit=self.commit)
            return result
        except Exception:
            return CellResult(error=traceback.format_exc())

    def load(self, cell: Cell, on_progress: OnProgress | None = None) -> Split:
        """The split of a cell, thinned as it asks for; its embeddings, where a frozen backbone makes them."""
        seed = cell.config.seed if cell.protocol == "drawn" else 0
        validation = "validation" in cell.rules
        wanted = (cell.scenario, cell.shots, seed, validation)
        if self._split is None or self._split[0] != wanted:
            split = self.read(cell)
            if cell.config.network.backbone == "none":
                device = cell.config.training.device
                split = embed_split(split, cell.backbone, self.weights, device=device, on_progress=on_progress)
            self._split = wanted, split
        return thin_to_tail(self._split[1], cell.imbalance, cell.config.seed)

    def read(self, cell: Cell) -> Split:
        """The split of a cell as it lies on disk, not thinned."""
        return read_suite_split(
            self.suite,
            self.data or Path(),
            cell.scenario,
            shots=cell.shots,
            seed=cell.config.seed,
            protocol=cell.protocol,
            validation="validation" in cell.rules,
        )

    def localize(self, config: RunConfig) -> RunConfig:
        """The run with weights where they lie here."""
        if config.network.backbone == "none" or self.suite.generated:
            return config
        return replace(config, network=replace(config.network, weights=self.weights))
