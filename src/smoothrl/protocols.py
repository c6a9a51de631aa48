"""Two protocols as data: `PAPER` is what was published or released, defects included and named; `SOUND`
answers the same question correctly. Code reads a switch where it matters, never the protocol's name.
Every switch is one row of docs/protocols.md (a test compares the two)."""

from __future__ import annotations

from dataclasses import dataclass

from smoothrl.errors import unknown


@dataclass(frozen=True)
class Protocol:
    """The named switches."""

    name: str
    """For labels in results and reports only; no code branches on it."""
    exact_bounds: bool
    """Certificates: exact bounds, valid at the stated confidence, instead of the published formulas."""
    time_limit_is_terminal: bool
    """An episode cut off by its time limit counts as a true end (nothing is bootstrapped)."""
    bootstrap_tail_with_own_value: bool
    """PPO: the last row of an iteration bootstraps with V of its own state, not of the next one."""
    value_loss_skips_ends: bool
    """PPO: rows at which an episode ends are left out of the value loss."""
    sgld_anchor_smoothed: bool
    """SGLD on an `s-` method: the anchor is the smoothed mean while the perturbed side is not smoothed."""
    radial_fixed_schedule: bool
    """RADIAL: epsilon starts at iteration 500 and would need 1000 more, whatever the length of the run."""
    radial_raw_advantages: bool
    """RADIAL: raw advantages in the bounded surrogates beside normalised ones in the clean surrogate."""
    wocar_wrong_bounds: bool
    """WocaR: action bounds through tanh of the input and three linear layers, not through the policy."""
    wocar_fixed_epsilon: bool
    """WocaR: worst-case actions within epsilon 0.01, whatever the budget."""
    fgsm_sign_flipped: bool
    """PA: the FGSM step of the director-actor adversary goes down its own objective."""
    fgsm_two_noises: bool
    """PA on an `s-` victim: the two sides of the action change see one noise draw each, two different."""
    adversary_acts_smoothed: bool
    """Adversaries of `s-` methods act through their own smoothed mean, as in their update."""
    priority_weighted: bool
    """Q-learners: a priority is the importance-weighted Huber loss, not the plain one."""
    reconstruction_summed: bool
    """S-DQN: the reconstruction loss is a sum over batch and pixels beside a mean TD loss."""
    shared_noise: bool
    """S-DQN: one noise tensor for a whole minibatch, not one a sample."""
    batch_statistics: bool
    """S-DQN: the denoiser normalises by whatever batch comes, when it acts as well."""
    adversarial_whole_batch: bool
    """S-DQN (S-PGD): an adversarial minibatch is attacked as a whole or not at all, not row by row."""
    adversarial_gradient_leak: bool
    """S-DQN (S-PGD): the attack's last cross-entropy gradient stays in the denoiser's update."""
    attack_released_search: bool
    """Gradient attacks: one start, ten steps of epsilon / 10, last iterate; else restarts, the best kept."""
    attack_through_smoothing: bool
    """Attacks without the `s-` prefix differentiate through the smoothing noise of a smoothed agent too."""
    attack_single_draw: bool
    """Smoothed attacks: one noise draw in each gradient, not an average over several (EOT)."""
    mad_injected_noise: bool
    """MAD: Langevin noise added to the gradient, large against small gradients."""
    mad_unclipped: bool
    """MAD: the change of the policy's output counts also where the environment clips it away."""
    pgd_cross_entropy: bool
    """PGD: cross entropy of the Q-values as logits, not the margin of the smoothed decision."""
    critic_shuffled: bool
    """Min-RS: the critic's target takes Q of a random other row for Q of the next state."""
    critic_of_exploration: bool
    """Min-RS: the critic values the policy with its exploration noise, not the deployed agent."""
    adversary_of_base_network: bool
    """Learned adversaries are fitted against the agent without its smoothing."""
    director_unclamped: bool
    """PA-AD on images: the actor's perturbations may leave the valid range."""
    director_samples: bool
    """PA-AD on Q-agents: the director's target action is sampled at test time, not its best one."""
    attack_early_stop: bool
    """Attack averages may stop after twelve episodes once they cannot (or need not) change the minimum."""
    select_on_test: bool
    """Of a grid of adversaries the one that is worst on the test episodes themselves is reported."""
    wocar_tiny_ball: bool
    """WocaR-DQN: the worst-case actions are those of a ball of 1e-7, whatever the budget."""


PAPER = Protocol(
    name="paper",
    exact_bounds=False,
    time_limit_is_terminal=True,
    bootstrap_tail_with_own_value=True,
    value_loss_skips_ends=True,
    sgld_anchor_smoothed=True,
    radial_fixed_schedule=True,
    radial_raw_advantages=True,
    wocar_wrong_bounds=True,
    wocar_fixed_epsilon=True,
    fgsm_sign_flipped=True,
    fgsm_two_noises=True,
    adversary_acts_smoothed=False,
    priority_weighted=True,
    reconstruction_summed=True,
    shared_noise=True,
    batch_statistics=True,
    adversarial_whole_batch=True,
    adversarial_gradient_leak=True,
    attack_released_search=True,
    attack_through_smoothing=False,
    attack_single_draw=True,
    mad_injected_noise=True,
    mad_unclipped=True,
    pgd_cross_entropy=True,
    critic_shuffled=True,
    critic_of_exploration=True,
    adversary_of_base_network=True,
    director_unclamped=True,
    director_samples=True,
    attack_early_stop=True,
    select_on_test=True,
    wocar_tiny_ball=True,
)
SOUND = Protocol(
    name="sound",
    exact_bounds=True,
    time_limit_is_terminal=False,
    bootstrap_tail_with_own_value=False,
    value_loss_skips_ends=False,
    sgld_anchor_smoothed=False,
    radial_fixed_schedule=False,
    radial_raw_advantages=False,
    wocar_wrong_bounds=False,
    wocar_fixed_epsilon=False,
    fgsm_sign_flipped=False,
    fgsm_two_noises=False,
    adversary_acts_smoothed=True,
    priority_weighted=False,
    reconstruction_summed=False,
    shared_noise=False,
    batch_statistics=False,
    adversarial_whole_batch=False,
    adversarial_gradient_leak=False,
    attack_released_search=False,
    attack_through_smoothing=True,
    attack_single_draw=False,
    mad_injected_noise=False,
    mad_unclipped=False,
    pgd_cross_entropy=False,
    critic_shuffled=False,
    critic_of_exploration=False,
    adversary_of_base_network=False,
    director_unclamped=False,
    director_samples=False,
    attack_early_stop=False,
    select_on_test=False,
    wocar_tiny_ball=False,
)

PROTOCOLS = {p.name: p for p in (SOUND, PAPER)}


def protocol(name: str) -> Protocol:
    if name not in PROTOCOLS:
        raise unknown("protocol", name, PROTOCOLS)
    return PROTOCOLS[name]
