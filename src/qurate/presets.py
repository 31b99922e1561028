"""From a few words to a run: the one place where names become a `RunConfig`, and the agent's two presets."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal, get_args

from qurate.config import (
    Device,
    DQNConfig,
    EpisodeConfig,
    ExecutionConfig,
    MethodConfig,
    NetworkConfig,
    QLearningConfig,
    RewardConfig,
    RunConfig,
    SelectionConfig,
    SelectorConfig,
    TrainingConfig,
)
from qurate.errors import ConfigError
from qurate.registry import DEFAULT_SELECTOR, PRINTED, SELECTORS, nearest, resolve_pair

Preset = Literal["qurate", "paper"]
PRESETS: tuple[Preset, ...] = get_args(Preset)

POSITIVE_SHARE = 0.5
"""Share of positives in a target batch (decision 19) wherever the printed algorithm is not asked for. Our choice."""

OUR_REWARD = RewardConfig(network="round", center="neighbors", threshold="class_median", neighbor_trust="assortative")
"""How selectors of ours measure quality: by the network of the round, and by the sample's neighbours as far as these
are of one class (decisions 18, 22, 23, 58)."""


def make_config(
    method: str = "tml",
    selector: str | None = None,
    *,
    preset: Preset = "qurate",
    network: NetworkConfig | None = None,
    steps: int | None = None,
    rounds: int | None = None,
    round_steps: int | None = None,
    learning_rate: float | None = None,
    seed: int = 0,
    device: Device = "auto",
) -> RunConfig:
    """The run that a few words mean.

    Args:
        method: A name of `qurate.METHODS`, or a row of the paper's tables: 'S+T', 'TML_SPL', 'TML_DQNPL'; in any case;
            'mme+sla' is MME with adapted source labels.
        selector: A name of `qurate.SELECTORS`; unless given, that of a pair that the method names, 'dqn' with preset
            'paper', or else 'adaptive'.
        preset: Of selector 'dqn': 'qurate', ours, or 'paper', Algorithm 1 as printed; docs/paper.md says what differs.
            Of selector 'confidence', 'paper' draws batches from D_t and D_p as one set (decision 31).
        network: Backbone and bottleneck; the normalized bottleneck on embeddings unless given.
        steps: Training steps before selection; the default of `TrainingConfig` unless given.
        rounds: Most rounds of selection; the preset's number unless given.
        round_steps: Training steps per round; the preset's number unless given.
        learning_rate: Of new layers; the default of `TrainingConfig` unless given.
        seed: Decides everything random.
        device: 'auto', 'cpu', 'cuda' or 'mps'.

    Raises:
        ConfigError: If a word or a number is not allowed.

    Example:
        >>> make_config("TML_SPL", steps=300).selection.selector
        ConfidenceConfig(name='confidence', threshold=0.9)
    """
    name, paired = resolve_pair(method)
    if selector is not None and paired not in (None, SELECTORS.find(selector).name):
        raise ConfigError(
            f"method {method!r} means selector '{paired}', but selector is {selector!r}. Give one of them."
        )
    is_printed = check_preset(preset) == "paper"
    chosen = SelectorConfig.of(selector or paired or ("dqn" if is_printed else DEFAULT_SELECTOR))
    if is_printed and chosen.name not in PRINTED:
        raise ConfigError(
            f"preset 'paper' sets up selector 'dqn' or 'confidence', got selector '{chosen.name}'. Give one of them."
        )
    selection = SelectionConfig(selector=chosen)
    if chosen.name == "adaptive":
        selection = replace(selection, labeler="combined", reward=OUR_REWARD)
    elif chosen.name == "dqn":
        selection = agent_selection(preset)
    training = TrainingConfig(positive_share=POSITIVE_SHARE)
    if is_printed:
        training = replace(training, positive_share=None, schedule="progress")
    return RunConfig(
        NetworkConfig(bottleneck="normalized") if network is None else network,
        MethodConfig.of(name),
        replace(training, **_given(steps=steps, learning_rate=learning_rate)),
        replace(selection, **_given(rounds=rounds, round_steps=round_steps)),
        seed,
        ExecutionConfig(device=device),
    )


def agent_selection(preset: Preset) -> SelectionConfig:
    """Rounds, reward and agent of a preset: 'paper' is Algorithm 1 as printed, 'qurate' our own."""
    if check_preset(preset) == "paper":
        printed = DQNConfig(episode=EpisodeConfig(candidates=32), q_learning=QLearningConfig(optimizer="sgd"))
        return SelectionConfig(selector=printed, rounds=12, round_steps=100)
    episode = EpisodeConfig(
        candidates=62,
        even_candidates=True,
        actions=64,
        repeat_episodes=True,
        trial_steps=1,
        entropy_samples=128,
        state_network="frozen",
        agent="relational",
        harvest="adaptive",
    )
    return SelectionConfig(selector=DQNConfig(episode=episode), labeler="combined", reward=OUR_REWARD)


def check_preset(preset: str) -> str:
    """The preset, if it exists.

    Raises:
        ConfigError: If not.
    """
    if preset not in PRESETS:
        raise ConfigError(f"preset must be one of {', '.join(PRESETS)}, got {preset!r}.{nearest(preset, PRESETS)}")
    return preset


def baseline_of(config: RunConfig) -> RunConfig:
    """S+T with the network, training and seed of a run."""
    return replace(config, method=MethodConfig.of("source_target"), selection=SelectionConfig())


def is_baseline(config: RunConfig) -> bool:
    """Whether a run is S+T itself."""
    return config.method.row_name == "source_target" and config.selection.selector.name == "none"


def _given(**values: float | None) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}
