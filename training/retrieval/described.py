"""Describe sets of images with the stores of collections, so that no image is described twice."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from matchserve.collections.pool import WorkerPool
from matchserve.collections.store import FeatureStore
from matchserve.collections.work import Setup, describe_images
from matchserve.matcher import Options
from matchserve.types import Features
from matchserve.vision.keypoints import DetectOptions
from training.data.images import list_images
from training.data.parallel import progress
from training.errors import DataError

MAX_SIDE = 1024
_IMAGES_PER_TASK = 8


def setup_of(model: str, store: Path, keypoints: int) -> Setup:
    """Return the setup of a model: images with a longer side of at most 1024 pixels."""
    options = Options(detect=DetectOptions(max_keypoints=keypoints), max_side=MAX_SIDE)
    return Setup(store, store / "matches", model, options)


def half_of(photos: list[Path], half: int | None) -> dict[str, Path]:
    """Return all photographs of folders, or every second one, starting with number `half`."""
    images = list_images(photos)
    return images if half is None else dict(list(images.items())[half::2])


def describe_all(setup: Setup, images: Mapping[str, Path], workers: int) -> dict[str, Features]:
    """Describe images by name.

    Raises:
        DataError: an image cannot be read.
    """
    items = list(images.items())
    starts = range(0, len(items), _IMAGES_PER_TASK)
    tasks = [(setup, items[start : start + _IMAGES_PER_TASK]) for start in starts]
    pool = WorkerPool(workers)
    keys = {}
    try:
        results = progress(pool.run(describe_images, tasks), total=len(tasks), label="describe")
        for _, receipts in results:
            for receipt in receipts:
                if receipt.code:
                    raise DataError(f"{images[receipt.name]}: {receipt.detail}")
                keys[receipt.name] = receipt.key
    finally:
        pool.close()
    store = FeatureStore(setup.store)
    return {name: store.read(keys[name]) for name in images}
