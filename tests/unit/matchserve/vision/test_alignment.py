"""The steps of the alignment, against least squares and NumPy's decompositions."""

from __future__ import annotations

import numpy as np
import pytest

from matchserve.types import Float32
from matchserve.vision.alignment import Template, Window, align, determinant, stretch

WINDOW = Window.of(3.0, 9, 4)


def _textures(count: int, seed: int) -> Float32:
    """Smooth random windows (count, P) with contrast in every direction."""
    rng = np.random.default_rng(seed)
    u, v = WINDOW.linear[1:]
    waves = rng.uniform(-1, 1, (count, 8, 2))
    phases = rng.uniform(0, 6, (count, 8, 1))
    parts = np.sin(waves[:, :, :1] * u + waves[:, :, 1:] * v + phases)
    return np.asarray(100 + 40 * parts.sum(axis=1), np.float32)


def test_weights_of_a_window_sum_to_one_and_fall_from_its_centre() -> None:
    assert WINDOW.weights.sum() == pytest.approx(1, abs=1e-6)
    grid = WINDOW.weights.reshape(9, 9)
    assert grid[4, 4] == grid.max()
    assert (np.diff(grid[4, 4:]) < 0).all()


def test_change_is_the_least_squares_solution_without_gain_and_offset() -> None:
    first, second = _textures(5, 0), _textures(5, 1)
    template = Template.of(first, WINDOW)
    mean = second @ WINDOW.weights
    values = second - mean[:, None]
    deviation = np.sqrt((values * values) @ WINDOW.weights)
    correlation = template.compare(values, deviation)
    change = template.change(values, deviation, correlation)
    root = np.sqrt(WINDOW.weights.astype(np.float64))
    u, v = WINDOW.linear[1:].astype(np.float64)
    for row in range(5):
        pattern = template.values[row] / WINDOW.weights
        gx, gy = (slope[row] / WINDOW.weights for slope in template.slopes)
        derivatives = np.stack([gx, gx * u, gx * v, gy, gy * u, gy * v])
        design = np.column_stack([derivatives.T, np.ones_like(u), pattern]) * root[:, None]
        # The damping of the six derivatives, as further equations.
        free = design - design[:, 6:] @ np.linalg.lstsq(design[:, 6:], design, rcond=None)[0]
        damping = 1e-2 * np.square(free[:, :6]).sum() / 6
        extra = np.sqrt(damping) * np.eye(6, 8)
        residual = (values[row] / deviation[row] - pattern) * root
        solution = np.linalg.lstsq(
            np.vstack([design, extra]), np.concatenate([residual, np.zeros(6)]), rcond=None
        )[0][:6]
        np.testing.assert_allclose(change[row], solution, rtol=2e-3, atol=2e-4)


def test_windows_that_agree_up_to_gain_and_offset_stay_where_they_are() -> None:
    first = _textures(4, 2)
    start = np.tile(np.eye(2, 3, dtype=np.float32), (4, 1, 1))
    warp, correlation = align(Template.of(first, WINDOW), lambda _: 0.3 * first + 20, start)
    np.testing.assert_allclose(correlation, 1, atol=1e-4)
    np.testing.assert_allclose(warp, start, atol=1e-3)


def test_the_best_warp_is_kept_when_a_step_makes_it_worse() -> None:
    first, other = _textures(3, 3), _textures(3, 4)
    seen: list[Float32] = []

    def sample(warp: Float32) -> Float32:
        seen.append(warp)
        return 0.8 * first + 0.2 * other if len(seen) == 1 else other

    start = np.tile(np.eye(2, 3, dtype=np.float32), (3, 1, 1))
    warp, _ = align(Template.of(first, WINDOW), sample, start)
    assert len(seen) == WINDOW.iterations + 1
    np.testing.assert_array_equal(warp, start)


def test_stretch_and_determinant_equal_those_of_numpy() -> None:
    maps = np.random.default_rng(0).normal(size=(50, 2, 2)).astype(np.float32)
    expected = np.linalg.svd(maps.astype(np.float64), compute_uv=False)
    np.testing.assert_allclose(np.stack(stretch(maps), axis=1), expected, atol=1e-5)
    np.testing.assert_allclose(determinant(maps), np.linalg.det(maps), atol=1e-5)
