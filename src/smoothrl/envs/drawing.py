"""Pictures of environments from their observations alone: no OpenGL, no screen, no simulator state.

MuJoCo robots are posed by the observation (their observations hold all joint positions but the place on the
track), projected on the plane they run in and drawn as capsules; CartPole as cart and pole.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from smoothrl.envs import mujoco as physics

Picture = NDArray[np.uint8]
Painter = Callable[[NDArray[Any]], Picture]

HIDDEN = {"Hopper": 1, "Walker2d": 1, "HalfCheetah": 1, "Ant": 2, "Humanoid": 2}
"""How many leading joint positions (the place on the track) the observation leaves out."""
SIZE = 200
METRES = 2.4
GROUND = np.array([214, 210, 200], dtype=np.uint8)
SKY = np.array([250, 250, 247], dtype=np.uint8)
INK = np.array([[38, 70, 110], [196, 78, 48], [70, 130, 90], [120, 90, 150]], dtype=np.uint8)


def painter(env_id: str) -> Painter | None:
    """What draws observations of this environment, or None."""
    name = env_id.rsplit("-v", 1)[0]
    if env_id in physics.MUJOCO_IDS and name in HIDDEN:
        return lambda obs: draw_robot(name, obs)
    if env_id == "CartPole-v1":
        return draw_cartpole
    return None


@cache
def _model(name: str) -> tuple[Any, Any]:
    import mujoco

    with physics.quietly():
        model = mujoco.MjModel.from_xml_path(str(physics.gymnasium_model(name)))
    return model, mujoco.MjData(model)


def draw_robot(name: str, obs: NDArray[Any]) -> Picture:
    """The robot seen from the side, its root in the middle of the picture."""
    import mujoco

    model, data = _model(name)
    hidden = HIDDEN[name]
    data.qpos[:hidden] = 0.0
    data.qpos[hidden:] = np.nan_to_num(obs[: model.nq - hidden])
    mujoco.mj_kinematics(model, data)
    segments = []
    for geom in range(model.ngeom):
        body = model.geom_bodyid[geom]
        if body == 0:
            continue
        radius = float(model.geom_size[geom, 0])
        capsule = model.geom_type[geom] == mujoco.mjtGeom.mjGEOM_CAPSULE
        half = float(model.geom_size[geom, 1]) if capsule else 0.0
        axis = data.geom_xmat[geom].reshape(3, 3)[:, 2] * half
        centre = data.geom_xpos[geom]
        segments.append(((centre - axis)[[0, 2]], (centre + axis)[[0, 2]], radius))
    middle = float(data.xpos[1][0])
    return draw_segments([(a - [middle, 0], b - [middle, 0], r) for a, b, r in segments])


def draw_cartpole(obs: NDArray[Any]) -> Picture:
    """Cart and pole at a quarter of their size."""
    place, _, angle, _ = (float(v) for v in obs)
    cart = np.array([place / 2.4, 0.5])
    tip = cart + 0.9 * np.array([np.sin(angle), np.cos(angle)])
    side = np.array([0.18, 0.0])
    return draw_segments([(cart - side, cart + side, 0.1), (cart, tip, 0.04)])


Segment = tuple[NDArray[np.float64], NDArray[np.float64], float]


def draw_segments(segments: list[Segment]) -> Picture:
    """Thick line segments ((x, z), (x, z), radius) in metres over a ground at z = 0."""
    x = (np.arange(SIZE) + 0.5) / SIZE * METRES - METRES / 2
    z = (SIZE * 0.88 - np.arange(SIZE)) / SIZE * METRES
    picture = np.where((z < 0)[:, None, None], GROUND, np.broadcast_to(SKY, (SIZE, SIZE, 3)))
    grid = np.stack(np.broadcast_arrays(x[None, :], z[:, None]), axis=-1)
    for number, (start, end, radius) in enumerate(segments):
        along = end - start
        share = np.clip(((grid - start) @ along) / max(float(along @ along), 1e-12), 0.0, 1.0)
        distance = np.linalg.norm(grid - start - share[..., None] * along, axis=-1)
        picture[distance < radius] = INK[number % len(INK)]
    return picture.astype(np.uint8)
