"""What must hold for any input at all."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from matchserve.errors import ImageError
from matchserve.types import Keypoints, PatchSpec
from matchserve.vision.decode import decode, from_array
from matchserve.vision.geometry import VERIFY_KINDS, VerifyChoice, VerifyOptions, verify
from matchserve.vision.matching import MatchOptions, mutual_nn
from matchserve.vision.patches import crop
from tests.conftest import encoded

SMALL = np.random.default_rng(0).integers(0, 256, (20, 24), np.uint8)
SEEDS = [encoded(SMALL, f) for f in ("PNG", "JPEG", "WEBP", "TIFF")]


@pytest.mark.filterwarnings("ignore")
@settings(max_examples=300, deadline=None)
@given(st.data())
def test_decoding_raises_nothing_but_image_errors(data: st.DataObject) -> None:
    """Good files with a few bytes changed, cut or added: an image, or one of our errors."""
    content = bytearray(data.draw(st.sampled_from(SEEDS)))
    for _ in range(data.draw(st.integers(0, 8))):
        position = data.draw(st.integers(0, len(content) - 1))
        content[position] = data.draw(st.integers(0, 255))
    content = content[: data.draw(st.integers(0, len(content)))] + data.draw(st.binary(max_size=8))
    with contextlib.suppress(ImageError):
        assert decode(bytes(content)).grey.dtype == np.uint8


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200))
def test_decoding_noise_is_an_image_error(content: bytes) -> None:
    with pytest.raises(ImageError):
        decode(content)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 60), st.integers(0, 60), st.integers(0, 10**6),
    st.one_of(st.none(), st.floats(0.1, 1.0)), st.booleans(),
)  # fmt: skip
def test_matching_is_symmetric(
    n: int, m: int, seed: int, ratio: float | None, is_binary: bool
) -> None:
    rng = np.random.default_rng(seed)
    if is_binary:
        # Equal Hamming distances are broken by order, which swapping changes: pairs that are
        # near each other and far from all others have none.
        base = rng.integers(0, 256, (max(n, m), 64), np.uint8)
        left, right = base[:n], base[:m] ^ (np.arange(64) == 7).astype(np.uint8)
    else:
        left, right = (rng.normal(size=(k, 24)).astype(np.float32) for k in (n, m))
        left /= np.linalg.norm(left, axis=1, keepdims=True) + 1e-9
        right /= np.linalg.norm(right, axis=1, keepdims=True) + 1e-9
    options = MatchOptions(ratio=ratio)
    there = mutual_nn(left, right, options)
    back = mutual_nn(right, left, options)
    one_way = {tuple(p) for p in there.pairs.tolist()}
    other_way = {tuple(p[::-1]) for p in back.pairs.tolist()}
    assert one_way == other_way
    if is_binary and ratio is None:
        assert one_way == {(i, i) for i in range(min(n, m))}
    assert len(set(there.pairs[:, 1].tolist())) == len(there)


KINDS = [kind for kind in VERIFY_KINDS if kind != "pose"]


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 30), st.integers(0, 10**6), st.sampled_from(KINDS))
def test_geometry_never_raises(count: int, seed: int, kind: VerifyChoice) -> None:
    rng = np.random.default_rng(seed)
    # Few distinct values: many coincident and collinear points.
    first, second = rng.integers(0, 4, (2, count, 2)).astype(np.float64) * 50
    found = verify(first, second, ((200, 200), (200, 200)), VerifyOptions(kind))
    assert found.inliers.shape == (count,)


@settings(max_examples=100, deadline=None)
@given(
    st.floats(-500, 500), st.floats(-500, 500), st.floats(0.1, 300), st.floats(-10, 10),
    st.sampled_from([8, 16, 32, 64]), st.floats(4, 40),
)  # fmt: skip
def test_any_keypoint_can_be_cropped(
    x: float, y: float, sigma: float, angle: float, size: int, magnification: float
) -> None:
    one = Keypoints(
        np.array([[x, y]], np.float32),
        np.array([sigma], np.float32),
        np.array([angle], np.float32),
        np.ones(1, np.float32),
    )
    patch = crop(from_array(SMALL), one, PatchSpec(size, magnification))
    assert patch.shape == (1, 1, size, size)
    assert SMALL.min() <= patch.min() <= patch.max() <= SMALL.max()
