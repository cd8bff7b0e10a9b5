"""Read the image files of a collection: whole, or in windows if they are too large for that."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from matchserve.clock import Call, one_thread
from matchserve.collections.facts import Facts, read_exif_facts, read_facts
from matchserve.collections.store import feature_key
from matchserve.errors import MatchServeError, MissingInput
from matchserve.files import read_file
from matchserve.large import Raster, describe_large
from matchserve.limits import Limits
from matchserve.matcher import Matcher, Options
from matchserve.models.card import ModelCard
from matchserve.types import Features

Tiling = Literal["auto", "all", "never"]
"""Which images are read in windows: those above the limits, all, or none."""


@dataclass(frozen=True, slots=True, eq=False)
class ImageSource:
    """An image file by its content; `data` is None if it is read in windows."""

    path: Path
    sha256: str
    facts: Facts | None
    data: bytes | None

    def key(self, card: ModelCard, options: Options) -> str:
        """Return the name of the features."""
        return feature_key(self.sha256, card, options, in_windows=self.data is None)

    def describe(self, matcher: Matcher, options: Options) -> Features:
        """Find and describe the keypoints, in pixels of the whole image.

        Raises:
            ImageError: the image cannot be used.
            ProviderUnavailable: it is too large to be read at once, and pyvips is not installed.
        """
        if self.data is not None:
            return matcher.features(self.data, options, Call(threads=one_thread))
        most = matcher.limits.max_keypoints
        return describe_large(matcher, self.path, options, max_keypoints=most)


def open_source(path: Path, limits: Limits, tiling: Tiling) -> ImageSource:
    """Read an image file, or only its header and its hash if it is to be read in windows.

    Raises:
        MissingInput: the file cannot be read.
    """
    data = read_file(path, limits.max_image_bytes)
    is_whole = len(data) <= limits.max_image_bytes
    facts = read_facts(data) if is_whole else None
    if tiling == "never" or (tiling == "auto" and is_whole and not _is_large(path, facts, limits)):
        return ImageSource(path, hashlib.sha256(data).hexdigest(), facts, data)
    digest = hashlib.sha256(data).hexdigest() if is_whole else _digest(path)
    return ImageSource(path, digest, facts or _facts_in_windows(path), None)


def exceeds(size: tuple[int, int], limits: Limits) -> bool:
    """Return whether an image of a width and height is too large to be decoded at once."""
    return size[0] * size[1] > limits.max_pixels or max(size) > limits.max_side


def _is_large(path: Path, facts: Facts | None, limits: Limits) -> bool:
    if facts is not None:
        return exceeds(facts.size, limits)
    # Pillow does not open images of very many pixels.
    with suppress(MatchServeError):
        return exceeds(Raster(path).size, limits)
    return False


def _facts_in_windows(path: Path) -> Facts | None:
    with suppress(MatchServeError):
        raster = Raster(path)
        return read_exif_facts(path, raster.size, raster.exif)
    return None


def _digest(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise MissingInput(f"cannot read {path}: {error.strerror}") from error
