"""Neighbours from integer products against the exact search."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from matchserve.models.integer_product import GRAPH, integer_product
from matchserve.types import Features, Float32, Int32, Keypoints
from matchserve.vision.matching import putative
from matchserve.vision.quantised import ZERO, Quantised, best_columns, mutual_pairs


def _plain(rows: np.ndarray, columns: np.ndarray) -> Int32:
    return (rows.astype(np.int32) - ZERO) @ columns.astype(np.int32)


def _unit(rng: np.random.Generator, count: int) -> Float32:
    rows = rng.normal(size=(count, 128)).astype(np.float32)
    return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True), np.float32)


def _features(descriptors: Float32, rng: np.random.Generator) -> Features:
    count = len(descriptors)
    ones = np.ones(count, np.float32)
    xy = rng.uniform(0, 500, (count, 2)).astype(np.float32)
    keypoints = Keypoints(xy, ones, 0 * ones, ones)
    return Features(keypoints, descriptors, "compact", (500, 500))


def test_the_product_of_onnx_runtime_is_the_plain_one() -> None:
    """The graph subtracts the zero point, also at the ends of the ranges."""
    rng = np.random.default_rng(0)
    rows = rng.integers(0, 256, (37, 128), dtype=np.uint8)
    columns = rng.integers(-64, 65, (128, 53)).astype(np.int8)
    rows[0], columns[:, 0] = 255, 64
    np.testing.assert_array_equal(integer_product()(rows, columns), _plain(rows, columns))


def test_the_graph_is_what_its_description_says() -> None:
    """The stored bytes are a graph of one MatMulInteger with a zero point of 128."""
    model = onnx.load_from_string(GRAPH)
    wanted = helper.make_graph(
        [helper.make_node("MatMulInteger", ["rows", "columns", "zero"], ["sums"])],
        "product",
        [
            helper.make_tensor_value_info("rows", TensorProto.UINT8, ["N", "D"]),
            helper.make_tensor_value_info("columns", TensorProto.INT8, ["D", "M"]),
        ],
        [helper.make_tensor_value_info("sums", TensorProto.INT32, ["N", "M"])],
        initializer=[helper.make_tensor("zero", TensorProto.UINT8, [], [ZERO])],
    )
    assert model.graph == wanted


def test_rounding_changes_cosines_little() -> None:
    """Products, scaled back, are near the cosines."""
    rng = np.random.default_rng(1)
    left, right = _unit(rng, 50), _unit(rng, 60)
    one, other = Quantised.of(left), Quantised.of(right)
    scale = 127 * 63.5 / (np.abs(left).max() * np.abs(right).max())
    cosine = _plain(one.unsigned, other.signed) / scale
    assert np.abs(cosine - left @ right.T).max() < 0.02


@pytest.mark.parametrize("count", [1, 4, 100])
def test_best_columns_are_those_of_a_sort(count: int) -> None:
    """More candidates than there are columns are all columns."""
    rng = np.random.default_rng(2)
    one, other = Quantised.of(_unit(rng, 30)), Quantised.of(_unit(rng, 40))
    similarity = _plain(one.unsigned, other.signed)
    found = best_columns(one.unsigned, other, count, _plain)
    assert found.shape == (30, min(count, 40))
    values = np.take_along_axis(similarity, found, 1)
    np.testing.assert_array_equal(values, -np.sort(-similarity, axis=1)[:, :count])


def test_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A product in blocks of one row finds the same pairs."""
    rng = np.random.default_rng(3)
    one, other = Quantised.of(_unit(rng, 70)), Quantised.of(_unit(rng, 50))
    whole = mutual_pairs(one, other, 4, _plain)
    monkeypatch.setattr("matchserve.vision.quantised._BLOCK_BYTES", 1)
    for part, wanted in zip(mutual_pairs(one, other, 4, _plain), whole, strict=True):
        np.testing.assert_array_equal(part, wanted)


def test_matches_are_those_of_the_exact_search() -> None:
    """Clear neighbours, distances and ratios are those of the exact search."""
    rng = np.random.default_rng(4)
    base = _unit(rng, 400)
    noisy = base[:300] + rng.normal(scale=0.03, size=(300, 128)).astype(np.float32)
    noisy /= np.linalg.norm(noisy, axis=1, keepdims=True)
    left, right = _features(base, rng), _features(noisy, rng)
    exact, fast = putative(left, right), putative(left, right, None, integer_product())
    wanted = {tuple(pair): row for row, pair in enumerate(exact.matches.pairs.tolist())}
    rows = [wanted[tuple(pair)] for pair in fast.matches.pairs.tolist()]
    assert {(i, i) for i in range(300)} <= {tuple(p) for p in fast.matches.pairs.tolist()}
    np.testing.assert_allclose(fast.matches.distance, exact.matches.distance[rows], atol=1e-5)
    np.testing.assert_allclose(fast.ratio, exact.ratio[rows], atol=0.02)


def test_ratio_and_empty_images_work_as_in_the_exact_search() -> None:
    """Options apply to exact distances, and no keypoints give no matches."""
    rng = np.random.default_rng(5)
    left = _features(_unit(rng, 20), rng)
    nothing = replace(
        left, keypoints=left.keypoints[np.zeros(0, np.intp)], descriptors=left.descriptors[:0]
    )
    assert len(putative(left, nothing, None, integer_product()).matches) == 0
    assert len(putative(left, left, None, integer_product()).matches) == 20
