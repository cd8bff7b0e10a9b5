"""List and read the images of folders."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from matchserve.errors import ImageError
from matchserve.types import Image
from matchserve.vision.decode import decode
from training.errors import DataError

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".tif", ".tiff")


def list_images(directories: Iterable[Path]) -> dict[str, Path]:
    """Return all images in the directories, sorted, by the name `directory/path/inside.jpg`.

    Raises:
        DataError: a directory is missing or has no image, or two images would have the same name.
    """
    images: dict[str, Path] = {}
    for directory in directories:
        if not directory.is_dir():
            raise DataError(f"{directory}: not a directory")
        inside = sorted(p for p in directory.rglob("*") if p.suffix.lower() in SUFFIXES)
        if not inside:
            raise DataError(f"{directory}: no image ({', '.join(SUFFIXES)}) in it")
        for path in inside:
            name = f"{directory.resolve().name}/{path.relative_to(directory).as_posix()}"
            if name in images:
                raise DataError(f"{path} and {images[name]} would both be named {name}")
            images[name] = path
    return images


def numbered_image(folder: Path, number: int) -> Path:
    """Return the image `NUMBER.*` in a folder.

    Raises:
        DataError: there is none.
    """
    for suffix in SUFFIXES:
        if (folder / f"{number}{suffix}").is_file():
            return folder / f"{number}{suffix}"
    raise DataError(f"{folder}: no image {number} ({', '.join(SUFFIXES)})")


def read_image(path: Path, max_side: int | None = None) -> Image:
    """Decode an image file.

    Raises:
        DataError: the file cannot be read or decoded.
    """
    try:
        return decode(path.read_bytes(), max_side=max_side)
    except (OSError, ImageError) as error:
        raise DataError(f"{path}: {error}") from error
