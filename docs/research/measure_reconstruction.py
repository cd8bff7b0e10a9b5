"""Reconstruct scenes with matchserve and with COLMAP's SIFT, and print one table.

    python docs/research/measure_reconstruction.py --work /tmp/measure SCENE...

A scene is a folder of images, or one with `images/` and known cameras beside it. Both pipelines
match all pairs and run COLMAP's incremental mapper with the same options; each runs in its own
process with as many threads as there are processors. Times are CPU seconds of all its processes,
which do not depend on what else the machine does. Finished scenes are kept in the work folder.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from matchserve.collections.mapping import MapperOptions, MapRequest, map_images
from matchserve.collections.report import model_summaries
from training.errors import DataError
from training.evaluation.benchmarks.sfm import centre_error
from training.evaluation.cameras import find_scenes

PIPELINES = ("matchserve", "colmap-sift", "matchserve-2048", "matchserve-verified-by-colmap")


def images_of(scene: Path) -> Path:
    """Return the folder of a scene's images."""
    return scene / "images" if (scene / "images").is_dir() else scene


def run_matchserve(scene: Path, output: Path, pipeline: str) -> None:
    """Reconstruct a scene with our command line."""
    command = ["reconstruct", images_of(scene), "-o", output]
    command += ["--max-keypoints", 2048] if pipeline.endswith("2048") else []
    command += ["--verify-with", "colmap" if pipeline.endswith("by-colmap") else "matchserve"]
    command += ["--pairs", "exhaustive", "--mapper", "incremental"]
    subprocess.run([sys.executable, "-m", "matchserve", *map(str, command)], check=True)  # noqa: S603


def run_colmap(scene: Path, output: Path) -> None:
    """Reconstruct a scene with COLMAP's own features, matcher and verification."""
    import pycolmap

    output.mkdir(parents=True)
    database = output / "database.db"
    images = images_of(scene)
    pycolmap.extract_features(database, images, camera_mode=pycolmap.CameraMode.SINGLE)
    pycolmap.match_exhaustive(database)
    options = MapperOptions(extract_colours=True)
    request = MapRequest(database, images, output / "sparse", "incremental", options)
    map_images(request, lambda: None)


def measure(scene: Path, pipeline: str, output: Path) -> dict[str, Any]:
    """Reconstruct a scene in a child process, and return its figures."""
    shutil.rmtree(output, ignore_errors=True)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, __file__, "--one", pipeline, "--work", str(output), str(scene)]
    subprocess.run(command, check=False)  # noqa: S603
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    models = model_summaries(output / "sparse")
    best = models[0] if models else None
    return {
        "scene": scene.name,
        "pipeline": pipeline,
        "images": sum(f.suffix.lower() in (".jpg", ".png") for f in images_of(scene).iterdir()),
        "registered": best.registered if best else 0,
        "points": best.points if best else 0,
        "track": best.track_length if best else 0.0,
        "error_px": best.error_px if best else 0.0,
        "centre_error": _centre_error(scene, output / "sparse" / "0"),
        "cpu_s": round(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 1),
    }


def _centre_error(scene: Path, model: Path) -> float | None:
    import pycolmap

    try:
        (views,) = find_scenes([scene]).values()
    except DataError:
        return None
    if not (model / "images.bin").is_file():
        return None
    found = pycolmap.Reconstruction(model)
    images = [found.image(i) for i in found.reg_image_ids()]
    known = {Path(name).stem: view for name, view in views.items()}
    return centre_error({Path(i.name).stem: i.projection_center() for i in images}, known)


def row(figures: dict[str, Any]) -> str:
    """Return one row of the table."""
    error = figures["centre_error"]
    cells = [
        figures["scene"], figures["pipeline"],
        f"{figures['registered']} / {figures['images']}", figures["points"],
        f"{figures['track']:.2f}", f"{figures['error_px']:.2f}",
        "-" if error is None else f"{1000 * error:.1f}", f"{figures['cpu_s']:.0f}",
    ]  # fmt: skip
    return "| " + " | ".join(map(str, cells)) + " |"


def main() -> None:
    """Measure all scenes and print the table; with `--one`, run a single pipeline."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scenes", nargs="+", type=Path)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--pipelines", nargs="+", choices=PIPELINES, default=PIPELINES[:2])
    parser.add_argument("--one", choices=PIPELINES)
    arguments = parser.parse_args()
    if arguments.one == "colmap-sift":
        run_colmap(arguments.scenes[0], arguments.work)
        return
    if arguments.one:
        run_matchserve(arguments.scenes[0], arguments.work, arguments.one)
        return
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    header = "scene | pipeline | registered | points | track | error px | centres mm | CPU s"
    print(f"| {header} |\n|{'---|' * 8}", flush=True)  # noqa: T201
    for scene in arguments.scenes:
        for pipeline in arguments.pipelines:
            output = arguments.work / f"{scene.name}-{pipeline}"
            kept = arguments.work / f"{scene.name}-{pipeline}.json"
            if not kept.is_file():
                figures = measure(scene, pipeline, output)
                kept.write_text(json.dumps(figures), encoding="utf-8")
            print(row(json.loads(kept.read_text(encoding="utf-8"))), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
