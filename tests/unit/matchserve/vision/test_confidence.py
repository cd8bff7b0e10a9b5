"""Cues of putative matches: named columns, symmetry, and images without matches."""

from __future__ import annotations

import numpy as np
import pytest

from matchserve.types import Features, Float32, Keypoints
from matchserve.vision.confidence import FIRST_CUES, SECOND_CUES, first_cues, second_cues
from matchserve.vision.matching import putative


def _features(count: int, seed: int, shift: float = 0.0) -> Features:
    """Keypoints and descriptors that differ a little from those of the same seed."""
    rng = np.random.default_rng(seed)
    xy = rng.uniform(0, 200, (count, 2)) + shift
    rows = rng.normal(size=(count, 16)) + 0.1 * np.random.default_rng(9).normal(size=(count, 16))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    columns = np.stack([rng.uniform(1, 5, count), rng.uniform(-3, 3, count), np.ones(count)])
    keypoints = Keypoints(xy.astype(np.float32), *columns.astype(np.float32))
    return Features(keypoints, rows.astype(np.float32), "test", (220, 220))


def _cues(one: Features, other: Features) -> tuple[Float32, Float32]:
    found = putative(one, other)
    rows0, rows1 = found.matches.pairs.T
    cues = first_cues(found, (one.keypoints[rows0], other.keypoints[rows1]))
    judged = np.full(len(found.matches), 0.5, np.float32)
    return cues.rows, second_cues(cues, judged, None)


@pytest.mark.parametrize("count", [0, 1, 2, 60])
def test_every_match_has_every_cue(count: int) -> None:
    first, second = _cues(_features(count, 0), _features(count, 0, 5.0))
    assert first.shape == (count, len(FIRST_CUES))
    assert second.shape == (count, len(SECOND_CUES))
    assert np.isfinite(second).all()


def test_cues_do_not_depend_on_the_order_of_the_images() -> None:
    one, other = _features(60, 1), _features(60, 1, 7.0)
    forward, backward = _cues(one, other)[0], _cues(other, one)[0]
    # The rotation of a match is the opposite one the other way, so its bin may be another.
    columns = [n for n, name in enumerate(FIRST_CUES) if "agreement" not in name]
    np.testing.assert_allclose(
        np.sort(forward[:, columns], axis=0), np.sort(backward[:, columns], axis=0), atol=0.05
    )


def test_ratio_ignores_candidates_at_the_same_place() -> None:
    """A second keypoint at the place of the first is no rival."""
    one = _features(40, 2)
    twin = np.array([0, *range(40)])
    rows = one.descriptors[twin].copy()
    rows[0] += 0.01
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    other = Features(one.keypoints[twin], rows, "test", one.size)
    found = putative(one, other)
    match = int(np.flatnonzero(found.matches.pairs[:, 0] == 0)[0])
    distances = np.sort(np.linalg.norm(other.descriptors - one.descriptors[0], axis=1))
    nearest = found.matches.distance[match]
    np.testing.assert_allclose(found.ratio[match, 0], nearest / distances[2], atol=1e-3)
