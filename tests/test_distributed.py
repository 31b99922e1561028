"""Several processes train one network: real ones, on this machine, by gloo."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning_fabric.strategies.ddp import DDPStrategy
from PIL import Image
from tests.test_training import blobs
from torch import Tensor, nn

from qurate import distributed
from qurate.config import DQNConfig, EpisodeConfig, ExecutionConfig, NetworkConfig, RunConfig
from qurate.data.batches import TrainingData
from qurate.data.digits import digits_split
from qurate.data.images import ImageFiles
from qurate.data.samples import Labeled, Split, Unlabeled
from qurate.distributed import ProcessGroup
from qurate.errors import ConfigError, TrainingError, WorkerError
from qurate.evaluation import predict_probabilities
from qurate.networks.backbones import build_backbone
from qurate.presets import make_config
from qurate.registry import TRAINED
from qurate.runs.pipeline import describe_shares
from qurate.runtime.randomness import stream_seed
from qurate.selection.algorithm import Adaptation, fit, follow_rank_zero
from qurate.selection.callbacks import Callback
from qurate.selection.pseudo_labels import Positives, Round
from qurate.selection.session import Progress
from qurate.training import start

# In double precision, for rounding must not decide: where a max-pool meets equal numbers, as on the flat background of
# a digit, or a ReLU a number near 0, the last digit of float32 decides where a gradient goes. A change of 1e-6 in the
# first weights of one process alone changes its predictions after 30 steps on the digits.
# Without dropout and with norms that are frozen, for each process has its own masks and its own share's statistics.


def in_double(split: Split) -> Split:
    first, second, third = split.source, split.target_labeled, split.target_unlabeled.inputs
    assert isinstance(first.inputs, Tensor)
    assert isinstance(second.inputs, Tensor)
    assert isinstance(third, Tensor)
    labeled = (Labeled(first.inputs.double(), first.labels), Labeled(second.inputs.double(), second.labels))
    return Split(split.classes, *labeled, Unlabeled(third.double()))


@pytest.fixture(scope="module")
def digits() -> Split:
    return in_double(digits_split(shots=3, seed=0))


@pytest.fixture(scope="module", autouse=True)
def shut_down() -> Iterator[None]:
    """No worker process outlives these tests."""
    yield
    distributed.shutdown()


class Listener(Callback):
    def __init__(self) -> None:
        self.losses: list[float] = []

    def on_step(self, step: int, terms: dict[str, float]) -> None:
        self.losses.append(terms["loss"])


@dataclass(frozen=True, eq=False)
class Outcome:
    losses: Tensor
    result: Adaptation
    said: Tensor


def run(split: Split, config: RunConfig, devices: int, strategy: Any = "auto", **training: Any) -> Outcome:
    heard = Listener()
    execution = ExecutionConfig(device="cpu", devices=devices, strategy=strategy)
    config = replace(config, training=replace(config.training, **training), execution=execution)
    result = fit(split, config, callbacks=[heard])
    return Outcome(
        torch.tensor(heard.losses), result, predict_probabilities(result.method, split.target_unlabeled.inputs)
    )


def assert_same(one: Outcome, other: Outcome, tolerance: float = 1e-7) -> None:
    assert len(one.losses) == len(other.losses)
    assert float((one.losses - other.losses).abs().max()) < tolerance
    assert one.result.positives.indices.tolist() == other.result.positives.indices.tolist()
    assert one.result.positives.labels.tolist() == other.result.positives.labels.tolist()
    assert float((one.said - other.said).abs().max()) < 100 * tolerance
    assert torch.equal(one.said.argmax(dim=1), other.said.argmax(dim=1))
    weights = other.result.method.state_dict()
    for name, values in one.result.method.state_dict().items():
        assert torch.allclose(values.double(), weights[name].double(), atol=100 * tolerance), name


def digits_config(
    method: str = "tml", selector: str = "none", bottleneck: Any = "normalized", **numbers: Any
) -> RunConfig:
    network = NetworkConfig("digits", bottleneck=bottleneck, features=64)
    steps = {"steps": 20, "rounds": 2, "round_steps": 10} | numbers
    return make_config(method, selector, network=network, device="cpu", **steps)


def plain_config(method: str = "tml", selector: str = "none", **numbers: Any) -> RunConfig:
    """Nothing in it depends on the other rows of a batch, and nothing is drawn for each row."""
    config = digits_config(method, selector, bottleneck="linear", **numbers)
    without: dict[str, dict[str, Any]] = {
        "cdan": {"entropy_conditioning": False, "discriminator_dropout": 0.0},  # certainty is normalised over a batch
        "adr": {"critic_dropout": 1e-12},
        "adamatch": {"interpolate": False, "strong_dropout": 0.0, "confidence": 0.0, "momentum": 1 - 1e-12},
        "cdac": {"cluster_weight": 0.0, "strong_dropout": 0.0},  # pairs are those of a batch
        "decota": {"mix_weight": 0.0},
        "mcl": {"transport_weight": 0.0, "contrast_weight": 0.0, "strong_dropout": 0.0, "momentum": 1 - 1e-12},
    }
    chosen = replace(config.method, **without.get(method, {}))
    return replace(config, method=chosen, training=replace(config.training, frozen_norms=True))


@pytest.fixture(scope="module", params=[2, 3])
def devices(request: pytest.FixtureRequest) -> int:
    """Of the module, so that tests with as many processes follow each other and share them."""
    return int(request.param)


@pytest.mark.parametrize("method", TRAINED)
def test_every_method_takes_the_same_steps_in_several_processes(method: str, devices: int, digits: Split) -> None:
    config = plain_config(method)
    assert_same(run(digits, config, 1), run(digits, config, devices))


@pytest.mark.parametrize("method", TRAINED)
def test_every_method_trains_with_norms_and_dropout_of_each_process(method: str, devices: int, digits: Split) -> None:
    several = run(digits, digits_config(method), devices)
    assert bool(several.losses.isfinite().all())
    assert float(several.losses[-5:].mean()) < float(several.losses[0])


def test_batches_that_cannot_be_shared_equally_are_refused(digits: Split) -> None:
    with pytest.raises(
        ConfigError, match=r"batch_target must be a multiple of the 2 devices.* got 23. Use 22 or 24, .*"
    ):
        run(digits, digits_config(), 2, batch_target=23)
    with pytest.raises(ConfigError, match=r"batch_source .* 5 devices.* got 24.* 1, 2, 3, 4, 6, 8, 12, 24\."):
        run(digits, digits_config(), 5)


def test_the_shares_are_said() -> None:
    config = digits_config()
    assert describe_shares(config) == []
    several = replace(config, execution=ExecutionConfig(device="cpu", devices=3))
    (sentence,) = describe_shares(several)
    assert "24 + 24 + 48" in sentence
    assert "each takes 8 + 8 + 16" in sentence


@pytest.mark.parametrize("rank", [0, 1])
def test_ranks_draw_masks_of_their_own_for_each_step(rank: int) -> None:
    split, config = blobs(), make_config("tml", "none", steps=4)
    trainer = start(split, config)
    trainer.group = SimpleNamespace(rank=rank, size=2, mean=lambda terms: terms, equalize_buffers=lambda method: None)  # type: ignore[assignment]
    seeds: list[int] = []
    trainer.run(TrainingData.of(split), steps=3, seed=5, on_step=lambda step, terms: seeds.append(torch.initial_seed()))
    assert seeds == ([5, 5, 5] if rank == 0 else [stream_seed(5, 1, step) for step in range(3)])


def test_a_loss_that_explodes_stops_all_processes_with_the_same_words(devices: int, digits: Split) -> None:
    with pytest.raises(TrainingError, match="The loss is"):
        run(digits, digits_config(), devices, largest_loss=1.0)
    assert len(run(digits, digits_config(), devices).losses) == 20


def episodes() -> RunConfig:
    """Algorithm 1 with the printed agent: D_p is what its episodes chose."""
    config = plain_config(selector="dqn", preset="paper")
    chosen = config.selection.selector
    assert isinstance(chosen, DQNConfig)
    episode = replace(EpisodeConfig(), candidates=16, actions=12, trial_steps=2)
    selector = replace(chosen, episode=episode, q_learning=replace(chosen.q_learning, hidden=(32, 16)))
    return replace(config, selection=replace(config.selection, selector=selector))


@pytest.mark.parametrize("selector", ["adaptive", "dqn"])
def test_selection_is_decided_once_and_followed_by_all(selector: str, devices: int, digits: Split) -> None:
    config = episodes() if selector == "dqn" else plain_config(selector=selector)
    one, several = run(digits, config, 1), run(digits, config, devices)
    assert len(one.result.positives) > 0
    assert_same(one, several)
    assert [r.positives for r in one.result.rounds] == [r.positives for r in several.result.rounds]


def test_a_trial_network_of_all_layers_is_trained_by_rank_zero_alone(digits: Split) -> None:
    config = episodes()
    chosen = config.selection.selector
    assert isinstance(chosen, DQNConfig)
    selector = replace(chosen, episode=replace(chosen.episode, trial_layers="all", actions=4))
    config = replace(config, selection=replace(config.selection, selector=selector))
    assert_same(run(digits, config, 1), run(digits, config, 2))


def test_embeddings_too() -> None:
    network = NetworkConfig(bottleneck="linear")
    config = make_config("tml", "adaptive", network=network, steps=20, rounds=2, round_steps=10)
    split = in_double(blobs(n=41))
    assert_same(run(split, config, 1), run(split, config, 3))


def test_single_and_half_precision_begin_alike() -> None:
    split, config = digits_split(shots=3, seed=0), plain_config()
    for precision, steps, tolerance in (("32-true", 3, 1e-5), ("bf16-mixed", 1, 1e-2)):  # of 30
        one, two = (run(split, config, devices, precision=precision) for devices in (1, 2))
        assert float((one.losses - two.losses)[:steps].abs().max()) < tolerance


def pictures(folder: Path, count: int, seed: int) -> tuple[ImageFiles, Tensor]:
    rng, paths = torch.Generator().manual_seed(seed), []
    for i in range(count):
        pixels = torch.randint(256, (40, 36, 3), generator=rng, dtype=torch.uint8)
        pixels[..., i % 3] //= 4
        paths.append(folder / f"{seed}-{i}.png")
        Image.fromarray(pixels.numpy()).save(paths[-1])
    return ImageFiles(tuple(paths)), torch.arange(count) % 3


def test_image_files_with_crops_and_flips(tmp_path: Path) -> None:
    source, labeled = (Labeled(*pictures(tmp_path, count, seed)) for seed, count in ((0, 10), (1, 6)))
    split = Split(tuple("abc"), source, labeled, Unlabeled(pictures(tmp_path, 11, 2)[0]))
    network = NetworkConfig("timm/tf_efficientnet_lite0", bottleneck="linear", features=16)
    config = make_config("tml", "adaptive", network=network, steps=2, rounds=1, round_steps=1, learning_rate=1e-4)
    few = {"batch_source": 4, "batch_target": 2, "batch_unlabeled": 4, "frozen_norms": True}
    one, two = run(split, config, 1, **few), run(split, config, 2, **few)
    assert float((one.losses - two.losses)[0].abs()) < 1e-3
    assert len(one.losses) == len(two.losses) == 3


@pytest.mark.parametrize("strategy", ["ddp", "ddp_find_unused_parameters_true"])
@pytest.mark.parametrize("backbone", ["timm/test_efficientnet", "timm/test_resnet"])
def test_frozen_norms_of_timm_in_double_precision(backbone: str, strategy: Any, devices: int) -> None:
    rng = torch.Generator().manual_seed(0)
    images = [torch.randn(n, 3, 32, 32, generator=rng, dtype=torch.float64) for n in (7, 6, 9)]
    labels = [torch.arange(len(part)) % 3 for part in images]
    split = Split(tuple("abc"), Labeled(images[0], labels[0]), Labeled(images[1], labels[1]), Unlabeled(images[2]))
    network = NetworkConfig(backbone, bottleneck="linear", features=8)
    config = make_config("tml", "none", network=network, steps=4, learning_rate=1e-3)
    few = {"batch_source": 6, "batch_target": 6, "batch_unlabeled": 12, "frozen_norms": True}
    one = run(split, config, 1, **few)
    assert_same(one, run(split, config, devices, strategy, **few), tolerance=1e-6)


def test_micro_batches_and_recomputed_activations_with_several_processes(devices: int, digits: Split) -> None:
    one = run(digits, plain_config(), 1)
    assert_same(one, run(digits, plain_config(), devices, micro_batch=5))


class Memory:
    """A checkpoint in memory."""

    def __init__(self) -> None:
        self.progress: Progress | None = None

    def load(self) -> Progress | None:
        return None if self.progress is None else Progress.of_tensors(self.progress.tensors())

    def save(self, progress: Progress) -> None:
        self.progress = progress


class Stop(Callback):
    def __init__(self, step: int) -> None:
        self.step = step

    def on_step(self, step: int, terms: dict[str, float]) -> None:
        if step == self.step:
            raise BrokenError


def test_a_resumed_run_of_two_processes_ends_as_an_undisturbed_one(digits: Split) -> None:
    execution = ExecutionConfig(device="cpu", devices=2, checkpoint_steps=5)
    config = replace(digits_config(selector="adaptive"), execution=execution)
    whole, memory = fit(digits, config), Memory()
    with pytest.raises(BrokenError):
        fit(digits, config, checkpoint=memory, callbacks=[Stop(13)])
    assert memory.progress is not None
    assert memory.progress.mid_training is not None
    resumed = fit(digits, config, checkpoint=memory)
    assert resumed.positives.same_as(whole.positives)
    weights = whole.method.state_dict()
    assert all(torch.equal(values, weights[name]) for name, values in resumed.method.state_dict().items())


class BrokenError(Exception):
    pass


class Broken:
    def select(self, round: Round) -> Positives:
        raise BrokenError


def test_what_goes_wrong_in_selection_is_told_once_and_the_next_run_works() -> None:
    split, config = blobs(), make_config("tml", "adaptive", steps=2, rounds=1, round_steps=1)
    config = replace(config, execution=replace(config.execution, devices=2, device="cpu"))
    with pytest.raises(BrokenError):
        fit(split, config, selector=Broken())
    assert len(fit(split, config).rounds) == 1


def test_a_worker_process_that_is_lost_is_named() -> None:
    split, config = blobs(), make_config("tml", "none", steps=4)
    config = replace(config, execution=replace(config.execution, devices=2, device="cpu"))
    fit(split, config)
    (worker,) = multiprocessing.active_children()

    class Kill(Callback):
        def on_step(self, step: int, terms: dict[str, float]) -> None:
            if step == 2:
                worker.kill()
                worker.join()

    with pytest.raises(WorkerError, match=r"has ended \(exit code -9\)"):
        fit(split, config, callbacks=[Kill()])
    fit(split, config)


RANK_ZERO = """
import multiprocessing, sys, torch, torch.distributed
from dataclasses import replace
from pathlib import Path
from tests.test_distributed import plain_config, in_double
from qurate import fit, digits_split, predict_probabilities
from qurate.selection.callbacks import Callback
class Say(Callback):
    def on_step(self, step, terms):
        print("step", *[worker.pid for worker in multiprocessing.active_children()], flush=True)
config = plain_config(steps=int(sys.argv[2]))
config = replace(config, execution=replace(config.execution, devices=2))
split = in_double(digits_split(shots=3, seed=0))
result = fit(split, config, callbacks=[Say()])
said = predict_probabilities(result.method, split.target_unlabeled.inputs)
torch.save(said, f"{sys.argv[1]}.{torch.distributed.get_rank()}")
"""


def script(tmp_path: Path) -> Path:
    (tmp_path / "rank_zero.py").write_text(RANK_ZERO)
    return tmp_path / "rank_zero.py"


def environment() -> dict[str, str]:
    root = Path(__file__).parents[1]
    return {**os.environ, "PYTHONPATH": f"{root / 'src'}:{root}", "OMP_NUM_THREADS": "1"}


def test_started_by_torchrun_every_process_gets_the_result(tmp_path: Path, digits: Split) -> None:
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "0")
    command = (*torchrun, "--standalone", script(tmp_path), tmp_path / "said", "20")
    subprocess.run(command, env=environment(), check=True, timeout=240, stdout=subprocess.DEVNULL)
    alone = run(digits, plain_config(), 1)
    for rank in (0, 1):
        assert torch.allclose(torch.load(tmp_path / f"said.{rank}"), alone.said, atol=1e-3)


def test_helpers_end_with_rank_zero_when_it_is_killed(tmp_path: Path) -> None:
    rank_zero = subprocess.Popen(
        (sys.executable, script(tmp_path), tmp_path / "said", "100000"),
        env=environment(),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert rank_zero.stdout is not None
    worker = int(rank_zero.stdout.readline().split()[1])
    os.kill(rank_zero.pid, signal.SIGKILL)
    rank_zero.wait()
    rank_zero.stdout.close()
    deadline = time.monotonic() + 30
    while _lives(worker):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def _lives(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"  # nobody has asked for its exit code yet


def test_another_number_of_processes_than_was_started_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(ConfigError, match="4 processes were started"):
        distributed.init_process_group(ExecutionConfig(device="cpu", devices=5), follow_rank_zero)
    assert (
        distributed.init_process_group(ExecutionConfig(device="cpu"), follow_rank_zero) is None
    )  # each of the four may do a run of its own


@pytest.mark.parametrize("strategy", ["auto", "ddp", "ddp_find_unused_parameters_true"])
def test_the_strategy_is_passed_to_fabric_where_there_are_several_processes(
    strategy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[dict[str, Any]] = []

    def note(**words: Any) -> Any:
        given.append(words)
        return SimpleNamespace(launch=lambda: None)

    monkeypatch.setattr(distributed, "Fabric", note)
    config = ExecutionConfig(device="cpu", devices=2, strategy=strategy)
    group = ProcessGroup(0, 2, torch.device("cpu"), None, {})
    for each in (None, group):
        distributed.make_fabric(config, group=each)
    assert "strategy" not in given[0]
    assert isinstance(given[1]["strategy"], DDPStrategy)
    finds = strategy == "ddp_find_unused_parameters_true"
    assert given[1]["strategy"]._ddp_kwargs["find_unused_parameters"] is finds


def test_batch_norms_are_synchronised_on_a_gpu_only() -> None:
    """There is no GPU here: what is converted is seen, not run."""

    def layers(device: str) -> list[type[nn.Module]]:
        backbone = build_backbone("timm/test_efficientnet", "none", None).module
        group = ProcessGroup(0, 2, torch.device(device), None, {})
        return [type(layer) for layer in distributed.share_statistics(backbone, group).modules()]

    assert not any(issubclass(kind, nn.SyncBatchNorm) for kind in layers("cpu"))
    assert not any(issubclass(kind, nn.BatchNorm2d) for kind in layers("cuda"))
    assert any(issubclass(kind, nn.SyncBatchNorm) for kind in layers("cuda"))


def test_other_machines_need_somebody_who_starts_processes_there() -> None:
    with pytest.raises(ConfigError, match="torchrun"):
        distributed.init_process_group(ExecutionConfig(device="cpu", num_nodes=2), follow_rank_zero)
