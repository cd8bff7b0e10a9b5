"""Reconstruct scenes hidden among unrelated photographs from retrieved pairs, and from all pairs.

    python docs/research/measure_retrieval_pairs.py --work /tmp/hidden \\
        --photos train/photos --half 1 SCENE...

For each scene, `all` matches all pairs of its images alone. `hidden` chooses `retrieval:20` among
its images and the photographs together, matches those pairs that have an image of the scene, and
shows the model that has most of them. Pairs of two photographs are not matched, to save time.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matchserve import Collection
from training.data.images import list_images
from training.retrieval.described import half_of

HIDDEN = "scene"
"""Folder of the scene's images among the photographs."""


@dataclass(frozen=True, slots=True)
class Figures:
    """A model of a scene: its registered images, those of other pictures, and its points."""

    registered: int
    strangers: int
    points: int
    track: float
    error_px: float

    def row(self, scene: str, pairs: str, images: int) -> str:
        """Return one row of the table."""
        cells = [
            scene, pairs, f"{self.registered} / {images}", self.strangers, self.points,
            f"{self.track:.2f}", f"{self.error_px:.2f}",
        ]  # fmt: skip
        return "| " + " | ".join(map(str, cells)) + " |"


def reconstruct(images: Path, output: Path, store: Path, pairs: str) -> None:
    """Reconstruct a folder with the command line and the incremental mapper."""
    command = ["reconstruct", images, "-o", output, "--store", store, "--pairs", pairs]
    command += ["--mapper", "incremental"]
    done = subprocess.run([sys.executable, "-m", "matchserve", *map(str, command)], check=False)  # noqa: S603
    if done.returncode not in (0, 65):  # 65: some files were not used
        sys.exit(f"matchserve reconstruct {images} failed")


def retrieved_pairs(images: Path, output: Path, store: Path) -> Path:
    """Choose pairs of all images; return a file of those that have an image of the scene."""
    collection = Collection(output, images=images, store=store)
    for step in collection.match("retrieval:20"):
        if step.stage == "match":
            break
    names = {row.id: row.name for row in collection.images()}
    pairs = [(names[one], names[other]) for one, other in collection.pairs()[:, :2].tolist()]
    wanted = [p for p in pairs if any(name.startswith(f"{HIDDEN}/") for name in p)]
    path = output / "wanted.txt"
    path.write_text("".join(f"{one} {other}\n" for one, other in wanted), encoding="utf-8")
    own = sum(all(name.startswith(f"{HIDDEN}/") for name in p) for p in wanted)
    print(f"{len(pairs)} pairs, {len(wanted)} with the scene, {own} within it", file=sys.stderr)  # noqa: T201
    return path


def figures(sparse: Path, prefix: str) -> Figures:
    """Return the figures of the model that has most images below a folder."""
    import pycolmap

    best: tuple[int, Any] | None = None
    for folder in sparse.iterdir():
        model = pycolmap.Reconstruction(folder)
        names = [model.image(number).name for number in model.reg_image_ids()]
        own = sum(name.startswith(prefix) for name in names)
        if best is None or own > best[0]:
            best = (own, model)
    if best is None:
        return Figures(0, 0, 0, 0.0, 0.0)
    own, model = best
    return Figures(
        own, model.num_reg_images() - own, model.num_points3D(),
        model.compute_mean_track_length(), model.compute_mean_reprojection_error(),
    )  # fmt: skip


def hide(scene: Path, photos: list[Path], folder: Path) -> None:
    """Copy the images of a scene and the photographs to one folder."""
    if folder.is_dir():
        return
    shutil.copytree(scene, folder / HIDDEN)
    (folder / "photos").mkdir()
    for number, photo in enumerate(photos):
        shutil.copyfile(photo, folder / "photos" / f"{number:04d}{photo.suffix}")


def main() -> None:
    """Measure all scenes and print the table; finished runs are kept in the work folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scenes", nargs="+", type=Path)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--photos", type=Path, required=True)
    parser.add_argument("--half", type=int, choices=(0, 1))
    arguments = parser.parse_args()
    photos = list(half_of([arguments.photos], arguments.half).values())
    store = arguments.work / "features"
    header = "scene | pairs | registered | others | points | track | error px"
    print(f"{len(photos)} photographs\n\n| {header} |\n|{'---|' * 7}", flush=True)  # noqa: T201
    for scene in arguments.scenes:
        work = arguments.work / scene.name
        images = scene / "images" if (scene / "images").is_dir() else scene
        hide(images, photos, work / "mixed")
        reconstruct(images, work / "all", store, "exhaustive")
        pairs_file = retrieved_pairs(work / "mixed", work / "hidden", store)
        reconstruct(work / "mixed", work / "hidden", store, f"list:{pairs_file}")
        count = len(list_images([images]))
        for pairs, prefix in (("all", ""), ("hidden", f"{HIDDEN}/")):
            row = figures(work / pairs / "sparse", prefix).row(scene.name, pairs, count)
            print(row, flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
