from __future__ import annotations

import ast
import dataclasses
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from torch import Tensor

import qurate
from qurate import losses
from qurate.config import (
    ExecutionConfig,
    MethodConfig,
    NetworkConfig,
    RunConfig,
    SelectionConfig,
    SelectorConfig,
    TrainingConfig,
)
from qurate.data.batches import TrainingData, draw_batches, draw_target, stream_batches
from qurate.data.images import ImageFiles
from qurate.data.samples import DataError, Labeled, SealedLabels, Split, Unlabeled, take
from qurate.data.splits import read_mme_split
from qurate.distributed import ProcessGroup, make_fabric
from qurate.errors import ConfigError, TrainingError
from qurate.evaluation import evaluate, predict_probabilities
from qurate.losses import margin_cosines
from qurate.methods import METHODS, Method, build_method
from qurate.networks.heads import build_network
from qurate.registry import TRAINED
from qurate.runtime.randomness import generator
from qurate.selection import algorithm
from qurate.selection.callbacks import Callback
from qurate.training import Trainer, build_optimizer, scheduled_rate, start


def blobs(seed: int = 0, n: int = 40, width: int = 12, k: int = 3) -> Split:
    """Gaussian classes whose target is shifted."""
    rng = torch.Generator().manual_seed(seed)
    means = torch.randn(k, width, generator=rng) * 2

    def draw(count: int, shift: float) -> tuple[Tensor, Tensor]:
        labels = torch.arange(count) % k
        return means[labels] + shift + torch.randn(count, width, generator=rng), labels

    source, labeled, unlabeled = draw(n, 0.0), draw(2 * k, 0.5), draw(n, 0.5)
    return Split(tuple("abc"), Labeled(*source), Labeled(*labeled), Unlabeled(unlabeled[0], SealedLabels(unlabeled[1])))


def config(method: str = "tml", steps: int = 30, **training: float | str) -> RunConfig:
    return RunConfig(
        NetworkConfig(bottleneck="normalized", features=8),
        MethodConfig.of(method),
        TrainingConfig(steps=steps, **training),  # type: ignore[arg-type]  # mixed numbers
        seed=3,
        execution=ExecutionConfig(device="cpu"),
    )


def fit(split: Split, run: RunConfig) -> Method:
    return algorithm.fit(split, run).method


def weights(method: torch.nn.Module) -> Tensor:
    return torch.cat([value.flatten().double() for value in method.state_dict().values()])


@pytest.mark.parametrize("name", TRAINED)
def test_same_seed_twice_is_identical_and_another_seed_is_not(name: str) -> None:
    split = blobs()
    first, second = fit(split, config(name)), fit(split, config(name))
    assert torch.equal(weights(first), weights(second))
    assert evaluate(first, split.target_unlabeled) == evaluate(second, split.target_unlabeled)
    other = fit(split, dataclasses.replace(config(name), seed=4))
    assert not torch.equal(weights(first), weights(other))


@pytest.mark.parametrize("name", METHODS)
def test_poisoned_labels_of_the_unlabelled_part_change_nothing(name: str) -> None:
    split = blobs()
    poison = SealedLabels((torch.arange(len(split.target_unlabeled)) + 1) % 3)
    poisoned = dataclasses.replace(split, target_unlabeled=Unlabeled(split.target_unlabeled.inputs, poison))
    honest, fooled = fit(split, config(name)), fit(poisoned, config(name))
    assert torch.equal(weights(honest), weights(fooled))
    inputs = split.target_unlabeled.inputs
    assert torch.equal(predict_probabilities(honest, inputs), predict_probabilities(fooled, inputs))
    assert evaluate(honest, split.target_unlabeled) != evaluate(fooled, poisoned.target_unlabeled)


def names(source: str, word: str) -> bool:
    """Whether code names a thing: as a name, an attribute, an import or a string for getattr; docstrings may."""
    return any(
        word in (getattr(node, "id", None), getattr(node, "attr", None), getattr(node, "name", None))
        or (isinstance(node, ast.Constant) and node.value == word)
        for node in ast.walk(ast.parse(source))
        if not isinstance(node, ast.FunctionDef)
    )


def modules_that_name(word: str) -> set[str]:
    package = Path(qurate.__file__).parent
    files = {".".join(path.relative_to(package.parent).with_suffix("").parts): path for path in package.rglob("*.py")}
    assert len(files) > 50
    return {module for module, path in files.items() if names(path.read_text(), word)}


def test_only_evaluation_opens_the_seal() -> None:
    # thinning to a long tail is part of drawing a split, and seals the labels again
    assert modules_that_name("open_for_evaluation") == {"qurate.evaluation", "qurate.data.suites"}
    assert modules_that_name("thin_to_tail") == {"qurate.benchmark.executors"}
    assert modules_that_name("__labels") == {"qurate.data.samples"}
    assert modules_that_name("_SealedLabels__labels") == set()
    # who may ask evaluation for the truth: a benchmark, to measure, and for an oracle that says so in its name; in
    # evaluation itself the annotator, who answers what is asked and no more
    assert modules_that_name("true_labels") == {
        "qurate.evaluation",
        "qurate.benchmark.asking",
        "qurate.benchmark.cell",
    }
    assert modules_that_name("Annotator") == {"qurate.benchmark.asking", "qurate.evaluation"}


@pytest.mark.parametrize(
    "source",
    [
        "part.sealed.open_for_evaluation()",
        "f = part.sealed.open_for_evaluation",
        "getattr(part.sealed, 'open_for_evaluation')()",
        "from somewhere import open_for_evaluation as peek",
        "open_for_evaluation()",
    ],
)
def test_whoever_opens_the_seal_is_found(source: str) -> None:
    assert names(source, "open_for_evaluation")
    assert not names("def open_for_evaluation(self):\n    'Whom open_for_evaluation serves.'", "open_for_evaluation")


def test_training_leaves_global_state_alone() -> None:
    state, threads = torch.random.get_rng_state(), torch.get_num_threads()
    fit(blobs(), config(steps=3))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert torch.get_num_threads() == threads


def test_a_loss_that_is_not_finite_stops_with_the_way_out() -> None:
    split = blobs()
    assert isinstance(split.source.inputs, Tensor)
    split.source.inputs[5] = float("nan")
    with pytest.raises(DataError, match=r"source\.inputs must be finite numbers, got NaN or infinity"):
        fit(split, config())
    split.source.inputs[5] = torch.finfo(torch.float32).max
    with pytest.raises(TrainingError, match=r"The loss is nan at step \d+ .*Lower learning_rate"):
        fit(split, config())


def test_an_exploding_loss_stops() -> None:
    with pytest.raises(TrainingError, match=r"allowed: finite and below 0\.0001"):
        fit(blobs(), config(largest_loss=1e-4))


def test_an_absent_device_says_what_to_use() -> None:
    absent = "mps" if torch.cuda.is_available() or not torch.backends.mps.is_available() else "cuda"
    with pytest.raises(TrainingError, match="Use `device='cpu'`"):
        make_fabric(ExecutionConfig(device=absent))  # type: ignore[arg-type]  # one of two literals
    with pytest.raises(ConfigError, match="device must be one of 'auto', 'cpu', 'cuda', 'mps', got 'abacus'"):
        ExecutionConfig(device="abacus")  # type: ignore[arg-type]  # the wrong word


def one_step(name: str, precision: Literal["32-true", "bf16-mixed"]) -> tuple[dict[str, float], Tensor]:
    """The terms of the loss of one step, and the class weights after it; features are the inputs as they are."""
    run = config(name, steps=1, precision=precision)
    split = blobs(width=32)
    trainer = start(split, dataclasses.replace(run, network=NetworkConfig(bottleneck="none")))
    terms = trainer.run(TrainingData.of(split), steps=1, seed=0)
    return terms, trainer.method.network.classifier.weight.detach().clone()


@pytest.mark.parametrize("name", ["source_target", "ent", "mme", "tml", "cml"])
def test_cosines_margin_and_softmax_are_whole_precision_in_mixed_training(name: str) -> None:
    (whole, after), (mixed, also) = one_step(name, "32-true"), one_step(name, "bf16-mixed")
    assert mixed == pytest.approx(whole, abs=1e-5)
    assert torch.allclose(after, also, atol=1e-6)


def test_margin_logits_are_the_same_in_mixed_training(monkeypatch: pytest.MonkeyPatch) -> None:
    logits: list[Tensor] = []

    def record(*arguments: Any, **numbers: Any) -> Tensor:
        widened = margin_cosines(*arguments, **numbers)
        logits.append(30 * widened.detach())
        return widened

    monkeypatch.setattr(losses, "margin_cosines", record)
    for precision in ("32-true", "bf16-mixed"):
        one_step("tml", precision)
    assert [one.dtype for one in logits] == [torch.float32, torch.float32]
    assert torch.allclose(logits[0], logits[1], atol=1e-5)


@pytest.mark.parametrize("name", ["tml", "adr"])
def test_gradients_are_made_outside_of_autocast_and_new_weights_are_used_at_once(name: str) -> None:
    split, mixed = blobs(), config(name, steps=3, precision="bf16-mixed")
    trainer = start(split, mixed)
    inside: list[bool] = []
    stale: list[bool] = []
    linear = trainer.method.network.bottleneck[1]  # type: ignore[index]  # a sequence of layers
    linear.weight.register_hook(lambda gradient: inside.append(torch.is_autocast_enabled("cpu")))

    def compare(layer: torch.nn.Linear, inputs: tuple[Tensor], output: Tensor) -> None:
        weight, bias = layer.weight.bfloat16(), layer.bias.bfloat16()
        with torch.autocast("cpu", enabled=False):
            stale.append(not torch.equal(output, torch.nn.functional.linear(inputs[0].bfloat16(), weight, bias)))

    linear.register_forward_hook(compare)
    trainer.run(TrainingData.of(split), steps=3, seed=0)
    assert len(inside) >= 3
    assert not any(inside)
    assert len(stale) >= 6
    assert not any(stale)


@pytest.mark.parametrize(
    ("schedule", "start", "middle", "end"),
    [
        ("steps", 1.0, 1.075**-0.75, 1.15**-0.75),  # the MME reference code's: hardly falls in 1,500 steps
        ("progress", 1.0, 6**-0.75, 11**-0.75),  # Ganin's
    ],
)
def test_the_learning_rate_follows_its_schedule(
    schedule: Literal["steps", "progress"], start: float, middle: float, end: float
) -> None:
    training = TrainingConfig(steps=1500, schedule=schedule)
    rates = [scheduled_rate(0.01, training, step, 1500) for step in (0, 750, 1500)]
    assert rates == pytest.approx([0.01 * start, 0.01 * middle, 0.01 * end])


def test_progress_is_that_of_the_whole_run_rounds_included(monkeypatch: pytest.MonkeyPatch) -> None:
    trainers: list[Trainer] = []
    rates: list[float] = []

    def start_and_keep(split: Split, run: RunConfig, group: ProcessGroup | None) -> Trainer:
        trainers.append(start(split, run, group))
        return trainers[-1]

    class Rates(Callback):
        def on_step(self, step: int, terms: dict[str, float]) -> None:
            rates.append(trainers[0].optimizer.param_groups[0]["lr"])

    monkeypatch.setattr("qurate.selection.session.start", start_and_keep)
    selection = SelectionConfig(selector=SelectorConfig.of("confidence"), rounds=3, round_steps=5)
    run = dataclasses.replace(config(steps=10, schedule="progress"), selection=selection)
    algorithm.fit(blobs(), run, callbacks=[Rates()])
    assert rates == pytest.approx([0.01 * (1 + 10 * step / 25) ** -0.75 for step in range(25)])


def test_a_trial_keeps_the_rate_of_its_round_where_the_rate_follows_progress() -> None:
    split = blobs()
    trainer = start(split, config(steps=10, schedule="progress"))
    trainer.run(TrainingData.of(split), steps=5, seed=0)
    trainer.run(TrainingData.of(split), steps=40, seed=0, labeled_only=True)
    assert trainer.optimizer.param_groups[0]["lr"] == pytest.approx(0.01 * 6**-0.75)
    assert trainer.step == 5


def test_a_pretrained_backbone_learns_at_its_own_rate() -> None:
    network = build_network(NetworkConfig(backbone="digits"), n_classes=3, input_width=None, seed=0)
    method = build_method(MethodConfig.of("dann"), network, seed=0)
    assert [group["lr"] for group in build_optimizer(method, TrainingConfig()).param_groups] == [0.01]
    network.pretrained = True
    groups = build_optimizer(method, TrainingConfig()).param_groups
    assert [group["lr"] for group in groups] == [0.01, 0.001]
    assert set(groups[1]["params"]) == set(network.backbone.parameters())
    assert sum(len(group["params"]) for group in groups) == len(list(method.parameters()))


def test_the_optimizer_steps_by_nesterovs_momentum() -> None:
    """d = g + decay w;  v = 0.9 v + d;  w = w - rate (d + 0.9 v), number by number."""
    network = build_network(NetworkConfig(bottleneck="none"), n_classes=2, input_width=3, seed=0)
    optimizer = build_optimizer(build_method(MethodConfig.of("tml"), network, seed=0), TrainingConfig())
    weight, rng = network.classifier.weight, torch.Generator().manual_seed(0)
    expected, velocity = weight.flatten().tolist(), [0.0] * 6
    for _ in range(4):
        weight.grad = torch.randn(2, 3, generator=rng)
        for i, gradient in enumerate(weight.grad.flatten().tolist()):
            slope = gradient + 0.0005 * expected[i]
            velocity[i] = 0.9 * velocity[i] + slope
            expected[i] -= 0.01 * (slope + 0.9 * velocity[i])
        optimizer.step()
    assert weight.flatten().tolist() == pytest.approx(expected, rel=1e-5)


def test_training_in_two_halves_follows_one_schedule() -> None:
    split, seen = blobs(), []
    trainer = start(split, config(steps=4))
    for seed in (0, 1):
        trainer.run(
            TrainingData.of(split), steps=4, seed=seed, on_step=lambda step, _: seen.append((step, trainer.step))
        )
    assert seen == [(1, 1), (2, 2), (3, 3), (4, 4), (1, 5), (2, 6), (3, 7), (4, 8)]
    assert trainer.optimizer.param_groups[0]["lr"] == scheduled_rate(0.01, trainer.config, 7, 4)


@pytest.mark.parametrize(("share", "expected"), [(0.5, 4), (0.25, 2), (0.01, 1), (0.99, 7)])
def test_a_share_of_each_target_batch_is_positives(share: float, expected: int) -> None:
    data = TrainingData.of(blobs()).with_positives(torch.tensor([3, 7]), torch.tensor([2, 2]))
    rows = draw_target(data, TrainingConfig(batch_target=8, positive_share=share), 5, torch.Generator())
    assert rows.max() == 6 + 2 - 1
    assert ((rows >= 6).sum(dim=1) == expected).all()


def test_without_a_share_labelled_and_positives_are_drawn_alike() -> None:
    data = TrainingData.of(blobs()).with_positives(torch.arange(12), torch.zeros(12, dtype=torch.int64))
    rows = draw_target(data, TrainingConfig(batch_target=9), 4, torch.Generator())
    assert sorted(rows.flatten().tolist()) == sorted(list(range(18)) * 2)


@pytest.mark.parametrize("share", [None, 0.25])
def test_positives_come_with_their_inputs_and_labels(share: float | None) -> None:
    data = TrainingData.of(blobs()).with_positives(torch.tensor([9, 3, 7]), torch.tensor([2, 0, 1]))
    assert isinstance(data.target.inputs, Tensor)
    assert isinstance(data.unlabeled, Tensor)
    pool = torch.cat([data.target.inputs, data.unlabeled[[9, 3, 7]]])
    labels = torch.cat([data.target.labels, torch.tensor([2, 0, 1])])
    config = TrainingConfig(batch_source=4, batch_target=8, positive_share=share)
    rows = draw_target(data, config, 6, generator(5, 2))
    for row, batch in zip(rows, stream_batches(data, config, steps=6, seed=5, labeled_only=True), strict=True):
        assert torch.equal(batch.target, pool[row])
        assert torch.equal(batch.target_labels, labels[row])
        assert len(batch.unlabeled) == 0


@pytest.mark.parametrize("share", [None, 0.25])
@pytest.mark.parametrize(("labeled", "unlabeled"), [(torch.float16, torch.float32), (torch.float32, torch.float16)])
def test_either_target_part_may_be_in_half_precision(
    labeled: torch.dtype, unlabeled: torch.dtype, share: float | None
) -> None:
    split, config = blobs(), TrainingConfig(batch_source=4, batch_target=8, positive_share=share)
    target, inputs = split.target_labeled, split.target_unlabeled.inputs
    assert isinstance(target.inputs, Tensor)
    assert isinstance(inputs, Tensor)

    def batches(first: Tensor, second: Tensor, steps: int) -> list[Tensor]:
        data = TrainingData(split.source, Labeled(first, target.labels), second)
        chosen = data.with_positives(torch.tensor([9, 3, 7]), torch.tensor([2, 0, 1]))
        return [batch.target for batch in stream_batches(chosen, config, steps=steps, seed=5)]

    for steps in (1, 6):  # fewer rows than there are of both parts, and more
        found = batches(target.inputs.to(labeled), inputs.to(unlabeled), steps)
        expected = batches(target.inputs.half().float(), inputs.half().float(), steps)
        assert all(batch.dtype == torch.float32 for batch in found)
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)


def test_a_batch_says_how_large_its_sets_are_and_positives_count_as_target() -> None:
    split, config = blobs(), TrainingConfig(batch_source=4, batch_target=8)
    data = TrainingData.of(split)
    chosen = data.with_positives(torch.tensor([9, 3, 7]), torch.tensor([2, 0, 1]))
    sizes = len(split.source), len(split.target_labeled)
    for given, expected in ((data, sizes), (chosen, (sizes[0], sizes[1] + 3))):
        batch = next(iter(stream_batches(given, config, steps=1, seed=0)))
        assert batch.to(torch.device("cpu")).sizes == expected


def test_batches_take_every_sample_before_any_twice() -> None:
    rows = draw_batches(10, 4, 5, torch.Generator().manual_seed(0))
    assert rows.shape == (5, 4)
    assert sorted(rows.flatten()[:10].tolist()) == list(range(10))
    assert sorted(rows.flatten()[10:].tolist()) == list(range(10))


def test_a_batch_is_full_even_from_few_samples() -> None:
    assert draw_batches(3, 8, 2, torch.Generator().manual_seed(0)).shape == (2, 8)


def office31_sample(root: Path) -> Split:
    """A few real images of each part, cheap enough to decode in a test."""
    split = read_mme_split(root, "webcam", "amazon", 3)
    some = torch.arange(0, 90, 15)

    def few(part: Labeled) -> Labeled:
        return Labeled(take(part.inputs, some), part.labels[some])

    unlabeled = Unlabeled(take(split.target_unlabeled.inputs, some))
    return Split(split.classes, few(split.source), few(split.target_labeled), unlabeled)


def test_image_batches_do_not_depend_on_the_number_of_workers(office31: Path) -> None:
    split = office31_sample(office31)
    network = build_network(NetworkConfig("torchvision/resnet34"), n_classes=31, input_width=None, seed=0)
    streams = [
        stream_batches(
            TrainingData.of(split),
            TrainingConfig(batch_source=2, batch_target=2, batch_unlabeled=3),
            steps=2,
            seed=0,
            transform=network.transform,
            workers=workers,
        )
        for workers in (0, 1)
    ]
    for one, two in zip(*streams, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one[:5], two[:5], strict=True))


@pytest.mark.parametrize(
    ("backbone", "bottleneck", "width"), [("torchvision/resnet34", "linear", 512), ("torchvision/vgg16", "none", 4096)]
)
def test_one_full_fine_tuning_step_from_real_image_files(
    office31: Path, backbone: str, bottleneck: str, width: int
) -> None:
    split = office31_sample(office31)
    assert isinstance(split.source.inputs, ImageFiles)
    run = RunConfig(
        NetworkConfig(backbone=backbone, bottleneck=bottleneck),  # type: ignore[arg-type]  # parametrised literal
        MethodConfig.of("tml"),
        TrainingConfig(steps=1, batch_source=2, batch_target=2, batch_unlabeled=2),
    )
    before = build_network(run.network, n_classes=31, input_width=None, seed=0)
    method = fit(split, run)
    assert method.network.n_features == width
    moved = [
        not torch.equal(a, b)
        for a, b in zip(before.backbone.parameters(), method.network.backbone.parameters(), strict=True)
    ]
    assert all(moved)  # the step reached every layer of the backbone
    probabilities = predict_probabilities(method, split.target_labeled.inputs)
    assert probabilities.shape == (6, 31)
    torch.testing.assert_close(probabilities.sum(dim=1), torch.ones(6))
