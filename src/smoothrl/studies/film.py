"""Short looping films of an agent at work: what is there, what the attacker adds, what the agent sees.

Nothing here needs a screen or OpenGL: images are shown as they are, MuJoCo robots are drawn from their
observations, anything else as the traces of its observation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont, features

from smoothrl import rollout
from smoothrl.agents import Agent
from smoothrl.envs import drawing

Picture = NDArray[np.uint8]
Floats = NDArray[np.float64]
PANEL = 160
STRIP = 19
"""Height of a line of words."""
FRAMES = 72
STEPS = 3 * FRAMES
MILLISECONDS = 80
BOARD = np.array(
    [[242, 142, 43], [78, 121, 167], [225, 87, 89], [118, 183, 178], [89, 161, 79], [237, 201, 72],
     [176, 122, 161], [255, 157, 167], [156, 117, 95], [186, 176, 172]],
    dtype=np.float64,
)  # fmt: skip
"""Colours of the channels of a board."""
INK, PAPER, GRID = (38, 48, 66), (248, 249, 250), (222, 226, 231)


@dataclass(frozen=True)
class Shot:
    """A finished film."""

    path: Path
    total: float
    """Return collected in it."""
    when: str
    """Over how many steps, and whether the episode ended there."""


@dataclass
class _Reel:
    """What was seen, step by step."""

    there: list[Floats]
    seen: list[Floats]
    rewards: list[float]
    ended: bool = False

    def __call__(self, step: rollout.Step) -> None:
        self.there.append(step.observations[0].cpu().numpy().astype(np.float64))
        self.seen.append(step.perturbed[0].cpu().numpy().astype(np.float64))
        self.rewards.append(float(step.rewards[0]))
        self.ended = self.ended or bool(step.done[0])


def shoot(agent: Agent, attack: rollout.Perturbs | None, seed: int, path: Path) -> Shot:
    """Play one episode and write it as an animated picture beside `path`."""
    reel = _Reel([], [], [])
    rollout.evaluate(agent, episodes=1, seed=seed, attack=attack, on_step=reel, max_steps=STEPS)
    stride = max(1, -(-len(reel.there) // FRAMES))
    compose = _composer(agent, reel)
    frames = [
        _titled(compose(i), f"step {i + 1}   return {sum(reel.rewards[: i + 1]):,.1f}")
        for i in range(0, len(reel.there), stride)
    ]
    target = _write(frames, path)
    when = f"in {len(reel.there)} steps" + (", where the episode ends." if reel.ended else ".")
    return Shot(target, float(sum(reel.rewards)), when)


def _write(frames: list[Image.Image], path: Path) -> Path:
    options: dict[str, Any] = {
        "save_all": True,
        "append_images": frames[1:],
        "duration": MILLISECONDS,
        "loop": 0,
    }
    if features.check("webp"):
        target = path.with_suffix(".webp")
        frames[0].save(target, quality=36, method=4, **options)
        return target
    target = path.with_suffix(".gif")
    small = [frame.quantize(64) for frame in frames]
    small[0].save(target, **{**options, "append_images": small[1:]})
    return target


def _composer(agent: Agent, reel: _Reel) -> Callable[[int], Image.Image]:
    if reel.there[0].ndim == 3:
        return lambda i: _images(reel.there[i], reel.seen[i])
    paint = drawing.painter(agent.info.env_id)
    if paint is None or agent.normaliser.kind != "moments":
        return lambda i: _traces(reel, i)
    raw = agent.normaliser.raw
    return lambda i: _side_by_side(
        [
            ("what is there", paint(raw(torch.from_numpy(reel.there[i])))),
            ("what the agent sees", paint(raw(torch.from_numpy(reel.seen[i])))),
            ("what was added", _bars(reel.seen[i] - reel.there[i], _largest(reel))),
        ]
    )


def _largest(reel: _Reel) -> float:
    return max(float(np.abs(s - t).max()) for t, s in zip(reel.there, reel.seen, strict=True)) or 1.0


def _images(there: Floats, seen: Floats) -> Image.Image:
    added = seen - there
    scale = max(float(np.abs(added).max()), 1e-9)
    return _side_by_side(
        [
            ("what is there", flat(there)),
            ("added (amplified)", _signed(added / scale)),
            ("what the agent sees", flat(seen)),
        ]
    )


def flat(image: Floats) -> Picture:
    """An observation (channels, height, width) as colours: the newest frame of a stack, or a board."""
    clipped = np.clip(image, 0.0, 1.0)
    if image.shape[1] >= 32:
        grey = clipped[-1] * 255.0
        return np.asarray(np.repeat(grey[..., None], 3, axis=2), dtype=np.uint8)
    colours = BOARD[: image.shape[0]]
    if image.shape[0] > len(BOARD):
        colours = np.resize(BOARD, (image.shape[0], 3))
    mixed = np.einsum("chw,ck->hwk", clipped, colours)
    weight = np.maximum(clipped.sum(axis=0), 1.0)[..., None]
    return np.asarray(np.clip(mixed / weight + 14.0, 0, 255), dtype=np.uint8)


def _signed(added: Floats) -> Picture:
    """Red adds, blue takes away, summed over channels."""
    value = np.clip(added[-1] if added.shape[1] >= 32 else added.sum(axis=0), -1.0, 1.0)[..., None]
    up, down = np.maximum(value, 0.0), np.maximum(-value, 0.0)
    picture = 247.0 - up * (247.0 - np.array([203.0, 62, 48])) - down * (247.0 - np.array([46.0, 96, 186]))
    return np.asarray(np.clip(picture, 0, 255), dtype=np.uint8)


def _bars(added: Floats, scale: float) -> Picture:
    """The perturbation of each coordinate as a bar."""
    picture = Image.new("RGB", (PANEL, PANEL), PAPER)
    draw = ImageDraw.Draw(picture)
    middle, width = PANEL / 2, PANEL / (len(added) + 1)
    draw.line([(4, middle), (PANEL - 4, middle)], fill=GRID)
    for i, value in enumerate(added / scale):
        x = (i + 0.5) * width + width / 4
        top = middle - float(value) * (middle - 8)
        colour = (203, 62, 48) if value > 0 else (46, 96, 186)
        draw.rectangle([x, min(middle, top), x + width * 0.6, max(middle, top)], fill=colour)
    return np.asarray(picture, dtype=np.uint8)


def _traces(reel: _Reel, now: int, window: int = 60) -> Image.Image:
    """The last steps of the first coordinates: dark what is there, red what the agent is shown."""
    count = min(4, reel.there[0].size)
    first = max(0, now - window + 1)
    picture = Image.new("RGB", (3 * PANEL, PANEL), PAPER)
    draw = ImageDraw.Draw(picture)
    row = PANEL / count
    there, seen = np.array(reel.there)[:, :count], np.array(reel.seen)[:, :count]
    for k in range(count):
        values = np.concatenate([there[:, k], seen[:, k]])
        low, high = float(values.min()), float(values.max())
        span = (high - low) or 1.0
        draw.line([(0, row * (k + 1)), (3 * PANEL, row * (k + 1))], fill=GRID)
        for data, colour in ((seen, (203, 62, 48)), (there, INK)):
            points = [
                (
                    3 * PANEL * (t - first + 1) / (window + 1),
                    row * (k + 0.92 - 0.84 * (data[t, k] - low) / span),
                )
                for t in range(first, now + 1)
            ]
            if len(points) > 1:
                draw.line(points, fill=colour, width=2)
            x, y = points[-1]
            draw.ellipse([x - 3, y - 3, x + 3, y + 3], fill=colour)
    return picture


@lru_cache(maxsize=1)
def _font() -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(13)


def _side_by_side(panels: list[tuple[str, Picture]]) -> Image.Image:
    whole = Image.new("RGB", (len(panels) * PANEL, PANEL + STRIP), PAPER)
    draw = ImageDraw.Draw(whole)
    for i, (words, picture) in enumerate(panels):
        panel = Image.fromarray(picture).resize((PANEL - 2, PANEL), Image.Resampling.NEAREST)
        whole.paste(panel, (i * PANEL, 0))
        draw.text((i * PANEL + 4, PANEL + 2), words, fill=INK, font=_font())
    return whole


def _titled(picture: Image.Image, words: str) -> Image.Image:
    whole = Image.new("RGB", (picture.width, picture.height + STRIP), PAPER)
    whole.paste(picture, (0, STRIP))
    ImageDraw.Draw(whole).text((4, 2), words, fill=INK, font=_font())
    return whole
