"""Structure from motion by pycolmap, with our keypoints and descriptors.

A workspace directory holds the files of one scene:

    features.npz    keypoints of every image (descriptors are not stored)
    database.db     COLMAP's database: cameras, keypoints, matches, two-view geometries
    sparse/         the reconstruction, if there is one
    done.json       written last, with the options; a workspace of other options is rebuilt

Cameras and coordinates are those of `matchserve.collections.colmap`, the mapper's options and its
seed those of `matchserve.collections.mapping`.
"""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pycolmap
from numpy.typing import NDArray

from matchserve.collections.colmap import guessed_camera, read_model, write_image
from matchserve.collections.mapping import (
    DEFAULT_SEED,
    MapperOptions,
    incremental_options,
    largest_first,
)
from matchserve.files import write_text_whole
from matchserve.models.registry import load_descriptor
from matchserve.threads import off_main_thread
from matchserve.types import Features, Keypoints
from matchserve.vision.keypoints import DetectOptions, detect
from matchserve.vision.matching import MatchOptions, mutual_nn
from training.data.images import read_image

# Covisible images are found with the strongest keypoints only, at a hundredth of the cost.
_PRESELECTION_KEYPOINTS = 1024
_MIN_PRESELECTION_MATCHES = 10


@dataclass(frozen=True, slots=True)
class SfmOptions:
    """How a scene is reconstructed.

    Each image is matched with at most `max_partners` others, those with most preliminary matches.
    """

    model: str = "rootsift"
    max_keypoints: int = 6144
    max_side: int = 1600
    ratio: float | None = 0.85
    max_partners: int = 14
    seed: int = DEFAULT_SEED
    threads: int = 1


@dataclass(frozen=True, slots=True, eq=False)
class Scene:
    """The result of a reconstruction.

    `keypoints` by image name are in the order of the 2D points of the reconstruction; `matches` by
    pair of names are geometrically verified; `model` is None if no image registered.
    """

    keypoints: Mapping[str, Keypoints]
    matches: Mapping[tuple[str, str], NDArray[np.int64]]
    model: Any | None

    @property
    def registered(self) -> list[str]:
        """The names of the images that have a pose."""
        if self.model is None:
            return []
        return sorted(self.model.image(i).name for i in self.model.reg_image_ids())


def reconstruct(images: Mapping[str, Path], workspace: Path, options: SfmOptions) -> Scene:
    """Reconstruct one scene, or read the result of an earlier run from `workspace`.

    Raises:
        DataError: an image cannot be read.
    """
    stamp = {"images": sorted(images), "options": asdict(options)}
    if not _is_done(workspace, stamp):
        shutil.rmtree(workspace, ignore_errors=True)
        workspace.mkdir(parents=True)
        features = _describe(images, options)
        write_keypoints(workspace / "features.npz", {n: f.keypoints for n, f in features.items()})
        build_database(workspace / "database.db", features, options)
        run_mapper(workspace, options)
        write_text_whole(workspace / "done.json", json.dumps(stamp))
    return read_scene(workspace)


def read_scene(workspace: Path) -> Scene:
    """Read a finished workspace."""
    keypoints = read_keypoints(workspace / "features.npz")
    with pycolmap.Database.open(workspace / "database.db") as database:
        names = {image.image_id: image.name for image in database.read_all_images()}
        ids, geometries = database.read_two_view_geometries()
    matches = {}
    for pair_id, geometry in zip(ids, geometries, strict=True):
        one, other = pycolmap.pair_id_to_image_pair(pair_id)
        if len(geometry.inlier_matches):
            matches[names[one], names[other]] = np.asarray(geometry.inlier_matches, np.int64)
    return Scene(keypoints, matches, read_model(workspace / "sparse"))


def build_database(
    path: Path,
    features: Mapping[str, Features],
    options: SfmOptions,
    cameras: Mapping[str, Any] | None = None,
    matches: Mapping[tuple[str, str], NDArray[np.int32]] | None = None,
) -> None:
    """Match all covisible pairs and write the matches with their verified geometry.

    `cameras` are pycolmap cameras with known intrinsics by image name. Without them, all images of
    one size share a camera of guessed focal length. `matches` by pair are written if given.
    """
    with pycolmap.Database.open(path) as database:
        ids = _write_images(database, features, cameras)
        matched = []
        found = _mutual_matches(features, options) if matches is None else matches.items()
        for (one, other), pairs in found:
            if len(pairs) >= 8:
                database.write_matches(ids[one], ids[other], pairs.astype(np.uint32))
                matched.append(f"{one} {other}")
    listing = path.with_suffix(".pairs.txt")
    listing.write_text("\n".join(matched) + "\n", encoding="utf-8")
    verify = pycolmap.TwoViewGeometryOptions()
    verify.ransac.random_seed = options.seed
    pycolmap.verify_matches(path, listing, options=verify)


def _mutual_matches(
    features: Mapping[str, Features], options: SfmOptions
) -> Iterator[tuple[tuple[str, str], NDArray[np.int32]]]:
    """Yield the mutual nearest neighbours (M, 2) of covisible pairs."""
    rule = MatchOptions(ratio=options.ratio)
    for one, other in covisible_pairs(features, options):
        pairs = mutual_nn(features[one].descriptors, features[other].descriptors, rule).pairs
        yield (one, other), pairs


def covisible_pairs(features: Mapping[str, Features], options: SfmOptions) -> list[tuple[str, str]]:
    """Return the pairs of images to match: all of a small scene, else those most likely covisible.

    For each image, the `max_partners` images with most preliminary matches are taken.
    """
    names = list(features)
    all_pairs = list(itertools.combinations(names, 2))
    if len(names) <= options.max_partners + 1:
        return all_pairs
    rule = MatchOptions(ratio=0.85)
    strongest = {name: f.descriptors[:_PRESELECTION_KEYPOINTS] for name, f in features.items()}
    votes = {
        (one, other): len(mutual_nn(strongest[one], strongest[other], rule))
        for one, other in all_pairs
    }
    chosen = set()
    for name in names:
        own = sorted((p for p in all_pairs if name in p), key=lambda p: -votes[p])
        chosen |= {p for p in own[: options.max_partners] if votes[p] >= _MIN_PRESELECTION_MATCHES}
    return [pair for pair in all_pairs if pair in chosen]


def run_mapper(
    workspace: Path,
    options: SfmOptions,
    *,
    refine_intrinsics: bool = True,
    has_two_view_points: bool = True,
) -> Any | None:
    """Reconstruct from `workspace/database.db`; write and return the largest model, if any.

    `has_two_view_points=False` is COLMAP's default: points observed by only two images are not
    triangulated.
    """
    pipeline = incremental_options(
        MapperOptions(
            threads=options.threads,
            seed=options.seed,
            refine_intrinsics=refine_intrinsics,
            has_two_view_points=has_two_view_points,
        )
    )
    output = workspace / "models"
    output.mkdir(exist_ok=True)
    models = pycolmap.incremental_mapping(
        workspace / "database.db", workspace, output, options=pipeline
    )
    shutil.rmtree(output, ignore_errors=True)
    if not models:
        return None
    best = largest_first(models)[0]
    sparse = workspace / "sparse"
    sparse.mkdir(exist_ok=True)
    best.write(sparse)
    return best


def write_keypoints(path: Path, keypoints: Mapping[str, Keypoints]) -> None:
    """Write keypoints by image name."""
    arrays = {
        name: np.column_stack([k.xy, k.sigma, k.angle, k.score]) for name, k in keypoints.items()
    }
    np.savez(path, **arrays)  # type: ignore[arg-type]


def read_keypoints(path: Path) -> dict[str, Keypoints]:
    """Read a file of `write_keypoints`."""
    with np.load(path, allow_pickle=False) as kept:
        rows = {name: kept[name] for name in kept.files}
    return {name: Keypoints(r[:, :2], r[:, 2], r[:, 3], r[:, 4]) for name, r in rows.items()}


def _is_done(workspace: Path, stamp: dict[str, Any]) -> bool:
    try:
        kept = json.loads((workspace / "done.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return bool(kept == stamp)


def _describe(images: Mapping[str, Path], options: SfmOptions) -> dict[str, Features]:
    descriptor = load_descriptor(options.model, threads=options.threads)
    detector = DetectOptions(
        max_keypoints=options.max_keypoints, duplicates=True, selection="contrast"
    )
    described = {}
    for name, path in images.items():
        image = read_image(path, max_side=options.max_side)
        keypoints = off_main_thread(detect, image, detector)
        rows = descriptor.describe(image, keypoints)
        described[name] = Features(keypoints, rows, options.model, image.size)
    return described


def _write_images(
    database: Any, features: Mapping[str, Features], cameras: Mapping[str, Any] | None
) -> dict[str, int]:
    shared: dict[tuple[int, int], int] = {}
    ids = {}
    for name, described in features.items():
        size = described.size
        if cameras is not None:
            camera_id = database.write_camera(cameras[name])
        elif size in shared:
            camera_id = shared[size]
        else:
            camera_id = shared[size] = database.write_camera(guessed_camera(size))
        ids[name] = write_image(database, name, camera_id, described.keypoints)
    return ids
