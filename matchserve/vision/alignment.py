"""Inverse-compositional Lucas-Kanade with gain and offset, of many windows at once.

The windows of image 0 are templates (Baker and Matthews 2004). Each step finds the affine change
of a template that explains its difference from the window of image 1, and composes its inverse
into the warp. With weights that sum to 1 and templates t of weighted mean 0 and variance 1, the
derivatives S of a template, free of gain and offset, have the normal matrix

    S W S' - (S w)(S w)' - (S W t)(S W t)'

so that neither S nor its pseudo-inverse, six values for each sample, is ever stored: products of
the two slopes with powers of the coordinates are enough.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from matchserve.types import Float32
from matchserve.vision.products import multiply, weighted_sums

_MAX_STEP = 0.5
_DAMPING = 1e-2
_BLUR = 0.6
_MIN_VARIANCE = 1e-4


@dataclass(frozen=True, slots=True, eq=False)
class Window:
    """A square of `side` x `side` samples that reaches `reach` sigmas from its centre.

    `powers` (6, P) are 1, u, v, u², uv, v² of the coordinates of its samples, in sigmas, row by
    row; `weights` (P,) sum to 1.
    """

    reach: float
    side: int
    iterations: int
    powers: Float32
    weights: Float32

    @classmethod
    def of(cls, reach: float, side: int, iterations: int) -> Window:
        """Make a window with Gaussian weights."""
        axis = np.linspace(-reach, reach, side, dtype=np.float32)
        u, v = (part.ravel() for part in np.meshgrid(axis, axis))
        weights = np.exp(-(u * u + v * v) / (2 * (_BLUR * reach) ** 2))
        powers = np.stack([np.ones_like(u), u, v, u * u, u * v, v * v])
        return cls(reach, side, iterations, powers, np.asarray(weights / weights.sum(), np.float32))

    @property
    def step(self) -> float:
        """Distance of neighbouring samples, in sigmas."""
        return 2 * self.reach / (self.side - 1)

    @property
    def linear(self) -> Float32:
        """The rows 1, u, v of all samples, (3, P)."""
        return self.powers[:3]


@dataclass(frozen=True, slots=True, eq=False)
class Template:
    """What every step needs of the windows of image 0.

    `values` (M, P) are weighted and normalised, `slopes` are the two weighted derivatives (M, P),
    `along` (M, 6) is the part of the six derivatives along the template itself, `inverse`
    (M, 6, 6) is that of the normal matrix.
    """

    window: Window
    values: Float32
    slopes: tuple[Float32, Float32]
    along: Float32
    inverse: Float32

    @classmethod
    def of(cls, raw: Float32, window: Window) -> Template:
        """Prepare the grey values (M, P) of the windows of image 0."""
        weights, linear, powers = window.weights, window.linear.T, window.powers.T
        values, deviation = _centred(raw, weights)
        values /= deviation[:, None]
        grid = values.reshape(-1, window.side, window.side)
        gx, gy = (_slope(grid, axis, window.step).reshape(raw.shape) for axis in (2, 1))
        wx, wy = gx * weights, gy * weights
        # Columns 1, u, v of the slope along x, then of that along y.
        mean = np.concatenate([multiply(slope, linear) for slope in (wx, wy)], axis=1)
        along = np.concatenate([multiply(slope * values, linear) for slope in (wx, wy)], axis=1)
        normal = _normal_matrix([multiply(p, powers) for p in (wx * gx, wx * gy, wy * gy)])
        normal -= mean[:, :, None] * mean[:, None, :] + along[:, :, None] * along[:, None, :]
        trace = np.trace(normal, axis1=1, axis2=2)[:, None, None]
        normal += (_DAMPING * trace / 6 + 1e-9) * np.eye(6)
        inverse = np.linalg.inv(normal).astype(np.float32)
        return cls(window, values * weights, (wx, wy), along, inverse)

    def compare(self, values: Float32, deviation: Float32) -> Float32:
        """Return the correlation with centred grey values (M, P) of image 1, (M,)."""
        return np.asarray(np.einsum("mp,mp->m", values, self.values) / deviation, np.float32)

    def change(self, values: Float32, deviation: Float32, correlation: Float32) -> Float32:
        """Return the affine change (M, 6) that explains the difference from `values`."""
        linear = self.window.linear.T
        across = np.concatenate([multiply(values * s, linear) for s in self.slopes], axis=1)
        right = across / deviation[:, None] - self.along * correlation[:, None]
        return np.asarray(np.matmul(self.inverse, right[:, :, None])[:, :, 0], np.float32)


def align(
    template: Template, sample: Callable[[Float32], Float32], warp: Float32
) -> tuple[Float32, Float32]:
    """Iterate all alignments from `warp` (M, 2, 3); return the best warps and their correlation.

    `sample` returns the grey values (M, P) of the windows of image 1 under a warp.
    """
    best = np.full(len(warp), -np.inf, np.float32)
    chosen = warp
    for iteration in range(template.window.iterations + 1):
        values, deviation = _centred(sample(warp), template.window.weights)
        correlation = template.compare(values, deviation)
        is_better = correlation > best
        best = np.where(is_better, correlation, best)
        chosen = np.where(is_better[:, None, None], warp, chosen)
        if iteration < template.window.iterations:
            warp = _composed(warp, template.change(values, deviation, correlation))
    return chosen, best


def stretch(maps: Float32) -> tuple[Float32, Float32]:
    """Return the larger and the smaller singular value of maps (M, 2, 2)."""
    a, b, c, d = maps.reshape(-1, 4).T
    mean, turn = np.hypot(a + d, c - b) / 2, np.hypot(a - d, b + c) / 2
    return mean + turn, np.abs(mean - turn)


def determinant(maps: Float32) -> Float32:
    """Return the determinants of maps (M, 2, 2)."""
    a, b, c, d = maps.reshape(-1, 4).T
    return np.asarray(a * d - b * c)


def _composed(warp: Float32, change: Float32) -> Float32:
    """`warp` after the inverse of the small affine `change` (M, 6), the shift of x first."""
    change = np.clip(change, -_MAX_STEP, _MAX_STEP).reshape(-1, 2, 3)
    tx, a, b = change[:, 0, 0], 1 + change[:, 0, 1], change[:, 0, 2]
    ty, c, d = change[:, 1, 0], change[:, 1, 1], 1 + change[:, 1, 2]
    det = a * d - b * c
    det = np.where(np.abs(det) < 1e-3, 1e-3, det)
    inverse = np.stack([d, -b, -c, a], axis=1).reshape(-1, 2, 2) / det[:, None, None]
    moved = -(inverse @ np.stack([tx, ty], axis=1)[:, :, None])
    linear = warp[:, :, :2] @ inverse
    shift = warp[:, :, 2:] + warp[:, :, :2] @ moved
    return np.concatenate([linear, shift], axis=2).astype(np.float32)


def _normal_matrix(products: list[Float32]) -> np.ndarray:
    """Arrange sums of xx, xy and yy slopes times powers (M, 6) each into matrices (M, 6, 6)."""
    # Row and column 1, u, v of a block: which of 1, u, v, u², uv, v² is their product.
    order = np.array([[0, 1, 2], [1, 3, 4], [2, 4, 5]])
    xx, xy, yy = (product.astype(np.float64)[:, order] for product in products)
    upper = np.concatenate([xx, xy], axis=2)
    return np.concatenate([upper, np.concatenate([xy, yy], axis=2)], axis=1)


def _slope(grid: Float32, axis: int, step: float) -> Float32:
    """Central differences along `axis`, one-sided at the border, per sigma."""
    return np.asarray(np.gradient(grid, np.float32(step), axis=axis), np.float32)


def _centred(raw: Float32, weights: Float32) -> tuple[Float32, Float32]:
    """Rows of weighted mean 0, and their standard deviations."""
    values = raw - weighted_sums(raw, weights)[:, None]
    variance = weighted_sums(values * values, weights)
    return values, np.sqrt(np.maximum(variance, np.float32(_MIN_VARIANCE)))
