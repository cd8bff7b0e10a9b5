"""Lens distortion of COLMAP's camera models: from ideal to distorted image coordinates, and back.

Coordinates are relative to the principal point and in units of the focal length. Those of a
fisheye model are the angle to the optical axis times the direction in the image.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from matchserve.types import Float64

Parameters = tuple[float, ...]
Distort = Callable[[Float64, Float64, Parameters], tuple[Float64, Float64]]

_ITERATIONS = 50
_STEP = 1e-6
_TOLERANCE = 1e-9


@dataclass(frozen=True, slots=True)
class Lens:
    """A camera model of COLMAP: number of focal lengths, number of other parameters, distortion."""

    focal_lengths: int
    parameters: int
    distort: Distort
    is_fisheye: bool = False


def undistorted(lens: Lens, parameters: Parameters, xy: Float64) -> Float64:
    """Return the pinhole coordinates (N, 2) of distorted ones; NaN where there are none."""
    with np.errstate(all="ignore"):
        ideal = _inverted(lens.distort, parameters, xy)
        return _from_fisheye(ideal) if lens.is_fisheye else ideal


def distorted(lens: Lens, parameters: Parameters, xy: Float64) -> Float64:
    """Return the distorted coordinates (N, 2) of pinhole ones."""
    ideal = _to_fisheye(xy) if lens.is_fisheye else xy
    return np.stack(lens.distort(ideal[:, 0], ideal[:, 1], parameters), axis=1)


def _inverted(distort: Distort, parameters: Parameters, xy: Float64) -> Float64:
    """Solve distort(u, v) = xy by Newton's method, starting at xy."""
    x, y = xy.T
    u, v = x.copy(), y.copy()
    for _ in range(_ITERATIONS):
        fx, fy = distort(u, v, parameters)
        rx, ry = fx - x, fy - y
        if not np.nanmax(np.maximum(np.abs(rx), np.abs(ry)), initial=0.0) > _TOLERANCE:
            break
        ax, ay = distort(u + _STEP, v, parameters)
        bx, by = distort(u, v + _STEP, parameters)
        a, b, c, d = (ax - fx) / _STEP, (bx - fx) / _STEP, (ay - fy) / _STEP, (by - fy) / _STEP
        determinant = a * d - b * c
        u = u - (d * rx - b * ry) / determinant
        v = v - (a * ry - c * rx) / determinant
    fx, fy = distort(u, v, parameters)
    is_solved = np.hypot(fx - x, fy - y) <= 100 * _TOLERANCE
    return np.where(is_solved[:, None], np.stack([u, v], axis=1), np.nan)


def _to_fisheye(xy: Float64) -> Float64:
    radius = np.maximum(np.linalg.norm(xy, axis=1, keepdims=True), 1e-12)
    return np.asarray(xy * (np.arctan(radius) / radius))


def _from_fisheye(xy: Float64) -> Float64:
    """Return pinhole coordinates of fisheye ones; NaN for rays 90 degrees off the axis or more."""
    angle = np.maximum(np.linalg.norm(xy, axis=1, keepdims=True), 1e-12)
    return np.where(angle < np.pi / 2, xy * (np.tan(angle) / angle), np.nan)


def _radial(u: Float64, v: Float64, k: Parameters) -> tuple[Float64, Float64]:
    """Multiply by 1 + k1 r^2 + k2 r^4 + ..., for any number of coefficients."""
    square = u * u + v * v
    factor = np.zeros_like(square)
    for coefficient in reversed(k):
        factor = (factor + coefficient) * square
    return u * (1 + factor), v * (1 + factor)


def _tangential(u: Float64, v: Float64, p1: float, p2: float) -> tuple[Float64, Float64]:
    square = u * u + v * v
    return (
        2 * p1 * u * v + p2 * (square + 2 * u * u),
        2 * p2 * u * v + p1 * (square + 2 * v * v),
    )


def _opencv(u: Float64, v: Float64, k: Parameters) -> tuple[Float64, Float64]:
    x, y = _radial(u, v, k[:2])
    dx, dy = _tangential(u, v, *k[2:])
    return x + dx, y + dy


def _full_opencv(u: Float64, v: Float64, k: Parameters) -> tuple[Float64, Float64]:
    k1, k2, p1, p2, k3, k4, k5, k6 = k
    x, y = _radial(u, v, (k1, k2, k3))
    square = u * u + v * v
    divisor = 1 + square * (k4 + square * (k5 + square * k6))
    dx, dy = _tangential(u, v, p1, p2)
    return x / divisor + dx, y / divisor + dy


def _fov(u: Float64, v: Float64, k: Parameters) -> tuple[Float64, Float64]:
    """Devernay and Faugeras 2001; a field of view of 0 is no distortion."""
    (omega,) = k
    if abs(omega) < 1e-9:
        return u, v
    radius = np.maximum(np.hypot(u, v), 1e-12)
    factor = np.arctan(2 * radius * np.tan(omega / 2)) / (radius * omega)
    return u * factor, v * factor


def _thin_prism(u: Float64, v: Float64, k: Parameters) -> tuple[Float64, Float64]:
    k1, k2, p1, p2, k3, k4, sx1, sy1 = k
    x, y = _radial(u, v, (k1, k2, k3, k4))
    dx, dy = _tangential(u, v, p1, p2)
    square = u * u + v * v
    return x + dx + sx1 * square, y + dy + sy1 * square


LENSES = {
    "SIMPLE_PINHOLE": Lens(1, 0, _radial),
    "PINHOLE": Lens(2, 0, _radial),
    "SIMPLE_RADIAL": Lens(1, 1, _radial),
    "RADIAL": Lens(1, 2, _radial),
    "OPENCV": Lens(2, 4, _opencv),
    "FULL_OPENCV": Lens(2, 8, _full_opencv),
    "FOV": Lens(2, 1, _fov),
    "SIMPLE_RADIAL_FISHEYE": Lens(1, 1, _radial, is_fisheye=True),
    "RADIAL_FISHEYE": Lens(1, 2, _radial, is_fisheye=True),
    "OPENCV_FISHEYE": Lens(2, 4, _radial, is_fisheye=True),
    "THIN_PRISM_FISHEYE": Lens(2, 8, _thin_prism, is_fisheye=True),
}
"""The camera models by the names that COLMAP gives them."""
