"""Shards: groups of image pairs that are matched together, and the files of their results.

A shard is named by everything its result depends on, so a result that exists never has to be made
again, whoever made it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from matchserve.collections.colmap_verification import ColmapGeometry, read_geometry
from matchserve.errors import StorageDamaged
from matchserve.matcher import Options
from matchserve.objects import Place
from matchserve.sealed import read_sealed, write_sealed
from matchserve.types import Bool, Float32, Float64, Int32, MatchResult

Verifier = Literal["matchserve", "colmap"]
"""What estimates the geometry of a pair's matches."""

FORMAT = 2
"""Version of the stored results; a new one matches all pairs anew."""

MIN_INLIERS = 15
"""Least number of inliers of a verified pair; COLMAP uses no pair with fewer."""

MAX_LOG_NFA = -5.0
"""Largest logarithm of the number of false alarms of a verified pair.

On 780 pairs of photographs this kept 99 % of those of one scene and 2 % of the others; by the
number of inliers alone, nearly all pairs of unrelated photographs pass.
"""

MAX_PAIRS = 256
_MIN_PAIRS = 8
_SHARDS_OF_A_SMALL_RUN = 16
_BLOCK = 64  # images


@dataclass(frozen=True, slots=True)
class Shard:
    """Pairs of feature keys to match, and the name of the result.

    `focal_px` are the focal lengths, in pixels, of the images whose header says so, by feature key.
    """

    id: str
    keys: tuple[tuple[str, str], ...]
    focal_px: Mapping[str, float] = field(default_factory=dict)


def shard_id(
    keys: Sequence[tuple[str, str]], options: Options, verifier: Verifier = "matchserve"
) -> str:
    """Return the name of a shard's result."""
    parts = {"format": FORMAT, "options": asdict(options), "keys": keys}
    if verifier != "matchserve":
        parts["verifier"] = verifier
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]


def divide(pairs: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Divide pairs of image numbers, (P, 2), into shards that touch few images each.

    The division depends on the pairs alone, not on the number of workers. Small runs get small
    shards, so that several workers can share them.
    """
    if len(pairs) == 0:
        return []
    block = pairs // _BLOCK
    order = np.lexsort((pairs[:, 0], pairs[:, 1], block[:, 1], block[:, 0]))
    size = min(max(-(-len(pairs) // _SHARDS_OF_A_SMALL_RUN), _MIN_PAIRS), MAX_PAIRS)
    return np.split(pairs[order], range(size, len(pairs), size))


@dataclass(frozen=True, slots=True, eq=False)
class PairResult:
    """The stored result of one pair: M matches, and the geometry that some of them agree on.

    `confidence` is the probability that a match is right, and `xy1` the refined position in image
    1; each is None if it was not computed. `colmap` is COLMAP's geometry if COLMAP verified the
    pair; `log_nfa` is 0 and `same_scene` None then.
    """

    keys: tuple[str, str]
    rows: Int32
    score: Float32
    confidence: Float32 | None
    xy1: Float32 | None
    inliers: Bool
    kind: str
    matrix: Float64 | None
    log_nfa: float
    same_scene: float | None
    colmap: ColmapGeometry | None = None

    @property
    def is_verified(self) -> bool:
        """Whether enough matches agree on a geometry, and not by chance."""
        if self.colmap is not None:
            return self.colmap.is_verified and self.matrix is not None
        inliers = int(self.inliers.sum())
        return self.matrix is not None and inliers >= MIN_INLIERS and self.log_nfa <= MAX_LOG_NFA


def shard_path(folder: Place, shard: str) -> Place:
    """Return the file of a shard's result."""
    return folder / f"{shard}.npz"


def result_columns(result: MatchResult) -> dict[str, NDArray[Any]]:
    """Return what is stored of one pair, without the features of its images."""
    verification, count = result.verification, len(result.matches)
    xy1 = None if result.refined is None else result.refined.xy1
    matrix, scene = verification.matrix, result.same_scene
    return {
        "rows": result.matches.pairs,
        "score": result.matches.score.astype(np.float16),
        "confidence": _or_nan(result.matches.confidence, (count,), np.float16),
        "xy1": _or_nan(xy1, (count, 2), np.float32),
        "inliers": verification.inliers,
        "kind": np.array([verification.kind], "U16"),
        "matrix": _or_nan(None if matrix is None else matrix[None], (1, 3, 3), np.float64),
        "log_nfa": np.array([verification.log_nfa]),
        "same_scene": np.array([np.nan if scene is None else scene], np.float32),
    }


def write_results(
    path: Place, keys: Sequence[tuple[str, str]], columns: Sequence[dict[str, NDArray[Any]]]
) -> int:
    """Store the results of a shard, as `result_columns` gives them; return the number of bytes.

    Raises:
        StorageFull: there is no room on the disk.
    """
    joined = {name: np.concatenate([c[name] for c in columns]) for name in columns[0]}
    counts = [len(c["rows"]) for c in columns]
    joined["keys"] = np.array(keys, "U64")
    joined["offsets"] = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    return write_sealed(path, joined)


def read_results(path: Place) -> list[PairResult]:
    """Read the results of a shard.

    Raises:
        StorageDamaged: the file is absent or damaged.
    """
    arrays = read_sealed(path)
    try:
        return [_pair(arrays, number) for number in range(len(arrays["keys"]))]
    except (KeyError, IndexError, ValueError) as error:
        raise StorageDamaged(f"{path} does not contain matches") from error


def _or_nan(value: Any, shape: tuple[int, ...], dtype: type) -> NDArray[Any]:
    return np.full(shape, np.nan, dtype) if value is None else np.asarray(value, dtype)


def _pair(arrays: dict[str, NDArray[Any]], number: int) -> PairResult:
    start, end = arrays["offsets"][number : number + 2]
    part = {n: arrays[n][start:end] for n in ("rows", "score", "confidence", "xy1", "inliers")}
    matrix, scene = arrays["matrix"][number], float(arrays["same_scene"][number])
    first, second = (str(key) for key in arrays["keys"][number])
    return PairResult(
        keys=(first, second),
        rows=part["rows"],
        score=part["score"].astype(np.float32),
        confidence=_known(part["confidence"].astype(np.float32)),
        xy1=_known(part["xy1"]),
        inliers=part["inliers"],
        kind=str(arrays["kind"][number]),
        matrix=_known(matrix),
        log_nfa=float(arrays["log_nfa"][number]),
        same_scene=None if np.isnan(scene) else scene,
        colmap=read_geometry(arrays, number),
    )


def _known(values: NDArray[Any]) -> NDArray[Any] | None:
    return None if values.size == 0 or np.isnan(values).any() else values
