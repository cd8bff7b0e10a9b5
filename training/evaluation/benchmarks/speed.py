"""Benchmark `speed`: CPU time and memory to describe patches and to match a pair of images.

CPU milliseconds are summed over all threads. Each model runs in a process of its own, so its peak
memory is its own. OpenCV's SIFT with brute-force matching and a ratio test is the reference.
"""

from __future__ import annotations

import multiprocessing
import platform
import resource
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import cv2
import numpy as np

from matchserve.hardware import available_cpus
from matchserve.matcher import Matcher
from matchserve.matcher import Options as MatchOptions
from matchserve.models.registry import load_descriptor
from matchserve.types import UInt8
from matchserve.vision.geometry import VerifyOptions, verify
from matchserve.vision.keypoints import DetectOptions, detect
from matchserve.vision.patches import crop
from training.data.images import list_images, read_image
from training.evaluation.protocol import (
    BenchmarkResult,
    Model,
    ModelResult,
    Options,
    digest_files,
)
from training.metrics.metric import CPU_MS, CPU_RATIO, PEAK_RSS, WALL_MS

SIZE = (1024, 768)
PATCHES = 1000
REPEATS = 5
REFERENCE = "opencv-sift-bf-ratio"


def run(models: Iterable[Model], data: list[Path], options: Options) -> BenchmarkResult:
    """Time every model and the reference on the first two images in `data`."""
    paths = list(list_images(data).values())[:2]
    names = {model.name: model for model in models}
    results = {}
    for name in (REFERENCE, *names):
        location = names[name].location if name in names else name
        figures = _measure_in_process(location, paths, options.max_keypoints, options.threads)
        stamp = names[name].stamp if name in names else f"opencv-{cv2.__version__}"
        results[name] = ModelResult(figures, stamp=stamp)
    cpu_per_pair = CPU_MS.of("pair")
    base = results[REFERENCE].figures[cpu_per_pair]
    results = {
        name: ModelResult(
            {**r.figures, CPU_RATIO.name: r.figures[cpu_per_pair] / base}, stamp=r.stamp
        )
        for name, r in results.items()
    }
    protocol = {
        **options.protocol("max_keypoints", "threads"),
        "image_size": list(SIZE),
        "patches": PATCHES,
        "repeats": REPEATS,
        "statistic": "median",
        "cpus": available_cpus(),
        "machine": platform.machine(),
    }
    return BenchmarkResult("speed", protocol, digest_files(paths), results)


def measure(
    model: str, paths: list[Path], max_keypoints: int, threads: int | None
) -> dict[str, float]:
    """Time one model in this process."""
    images = [_sized(path) for path in paths]
    if model == REFERENCE:
        figures = _times("pair", lambda: _opencv_pair(images, max_keypoints))
    else:
        descriptor = load_descriptor(model, threads=threads)
        image = Matcher(descriptor).load(images[0])
        keypoints = detect(image, DetectOptions(max_keypoints=PATCHES))
        patches = np.resize(
            crop(image, keypoints, descriptor.card.patch),
            (PATCHES, 1, descriptor.card.patch.size, descriptor.card.patch.size),
        )
        figures = _times("1000_patches", lambda: descriptor.describe_patches(patches))
        matcher = Matcher(descriptor)
        options = MatchOptions(detect=DetectOptions(max_keypoints=max_keypoints))
        figures |= _times("pair", lambda: matcher.match(images[0], images[1], options))
    # ru_maxrss is in kilobytes on Linux.
    figures[PEAK_RSS.name] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return figures


def _measure_in_process(
    model: str, paths: list[Path], max_keypoints: int, threads: int | None
) -> dict[str, float]:
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(measure, model, paths, max_keypoints, threads).result()


def _times(name: str, work: Callable[[], object]) -> dict[str, float]:
    work()
    cpu, wall = [], []
    for _ in range(REPEATS):
        start_cpu, start = time.process_time(), time.perf_counter()
        work()
        cpu.append(1e3 * (time.process_time() - start_cpu))
        wall.append(1e3 * (time.perf_counter() - start))
    return {
        CPU_MS.of(name): float(np.median(cpu)),
        WALL_MS.of(name): float(np.median(wall)),
    }


def _opencv_pair(images: list[UInt8], max_keypoints: int) -> int:
    """Match a pair as users of OpenCV do: detectAndCompute, brute force, ratio 0.8, RANSAC."""
    sift = cv2.SIFT.create(nfeatures=max_keypoints)
    (left, rows0), (right, rows1) = (sift.detectAndCompute(image, None) for image in images)
    nearest = cv2.BFMatcher(cv2.NORM_L2).knnMatch(rows0, rows1, k=2)
    good = [m[0] for m in nearest if len(m) == 2 and m[0].distance < 0.8 * m[1].distance]
    xy0 = np.array([left[m.queryIdx].pt for m in good]).reshape(-1, 2)
    xy1 = np.array([right[m.trainIdx].pt for m in good]).reshape(-1, 2)
    return int(verify(xy0, xy1, (SIZE, SIZE), VerifyOptions()).inliers.sum())


def _sized(path: Path) -> UInt8:
    grey = read_image(path).grey
    return np.asarray(cv2.resize(grey, SIZE, interpolation=cv2.INTER_AREA), np.uint8)
