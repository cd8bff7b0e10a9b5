"""The losses agree with naive loops and finite differences."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from matchserve.types import Float64
from matchserve.vision import score_peaks
from training.detector import losses
from training.detector.losses import (
    Relation,
    Warped,
    chance_chosen,
    choice_loss,
    correspondences,
    peaks,
    place_loss,
    refined,
    warp,
)
from training.detector.network import BORDER

SIDE = 48


def smooth_scores(seed: int, side: int = SIDE) -> Tensor:
    """Return a random map whose peaks are several pixels apart."""
    noise = torch.randn(1, 1, side, side, generator=torch.Generator().manual_seed(seed))
    kernel = torch.exp(-(torch.arange(-4, 5.0) ** 2) / 3)
    blurred = torch.nn.functional.conv2d(noise, torch.outer(kernel, kernel)[None, None], padding=4)
    return blurred[0, 0].double()


def turned(degrees: float, zoom: float = 1.0, shift: tuple[float, float] = (0, 0)) -> Float64:
    """Return a similarity about the middle of a map."""
    angle, middle = np.radians(degrees), (SIDE - 1) / 2
    linear = zoom * np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    matrix = np.eye(3)
    matrix[:2, :2] = linear
    matrix[:2, 2] = middle - linear @ (middle, middle) + shift
    return matrix


def related(homography: Float64, side: int = SIDE) -> Relation:
    """Return a relation of two maps of which everything is known."""
    whole = np.ones((side, side), np.bool_)
    return Relation(homography, (whole, whole))


def test_a_warped_map_is_the_other_one_moved() -> None:
    score = smooth_scores(1)
    shifted = warp(score, related(turned(0, shift=(3, -2))))
    for row, column in ((20, 20), (30, 12)):
        assert shifted.score[row, column] == pytest.approx(float(score[row - 2, column + 3]))
    assert shifted.is_seen[BORDER + 2, BORDER]
    assert not shifted.is_seen[BORDER + 1, BORDER]  # out of the other map's border
    assert not shifted.is_seen[BORDER + 2, SIDE - BORDER - 1]


def test_a_warped_map_is_interpolated_under_a_homography() -> None:
    rows, columns = torch.meshgrid(*[torch.arange(SIDE, dtype=torch.float64)] * 2, indexing="ij")
    plane = 2.0 * columns - 3.0 * rows
    homography = turned(20, 0.8, (1.5, 2.0))
    homography[2, :2] = 1e-3, -5e-4
    warped = warp(plane, related(homography))
    for row, column in warped.is_seen.nonzero()[::50].tolist():
        x, y, w = homography @ (column, row, 1)
        assert warped.score[row, column] == pytest.approx(2 * x / w - 3 * y / w, abs=1e-6)


def test_what_lies_behind_the_camera_is_not_seen() -> None:
    homography = np.eye(3)
    homography[2] = -1 / 20, 0, 1
    assert not warp(smooth_scores(1), related(homography)).is_seen[:, 21:].any()


def test_what_is_unknown_in_either_map_is_not_seen() -> None:
    whole = np.ones((SIDE, SIDE), np.bool_)
    left, top = whole.copy(), whole.copy()
    left[:, 24:], top[24:] = False, False
    relation = Relation(turned(0, shift=(2.2, 3.4)), (left, top))
    seen = warp(smooth_scores(1), relation).is_seen
    assert seen[BORDER:21, BORDER:24].all()
    assert int(seen.sum()) == (21 - BORDER) * (24 - BORDER)
    back = warp(smooth_scores(1), relation.reversed()).is_seen
    assert int(back.sum()) > 0
    assert not back[24:].any()


def naive_place_loss(score: Tensor, other: Warped, side: int, offset: int) -> float:
    """The loss of one size of windows, in loops."""
    weights, distances = [], []
    for top in range(offset, SIDE - side + 1, side):
        for left in range(offset, SIDE - side + 1, side):
            cut = (slice(top, top + side), slice(left, left + side))
            if not bool(other.is_seen[cut].all()):
                continue
            mine, theirs = score[cut].numpy(), other.score[cut].numpy()
            soft = np.exp(8 * (mine - mine.max()))
            soft /= soft.sum()
            rows, columns = np.mgrid[:side, :side]
            at = np.unravel_index(theirs.argmax(), theirs.shape)
            distances.append(
                ((soft * rows).sum() - at[0]) ** 2 + ((soft * columns).sum() - at[1]) ** 2
            )
            weights.append(min(np.exp(mine.max() + theirs.max()), 1e4))
    return float(np.average(distances, weights=weights)) / side


@pytest.mark.parametrize("offset", [0, 5])
def test_the_place_loss_is_that_of_a_loop(offset: int) -> None:
    score, other = smooth_scores(1) / 8, warp(smooth_scores(2) / 8, related(turned(10)))
    found = place_loss(score, other, ((6, 1.0), (10, 0.5)), offset)
    expected = naive_place_loss(score, other, 6, offset)
    expected += 0.5 * naive_place_loss(score, other, 10, offset)
    assert float(found) == pytest.approx(expected)


def test_the_place_loss_has_the_right_gradient() -> None:
    score = (smooth_scores(1) / 8)[12:36, 12:36].clone().requires_grad_()
    other = Warped(smooth_scores(2)[12:36, 12:36], torch.ones(24, 24, dtype=torch.bool))
    assert torch.autograd.gradcheck(lambda s: place_loss(s, other, ((8, 1.0),), 3), (score,))


def test_without_whole_windows_the_place_loss_is_zero() -> None:
    nothing = Warped(smooth_scores(2), torch.zeros(SIDE, SIDE, dtype=torch.bool))
    assert float(place_loss(smooth_scores(1), nothing, ((8, 1.0),), 0)) == 0


def test_places_are_refined_to_the_maximum_of_a_quadratic() -> None:
    rows, columns = torch.meshgrid(*[torch.arange(40, dtype=torch.float64)] * 2, indexing="ij")
    score = (
        -((columns - 20.3) ** 2) - 2 * (rows - 17.8) ** 2 - 0.5 * (columns - 20.3) * (rows - 17.8)
    )
    at = peaks(score).nonzero()
    assert at.tolist() == [[18, 20]]
    assert refined(score, at)[0].tolist() == pytest.approx([20.3, 17.8])


def test_places_are_those_of_the_served_detector() -> None:
    noise = np.random.default_rng(3).normal(size=(60, 80)).astype(np.float32)
    at = peaks(torch.from_numpy(noise)).nonzero()
    assert len(at) > 50
    served = score_peaks._refined(noise, *at.numpy().T)
    np.testing.assert_allclose(refined(torch.from_numpy(noise), at), served, atol=1e-4)


def test_a_flat_place_is_not_moved() -> None:
    assert refined(torch.zeros(20, 20), torch.tensor([[10, 9]])).tolist() == [[9, 10]]


def naive_choice_loss(scores: Tensor, homography: Float64, exact_px: float) -> float:
    """The loss of all keypoints, in loops over all pairs of them."""
    backward = np.asarray(np.linalg.inv(homography), np.float64)
    found = []
    for score, to_other in zip(scores, (homography, backward), strict=True):
        seen = warp(score, related(to_other)).is_seen
        found.append([rc for rc in peaks(score).nonzero().tolist() if bool(seen[rc[0], rc[1]])])
    chances = [
        chance_chosen(torch.stack([score[r, c] for r, c in rows]), 0.4)
        for score, rows in zip(scores, found, strict=True)
    ]
    moved = [(homography @ (c, r, 1))[:2] / (homography @ (c, r, 1))[2] for r, c in found[0]]
    gaps = np.array([[np.hypot(x - c, y - r) for r, c in found[1]] for x, y in moved])
    total = 0.0
    for i, j in np.ndindex(gaps.shape):
        if gaps[i, j] > 2 or gaps[i, j] > gaps[i].min() or gaps[i, j] > gaps[:, j].min():
            continue
        one, other = (
            refined(scores[k], torch.tensor([found[k][row]]))[0].numpy()
            for k, row in ((0, i), (1, j))
        )
        there = homography @ [*one, 1]
        d = np.hypot(*(there[:2] / there[2] - other))
        total += float(chances[0][i] * chances[1][j]) * np.exp(-(d**2) / (2 * exact_px**2))
    return -total / (0.4 * min(map(len, found)))


def test_the_choice_loss_is_that_of_a_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(losses, "_LEAST_KEYPOINTS", 3)
    homography = turned(7, 0.95, (1, 0.5))
    one = smooth_scores(3)
    scores = torch.stack(
        [
            one,
            warp(one, related(np.asarray(np.linalg.inv(homography)))).score
            + 0.2 * smooth_scores(4),
        ]
    )
    found = float(choice_loss(scores, related(homography), 0.4, 2.0, 0.8))
    assert found == pytest.approx(naive_choice_loss(scores, homography, 0.8))
    assert found < -0.05


def test_exact_places_are_worth_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(losses, "_LEAST_KEYPOINTS", 3)
    score = smooth_scores(3)
    same = torch.stack([score, score])
    exact = float(choice_loss(same, related(np.eye(3)), 0.4, 2.0, 1.0))
    off = float(choice_loss(same, related(turned(0, shift=(0.9, 0.0))), 0.4, 2.0, 1.0))
    assert exact < 1.3 * off < 0


def test_the_choice_loss_has_the_right_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(losses, "_LEAST_KEYPOINTS", 3)
    homography = turned(0, shift=(0.4, 0.3))
    base = smooth_scores(3, 36)
    scores = torch.stack([base, base + 0.1 * smooth_scores(4, 36)]).requires_grad_()

    def loss(values: Tensor) -> Tensor:
        return choice_loss(values, related(homography, 36), 0.4, 2.0, 0.8)

    gradient = torch.autograd.grad(loss(scores), scores)[0]
    assert gradient.abs().max() > 0
    for place in gradient.abs().flatten().topk(12).indices.tolist():
        k, row, column = place // 36**2, place // 36 % 36, place % 36
        step = torch.zeros_like(scores)
        step[k, row, column] = 1e-5
        with torch.no_grad():
            change = float(loss(scores + step) - loss(scores - step)) / 2e-5
        assert float(gradient[k, row, column]) == pytest.approx(change, rel=1e-3, abs=1e-7)


def test_few_keypoints_teach_nothing() -> None:
    rows, columns = np.mgrid[:SIDE, :SIDE]
    score = torch.from_numpy(-((rows - 20.0) ** 2) - (columns - 21.0) ** 2)
    assert int(peaks(score).sum()) == 1
    assert float(choice_loss(torch.stack([score, score]), related(np.eye(3)), 0.4, 2.0, 1.0)) == 0


def test_correspondences_are_mutually_nearest() -> None:
    one = np.array([[10.0, 10.0], [11.0, 10.0], [30.0, 30.0]])
    other = np.array([[10.2, 10.0], [50.0, 50.0], [33.5, 30.0]])
    assert correspondences(np.eye(3), one, other, 3.0).tolist() == [[0, 0]]


def test_the_wanted_share_is_chosen_whatever_the_scores() -> None:
    score = torch.linspace(-3, 5, 200, dtype=torch.float64)
    for shift in (0.0, 7.0):
        chance = chance_chosen(score + shift, 0.3)
        assert float(chance.mean()) == pytest.approx(0.3, abs=1e-6)
        assert (chance.diff() > 0).all()


def test_a_higher_score_makes_the_others_less_likely() -> None:
    score = torch.linspace(-1, 1, 50, dtype=torch.float64, requires_grad=True)
    gradient = torch.autograd.grad(chance_chosen(score, 0.5)[10], score)[0]
    step = torch.zeros(50, dtype=torch.float64)
    for row in (10, 30):
        step[row] = 1e-4
        with torch.no_grad():
            change = chance_chosen(score + step, 0.5)[10] - chance_chosen(score - step, 0.5)[10]
        assert float(gradient[row]) == pytest.approx(float(change) / 2e-4, rel=1e-3)
        step[row] = 0
    assert gradient[10] > 0 > gradient[30]
