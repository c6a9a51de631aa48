"""The paper's tables and figures, and our own studies, as data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from smoothrl.errors import unknown
from smoothrl.studies.declare import ANY, Entry, Evaluation, Study, checked, read_study

HOPPER, WALKER = "Hopper-v2", "Walker2d-v2"
PONG, FREEWAY, ROADRUNNER = "ALE/Pong-v5", "ALE/Freeway-v5", "ALE/RoadRunner-v5"
ATARI = (PONG, FREEWAY, ROADRUNNER)
ATARI_SIGMA = {PONG: 0.1, FREEWAY: 0.1, ROADRUNNER: 0.05}
MUJOCO_EPSILON = 0.075
IMAGE_EPSILONS = (0.01, 0.02, 0.03, 0.04, 0.05)
BOUND_PPO = (0.002, 0.004, 0.006, 0.008, 0.01)
BOUND_DQN = (0.001, 0.002, 0.003, 0.004, 0.005)
INGREDIENTS = ("", "+sgld", "+radial", "+wocar", "+atla", "+pa-atla")
SELECT = ("clean", "mad", "min-rs")
"""The paper selects by the medians of these three."""

PLAIN_PPO = tuple(Entry(f"ppo{x}") for x in INGREDIENTS)
RS_PPO = tuple(Entry(f"ppo{x}+rs") for x in INGREDIENTS)
SMOOTH_PPO = tuple(Entry(f"s-ppo{x}") for x in INGREDIENTS)
BASES_DQN = ("dqn", "dqn+sa", "dqn+radial", "dqn+wocar")
PLAIN_DQN = tuple(Entry(name) for name in BASES_DQN)
RS_DQN = tuple(Entry(f"{name}+rs") for name in BASES_DQN)
S_DQN = Entry("s-dqn", base="dqn")
S_DQN_RADIAL = Entry("s-dqn+radial", base="dqn+radial")
S_DQN_PGD = Entry("s-dqn+s-pgd", base="dqn", options={"adversarial": "s-pgd"})
SMOOTH_DQN = (S_DQN, S_DQN_RADIAL, S_DQN_PGD)
CROP = Entry("dqn+rs", label="dqn+rs @mean", smoothing="mean")
SELECTORS = (
    Evaluation("clean"),
    Evaluation("mad", (MUJOCO_EPSILON,)),
    Evaluation("min-rs", (MUJOCO_EPSILON,)),
)
LEARNED = (
    Evaluation("optimal", (MUJOCO_EPSILON,), on="selected"),
    Evaluation("pa-ad", (MUJOCO_EPSILON,), on="selected"),
)
ADIV = Evaluation("adiv", on="selected", samples=100)
PPO_BOUND = Evaluation("reward_lower_bound", BOUND_PPO, on="selected")


def _ppo(name: str, title: str, tables: tuple[str, ...], **rest: object) -> Study:
    values: dict[str, object] = {
        "methods": RS_PPO + SMOOTH_PPO,
        "environments": (HOPPER, WALKER),
        "evaluations": SELECTORS,
        "seeds": 15,
        "select": SELECT,
        "protocol": "paper",
        "fit": "paper",
    }
    return Study(name=name, title=title, tables=tables, **{**values, **rest})  # type: ignore[arg-type]


def _dqn(name: str, title: str, tables: tuple[str, ...], **rest: object) -> Study:
    values: dict[str, object] = {
        "methods": RS_DQN + SMOOTH_DQN,
        "environments": ATARI,
        "sigma": ATARI_SIGMA,
        "episodes": 5,
        "protocol": "paper",
        "fit": "paper",
    }
    return Study(name=name, title=title, tables=tables, **{**values, **rest})  # type: ignore[arg-type]


def paper_ppo() -> Study:
    return _ppo(
        "paper-ppo",
        "PPO agents under attack, their action divergence and their certified returns",
        ("ppo_reward", "ppo_normalized", "adiv", "ppo_reward_lower_bound"),
        methods=PLAIN_PPO + RS_PPO + SMOOTH_PPO,
        evaluations=(*SELECTORS, *LEARNED, ADIV, PPO_BOUND),
    )


def paper_dqn() -> Study:
    return _dqn(
        "paper-dqn",
        "DQN agents under attack",
        ("dqn_reward", "dqn_normalized", "sdqn_other_bases"),
        methods=(
            *PLAIN_DQN,
            *RS_DQN,
            *SMOOTH_DQN,
            Entry("s-dqn+sa", base="dqn+sa"),
            Entry("s-dqn+wocar", base="dqn+wocar"),
        ),
        evaluations=(
            Evaluation("clean"),
            Evaluation("pgd", IMAGE_EPSILONS, agents="plain"),
            Evaluation("s-pgd", IMAGE_EPSILONS, agents="smoothed"),
            Evaluation("pa-ad", (0.05,), agents="plain", on="selected"),
            Evaluation("s-pa-ad", (0.05,), agents="smoothed", on="selected"),
        ),
    )


def paper_certified_radius() -> Study:
    return _dqn(
        "paper-certified-radius",
        "Certified radius of smoothed DQN agents: voting S-DQN, mean-smoothed CROP",
        ("certified_radius",),
        methods=tuple(replace(e, smoothing="mean") for e in RS_DQN[:3]) + SMOOTH_DQN,
        evaluations=(Evaluation("certified_radius", samples=100, episodes=1),),
    )


def paper_adiv() -> Study:
    return _ppo(
        "paper-adiv", "Action divergence of smoothed PPO agents", ("adiv",), evaluations=(*SELECTORS, ADIV)
    )


def paper_return_bounds() -> Study:
    games = tuple(replace(e, environments=ATARI, seeds=1) for e in (*RS_DQN, *SMOOTH_DQN))
    return _ppo(
        "paper-return-bounds",
        "Certified lower bounds of the return, DQN and PPO",
        ("ppo_reward_lower_bound", "dqn_reward_lower_bound"),
        methods=tuple(replace(e, environments=(HOPPER, WALKER)) for e in (*RS_PPO, *SMOOTH_PPO)) + games,
        environments=(HOPPER, WALKER, *ATARI),
        sigma={ANY: 0.2, **ATARI_SIGMA},
        evaluations=(
            *SELECTORS,
            replace(PPO_BOUND, environments=(HOPPER, WALKER)),
            Evaluation("reward_lower_bound", BOUND_DQN, on="selected", environments=ATARI),
        ),
    )


def paper_sigma() -> Study:
    policies = tuple(
        Entry("s-ppo", label=f"s-ppo @{s:g}", sigma=s, environments=(HOPPER, WALKER)) for s in (0.1, 0.2, 0.3)
    )
    games = tuple(
        Entry("s-dqn", label=f"s-dqn @{s:g}", base="dqn", sigma=s, environments=ATARI, seeds=1)
        for s in (0.01, 0.05, 0.1, 0.15)
    )
    return _ppo(
        "paper-sigma",
        "What the noise level does",
        ("sppo_sigma", "sdqn_sigma"),
        methods=policies + games,
        environments=(HOPPER, WALKER, *ATARI),
        evaluations=(*SELECTORS, *LEARNED, Evaluation("s-pgd", IMAGE_EPSILONS, episodes=5)),
    )


def paper_samples() -> Study:
    counts = (100, 10, 5, 1)
    return _ppo(
        "paper-samples",
        "What the number of noise samples costs and brings",
        ("testing_time",),
        methods=(
            Entry("s-ppo", environments=(WALKER,)),
            Entry("s-dqn", base="dqn", environments=(PONG,), seeds=1),
        ),
        environments=(WALKER, PONG),
        sigma={WALKER: 0.2, PONG: 0.1},
        evaluations=(
            *SELECTORS,
            *(Evaluation("clean", samples=m, on="selected") for m in counts[1:]),
            *(Evaluation("seconds_per_step", samples=m, on="selected", episodes=1) for m in counts),
        ),
    )


def paper_no_denoiser() -> Study:
    return _dqn(
        "paper-no-denoiser",
        "S-DQN with and without its denoiser",
        ("sdqn_no_denoiser",),
        methods=(S_DQN, Entry("s-dqn+no-denoiser", options={"denoiser": "none"})),
        evaluations=(Evaluation("clean"), Evaluation("s-pgd", IMAGE_EPSILONS)),
    )


def paper_smoothed_attacks() -> Study:
    attacks = ("mad", "min-rs", "optimal", "pa-ad", "s-mad", "s-min-rs", "s-optimal", "s-pa-ad")
    return _ppo(
        "paper-smoothed-attacks",
        "Attacks that know of the smoothing against those that do not",
        ("smoothed_attack_ppo", "new_attack"),
        methods=(
            Entry("s-ppo", environments=(HOPPER, WALKER)),
            Entry("s-dqn", base="dqn", environments=ATARI, seeds=1),
        ),
        environments=(HOPPER, WALKER, *ATARI),
        sigma={ANY: 0.2, **ATARI_SIGMA},
        evaluations=(
            *SELECTORS,
            *(
                Evaluation(a, (MUJOCO_EPSILON,), on="selected", environments=(HOPPER, WALKER))
                for a in attacks
                if a not in SELECT
            ),
            *(
                Evaluation(a, (0.05,), on="selected", environments=ATARI, episodes=5)
                for a in ("pgd", "s-pgd", "pa-ad", "s-pa-ad")
            ),
        ),
    )


def paper_other_environments() -> Study:
    humanoid, others = ("Humanoid-v2",), ("Ant-v2", "HalfCheetah-v2")
    attacks = ("mad", "min-rs")
    learned = ("optimal", "pa-ad")
    return _ppo(
        "paper-other-environments",
        "S-PPO on Humanoid, Ant and HalfCheetah",
        ("other_environments",),
        methods=(Entry("ppo"), Entry("ppo+rs"), Entry("s-ppo")),
        environments=humanoid + others,
        sigma={ANY: 0.2, "Humanoid-v2": 0.4},
        evaluations=(
            Evaluation("clean"),
            *(Evaluation(a, (0.075,), environments=humanoid) for a in attacks),
            *(Evaluation(a, (0.15,), environments=others) for a in attacks),
            *(Evaluation(a, (0.075,), on="selected", environments=humanoid) for a in learned),
            *(Evaluation(a, (0.15,), on="selected", environments=others) for a in learned),
        ),
    )


def minatar() -> Study:
    freeway, breakout = "MinAtar/Freeway-v1", "MinAtar/Breakout-v1"
    return Study(
        "minatar",
        (
            Entry("dqn"),
            Entry("dqn+rs"),
            S_DQN,
            S_DQN_PGD,
        ),
        (freeway, breakout),
        (
            Evaluation("clean"),
            Evaluation("pgd", (0.1, 0.2), agents="plain"),
            Evaluation("s-pgd", (0.1, 0.2), agents="smoothed"),
            Evaluation("certified_radius", on="selected", samples=100, episodes=5),
            Evaluation("reward_lower_bound", (0.0005, 0.001, 0.002), on="selected"),
        ),
        title="The paper's DQN findings on Atari's CPU-sized twin",
        seeds=3,
        sigma={ANY: 0.2, freeway: 0.3},
    )


RELEASED = {
    "ppo": "hopper_vanilla_median.model",
    "ppo+sgld": "hopper_sgld_median.model",
    "ppo+radial": "hopper_radial_median.model",
    "ppo+wocar": "hopper_wocar_median.model",
    "ppo+atla": "hopper_atla_median.model",
    "ppo+pa-atla": "hopper_pa_atla_median.model",
    "s-ppo": "hopper_sppo_median.model",
    "s-ppo+sgld": "hopper_sppo_sgld_median.model",
    "s-ppo+radial": "hopper_sppo_radial_median.model",
    "s-ppo+wocar": "hopper_sppo_wocar_median.model",
    "s-ppo+atla": "hopper_sppo_atla_median.model",
    "s-ppo+pa-atla": "hopper_sppo_pa_atla_median.model",
}
"""The paper's own median Hopper agents, in the folder given with --files."""


def released_hopper() -> Study:
    plain = tuple(Entry(m, file=f) for m, f in RELEASED.items())
    rs = tuple(Entry(f"{m}+rs", file=f) for m, f in RELEASED.items() if not m.startswith("s-"))
    return Study(
        "released-hopper",
        plain + rs,
        (HOPPER,),
        (
            Evaluation("clean"),
            Evaluation("mad", (MUJOCO_EPSILON,)),
            replace(ADIV, on="pool"),
            replace(PPO_BOUND, on="pool"),
        ),
        title="The paper's own released Hopper agents, measured again",
        tables=("ppo_reward", "adiv", "ppo_reward_lower_bound"),
        protocol="paper",
    )


UNWATCHED = {"eval_every": 1_000_000_000}
"""No evaluations in the middle of a short training."""


def quick() -> Study:
    """Every method, attack and certificate at tiny scale."""
    pendulum, breakout = "InvertedPendulum-v4", "MinAtar/Breakout-v1"
    ppo = tuple(replace(e, environments=(pendulum,)) for e in (*PLAIN_PPO, Entry("ppo+rs"), *SMOOTH_PPO))
    dqn = tuple(
        replace(e, environments=(breakout,))
        for e in (*PLAIN_DQN, Entry("dqn+rs"), CROP, S_DQN, S_DQN_RADIAL, S_DQN_PGD)
    )
    first = (pendulum,)
    return Study(
        "quick",
        ppo + dqn,
        (pendulum, breakout),
        (
            Evaluation("clean"),
            *(Evaluation(a, (0.05, 0.1), environments=first) for a in ("random", "fgsm", "mad")),
            Evaluation("s-mad", (0.1,), environments=first),
            *(
                Evaluation(a, (0.1,), on="selected", methods=("ppo", "ppo+rs", "s-ppo"))
                for a in ("min-rs", "optimal")
            ),
            *(Evaluation(a, (0.1,), on="selected", methods=("s-ppo",)) for a in ("s-min-rs", "s-optimal")),
            *(Evaluation(a, (0.1,), environments=(breakout,)) for a in ("random", "fgsm")),
            Evaluation("pgd", (0.05, 0.1), agents="plain"),
            Evaluation("s-pgd", (0.05, 0.1), agents="smoothed"),
            Evaluation("pa-ad", (0.1,), on="selected", methods=("ppo", "ppo+rs", "s-ppo", "dqn")),
            Evaluation("s-pa-ad", (0.1,), on="selected", methods=("s-ppo", "s-dqn")),
            Evaluation("targeted", (0.1,), on="selected"),
            Evaluation("suite", (0.05,), on="selected", methods=("s-ppo",)),
            Evaluation("certified_radius", on="selected", samples=50, episodes=2),
            replace(ADIV, samples=50),
            Evaluation("reward_lower_bound", (0.001, 0.005, 0.01), on="selected"),
        ),
        title="Every method, attack and certificate at tiny scale",
        seeds=2,
        steps=16_384,
        family_steps={"ppo": 16_384, "dqn": 8_000},
        fit="tiny",
        episodes=8,
        bound_episodes=100,
        samples=20,
        sigma={ANY: 0.1, breakout: 0.3},
        select=("clean", "mad"),
    )


def demo() -> Study:
    """What `smoothrl demo` runs: the whole story in minutes on two cores."""
    pendulum, breakout = "InvertedPendulum-v4", "MinAtar/Breakout-v1"
    first, second = (pendulum,), (breakout,)
    return Study(
        "demo",
        (
            *(Entry(name, environments=first) for name in ("ppo", "ppo+rs", "s-ppo")),
            *(
                replace(e, environments=second, seeds=1, options=UNWATCHED)
                for e in (Entry("dqn"), Entry("dqn+rs"), S_DQN)
            ),
        ),
        (pendulum, breakout),
        (
            Evaluation("clean"),
            *(Evaluation(a, (0.1, 0.2, 0.3, 0.4), environments=first) for a in ("random", "fgsm", "mad")),
            *(Evaluation(a, (0.02, 0.05, 0.1), environments=second, episodes=10) for a in ("random", "fgsm")),
            Evaluation("pgd", (0.02, 0.05, 0.1), agents="plain", episodes=10),
            Evaluation("s-pgd", (0.02, 0.05, 0.1), agents="smoothed", episodes=10),
            Evaluation("certified_radius", on="selected", samples=60, episodes=4),
            replace(ADIV, episodes=5, samples=60),
            Evaluation("reward_lower_bound", (0.001, 0.002, 0.004, 0.006), on="selected", environments=first),
        ),
        title="Smoothed agents in minutes",
        seeds=2,
        steps=49_152,
        family_steps={"ppo": 49_152, "dqn": 160_000, "s-dqn": 24_000},
        fit="tiny",
        episodes=20,
        bound_episodes=300,
        samples=50,
        sigma={ANY: 0.15, breakout: 0.2},
        select=("clean", "mad"),
    )


_MAKERS: tuple[Callable[[], Study], ...] = (
    paper_ppo,
    paper_dqn,
    paper_certified_radius,
    paper_adiv,
    paper_return_bounds,
    paper_sigma,
    paper_samples,
    paper_no_denoiser,
    paper_smoothed_attacks,
    paper_other_environments,
    minatar,
    released_hopper,
    quick,
    demo,
)
STUDIES: dict[str, Callable[[], Study]] = {make.__name__.replace("_", "-"): make for make in _MAKERS}
"""The predefined studies by name."""


def catalogue() -> list[tuple[str, str]]:
    """(name, what it is) of every predefined study, for `smoothrl list studies`."""
    return [(name, make().title) for name, make in STUDIES.items()]


def find_study(name: str) -> Study:
    """A predefined study by name, or one from a TOML file."""
    if name in STUDIES:
        return checked(STUDIES[name]())
    if name.endswith(".toml") or Path(name).is_file():
        return read_study(name)
    raise unknown("study", name, STUDIES)
