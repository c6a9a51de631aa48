"""MinAtar, the CPU-sized twin of Atari: frames (C, 10, 10) of zeros and ones.

Freeway and Breakout are played for all lanes at once in NumPy, bit for bit the games of the `minatar`
package (rules and random streams: a test plays both); the other games, and any with sticky actions, go
through the package.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from smoothrl.envs.lanes import Array, Ids, Lanes, Mask, Step, no_lives

MINATAR_GAMES = {
    "Asterix": "asterix",
    "Breakout": "breakout",
    "Freeway": "freeway",
    "Seaquest": "seaquest",
    "SpaceInvaders": "space_invaders",
}
MINATAR_IDS = {f"MinAtar/{name}-v{v}": game for name, game in MINATAR_GAMES.items() for v in (0, 1)}
MINATAR_HORIZON = 5000
"""Agent steps after which a game that a perfect player could go on with for ever is cut off."""

ALL_ACTIONS = ("n", "l", "u", "r", "d", "f")
Ints = NDArray[np.int64]


class Game(ABC):
    """The state of many games of one kind; row i of every array is lane i."""

    channels: ClassVar[int]
    minimal: ClassVar[tuple[str, ...]]

    @abstractmethod
    def reset(self, lane: int, rng: np.random.RandomState) -> None:
        """A new game in this lane, drawing from `rng` what the package would."""

    @abstractmethod
    def act(self, ids: Ids, actions: NDArray[np.str_]) -> tuple[NDArray[np.float64], Mask]:
        """One frame of these lanes: rewards and ends."""

    @abstractmethod
    def draw(self, ids: Ids) -> NDArray[np.uint8]:
        """What these lanes show."""


class Freeway(Game):
    """Cross eight lanes of cars; car speeds are drawn anew at each crossing."""

    channels = 7
    minimal = ("n", "u", "d")
    player_speed = 3
    time_limit = 2500

    def __init__(self, num: int) -> None:
        """`num` games, all to be reset before use."""
        self.pos = np.full(num, 9)
        self.move_timer = np.zeros(num, dtype=np.int64)
        self.clock = np.zeros(num, dtype=np.int64)
        self.car_x, self.car_timer, self.car_speed = (np.zeros((num, 8), dtype=np.int64) for _ in range(3))
        self.rng: dict[int, np.random.RandomState] = {}
        self.undrawn = np.zeros(num, dtype=np.int64)

    def reset(self, lane: int, rng: np.random.RandomState) -> None:
        """Cars at the left edge, player at the bottom."""
        self.rng[lane] = rng
        self.undrawn[lane] = 0
        self._draw_cars(lane)
        self.car_x[lane] = 0
        self.pos[lane], self.move_timer[lane], self.clock[lane] = 9, self.player_speed, self.time_limit

    def _draw_cars(self, lane: int) -> None:
        """The package draws one uniform number a step (for sticky actions): draw those first."""
        rng = self.rng[lane]
        rng.random_sample(int(self.undrawn[lane]))
        self.undrawn[lane] = 0
        speeds = rng.randint(1, 6, 8)
        self.car_speed[lane] = speeds * np.sign(rng.rand(8) - 0.5).astype(int)
        self.car_timer[lane] = np.abs(self.car_speed[lane])

    def act(self, ids: Ids, actions: NDArray[np.str_]) -> tuple[NDArray[np.float64], Mask]:
        """Move the player, then the cars; a car on the player's cell sends the player back."""
        self.undrawn[ids] += 1
        pos, timer = self.pos[ids], self.move_timer[ids]
        step = np.where(timer == 0, (actions == "d").astype(np.int64) - (actions == "u"), 0)
        timer[step != 0] = self.player_speed
        pos = np.clip(pos + step, 0, 9)
        crossed = pos == 0
        for lane in ids[crossed]:
            self._draw_cars(int(lane))
        pos[crossed] = 9
        x, wait, speed = self.car_x[ids], self.car_timer[ids], self.car_speed[ids]
        rows, row = np.arange(len(ids)), np.clip(pos - 1, 0, 7)
        on_road = pos < 9
        hit = on_road & (x[rows, row] == 4)
        moves = wait == 0
        x = np.where(moves, (x + np.where(speed > 0, 1, -1)) % 10, x)
        wait = np.where(moves, np.abs(speed), wait - 1)
        hit |= on_road & (x[rows, row] == 4)
        pos[hit] = 9
        self.car_x[ids], self.car_timer[ids], self.pos[ids] = x, wait, pos
        self.move_timer[ids] = timer - (timer > 0)
        self.clock[ids] -= 1
        return crossed.astype(np.float64), self.clock[ids] < 0

    def draw(self, ids: Ids) -> NDArray[np.uint8]:
        """Channels: chicken, car, then the car's trail in the channel of its speed 1..5."""
        count = len(ids)
        frame = np.zeros((count, 7, 10, 10), dtype=np.uint8)
        rows = np.arange(count)
        frame[rows, 0, self.pos[ids], 4] = 1
        lanes, lines = rows[:, None], np.arange(1, 9)[None]
        x, speed = self.car_x[ids], self.car_speed[ids]
        frame[lanes, 1, lines, x] = 1
        frame[lanes, 1 + np.abs(speed), lines, (x - np.where(speed > 0, 1, -1)) % 10] = 1
        return frame


_MIRROR_X = np.array([1, 0, 3, 2])
_MIRROR_Y = np.array([3, 2, 1, 0])
_REVERSE = np.array([2, 3, 0, 1])
_DX = np.array([-1, 1, 1, -1])
_DY = np.array([-1, -1, 1, 1])


class Breakout(Game):
    """Bounce a ball off a paddle into three rows of bricks; the game ends when the ball is missed."""

    channels = 4
    minimal = ("n", "l", "r")

    def __init__(self, num: int) -> None:
        """`num` games, all to be reset before use."""
        self.ball_x, self.ball_y, self.last_x, self.last_y, self.direction, self.pos = (
            np.zeros(num, dtype=np.int64) for _ in range(6)
        )
        self.strike = np.zeros(num, dtype=np.bool_)
        self.bricks = np.zeros((num, 10, 10), dtype=np.bool_)

    def reset(self, lane: int, rng: np.random.RandomState) -> None:
        """The ball starts on a side drawn at random."""
        side = int(rng.randint(2))
        self.ball_x[lane], self.direction[lane] = ((0, 2), (9, 3))[side]
        self.ball_y[lane], self.pos[lane], self.strike[lane] = 3, 4, False
        self.last_x[lane], self.last_y[lane] = self.ball_x[lane], 3
        self.bricks[lane] = False
        self.bricks[lane, 1:4] = True

    def act(self, ids: Ids, actions: NDArray[np.str_]) -> tuple[NDArray[np.float64], Mask]:
        """Paddle, ball, then what the ball meets: side walls, ceiling, bricks, paddle or floor."""
        rows = np.arange(len(ids))
        pos = np.clip(self.pos[ids] + (actions == "r") - (actions == "l"), 0, 9)
        ball_x, ball_y, direction = self.ball_x[ids], self.ball_y[ids], self.direction[ids]
        bricks, strike = self.bricks[ids], self.strike[ids]
        x, y = ball_x + _DX[direction], ball_y + _DY[direction]
        side = (x < 0) | (x > 9)
        x = np.clip(x, 0, 9)
        direction = np.where(side, _MIRROR_X[direction], direction)
        ceiling = y < 0
        y = np.maximum(y, 0)
        direction = np.where(ceiling, _MIRROR_Y[direction], direction)
        brick = ~ceiling & bricks[rows, y, x]
        breaks = brick & ~strike
        bricks[rows[breaks], y[breaks], x[breaks]] = False
        floor = ~ceiling & ~brick & (y == 9)
        cleared = floor & ~bricks.any(axis=(1, 2))
        bricks[cleared, 1:4] = True
        under = floor & (ball_x == pos)
        corner = floor & ~under & (x == pos)
        y = np.where(breaks | under | corner, ball_y, y)
        direction = np.where(breaks | under, _MIRROR_Y[direction], direction)
        direction = np.where(corner, _REVERSE[direction], direction)
        self.pos[ids], self.direction[ids], self.bricks[ids] = pos, direction, bricks
        self.strike[ids] = brick
        self.last_x[ids], self.last_y[ids] = ball_x, ball_y
        self.ball_x[ids], self.ball_y[ids] = x, y
        return breaks.astype(np.float64), floor & ~under & ~corner

    def draw(self, ids: Ids) -> NDArray[np.uint8]:
        """Channels: paddle, ball, the ball's previous place, bricks."""
        rows = np.arange(len(ids))
        frame = np.zeros((len(ids), 4, 10, 10), dtype=np.uint8)
        frame[rows, 0, 9, self.pos[ids]] = 1
        frame[rows, 1, self.ball_y[ids], self.ball_x[ids]] = 1
        frame[rows, 2, self.last_y[ids], self.last_x[ids]] = 1
        frame[:, 3] = self.bricks[ids]
        return frame


VECTORISED: dict[str, type[Freeway] | type[Breakout]] = {"freeway": Freeway, "breakout": Breakout}


class NumpyMinAtarLanes(Lanes):
    """Freeway or Breakout, all lanes in one go."""

    backend = "numpy"

    def __init__(self, game: str, num: int, *, minimal: bool) -> None:
        """`minimal`: only the actions that do something (the -v1 ids)."""
        self.num = num
        self._game = VECTORISED[game](num)
        self._rng = [np.random.RandomState(0) for _ in range(num)]
        self._actions = np.array(self._game.minimal if minimal else ALL_ACTIONS)
        self.observation_space = spaces.Box(0, 1, (self._game.channels, 10, 10), np.uint8)
        self.action_space = spaces.Discrete(len(self._actions))
        self._sent: tuple[Ids, Array] | None = None

    def reset(self, ids: Ids, seeds: Sequence[int]) -> Array:
        """Each game restarts from its seed alone."""
        for lane, seed in zip(ids.tolist(), seeds, strict=True):
            self._rng[lane].seed(seed)
            self._game.reset(lane, self._rng[lane])
        return self._game.draw(ids)

    def send(self, ids: Ids, actions: Array) -> None:
        """Remember the actions."""
        self._sent = (ids, actions)

    def recv(self) -> Step:
        """Play them."""
        if self._sent is None:
            raise RuntimeError("recv() without a send()")
        (ids, actions), self._sent = self._sent, None
        reward, over = self._game.act(ids, self._actions[np.asarray(actions, dtype=np.int64)])
        return Step(self._game.draw(ids), reward, over, no_lives(len(ids)), no_lives(len(ids)))

    def render(self, lane: int) -> NDArray[np.uint8]:
        """Channels as colours, cells 16 pixels wide."""
        return paint(self._game.draw(np.array([lane]))[0])


class PackageMinAtarLanes(Lanes):
    """Any MinAtar game through the package."""

    backend = "minatar"

    def __init__(self, game: str, num: int, *, minimal: bool, sticky: float) -> None:
        """`sticky`: probability that the previous action is repeated."""
        from minatar import Environment

        self.num = num
        self._games: list[Any] = [Environment(game, sticky_action_prob=sticky) for _ in range(num)]
        self._actions = self._games[0].minimal_action_set() if minimal else list(range(len(ALL_ACTIONS)))
        self.observation_space = spaces.Box(0, 1, (self._games[0].n_channels, 10, 10), np.uint8)
        self.action_space = spaces.Discrete(len(self._actions))
        self._sent: tuple[Ids, Array] | None = None

    def reset(self, ids: Ids, seeds: Sequence[int]) -> Array:
        """Each game restarts from its seed alone (the package forgets to clear the last action)."""
        for lane, seed in zip(ids.tolist(), seeds, strict=True):
            self._games[lane].seed(seed)
            self._games[lane].last_action = 0
            self._games[lane].reset()
        return self._draw(ids)

    def send(self, ids: Ids, actions: Array) -> None:
        """Remember the actions."""
        self._sent = (ids, actions)

    def recv(self) -> Step:
        """Play them."""
        if self._sent is None:
            raise RuntimeError("recv() without a send()")
        (ids, actions), self._sent = self._sent, None
        pairs = zip(ids.tolist(), actions, strict=True)
        answers = [self._games[lane].act(self._actions[int(a)]) for lane, a in pairs]
        reward = np.array([a[0] for a in answers], dtype=np.float64)
        over = np.array([a[1] for a in answers], dtype=np.bool_)
        return Step(self._draw(ids), reward, over, no_lives(len(ids)), no_lives(len(ids)))

    def _draw(self, ids: Ids) -> Array:
        frames = [np.moveaxis(self._games[lane].state(), -1, 0) for lane in ids.tolist()]
        return np.stack(frames).astype(np.uint8)

    def render(self, lane: int) -> NDArray[np.uint8]:
        """Channels as colours, cells 16 pixels wide."""
        return paint(self._draw(np.array([lane]))[0])


def paint(frame: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """A colour picture of a (C, 10, 10) frame: the highest set channel decides the colour of a cell."""
    channels = len(frame)
    hue = np.arange(1, channels + 1) / (channels + 1) * 2 * np.pi
    colours = np.zeros((channels + 1, 3))
    colours[1:] = 0.55 + 0.45 * np.cos(hue[:, None] + np.array([0.0, 2.1, 4.2]))
    index = (frame * np.arange(1, channels + 1)[:, None, None]).max(axis=0)
    return np.kron((colours[index] * 255).astype(np.uint8), np.ones((16, 16, 1), dtype=np.uint8))
