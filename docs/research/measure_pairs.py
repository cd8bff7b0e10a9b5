"""Time describing and matching beside COLMAP's SIFT, one thread each, in one run.

    python docs/research/measure_pairs.py IMAGES

Both use images of at most 1024 pixels and 2048 features; COLMAP adds a row for each further
orientation. We match as a collection does. Times are CPU time. A pair counts with its verification.
"""

from __future__ import annotations

import itertools
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import pycolmap

from matchserve.clock import Call, one_thread
from matchserve.collections.collection import DEFAULT_OPTIONS
from matchserve.matcher import Matcher

SIDE, KEYPOINTS = 1024, 2048


def run_matchserve(images: list[Path]) -> tuple[float, float, int]:
    """Return seconds of an image, seconds of a pair, and the inliers of all pairs."""
    matcher = Matcher(threads=1)
    options = replace(
        DEFAULT_OPTIONS,
        detect=replace(DEFAULT_OPTIONS.detect, max_keypoints=KEYPOINTS),
        max_side=SIDE,
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


def run_colmap(images: list[Path]) -> tuple[float, float, int]:
    """Return the same figures of COLMAP's SIFT."""
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


def main() -> None:
    """Print both rows and their ratios."""
    pycolmap.logging.minloglevel = pycolmap.logging.Level.WARNING.value
    images = sorted(p for p in Path(sys.argv[1]).iterdir() if p.suffix in (".jpg", ".png"))
    ours, theirs = run_matchserve(images), run_colmap(images)
    print("| | ms an image | ms a pair | inliers |\n|---|---|---|---|")  # noqa: T201
    for name, (image, pair, inliers) in (("matchserve", ours), ("COLMAP SIFT", theirs)):
        print(f"| {name} | {1e3 * image:.0f} | {1e3 * pair:.1f} | {inliers} |")  # noqa: T201
    ratios = theirs[0] / ours[0], theirs[1] / ours[1], ours[2] / theirs[2]
    print("| times better | {:.2f} | {:.2f} | {:.2f} |".format(*ratios))  # noqa: T201


if __name__ == "__main__":
    main()
