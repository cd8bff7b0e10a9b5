"""The nouns of the project: frozen, checked once when made, arrays read-only.

Conventions, everywhere: `xy` is (x, y) with the centre of the top-left pixel at (0, 0), x right
and y down; `size` is (width, height); `shape` is (rows, columns); sigma is the scale-space sigma
in pixels (OpenCV's `KeyPoint.size` is twice that); angles are radians, clockwise as seen.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from matchserve.errors import InvalidParameter

Float32 = NDArray[np.float32]
Float64 = NDArray[np.float64]
Int32 = NDArray[np.int32]
UInt8 = NDArray[np.uint8]
Bool = NDArray[np.bool_]

DescriptorKind = Literal["float", "binary"]
Border = Literal["replicate", "reflect"]
VerifyKind = Literal["none", "homography", "fundamental", "pose"]


def _frozen(array: NDArray[Any], dtype: type, shape: tuple[int | None, ...], name: str) -> Any:
    """Return `array` as a read-only array of `dtype`, refusing any other shape."""
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
    """Whether every row has length one, as float descriptors must."""
    return bool(np.all(np.abs(np.linalg.norm(rows, axis=1) - 1.0) < 1e-3))


@dataclass(frozen=True, slots=True, eq=False)
class Image:
    """A grey working image, and the size of the image it was sent as.

    `grey` may be smaller than `size` says (a `max_side` working size). All coordinates that leave
    the vision functions are in the sent image.
    """

    grey: UInt8
    size: tuple[int, int]

    def __post_init__(self) -> None:
        object.__setattr__(self, "grey", _frozen(self.grey, np.uint8, (None, None), "grey"))

    @property
    def scale_xy(self) -> Float64:
        """Working pixels per sent pixel, for x and for y."""
        rows, columns = self.grey.shape
        return np.array([columns / self.size[0], rows / self.size[1]])

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
    """Everything that could make two crops of one keypoint differ.

    `magnification` is the side of the square image region in sigmas (K); `size` the side of the
    patch in samples. `version` changes whenever the sampling rule of `vision.patches` does.
    """

    size: int = 32
    magnification: float = 12.0
    border: Border = "replicate"
    antialias: bool = True
    version: int = 1

    def __post_init__(self) -> None:
        if not 8 <= self.size <= 128:
            raise InvalidParameter(f"patch size {self.size} is not in 8..128")
        if not 1.0 <= self.magnification <= 100.0:
            raise InvalidParameter(f"patch magnification {self.magnification} is not in 1..100")
        if self.border not in ("replicate", "reflect"):
            raise InvalidParameter(f"patch border {self.border!r} is not replicate or reflect")
        if self.version != 1:
            raise InvalidParameter(f"patch version {self.version} is not known here (1 is)")


@dataclass(frozen=True, slots=True, eq=False)
class Features:
    """Keypoints with their descriptors: (N, D) float32 unit rows, or (N, D/8) uint8 bits.

    `fingerprint` tells two models of one name apart; it is empty where nobody recorded it.
    """

    keypoints: Keypoints
    descriptors: NDArray[Any]
    model: str
    size: tuple[int, int]
    fingerprint: str = ""

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
    """Index pairs (M, 2), always mutual, by increasing index in image 0.

    `distance` is Euclidean for float descriptors and in bits for binary ones; `score` is the
    same on one scale for both: 1 for equal descriptors, 0 for opposite ones.
    """

    pairs: Int32
    distance: Float32
    score: Float32

    def __post_init__(self) -> None:
        object.__setattr__(self, "pairs", _frozen(self.pairs, np.int32, (None, 2), "pairs"))
        for name in ("distance", "score"):
            value = _frozen(getattr(self, name), np.float32, (len(self.pairs),), name)
            object.__setattr__(self, name, value)

    def __len__(self) -> int:
        return len(self.pairs)


@dataclass(frozen=True, slots=True, eq=False)
class Verification:
    """What geometry says of M matches.

    `matrix` is the homography, fundamental or essential matrix from image 0 to image 1, `None`
    when no model was found; `pose` is (R | t), 3x4, with t of unit length, only for `kind="pose"`.
    `confidence` is the probability that this many inliers are not chance, `log_nfa` the natural
    logarithm of how many such agreements chance would give, at most 0 (see `vision.geometry`).
    """

    kind: VerifyKind
    matrix: Float64 | None
    inliers: Bool
    confidence: float
    pose: Float64 | None = None
    log_nfa: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "inliers", _frozen(self.inliers, np.bool_, (None,), "inliers"))
        for name, shape in (("matrix", (3, 3)), ("pose", (3, 4))):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, _frozen(value, np.float64, shape, name))


@dataclass(frozen=True, slots=True, eq=False)
class MatchResult:
    """Two described images, their matches and what geometry says of them.

    `same_scene` is the probability that both show one scene; None when no geometry was asked for,
    or the model's card has no calibration for that geometry.
    """

    features0: Features
    features1: Features
    matches: Matches
    verification: Verification
    timings_ms: Mapping[str, float] = field(default_factory=dict)
    same_scene: float | None = None

    @property
    def model(self) -> str:
        """The descriptor that both images were described with."""
        return self.features0.model

    @property
    def inlier_count(self) -> int:
        """How many matches agree with the geometry."""
        return int(self.verification.inliers.sum())

    def points(self) -> tuple[Float32, Float32]:
        """Matched points, (M, 2) in each image, row i belonging to row i."""
        pairs = self.matches.pairs
        return (
            self.features0.keypoints.xy[pairs[:, 0]],
            self.features1.keypoints.xy[pairs[:, 1]],
        )
