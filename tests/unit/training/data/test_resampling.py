import numpy as np
import pytest

from training.data.resampling import resample

RAMP = np.linspace(20, 230, 64)
PATCH = ((RAMP[:, None] + RAMP[None]) / 2).astype(np.uint8)[None]


def test_a_whole_factor_is_the_mean_of_a_block() -> None:
    noise = np.random.default_rng(0).integers(0, 256, (5, 64, 64)).astype(np.uint8)
    means = noise.reshape(5, 32, 2, 32, 2).mean(axis=(2, 4))
    assert np.array_equal(resample(noise, 32), np.floor(means + 0.5).astype(np.uint8))


@pytest.mark.parametrize("size", [20, 31, 32, 48, 63, 65, 90, 128])
def test_a_ramp_keeps_its_extent_and_mean(size: int) -> None:
    resampled = resample(PATCH, size)[0].astype(float)
    assert resampled.shape == (size, size)
    # Samples lie at pixel centres over the same extent.
    at = (np.arange(size) + 0.5) * 64 / size - 0.5
    expected = np.interp(at, np.arange(64), RAMP)
    inner = slice(2, size - 2)
    wanted = (expected[inner, None] + expected[None, inner]) / 2
    assert np.abs(resampled[inner, inner] - wanted).max() < 2
    assert resampled.mean() == pytest.approx(PATCH.mean(), abs=1)


def test_the_same_size_is_unchanged() -> None:
    assert np.array_equal(resample(PATCH, 64), PATCH)
    assert resample(PATCH[:0], 48).shape == (0, 48, 48)


@pytest.mark.parametrize("size", [32, 40, 48])
def test_a_reduction_does_not_alias(size: int) -> None:
    checks = np.indices((64, 64)).sum(axis=0) % 2 * 255
    resampled = resample(checks.astype(np.uint8)[None], size)
    # A checkerboard of single pixels has no detail that fewer samples can show.
    assert resampled.std() < 0.35 * checks.std()
    assert resampled.mean() == pytest.approx(127.5, abs=2)
