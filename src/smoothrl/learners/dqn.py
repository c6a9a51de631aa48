"""DQN with prioritised replay, dueling heads and (optionally) double targets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from smoothrl import envs, networks
from smoothrl.agents import Agent, AgentInfo, Normaliser
from smoothrl.errors import UserError
from smoothrl.learners import q_losses as losses
from smoothrl.learners.descent import Descent
from smoothrl.learners.q_config import DQNConfig, QConfig, RobustDQNConfig, with_changes
from smoothrl.learners.q_loop import Report, Training, config_json, learning_rate
from smoothrl.learners.q_presets import dqn_preset, robust_preset
from smoothrl.learners.replay import Batch
from smoothrl.learners.run_directory import RunDirectory
from smoothrl.protocols import protocol

Array = npt.NDArray[Any]
Device = str | torch.device


def normaliser(spec: envs.EnvSpec) -> Normaliser:
    """Images to [0, 1]; boards and vectors as they are."""
    return Normaliser("scale", 1.0 / spec.obs_scale) if spec.obs_scale != 1.0 else Normaliser()


def q_description(spec: envs.EnvSpec, config: DQNConfig) -> dict[str, Any]:
    """Nature CNN for frames, a small CNN for boards, an MLP for vectors."""
    shape, actions = spec.obs_shape, spec.action_size
    if shape[1:] == (84, 84):
        return {
            "kind": "q-nature",
            "channels": shape[0],
            "actions": actions,
            "hidden": config.hidden,
            "width": config.width,
            "dueling": config.dueling,
        }
    if len(shape) == 3 and shape[1] == shape[2]:
        return {
            "kind": "q-small",
            "channels": shape[0],
            "actions": actions,
            "size": shape[1],
            "filters": max(1, round(16 * config.width)),
            "hidden": config.hidden,
            "dueling": config.dueling,
        }
    if len(shape) != 1:
        raise UserError(f"{spec.id} shows observations of shape {shape}; no Q-network here takes them")
    hidden = [config.hidden, config.hidden]
    return {
        "kind": "q-mlp",
        "observations": shape[0],
        "actions": actions,
        "hidden": hidden,
        "dueling": config.dueling,
    }


def placed(network: nn.Module, device: Device) -> nn.Module:
    """The network on the device, channels-last."""
    return network.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def seeded(description: Mapping[str, Any], seed: int, device: Device = "cpu") -> nn.Module:
    """A network with PyTorch's initial weights drawn from `seed`, the global generator untouched."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return placed(networks.build(description), device)


def copied(network: nn.Module) -> nn.Module:
    """Another network with the same weights, in evaluation mode, on the CPU."""
    twin = networks.build(networks.describe(network))
    twin.load_state_dict(network.state_dict())
    return networks.frozen(twin)


def adopt(network: nn.Module, init: Agent) -> None:
    """Start from the weights of an agent of the same network."""
    if networks.describe(init.network) != networks.describe(network):
        raise UserError(
            f"the network of --init is {networks.describe(init.network)}, this run has "
            f"{networks.describe(network)}; give the same sizes with --set"
        )
    network.load_state_dict(init.network.state_dict())


def on(device: Device, array: Array) -> Tensor:
    """The array as a tensor on the device."""
    return torch.from_numpy(np.ascontiguousarray(array)).to(device)


def as_input(raw: Array, scale: float, precision: str = "fp32", device: Device = "cpu") -> Tensor:
    """Raw observations as network input, images channels-last (bytes travel; no detour to bf16)."""
    x = on(device, raw)
    if x.dim() == 4:
        x = x.contiguous(memory_format=torch.channels_last)
    x = x.to(torch.bfloat16 if precision == "bf16" and raw.ndim == 4 else torch.float32)
    return x.mul_(scale) if scale != 1.0 else x


def optimizer_state(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Adam's state as named tensors."""
    found = {}
    for i, parameter in enumerate(optimizer.param_groups[0]["params"]):
        for name, value in optimizer.state.get(parameter, {}).items():
            found[f"{i}.{name}"] = value
    return found


def load_optimizer(optimizer: torch.optim.Optimizer, state: Mapping[str, Tensor]) -> None:
    """Adam's state from `optimizer_state`."""
    for i, parameter in enumerate(optimizer.param_groups[0]["params"]):
        mine = {k.split(".", 1)[1]: v.clone() for k, v in state.items() if k.split(".", 1)[0] == str(i)}
        if mine:
            mine["step"] = mine["step"].to(parameter.device)
            for name in ("exp_avg", "exp_avg_sq"):
                mine[name] = torch.empty_like(parameter.detach()).copy_(mine[name])
            optimizer.state[parameter] = mine


@dataclass(frozen=True)
class View:
    """What a loss may look at in one update."""

    x: Tensor
    """The network's input."""
    q: Tensor
    """Its outputs, with gradient."""
    actions: Tensor
    """The actions taken."""
    y: Tensor
    """Their TD targets."""
    weights: Tensor
    """Importance weights."""
    td: Tensor
    """Huber loss of each row, with gradient."""
    progress: float
    """Fraction of the run that is done."""


class DQNLearner:
    """Online and target network, and one gradient step."""

    def __init__(
        self, config: DQNConfig, spec: envs.EnvSpec, init: Agent | None = None, device: Device = "cpu"
    ) -> None:
        self.config, self.spec, self.device = config, spec, torch.device(device)
        self.scale = 1.0 / spec.obs_scale
        description = q_description(spec, config)
        self.q = seeded(description, config.seed, device)
        if init is not None:
            adopt(self.q, init)
        self.descent = Descent(self.q, config.lr, config.adam_eps, config.precision == "bf16")
        self.target = self.twin()
        self.updates = 0
        self.teacher: nn.Module | None = None
        self.noise = noise_stream(config.seed + 5_555_555, device)
        self.weighs_priorities = protocol(config.protocol).priority_weighted

    def twin(self) -> nn.Module:
        """The network as it is now, frozen, in the precision of all passes."""
        return placed(copied(self.q).to(self.descent.dtype), self.device)

    def inputs(self, raw: Array) -> Tensor:
        """What the network is shown of raw observations."""
        return as_input(raw, self.scale, self.config.precision, self.device)

    @torch.no_grad()
    def greedy(self, observations: Array) -> Array:
        return np.asarray(self.descent(self.inputs(observations)).argmax(dim=1).cpu().numpy())

    def update(self, batch: Batch, progress: float) -> tuple[npt.NDArray[np.float64], dict[str, float]]:
        actions, weights = on(self.device, batch.actions), on(self.device, batch.weights)
        notes = self.prepare(batch, progress)
        y = self.targets(batch)
        x = self.inputs(batch.observations)
        q = self.descent(x)
        each = losses.huber_td(q, actions, y)
        view = View(x, q, actions, y, weights, each, progress)
        loss, metrics = self.loss(view)
        if self.config.noise > 0.0 and progress >= self.config.noise_start:
            apart = self.apart(x)
            loss = loss + self.config.noise_weight * apart
            metrics["noise"] = apart.item()
        self.descend(loss, progress)
        metrics |= notes | {"loss": loss.item(), "q": q.detach().amax(dim=1).mean().item()}
        shown = each.detach() * weights if self.weighs_priorities else each.detach()
        return np.asarray(shown.double().cpu().numpy()) + 1e-5, metrics

    def apart(self, x: Tensor) -> Tensor:
        """How far noise moves the advantages from those of the network as it was when this term set in.

        A fixed teacher, for a moving one is dragged along until no action is better than another.
        """
        if self.teacher is None:
            self.teacher = self.twin()
        with torch.no_grad():
            taught = self.teacher(x.to(self.descent.dtype)).float()
        return losses.advantages_apart(self.descent(self.noisy(x)), taught).mean()

    def noisy(self, x: Tensor) -> Tensor:
        """The images with noise, each of its own deviation up to `noise`."""
        z = torch.empty_like(x, memory_format=torch.contiguous_format).normal_(generator=self.noise)
        share = torch.rand(x.shape[0], generator=self.noise, device=self.device)
        return x + z.mul_(share.mul_(self.config.noise).to(x.dtype).view(-1, *[1] * (x.dim() - 1)))

    def prepare(self, batch: Batch, progress: float) -> dict[str, float]:
        """What has to happen before the update of Q; and what to log of it."""
        return {}

    def loss(self, view: View) -> tuple[Tensor, dict[str, float]]:
        """The scalar to descend and what to log of it; defences override this."""
        return losses.weighted_mean(view.td, view.weights), {}

    @torch.no_grad()
    def targets(self, batch: Batch) -> Tensor:
        """The TD targets, nothing of them differentiated."""
        following = self.inputs(batch.following)
        target_q = self.target_values(following)
        online_q = self.descent(following) if self.config.double else None
        returns, discounts = on(self.device, batch.returns), on(self.device, batch.discounts)
        return losses.td_target(returns, discounts, target_q, online_q)

    def target_values(self, x: Tensor) -> Tensor:
        """Q of the target network, in the precision of all passes."""
        return self.target(x.to(self.descent.dtype)).float()  # type: ignore[no-any-return]

    def descend(self, loss: Tensor, progress: float) -> None:
        """One Adam step, and the target's copy when it is due."""
        self.descent.step(loss, learning_rate(self.config, progress), self.config.grad_clip)
        self.updates += 1
        if self.updates % self.config.target_every == 0:
            self.target.load_state_dict(self.q.state_dict())

    def agent(self, steps: int) -> Agent:
        info = agent_info(self.config, self.spec, steps)
        return Agent(copied(self.q), normaliser(self.spec), info, device=self.device)

    def state(self) -> dict[str, Tensor]:
        found = {f"q.{k}": v for k, v in self.q.state_dict().items()}
        found |= {f"target.{k}": v for k, v in self.target.state_dict().items()}
        found |= {f"adam.{k}": v for k, v in optimizer_state(self.descent.optimizer).items()}
        if self.teacher is not None:
            found |= {f"teacher.{k}": v for k, v in self.teacher.state_dict().items()}
            found["noise"] = self.noise.get_state()
        return found | {"updates": torch.tensor(self.updates)}

    def load(self, state: Mapping[str, Tensor]) -> None:
        self.q.load_state_dict(part(state, "q"))
        self.target.load_state_dict(part(state, "target"))
        load_optimizer(self.descent.optimizer, part(state, "adam"))
        self.descent.refresh()
        self.updates = int(state["updates"])
        if "noise" in state:
            self.teacher = self.twin()
            self.teacher.load_state_dict(part(state, "teacher"))
            resume_noise(self.noise, state["noise"])


def part(state: Mapping[str, Tensor], name: str) -> dict[str, Tensor]:
    """The tensors under `name.`."""
    return {k[len(name) + 1 :]: v for k, v in state.items() if k.startswith(name + ".")}


def noise_stream(seed: int, device: Device) -> torch.Generator:
    """A stream of noise, made where it is used."""
    return torch.Generator(device).manual_seed(seed)


def resume_noise(generator: torch.Generator, state: Tensor) -> None:
    """Go on with the stream; a run that moved to another device gets a fresh one that its state decides."""
    if state.shape == generator.get_state().shape:
        generator.set_state(state)
    else:
        generator.manual_seed(crc32(state.numpy().tobytes()))


def agent_info(config: QConfig, spec: envs.EnvSpec, steps: int, **more: Any) -> AgentInfo:
    """What the agent file says about this run."""
    return AgentInfo(
        method=config.method,
        env_id=config.env,
        action_kind="discrete",
        actions=spec.action_size,
        observation_shape=tuple(spec.obs_shape),
        env_settings=dict(config.env_settings),
        seed=config.seed,
        steps=steps,
        notes={"config": config_json(config)},
        **more,
    )


def discrete_spec(env_id: str, settings: Mapping[str, Any], method: str) -> envs.EnvSpec:
    """The environment, refused where its actions are continuous."""
    spec = envs.spec(env_id, **settings)
    if spec.action != "discrete":
        raise UserError(
            f"{env_id} takes continuous actions, {method} needs discrete ones; train 'ppo' or 's-ppo' on it"
        )
    return spec


def preset_config(
    method: str, env_id: str, preset: str | None = None, regulariser: str | None = None, **changes: Any
) -> DQNConfig:
    """The preset of the environment with the caller's changes."""
    image = len(discrete_spec(env_id, {}, method).obs_shape) == 3
    named = {"method": method, "env": env_id}
    config: DQNConfig
    if regulariser is not None:
        robust = RobustDQNConfig(**{**robust_preset(env_id, image, regulariser, preset), **named})
        config = with_changes(robust, changes)
    else:
        config = with_changes(DQNConfig(**{**dqn_preset(env_id, image, preset), **named}), changes)
    return config


def train(
    config: DQNConfig,
    out: str | Path,
    *,
    init: Agent | None = None,
    learner: type[DQNLearner] = DQNLearner,
    resume: bool = False,
    refill_replay: bool = False,
    report: Report | None = None,
    device: Device = "cpu",
    threads: int | None = None,
) -> Path:
    """Train one agent into the run directory `out`; returns its path."""
    spec = discrete_spec(config.env, config.env_settings, config.method)
    learns = learner(config, spec, init, device)
    origin = {} if init is None else {"init": init.digest}
    with RunDirectory.open(out, config_json(config) | origin, resume) as directory:
        training = Training(learns, config, directory, refill=refill_replay, threads=threads)
        training.run(report)
        return directory.agent_path()
