"""Prioritised replay: single frames once, in one memory-mapped file; stacks and n-step returns when sampled.

Every lane writes its frames into a ring of its own. An episode writes the whole first stack, then one frame a
step, the true last one included, so the stack of any state and of its successor are consecutive frames.
Frames that a resumed run may still need are never overwritten before the next checkpoint (`margin`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import numpy.typing as npt

from smoothrl.errors import UserError

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

RADIX = 64


class SumTree:
    """Sums of non-negative priorities, 64 children a node: sampling and updating are a few NumPy calls."""

    def __init__(self, size: int) -> None:
        self.size = size
        levels = [np.zeros(-(-size // RADIX) * RADIX)]
        while len(levels[-1]) > RADIX:
            count = len(levels[-1]) // RADIX
            levels.append(np.zeros(-(-count // RADIX) * RADIX))
        self.levels = levels

    @property
    def total(self) -> float:
        return float(self.levels[-1].sum())

    def get(self, index: Ints) -> Floats:
        return self.levels[0][index]

    def set(self, index: Ints, priority: Floats | float) -> None:
        """Assign; of repeated indices the last one counts."""
        self.levels[0][index] = priority
        for below, above in zip(self.levels[:-1], self.levels[1:], strict=True):
            index = index // RADIX
            above[index] = below.reshape(-1, RADIX)[index].sum(axis=1)

    def rebuild(self, leaves: Floats) -> None:
        self.levels[0][: self.size] = leaves
        for below, above in zip(self.levels[:-1], self.levels[1:], strict=True):
            above[: len(below) // RADIX] = below.reshape(-1, RADIX).sum(axis=1)

    def find(self, mass: Floats) -> Ints:
        """The leaf in whose stretch of the cumulated priorities each `mass` falls."""
        node = np.zeros(len(mass), np.int64)
        rest = mass.copy()
        for level in reversed(self.levels):
            cumulated = level.reshape(-1, RADIX)[node].cumsum(axis=1)
            rest = np.minimum(rest, np.nextafter(cumulated[:, -1], 0.0))
            child = (cumulated <= rest[:, None]).sum(axis=1)
            before = np.where(child > 0, cumulated[np.arange(len(rest)), child - 1], 0.0)
            rest = rest - before
            node = node * RADIX + child
        return node


@dataclass(frozen=True)
class Batch:
    """A minibatch of n-step transitions, observations raw."""

    index: Ints
    """Where they live in the replay, for `update`."""
    observations: Array
    actions: Ints
    returns: npt.NDArray[np.float32]
    """Discounted rewards of the n steps (fewer where the episode ended before)."""
    discounts: npt.NDArray[np.float32]
    """gamma^n, 0 where the episode terminated: the factor of the value of `following`."""
    following: Array
    """Observations n steps on."""
    weights: npt.NDArray[np.float32]
    """Importance weights (N P(i))^-beta over their maximum in the batch."""


@dataclass(frozen=True)
class ReplayConfig:
    """Shape of a replay."""

    lanes: int
    """Environments side by side; each step adds one transition a lane."""
    capacity: int
    """Transitions kept, over all lanes."""
    shape: tuple[int, ...]
    """Shape of one observation."""
    dtype: str
    """NumPy type of one observation."""
    stack: int = 1
    """Frames in one observation along its first axis (1: observations are stored as they are)."""
    n_step: int = 1
    gamma: float = 0.99
    alpha: float = 0.5
    """Exponent of the priorities; 0 samples uniformly."""
    margin: int = 4096
    """Frames a lane may write between two checkpoints."""
    limits_terminate: bool = False
    """Treat a time limit as a terminal state (released code) instead of bootstrapping there."""


class Replay:
    """Ring of transitions over the rings of frames."""

    def __init__(self, config: ReplayConfig, path: Path | None = None) -> None:
        """`path`: the file of the frames (None: memory)."""
        self.config = config
        c = config
        self.rows = max(2 * c.n_step + 2, c.capacity // c.lanes)
        self.live = self.rows + self.rows // 4 + 4 * (c.stack + 1)
        """Frames of a lane that sampled transitions may use."""
        self.ring = self.live + c.margin
        frame = (c.shape[0] // c.stack, *c.shape[1:]) if c.stack > 1 else c.shape
        shape = (c.lanes, self.ring, *frame)
        self.path = path
        self._file: Array = self._frames(shape)
        self.frames: Array = self._file.view(np.ndarray)
        table = (self.rows, c.lanes)
        self.action = np.zeros(table, np.int16)
        self.reward = np.zeros(table, np.float32)
        self.terminated = np.zeros(table, np.bool_)
        self.ended = np.zeros(table, np.bool_)
        self.frame = np.zeros(table, np.int64)
        self.tree = SumTree(self.rows * c.lanes)
        self.steps = 0
        """Vector steps written since the beginning."""
        self.written = np.zeros(c.lanes, np.int64)
        """Frames written in each lane since the beginning."""
        self.tail = np.zeros(c.lanes, np.int64)
        """Oldest vector step of each lane whose frames are still live."""
        self.max_priority = 1.0
        self.saved = self.written.copy()
        """`written` at the last checkpoint."""
        self._lanes = np.arange(c.lanes)

    def _frames(self, shape: tuple[int, ...]) -> Array:
        dtype = np.dtype(self.config.dtype)
        if self.path is None:
            return np.zeros(shape, dtype)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        size = int(np.prod(shape)) * dtype.itemsize
        if not self.path.exists():
            with self.path.open("wb") as stream:
                stream.truncate(size)
        if self.path.stat().st_size != size:
            raise UserError(
                f"{self.path}: the replay has {self.path.stat().st_size} bytes where {size} are needed: "
                "damaged, or of other settings; --refill-replay keeps the networks and fills a new one"
            )
        return np.memmap(self.path, dtype=dtype, mode="r+", shape=shape)

    # ------------------------------------------------------------------------------------- writing

    def begin(self, observations: Array) -> None:
        """The first observations of all lanes."""
        for lane in self._lanes:
            self._push_stack(int(lane), observations[lane])

    def _push_stack(self, lane: int, observation: Array) -> None:
        frames = observation.reshape(self.config.stack, *self.frames.shape[2:])
        at = (self.written[lane] + np.arange(self.config.stack)) % self.ring
        self.frames[lane, at] = frames
        self.written[lane] += self.config.stack

    def _push_newest(self, observations: Array) -> None:
        newest = observations[:, -self.frames.shape[2] :] if self.config.stack > 1 else observations
        self.frames[self._lanes, self.written % self.ring] = newest
        self.written += 1

    def push(
        self,
        actions: Array,
        rewards: Array,
        terminated: Mask,
        truncated: Mask,
        following: Array,
        info: Mapping[str, Any],
    ) -> None:
        """One vector step: what was done, what came of it, the next observations (same-step autoreset)."""
        row = self.steps % self.rows
        ended = terminated | truncated
        self.action[row], self.reward[row] = actions, rewards
        self.terminated[row] = ended if self.config.limits_terminate else terminated
        self.ended[row] = ended
        self.frame[row] = self.written - 1
        if ended.any():
            mask = ended.reshape(-1, *[1] * (following.ndim - 1))
            self._push_newest(np.where(mask, info["final_obs"], following))
            for lane in np.flatnonzero(ended):
                self._push_stack(int(lane), following[lane])
        else:
            self._push_newest(following)
        self._enlist(row)
        self.steps += 1
        self._retire()

    def _enlist(self, row: int) -> None:
        """The slot just overwritten cannot be sampled; the one whose n steps are complete now can."""
        lanes, n = self.config.lanes, self.config.n_step
        self.tree.set(row * lanes + self._lanes, 0.0)
        if self.steps >= n - 1:
            ready = (self.steps - (n - 1)) % self.rows
            self.tree.set(ready * lanes + self._lanes, self.max_priority)

    def _retire(self) -> None:
        """Transitions whose frames may be overwritten are sampled no more."""
        lanes, stack = self.config.lanes, self.config.stack
        self.tail = np.maximum(self.tail, self.steps - self.rows)
        while True:
            first = self.frame[self.tail % self.rows, self._lanes] - (stack - 1)
            gone = (first < self.written - self.live) & (self.tail < self.steps)
            if not gone.any():
                return
            self.tree.set((self.tail[gone] % self.rows) * lanes + self._lanes[gone], 0.0)
            self.tail = self.tail + gone

    def __len__(self) -> int:
        return int(np.minimum(self.steps - self.tail, self.rows).sum())

    @property
    def checkpoint_due(self) -> bool:
        """A lane is about to write over frames that a resumed run might sample."""
        slack = 2 * (self.config.stack + 1)
        return bool((self.written - self.saved).max() >= self.config.margin - slack)

    # ------------------------------------------------------------------------------------ sampling

    def sample(self, batch: int, beta: float, rng: np.random.Generator) -> Batch:
        """Stratified by priority."""
        total = self.tree.total
        index = self.tree.find((np.arange(batch) + rng.random(batch)) * (total / batch))
        weights = self._weights(index, total, beta)
        row, lane = np.divmod(index, self.config.lanes)
        returns, discounts, last = self._n_step(row, lane)
        return Batch(
            index,
            self._observations(lane, self.frame[row, lane]),
            self.action[row, lane].astype(np.int64),
            returns,
            discounts,
            self._observations(lane, self.frame[last, lane] + 1),
            weights,
        )

    def _weights(self, index: Ints, total: float, beta: float) -> npt.NDArray[np.float32]:
        raw = (len(self) * self.tree.get(index) / total) ** -beta
        return np.asarray(raw / raw.max(), np.float32)

    def _n_step(self, row: Ints, lane: Ints) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32], Ints]:
        """Discounted n-step return, the discount of what follows, and the row of the last step taken."""
        n, gamma = self.config.n_step, self.config.gamma
        rows = (row[:, None] + np.arange(n)) % self.rows
        ended = self.ended[rows, lane[:, None]]
        alive = np.ones_like(ended)
        alive[:, 1:] = ~np.logical_or.accumulate(ended, axis=1)[:, :-1]
        powers = gamma ** np.arange(n)
        returns = (self.reward[rows, lane[:, None]] * alive) @ powers
        taken = alive.sum(axis=1)
        last = rows[np.arange(len(row)), taken - 1]
        discounts = np.where(self.terminated[last, lane], 0.0, gamma**taken)
        return returns.astype(np.float32), discounts.astype(np.float32), last

    def _observations(self, lane: Ints, newest: Ints) -> Array:
        stack = self.config.stack
        if stack == 1:
            return np.asarray(self.frames[lane, newest % self.ring])
        at = (newest[:, None] + np.arange(1 - stack, 1)) % self.ring
        return np.asarray(self.frames[lane[:, None], at]).reshape(len(lane), *self.config.shape)

    def update(self, index: Ints, priorities: Floats) -> None:
        """New priorities p^alpha; a transition retired meanwhile stays out."""
        if self.config.alpha == 0.0:
            return
        raised = np.asarray(priorities, np.float64) ** self.config.alpha
        self.max_priority = max(self.max_priority, float(raised.max()))
        self.tree.set(index, np.where(self.tree.get(index) > 0.0, raised, 0.0))

    # -------------------------------------------------------------------------------------- resume

    def state(self) -> dict[str, Array]:
        """All but the frames, which are flushed to their file. Call it at checkpoints only."""
        if isinstance(self._file, np.memmap):
            self._file.flush()
        self.saved = self.written.copy()
        return {
            "action": self.action,
            "reward": self.reward,
            "terminated": self.terminated,
            "ended": self.ended,
            "frame": self.frame,
            "priority": self.tree.levels[0][: self.tree.size],
            "steps": np.array(self.steps),
            "written": self.written,
            "tail": self.tail,
            "max_priority": np.array(self.max_priority),
            "check": np.array(self._check()),
        }

    def load(self, state: Mapping[str, Array]) -> None:
        """Go on from `state`; the frames are already in the file."""
        for name in ("action", "reward", "terminated", "ended", "frame"):
            getattr(self, name)[:] = state[name]
        self.tree.rebuild(np.asarray(state["priority"], np.float64))
        self.steps, self.max_priority = int(state["steps"]), float(state["max_priority"])
        self.written, self.tail = np.array(state["written"]), np.array(state["tail"])
        self.saved = self.written.copy()
        if self._check() != int(state["check"]):
            raise UserError(
                f"{self.path}: the frames are not those of the checkpoint, the file was damaged or replaced; "
                "--refill-replay keeps the networks and fills a new one"
            )

    def _check(self) -> int:
        """CRC over every 97th live frame and the newest ones."""
        value = 0
        for lane in self._lanes:
            end = int(self.written[lane])
            begin = max(0, end - self.live)
            at = np.union1d(np.arange(begin - begin % 97 + 97, end, 97), np.arange(max(begin, end - 8), end))
            value = crc32(np.ascontiguousarray(self.frames[lane, at % self.ring]).tobytes(), value)
        return value
