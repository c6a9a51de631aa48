"""MuJoCo ids, and the paper's v2 physics: v4 with the capsule inertia of MuJoCo before 2.1.2.

Until MuJoCo 2.1.2 a capsule of radius r and half-length h had the mass and inertia of a solid cylinder of
radius r and length L = 2h + r. The agents of the paper lived there. A v2 body is composed of its geoms
exactly as the compiler does it, with that one formula replaced, and written as an explicit `inertial` into
Gymnasium's v4.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import warnings
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from smoothrl.errors import UserError

Vector = NDArray[np.float64]

MODEL_FILES = {
    "Hopper": "hopper.xml",
    "Walker2d": "walker2d.xml",
    "HalfCheetah": "half_cheetah.xml",
    "Ant": "ant.xml",
    "Humanoid": "humanoid.xml",
}
V2_IDS = {f"{name}-v2": f"{name}-v4" for name in MODEL_FILES}
MUJOCO_IDS = tuple(f"{name}-v{v}" for name in MODEL_FILES for v in (2, 4, 5)) + tuple(
    f"InvertedPendulum-v{v}" for v in (4, 5)
)


@dataclass(frozen=True)
class Inertial:
    """Mass distribution of one body."""

    mass: float
    """Kilograms."""
    position: Vector
    """Centre of mass in the body's frame."""
    orientation: Vector
    """Unit quaternion (w, x, y, z) of the principal axes in the body's frame."""
    moments: Vector
    """Principal moments of inertia, in the order of the axes."""


def capsule_v2(radius: float, half_length: float) -> tuple[float, Vector]:
    """Volume and moments per unit mass (long axis last) of a capsule as MuJoCo before 2.1.2 had them."""
    length = 2 * half_length + radius
    across = (3 * radius**2 + length**2) / 12
    return np.pi * radius**2 * length, np.array([across, across, radius**2 / 2])


def capsule_exact(radius: float, half_length: float) -> tuple[float, Vector]:
    """Volume and moments per unit mass of a true capsule: a cylinder between two half balls."""
    height = 2 * half_length
    cylinder, ball = np.pi * radius**2 * height, 4 / 3 * np.pi * radius**3
    volume = cylinder + ball
    along = (cylinder * radius**2 / 2 + ball * 2 / 5 * radius**2) / volume
    caps = ball * (2 / 5 * radius**2 + height**2 / 4 + 3 / 8 * height * radius)
    across = (cylinder * (3 * radius**2 + height**2) / 12 + caps) / volume
    return volume, np.array([across, across, along])


def sphere(radius: float) -> tuple[float, Vector]:
    """Volume and moments per unit mass of a ball."""
    return 4 / 3 * np.pi * radius**3, np.full(3, 2 / 5 * radius**2)


def body_inertials(xml_file: Path, *, exact_capsules: bool = False) -> tuple[Inertial, ...]:
    """Inertials of bodies 1, 2, ... of a model made of capsules and spheres, with old (or exact) capsules."""
    import mujoco

    spec = mujoco.MjSpec.from_file(str(xml_file))
    with quietly():
        model = spec.compile()
    capsule = capsule_exact if exact_capsules else capsule_v2
    parts: dict[int, list[tuple[float, Vector, Vector]]] = {}
    for geom in spec.geoms:
        compiled = geom.id
        body = int(model.geom_bodyid[compiled])
        if body == 0:
            continue
        size, kind = model.geom_size[compiled], model.geom_type[compiled]
        if kind == mujoco.mjtGeom.mjGEOM_CAPSULE:
            volume, unit = capsule(float(size[0]), float(size[1]))
        elif kind == mujoco.mjtGeom.mjGEOM_SPHERE:
            volume, unit = sphere(float(size[0]))
        else:
            raise UserError(f"{xml_file.name}: the v2 inertia is known for capsules and spheres only")
        mass = float(geom.mass) if np.isfinite(geom.mass) else float(geom.density) * volume
        axes = np.zeros(9)
        mujoco.mju_quat2Mat(axes, model.geom_quat[compiled])
        turn = axes.reshape(3, 3)
        parts.setdefault(body, []).append(
            (mass, model.geom_pos[compiled].copy(), turn @ np.diag(mass * unit) @ turn.T)
        )
    total = sum(mass for pieces in parts.values() for mass, _, _ in pieces)
    wanted = float(spec.compiler.settotalmass)
    factor = wanted / total if wanted > 0 else 1.0
    return tuple(_compose(parts[body], factor) for body in range(1, model.nbody))


def _compose(pieces: list[tuple[float, Vector, Vector]], factor: float) -> Inertial:
    """One body from (mass, centre, inertia about it) of its geoms: parallel axes, then principal axes."""
    import mujoco

    mass = sum(m for m, _, _ in pieces)
    centre = np.sum([m * p for m, p, _ in pieces], axis=0) / mass
    inertia = np.zeros((3, 3))
    for m, p, about_own_centre in pieces:
        d = p - centre
        inertia += about_own_centre + m * (d @ d * np.eye(3) - np.outer(d, d))
    moments, orientation, axes = np.zeros(3), np.zeros(4), np.zeros(9)
    mujoco.mju_eig3(moments, axes, orientation, inertia.ravel())
    return Inertial(mass * factor, centre, orientation, moments * factor)


@contextmanager
def quietly() -> Iterator[None]:
    """Drop MuJoCo's remarks on Gymnasium's model files, else written to the terminal and MUJOCO_LOG.TXT."""
    try:
        import mujoco
    except ImportError:
        yield
        return
    before = mujoco.get_mju_user_warning()
    mujoco.set_mju_user_warning(lambda message: None)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        mujoco.set_mju_user_warning(before)


def gymnasium_model(name: str) -> Path:
    """Gymnasium's v4 model file of `Hopper`, `Ant`, ..."""
    from gymnasium.envs import mujoco as package

    return Path(package.__file__).parent / "assets" / MODEL_FILES[name]


@cache
def v2_inertials(name: str) -> tuple[Inertial, ...]:
    """The v2 inertials of the bodies of `Hopper`, `Walker2d`, ... in MuJoCo's (depth-first) order."""
    return body_inertials(gymnasium_model(name))


def v2_xml(name: str) -> str:
    """Gymnasium's v4 model with an explicit v2 inertial in every body."""
    root = ElementTree.parse(gymnasium_model(name)).getroot()
    compiler = root.find("compiler")
    if compiler is None:
        raise UserError(
            f"the installed Gymnasium's model of {name} has no compiler element; reinstall gymnasium"
        )
    compiler.set("inertiafromgeom", "false")
    compiler.attrib.pop("settotalmass", None)
    for body, inertial in zip(root.iter("body"), v2_inertials(name), strict=True):
        attributes = {
            "pos": _numbers(inertial.position),
            "quat": _numbers(inertial.orientation),
            "mass": repr(inertial.mass),
            "diaginertia": _numbers(inertial.moments),
        }
        body.insert(0, ElementTree.Element("inertial", attributes))
    return ElementTree.tostring(root, encoding="unicode")


def _numbers(values: Vector) -> str:
    return " ".join(repr(float(v)) for v in values)


def cache_dir() -> Path:
    """Generated files: $SMOOTHRL_CACHE, else $XDG_CACHE_HOME/smoothrl, else ~/.cache/smoothrl."""
    own = os.environ.get("SMOOTHRL_CACHE")
    if own:
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "smoothrl"


def v2_model_folder(name: str) -> tuple[Path, str]:
    """EnvPool's (base_path, xml_file) of the v2 model: written whole or not at all, named by its content."""
    text = v2_xml(name)
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    base = cache_dir() / "mujoco" / digest
    file = base / "mujoco" / "assets_gym" / f"{name.lower()}_v2.xml"
    if not file.exists():
        try:
            _write_whole(file, text)
        except OSError as error:
            raise UserError(
                f"cannot write the v2 model into {base} ({error.strerror}): set SMOOTHRL_CACHE to a folder "
                "you may write to"
            ) from error
    return base, file.name


def _write_whole(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=file.parent, suffix=".tmp")
    with os.fdopen(descriptor, "w") as handle:
        handle.write(text)
    os.replace(temporary, file)


def patch_v2(env: gymnasium.Env[Any, Any], name: str) -> gymnasium.Env[Any, Any]:
    """Give a Gymnasium v4 environment the v2 masses and inertias."""
    import mujoco

    raw: Any = env.unwrapped
    for index, inertial in enumerate(v2_inertials(name), start=1):
        raw.model.body_mass[index] = inertial.mass
        raw.model.body_inertia[index] = inertial.moments
        raw.model.body_ipos[index] = inertial.position
        raw.model.body_iquat[index] = inertial.orientation
    mujoco.mj_setConst(raw.model, raw.data)
    return env
