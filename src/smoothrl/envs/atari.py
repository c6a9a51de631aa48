"""Atari through ale-py's native vector interface, one single-lane interface (with its own C++ thread) a lane.

One interface a lane, because ale-py's batched one steps all its games or none: alone, each lane is stepped,
reset and seeded on its own, while Python's lock is free. Two profiles:

`standard`       84x84 grey by ale-py's own resize, 4 stacked frames (black before the first).
`single-frame`   the paper's: one frame, rows cropped per game, 4 black columns on each side, exact 2x2 mean.

Both: 4 frames a step with the maximum of the last two, 1..30 no-op frames at the start, then FIRE (action 1)
and action 2 where the game has FIRE, no sticky actions. Rewards are raw here.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from smoothrl.envs.lanes import Array, Ids, Lanes, Mask, Step
from smoothrl.errors import UserError, unknown

ATARI_HORIZON = 27_000
"""Agent steps (108,000 frames, half an hour of play) after which a game is cut off."""

NOOP_LIMIT = 30
NATIVE_FRAMES = 10**9
SEED_STRIDE = 1_000_003


@dataclass(frozen=True)
class AtariProfile:
    """How frames become observations."""

    single_frame: bool = False
    """One cropped frame (the paper's agents) instead of four stacked ones."""
    crop_shift: int = 0
    """Single frame: the 168 rows kept start at 21 + crop_shift."""
    actions: int | None = None
    """Keep only the first so many of the game's minimal actions; None keeps all."""
    transpose: bool = False
    """Single frame: swap rows and columns, the orientation the paper's released networks expect."""
    sticky: float = 0.0
    """Probability that the console repeats the previous action."""


STANDARD = AtariProfile()
SINGLE_FRAME = AtariProfile(single_frame=True)
PROFILES = {"standard": STANDARD, "single-frame": SINGLE_FRAME}

PAPER_GAMES = {
    "pong": {"crop_shift": 10, "actions": 4},
    "freeway": {"crop_shift": 0},
    "road_runner": {"crop_shift": 20, "actions": 6},
}
"""What the paper sets per game in the single-frame profile."""


def atari_profile(rom: str, name: str | None, changes: dict[str, Any]) -> AtariProfile:
    """The named profile (default `standard`) for this game, with the caller's changes."""
    chosen = name or "standard"
    if chosen not in PROFILES:
        raise unknown("Atari profile", chosen, PROFILES)
    base = PROFILES[chosen]
    preset: dict[str, Any] = PAPER_GAMES.get(rom, {}) if base.single_frame else {}
    allowed = asdict(base)
    for key in changes:
        if key not in allowed or key == "single_frame":
            raise unknown("Atari setting", key, sorted(set(allowed) - {"single_frame"}))
    profile = replace(base, **{**preset, **changes})
    if not -21 <= profile.crop_shift <= 21:
        raise UserError(f"crop_shift {profile.crop_shift} leaves the screen: it must lie in -21 .. 21")
    return profile


_GREY = np.array([9798.0, 19235.0, 3735.0], dtype=np.float32)
"""BT.601 luma in 15-bit fixed point, OpenCV's integers; every sum below is exact in float32."""


def single_frame(rgb: NDArray[np.uint8], crop_shift: int, transpose: bool) -> NDArray[np.uint8]:
    """The paper's 84x84 frame of a 210x160 RGB screen: grey, crop, pad, 2x2 means rounded half up."""
    top = 21 + crop_shift
    luma = rgb[top : top + 168].astype(np.float32) @ _GREY
    grey = ((luma + np.float32(16384)) * np.float32(2.0**-15)).astype(np.uint16)
    blocks = grey[0::2, 0::2] + grey[0::2, 1::2] + grey[1::2, 0::2] + grey[1::2, 1::2]
    frame = np.zeros((84, 84), dtype=np.uint8)
    frame[:, 2:82] = (blocks + 2) >> 2
    return np.ascontiguousarray(frame.T) if transpose else frame


class AtariLanes(Lanes):
    """`num` games of one ROM."""

    action_space: spaces.Discrete

    backend = "ale"

    def __init__(
        self, rom: str, num: int, profile: AtariProfile, *, episodic_life: bool, threads: int | None = None
    ) -> None:
        """`threads` bounds how many games start at the same time (a start takes some 70 ms)."""
        self.num = num
        self._profile = profile
        self._episodic_life = episodic_life
        self._starters = ThreadPoolExecutor(threads or 2)
        self._games = [_native(rom, profile) for _ in range(num)]
        names = [action.name for action in self._games[0].get_action_set()]
        self._fire = "FIRE" in names
        count = min(profile.actions or len(names), len(names))
        self.action_names: tuple[str, ...] = tuple(names[:count])
        self.action_space = spaces.Discrete(count)
        channels = 1 if profile.single_frame else 4
        self.observation_space = spaces.Box(0, 255, (channels, 84, 84), np.uint8)
        self._lives = np.zeros(num, dtype=np.int64)
        self.noops = np.zeros(num, dtype=np.int64)
        """No-op frames drawn at each lane's last start."""
        self._screens: list[Array | None] = [None] * num
        self._sent: Ids = np.zeros(0, dtype=np.int64)

    def reset(self, ids: Ids, seeds: Sequence[int]) -> Array:
        """Each game starts from its seed alone."""
        frames = list(self._starters.map(self._start, ids.tolist(), seeds))
        return self._observations(ids, frames)

    def _start(self, lane: int, seed: int) -> Array:
        """Native no-ops are 0..30 (its limit is exclusive): a draw of 0 is drawn again from another seed."""
        for attempt in range(1000):
            at = np.array([(int(seed) + attempt * SEED_STRIDE) % (2**31 - 1)])
            screen, info = self._games[lane].reset(np.zeros(1, dtype=np.int64), at)
            self.noops[lane] = int(info["episode_frame_number"][0])
            self._lives[lane] = int(info["lives"][0])
            if self.noops[lane] == 0:
                continue
            screen, over = self._press(lane, screen, (1, 2) if self._fire else ())
            if not over:
                return screen
        raise UserError("the game ends while it is being started; choose another seed")

    def _press(self, lane: int, screen: Array, buttons: tuple[int, ...]) -> tuple[Array, bool]:
        """Agent steps outside any episode."""
        for button in buttons:
            self._games[lane].send(np.array([button]), _FULL)
            screen, _, over, _, info = self._games[lane].recv()
            self._lives[lane] = int(info["lives"][0])
            if over[0]:
                return screen, True
        return screen, False

    def resume(self, ids: Ids) -> tuple[Array, Mask]:
        """After a lost life: one no-op step, then FIRE and action 2 where the game has FIRE."""
        buttons = (0, 1, 2) if self._fire else (0,)
        answers = [self._press(lane, np.zeros(0), buttons) for lane in ids.tolist()]
        return self._observations(ids, [a[0] for a in answers]), np.array([a[1] for a in answers])

    def send(self, ids: Ids, actions: Array) -> None:
        """Start the games' threads."""
        self._sent = ids
        for lane, action in zip(ids.tolist(), np.asarray(actions).astype(np.int64), strict=True):
            if not 0 <= action < self.action_space.n:
                raise ValueError(f"action {action} is outside 0 .. {self.action_space.n - 1}")
            self._games[lane].send(action.reshape(1), _FULL)

    def recv(self) -> Step:
        """Collect in order; a frame is prepared while later games still run."""
        count = len(self._sent)
        obs = np.empty((count, *self.observation_space.shape), dtype=np.uint8)
        reward = np.empty(count)
        terminated, life_lost = np.zeros(count, dtype=np.bool_), np.zeros(count, dtype=np.bool_)
        for row, lane in enumerate(self._sent.tolist()):
            screen, gained, over, _, info = self._games[lane].recv()
            lives = int(info["lives"][0])
            obs[row] = self._prepare(lane, screen)
            reward[row], terminated[row] = gained[0], over[0]
            life_lost[row] = self._episodic_life and 0 < lives < self._lives[lane]
            self._lives[lane] = lives
        return Step(obs, reward, terminated, np.zeros(count, dtype=np.bool_), life_lost)

    def _observations(self, ids: Ids, screens: list[Array]) -> Array:
        pairs = zip(ids.tolist(), screens, strict=True)
        return np.stack([self._prepare(lane, screen) for lane, screen in pairs])

    def _prepare(self, lane: int, screen: Array) -> Array:
        self._screens[lane] = screen[0]
        if not self._profile.single_frame:
            return np.asarray(screen[0])
        return single_frame(screen[0, 0], self._profile.crop_shift, self._profile.transpose)[None]

    def render(self, lane: int) -> NDArray[np.uint8] | None:
        """The colour screen (single frame) or the newest grey frame (standard)."""
        screen = self._screens[lane]
        if screen is None:
            return None
        if self._profile.single_frame:
            return np.asarray(screen[0]).copy()
        return np.repeat(screen[-1][..., None], 3, axis=-1)

    def close(self) -> None:
        """End the games' threads."""
        self._games = []
        self._starters.shutdown(wait=False)


_FULL = np.ones(1, dtype=np.float32)


def _native(rom: str, profile: AtariProfile) -> Any:
    """One single-lane interface: raw RGB screens for `single-frame`, finished stacks for `standard`."""
    import ale_py
    from ale_py import roms

    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    rom_path = roms.get_rom_path(rom)
    if rom_path is None:
        raise UserError(f"the installed ale-py has no ROM {rom!r}; reinstall ale-py")
    raw = profile.single_frame
    return ale_py.ALEVectorInterface(
        rom_path=rom_path,
        num_envs=1,
        frame_skip=4,
        stack_num=1 if raw else 4,
        img_height=210 if raw else 84,
        img_width=160 if raw else 84,
        grayscale=not raw,
        maxpool=True,
        noop_max=NOOP_LIMIT + 1,
        use_fire_reset=False,
        episodic_life=False,
        life_loss_info=False,
        reward_clipping=False,
        max_episode_steps=NATIVE_FRAMES,
        repeat_action_probability=profile.sticky,
        full_action_space=False,
        batch_size=1,
        num_threads=1,
        thread_affinity_offset=-1,
        autoreset_mode="NextStep",
    )


def atari_ids() -> dict[str, str]:
    """Environment id -> ROM name for every game in the wheel, as `PongNoFrameskip-v4` and `ALE/Pong-v5`."""
    try:
        from ale_py import roms
    except ImportError:
        return {}
    names = {rom: "".join(part.capitalize() for part in rom.split("_")) for rom in roms.get_all_rom_ids()}
    listed = {f"{name}NoFrameskip-v4": rom for rom, name in names.items()}
    return listed | {f"ALE/{name}-v5": rom for rom, name in names.items()}
