"""Synthetic views: a photograph from another viewpoint and under other light, from a seed.

View `v` of the photograph `name` depends only on (seed, name, v) and the level, so it can be
rendered again later to crop its patches with another magnification.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import cv2
import numpy as np
from numpy.random import Generator

from matchserve.types import Float64, UInt8
from training.data.photos.relight import relight
from training.errors import DataError

VIEW_MARK = "#"


@dataclass(frozen=True, slots=True)
class Level:
    """How much a view may differ from the photograph.

    `tilt_deg` is the largest angle of the camera to the normal of the photograph, `turn_deg` the
    largest rotation in its plane, `zoom` the largest change of scale in octaves, and `light` the
    strength of photometric change from 0 to 1 (see `relight`).
    """

    tilt_deg: float
    turn_deg: float
    zoom: float
    light: float
    is_night: bool = False


LEVELS = {
    "easy": Level(tilt_deg=20, turn_deg=30, zoom=0.3, light=0.35),
    "medium": Level(tilt_deg=40, turn_deg=180, zoom=0.7, light=0.65),
    "hard": Level(tilt_deg=60, turn_deg=180, zoom=1.2, light=1.0),
    "night": Level(tilt_deg=35, turn_deg=30, zoom=0.5, light=1.0, is_night=True),
}
DEFAULT_LEVELS = ("easy", "medium", "medium", "hard", "hard", "night")


@dataclass(frozen=True, slots=True, eq=False)
class View:
    """A rendered view; `homography` maps points of the photograph to it."""

    grey: UInt8
    homography: Float64


def view_name(photo: str, index: int) -> str:
    """Return the image name of view `index` (from 1) of `photo`; 0 is the photograph itself."""
    return f"{photo}{VIEW_MARK}{index}" if index else photo


def split_view_name(name: str) -> tuple[str, int]:
    """Return the photograph and the view index of a name made by `view_name`."""
    photo, mark, index = name.rpartition(VIEW_MARK)
    return (photo, int(index)) if mark and index.isdigit() else (name, 0)


def check_levels(names: tuple[str, ...]) -> None:
    """Check that all levels exist.

    Raises:
        DataError: a level is unknown, or none is given.
    """
    unknown = [name for name in names if name not in LEVELS]
    if unknown or not names:
        raise DataError(f"levels must be {', '.join(LEVELS)}; got {', '.join(names) or 'none'}")


def render(grey: UInt8, photo: str, index: int, *, seed: int, level: str) -> View:
    """Render view `index` (from 1) of the photograph `grey` named `photo`."""
    rng = np.random.default_rng([seed, zlib.crc32(photo.encode()), index])
    homography = random_homography(grey.shape, LEVELS[level], rng)
    warped = warp(grey, homography)
    options = LEVELS[level]
    lit = relight(warped, rng, strength=options.light, is_night=options.is_night)
    return View(lit, homography)


def warp(grey: UInt8, homography: Float64) -> UInt8:
    """Apply `homography` on a canvas of the same size, blurring first if it reduces the image."""
    rows, columns = grey.shape
    zoom = _zoom_at(homography, np.array([(columns - 1) / 2, (rows - 1) / 2]))
    source = np.asarray(grey)
    if zoom < 0.9:
        # The blur of the larger pixels of the view, minus the blur that the photograph has.
        source = np.asarray(cv2.GaussianBlur(source, (0, 0), 0.5 * np.sqrt(1 / zoom**2 - 1)))
    warped = cv2.warpPerspective(
        source, homography, (columns, rows), flags=cv2.INTER_CUBIC, borderMode=cv2.BORDER_REFLECT
    )
    return np.asarray(warped, np.uint8)


def random_homography(shape: tuple[int, ...], level: Level, rng: Generator) -> Float64:
    """Return the homography of a pinhole camera that was tilted, rotated and moved."""
    rows, columns = shape
    focal = 1.2 * max(rows, columns)
    tilt = np.radians(level.tilt_deg) * np.sqrt(rng.random())
    axis_at = rng.uniform(0, 2 * np.pi)
    turn = np.radians(rng.uniform(-level.turn_deg, level.turn_deg))
    zoom = 2.0 ** rng.uniform(-level.zoom, 0.5 * level.zoom)
    axis = tilt * np.array([np.cos(axis_at), np.sin(axis_at), 0.0])
    rotation = cv2.Rodrigues(axis)[0] @ cv2.Rodrigues(np.array([0.0, 0.0, turn]))[0]
    shift = rng.uniform(-0.08, 0.08, 2) * (columns, rows)
    camera = np.diag([focal, focal, 1.0])
    camera[:2, 2] = (columns - 1) / 2, (rows - 1) / 2
    plane = np.stack([rotation[:, 0], rotation[:, 1], [*shift, focal / zoom]], axis=1)
    centred = np.array([[1, 0, -camera[0, 2]], [0, 1, -camera[1, 2]], [0, 0, 1]])
    homography = camera @ plane @ centred
    return np.asarray(homography / homography[2, 2], np.float64)


def _zoom_at(homography: Float64, xy: Float64) -> float:
    """Return the linear magnification of `homography` at one point."""
    weight = float(homography[2, :2] @ xy + homography[2, 2])
    return float(np.sqrt(abs(np.linalg.det(homography)) / abs(weight) ** 3))
