"""D_p: the pseudo-labels that are trusted."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import pandas as pd
import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Positives:
    """D_p: samples of D_u with trusted pseudo-labels, and why each was trusted.

    Args:
        indices: Positions in D_u, (N_p,) int64.
        labels: Pseudo-labels, (N_p,) int64.
        rounds: The round each came in, (N_p,) int64.
        rewards: +1 or -1 where an agent was rewarded, else NaN, (N_p,).
        phi: Quality, Eq. (4), (N_p,).
        classifier_prob: p_c, (N_p,).
        center_prob: p_f, (N_p,).
        entropy_drop: Delta_e, 0 where it was not measured, (N_p,).
    """

    indices: Tensor
    labels: Tensor
    rounds: Tensor
    rewards: Tensor
    phi: Tensor
    classifier_prob: Tensor
    center_prob: Tensor
    entropy_drop: Tensor

    @classmethod
    def none(cls) -> Positives:
        """The empty set, line 2."""
        numbers = torch.empty(0)
        places = torch.empty(0, dtype=torch.int64)
        return cls(places, places, places, *[numbers] * 5)

    def __len__(self) -> int:
        return len(self.indices)

    def joined_with(self, other: Positives) -> Positives:
        """These, then the other's."""
        names = [field.name for field in fields(self)]
        return Positives(*(torch.cat([getattr(self, name), getattr(other, name)]) for name in names))

    def first(self) -> dict[str, float]:
        """The first positive as plain numbers, by name of the field."""
        return {field.name: getattr(self, field.name)[0].item() for field in fields(self)}

    def take(self, chosen: Tensor) -> Positives:
        """The positives at these positions, or where this mask is true."""
        return Positives(*(getattr(self, field.name)[chosen] for field in fields(self)))

    def remembering(self, earlier: Positives) -> Positives:
        """These positives with the round they first came in, and the reward and entropy drop they were given then.

        Args:
            earlier: Earlier positives; those that are here too, under the same label, are remembered.
        """
        places = {pair: i for i, pair in enumerate(zip(earlier.indices.tolist(), earlier.labels.tolist(), strict=True))}
        rounds, rewards, drops = self.rounds.clone(), self.rewards.clone(), self.entropy_drop.clone()
        for i, pair in enumerate(zip(self.indices.tolist(), self.labels.tolist(), strict=True)):
            before = places.get(pair)
            if before is None:
                continue
            rounds[i] = min(rounds[i], earlier.rounds[before])
            if rewards[i].isnan():
                rewards[i], drops[i] = earlier.rewards[before], earlier.entropy_drop[before]
        return replace(self, rounds=rounds, rewards=rewards, entropy_drop=drops)

    def moved(self, by: int) -> Positives:
        """The same samples of a D_u that has so many more in front."""
        return replace(self, indices=self.indices + by)

    def relabeled(self, pseudo_labels: Tensor) -> Positives:
        """The same samples under the current pseudo-labels of D_u."""
        return replace(self, labels=pseudo_labels[self.indices])

    def same_as(self, other: Positives) -> bool:
        """Whether both hold the same samples under the same labels."""
        return self.pairs() == other.pairs()

    def pairs(self) -> set[tuple[int, int]]:
        """The set of (position in D_u, label)."""
        return set(zip(self.indices.tolist(), self.labels.tolist(), strict=True))

    def table(self, classes: tuple[str, ...]) -> pd.DataFrame:
        """One row per positive, as it is saved beside the model."""
        columns = {field.name: getattr(self, field.name).tolist() for field in fields(self)}
        frame = pd.DataFrame(columns).rename(columns={"indices": "sample", "labels": "label", "rounds": "round"})
        frame["label"] = [classes[label] for label in self.labels.tolist()]
        return frame.rename(columns={"rewards": "reward"})
