"""Describe images of any size in bounded memory: strips of rows from libvips, windows, a pyramid.

Only a strip of the image is in memory, and keypoints are found in one window at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import numpy as np

from matchserve.clock import Call, one_thread
from matchserve.errors import CorruptImage, ImageTooSmall, InvalidParameter, MissingInput
from matchserve.libraries import import_pyvips
from matchserve.matcher import Matcher, Options
from matchserve.models.detection import find_keypoints
from matchserve.threads import off_main_thread
from matchserve.types import Features, Image, Keypoints, MatchResult, UInt8
from matchserve.vision.windows import CORE, Core, Level, in_image, levels, windows

KEYPOINTS_PER_MEGAPIXEL = 500
"""Keypoints that each megapixel of a level gets, so that no part of the image is left out."""

_SMALLEST_WINDOW = 32
# Each step of libvips holds the rows that are fetched together.
_FETCHED_ROWS = 64


class Raster:
    """An image file of which only some rows are in memory, as grey values of 8 bits."""

    def __init__(self, path: str | PathLike[str]) -> None:
        """Read the header.

        Raises:
            ProviderUnavailable: pyvips is not installed.
            MissingInput: there is no such file.
            CorruptImage: libvips cannot read it.
        """
        self.path = fspath(path)
        image = self._open()
        self.size = (int(image.width), int(image.height))
        has_exif = image.get_typeof("exif-data") != 0
        self.exif: bytes = image.get("exif-data") if has_exif else b""

    def rows(self, level: Level, bounds: list[tuple[int, int]]) -> Iterator[UInt8]:
        """Yield the rows `start` to `end` of a level for each of the bounds, from top to bottom.

        Bounds may overlap. The file is read once, from its first row to its last. The array that
        is yielded is overwritten by the next rows.
        """
        with self._pixels() as image:
            image = _grey(image)
            if level.factor > 1:
                image = image.shrink(level.factor, level.factor)
            yield from self._strips(image, level.width, bounds)

    def _strips(self, image: Any, width: int, bounds: list[tuple[int, int]]) -> Iterator[UInt8]:
        vips = import_pyvips()
        region = vips.Region.new(image)
        held = np.empty((max(end - start for start, end in bounds), width), np.uint8)
        top = bottom = 0
        for start, end in bounds:
            known = max(bottom - start, 0)
            held[:known] = held[start - top : start - top + known]
            top, bottom = start, end
            for begin in range(start + known, end, _FETCHED_ROWS):
                count = min(_FETCHED_ROWS, end - begin)
                try:
                    part = region.fetch(0, begin, width, count)
                except vips.Error as error:
                    reason = _first_line(error)
                    raise CorruptImage(f"{self.path} cannot be decoded: {reason}") from None
                fresh = np.frombuffer(part, np.uint8).reshape(count, width)
                held[begin - start : begin - start + count] = fresh
            yield held[: end - start]

    @contextmanager
    def _pixels(self) -> Iterator[Any]:
        """Open the image to read its rows once.

        libvips would map a JPEG file into memory, and all of it that was read would count as memory
        of this process: 800 MB at the end of a gigapixel.
        """
        image = self._open()
        if not image.get("vips-loader").startswith("jpegload"):
            yield image
            return
        with Path(self.path).open("rb", buffering=0) as file:
            source = import_pyvips().SourceCustom()
            source.on_read(file.read)
            source.on_seek(file.seek)
            yield self._open(source)

    def _open(self, source: Any = None) -> Any:
        vips = import_pyvips()
        try:
            if source is not None:
                return vips.Image.new_from_source(source, "", access="sequential")
            return vips.Image.new_from_file(self.path, access="sequential")
        except vips.Error as error:
            if "does not exist" in str(error):
                raise MissingInput(f"there is no file {self.path}") from None
            raise CorruptImage(f"{self.path} cannot be read: {_first_line(error)}") from None


def describe_large(
    matcher: Matcher,
    path: str | PathLike[str],
    options: Options,
    *,
    per_megapixel: int = KEYPOINTS_PER_MEGAPIXEL,
    core: int = CORE,
    max_keypoints: int | None = None,
) -> Features:
    """Find and describe keypoints of an image of any size, in pixels of the whole image.

    `options.detect.max_keypoints` and `options.max_side` do not apply: each window keeps its
    strongest `per_megapixel` keypoints, fewer in an image that would have more than about
    `max_keypoints`. The EXIF orientation is ignored.

    Raises:
        ProviderUnavailable: pyvips is not installed.
        ImageError: the image cannot be used.
    """
    if per_megapixel < 1:
        raise InvalidParameter(
            f"the number of keypoints per megapixel is {per_megapixel}, not 1 or more"
        )
    raster = Raster(path)
    if min(raster.size) < _SMALLEST_WINDOW:
        raise ImageTooSmall(f"{raster.path} has {raster.size[0]} x {raster.size[1]} pixels")
    found = levels(raster.size, core)
    density = float(per_megapixel)
    if max_keypoints is not None:
        megapixels = sum(level.width * level.height for level in found) / 1e6
        density = min(density, max_keypoints / megapixels)
    parts = [
        part
        for level in found
        for part in _describe_level(matcher, raster, level, options, (density, core))
    ]
    keypoints, descriptors = _joined(parts)
    card = matcher.descriptor.card
    return Features(keypoints, descriptors, card.name, raster.size, card.fingerprint, raster.size)


def match_large(
    matcher: Matcher, paths: tuple[str | PathLike[str], str | PathLike[str]], options: Options
) -> MatchResult:
    """Match two images of any size, described by `describe_large`, in pixels of the whole images.

    Points are not refined.

    Raises:
        ProviderUnavailable: pyvips is not installed.
        ImageError: one of the images cannot be used.
    """
    first, second = (describe_large(matcher, path, options) for path in paths)
    return matcher.match_features(first, second, replace(options, fast=True))


def thumbnail(path: str | PathLike[str], side: int) -> UInt8:
    """Return a small RGB copy (H, W, 3) of an image of any size."""
    image = import_pyvips().Image.thumbnail(fspath(path), side, size="down", no_rotate=True)
    if image.hasalpha():
        image = image.flatten()
    image = image.colourspace("srgb").cast("uchar")
    pixels = np.frombuffer(image.write_to_memory(), np.uint8)
    return pixels.reshape(image.height, image.width, 3)


def _joined(parts: list[tuple[Keypoints, Any]]) -> tuple[Keypoints, Any]:
    """Join the windows, the strongest keypoints first; `parts` is emptied to save memory."""
    columns = [
        np.concatenate([getattr(found, name) for found, _ in parts])
        for name in ("xy", "sigma", "angle", "score")
    ]
    order = np.argsort(-columns[3], kind="stable")
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    like = parts[0][1]
    descriptors = np.empty((len(order), like.shape[1]), like.dtype)
    end = len(order)
    while parts:
        rows = parts.pop()[1]
        descriptors[place[end - len(rows) : end]] = rows
        end -= len(rows)
    return Keypoints(*(column[order] for column in columns)), descriptors


def _describe_level(
    matcher: Matcher, raster: Raster, level: Level, options: Options, rule: tuple[float, int]
) -> Iterator[tuple[Keypoints, Any]]:
    density, core = rule
    rows = list(windows(level, core))
    strips = raster.rows(level, [(down.start, down.end) for down, _ in rows])
    for (down, spans), strip in zip(rows, strips, strict=True):
        for across in spans:
            window = np.ascontiguousarray(strip[:, across.start : across.end])
            if min(window.shape) >= _SMALLEST_WINDOW:
                yield _describe_window(matcher, window, level, Core(across, down), options, density)


def _describe_window(
    matcher: Matcher,
    grey: UInt8,
    level: Level,
    core: Core,
    options: Options,
    per_megapixel: float,
) -> tuple[Keypoints, Any]:
    image = Image(grey, (grey.shape[1], grey.shape[0]))
    count = max(1, round(per_megapixel * core.area / 1e6))
    detect_options = replace(options.detect, max_keypoints=count, further_orientations=0.0)
    found = off_main_thread(find_keypoints, matcher.descriptor, image, detect_options, core)
    found = found[np.flatnonzero(level.owns(found.sigma))]
    descriptors = matcher.descriptor.describe(image, found, Call(threads=one_thread))
    return in_image(found, level, core), descriptors


def _grey(image: Any) -> Any:
    """Convert a libvips image to one band of 8 bits, without loading it."""
    if image.hasalpha():
        image = image.flatten()
    if image.interpretation not in ("b-w", "grey16"):
        image = image.colourspace("b-w")
    elif image.interpretation == "grey16":
        image = (image / 256).cast("uchar")
    return image[0].cast("uchar")


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else "no reason given"
