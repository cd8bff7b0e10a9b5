"""Nearest rows of descriptors with FAISS: on the CPU, or on a device for large sets."""

from __future__ import annotations

import functools
import logging
import threading
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from matchserve.errors import InferenceFailed
from matchserve.libraries import import_faiss, matching_device
from matchserve.types import Float32

Neighbours: TypeAlias = tuple[Float32, NDArray[np.int64]]
"""Distances and indices, nearest first: Euclidean of unit rows, or bits."""

# Below these a device costs more than it saves: a call takes about 1 ms (copies, kernels, one
# wait), in which one core does 24 million multiply-adds or 400 000 distances of 256 bits. The core
# was measured (`matchserve bench`, 2048 rows), the call is an estimate, which
# docs/operations/performance.md says how to measure.
DEVICE_MULTIPLY_ADDS = 24_000_000
DEVICE_BIT_DISTANCES = 400_000

# Memory of the device for the copies of one call; larger sets go in blocks.
BLOCK_BYTES = 256_000_000
# FAISS takes 1.5 GB by default, which the models need.
TEMPORARY_BYTES = 128_000_000

_log = logging.getLogger(__name__)


def nearest_rows(queries: NDArray[Any], base: NDArray[Any], count: int) -> Neighbours:
    """Find the `count` nearest rows of `base` for each query; fewer if `base` has fewer.

    Raises:
        InferenceFailed: FAISS failed on the CPU.
    """
    count = min(count, len(base))
    device = matching_device()
    if device is not None and is_worth_a_device(queries, base):
        try:
            return _searcher(device).search(queries, base, count)
        except RuntimeError as error:  # FAISS's only exception; mostly the device's memory
            _log.warning("matching on the CPU, because device %d failed: %s", device, error)
    try:
        return _search_on_cpu(queries, base, count)
    except RuntimeError as error:
        raise InferenceFailed("FAISS failed while matching") from error


def is_worth_a_device(queries: NDArray[Any], base: NDArray[Any]) -> bool:
    """Return whether a device finds the neighbours sooner than one core."""
    distances = len(queries) * len(base)
    if queries.dtype == np.uint8:
        return distances >= DEVICE_BIT_DISTANCES
    return distances * int(queries.shape[1]) >= DEVICE_MULTIPLY_ADDS


def _search_on_cpu(queries: NDArray[Any], base: NDArray[Any], count: int) -> Neighbours:
    faiss = import_faiss()
    if queries.dtype == np.uint8:
        bits, index = faiss.knn_hamming(queries, base, count)
        return bits.astype(np.float32), index
    cosine, index = faiss.knn(queries, base, count, metric=faiss.METRIC_INNER_PRODUCT)
    return _euclidean(cosine), index


class DeviceSearch:
    """Searches on one device, one call at a time: FAISS does not guard its resources."""

    def __init__(self, device: int) -> None:
        faiss = import_faiss()
        self._device = device
        self._lock = threading.Lock()
        self._resources = faiss.StandardGpuResources()
        self._resources.setTempMemory(TEMPORARY_BYTES)

    def search(self, queries: NDArray[Any], base: NDArray[Any], count: int) -> Neighbours:
        """Find neighbours as `nearest_rows` does.

        Raises:
            RuntimeError: the device failed.
        """
        with self._lock:
            if queries.dtype == np.uint8:
                return self._search_bits(queries, base, count)
            # float16 halves the copies. One candidate more, ordered by the exact distance below,
            # so that rounding does not swap the first two.
            candidates = self._search_halves(queries, base, min(count + 1, len(base)))
        return order_exactly(queries, base, candidates, count)

    def _search_halves(
        self, queries: NDArray[Any], base: NDArray[Any], count: int
    ) -> NDArray[np.int64]:
        faiss = import_faiss()
        _, index = faiss.knn_gpu(
            self._resources,
            np.ascontiguousarray(queries, np.float16),
            np.ascontiguousarray(base, np.float16),
            count,
            metric=faiss.METRIC_INNER_PRODUCT,
            device=self._device,
            vectorsMemoryLimit=BLOCK_BYTES,
            queriesMemoryLimit=BLOCK_BYTES,
        )
        found: NDArray[np.int64] = index
        return found

    def _search_bits(self, queries: NDArray[Any], base: NDArray[Any], count: int) -> Neighbours:
        faiss = import_faiss()
        config = faiss.GpuIndexBinaryFlatConfig()
        config.device = self._device
        index = faiss.GpuIndexBinaryFlat(self._resources, 8 * base.shape[1], config)
        index.add(np.ascontiguousarray(base))
        bits, rows = index.search(np.ascontiguousarray(queries), count)
        return bits.astype(np.float32), rows


@functools.lru_cache(maxsize=8)
def _searcher(device: int) -> DeviceSearch:
    return DeviceSearch(device)


def order_exactly(
    queries: NDArray[Any], base: NDArray[Any], candidates: NDArray[np.int64], count: int
) -> Neighbours:
    """Compute the distances of candidates in float32 and keep the `count` nearest."""
    cosine = np.einsum("nd,nkd->nk", queries, base[candidates])
    order = np.argsort(-cosine, axis=1, kind="stable")[:, :count]
    index = np.take_along_axis(candidates, order, 1)
    return _euclidean(np.take_along_axis(cosine, order, 1)), index


def _euclidean(cosine: NDArray[Any]) -> Float32:
    return np.asarray(np.sqrt(np.maximum(2.0 - 2.0 * cosine, 0.0)), np.float32)
