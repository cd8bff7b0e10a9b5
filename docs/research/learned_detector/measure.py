"""Measure detectors with one descriptor, on images that none of the networks learned from."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from pairs import FIRST_HELD_OUT, LARGE_SETS, MODAL_KINDS, held_out

from matchserve.decoding import detection as decoding
from matchserve.threads import off_main_thread
from matchserve.types import Float64, Image, Keypoints
from matchserve.vision.keypoints import DetectOptions, Region
from matchserve.vision.selection import Selection
from training.data.images import read_image
from training.data.photos.sequences import SequenceOptions, write_sequences
from training.detector.losses import correspondences
from training.evaluation import predictions, protocol
from training.evaluation.benchmarks import homography, pose, wide
from training.evaluation.protocol import Model, Options, Pipeline
from training.metrics.image_pairs import apply_homography, transfer_error

Detect = Callable[[Image, DetectOptions, Region | None], Keypoints]
RADIUS_PX = 3.0
LEVELS = ("medium", "hard")
_TIMED_IMAGES, _TIMES = 4, 3


def write_held_out(train: Path, workspace: Path, folder: Path) -> None:
    """Write `sequences`, and links to held-out data as `modal` and `scenes`."""
    photos = train / "photos"
    names = [name for each in LARGE_SETS for name in held_out(photos, each)]
    write_sequences(
        [photos / each for each in LARGE_SETS], folder / "sequences",
        SequenceOptions(LEVELS), only=names, workers=1,
    )  # fmt: skip
    for kind in MODAL_KINDS:
        for number in range(FIRST_HELD_OUT, FIRST_HELD_OUT + 20):
            source = train / "modal" / kind / f"{number:03d}"
            place = folder / "modal" / kind / source.name
            place.mkdir(parents=True)
            for file in source.iterdir():
                (place / file.name).symlink_to(file.resolve())
    for scene in ("een020_3", "een020_9"):
        (folder / "scenes" / scene).mkdir(parents=True)
        (folder / "scenes" / scene / "images").symlink_to((train / "scenes" / scene).resolve())
        (folder / "scenes" / scene / "sparse").symlink_to((workspace / scene / "sparse").resolve())


def detect_selected(
    detect: Detect,
    selection: Selection,
    image: Image,
    options: DetectOptions,
    mask: Region | None = None,
) -> Keypoints:
    """Detect with one selection, whatever the options say."""
    return detect(image, replace(options, selection=selection), mask)


def detect_weak(
    detect: Detect, image: Image, options: DetectOptions, mask: Region | None = None
) -> Keypoints:
    """Detect keypoints of a fifth of the least contrast too: small images have few others."""
    weaker = replace(options, contrast_threshold=0.2 * options.contrast_threshold)
    return detect(image, weaker, mask)


def processor_ms(detectors: Mapping[str, Detect], folder: Path) -> dict[str, float]:
    """Return the processor time of an image of 1024 x 768 pixels: four images, best of three.

    The detectors take turns, as the speed of a machine changes.
    """
    files = sorted((folder / "sequences").glob("*/1.png"))
    images = [read_image(file) for file in files[:: max(1, len(files) // _TIMED_IMAGES)]]
    best = {name: [float("inf")] * len(images) for name in detectors}
    for _ in range(_TIMES):
        for number, image in enumerate(images):
            for name, detect in detectors.items():
                seconds = off_main_thread(_seconds, detect, image)
                best[name][number] = min(best[name][number], seconds)
    pixels = sum(image.grey.size for image in images)
    return {name: 1e3 * sum(each) / pixels * 1024 * 768 for name, each in best.items()}


def _seconds(detect: Detect, image: Image) -> float:
    start = time.thread_time()
    detect(image, DetectOptions(), None)
    return time.thread_time() - start


def measure(
    detect: Detect, folder: Path, parts: Sequence[str], model: str = "compact"
) -> dict[str, float]:
    """Return the figures of one detector: the parts of `PARTS` that are asked for."""

    def replaced(
        image: Image,
        options: DetectOptions | None = None,
        mask: Region | None = None,
        _check: object = None,
    ) -> Keypoints:
        return detect(image, options or DetectOptions(), mask)

    vars(predictions)["detect"] = replaced
    vars(decoding)["detect"] = replaced
    shown: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as cache:
        for part in parts:
            pipeline: Pipeline = "default" if part.startswith("default") else "raw"
            options = Options(
                threads=1, cache=Path(cache), selection="repeatable", pipeline=pipeline
            )
            models = [m for m in protocol.load_models([model], options) if m.name == model]
            shown |= PARTS[part](models, folder, options)
    return shown


def _views(models: list[Model], folder: Path, options: Options) -> dict[str, float]:
    data = [folder / "sequences"]
    figures = homography.run(models, data, options).models[models[0].name].figures
    names = ("correct", "mma@1px", "mma@3px", "homography_auc@3px")
    shown = {name: float(figures[name]) * (100 if "@" in name else 1) for name in names}
    if options.pipeline == "default":
        return {f"default {name}": value for name, value in shown.items()}
    sequences = homography.read_sequences(data)
    return repeatability(sequences.images, sequences.homographies, options) | shown


def _modal(models: list[Model], folder: Path, options: Options) -> dict[str, float]:
    figures = wide.run(models, [folder / "modal"], options).models[models[0].name].figures
    solved = {f"{kind} solved": figures[f"{kind}: solved_count"] for kind in MODAL_KINDS}
    if options.pipeline == "default":
        return {f"default {name}": value for name, value in solved.items()}
    return modal_raw(models[0], folder, options) | solved


def _pose(models: list[Model], folder: Path, options: Options) -> dict[str, float]:
    figures = pose.run(models, [folder / "scenes"], options).models[models[0].name].figures
    prefix = "default " if options.pipeline == "default" else ""
    shown = {
        f"{prefix}pose AUC@{limit}": 100 * figures[f"pose_auc@{limit}"] for limit in (1, 5, 10)
    }
    return shown | {f"{prefix}inliers": figures["inliers"]}


PARTS = {
    "views": _views,
    "modal": _modal,
    "pose": _pose,
    "default-views": _views,
    "default-modal": _modal,
    "default-pose": _pose,
}
"""What is measured; the first three with raw mutual nearest neighbours."""


def repeatability(
    images: predictions.ImageSet, truths: Mapping[tuple[str, str], Float64], options: Options
) -> dict[str, float]:
    """Return the keypoints found again, their share in the common area, their mean distance."""
    rows = predictions.find_keypoints(images, options)
    xy = {name: np.asarray(found[1:, :2], np.float64) for name, found in rows.items()}
    sizes = {name: found[0, :2] for name, found in rows.items()}
    results = []
    for (one, other), truth in truths.items():
        same = correspondences(truth, xy[one], xy[other], RADIUS_PX)
        gap = apply_homography(truth, xy[one][same[:, 0]]) - xy[other][same[:, 1]]
        common = min(
            _inside(truth, xy[one], sizes[other]),
            _inside(np.asarray(np.linalg.inv(truth)), xy[other], sizes[one]),
        )
        share = 100 * len(same) / max(common, 1)
        results.append((len(same), share, np.linalg.norm(gap, axis=1).mean()))
    return dict(zip(("found", "share %", "distance px"), np.mean(results, 0).tolist(), strict=True))


def modal_raw(model: Model, folder: Path, options: Options) -> dict[str, float]:
    """Return the share found again and the correct raw matches of the registered pairs."""
    pairs, images = wide.read_pairs([folder / "modal"])
    truths = {pair.images: pair.truth for pair in pairs}
    predicted = predictions.predict(model, images, options)
    correct = [
        (transfer_error(truth, *predicted.points(pair)) <= RADIUS_PX).sum()
        for pair, truth in truths.items()
    ]
    share = repeatability(images, truths, options)["share %"]
    return {"modal share %": share, "modal correct": float(np.mean(correct))}


def table_row(name: str, shown: Mapping[str, float]) -> str:
    """Return a row of the table."""
    cells = (f"{v:.3f}" if abs(v) < 10 and v % 1 else f"{v:.1f}" for v in shown.values())
    return f"| {name} | " + " | ".join(cells) + " |"


def _inside(truth: Float64, xy: Float64, size: np.ndarray) -> int:
    moved = apply_homography(truth, xy)
    return int(((moved >= 0) & (moved <= size - 1)).all(axis=1).sum())
