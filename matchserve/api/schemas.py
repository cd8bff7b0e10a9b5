"""What requests and answers hold: checked on the way in, documented on the way out."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, create_model

from matchserve.matcher import Options
from matchserve.types import DescriptorKind
from matchserve.vision.geometry import VerifyOptions
from matchserve.vision.keypoints import DetectOptions
from matchserve.vision.matching import MatchOptions

Base64 = Annotated[
    str,
    Field(description="Base64, or a data URL with base64.", json_schema_extra={"format": "byte"}),
]
ServiceVerify = Literal["none", "homography", "fundamental"]


class Strict(BaseModel):
    """Unknown fields, NaN and infinities are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class ModelChoice(Strict):
    """Which model."""

    model: Annotated[
        str, Field(max_length=256, description="A name of /v1/models; empty for the default.")
    ] = ""


class DetectFields(ModelChoice):
    """How keypoints are found and described."""

    max_keypoints: Annotated[
        int, Field(ge=1, le=8192, description="Strongest keypoints kept, per image.")
    ] = 2048
    upright: Annotated[
        bool, Field(description="Ignore orientation: for cameras that never roll.")
    ] = False
    max_side: Annotated[
        int | None,
        Field(ge=16, le=16384, description="Work on a copy reduced to this side; 2048 if unset. "
              "Coordinates stay those of the image as sent."),
    ] = None  # fmt: skip
    exif: Annotated[
        Literal["apply", "ignore"], Field(description="Turn the image as EXIF says, or not.")
    ] = "apply"

    def options(self, working_side: int) -> Options:
        """The same for the matcher."""
        detect = DetectOptions(max_keypoints=self.max_keypoints, upright=self.upright)
        return Options(detect=detect, exif=self.exif, max_side=self.max_side or working_side)


class VerifyFields(Strict):
    """Which matches are kept and what geometry they must agree on."""

    ratio: Annotated[
        float | None, Field(gt=0, le=1, description="Lowe's ratio test, e.g. 0.85; off if unset.")
    ] = None
    verify: Annotated[ServiceVerify, Field(description="Geometry that inliers agree on.")] = (
        "fundamental"
    )
    threshold_px: Annotated[
        float, Field(ge=0.01, le=1000, description="Distance of an inlier, in pixels.")
    ] = 3.0


class MatchFields(DetectFields, VerifyFields):
    """Everything that a match may be asked to do differently."""

    def options(self, working_side: int) -> Options:
        """The same for the matcher."""
        return replace(
            super().options(working_side),
            match=MatchOptions(ratio=self.ratio),
            verify=VerifyOptions(self.verify, self.threshold_px),
        )


class FeaturesJson(Strict):
    """A described image, as POST /v1/features answers."""

    model: Annotated[str, Field(max_length=256)]
    fingerprint: Annotated[
        str, Field(max_length=128, description="Which file of that model made the descriptors.")
    ] = ""
    image_size: Annotated[list[int], Field(min_length=2, max_length=2)]
    keypoints: list[Annotated[list[float], Field(min_length=2, max_length=2)]]
    descriptors: Annotated[
        list[list[float]] | Base64,
        Field(description="Rows of floats, or base64 of the rows: little-endian float32, "
              "or packed bits for a binary model."),
    ]  # fmt: skip
    coordinate_convention: Literal["pixel_center_0"] = "pixel_center_0"
    scales: list[float] | None = None
    orientations: list[float] | None = None
    scores: list[float] | None = None
    truncated: bool = False
    timings_ms: dict[str, float] = Field(default_factory=dict)


class MatchJson(MatchFields):
    """Two images, or two described images, and options."""

    image0: Base64 | None = None
    image1: Base64 | None = None
    features0: FeaturesJson | None = None
    features1: FeaturesJson | None = None


class FeaturesMatchFields(VerifyFields):
    """Options for images that were described before."""

    def options(self) -> Options:
        """The same for the matcher."""
        return Options(
            match=MatchOptions(ratio=self.ratio),
            verify=VerifyOptions(self.verify, self.threshold_px),
        )


class FeaturesMatchJson(FeaturesMatchFields):
    """Two described images and options."""

    features0: FeaturesJson
    features1: FeaturesJson


class DescribeFields(DetectFields):
    """How an image is described, and how descriptors are written."""

    descriptors: Annotated[
        Literal["list", "base64"], Field(description="How JSON holds the descriptors.")
    ] = "list"


class DescribeJson(DescribeFields):
    """One image and options."""

    image: Base64


class PatchesJson(ModelChoice):
    """N patches of S x S grey values, row by row."""

    patches: Base64
    descriptors: Literal["list", "base64"] = "list"


_FILE: dict[str, Any] = {"type": "string", "format": "binary"}


def form_schema(fields: type[BaseModel], *files: str) -> dict[str, Any]:
    """The JSON schema of a multipart form: the fields of a model, and files."""
    extra: dict[str, Any] = {
        name: (bytes, Field(json_schema_extra=_FILE, description=_FILE_TEXT[name]))
        for name in files
    }
    form: type[BaseModel] = create_model(fields.__name__ + "Form", __base__=fields, **extra)
    return form.model_json_schema()


_IMAGE_TEXT = "JPEG, PNG or WebP; TIFF is read by the command line only."
_FILE_TEXT = {
    "image": _IMAGE_TEXT,
    "image0": _IMAGE_TEXT,
    "image1": _IMAGE_TEXT,
    "features0": "npz, as POST /v1/features answers with Accept: application/x-npz.",
    "features1": "npz, as POST /v1/features answers with Accept: application/x-npz.",
}


class Size(BaseModel):
    """An image's size in pixels, as sent."""

    width: int
    height: int


class Geometry(BaseModel):
    """What the matches agree on."""

    kind: ServiceVerify
    matrix: list[list[float]] | None
    inliers: int
    confidence: float


class MatchAnswer(BaseModel):
    """Two images' matches."""

    model: str
    coordinate_convention: Literal["pixel_center_0"]
    image0: Size
    image1: Size
    keypoints0: list[list[float]]
    keypoints1: list[list[float]]
    matches: Annotated[list[list[int]], Field(description="Rows of keypoints0 and of keypoints1.")]
    scores: Annotated[
        list[float], Field(description="Of each match: 1 for equal descriptors, 0 for opposite.")
    ]
    inliers: Annotated[
        list[bool], Field(description="Of each match: whether it agrees with the geometry.")
    ]
    geometry: Geometry
    same_scene: Annotated[
        float | None,
        Field(ge=0, le=1, description="Probability that both images show one scene, from the "
              "calibration in the model's card; null with verify=none or without a calibration."),
    ]  # fmt: skip
    truncated: bool
    timings_ms: dict[str, float]


class FeaturesAnswer(BaseModel):
    """A described image."""

    model: str
    fingerprint: Annotated[
        str, Field(description="Which file of that model made the descriptors; send it back.")
    ]
    coordinate_convention: Literal["pixel_center_0"]
    image_size: list[int]
    keypoints: list[list[float]]
    scales: list[float]
    orientations: list[float]
    scores: list[float]
    descriptors: list[list[float]] | str
    truncated: bool
    timings_ms: dict[str, float]


class PatchesAnswer(BaseModel):
    """Described patches."""

    model: str
    kind: DescriptorKind
    dim: int
    count: int
    descriptors: list[list[float]] | str
    timings_ms: dict[str, float]


class Problem(BaseModel):
    """What went wrong (RFC 9457)."""

    type: str
    title: str
    status: int
    code: str
    detail: str
    request_id: str
    limit: float | None = None
    value: float | None = None
