"""The data types of the project: frozen, checked when made, with read-only arrays.

Conventions used everywhere: `xy` is (x, y) with the centre of the top-left pixel at (0, 0), x to
the right and y down; `size` is (width, height); `shape` is (rows, columns); sigma is the
scale-space sigma in pixels (OpenCV's `KeyPoint.size` is twice that); angles are in radians,
clockwise on the screen.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from matchserve.errors import InvalidParameter
from matchserve.limits import MAX_PATCH_SIZE, MIN_PATCH_SIZE

Float32 = NDArray[np.float32]
Float64 = NDArray[np.float64]
Int32 = NDArray[np.int32]
UInt8 = NDArray[np.uint8]
Bool = NDArray[np.bool_]

DescriptorKind = Literal["float", "binary"]
Border = Literal["replicate", "reflect"]
VerifyKind = Literal["none", "homography", "affine", "similarity", "fundamental", "pose"]
CollectionVerify = Literal["fundamental", "homography", "affine", "similarity"]
# Geometries whose matrix maps a point to a point.
POINT_MAPS: tuple[VerifyKind, ...] = ("homography", "affine", "similarity")
OrientationUsed = Literal["oriented", "upright", "turned"]


def _frozen(array: NDArray[Any], dtype: type, shape: tuple[int | None, ...], name: str) -> Any:
    """Return `array` as a read-only array of `dtype`; raise if its shape is not `shape`."""
    result: NDArray[Any] = np.ascontiguousarray(array, dtype=dtype)
    fits = result.ndim == len(shape) and all(
        want is None or want == have for want, have in zip(shape, result.shape, strict=True)
    )
    if not fits:
        raise InvalidParameter(f"{name} has shape {result.shape}, expected {shape}")
    if result is array or result.base is not None:
        result = result.view()
    result.flags.writeable = False
    return result


def is_unit_length(rows: NDArray[Any]) -> bool:
    """Return whether every row has Euclidean length one, as float descriptors must."""
    return bool(np.all(np.abs(np.linalg.norm(rows, axis=1) - 1.0) < 1e-3))


@dataclass(frozen=True, slots=True, eq=False)
class Image:
    """A grey working image, and the size of the image as sent.

    `grey` is smaller than `size` if the image was reduced to a working size. The vision functions
    return all coordinates in pixels of the image as sent.
    """

    grey: UInt8
    size: tuple[int, int]

    def __post_init__(self) -> None:
        object.__setattr__(self, "grey", _frozen(self.grey, np.uint8, (None, None), "grey"))

    @property
    def working_size(self) -> tuple[int, int]:
        """Width and height of the working image."""
        return self.grey.shape[1], self.grey.shape[0]

    @property
    def scale_xy(self) -> Float64:
        """Working pixels per pixel of the sent image, for x and for y."""
        rows, columns = self.grey.shape
        return np.array([columns / self.size[0], rows / self.size[1]])

    @property
    def pixel(self) -> float:
        """Side of a working pixel in pixels of the sent image, as a mean of x and y."""
        return float(1 / np.sqrt(np.prod(self.scale_xy)))

    def to_working(self, xy: NDArray[Any]) -> Float64:
        """Map points of the sent image to the working image."""
        return (np.asarray(xy, np.float64) + 0.5) * self.scale_xy - 0.5

    def to_sent(self, xy: NDArray[Any]) -> Float64:
        """Map points of the working image to the sent image."""
        return (np.asarray(xy, np.float64) + 0.5) / self.scale_xy - 0.5


@dataclass(frozen=True, slots=True, eq=False)
class Keypoints:
    """N keypoints of one image, strongest first."""

    xy: Float32
    sigma: Float32
    angle: Float32
    score: Float32

    def __post_init__(self) -> None:
        object.__setattr__(self, "xy", _frozen(self.xy, np.float32, (None, 2), "xy"))
        for name in ("sigma", "angle", "score"):
            value = _frozen(getattr(self, name), np.float32, (len(self.xy),), name)
            object.__setattr__(self, name, value)

    def __len__(self) -> int:
        return len(self.xy)

    def __getitem__(self, rows: NDArray[Any] | slice) -> Keypoints:
        return Keypoints(self.xy[rows], self.sigma[rows], self.angle[rows], self.score[rows])


@dataclass(frozen=True, slots=True)
class PatchSpec:
    """How a patch is cut around a keypoint: two crops with equal specs are equal.

    `magnification` (K) is the side of the square image region, in sigmas of the keypoint. `size`
    is the side of the patch, in samples. `version` changes with the sampling rule of
    `vision.patches`.
    """

    size: int = 32
    magnification: float = 12.0
    border: Border = "replicate"
    antialias: bool = True
    version: int = 1

    def __post_init__(self) -> None:
        if not MIN_PATCH_SIZE <= self.size <= MAX_PATCH_SIZE:
            raise InvalidParameter(
                f"patch size {self.size} is not in {MIN_PATCH_SIZE}..{MAX_PATCH_SIZE}"
            )
        if not 1.0 <= self.magnification <= 100.0:
            raise InvalidParameter(f"patch magnification {self.magnification} is not in 1..100")
        if self.border not in ("replicate", "reflect"):
            raise InvalidParameter(f"patch border {self.border!r} is not replicate or reflect")
        if self.version != 1:
            raise InvalidParameter(f"patch version {self.version} is not supported, only 1 is")


@dataclass(frozen=True, slots=True, eq=False)
class Features:
    """Keypoints with their descriptors: (N, D) float32 unit rows, or (N, D/8) uint8 bits.

    `fingerprint` distinguishes two models of the same name; it is empty if it was not recorded.
    `working_size` is the size that keypoints were found at, None if it was not recorded.
    `truncated` says that `max_keypoints` limited the keypoints.
    """

    keypoints: Keypoints
    descriptors: NDArray[Any]
    model: str
    size: tuple[int, int]
    fingerprint: str = ""
    working_size: tuple[int, int] | None = None
    truncated: bool = False

    def __post_init__(self) -> None:
        dtype = np.uint8 if self.descriptors.dtype == np.uint8 else np.float32
        shape = (len(self.keypoints), None)
        value = _frozen(self.descriptors, dtype, shape, "descriptors")
        object.__setattr__(self, "descriptors", value)

    @property
    def kind(self) -> DescriptorKind:
        """`binary` for packed bits, `float` for unit vectors."""
        return "binary" if self.descriptors.dtype == np.uint8 else "float"

    def __len__(self) -> int:
        return len(self.keypoints)


@dataclass(frozen=True, slots=True, eq=False)
class Matches:
    """Index pairs (M, 2) of mutual nearest neighbours, sorted by the index in image 0.

    `distance` is Euclidean for float descriptors and a number of bits for binary ones. `score` is
    1 for equal and 0 for opposite descriptors of either kind. `confidence` is the probability that
    a match is right, within 3 pixels; None if the model's card has no networks that judge matches.
    """

    pairs: Int32
    distance: Float32
    score: Float32
    confidence: Float32 | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "pairs", _frozen(self.pairs, np.int32, (None, 2), "pairs"))
        for name in ("distance", "score", "confidence"):
            value = getattr(self, name)
            if value is not None:
                frozen = _frozen(value, np.float32, (len(self.pairs),), name)
                object.__setattr__(self, name, frozen)

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, rows: NDArray[Any]) -> Matches:
        confidence = None if self.confidence is None else self.confidence[rows]
        return Matches(self.pairs[rows], self.distance[rows], self.score[rows], confidence)


@dataclass(frozen=True, slots=True, eq=False)
class RefinedPoints:
    """The points of image 1 after sub-pixel refinement of M matches.

    `xy1` (M, 2) are the refined points, or the keypoints where `is_refined` is false. `affine`
    (M, 2, 2) maps small offsets around the point of image 0 to offsets around that of image 1.
    """

    xy1: Float32
    affine: Float32
    is_refined: Bool

    def __post_init__(self) -> None:
        count = len(self.xy1)
        object.__setattr__(self, "xy1", _frozen(self.xy1, np.float32, (None, 2), "xy1"))
        affine = _frozen(self.affine, np.float32, (count, 2, 2), "affine")
        object.__setattr__(self, "affine", affine)
        is_refined = _frozen(self.is_refined, np.bool_, (count,), "is_refined")
        object.__setattr__(self, "is_refined", is_refined)

    def __getitem__(self, rows: NDArray[Any]) -> RefinedPoints:
        return RefinedPoints(self.xy1[rows], self.affine[rows], self.is_refined[rows])


@dataclass(frozen=True, slots=True, eq=False)
class Verification:
    """The geometry that M matches agree on, and which of them agree.

    `matrix` is the homography, affine map, similarity, fundamental or essential matrix from image 0
    to image 1, `None` if none was found; `pose` is (R | t), 3x4, with t of unit length, only for
    `kind="pose"`.
    `confidence` is the probability that this many inliers are not a coincidence; `log_nfa` is the
    natural logarithm of the expected number of such coincidences, at most 0 (see
    `vision.geometry`). `reason` says why this geometry was chosen, or that it is not determined.
    `cameras` are the cameras of a pose, in the text form of `vision.cameras`.
    """

    kind: VerifyKind
    matrix: Float64 | None
    inliers: Bool
    confidence: float
    pose: Float64 | None = None
    log_nfa: float = 0.0
    reason: str = ""
    cameras: tuple[str, str] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "inliers", _frozen(self.inliers, np.bool_, (None,), "inliers"))
        for name, shape in (("matrix", (3, 3)), ("pose", (3, 4))):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, _frozen(value, np.float64, shape, name))


@dataclass(frozen=True, slots=True)
class ViewReport:
    """Which views of the two images were matched.

    `described` is the number of described views of both images, the images as sent included.
    `best` has tilt and angle in degrees of the view of each image whose pair found most matches,
    (1, 0) for an image as sent. `reason` says why the search ended.
    """

    described: int = 2
    best: tuple[tuple[float, float], tuple[float, float]] = ((1.0, 0.0), (1.0, 0.0))
    reason: str = ""

    @property
    def note(self) -> str:
        """Say which synthetic views were matched; empty if there were none."""
        if self.described <= 2:
            return ""
        best = (
            f"image{side} " + ("as sent" if tilt == 1 else f"tilted {tilt:g}x at {angle:g} degrees")
            for side, (tilt, angle) in enumerate(self.best)
        )
        return f"{self.described} views were described, best {', '.join(best)}; {self.reason}"


@dataclass(frozen=True, slots=True, eq=False)
class MatchResult:
    """Two described images, their matches and the geometry of the matches.

    `same_scene` is the probability that both images show the same scene; None if no geometry was
    requested, or the model's card has no calibration for that geometry. `refined` are the refined
    points, None if none were. `orientation` says how patches were turned; `views` says
    which synthetic views were matched; `guided` (M,) marks the matches that were found along the
    geometry, None if there was no such search.
    """

    features0: Features
    features1: Features
    matches: Matches
    verification: Verification
    timings_ms: Mapping[str, float] = field(default_factory=dict)
    same_scene: float | None = None
    refined: RefinedPoints | None = None
    orientation: OrientationUsed = "oriented"
    views: ViewReport = field(default_factory=ViewReport)
    guided: Bool | None = None

    @property
    def model(self) -> str:
        """Name of the model that described both images."""
        return self.features0.model

    @property
    def inlier_count(self) -> int:
        """Number of matches that agree with the geometry."""
        return int(self.verification.inliers.sum())

    @property
    def truncated(self) -> bool:
        """Whether `max_keypoints` limited the keypoints of an image."""
        return self.features0.truncated or self.features1.truncated

    @property
    def notes(self) -> tuple[str, ...]:
        """What the user should know about how the images were processed."""
        named = (("image0", self.features0), ("image1", self.features1))
        reduced = (_reduction_note(name, features) for name, features in named)
        added = 0 if self.guided is None else int(self.guided.sum())
        guided = f"{added} matches were added along the geometry" if added else ""
        return tuple(note for note in (*reduced, self.views.note, guided) if note)

    def points(self) -> tuple[Float32, Float32]:
        """Return the matched points of both images, (M, 2) each, refined where they could be."""
        points0, points1 = self.keypoint_pairs()
        return points0, points1 if self.refined is None else self.refined.xy1

    def keypoint_pairs(self) -> tuple[Float32, Float32]:
        """Return the matched keypoints of both images, (M, 2) each, before any refinement."""
        pairs = self.matches.pairs
        return (
            self.features0.keypoints.xy[pairs[:, 0]],
            self.features1.keypoints.xy[pairs[:, 1]],
        )


def _reduction_note(name: str, features: Features) -> str:
    """Say that an image was reduced to its working size, or return an empty string."""
    if features.working_size in (None, features.size):
        return ""
    (width, height), (working_width, working_height) = features.size, features.working_size
    return (
        f"{name} was reduced from {width}x{height} to {working_width}x{working_height} to find "
        "keypoints; max_side=0 uses the full size"
    )
