"""Estimate pairs, time and bytes of a run before it starts."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from matchserve.collections import pairs as pairings
from matchserve.collections.collection import Collection
from matchserve.collections.facts import read_facts
from matchserve.collections.pairs.images import PairImage, PairRows
from matchserve.collections.progress import clock_text
from matchserve.collections.scan import ImageFile, scan
from matchserve.collections.shards import Shard, shard_id, shard_path
from matchserve.collections.stages import worker_count
from matchserve.collections.store import FeatureStore
from matchserve.collections.work import describe_images, match_shard
from matchserve.errors import MatchServeError, MissingInput
from matchserve.files import read_file

_SAMPLE = 3


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a run from the start would cost. `pairs_are_exact` is False for pairs by appearance."""

    images: int
    pairs: int
    pairs_are_exact: bool
    seconds: float
    bytes: int
    workers: int

    def text(self) -> str:
        """Return the estimate as text."""
        about = "" if self.pairs_are_exact else "about "
        return (
            f"{self.images} images, {about}{self.pairs} pairs, {clock_text(self.seconds)} with "
            f"{self.workers} worker(s), {self.bytes / 1e6:.0f} MB of features and matches"
        )


def estimate(collection: Collection, pairs: str, workers: int | None) -> Estimate:
    """Describe and match three images of the collection, and extrapolate.

    Raises:
        MissingInput: the folder has no images.
        InvalidParameter: the specification of the pairs is wrong.
    """
    images = scan(collection.folder, exclude=collection.workspace.root).images
    if not images:
        raise MissingInput(f"there are no images in {collection.folder}")
    count, is_exact = _count_pairs(images, pairs)
    used = worker_count(workers, collection.setup.options.max_side)
    places = np.linspace(0, len(images) - 1, _SAMPLE).astype(int)
    sample = [images[place] for place in sorted(set(places.tolist()))]
    image_s, image_bytes, pair_s, pair_bytes = _time_sample(collection, sample)
    return Estimate(
        images=len(images),
        pairs=count,
        pairs_are_exact=is_exact,
        seconds=(image_s * len(images) + pair_s * count) / used,
        bytes=round(image_bytes * len(images) + pair_bytes * count),
        workers=used,
    )


def _count_pairs(images: list[ImageFile], specification: str) -> tuple[int, bool]:
    """Count the pairs; those by appearance are not known before the images are described."""
    is_exact = True

    def unknown(ids: object, count: int) -> PairRows:
        nonlocal is_exact
        is_exact = False
        # Half of the neighbours choose each other, so 20 of each image are 14 pairs an image.
        numbers = np.array(ids, np.int64)
        step = np.arange(1, round(0.7 * min(count, len(images) - 1)) + 1)
        other = (numbers[:, None] + step[None]) % len(images)
        return np.stack([np.repeat(numbers, len(step)), other.ravel()], axis=1)

    parts = pairings.parse(specification)
    needs_positions = any(part.name in ("spatial", "auto") for part in parts)
    candidates = [
        PairImage(number, image.name, _position(image.path) if needs_positions else None)
        for number, image in enumerate(images)
    ]
    found, _ = pairings.choose(candidates, pairings.resolve(parts, candidates), unknown)
    return len(found), is_exact


def _position(path: Path) -> tuple[float, float, float | None] | None:
    try:
        facts = read_facts(read_file(path))
    except MissingInput:
        return None
    return None if facts is None else facts.position


def _time_sample(
    collection: Collection, sample: list[ImageFile]
) -> tuple[float, float, float, float]:
    """Return seconds and bytes of one image, and of one pair."""
    with TemporaryDirectory(prefix="matchserve-") as scratch:
        folder = Path(scratch)
        setup = replace(collection.setup, store=folder / "features", matches=folder / "matches")
        items = [(image.name, image.path) for image in sample]
        describe_images(setup, items[:1])  # loads the model
        for file in folder.rglob("*.npz"):
            file.unlink()
        start = time.perf_counter()
        described = [d for d in describe_images(setup, items) if not d.code]
        image_s = (time.perf_counter() - start) / len(items)
        if not described:
            raise MatchServeError(f"none of {', '.join(i.name for i in sample)} can be read")
        store = FeatureStore(setup.store)
        image_bytes = len(store.path(described[0].key).read_bytes())
        keys = [(described[0].key, other.key) for other in described]
        shard = Shard(shard_id(keys, setup.options), tuple(keys))
        paths = {d.key: dict(items)[d.name] for d in described}
        start = time.perf_counter()
        match_shard(setup, shard, paths)
        pair_s = (time.perf_counter() - start) / len(keys)
        pair_bytes = len(shard_path(setup.matches, shard.id).read_bytes()) / len(keys)
    return image_s, image_bytes, pair_s, pair_bytes
