from __future__ import annotations

import dataclasses
import sys

import numpy as np
import pytest

from matchserve import libraries
from matchserve.errors import (
    FeatureMismatch,
    InvalidParameter,
    ProviderUnavailable,
)
from matchserve.types import Features, Float32, Keypoints, UInt8
from matchserve.vision.matching import MatchOptions, match, mutual_nn


def unit_rows(count: int, dim: int = 32, seed: int = 0) -> Float32:
    rows = np.random.default_rng(seed).normal(size=(count, dim)).astype(np.float32)
    return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True), np.float32)


def bits(count: int, seed: int = 0) -> UInt8:
    return np.random.default_rng(seed).integers(0, 256, (count, 8), np.uint8)


def naive(left: np.ndarray, right: np.ndarray, ratio: float | None = None) -> set[tuple[int, int]]:
    """Mutual nearest neighbours by two loops."""
    if left.dtype == np.uint8:
        table = np.unpackbits(left[:, None] ^ right[None], axis=2).sum(axis=2).astype(float)
    else:
        table = np.linalg.norm(left[:, None].astype(np.float64) - right[None], axis=2)
    pairs = set()
    for i in range(len(left)):
        j = int(table[i].argmin())
        if int(table[:, j].argmin()) != i:
            continue
        row, column = np.sort(table[i]), np.sort(table[:, j])
        if ratio is None or (row[0] < ratio * row[1] and column[0] < ratio * column[1]):
            pairs.add((i, j))
    return pairs


def as_features(rows: np.ndarray, model: str = "m") -> Features:
    count = len(rows)
    ones = np.ones(count, np.float32)
    return Features(
        Keypoints(np.zeros((count, 2), np.float32), ones, ones, ones), rows, model, (9, 9)
    )


@pytest.mark.parametrize("ratio", [None, 0.95, 0.8])
def test_float_matches_equal_two_loops(ratio: float | None) -> None:
    left = unit_rows(150)
    noise = 0.3 * unit_rows(180, seed=2)
    right = np.concatenate([left[:120], unit_rows(60, seed=1)]) + noise
    right = (right / np.linalg.norm(right, axis=1, keepdims=True)).astype(np.float32)
    found = mutual_nn(left, right, MatchOptions(ratio=ratio))
    assert set(map(tuple, found.pairs.tolist())) == naive(left, right, ratio)
    truth = np.linalg.norm(left[found.pairs[:, 0]] - right[found.pairs[:, 1]], axis=1)
    np.testing.assert_allclose(found.distance, truth, atol=2e-3)
    np.testing.assert_allclose(found.score, 1 - truth**2 / 4, atol=1e-3)


def test_binary_matches_equal_two_loops() -> None:
    left, right = bits(90), np.concatenate([bits(60) ^ np.uint8(1), bits(50, seed=9)])
    found = mutual_nn(left, right)
    # Ties in Hamming distance are broken by order on both sides; compare where there are none.
    assert set(map(tuple, found.pairs.tolist())) >= {(i, i) for i in range(60)}
    first = found.pairs[:60]
    assert (found.distance[:60] == 8).all()
    np.testing.assert_array_equal(first[:, 0], first[:, 1])
    np.testing.assert_allclose(found.score[:60], 1 - 8 / 64)


def test_max_distance_cuts() -> None:
    left, right = unit_rows(200), unit_rows(200, seed=1)
    everything = mutual_nn(left, right)
    near = mutual_nn(left, right, MatchOptions(max_distance=1.0))
    assert 0 < len(near) < len(everything)
    assert near.distance.max() <= 1.0


def test_a_set_with_itself_is_the_identity() -> None:
    rows = unit_rows(500)
    found = mutual_nn(rows, rows)
    np.testing.assert_array_equal(found.pairs[:, 0], np.arange(500))
    np.testing.assert_array_equal(found.pairs[:, 1], np.arange(500))
    assert found.distance.max() < 2e-3


@pytest.mark.parametrize(("n", "m"), [(0, 0), (0, 5), (5, 0), (1, 1), (1, 7)])
def test_few_rows(n: int, m: int) -> None:
    found = mutual_nn(unit_rows(n), unit_rows(m, seed=1), MatchOptions(ratio=0.9))
    assert len(found) <= min(n, m)


def test_a_single_candidate_has_nobody_to_be_confused_with() -> None:
    assert len(mutual_nn(unit_rows(1), unit_rows(1), MatchOptions(ratio=0.5))) == 1


def test_models_do_not_mix() -> None:
    with pytest.raises(FeatureMismatch, match="'a' and 'b'"):
        match(as_features(unit_rows(3), "a"), as_features(unit_rows(3), "b"))
    old, new = as_features(unit_rows(3)), as_features(unit_rows(3))
    old, new = (dataclasses.replace(f, fingerprint=p) for f, p in ((old, "1f"), (new, "2e")))
    with pytest.raises(FeatureMismatch, match="1f and 2e"):
        match(old, new)
    assert len(match(old, old)) == len(match(old, dataclasses.replace(new, fingerprint=""))) == 3
    with pytest.raises(FeatureMismatch, match="lengths or kinds"):
        match(as_features(unit_rows(3)), as_features(unit_rows(3, dim=16)))
    with pytest.raises(FeatureMismatch, match="lengths or kinds"):
        match(as_features(unit_rows(3, dim=8)), as_features(bits(3)))


@pytest.mark.parametrize("ratio", [0.0, -1.0, 1.5, float("nan")])
def test_senseless_ratios_are_refused(ratio: float) -> None:
    with pytest.raises(InvalidParameter, match="ratio"):
        MatchOptions(ratio=ratio)


def test_without_faiss_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "faiss", None)
    libraries.import_faiss.cache_clear()
    with pytest.raises(ProviderUnavailable, match=r"\.\[cpu\].*\.\[gpu\]"):
        libraries.import_faiss()
    monkeypatch.undo()
    libraries.import_faiss.cache_clear()
    assert libraries.gpu_count() >= 0
