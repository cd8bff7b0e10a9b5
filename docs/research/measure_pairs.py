"""Time describing and matching beside COLMAP's SIFT, one thread each, in one run.

    python docs/research/measure_pairs.py IMAGES

Both use images of at most 1024 pixels and 2048 features; COLMAP adds a row for each further
orientation. We match as a worker of a collection does. Each row has a process of its own; the last
one gives COLMAP the heap of our workers, which keeps freed memory. Times are CPU time. A pair
counts with its verification.
"""

from __future__ import annotations

import itertools
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

import pycolmap

from matchserve.clock import Call, one_thread
from matchserve.collections.collection import DEFAULT_OPTIONS
from matchserve.collections.pool import start_worker
from matchserve.matcher import Matcher
from matchserve.memory import share_heaps

SIDE, KEYPOINTS = 1024, 2048
Figures = tuple[float, float, int]


def run_matchserve(images: list[Path]) -> Figures:
    """Return seconds of an image, seconds of a pair, and the inliers of all pairs."""
    matcher = Matcher(threads=1)
    options = replace(
        DEFAULT_OPTIONS,
        detect=replace(DEFAULT_OPTIONS.detect, max_keypoints=KEYPOINTS),
        max_side=SIDE,
        verify=replace(DEFAULT_OPTIONS.verify, explain=False),
    )
    matcher.features(images[0], options, Call(threads=one_thread))
    start = time.process_time()
    features = [matcher.features(image, options, Call(threads=one_thread)) for image in images]
    described = time.process_time()
    inliers, pairs = 0, list(itertools.combinations(features, 2))
    for first, second in pairs:
        result = matcher.match_features(first, second, options, Call(threads=one_thread))
        inliers += result.inlier_count
    matched = time.process_time()
    return (described - start) / len(images), (matched - described) / len(pairs), inliers


def run_colmap(images: list[Path]) -> Figures:
    """Return the same figures of COLMAP's SIFT."""
    pycolmap.logging.minloglevel = pycolmap.logging.Level.WARNING.value
    extraction = pycolmap.FeatureExtractionOptions()
    extraction.num_threads = 1
    extraction.max_image_size = SIDE
    extraction.sift.max_num_features = KEYPOINTS
    matching = pycolmap.FeatureMatchingOptions()
    matching.num_threads = 1
    with tempfile.TemporaryDirectory() as scratch:
        database = Path(scratch) / "database.db"
        start = time.process_time()
        pycolmap.extract_features(
            database, images[0].parent, image_names=[i.name for i in images],
            extraction_options=extraction,
        )  # fmt: skip
        described = time.process_time()
        pycolmap.match_exhaustive(database, matching_options=matching)
        matched = time.process_time()
        with pycolmap.Database.open(database) as opened:
            _, geometries = opened.read_two_view_geometries()
    pairs = len(images) * (len(images) - 1) // 2
    inliers = sum(len(geometry.inlier_matches) for geometry in geometries)
    return (described - start) / len(images), (matched - described) / pairs, inliers


def in_process(
    run: Callable[[list[Path]], Figures], images: list[Path], prepare: Callable[[], None] | None
) -> Figures:
    """Return the figures of a run in a new process, which `prepare` makes ready."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context, initializer=prepare) as pool:
        return pool.submit(run, images).result()


def one_heap() -> None:
    """Let the process keep freed memory, as our workers do."""
    share_heaps(1)


def main() -> None:
    """Print all rows, and how many times better ours is than COLMAP's own."""
    images = sorted(p for p in Path(sys.argv[1]).iterdir() if p.suffix in (".jpg", ".png"))
    rows = {
        "matchserve": in_process(run_matchserve, images, start_worker),
        "COLMAP SIFT": in_process(run_colmap, images, None),
        "COLMAP SIFT, our heap": in_process(run_colmap, images, one_heap),
    }
    print("| | ms an image | ms a pair | inliers |\n|---|---|---|---|")  # noqa: T201
    for name, (image, pair, inliers) in rows.items():
        print(f"| {name} | {1e3 * image:.0f} | {1e3 * pair:.1f} | {inliers} |")  # noqa: T201
    ours, theirs = rows["matchserve"], rows["COLMAP SIFT"]
    ratios = theirs[0] / ours[0], theirs[1] / ours[1], ours[2] / theirs[2]
    print("| times better | {:.2f} | {:.2f} | {:.2f} |".format(*ratios))  # noqa: T201


if __name__ == "__main__":
    main()
