"""The formats that a collection can be exported to, by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

from matchserve import defaults
from matchserve.collections.cameras import CameraRule
from matchserve.collections.collection import Collection
from matchserve.collections.export_colmap import export_colmap
from matchserve.collections.export_h5 import export_hloc
from matchserve.collections.export_npz import export_npz
from matchserve.collections.export_openmvg import export_openmvg
from matchserve.collections.progress import Step
from matchserve.pipeline.judging import RefineKind

Format = Literal["colmap", "hloc", "npz", "openmvg"]
Export = Callable[..., Iterator[Step]]

EXPORTS: dict[Format, Export] = {
    "colmap": export_colmap,
    "hloc": lambda collection, path, camera: export_hloc(collection, path),
    "npz": lambda collection, path, camera: export_npz(collection, path),
    "openmvg": export_openmvg,
}


def export_to(
    collection: Collection,
    to: Format,
    path: Path,
    *,
    camera: CameraRule = "auto",
    refine: RefineKind = defaults.REFINE,
    workers: int | None = None,
) -> Iterator[Step]:
    """Export a collection; `camera` matters to formats that have cameras.

    For COLMAP, which needs one position for each keypoint, matches are refined first by `workers`
    processes, unless `refine` is "none".

    Raises:
        ProviderUnavailable: a library of the format is not installed.
        StorageDamaged: a result is damaged; `collection match` makes it again.
    """
    if to != "colmap" or refine == "none":
        yield from EXPORTS[to](collection, path, camera=camera)
        return
    yield from collection.refine(workers=workers)
    yield from export_colmap(collection, path, camera=camera, is_refined=True)
