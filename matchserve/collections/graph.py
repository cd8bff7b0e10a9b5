"""The view graph of a collection as a file for programs, such as the web page."""

from __future__ import annotations

from pathlib import Path

from matchserve.collections.collection import Collection
from matchserve.collections.colmap import read_model
from matchserve.collections.picture import layout
from matchserve.collections.report import view_graph
from matchserve.encoding import to_json
from matchserve.files import write_whole

MAX_EDGES = 50_000
"""Number of pairs in the file; those with most inliers are kept."""


def write_graph(collection: Collection, path: Path) -> None:
    """Write images with their place in the picture, and pairs as rows of image numbers.

    Columns of `pairs`: number of image 0, of image 1, matches, inliers, whether it is verified.
    """
    rows = [row for row in collection.images() if row.state == "described"]
    pairs = collection.pairs()
    graph = view_graph({row.id: row.name for row in rows}, pairs)
    numbers = {row.id: number for number, row in enumerate(rows)}
    matched = pairs[pairs[:, 3] >= 0]
    best = matched[(-matched[:, 4]).argsort(kind="stable")][:MAX_EDGES]
    sparse = collection.workspace.sparse / "0"
    places = layout(graph, read_model(sparse) if sparse.is_dir() else None)
    fields = {
        "images": [
            {"name": row.name, "keypoints": row.keypoints, "x": round(x, 4), "y": round(y, 4)}
            for row, (x, y) in zip(rows, places.tolist(), strict=True)
        ],
        "pairs": [
            [numbers[a], numbers[b], matches, inliers, verified]
            for a, b, _, matches, inliers, verified in best.tolist()
            if a in numbers and b in numbers
        ],
        "pairs_left_out": len(matched) - len(best),
    }
    write_whole(path, to_json(fields))
