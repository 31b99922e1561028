"""Lines 6-15 of Algorithm 1 as one writes them first: DataLoaders over tensors, states computed each time, dense pool.

The yardstick of benchmarks/action.py. The mathematics is the package's (network, loss, Eq. 4-10); how it is carried
out is plain torch: its default number of threads, its default optimisers, and what a line needs is computed
there. Candidates and batches are drawn with the same generators, so that rewards and states can be compared
number by number.
"""

from __future__ import annotations

import copy
import math
import random
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import ConcatDataset, DataLoader, TensorDataset

from qurate.config import DQNConfig, RunConfig
from qurate.data.batches import TrainingData, draw_batches
from qurate.data.samples import Inputs
from qurate.losses import target_margin_loss
from qurate.methods import Method
from qurate.methods.tml import TargetMarginConfig
from qurate.networks.heads import hold_statistics
from qurate.runtime.randomness import generator, seeded
from qurate.selection.environment import draw_candidates
from qurate.selection.pseudo_labels import Positives, Round
from qurate.selection.state import State, build_state, relate
from qurate.training import scheduled_rate

EVALUATION_BATCH = 48


class Straightforward:
    """One agent over one round; `actions` says which candidates to take, so that both sides take the same."""

    def __init__(self, round: Round, config: RunConfig, seed: int, q_network: nn.Sequential) -> None:
        self.round = round
        self.config = config
        self.rng = torch.Generator().manual_seed(seed)
        self.data: TrainingData = round.data
        self.source, self.target, self.unlabeled = (
            embeddings(inputs) for inputs in (self.data.source.inputs, self.data.target.inputs, self.data.unlabeled)
        )
        self.method = round.trainer.method
        self.n_classes = round.n_classes
        self.q_network = copy.deepcopy(q_network)
        assert isinstance(config.selection.selector, DQNConfig)
        self.episode, self.learning = config.selection.selector.episode, config.selection.selector.q_learning
        chosen = self.learning
        optimizer = torch.optim.SGD if chosen.optimizer == "sgd" else torch.optim.Adam
        self.q_optimizer = optimizer(self.q_network.parameters(), lr=chosen.learning_rate)
        self.pool: list[tuple[Tensor, int, float, Tensor, Tensor, bool]] = []
        self.choose = random.Random(0)
        self.seconds: defaultdict[str, float] = defaultdict(float)
        if self.episode.agent == "relational":  # once a round
            all_of_them = torch.zeros(len(round.pseudo_labels), dtype=torch.bool)
            state = build_state(round.unlabeled.rows, all_of_them, round.labeled_sums, round.unlabeled_sums)
            relations = relate(state, round.scale)
            self.mean, self.deviation = relations.mean(dim=0), relations.std(dim=0).clamp_min(1e-6)

    @contextmanager
    def _timed(self, line: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self.seconds[line] += time.perf_counter() - began

    def reset(self, positives: Positives) -> Tensor:
        """Lines 6 and 7."""
        with self._timed("6-7"):
            trainer = self.round.trainer
            self.trial = copy.deepcopy(self.method)
            hold_statistics(self.trial)
            self.step_number = trainer.step
            training = self.config.training
            self.optimizer = torch.optim.SGD(
                self.trial.parameters(),
                lr=training.learning_rate,
                momentum=training.momentum,
                nesterov=True,
                weight_decay=training.weight_decay,
            )
            episode = self.episode
            self.candidates, self.spent = draw_candidates(self.round, positives, episode, self.rng)
            self.indices, self.labels = positives.indices.tolist(), positives.labels.tolist()
            self.entropy_at = None
            if episode.entropy_samples:
                n = len(self.round.pseudo_labels)
                self.entropy_at = torch.randperm(n, generator=self.rng)[: episode.entropy_samples]
            self.entropy = self._measure_entropy()
            self.observation = self.state()
        return self.observation

    def step(self, action: int) -> tuple[Tensor, float]:
        """Lines 10-15 for a given action; line 9 is computed as well."""
        before = self.observation
        with self._timed("9"), torch.no_grad():
            values = self.q_network(before.unsqueeze(0)).reshape(-1)
            values.masked_fill(self.spent, -math.inf).argmax()
        with self._timed("10"):
            index = int(self.candidates[action])
            self.spent[action] = True
            if index in self.indices:
                at = self.indices.index(index)
                del self.indices[at], self.labels[at]
            self.indices.append(index)
            self.labels.append(int(self.round.pseudo_labels[index]))
        with self._timed("11"):
            self._train_trial()
        with self._timed("12"):
            after = self.state()
        with self._timed("13"):
            entropy = self._measure_entropy()
            gain = self.judge(index, self.entropy - entropy)
            self.entropy = entropy
        with self._timed("14"):
            ended = gain < 0 or bool(self.spent.all())
            self.pool.append((before.clone(), action, gain, after.clone(), ~self.spent, ended))
        with self._timed("15"):
            self.update_q()
        self.observation = after
        return after, gain

    def _train_trial(self) -> None:
        training, episode = self.config.training, self.episode
        steps = episode.trial_steps or math.ceil(len(self.data.source) / training.batch_source)
        seed = int(torch.randint(2**31, (1,), generator=self.rng))
        labels = torch.tensor(self.labels)
        chosen = TensorDataset(self.unlabeled[torch.tensor(self.indices)], labels)
        target = TensorDataset(self.target, self.data.target.labels)
        both: ConcatDataset[tuple[Tensor, ...]] = ConcatDataset([target, chosen])
        rng = generator(seed, 2)
        if training.positive_share is None:
            rows = draw_batches(len(both), training.batch_target, steps, rng)
        else:
            n = round(training.positive_share * training.batch_target)
            first = draw_batches(len(target), training.batch_target - n, steps, rng)
            rows = torch.cat([first, draw_batches(len(chosen), n, steps, rng) + len(target)], dim=1)
        source_rows = draw_batches(len(self.data.source), training.batch_source, steps, generator(seed, 1))
        source = TensorDataset(self.source, self.data.source.labels)
        loaders = zip(_loader(source, source_rows), _loader(both, rows), strict=True)
        self.trial.train()
        with seeded(seed):
            for (source_inputs, source_labels), (target_inputs, target_labels) in loaders:
                for group in self.optimizer.param_groups:
                    group["lr"] = scheduled_rate(
                        training.learning_rate, training, self.step_number, self.round.trainer.total_steps
                    )
                loss = self._loss(source_inputs, source_labels, target_inputs, target_labels)
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
                self.step_number += training.schedule == "steps"

    def _loss(self, source: Tensor, source_labels: Tensor, target: Tensor, target_labels: Tensor) -> Tensor:
        network, config = self.trial.network, self.config.method
        assert isinstance(config, TargetMarginConfig)
        features = network.features(torch.cat([source, target]))
        cosines = network.classifier.cosines
        return target_margin_loss(
            cosines(features[: len(source)]),
            source_labels,
            cosines(features[len(source) :]),
            target_labels,
            scale=network.classifier.scale,
            margin=config.margin,
            monotone=config.monotone,
        )

    @torch.no_grad()
    def evaluate(self, method: Method, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """F(x) and C(x), batch by batch."""
        method.eval()
        features, probabilities = [], []
        for (batch,) in DataLoader(TensorDataset(inputs), batch_size=EVALUATION_BATCH):
            features.append(method.network.features(batch))
            probabilities.append(F.softmax(method.network.classifier(features[-1]), dim=1))
        return torch.cat(features), torch.cat(probabilities)

    def _class_means(self, rows: Tensor, labels: Tensor) -> Tensor:
        means = []
        for label in range(self.n_classes):
            members = rows[labels == label]
            means.append(members.mean(dim=0) if len(members) else torch.zeros(rows.shape[1]))
        return torch.stack(means)

    def _labeled(self) -> tuple[Tensor, Tensor]:
        chosen = self.unlabeled[torch.tensor(self.indices, dtype=torch.int64)]
        labels = torch.cat([self.data.target.labels, torch.tensor(self.labels, dtype=torch.int64)])
        return torch.cat([self.target, chosen]), labels

    def state(self) -> Tensor:
        """The three parts, flat, by the network of the state."""
        frozen = self.episode.state_network == "frozen"
        method = self.method if frozen else self.trial
        candidates = torch.cat(self.evaluate(method, self.unlabeled[self.candidates]), dim=1)
        candidates = torch.where(self.spent.unsqueeze(1), 0.0, candidates)
        inputs, labels = self._labeled()
        labeled = self._class_means(torch.cat(self.evaluate(method, inputs), dim=1), labels)
        unlabeled = torch.cat(self.evaluate(method, self.unlabeled), dim=1)
        means = self._class_means(unlabeled, self.round.pseudo_labels)
        return self._encode(candidates, labeled, means)

    def _encode(self, candidates: Tensor, labeled: Tensor, unlabeled: Tensor) -> Tensor:
        state = State(candidates, labeled, unlabeled)
        if self.episode.agent == "flat":
            return state.flat()
        rows = (relate(state, self.round.scale) - self.mean) / self.deviation
        return torch.where(self.spent.unsqueeze(1), 0.0, rows)

    def _measure_entropy(self) -> float:
        inputs = self.unlabeled if self.entropy_at is None else self.unlabeled[self.entropy_at]
        _, probabilities = self.evaluate(self.trial, inputs)
        return float(-torch.xlogy(probabilities, probabilities).sum(dim=1).mean())

    def judge(self, index: int, drop: float) -> float:
        """Eq. (4)-(8)."""
        config, label = self.config.selection.reward, int(self.round.pseudo_labels[index])
        if config.network == "trial":
            features, probabilities = self.evaluate(self.trial, self.unlabeled[index : index + 1])
            inputs, labels = self._labeled()
            centers = self._class_means(self.evaluate(self.trial, inputs)[0], labels)
            cosines = F.normalize(features, dim=1) @ F.normalize(centers, dim=1).T
            center_prob = F.softmax(self.round.scale * cosines, dim=1)[0, label]
            phi = self._quality(probabilities[0, label], center_prob, drop)
            return 1.0 if phi > config.tau else -1.0
        phi, threshold = self.judge_by_neighbors()
        return 1.0 if phi[index] + config.entropy_drop_weight * drop > threshold[index] else -1.0

    def judge_by_neighbors(self) -> tuple[Tensor, Tensor]:
        """Phi of all of D_u by the network of the round, and the median of its class."""
        assert self.round.neighbors is not None
        config, labels = self.config.selection.reward, self.round.pseudo_labels
        _, probabilities = self.evaluate(self.method, self.unlabeled)
        known = torch.cat([F.one_hot(self.data.target.labels, self.n_classes).float(), probabilities])
        mean = known[self.round.neighbors].mean(dim=1)
        own = mean.gather(1, labels.unsqueeze(1)).squeeze(1)
        center_prob = (own + config.neighbor_floor) / (1 + config.neighbor_floor)
        phi = self._quality(probabilities.gather(1, labels.unsqueeze(1)).squeeze(1), center_prob, 0.0)
        threshold = torch.empty_like(phi)
        for label in range(self.n_classes):
            if (labels == label).any():
                threshold[labels == label] = phi[labels == label].quantile(0.5)
        return phi, threshold

    def _quality(self, classifier_prob: Tensor, center_prob: Tensor, drop: float) -> Tensor:
        config = self.config.selection.reward
        certain, central = classifier_prob.clamp_min(1e-12).log(), center_prob.clamp_min(1e-12).log()
        return certain + config.center_weight * central + config.entropy_drop_weight * drop

    def update_q(self) -> None:
        """Eq. (9) and (10) on a batch of the dense pool."""
        config = self.learning
        batch = self.choose.choices(self.pool, k=config.batch_size)
        states = torch.stack([one[0] for one in batch])
        following = torch.stack([one[3] for one in batch])
        actions = torch.tensor([one[1] for one in batch])
        rewards = torch.tensor([one[2] for one in batch])
        masks = torch.stack([one[4] for one in batch])
        ended = torch.tensor([one[5] for one in batch])
        with torch.no_grad():
            best = self.q_network(following).reshape(len(batch), -1).masked_fill(~masks, -math.inf).amax(dim=1)
        targets = rewards + config.discount * torch.where(ended, 0.0, best)
        values = self.q_network(states).reshape(len(batch), -1).gather(1, actions.unsqueeze(1)).squeeze(1)
        loss = 0.5 * (values - targets).square().mean()
        self.q_optimizer.zero_grad()
        loss.backward()
        if config.optimizer == "sgd":
            torch.nn.utils.clip_grad_norm_(self.q_network.parameters(), config.largest_gradient)
        self.q_optimizer.step()


def embeddings(inputs: Inputs) -> Tensor:
    """Inputs that are tensors; image files are not for this benchmark."""
    assert isinstance(inputs, Tensor)
    return inputs


def _loader(data: torch.utils.data.Dataset[tuple[Tensor, ...]], rows: Tensor) -> DataLoader[tuple[Tensor, ...]]:
    return DataLoader(data, batch_sampler=rows.tolist(), generator=torch.Generator())
