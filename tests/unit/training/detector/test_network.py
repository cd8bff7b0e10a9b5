"""The network looks at a bounded surrounding, whatever the brightness, and folds exactly."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn.functional import conv2d

from training.detector.export import texture
from training.detector.network import NetworkOptions, ScoreNetwork, folded

SERVED_REACH = 24
"""Levels are extended by this many mirrored pixels when they are scored."""


@pytest.fixture
def net() -> ScoreNetwork:
    """A network whose normalisations have learned something."""
    torch.manual_seed(0)
    made = ScoreNetwork(NetworkOptions(layers=2))
    with torch.no_grad():
        for _ in range(3):
            made(torch.from_numpy(texture((80, 90)))[None, None].float())
    return made.eval()


def test_features_are_derivatives_and_products_of_them() -> None:
    net = ScoreNetwork()
    level = torch.from_numpy(texture((64, 64)))[None, None].float()
    dx, dy, dxx, dyy, dxy, *products = net.features(level)[0]
    for product, expected in zip(
        products[:5], (dx * dx, dy * dy, dx * dy, dxx * dyy, dxy * dxy), strict=True
    ):
        assert torch.allclose(product, expected, atol=1e-6)
    fine_xx, fine_yy, fine_xy, *squares = products[5:]
    assert (squares[0] >= 0).all()
    assert (squares[1] >= 0).all()
    assert torch.allclose(squares[2] ** 2, squares[0] * squares[1], atol=1e-4)
    assert fine_xx.std() > 0.01 < fine_yy.std()
    assert fine_xy.std() > 0.01


def test_filters_are_derivatives() -> None:
    """Of a ramp and of a parabola, by sigma and by its square."""
    filters = ScoreNetwork().derivatives[:5].double()
    x = torch.arange(40.0, dtype=torch.float64).expand(40, 40)[None, None]
    ramp = conv2d(x, filters)[0]
    assert ramp[0].flatten() == pytest.approx(-1.2, rel=0.05)  # convolutions are correlations
    assert ramp[1:].flatten() == pytest.approx(0, abs=1e-5)
    parabola = conv2d(x**2 / 2, filters)[0]
    assert parabola[2].flatten() == pytest.approx(1.2**2, rel=0.2)
    assert parabola[[1, 3, 4]].flatten() == pytest.approx(0, abs=1e-3)


def test_brightness_and_strong_contrast_hardly_matter(net: ScoreNetwork) -> None:
    level = torch.from_numpy(texture((80, 90)))[None, None].float()
    score = net(level)
    assert torch.allclose(net(level + 40), score, atol=1e-3)
    correlation = np.corrcoef(score.detach().ravel(), net(0.6 * level).detach().ravel())[0, 1]
    assert correlation > 0.99


@torch.no_grad()
def test_a_score_depends_on_pixels_within_reach(net: ScoreNetwork) -> None:
    level = torch.from_numpy(texture((100, 100)))[None, None].float()
    changed = level.clone()
    changed[..., 50, 50] += 100
    rows, columns = (net(changed) != net(level))[0, 0].nonzero().T
    reach = max(int((rows - 50).abs().max()), int((columns - 50).abs().max()))
    assert 10 < reach <= 17 < SERVED_REACH


@torch.no_grad()
def test_folding_changes_nothing(net: ScoreNetwork) -> None:
    level = torch.from_numpy(texture((64, 70)))[None, None].float()
    plain = folded(net)
    assert not any(isinstance(each, torch.nn.BatchNorm2d) for each in plain.layers)
    assert torch.allclose(plain(level), net(level), atol=1e-5)
    assert any(isinstance(each, torch.nn.BatchNorm2d) for each in net.layers)
