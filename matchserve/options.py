"""All options of a match."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal, get_args

from matchserve import defaults
from matchserve.errors import InvalidParameter
from matchserve.limits import MAX_VIEWS, MIN_WORKING_SIDE
from matchserve.models.card import ModelCard
from matchserve.pipeline.judging import JudgeOptions
from matchserve.vision.cameras import Camera, chosen_cameras
from matchserve.vision.decode import ExifPolicy
from matchserve.vision.geometry import VerifyChoice, VerifyOptions
from matchserve.vision.keypoints import DetectOptions
from matchserve.vision.matching import MatchOptions

Orientation = Literal["auto", "oriented", "upright", "search"]
ViewsChoice = Literal["auto", "search"]
Views = ViewsChoice | int
ORIENTATIONS: tuple[Orientation, ...] = get_args(Orientation)
VIEWS_CHOICES: tuple[ViewsChoice, ...] = get_args(ViewsChoice)


@dataclass(frozen=True, slots=True)
class Options:
    """All options of a match.

    A `verify` without a kind is the geometry of the model's card, or else a fundamental matrix.
    `exif` says whether the image is rotated as its EXIF orientation says. Keypoints are found and
    described on a copy whose longest side is at most `max_side` pixels (0 for the full size);
    coordinates are always those of the image as sent. `orientation` says whether patches are
    turned by the orientation of their keypoint: "auto" describes them again without turning them
    if turned patches find few matches, and takes what finds more. "search" then also tries to turn
    the second image as a whole; so does "auto" for models whose card says `searches_turn`. `views`
    is the number of pairs of synthetic views that are matched for extreme viewpoints, 1 for the
    images as sent alone; "search" goes on until the geometry is sure, and "auto" does so only as
    long as the matches hint at a common scene. `guided` searches more matches along the geometry.
    `fast` is for the many pairs of a collection: candidates come from products of 8-bit integers,
    and the geometry is fitted to a part of many matches.
    """

    detect: DetectOptions = field(default_factory=DetectOptions)
    match: MatchOptions = field(default_factory=MatchOptions)
    verify: VerifyOptions = field(default_factory=lambda: VerifyOptions(None))
    exif: ExifPolicy = "apply"
    max_side: int = defaults.MAX_SIDE
    judge: JudgeOptions = field(default_factory=JudgeOptions)
    orientation: Orientation = defaults.ORIENTATION
    views: Views = defaults.VIEWS
    guided: bool = defaults.GUIDED
    fast: bool = False

    def __post_init__(self) -> None:
        if self.orientation not in ORIENTATIONS:
            raise InvalidParameter(
                f"orientation is {self.orientation!r}, not one of {', '.join(ORIENTATIONS)}"
            )
        if isinstance(self.views, str):
            if self.views not in VIEWS_CHOICES:
                raise InvalidParameter(_wrong_views(self.views))
        elif not 1 <= self.views <= MAX_VIEWS:
            raise InvalidParameter(_wrong_views(self.views))
        if self.exif not in ("apply", "ignore"):
            raise InvalidParameter(f"exif is {self.exif!r}, not apply or ignore")
        if self.max_side and self.max_side < MIN_WORKING_SIDE:
            raise InvalidParameter(
                f"max_side is {self.max_side}, must be 0 for the full size "
                f"or at least {MIN_WORKING_SIDE}"
            )


DEFAULT_OPTIONS = Options()
RAW_OPTIONS = Options(
    detect=DetectOptions(duplicates=True, selection="contrast"),
    verify=VerifyOptions(),
    judge=JudgeOptions(min_confidence=0.0, refine="none"),
    orientation="oriented",
)
"""Every mutual nearest neighbour, unrefined: for research and comparisons."""


def with_geometry_of(card: ModelCard, options: Options) -> Options:
    """Return the options with the geometry of the model's card if they name none."""
    if options.verify.kind is not None:
        return options
    return replace(options, verify=replace(options.verify, kind=card.verify or defaults.VERIFY))


def verify_options(
    kind: VerifyChoice | None,
    threshold_px: float,
    camera: str | Camera | None = None,
    camera0: str | Camera | None = None,
    camera1: str | Camera | None = None,
) -> VerifyOptions:
    """Return the geometry to estimate, with cameras as users write them.

    Raises:
        InvalidParameter: a camera cannot be read, is missing, or is not needed.
    """
    if kind != "pose" and (camera or camera0 or camera1):
        raise InvalidParameter("cameras are for verify 'pose' only")
    cameras = chosen_cameras(camera, camera0, camera1)
    return VerifyOptions(kind, threshold_px, cameras=cameras)


def parse_views(text: str) -> Views:
    """Read the number of views, `auto` or `search`.

    Raises:
        InvalidParameter: the text is none of these.
    """
    for choice in VIEWS_CHOICES:
        if text == choice:
            return choice
    try:
        return int(text)
    except ValueError as error:
        raise InvalidParameter(_wrong_views(text)) from error


def _wrong_views(value: object) -> str:
    return f"views is {value!r}, must be {', '.join(VIEWS_CHOICES)} or in 1..{MAX_VIEWS}"
