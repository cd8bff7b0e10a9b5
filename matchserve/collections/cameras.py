"""Which images share a camera in COLMAP."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Literal, get_args

from matchserve.collections.facts import Facts
from matchserve.errors import InvalidParameter

CameraRule = Literal["auto", "per-image", "per-folder", "single"]
"""`auto`: images of one folder, size and EXIF camera share a camera."""


@dataclass(frozen=True, slots=True)
class ImageCamera:
    """What decides about the camera of an image; `size` is that of the image as described."""

    name: str
    size: tuple[int, int]
    facts: Facts | None = None


@dataclass(frozen=True, slots=True)
class CameraGroup:
    """A camera that several images share; the focal length is None where EXIF does not say."""

    size: tuple[int, int]
    focal_px: float | None
    names: tuple[str, ...]


def group_cameras(images: list[ImageCamera], rule: CameraRule) -> list[CameraGroup]:
    """Group images by camera, in the order of the first image of each group.

    Raises:
        InvalidParameter: one camera is requested for images of different sizes.
    """
    if rule not in get_args(CameraRule):
        raise InvalidParameter(f"camera is {rule!r}, not one of {', '.join(get_args(CameraRule))}")
    sizes = {image.size for image in images}
    if rule == "single" and len(sizes) > 1:
        texts = ", ".join(sorted(f"{w}x{h}" for w, h in sizes)[:5])
        raise InvalidParameter(f"a single camera needs images of one size, there are {texts}")
    groups: dict[Hashable, list[ImageCamera]] = {}
    for image in images:
        groups.setdefault(_key(image, rule), []).append(image)
    return [
        CameraGroup(members[0].size, _focal(members), tuple(m.name for m in members))
        for members in groups.values()
    ]


def camera_of(groups: list[CameraGroup]) -> Mapping[str, int]:
    """Return the number of the group of each image."""
    return {name: number for number, group in enumerate(groups) for name in group.names}


def _key(image: ImageCamera, rule: CameraRule) -> Hashable:
    folder = str(PurePosixPath(image.name).parent)
    if rule == "single":
        return None
    if rule == "per-image":
        return image.name
    if rule == "per-folder":
        return folder, image.size
    facts = image.facts
    return folder, image.size, facts.camera if facts else "", facts.focal_px if facts else None


def _focal(members: list[ImageCamera]) -> float | None:
    """Return the median of the known focal lengths."""
    known = sorted(m.facts.focal_px for m in members if m.facts and m.facts.focal_px)
    return known[len(known) // 2] if known else None
