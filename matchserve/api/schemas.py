"""The fields of requests and responses; upper limits and defaults come from the settings."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, create_model

from matchserve import defaults
from matchserve.api.camera_fields import CameraFields
from matchserve.api.image_extras import (
    PairExtras,
    PairExtrasJson,
    SingleExtras,
    SingleExtrasJson,
)
from matchserve.api.strict import FEATURES_ID, Base64, Column, Point, Row, Rows, Strict
from matchserve.encoding import MAX_FINGERPRINT, MAX_MODEL_NAME
from matchserve.limits import MAX_VIEWS, MIN_WORKING_SIDE
from matchserve.options import Options, ViewsChoice
from matchserve.pipeline.judging import JudgeOptions
from matchserve.settings import Settings
from matchserve.vision.geometry import VerifyChoice
from matchserve.vision.keypoints import DetectOptions, DetectorChoice
from matchserve.vision.matching import MatchOptions
from matchserve.vision.selection import Selection


class ModelChoice(Strict):
    """The model that describes."""

    model: Annotated[
        str,
        Field(
            max_length=256, description="Model name from /v1/models; empty for the default model."
        ),
    ] = ""


class DetectFields(ModelChoice):
    """How keypoints are found and described."""

    max_keypoints: Annotated[
        int | None, Field(ge=1, description="Maximum number of keypoints per image.")
    ] = None
    upright: Annotated[
        bool,
        Field(
            description="Describe keypoints without rotation: better for cameras that never roll."
        ),
    ] = False
    duplicates: Annotated[
        bool,
        Field(
            description="Keep all keypoints that share a position and differ in orientation only, "
            "and count them in max_keypoints."
        ),
    ] = False
    further_orientations: Annotated[
        float,
        Field(
            ge=0,
            le=1,
            description="Share of the best keypoints that are returned once more for each of their "
            "other dominant orientations, besides max_keypoints; not with duplicates.",
        ),
    ] = defaults.FURTHER_ORIENTATIONS
    detector: Annotated[
        DetectorChoice,
        Field(
            description="How keypoints are found: dog for extrema of differences of Gaussians, "
            "learned for the network that comes with the model, auto for what its card names."
        ),
    ] = defaults.DETECTOR
    selection: Annotated[
        Selection,
        Field(
            description="Which keypoints are used: those of the highest contrast, or those that "
            "are most likely found again in another image."
        ),
    ] = defaults.SELECTION
    max_side: Annotated[
        int | None,
        Field(
            ge=0,
            description="Longest side, in pixels, of the copy on which keypoints are found: 0 for "
            f"the full size, otherwise at least {MIN_WORKING_SIDE}. Coordinates are always those "
            "of the image as sent.",
        ),
    ] = None
    exif: Annotated[
        Literal["apply", "ignore"],
        Field(description="Whether to rotate the image as its EXIF orientation says."),
    ] = "apply"

    def options(self, settings: Settings) -> Options:
        """Return the options for the matcher."""
        return Options(
            detect=DetectOptions(
                max_keypoints=self.max_keypoints or default_keypoints(settings),
                upright=self.upright,
                duplicates=self.duplicates,
                selection=self.selection,
                detector=self.detector,
                further_orientations=self.further_orientations,
            ),
            exif=self.exif,
            max_side=settings.working_side if self.max_side is None else self.max_side,
        )


def default_keypoints(settings: Settings) -> int:
    """Return the number of keypoints for requests that give none."""
    return min(defaults.MAX_KEYPOINTS, settings.max_keypoints)


def field_limits(settings: Settings) -> dict[str, dict[str, int]]:
    """Return, for each field that a setting limits, its maximum and default in the schema."""
    return {
        "max_keypoints": {
            "maximum": settings.max_keypoints,
            "default": default_keypoints(settings),
        },
        "max_side": {"maximum": settings.max_side, "default": settings.working_side},
    }


class VerifyFields(CameraFields, Strict):
    """Which matches are kept, and the geometry that they are checked against."""

    min_confidence: Annotated[
        float,
        Field(
            ge=0,
            le=1,
            description="Least probability of being right with which a match is returned; 0 "
            "returns every mutual nearest neighbour.",
        ),
    ] = defaults.MIN_CONFIDENCE

    ratio: Annotated[
        float | None,
        Field(
            gt=0,
            le=1,
            description="Maximum ratio of nearest to second-nearest distance (Lowe's ratio test), "
            "e.g. 0.85; no test if unset.",
        ),
    ] = None
    max_distance: Annotated[
        float | None,
        Field(
            gt=0,
            le=1_000_000,
            description="Maximum distance of matched descriptors: Euclidean, up to 2, for float "
            "descriptors, and a number of bits for binary ones; no limit if unset.",
        ),
    ] = None
    verify: Annotated[
        VerifyChoice | None,
        Field(
            description="Geometry that the matches are checked against; auto chooses similarity, "
            "homography or fundamental; pose needs the cameras of both images. If unset, that of "
            "the model's card: auto for robust, fundamental for all other shipped models."
        ),
    ] = None
    threshold_px: Annotated[
        float,
        Field(
            ge=0.01,
            le=1000,
            description="Maximum distance between an inlier and the geometry, in pixels.",
        ),
    ] = defaults.THRESHOLD_PX


class PairFields(DetectFields, VerifyFields):
    """Options of a match that are the same for all pairs."""

    details: Annotated[
        bool,
        Field(description="Return the scale, orientation and score of each keypoint as well."),
    ] = False

    refine: Annotated[
        Literal["none", "affine"],
        Field(description="Refine the points of the second image to a fraction of a pixel."),
    ] = defaults.REFINE
    orientation: Annotated[
        Literal["auto", "oriented", "upright", "search"],
        Field(
            description="Whether patches are turned by the orientation of their keypoint; auto "
            "also tries upright patches if turned ones find few matches, and search also tries to "
            "turn the second image as a whole."
        ),
    ] = defaults.ORIENTATION
    views: Annotated[
        ViewsChoice | Annotated[int, Field(ge=1, le=MAX_VIEWS)],
        Field(
            description="Number of pairs of synthetic views that are matched, for extreme "
            "viewpoints: 1 for the images as sent alone; search goes on until the geometry is sure "
            "or the time of the request is nearly up, auto only as long as the matches hint at a "
            "common scene."
        ),
    ] = defaults.VIEWS
    guided: Annotated[
        bool,
        Field(
            description="Search more matches along the geometry that was found; needs a geometry."
        ),
    ] = defaults.GUIDED

    def options(self, settings: Settings) -> Options:
        """Return the options for the matcher."""
        return replace(
            super().options(settings),
            match=MatchOptions(self.ratio, self.max_distance),
            verify=self.verify_with_cameras(self.verify, self.threshold_px),
            judge=JudgeOptions(self.min_confidence, self.refine),
            orientation=self.orientation,
            views=self.views,
            guided=self.guided,
        )


class MatchFields(PairFields, PairExtras):
    """All options of a match."""


class FeaturesJson(Strict):
    """A described image, as POST /v1/features returns it."""

    model: Annotated[str, Field(max_length=MAX_MODEL_NAME)]
    fingerprint: Annotated[
        str,
        Field(
            max_length=MAX_FINGERPRINT,
            description="Identifies the model file that made the descriptors.",
        ),
    ] = ""
    image_size: Annotated[list[int], Field(min_length=2, max_length=2)]
    keypoints: Annotated[list[Point], Rows]
    descriptors: Annotated[
        Annotated[list[Row], Rows] | Base64,
        Field(description="Rows of floats, or base64 of the rows: little-endian float32, "
              "or packed bits for a binary model."),
    ]  # fmt: skip
    coordinate_convention: Literal["pixel_center_0"] = "pixel_center_0"
    scales: Column | None = None
    orientations: Column | None = None
    scores: Column | None = None
    working_size: Annotated[list[int], Field(min_length=2, max_length=2)] | None = None
    truncated: bool = False
    timings_ms: Annotated[dict[str, float], Field(max_length=32)] = Field(default_factory=dict)
    id: Annotated[str, Field(max_length=64, description="Ignored.")] = ""


class MatchJson(MatchFields, PairExtrasJson):
    """Two images, or two described images, and options."""

    image0: Base64 | None = None
    image1: Base64 | None = None
    features0: FeaturesJson | None = None
    features1: FeaturesJson | None = None


FeaturesId = Annotated[
    str | None,
    Field(pattern=FEATURES_ID, description="Id of stored features, in place of the features."),
]


class FeaturesMatchFields(VerifyFields):
    """Options for images that were described before."""

    features0_id: FeaturesId = None
    features1_id: FeaturesId = None

    def options(self) -> Options:
        """Return the options for the matcher."""
        return Options(
            match=MatchOptions(self.ratio, self.max_distance),
            verify=self.verify_with_cameras(self.verify, self.threshold_px),
            judge=JudgeOptions(self.min_confidence, "none"),
        )


class FeaturesMatchJson(FeaturesMatchFields):
    """Two described images, sent or named by their id, and options."""

    features0: FeaturesJson | None = None
    features1: FeaturesJson | None = None


class DescribeFields(DetectFields, SingleExtras):
    """How an image is described, and how JSON encodes the descriptors."""

    descriptors: Annotated[
        Literal["list", "base64", "none"],
        Field(description="Encoding of the descriptors in JSON; none leaves them away."),
    ] = "list"
    store: Annotated[
        bool,
        Field(description="Store the features; the response has the id to name them by."),
    ] = False


class DescribeJson(DescribeFields, SingleExtrasJson):
    """One image and options."""

    image: Base64


class PatchesJson(ModelChoice):
    """N patches of S x S grey values, row by row."""

    patches: Base64
    descriptors: Literal["list", "base64"] = "list"


_FILE: dict[str, Any] = {"type": "string", "format": "binary"}


def form_schema(
    fields: type[BaseModel], *files: str, optional: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Return the JSON schema of a multipart form with the fields of a model and files."""
    extra: dict[str, Any] = {
        name: (bytes, Field(json_schema_extra=_FILE, description=_FILE_TEXT[name.rstrip("01")]))
        for name in files
    }
    for name in optional:
        text = _FILE_TEXT[name.rstrip("01")]
        extra[name] = (bytes, Field(default=None, json_schema_extra=_FILE, description=text))
    form: type[BaseModel] = create_model(fields.__name__ + "Form", __base__=fields, **extra)
    return form.model_json_schema()


_IMAGE_TEXT = "JPEG, PNG or WebP; only the command line reads TIFF."
_FILE_TEXT = {
    "image": _IMAGE_TEXT,
    "features": "npz, as POST /v1/features returns it with Accept: application/x-npz.",
    "mask": "Image of the same aspect ratio; no keypoints are taken where it is dark.",
    "keypoints": "Points to describe in place of detected keypoints: JSON or npz with `keypoints` "
    "and, if known, `scales` and `orientations`.",
}
