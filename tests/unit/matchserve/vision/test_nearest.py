"""Neighbours on the CPU and on a device that stands in for FAISS's."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from matchserve import libraries
from matchserve.errors import InferenceFailed
from matchserve.libraries import import_faiss, use_matching_device
from matchserve.vision import nearest
from matchserve.vision.matching import MatchOptions, mutual_nn
from matchserve.vision.nearest import is_worth_a_device, nearest_rows


def unit_rows(count: int, dim: int = 128, seed: int = 0) -> np.ndarray:
    rows = np.random.default_rng(seed).normal(size=(count, dim)).astype(np.float32)
    return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True), np.float32)


def bits(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, 32), np.uint8)


class FakeFaiss(SimpleNamespace):
    """FAISS's GPU interface: it computes in float16 and lets only one thread in at a time."""

    def __init__(self, devices: int = 1, failure: str = "") -> None:
        real = import_faiss()
        super().__init__(
            knn=real.knn,
            knn_hamming=real.knn_hamming,
            METRIC_INNER_PRODUCT=real.METRIC_INNER_PRODUCT,
        )
        self.devices, self.failure = devices, failure
        self.calls: list[dict[str, Any]] = []
        self.temporary_bytes = 0
        self._inside = threading.Lock()

    def get_num_gpus(self) -> int:
        return self.devices

    def StandardGpuResources(self) -> Any:  # noqa: N802  the names are FAISS's
        def set_memory(size: int) -> None:
            self.temporary_bytes = size

        return SimpleNamespace(setTempMemory=set_memory)

    def knn_gpu(
        self, _resources: Any, queries: np.ndarray, base: np.ndarray, k: int, **options: Any
    ) -> tuple[np.ndarray, np.ndarray]:
        assert queries.dtype == base.dtype == np.float16
        assert self._inside.acquire(blocking=False), "resources of one thread at a time"
        try:
            self.calls.append(options)
            if self.failure:
                raise RuntimeError(self.failure)
            similarity = (queries.astype(np.float32) @ base.astype(np.float32).T).astype(np.float16)
            index = np.argsort(-similarity, axis=1, kind="stable")[:, :k]
            return np.take_along_axis(similarity, index, 1).astype(np.float32), index
        finally:
            self._inside.release()

    def GpuIndexBinaryFlatConfig(self) -> Any:  # noqa: N802
        return SimpleNamespace(device=0)

    def GpuIndexBinaryFlat(self, _resources: Any, dim: int, config: Any) -> Any:  # noqa: N802
        self.calls.append({"bits": dim, "device": config.device})
        kept: list[np.ndarray] = []

        def search(queries: np.ndarray, k: int) -> Any:
            assert 8 * queries.shape[1] == dim
            return self.knn_hamming(queries, kept[0], k)

        return SimpleNamespace(add=kept.append, search=search)


@pytest.fixture
def on_device(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Make every set large enough, and FAISS the fake one."""

    def use(fake: FakeFaiss) -> FakeFaiss:
        for module in (nearest, libraries):
            monkeypatch.setattr(module, "import_faiss", lambda: fake)
        return fake

    monkeypatch.setattr(nearest, "DEVICE_MULTIPLY_ADDS", 1)
    monkeypatch.setattr(nearest, "DEVICE_BIT_DISTANCES", 1)
    nearest._searcher.cache_clear()
    yield use
    nearest._searcher.cache_clear()
    use_matching_device(0)


@pytest.mark.parametrize("ratio", [None, 0.9])
def test_a_device_gives_the_matches_of_the_cpu(
    on_device: Any, monkeypatch: pytest.MonkeyPatch, ratio: float | None
) -> None:
    left = unit_rows(300)
    noise = 0.05 * np.random.default_rng(3).normal(size=(200, 128))
    right = left[:200] + noise.astype(np.float32)
    right /= np.linalg.norm(right, axis=1, keepdims=True)
    fake = on_device(FakeFaiss())
    found = mutual_nn(left, right, MatchOptions(ratio=ratio))
    assert len(fake.calls) == 2
    assert fake.calls[0]["device"] == 0
    assert fake.calls[0]["vectorsMemoryLimit"] == nearest.BLOCK_BYTES
    assert fake.temporary_bytes < 1.5e9
    monkeypatch.undo()
    expected = mutual_nn(left, right, MatchOptions(ratio=ratio))
    np.testing.assert_array_equal(found.pairs, expected.pairs)
    np.testing.assert_allclose(found.distance, expected.distance, atol=1e-5)


def test_neighbours_that_float16_cannot_tell_apart_are_ordered_exactly(on_device: Any) -> None:
    query = np.eye(1, 128, dtype=np.float32)
    base = np.repeat(query, 2, 0)
    base[0, 1] = 0.02  # cosines 0.9998 and 1, which float16 rounds to one value
    base /= np.linalg.norm(base, axis=1, keepdims=True)
    on_device(FakeFaiss())
    distance, index = nearest_rows(query, base, 1)
    assert index.tolist() == [[1]]
    assert distance[0, 0] == pytest.approx(0.0, abs=1e-4)


def test_bits_are_matched_on_the_device(on_device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    left, right = bits(60), bits(50, seed=1)
    fake = on_device(FakeFaiss())
    distance, index = nearest_rows(left, right, 2)
    assert fake.calls == [{"bits": 256, "device": 0}]
    monkeypatch.undo()
    expected_distance, expected = nearest_rows(left, right, 2)
    np.testing.assert_array_equal(distance, expected_distance)
    np.testing.assert_array_equal(index, expected)


def test_small_sets_stay_on_the_cpu(on_device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = on_device(FakeFaiss())
    monkeypatch.setattr(nearest, "DEVICE_MULTIPLY_ADDS", 24_000_000)
    monkeypatch.setattr(nearest, "DEVICE_BIT_DISTANCES", 400_000)
    nearest_rows(unit_rows(400), unit_rows(400), 1)
    nearest_rows(bits(400), bits(400), 1)
    assert not fake.calls
    assert is_worth_a_device(unit_rows(2048), unit_rows(2048))
    assert is_worth_a_device(bits(2048), bits(2048))


def test_the_device_is_the_one_chosen(on_device: Any) -> None:
    fake = on_device(FakeFaiss(devices=2))
    use_matching_device(1)
    nearest_rows(unit_rows(10), unit_rows(10), 1)
    assert fake.calls[0]["device"] == 1
    for absent in (None, 2):
        use_matching_device(absent)
        nearest_rows(unit_rows(10), unit_rows(10), 1)
    assert len(fake.calls) == 1


def test_a_failing_device_leaves_the_work_to_the_cpu(
    on_device: Any, caplog: pytest.LogCaptureFixture
) -> None:
    on_device(FakeFaiss(failure="out of device memory"))
    with caplog.at_level(logging.WARNING):
        _, index = nearest_rows(unit_rows(10), unit_rows(10), 1)
    assert index[:, 0].tolist() == list(range(10))
    assert "out of device memory" in caplog.text


def test_many_threads_share_the_device_one_at_a_time(on_device: Any) -> None:
    fake = on_device(FakeFaiss())
    rows = unit_rows(200)
    threads = [threading.Thread(target=nearest_rows, args=(rows, rows, 1)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(fake.calls) == 8


def test_a_failing_search_on_the_cpu_is_a_typed_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("no memory")

    fake = SimpleNamespace(knn=fail, METRIC_INNER_PRODUCT=0)
    for module in (nearest, libraries):
        monkeypatch.setattr(module, "import_faiss", lambda: fake)
    with pytest.raises(InferenceFailed):
        nearest_rows(unit_rows(3), unit_rows(3), 1)
