"""What a Q-learning run is made of, as data: configurations and the presets of the games."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

from smoothrl.errors import UserError, unknown

Precision = Literal["fp32", "bf16"]


@dataclass(frozen=True)
class QConfig:
    """What every learner of this family shares: environment, collection, replay, optimiser, bookkeeping."""

    method: str = "dqn"
    """Name of the method."""
    env: str = ""
    """Environment id."""
    env_settings: dict[str, Any] = field(default_factory=dict)
    """Settings of the environment (Atari: profile, actions, ...)."""
    seed: int = 0
    """Seed of everything random in the run."""
    protocol: str = "sound"
    """Label of the protocol; its switches decide."""
    steps: int = 500_000
    """Agent steps, over all lanes."""
    lanes: int = 8
    """Environments side by side."""
    batch: int = 32
    """Transitions in a minibatch."""
    update_every: int = 4
    """Agent steps between two updates."""
    warmup: int = 5_000
    """Steps of uniformly random actions before the first update."""
    capacity: int = 100_000
    """Transitions in the replay."""
    n_step: int = 1
    """Rewards before the bootstrap."""
    gamma: float = 0.99
    """Discount."""
    alpha: float = 0.5
    """Exponent of the priorities (0: uniform replay)."""
    beta: float = 0.4
    """First exponent of the importance weights; it grows linearly to 1."""
    lr: float = 1e-4
    """Learning rate of Adam."""
    lr_final: float = 1.0
    """Factor of the learning rate at the end, reached linearly."""
    adam_eps: float = 1.5e-4
    """Adam's epsilon."""
    grad_clip: float = 0.0
    """Largest gradient norm (0: no clipping)."""
    explore_final: float = 0.01
    """Epsilon of the epsilon-greedy actions after `explore_steps`."""
    explore_steps: int = 50_000
    """Steps after the warm-up in which epsilon falls from 1 (0: at once)."""
    explore_to_zero: bool = False
    """Then anneal it linearly to 0 at the last step."""
    precision: Precision = "fp32"
    """Arithmetic of the networks in training; agents always act in fp32."""
    eval_every: int = 100_000
    """Steps between two evaluations (0: none)."""
    eval_episodes: int = 10
    """Episodes of one evaluation."""
    log_every: int = 10_000
    """Steps between two rows of progress.csv."""
    checkpoint_every: int = 20_000
    """Steps between two checkpoints."""

    def __post_init__(self) -> None:
        check_positive(
            self, "steps", "lanes", "batch", "update_every", "capacity", "n_step", "lr", "adam_eps"
        )
        check_positive(self, "log_every", "checkpoint_every")
        if not 0.0 <= self.gamma <= 1.0:
            raise UserError(f"gamma {self.gamma} is no discount: it must lie in [0, 1]")
        if self.warmup < self.batch:
            raise UserError(f"warmup {self.warmup} gives fewer transitions than one batch of {self.batch}")
        if self.capacity < self.batch or self.capacity < self.lanes * (2 * self.n_step + 2):
            raise UserError(
                f"a replay of {self.capacity} cannot feed batches of {self.batch} from {self.lanes} lanes; "
                "raise --capacity"
            )
        if self.precision not in ("fp32", "bf16"):
            raise unknown("precision", self.precision, ("fp32", "bf16"))


@dataclass(frozen=True)
class DQNConfig(QConfig):
    """DQN and its robust variants."""

    double: bool = True
    """Double DQN: the online network chooses the action that the target network values."""
    dueling: bool = True
    """Separate heads for value and advantage."""
    width: float = 1.0
    """Factor on the convolutions (Atari), or number of filters / 16 (MinAtar)."""
    hidden: int = 512
    """Units of the heads."""
    target_every: int = 2_000
    """Updates between two copies to the target network."""
    noise: float = 0.0
    """Largest deviation of the noise under which the greedy policy is kept (0: none)."""
    noise_start: float = 0.5
    """Fraction of the run from which on it is: the policy of that moment, while TD goes on."""
    noise_weight: float = 20.0
    """Weight of that term."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0.0 <= self.noise < float("inf"):
            raise UserError(f"noise {self.noise} is no standard deviation: it must be finite, 0 or more")
        if not 0.0 <= self.noise_start < 1.0:
            raise UserError(f"noise_start {self.noise_start} is no fraction of a run: 0 or more, below 1")


def check_sigma(sigma: float) -> None:
    """Refuse noise that is none."""
    if not 0.0 < sigma < float("inf"):
        raise UserError(f"s-dqn learns to act under noise: sigma must be finite and above 0, got {sigma}")


def check_positive(config: Any, *names: str) -> None:
    """Refuse numbers that must be above zero and are not."""
    for name in names:
        value = getattr(config, name)
        if not value > 0:
            raise UserError(f"{name} is {value}; it must be above 0")


def with_changes(config: Any, changes: dict[str, Any]) -> Any:
    """The config with some fields changed; unknown names are refused with the near ones."""
    known = [f.name for f in fields(config)]
    for name in changes:
        if name not in known:
            raise unknown("setting", name, known)
    return replace(config, **changes)


@dataclass(frozen=True)
class RobustDQNConfig(DQNConfig):
    """DQN with a robust regulariser: SA-DQN, RADIAL-DQN or WocaR-DQN."""

    epsilon: float = 1.0 / 255.0
    """Final linf radius of the bounds, in units of the network's input."""
    ramp_start: float = 0.25
    """Fraction of the run at which the radius leaves 0."""
    ramp_end: float = 11.0 / 12.0
    """Fraction of the run at which it reaches `epsilon`."""
    kappa: float = 0.005
    """SA-DQN, WocaR-DQN: weight of the hinge. RADIAL-DQN: weight of the standard loss."""
    worst_weight: float = 0.5
    """WocaR-DQN: final weight of the loss of the bounds, reached linearly."""
    worst_ratio: float = 0.01
    """WocaR-DQN: share of the worst-case values in the choice of the target action."""
    worst_every: int = 1
    """WocaR-DQN: updates between two updates of the worst-case network."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0.0 < self.epsilon < float("inf"):
            raise UserError(f"{self.method} trains against a ball: epsilon must exceed 0, got {self.epsilon}")
        if not 0.0 <= self.ramp_start < self.ramp_end <= 1.0:
            raise UserError(f"ramp {self.ramp_start} .. {self.ramp_end}: two rising fractions of a run")


@dataclass(frozen=True)
class NoisyDQNConfig(DQNConfig):
    """The paper's ablation: no denoiser, the Q-network itself learns from noisy observations."""

    sigma: float = 0.1
    """Standard deviation of the smoothing noise, in units of the network's input."""
    samples: int = 100
    """Votes of a decision at test time."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_sigma(self.sigma)


@dataclass(frozen=True)
class SDQNConfig(QConfig):
    """S-DQN: a denoiser trained in front of a frozen Q-network."""

    method: str = "s-dqn"
    """Name of the method."""
    sigma: float = 0.1
    """Standard deviation of the smoothing noise, in units of the network's input."""
    samples: int = 100
    """Votes of a decision at test time."""
    base: str = ""
    """Digest of the frozen base agent."""
    denoiser: Literal["dncnn", "fast", "mlp"] = "fast"
    """The paper's 17 layers; a small one on the pixel-unshuffled image; or one for vectors."""
    denoiser_width: int = 16
    """Channels (units) of the denoiser."""
    denoiser_depth: int = 4
    """Layers of the denoiser."""
    denoiser_factor: int = 1
    """Pixel-unshuffling of the fast denoiser."""
    lambda_reconstruction: float = 1.0
    """lambda_1: weight of the reconstruction loss."""
    lambda_td: float = 1.0
    """lambda_2: weight of the TD loss."""
    td_target: Literal["bootstrap", "base"] = "bootstrap"
    """Target of Q(D(s + z)): that of TD for the action taken, or the advantages of the frozen Q(s)."""
    adversarial: Literal["none", "s-pgd"] = "none"
    """Train on observations attacked by S-PGD."""
    epsilon: float = 0.05
    """linf budget of the training attack."""
    attack_steps: int = 5
    """Steps of the training attack, each epsilon / steps."""
    attack_probability: float = 0.3
    """Part of the actions and of the training samples that is attacked."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_sigma(self.sigma)
        if self.denoiser not in ("dncnn", "fast", "mlp"):
            raise unknown("denoiser", self.denoiser, ("dncnn", "fast", "mlp", "none"))
        if self.td_target not in ("bootstrap", "base"):
            raise unknown("td_target", self.td_target, ("bootstrap", "base"))
        if self.adversarial not in ("none", "s-pgd"):
            raise unknown("adversarial training", self.adversarial, ("none", "s-pgd"))
        if self.adversarial != "none":
            check_positive(self, "epsilon", "attack_steps", "attack_probability")
