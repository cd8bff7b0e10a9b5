"""`python -m tests.gpu.measure patches|matching`: patches and descriptor rows per second."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from matchserve.libraries import matching_device
from matchserve.models.execution import DeviceOptions
from matchserve.models.onnx_model import OnnxDescriptor
from matchserve.models.registry import shipped_models_dir
from matchserve.vision.matching import mutual_nn


def best_seconds(work: Callable[[], Any], rounds: int = 5) -> float:
    work()  # the first call chooses kernels and allocates
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def measure_patches(provider: str, count: int) -> None:
    rng = np.random.default_rng(0)
    for name in ("compact", "compact-fp16", "accurate", "binary"):
        for batch in (64, 512, 2048):
            model = OnnxDescriptor(
                shipped_models_dir() / name, provider=provider, devices=DeviceOptions(batch=batch)
            )
            size = model.card.patch.size
            patches = rng.integers(0, 256, (count, 1, size, size), np.uint8)
            rate = count / best_seconds(partial(model.describe_patches, patches))
            sys.stdout.write(f"{name} on {model.provider}, batch {batch}: {rate:.0f} patches/s\n")


def measure_matching() -> None:
    rng = np.random.default_rng(0)
    device = matching_device()
    place = "the CPU" if device is None else f"device {device} where it is worth it"
    for rows in (256, 512, 2048, 8192):
        left, right = rng.normal(size=(2, rows, 128)).astype(np.float32)
        for array in (left, right):
            array /= np.linalg.norm(array, axis=1, keepdims=True)
        seconds = best_seconds(partial(mutual_nn, left, right))
        sys.stdout.write(f"{rows} x {rows} rows on {place}: {1e3 * seconds:.2f} ms\n")


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure what a device does per second.")
    parser.add_argument("what", choices=["patches", "matching"])
    parser.add_argument("--provider", default="auto")
    parser.add_argument("--count", type=int, default=16_384)
    given = parser.parse_args()
    if given.what == "patches":
        measure_patches(given.provider, given.count)
    else:
        measure_matching()


if __name__ == "__main__":
    main()
