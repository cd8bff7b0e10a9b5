"""Image files named on the command line: how they are read, and errors that name them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from matchserve.errors import ImageError, ImageTooLarge, InvalidParameter
from matchserve.files import read_file
from matchserve.limits import LIBRARY_LIMITS, Limits
from matchserve.matcher import Matcher
from matchserve.options import Options
from matchserve.vision.tiles import detection_bytes


def read_image_file(path: Path) -> bytes:
    """Return the bytes of an image file.

    Raises:
        InvalidParameter: `path` is a folder; the message says which commands take one.
        MissingInput: the file cannot be read.
    """
    if path.is_dir():
        raise InvalidParameter(
            f"{path} is a folder, and this command takes image files. To match all images of a "
            f"folder: matchserve collection match {path} -o OUTPUT; to reconstruct the scene: "
            f"matchserve reconstruct {path} -o OUTPUT"
        )
    return read_file(path)


def limits_of(max_pixels: int) -> Limits:
    """Return the limits of the library with another limit on pixels."""
    return replace(LIBRARY_LIMITS, max_pixels=max_pixels)


@contextmanager
def named_errors(
    matcher: Matcher, images: Sequence[tuple[str, Path, bytes]], options: Options
) -> Iterator[None]:
    """Raise an error about an image again with the argument and the file that it is about.

    `images` has the name of the argument, the path and the contents of each file.
    """
    try:
        yield
    except ImageError:
        # Both images are decoded at the same time, so look for the one that fails.
        for argument, path, data in images:
            try:
                matcher.load(data, options)
            except ImageError as error:
                message = f"{argument} ({path}): {error.message}{_advice(error, matcher.limits)}"
                raise type(error)(message, limit=error.limit, value=error.value) from error
        raise


@contextmanager
def named_service_errors(images: Mapping[str, Path]) -> Iterator[None]:
    """Raise an error of the service about an image again with the file that it is about.

    `images` has the path of the file of each field of the request.
    """
    from matchserve.client import ServiceError  # httpx is not needed otherwise

    try:
        yield
    except ServiceError as error:
        field, colon, rest = error.message.partition(":")
        if not colon or field not in images:
            raise
        problem = {**error.problem, "detail": f"{field} ({images[field]}):{rest}"}
        raise ServiceError(error.http_status, problem) from error


def _advice(error: ImageError, limits: Limits) -> str:
    """Say how to allow an image that has too many pixels, and what it costs."""
    is_area = isinstance(error, ImageTooLarge) and error.limit == limits.max_pixels
    if not is_area or error.value is None:
        return ""
    gigabytes = detection_bytes(error.value) / 1e9
    return (
        f"; --max-pixels {error.value:.0f} allows it (with --max-side 0 it needs "
        f"{gigabytes:.1f} GB of memory)"
    )
