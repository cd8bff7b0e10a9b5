"""Reconstruct scenes with other rules for the points of a collection, and print one table.

    python docs/research/measure_points.py SCENE... --confidence 0.3 --correlation 0.8 \\
        --capped-sigma inf --agreement 0.5 --epipolar 0.75 --plain-weights

A scene is a folder of images. All pairs are matched with 8192 keypoints; the focal length is
guessed. Without options, the rules are those of a collection. One thread; the mapper's seed is 0.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from matchserve.collections.collection import DEFAULT_OPTIONS
from matchserve.collections.colmap import quiet
from matchserve.collections.refining import REFINE_OPTIONS
from matchserve.models.registry import load_descriptor
from matchserve.pipeline.judging import JudgeOptions
from matchserve.types import Float32
from matchserve.vision import consistency
from training.data.images import read_image
from training.data.scenes.sfm import SfmOptions, build_database, run_mapper
from training.evaluation import refined_scene
from training.evaluation.predictions import ImageSet
from training.evaluation.protocol import Model, Options, model_stamp


def use(arguments: argparse.Namespace) -> None:
    """Set the rules; each is a constant of the module that uses it."""
    judge = JudgeOptions(min_confidence=arguments.confidence)
    rules: list[tuple[Any, str, Any]] = [
        (refined_scene, "DEFAULT_OPTIONS", replace(DEFAULT_OPTIONS, judge=judge)),
        (
            refined_scene,
            "REFINE_OPTIONS",
            replace(
                REFINE_OPTIONS,
                min_correlation=arguments.correlation,
                capped_sigma=arguments.capped_sigma,
            ),
        ),
        (consistency, "_AGREEMENT_PX", arguments.agreement),
        (consistency, "_EPIPOLAR_PX", arguments.epipolar),
    ]
    if arguments.plain_weights:
        rules.append((refined_scene, "match_weights", _confidence))
    for module, name, value in rules:
        setattr(module, name, value)


def _confidence(confidence: Float32, _: Float32) -> Float32:
    return confidence


def measure(scene: Path, model: Model, scratch: Path) -> str:
    """Reconstruct one scene; return its row of the table."""
    start = time.process_time()
    files = sorted(f for f in scene.iterdir() if f.suffix.lower() in (".jpg", ".png"))
    images = ImageSet({f.name: partial(read_image, f) for f in files}, [], scene.name)
    options = Options(max_keypoints=8192, threads=1, cache=scratch, pipeline="default")
    rule = SfmOptions(ratio=None, max_partners=len(files))
    matched = refined_scene.match_scene(model, images, options, rule)
    build_database(scratch / "database.db", matched.features, rule, None, matched.matches)
    found = run_mapper(scratch, rule, refine_intrinsics=True, has_two_view_points=False)
    if found is None:
        return f"| {scene.name} | 0 / {len(files)} |"
    return (
        f"| {scene.name} | {found.num_reg_images()} / {len(files)} | {found.num_points3D()} | "
        f"{found.compute_num_observations()} | {found.compute_mean_track_length():.2f} | "
        f"{found.compute_mean_reprojection_error():.3f} | {time.process_time() - start:.0f} |"
    )


def main() -> None:
    """Measure all scenes and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scenes", nargs="+", type=Path)
    parser.add_argument("--model", default="compact")
    parser.add_argument("--plain-weights", action="store_true")
    for name, value in {
        "confidence": DEFAULT_OPTIONS.judge.min_confidence,
        "correlation": REFINE_OPTIONS.min_correlation,
        "capped-sigma": REFINE_OPTIONS.capped_sigma,
        "agreement": consistency._AGREEMENT_PX,
        "epipolar": consistency._EPIPOLAR_PX,
    }.items():
        parser.add_argument(f"--{name}", type=float, default=value)
    arguments = parser.parse_args()
    use(arguments)
    quiet()
    descriptor = load_descriptor(arguments.model, threads=1)
    model = Model(arguments.model, descriptor, model_stamp(descriptor.card))
    print("| scene | registered | points | observations | track | error px | CPU s |", flush=True)  # noqa: T201
    print("|---|---|---|---|---|---|---|", flush=True)  # noqa: T201
    for scene in arguments.scenes:
        with tempfile.TemporaryDirectory() as scratch:
            print(measure(scene, model, Path(scratch)), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
