"""`Collection`: describe and match all images of a folder; continue where a run was stopped."""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from os import PathLike, fspath
from pathlib import Path
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter

from matchserve import defaults
from matchserve.collections import stages
from matchserve.collections.ledger import ImageRow, Ledger
from matchserve.collections.parts import Part
from matchserve.collections.pool import Pool, WorkerPool
from matchserve.collections.progress import Step
from matchserve.collections.refining import read_refined
from matchserve.collections.retrieval import retriever_of
from matchserve.collections.scan import Scan, scan
from matchserve.collections.shards import PairResult, Verifier, read_results, shard_path
from matchserve.collections.sources import Tiling
from matchserve.collections.stages import Counts, Run
from matchserve.collections.work import Setup, load_features
from matchserve.collections.workspace import Workspace
from matchserve.errors import InvalidParameter, MissingInput, StorageDamaged, WorkspaceMismatch
from matchserve.libraries import import_pycolmap
from matchserve.matcher import Options
from matchserve.models.card import ModelCard
from matchserve.models.registry import load_descriptor
from matchserve.objects import Place, as_place
from matchserve.pipeline.judging import JudgeOptions
from matchserve.types import Features
from matchserve.vision.consistency import RefinedPair
from matchserve.vision.geometry import VerifyOptions
from matchserve.vision.keypoints import DetectOptions

DEFAULT_OPTIONS = Options(
    detect=DetectOptions(max_keypoints=defaults.COLLECTION_MAX_KEYPOINTS, further_orientations=0.0),
    exif="ignore",
    verify=VerifyOptions(),
    judge=JudgeOptions(min_confidence=defaults.COLLECTION_MIN_CONFIDENCE),
    fast=True,
)
"""Keypoints are found in the raster as stored, because that is what COLMAP reads."""

_OPTIONS = TypeAdapter(Options)


class Collection:
    """A folder of images and the workspace of its results.

        flight = Collection("flight.work", images="flight/")
        for step in flight.match(pairs="sequential:10"):
            print(step.stage, step.done, step.total, step.eta_s)
        flight.result("a.jpg", "b.jpg").rows  # indices of matching keypoints

    With more than one worker, call `match` under `if __name__ == "__main__":`, as every program
    that starts processes must.
    """

    def __init__(  # noqa: PLR0913  independent choices, all but two with a default
        self,
        workspace: str | PathLike[str],
        *,
        images: str | PathLike[str],
        model: str = defaults.MODEL,
        options: Options = DEFAULT_OPTIONS,
        store: str | PathLike[str] | None = None,
        models_dir: Path | None = None,
        provider: str = "auto",
        verify_with: Verifier = "matchserve",
        tiles: Tiling = "auto",
    ) -> None:
        """Name the workspace and the folder of images; nothing is read or written yet.

        The workspace is a folder, or an address in an object store such as `s3://bucket/flight`.
        `store` is a place of features that several collections may share; by default the
        workspace has its own. With `verify_with="colmap"`, COLMAP chooses and estimates the
        geometry of each pair. Images above the limits are described at full resolution in windows;
        with `tiles="all"` all images are, with "never" they are refused.

        Raises:
            InvalidParameter: COLMAP cannot estimate the geometry of `options.verify`.
        """
        _check_verifier(verify_with, options)
        self.workspace = Workspace.at(workspace)
        self.folder = Path(images)
        features = self.workspace.features if store is None else as_place(fspath(store))
        self.setup = Setup(
            _absolute(features), _absolute(self.workspace.matches), model, options, models_dir,
            provider, verify_with, tiles,
        )  # fmt: skip
        self.counts = Counts()
        self.scan = Scan()

    @classmethod
    def open(cls, workspace: str | PathLike[str]) -> Collection:
        """Open the workspace of a collection that was matched before.

        Raises:
            MissingInput: there is no such workspace.
        """
        place = Workspace.at(workspace)
        place.check_exists()
        with closing(Ledger(place.ledger, is_read_only=True)) as ledger:
            text = ledger.setup()
        if text is None:
            raise MissingInput(f"{place.root} holds no images yet; run its command again")
        fields = json.loads(text)
        models_dir = fields["models_dir"]
        return cls(
            workspace,
            images=fields["folder"],
            model=fields["model"],
            options=_OPTIONS.validate_python(fields["options"]),
            store=fields["store"],
            models_dir=None if models_dir is None else Path(models_dir),
            verify_with=fields.get("verify_with", "matchserve"),
            tiles=fields.get("tiles", "auto"),
        )

    def match(
        self,
        pairs: str = "auto",
        *,
        workers: int | None = None,
        part: Part | None = None,
        dask: str | None = None,
    ) -> Generator[Step, None, None]:
        """Describe all images and match the chosen pairs, as far as that was not done before.

        With `part`, match only the shards of one part of a run on several machines. `dask` is the
        address of a Dask scheduler whose workers do the work.

        Raises:
            InvalidParameter: the specification of the pairs is wrong.
            MissingInput: the folder of images cannot be read, or has no images.
            WorkspaceError: the workspace is full, in use, or made with other options.
            WorkerLost: worker processes were killed again and again.
            ProviderUnavailable: COLMAP is to verify the matches, and pycolmap is not installed.
        """
        if self.setup.verifier == "colmap":
            import_pycolmap()  # before hours of describing
        self.scan = scan(self.folder, exclude=self.workspace.root)
        if not self.scan.images:
            raise MissingInput(f"there are no images in {self.folder}")
        pool = self._pool(workers, dask)
        place = replace(self.workspace, part=part)
        with place.locked(), closing(Ledger(place.ledger)) as ledger, closing(pool):
            card = self._check_setup(ledger)
            run = Run(ledger, self.setup, self.scan, pool, part)
            self.counts = run.counts
            yield from stages.describe(run)
            yield from stages.plan(run, pairs, retriever_of(run, card))
            yield from stages.match(run)

    def refine(self, *, workers: int | None = None) -> Generator[Step, None, None]:
        """Refine the points of verified matches to a fraction of a pixel, where not done before.

        Raises:
            WorkspaceError: the workspace is full, in use, or an image has changed.
            WorkerLost: worker processes were killed again and again.
        """
        self.scan = scan(self.folder, exclude=self.workspace.root)
        pool = self._pool(workers, None)
        place = self.workspace
        with place.locked(), closing(Ledger(place.ledger)) as ledger, closing(pool):
            yield from stages.refine(Run(ledger, self.setup, self.scan, pool))

    def refined_pairs(self) -> Iterator[RefinedPair]:
        """Yield the verified pairs, by the names of their images, with their refined points.

        Raises:
            StorageDamaged: they are absent or damaged; `refine` makes them again.
        """
        with self._ledger() as ledger:
            rows = {row.id: row for row in ledger.images()}
            for shard, _ in ledger.shards("done"):
                refined = read_refined(self.setup, shard, self._read_shard(shard))
                by_keys = {pair.images: pair for pair in refined}
                for one, other in ledger.shard_pairs(shard):
                    first, second = rows[one], rows[other]
                    pair = by_keys.get((first.feature_key, second.feature_key))
                    if pair is not None:
                        yield replace(pair, images=(first.name, second.name))

    def _pool(self, workers: int | None, dask: str | None) -> Pool:
        if dask is None:
            return WorkerPool(stages.worker_count(workers, self.setup.options.max_side))
        from matchserve.collections.dask_pool import DaskPool

        return DaskPool(dask)

    def images(self) -> list[ImageRow]:
        """Return the images that the last run found, in the order they were added."""
        with self._ledger() as ledger:
            return [row for row in ledger.images() if row.state != "gone"]

    def image(self, name: str) -> ImageRow | None:
        """Return one image that the last run found, or None."""
        with self._ledger() as ledger:
            row = ledger.image(name)
        return None if row is None or row.state == "gone" else row

    def pairs(self) -> NDArray[np.int64]:
        """Return all pairs, (P, 6): image0, image1, reasons, matches, inliers, is_verified.

        Images are given by `ImageRow.id`. The last three are -1 until a pair was matched.
        """
        with self._ledger() as ledger:
            return ledger.pairs()

    def features(self, row: ImageRow) -> Features:
        """Return the features of an image; describe it again if they are damaged.

        Raises:
            StorageDamaged: they are lost, and the image has changed since.
        """
        return load_features(self.setup, row.feature_key, self.folder / row.name)

    def results(self) -> Iterator[tuple[str, str, PairResult]]:
        """Yield the names and the result of every matched pair.

        Raises:
            StorageDamaged: a result is damaged; the same command makes it again.
        """
        with self._ledger() as ledger:
            rows = {row.id: row for row in ledger.images()}
            for shard, _ in ledger.shards("done"):
                wanted = ledger.shard_pairs(shard)
                stored = {r.keys: r for r in self._read_shard(shard)} if wanted else {}
                for first, second in wanted:
                    result = stored[rows[first].feature_key, rows[second].feature_key]
                    yield rows[first].name, rows[second].name, result

    def result(self, name0: str, name1: str) -> PairResult:
        """Return the result of one pair.

        Raises:
            InvalidParameter: the pair was not matched in this order.
        """
        with self._ledger() as ledger:
            rows = {row.name: row for row in ledger.images()}
            if name0 not in rows or name1 not in rows:
                raise InvalidParameter(f"{name0} or {name1} is not in the collection")
            shard = ledger.shard_of(rows[name0].id, rows[name1].id)
        if shard is None:
            raise InvalidParameter(f"{name0} and {name1} were not matched in this order")
        wanted = (rows[name0].feature_key, rows[name1].feature_key)
        return next(r for r in self._read_shard(shard) if r.keys == wanted)

    def _read_shard(self, shard: str) -> list[PairResult]:
        path = shard_path(self.setup.matches, shard)
        try:
            return read_results(path)
        except StorageDamaged as error:
            # Without the file, the next run knows that the pairs must be matched again.
            path.unlink(missing_ok=True)
            raise StorageDamaged(f"{error.message}; run `collection match` again") from error

    @contextmanager
    def _ledger(self) -> Iterator[Ledger]:
        """Open the ledger to read."""
        with closing(Ledger(self.workspace.ledger, is_read_only=True)) as ledger:
            yield ledger

    def _check_setup(self, ledger: Ledger) -> ModelCard:
        """Record the model and options of a new workspace, or compare them with the recorded ones.

        Returns the card of the model.

        Raises:
            WorkspaceMismatch: they differ.
        """
        setup = self.setup
        card = load_descriptor(
            setup.model, models_dir=setup.models_dir, provider=setup.provider, threads=1
        ).card
        fields = self._fields(card)
        text = ledger.setup()
        known: dict[str, Any] = fields if text is None else json.loads(text)
        known = {"verify_with": "matchserve", "tiles": "auto"} | known  # of earlier versions
        for name in ("model", "fingerprint", "options", "verify_with", "tiles"):
            if known[name] != fields[name]:
                raise WorkspaceMismatch(
                    f"{self.workspace.root} was made with another {name}: "
                    f"{_difference(known[name], fields[name])}; name another output folder"
                )
        if known != fields or text is None:
            ledger.set_setup(json.dumps(fields))
        return card

    def _fields(self, card: ModelCard) -> dict[str, Any]:
        setup = self.setup
        return {
            "folder": str(self.folder.absolute()),
            "model": setup.model,
            "fingerprint": card.fingerprint,
            "options": _OPTIONS.dump_python(setup.options, mode="json"),
            "verify_with": setup.verifier,
            "tiles": "all" if setup.tiles == "all" else "auto",
            "store": str(setup.store),
            "models_dir": None if setup.models_dir is None else str(setup.models_dir),
        }


def _absolute(place: Place) -> Place:
    """Return a place that means the same in a process with another current directory."""
    return place.absolute() if isinstance(place, Path) else place


def _check_verifier(verifier: Verifier, options: Options) -> None:
    if verifier not in get_args(Verifier):
        raise InvalidParameter(
            f"verify_with is {verifier!r}, not one of {', '.join(get_args(Verifier))}"
        )
    if verifier == "colmap" and options.verify.kind not in (None, defaults.VERIFY):
        raise InvalidParameter(
            f"COLMAP chooses the geometry itself; verify {options.verify.kind!r} needs "
            "verify_with 'matchserve'"
        )


def _difference(known: Any, wanted: Any) -> str:
    """Return the first difference of two values as text."""
    if isinstance(known, dict) and isinstance(wanted, dict):
        for name in wanted:
            if known.get(name) != wanted[name]:
                return f"{name} {_difference(known.get(name), wanted[name])}"
    return f"{known}, not {wanted}"
