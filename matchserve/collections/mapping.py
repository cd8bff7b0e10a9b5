"""Structure from motion by COLMAP: the mapper's options and seed, and its process.

A failed check inside COLMAP aborts the process, and its log goes to a file. Run as a module, this
reads a request from standard input and prints one line for each registered image.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal

from matchserve.collections.progress import Meter, Step
from matchserve.errors import ReconstructionFailed
from matchserve.files import WholeDirectory
from matchserve.libraries import import_pycolmap

Mapper = Literal["incremental", "global"]

_REGISTERED = "registered\n"

MAX_INCREMENTAL = 500
"""Number of images up to which the incremental mapper is the default."""

DEFAULT_SEED = 0
"""Random seed of the mapper; with one thread, the same seed gives the same model."""


@dataclass(frozen=True, slots=True)
class MapperOptions:
    """How COLMAP's mapper runs; `seed` is its random seed.

    `has_two_view_points=False` is COLMAP's default: points observed by only two images are not
    triangulated. `threads` is -1 for one for each processor.
    """

    threads: int = -1
    seed: int = DEFAULT_SEED
    refine_intrinsics: bool = True
    has_two_view_points: bool = False
    extract_colours: bool = False
    min_model_size: int = 3


@dataclass(frozen=True, slots=True)
class MapRequest:
    """What to reconstruct: a database, the folder of its images, and the folder to write."""

    database: Path
    images: Path
    output: Path
    mapper: Mapper
    options: MapperOptions


def run_mapper(request: MapRequest, image_count: int, log: Path) -> Iterator[Step]:
    """Reconstruct in a child process; yield the number of registered images.

    The models are written to `output/0`, `output/1`, ..., the largest first.

    Raises:
        ReconstructionFailed: COLMAP found no model, or its process died.
    """
    meter = Meter("map", image_count)
    yield meter.step()
    with log.open("wb") as errors, _started(errors) as process:
        # Standard input stays open: when it closes, the child ends.
        print(json.dumps(asdict(request), default=str), file=process.stdin, flush=True)
        for line in process.stdout:
            # Images of models that COLMAP gave up are registered again.
            yield meter.step(int(line == _REGISTERED and meter.done < image_count))
    if process.returncode != 0:
        raise ReconstructionFailed(
            f"COLMAP stopped with code {process.returncode}; its log is {log}"
        )
    if not (request.output / "0").is_dir():
        raise ReconstructionFailed("COLMAP registered no images: no pair has enough matches")


@contextmanager
def _started(errors: BinaryIO) -> Iterator[Any]:
    """Start the child process; kill it if the caller stops before its end."""
    with subprocess.Popen(
        [sys.executable, "-m", "matchserve.collections.mapping"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
        text=True,
    ) as process:
        try:
            yield process
            process.wait()
        finally:
            process.kill()


def map_images(request: MapRequest, on_image: Callable[[], None]) -> None:
    """Reconstruct in this process, and write the models when all are complete."""
    pycolmap = import_pycolmap()

    def on_pair() -> None:
        on_image()
        on_image()

    with tempfile.TemporaryDirectory(prefix="matchserve-") as scratch:
        places = (request.database, request.images, Path(scratch))
        if request.mapper == "global":
            models = pycolmap.global_mapping(*places, options=global_options(request.options))
        else:
            models = pycolmap.incremental_mapping(
                *places,
                options=incremental_options(request.options),
                initial_image_pair_callback=on_pair,
                next_image_callback=on_image,
            )
    ranked: list[Any] = largest_first(models)
    shutil.rmtree(request.output, ignore_errors=True)
    with WholeDirectory(request.output) as folder:
        for number, model in enumerate(ranked):
            (folder / str(number)).mkdir()
            model.write(folder / str(number))


def incremental_options(options: MapperOptions) -> Any:
    """Return pycolmap's options of the incremental mapper."""
    pipeline = import_pycolmap().IncrementalPipelineOptions()
    pipeline.min_model_size = options.min_model_size
    pipeline.multiple_models = True
    pipeline.extract_colors = options.extract_colours
    pipeline.num_threads = options.threads
    pipeline.random_seed = options.seed
    pipeline.triangulation.ignore_two_view_tracks = not options.has_two_view_points
    if not options.refine_intrinsics:
        pipeline.ba_refine_focal_length = False
        pipeline.ba_refine_extra_params = False
        pipeline.mapper.abs_pose_refine_focal_length = False
        pipeline.mapper.abs_pose_refine_extra_params = False
    return pipeline


def global_options(options: MapperOptions) -> Any:
    """Return pycolmap's options of the global mapper."""
    pipeline = import_pycolmap().GlobalPipelineOptions()
    if hasattr(pipeline, "min_model_size"):  # before 4.1 there is one model, of any size
        pipeline.min_model_size = options.min_model_size
    pipeline.num_threads = options.threads
    pipeline.random_seed = options.seed
    return pipeline


def largest_first(models: dict[int, Any]) -> list[Any]:
    """Sort reconstructions by their number of images, then of points, most first."""
    return sorted(models.values(), key=lambda m: (-m.num_reg_images(), -m.num_points3D()))


def _main() -> None:
    fields = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    paths = {name: Path(fields[name]) for name in ("database", "images", "output")}
    options = MapperOptions(**fields["options"])
    request = MapRequest(**paths, mapper=fields["mapper"], options=options)

    def on_image() -> None:
        sys.stdout.write(_REGISTERED)
        sys.stdout.flush()

    map_images(request, on_image)


def _end_with_parent() -> None:
    """Wait until the parent closes its end of standard input, then end this process at once."""
    sys.stdin.read()
    os._exit(1)


if __name__ == "__main__":
    _main()
