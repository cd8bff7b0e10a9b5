"""Pairs `spatial:K,Dm`: each image with the K nearest by GPS within D metres.

Images without a position get the pairs of `retrieval:K` instead.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from matchserve.collections.pairs.images import (
    PairImage,
    PairRows,
    Retriever,
    as_rows,
    check_pair_count,
    positive,
)
from matchserve.errors import InvalidParameter
from matchserve.types import Float64

DEFAULT_COUNT = 20
DEFAULT_METRES = 150.0
_METRES_PER_DEGREE = 111_320.0


def spatial(images: Sequence[PairImage], arguments: str, retriever: Retriever) -> PairRows:
    """Return the pairs of each image and its nearest ones.

    Raises:
        InvalidParameter: the arguments are not a number and a distance such as `150m`, or there
            are too many pairs.
    """
    count_text, _, distance_text = arguments.partition(",")
    count = positive(count_text, DEFAULT_COUNT, "the number of pairs 'spatial'")
    metres = _metres(distance_text)
    check_pair_count(len(images) * min(count, len(images)))
    located = [image for image in images if image.position is not None]
    ids = np.array([image.id for image in located], np.int64)
    found = [as_rows([])]
    if located:
        found.append(as_rows(ids[_near(local_metres(located), count, metres)]))
    lost = [image.id for image in images if image.position is None]
    if lost:
        found.append(as_rows(retriever(lost, count)))
    return np.concatenate(found)


def local_metres(images: Sequence[PairImage]) -> Float64:
    """Return positions east and north of the first image, in metres, (N, 2).

    A plane is exact enough to find neighbours: the error is 0.1 % at 10 km.
    """
    degrees = np.array([image.position[:2] for image in images if image.position], np.float64)
    north = degrees[:, 0] - degrees[0, 0]
    # Across the 180th meridian, the short way.
    east = (degrees[:, 1] - degrees[0, 1] + 180.0) % 360.0 - 180.0
    shrink = math.cos(math.radians(float(degrees[:, 0].mean())))
    return np.stack([east * shrink, north], axis=1) * _METRES_PER_DEGREE


def _near(points: Float64, count: int, metres: float) -> PairRows:
    """Return row numbers of the `count` nearest points of each point within `metres`."""
    cells: dict[tuple[int, int], list[int]] = defaultdict(list)
    keys = np.floor(points / metres).astype(np.int64)
    for row, (x, y) in enumerate(keys.tolist()):
        cells[x, y].append(row)
    pairs: list[tuple[int, int]] = []
    around = [(dx, dy) for dx in (-1, 0, 1) for dy in (-1, 0, 1)]
    for (x, y), members in cells.items():
        candidates = np.array([r for dx, dy in around for r in cells.get((x + dx, y + dy), ())])
        for row in members:
            distance = np.linalg.norm(points[candidates] - points[row], axis=1)
            order = np.lexsort((candidates, distance))[: count + 1]
            near = candidates[order[distance[order] <= metres]]
            pairs += [(row, other) for other in near.tolist() if other != row]
    return np.array(pairs, np.int64).reshape(-1, 2)


def _metres(text: str) -> float:
    if not text:
        return DEFAULT_METRES
    found = re.fullmatch(r"(\d+(?:\.\d+)?)m", text.strip())
    if found is None or float(found[1]) <= 0:
        raise InvalidParameter(f"the distance of pairs 'spatial' is like 150m, not {text!r}")
    return float(found[1])
