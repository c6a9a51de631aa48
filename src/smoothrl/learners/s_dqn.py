"""S-DQN: a denoiser D trained in front of a frozen Q-network, Q(D(s + z)); its diff from DQN is its loss.

The frozen network collects no weight gradients, its values of the clean next states are computed once, and
the reconstruction and TD terms share one forward of D.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from smoothrl import envs, networks
from smoothrl.agents import Agent, Smoothing, load_agent
from smoothrl.errors import UserError
from smoothrl.learners import q_losses as losses
from smoothrl.learners.dqn import (
    Device,
    DQNLearner,
    agent_info,
    as_input,
    copied,
    discrete_spec,
    load_optimizer,
    noise_stream,
    normaliser,
    on,
    optimizer_state,
    part,
    placed,
    resume_noise,
    seeded,
)
from smoothrl.learners.dqn import preset_config as dqn_config
from smoothrl.learners.q_adversary import s_pgd
from smoothrl.learners.q_config import NoisyDQNConfig, SDQNConfig, with_changes
from smoothrl.learners.q_loop import Report, Training, amp, config_json, learning_rate
from smoothrl.learners.q_presets import s_dqn_preset
from smoothrl.learners.replay import Batch
from smoothrl.learners.run_directory import RunDirectory
from smoothrl.protocols import protocol
from smoothrl.rollout import check_environment

Array = npt.NDArray[Any]


def denoiser_description(spec: envs.EnvSpec, config: SDQNConfig) -> dict[str, Any]:
    """The denoiser that fits the observation."""
    shape, kind = spec.obs_shape, config.denoiser
    width, depth = config.denoiser_width, config.denoiser_depth
    if kind == "mlp" or len(shape) == 1:
        if kind == "dncnn" or len(shape) != 1:
            raise UserError(
                f"the denoiser {kind!r} does not fit observations of shape {shape}; "
                f"use --denoiser {'fast' if len(shape) == 3 else 'mlp'}"
            )
        return {"kind": "mlp-denoiser", "observations": shape[0], "hidden": [width] * max(1, depth - 1)}
    if kind == "dncnn":
        batch = protocol(config.protocol).batch_statistics
        statistics = "batch" if batch else "frozen"
        return {"kind": "dncnn", "channels": shape[0], "statistics": statistics}
    factor = config.denoiser_factor
    if shape[1] % factor or shape[2] % factor:
        raise UserError(f"denoiser_factor {factor} does not divide frames of {shape[1]} x {shape[2]}")
    return {"kind": "fast-denoiser", "channels": shape[0], "width": width, "depth": depth, "factor": factor}


class SDQNLearner:
    """A denoiser in training before a frozen Q-network."""

    def __init__(self, config: SDQNConfig, spec: envs.EnvSpec, q: nn.Module, device: Device = "cpu") -> None:
        self.config, self.spec, self.device = config, spec, torch.device(device)
        self.scale = 1.0 / spec.obs_scale
        self.valid = normaliser(spec).bounds
        self.switches = protocol(config.protocol)
        self.q = placed(copied(q), device)
        self.denoiser = seeded(denoiser_description(spec, config), config.seed, device)
        self.parameters = list(self.denoiser.parameters())
        self.optimizer = torch.optim.Adam(self.parameters, lr=config.lr, eps=config.adam_eps, fused=True)
        self.generator = noise_stream(config.seed + 7_777_777, device)

    # ---------------------------------------------------------------------------------------- acting

    def greedy(self, observations: Array) -> Array:
        """argmax Q(D(s + z)), one draw of z a lane; some lanes are attacked first."""
        x = self._input(observations)
        with networks_in_eval_mode(self.denoiser), amp(self.config, self.device):
            if self.config.adversarial != "none":
                x = self.attacked(x, self._rows(x.shape[0]))[0]
            with torch.no_grad():
                q = self._denoised_q(x + self._noise(x))
        return np.asarray(q.float().argmax(dim=1).cpu().numpy())

    def _input(self, raw: Array, precision: str = "fp32") -> Tensor:
        return as_input(raw, self.scale, precision, self.device)

    def _denoised_q(self, x: Tensor) -> Tensor:
        return self.q(self.denoiser(x))  # type: ignore[no-any-return]

    def _noise(self, like: Tensor) -> Tensor:
        z = torch.empty_like(like, memory_format=torch.contiguous_format)
        return z.normal_(generator=self.generator).mul_(self.config.sigma)

    def _batch_noise(self, like: Tensor) -> Tensor:
        return self._noise(like[:1] if self.switches.shared_noise else like)

    # -------------------------------------------------------------------------------------- learning

    def update(self, batch: Batch, progress: float) -> tuple[npt.NDArray[np.float64], dict[str, float]]:
        clean = self._input(batch.observations)
        weights = on(self.device, batch.weights)
        aim = self.aim(batch)
        with amp(self.config, self.device):
            seen, leaked = self._seen(clean)
            denoised = self.denoiser(seen + self._batch_noise(seen))
            q = self.q(denoised)
        td = aim(q.float())
        lambdas = self.config.lambda_reconstruction, self.config.lambda_td
        summed = self.switches.reconstruction_summed
        loss, mse = losses.s_dqn(td, weights, denoised.float(), clean, *lambdas, summed)
        self._descend(loss, leaked, progress)
        each = td.detach() * weights if self.switches.priority_weighted else td.detach()
        metrics = {"loss": loss.item(), "mse": mse.item(), "td": td.detach().mean().item()}
        return np.asarray(each.double().cpu().numpy()) + 1e-5, metrics

    def aim(self, batch: Batch) -> Callable[[Tensor], Tensor]:
        """The TD term of each row, given Q(D(s + z)).

        The frozen Q has converged, so that E[y | s, a] is Q(s, a) itself: the target `base` is the TD target
        without its variance, and known for every action.
        """
        if self.config.td_target == "base":
            own = self._frozen_q(batch.observations)
            return lambda q: losses.advantages_apart(q, own)
        y, actions = self.targets(batch), on(self.device, batch.actions)
        return lambda q: losses.huber_td(q, actions, y)

    def targets(self, batch: Batch) -> Tensor:
        """y from the frozen Q at the clean next states."""
        following = self._frozen_q(batch.following)
        returns, discounts = on(self.device, batch.returns), on(self.device, batch.discounts)
        return losses.td_target(returns, discounts, following)

    @torch.no_grad()
    def _frozen_q(self, raw: Array) -> Tensor:
        with amp(self.config, self.device):
            return self.q(self._input(raw, self.config.precision)).float()  # type: ignore[no-any-return]

    def _seen(self, clean: Tensor) -> tuple[Tensor, list[Tensor]]:
        """The observations of this update, some attacked, and the gradients that slip into it."""
        if self.config.adversarial == "none":
            return clean, []
        if self.switches.adversarial_whole_batch:
            return self.attacked(clean, self._rows(1).expand(clean.shape[0]))
        return self.attacked(clean, self._rows(clean.shape[0]))

    def _rows(self, count: int) -> Tensor:
        uniform = torch.rand(count, generator=self.generator, device=self.device)
        return uniform < self.config.attack_probability

    def attacked(self, clean: Tensor, rows: Tensor) -> tuple[Tensor, list[Tensor]]:
        """S-PGD on the chosen rows."""
        if not rows.any():
            return clean, []
        leaks = self.switches.adversarial_gradient_leak and self.denoiser.training
        leaking = self.parameters if leaks else []
        c = self.config

        def q(x: Tensor) -> Tensor:
            return self._denoised_q(x).float()

        target = clean if rows.all() else clean[rows]
        found, leaked = s_pgd(q, target, self._batch_noise, c.epsilon, c.attack_steps, self.valid, leaking)
        if rows.all():
            return found, leaked
        seen = clean.clone()
        seen[rows] = found
        return seen, leaked

    def _descend(self, loss: Tensor, leaked: list[Tensor], progress: float) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        for parameter, gradient in zip(self.parameters, leaked, strict=False):
            assert parameter.grad is not None
            parameter.grad += gradient
        if self.config.grad_clip > 0.0:
            nn.utils.clip_grad_norm_(self.parameters, self.config.grad_clip)
        self.optimizer.param_groups[0]["lr"] = learning_rate(self.config, progress)
        self.optimizer.step()

    # ----------------------------------------------------------------------------- agent and state

    def agent(self, steps: int) -> Agent:
        network = networks.DenoisedQ(copied(self.denoiser), copied(self.q))
        smooth = Smoothing("vote", self.config.sigma, self.config.samples)
        info = agent_info(self.config, self.spec, steps, trained_with=smooth)
        mixes = bool(networks.batch_dependent(networks.frozen(network)))
        return Agent(network, normaliser(self.spec), info, batch_statistics=mixes, device=self.device)

    def state(self) -> dict[str, Tensor]:
        found = {f"denoiser.{k}": v for k, v in self.denoiser.state_dict().items()}
        found |= {f"adam.{k}": v for k, v in optimizer_state(self.optimizer).items()}
        return found | {"generator": self.generator.get_state()}

    def load(self, state: Mapping[str, Tensor]) -> None:
        self.denoiser.load_state_dict(part(state, "denoiser"))
        load_optimizer(self.optimizer, part(state, "adam"))
        resume_noise(self.generator, state["generator"])


class NoisyDQNLearner(DQNLearner):
    """DQN whose every observation is noisy: when it acts, in its update and in its targets."""

    def __init__(self, config: NoisyDQNConfig, spec: envs.EnvSpec, device: Device = "cpu") -> None:
        super().__init__(config, spec, device=device)
        self.sigma, self.samples = config.sigma, config.samples
        self.generator = noise_stream(config.seed + 7_777_777, device)

    def inputs(self, raw: Array) -> Tensor:
        x = super().inputs(raw)
        z = torch.empty(x.shape, device=self.device).normal_(generator=self.generator).mul_(self.sigma)
        return x + z

    def agent(self, steps: int) -> Agent:
        smooth = Smoothing("vote", self.sigma, self.samples)
        info = agent_info(self.config, self.spec, steps, trained_with=smooth)
        return Agent(copied(self.q), normaliser(self.spec), info, device=self.device)

    def state(self) -> dict[str, Tensor]:
        return super().state() | {"generator": self.generator.get_state()}

    def load(self, state: Mapping[str, Tensor]) -> None:
        super().load(state)
        resume_noise(self.generator, state["generator"])


class networks_in_eval_mode:
    """The module in evaluation mode while the block runs, then as it was."""

    def __init__(self, module: nn.Module) -> None:
        self.module, self.was = module, module.training

    def __enter__(self) -> None:
        self.module.eval()

    def __exit__(self, *_: object) -> None:
        self.module.train(self.was)


def checked_base(path: Path | None, env_id: str, settings: Mapping[str, Any] | None = None) -> Agent:
    """The base agent, refused where it does not belong in front of this environment."""
    if path is None:
        raise UserError(
            "s-dqn trains a denoiser in front of a trained Q-network: give one with --base AGENT (`smoothrl "
            f"train dqn --env {env_id}` makes one), or --denoiser none to train the Q-network itself"
        )
    agent = load_agent(path)
    info = agent.info
    if not agent.discrete:
        raise UserError(f"{path} is a {info.method} agent with continuous actions; s-dqn needs a Q-network")
    if isinstance(agent.network, networks.DenoisedQ | networks.FastVotes):
        raise UserError(f"{path} is an s-dqn agent already; its own base is what --base wants")
    if info.env_id != env_id:
        raise UserError(f"{path} was trained on {info.env_id}, not on {env_id}; use a base of the same game")
    if settings is not None and dict(info.env_settings) != dict(settings):
        raise UserError(
            f"{path} was trained with {dict(info.env_settings)} and this run has {dict(settings)}; a base of "
            "other preprocessing sees other images"
        )
    check_environment(agent, env_id)
    shown, seen = normaliser(envs.spec(env_id, **info.env_settings)), agent.normaliser
    if (shown.kind, shown.scale) != (seen.kind, seen.scale):
        raise UserError(
            f"{path} sees observations normalised by {seen.kind!r} and s-dqn trains on {shown.kind!r}; use a "
            "base of the same preprocessing, one that was trained here for instance"
        )
    return agent


def train(
    config: SDQNConfig | NoisyDQNConfig,
    base: Agent | None,
    out: str | Path,
    *,
    resume: bool = False,
    refill_replay: bool = False,
    report: Report | None = None,
    device: Device = "cpu",
    threads: int | None = None,
) -> Path:
    """Train one agent into the run directory `out`; returns its path."""
    spec = discrete_spec(config.env, config.env_settings, config.method)
    learner: SDQNLearner | NoisyDQNLearner
    if isinstance(config, NoisyDQNConfig):
        learner = NoisyDQNLearner(config, spec, device)
    else:
        assert base is not None
        learner = SDQNLearner(config, spec, base.network, device)
    with RunDirectory.open(out, config_json(config), resume) as directory:
        training = Training(learner, config, directory, refill=refill_replay, threads=threads)
        training.run(report)
        return directory.agent_path()


def preset_config(
    env_id: str, base: Agent, preset: str | None = None, denoiser: str | None = None, **changes: Any
) -> SDQNConfig:
    """The preset of the base agent's environment with the caller's changes."""
    values = {
        **s_dqn_preset(env_id, len(base.info.observation_shape) == 3, preset),
        "env": env_id,
        "env_settings": dict(base.info.env_settings),
        "base": base.digest,
    }
    if denoiser is not None:
        values["denoiser"] = denoiser
    if protocol(changes.get("protocol", "sound")).reconstruction_summed:
        values |= {"lambda_reconstruction": 1.0, "lambda_td": 1.0, "td_target": "bootstrap"}
    config: SDQNConfig = with_changes(SDQNConfig(**values), changes)
    return config


def noisy_config(env_id: str, preset: str | None = None, **changes: Any) -> NoisyDQNConfig:
    """The ablation: the Q-network's preset, the noise of the denoiser's."""
    plain = dqn_config("s-dqn", env_id, preset)
    image = len(envs.spec(env_id, **plain.env_settings).obs_shape) == 3
    values = {**vars(plain), "noise": 0.0, "sigma": s_dqn_preset(env_id, image, preset)["sigma"]}
    config: NoisyDQNConfig = with_changes(NoisyDQNConfig(**values), changes)
    return config
