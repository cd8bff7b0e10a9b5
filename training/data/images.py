"""Folders of images, and the names that stores give them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from matchserve.errors import ImageError
from matchserve.types import Image
from matchserve.vision.decode import decode
from training.errors import DataError

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".tif", ".tiff")


def list_images(directories: Iterable[Path]) -> dict[str, Path]:
    """Every image under the directories, sorted, by the name `folder/path/inside.jpg`.

    Raises:
        DataError: a directory is missing, holds no image, or two images share a name.
    """
    found: dict[str, Path] = {}
    for directory in directories:
        if not directory.is_dir():
            raise DataError(f"{directory}: not a directory")
        inside = sorted(p for p in directory.rglob("*") if p.suffix.lower() in SUFFIXES)
        if not inside:
            raise DataError(f"{directory}: no image ({', '.join(SUFFIXES)}) in it")
        for path in inside:
            name = f"{directory.resolve().name}/{path.relative_to(directory).as_posix()}"
            if name in found:
                raise DataError(f"{path} and {found[name]} would both be named {name}")
            found[name] = path
    return found


def read_image(path: Path, max_side: int | None = None) -> Image:
    """Decode an image file.

    Raises:
        DataError: it cannot be read; names the file.
    """
    try:
        return decode(path.read_bytes(), max_side=max_side)
    except (OSError, ImageError) as error:
        raise DataError(f"{path}: {error}") from error
