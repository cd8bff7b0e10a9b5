"""The kinds of jobs: what a client may ask for, and how it is done."""

from __future__ import annotations

import os
import shutil
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from matchserve import defaults
from matchserve.collections import pairs as pairings
from matchserve.collections.cameras import CameraRule
from matchserve.collections.collection import DEFAULT_OPTIONS, Collection
from matchserve.collections.exports import Format, export_to
from matchserve.collections.graph import write_graph
from matchserve.collections.mapping import DEFAULT_SEED
from matchserve.collections.progress import Step
from matchserve.collections.reconstruct import ReconstructOptions, reconstruct, write_report
from matchserve.errors import InvalidParameter
from matchserve.jobs.names import COLLECTION_PATTERN
from matchserve.matcher import Options
from matchserve.types import CollectionVerify
from matchserve.vision.geometry import VerifyOptions

Kind = Literal["match_collection", "reconstruct"]

REPORT_FILES = ("report.json", "report.png", "graph.json")


class JobRequest(BaseModel):
    """The body of a new job: which images, how they are matched, and what is exported."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    kind: Annotated[
        Kind, Field(description="match_collection, or reconstruct, which also makes a 3D model.")
    ]
    collection: Annotated[
        str | None, Field(pattern=COLLECTION_PATTERN, description="Name of an uploaded collection.")
    ] = None
    source: Annotated[
        str | None,
        Field(
            max_length=4096,
            description="Folder on the server, in place of a collection; it must be below one of "
            "the folders that the service may read.",
        ),
    ] = None
    pairs: Annotated[
        str,
        Field(
            max_length=256,
            description="Pairs to match: auto, exhaustive, sequential:N[,loops], retrieval:K, "
            "spatial:K,Dm, or several of these joined by +.",
        ),
    ] = "auto"
    model: Annotated[
        str, Field(max_length=256, description="Model name; empty for the default model.")
    ] = ""
    max_keypoints: Annotated[
        int | None, Field(ge=1, description="Maximum number of keypoints per image.")
    ] = None
    max_side: Annotated[
        int | None,
        Field(ge=0, description="Longest side, in pixels, on which keypoints are found."),
    ] = None
    upright: Annotated[bool, Field(description="Describe keypoints without rotation.")] = False
    verify: Annotated[
        CollectionVerify,
        Field(description="Geometry that the matches of each pair are checked against."),
    ] = "fundamental"
    exports: Annotated[
        list[Format], Field(max_length=4, description="Formats of the results to download.")
    ] = ["colmap"]
    camera: Annotated[CameraRule, Field(description="Which images share a camera.")] = "auto"
    mapper: Annotated[
        Literal["auto", "incremental", "global"], Field(description="COLMAP's mapper.")
    ] = "auto"
    seed: Annotated[
        int, Field(ge=0, le=2**31 - 1, description="Random seed of COLMAP's mapper.")
    ] = DEFAULT_SEED

    @model_validator(mode="after")
    def _check(self) -> JobRequest:
        if (self.collection is None) == (self.source is None):
            raise ValueError("name either a collection or a source")
        if len(set(self.exports)) != len(self.exports):
            raise ValueError("exports has a format twice")
        try:
            parts = pairings.parse(self.pairs)
        except InvalidParameter as error:
            raise ValueError(error.message) from error
        if any(part.name == "list" for part in parts):
            # It would read a file of the server.
            raise ValueError("pairs of a job cannot come from a file")
        return self

    def options(self, max_keypoints: int, max_side: int) -> Options:
        """Return the options of matching; the arguments are those of jobs that give none."""
        return replace(
            DEFAULT_OPTIONS,
            detect=replace(
                DEFAULT_OPTIONS.detect,
                max_keypoints=self.max_keypoints or max_keypoints,
                upright=self.upright,
            ),
            verify=VerifyOptions(self.verify),
            max_side=max_side if self.max_side is None else self.max_side,
        )


@dataclass(frozen=True, slots=True)
class Order:
    """A job as its process gets it: the request, and where everything lies."""

    request: JobRequest
    images: Path
    workspace: Path
    store: Path
    results: Path
    cores: int
    niceness: int = 0
    models_dir: Path | None = None
    provider: str = "auto"
    default_model: str = defaults.MODEL
    max_keypoints: int = defaults.COLLECTION_MAX_KEYPOINTS
    max_side: int = defaults.MAX_SIDE

    def collection(self) -> Collection:
        """Return the collection that the job works on."""
        return Collection(
            self.workspace,
            images=self.images,
            model=self.request.model or self.default_model,
            options=self.request.options(self.max_keypoints, self.max_side),
            store=self.store,
            models_dir=self.models_dir,
            provider=self.provider,
            tiles="never",  # a small file may hold a gigapixel
        )


Run = Callable[[Order, Collection], Iterator[Step]]


def _match(order: Order, collection: Collection) -> Iterator[Step]:
    yield from collection.match(order.request.pairs, workers=order.cores)
    write_report(collection)


def _reconstruct(order: Order, collection: Collection) -> Iterator[Step]:
    request = order.request
    options = ReconstructOptions(
        camera=request.camera, mapper=request.mapper, threads=order.cores, seed=request.seed
    )
    try:
        yield from reconstruct(collection, options, pairs=request.pairs, workers=order.cores)
    finally:
        _publish_report(order, collection)
    _zip_folder(collection.workspace.sparse, order.results / "sparse.zip")


KINDS: dict[Kind, Run] = {"match_collection": _match, "reconstruct": _reconstruct}


def run_job(order: Order) -> Iterator[Step]:
    """Do a job, as far as that was not done before; write its results.

    Raises:
        MatchServeError: the job failed.
    """
    shutil.rmtree(order.results, ignore_errors=True)
    order.results.mkdir(parents=True)
    collection = order.collection()
    yield from KINDS[order.request.kind](order, collection)
    _publish_report(order, collection)
    for name in order.request.exports:
        yield from _export(order, collection, name)


def summary_of(order: Order) -> dict[str, Any]:
    """Return the figures of a finished job and the names of its files."""
    files = sorted(path for path in order.results.iterdir() if path.is_file())
    return {"results": [{"name": path.name, "bytes": path.stat().st_size} for path in files]}


def _export(order: Order, collection: Collection, name: Format) -> Iterator[Step]:
    camera = order.request.camera
    if name == "colmap" and order.request.kind == "reconstruct":
        os.link(collection.workspace.database, order.results / "database.db")
    elif name == "colmap":
        yield from export_to(
            collection, name, order.results / "database.db", camera=camera, workers=order.cores
        )
    elif name == "hloc":
        yield from export_to(collection, name, order.results, camera=camera)
    else:
        folder = order.workspace / f"export-{name}"
        shutil.rmtree(folder, ignore_errors=True)
        yield from export_to(collection, name, folder, camera=camera)
        _zip_folder(folder, order.results / f"{name}.zip")
        shutil.rmtree(folder, ignore_errors=True)


def _publish_report(order: Order, collection: Collection) -> None:
    """Put the report among the results; a link keeps it when the next job writes its own."""
    if not (order.workspace / "report.json").is_file():
        return
    write_graph(collection, order.workspace / "graph.json")
    for name in REPORT_FILES:
        target = order.results / name
        target.unlink(missing_ok=True)
        os.link(order.workspace / name, target)


def _zip_folder(folder: Path, output: Path) -> None:
    """Pack a folder, completely or not at all."""
    temporary = output.with_name(f".{output.name}.partial")
    with zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED, allowZip64=True) as archive:
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                archive.write(path, path.relative_to(folder.parent).as_posix())
    temporary.replace(output)
