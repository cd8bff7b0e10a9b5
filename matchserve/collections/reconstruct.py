"""From a folder of photographs to a 3D model: match, export to COLMAP, map, report."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from matchserve import defaults
from matchserve.collections.cameras import CameraRule
from matchserve.collections.collection import Collection
from matchserve.collections.exports import export_to
from matchserve.collections.mapping import (
    DEFAULT_SEED,
    MAX_INCREMENTAL,
    Mapper,
    MapperOptions,
    MapRequest,
    run_mapper,
)
from matchserve.collections.picture import draw_report
from matchserve.collections.progress import Step
from matchserve.collections.report import Report, make_report
from matchserve.collections.sources import exceeds
from matchserve.drawing import png_bytes
from matchserve.encoding import to_json
from matchserve.files import write_text_whole, write_whole
from matchserve.libraries import import_pycolmap
from matchserve.limits import LIBRARY_LIMITS
from matchserve.pipeline.judging import RefineKind


@dataclass(frozen=True, slots=True)
class ReconstructOptions:
    """How a matched collection becomes a 3D model."""

    camera: CameraRule = "auto"
    mapper: Literal["auto", "incremental", "global"] = "auto"
    threads: int = -1
    seed: int = DEFAULT_SEED
    refine: RefineKind = defaults.REFINE


def reconstruct(
    collection: Collection,
    options: ReconstructOptions | None = None,
    *,
    pairs: str = "auto",
    workers: int | None = None,
) -> Iterator[Step]:
    """Match a collection and reconstruct it, as far as that was not done before.

    Writes `database.db`, `sparse/0` (the largest model, in COLMAP's format), `report.json` and
    `report.png` to the workspace.

    Raises:
        ProviderUnavailable: pycolmap is not installed.
        ReconstructionFailed: COLMAP found no model.
        MatchServeError: matching failed, as `Collection.match` says.
    """
    import_pycolmap()  # before hours of matching
    options = options or ReconstructOptions()
    yield from collection.match(pairs, workers=workers)
    place = collection.workspace
    stamp_file, stamp = place.root / "reconstructed.txt", _stamp(collection, options)
    try:
        if not _is_current(stamp_file, stamp, place.sparse):
            yield from export_to(
                collection, "colmap", place.database, camera=options.camera,
                refine=options.refine, workers=workers,
            )  # fmt: skip
            yield from _map(collection, options)
            write_text_whole(stamp_file, stamp)
    finally:
        # Also after a failure: the view graph shows its reason.
        write_report(collection)


def write_report(collection: Collection) -> Report:
    """Write `report.json` and `report.png` to the workspace."""
    report = make_report(collection)
    place = collection.workspace
    write_whole(place.root / "report.json", to_json(report.fields(), indent=True) + b"\n")
    write_whole(place.root / "report.png", png_bytes(draw_report(report, place.sparse)))
    return report


def _map(collection: Collection, options: ReconstructOptions) -> Iterator[Step]:
    place = collection.workspace
    rows = [row for row in collection.images() if row.state == "described"]
    images = len(rows)
    # COLMAP reads whole images for the colours of points.
    has_large = any(r.facts is not None and exceeds(r.facts.size, LIBRARY_LIMITS) for r in rows)
    automatic: Mapper = "incremental" if images <= MAX_INCREMENTAL else "global"
    request = MapRequest(
        database=place.database.absolute(),
        images=collection.folder.absolute(),
        output=place.sparse.absolute(),
        mapper=automatic if options.mapper == "auto" else options.mapper,
        options=MapperOptions(
            threads=options.threads, seed=options.seed, extract_colours=not has_large
        ),
    )
    yield from run_mapper(request, images, place.root / "mapping.log")


def _stamp(collection: Collection, options: ReconstructOptions) -> str:
    """Return a text that changes with anything that the 3D model depends on."""
    parts = {
        "pycolmap": import_pycolmap().__version__,
        "options": asdict(options),
        "images": sorted((r.name, r.feature_key) for r in collection.images()),
        "pairs": hashlib.sha256(collection.pairs().tobytes()).hexdigest(),
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _is_current(file: Path, stamp: str, sparse: Path) -> bool:
    try:
        return file.read_text(encoding="ascii") == stamp and (sparse / "0").is_dir()
    except OSError:
        return False
