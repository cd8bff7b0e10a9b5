"""The fields of responses."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from matchserve.types import DescriptorKind, OrientationUsed, VerifyKind


class Size(BaseModel):
    """The size of an image as sent, and of the copy on which keypoints were found, in pixels."""

    width: int
    height: int
    working_width: int | None = None
    working_height: int | None = None


class Geometry(BaseModel):
    """The geometry that the inliers agree on."""

    kind: VerifyKind
    matrix: Annotated[
        list[list[float]] | None,
        Field(
            description="Homography, affine map or similarity (3x3), fundamental matrix, or "
            "essential matrix of a pose, from the first image to the second; null if none was "
            "found."
        ),
    ]
    inliers: int
    confidence: float
    reason: Annotated[
        str, Field(description="Why this geometry was chosen, or why it is not determined.")
    ]
    pose: Annotated[
        list[list[float]] | None,
        Field(
            description="Rotation and direction of translation (R | t), 3x4, from the first camera "
            "to the second; null without verify=pose."
        ),
    ]
    cameras: Annotated[
        list[str] | None,
        Field(
            description="Cameras of both images that were used for the pose: COLMAP's model, image "
            "size and parameters; null without verify=pose."
        ),
    ]


class Views(BaseModel):
    """Which synthetic views of the images were matched."""

    described: Annotated[
        int, Field(description="Number of described views of both images, as sent included.")
    ]
    best: Annotated[
        list[list[float]],
        Field(
            description="Tilt and angle in degrees of the view of each image whose pair found most "
            "matches; tilt 1 is the image as sent."
        ),
    ]
    reason: Annotated[str, Field(description="Why no more views were matched.")]


class MatchResponse(BaseModel):
    """The matches of two images."""

    model: str
    coordinate_convention: Literal["pixel_center_0"]
    image0: Size
    image1: Size
    keypoints0: list[list[float]]
    keypoints1: list[list[float]]
    matches: Annotated[
        list[list[int]], Field(description="Index pairs into keypoints0 and keypoints1.")
    ]
    scales0: Annotated[
        list[float] | None, Field(description="Sigmas in pixels, with details=true.")
    ] = None
    scales1: list[float] | None = None
    orientations0: Annotated[
        list[float] | None,
        Field(description="Radians, clockwise from the x axis, with details=true."),
    ] = None
    orientations1: list[float] | None = None
    keypoint_scores0: Annotated[
        list[float] | None, Field(description="Strength of each keypoint, with details=true.")
    ] = None
    keypoint_scores1: list[float] | None = None
    distances: Annotated[
        list[float],
        Field(description="Distance of the descriptors: Euclidean, or a number of bits."),
    ]
    scores: Annotated[
        list[float],
        Field(description="Score of each match: 1 for equal descriptors, 0 for opposite ones."),
    ]
    confidence: Annotated[
        list[float] | None,
        Field(
            description="Probability that each match is right, within 3 pixels; null if the model "
            "has no networks that judge matches."
        ),
    ]
    points0: Annotated[
        list[list[float]], Field(description="Matched points of the first image, in pixels.")
    ]
    points1: Annotated[
        list[list[float]],
        Field(description="Matched points of the second image, refined where `refined` says so."),
    ]
    refined: Annotated[
        list[bool], Field(description="Whether the point of the second image was refined.")
    ]
    guided: Annotated[
        list[bool],
        Field(description="Whether the match was found along the geometry, with guided=true."),
    ]
    affine: Annotated[
        list[list[list[float]]] | None,
        Field(
            description="For each match, the 2x2 map from small offsets around the point of the "
            "first image to offsets around that of the second; null without refinement."
        ),
    ]
    orientation: Annotated[
        OrientationUsed,
        Field(
            description="Whether patches were turned by the orientation of their keypoint, were "
            "upright, or were upright in a second image turned as a whole."
        ),
    ]
    views: Views
    inliers: Annotated[
        list[bool], Field(description="Whether each match agrees with the geometry.")
    ]
    geometry: Geometry
    same_scene: Annotated[
        float | None,
        Field(ge=0, le=1, description="Probability that both images show the same scene, by the "
              "calibration in the model's card; null with verify=none or without a calibration."),
    ]  # fmt: skip
    truncated: Annotated[
        bool, Field(description="Whether max_keypoints limited the keypoints of an image.")
    ]
    notes: Annotated[
        list[str], Field(description="What to know about the result, e.g. reduced images.")
    ]
    timings_ms: Annotated[
        dict[str, float],
        Field(
            description="Milliseconds by stage, summed over both images, which may run at the same "
            "time; total is the wall time."
        ),
    ]


class FeaturesResponse(BaseModel):
    """A described image."""

    model: str
    fingerprint: Annotated[
        str, Field(description="Identifies the model file; send it back with the features.")
    ]
    coordinate_convention: Literal["pixel_center_0"]
    image_size: list[int]
    working_size: list[int] | None = None
    keypoints: list[list[float]]
    scales: list[float]
    orientations: list[float]
    scores: list[float]
    descriptors: list[list[float]] | str | None = None
    truncated: bool
    id: Annotated[str | None, Field(description="Id of the features if they are stored.")] = None
    timings_ms: dict[str, float]


class StoredResponse(BaseModel):
    """Where features are stored."""

    id: Annotated[str, Field(description="Digest of the content: name the features by it.")]
    model: str
    count: int
    keep_s: Annotated[float, Field(description="Seconds without use after which they are dropped.")]


class PatchesResponse(BaseModel):
    """Described patches."""

    model: str
    kind: DescriptorKind
    dim: int
    count: int
    descriptors: list[list[float]] | str
    timings_ms: dict[str, float]


class Problem(BaseModel):
    """An error (RFC 9457)."""

    type: str
    title: str
    status: int
    code: str
    detail: str
    request_id: str
    limit: float | None = None
    value: float | None = None


class BatchItem(BaseModel):
    """One pair of a batch: its result, or its error."""

    pair: list[int]
    result: MatchResponse | None
    error: Problem | None


class BatchResponse(BaseModel):
    """The pairs of a batch, in the order of the request."""

    results: list[BatchItem]
    timings_ms: dict[str, float]
