"""Changes of patches as by other light or another sensor."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from training.runs.augment import AugmentOptions, augment
from training.runs.sensor import change_sensor, draw_sensor


@pytest.fixture
def patches() -> torch.Tensor:
    rng = np.random.default_rng(3)
    return torch.from_numpy(rng.uniform(20, 230, (64, 1, 24, 24)).astype(np.float32))


def rng() -> np.random.Generator:
    return np.random.default_rng(1)


def changed_by(patches: torch.Tensor, **limits: float) -> torch.Tensor:
    count = len(patches)
    return change_sensor(patches, draw_sensor(count, slice(0, count), rng(), **limits))


def test_inverting_exchanges_dark_and_bright_of_a_share(patches: torch.Tensor) -> None:
    changed = changed_by(patches, invert=0.5)
    same = (changed - patches).abs().amax(dim=(1, 2, 3)) == 0
    opposite = (changed + patches - 255).abs().amax(dim=(1, 2, 3)) < 1e-3
    assert (same | opposite).all()
    assert 20 < int(opposite.sum()) < 44


def test_blur_removes_noise_and_keeps_the_mean(patches: torch.Tensor) -> None:
    changed = changed_by(patches, blur=1.0)
    ratio = changed.std(dim=(1, 2, 3)) / patches.std(dim=(1, 2, 3))
    assert ratio.max() <= 1.0
    assert ratio.min() < 0.3
    difference = changed[..., 6:-6, 6:-6].mean(dim=(1, 2, 3)) - patches.mean(dim=(1, 2, 3))
    assert difference.abs().max() < 25.0
    flat = torch.full((2, 1, 24, 24), 80.0)
    torch.testing.assert_close(changed_by(flat, blur=1.0), flat)


def test_shading_is_smooth(patches: torch.Tensor) -> None:
    flat = torch.full_like(patches, 100.0)
    changed = changed_by(flat, shading=0.3)
    assert changed.std(dim=(1, 2, 3)).max() > 5.0
    step = (changed[..., 1:] - changed[..., :-1]).abs().max()
    assert step < 0.2 * (changed.max() - changed.min())


def test_a_tone_curve_depends_on_the_grey_level_alone() -> None:
    levels = torch.linspace(10, 240, 32).repeat(32, 1)
    patches = torch.stack([levels, levels.T])[:, None].repeat(20, 1, 1, 1)
    changed = changed_by(patches, curve=1.0)
    rows = changed[::2]
    assert float((rows - rows[:, :, :1]).abs().max()) < 1e-3
    assert changed.min() >= 0
    assert changed.max() <= 255
    slope = changed[::2, 0, 0].diff(dim=1)
    assert bool((slope < 0).any())  # a curve may fall


def test_options_switch_the_changes_on_and_draw_nothing_when_off() -> None:
    patches = np.random.default_rng(0).integers(0, 256, (8, 2, 16, 16), dtype=np.uint8)
    plain = AugmentOptions(turns="none", noise=2.0)
    before = augment(patches, plain, rng())
    np.testing.assert_array_equal(before, augment(patches, plain, rng()))
    for name in ("invert", "curve", "shading", "blur"):
        changed = augment(patches, AugmentOptions(turns="none", **{name: 0.9}), rng())
        assert not torch.equal(changed[:, :, 0], torch.from_numpy(patches).float())
        assert changed.min() >= 0
        assert changed.max() <= 255
