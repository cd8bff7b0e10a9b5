"""Find the photographs of a folder that show what a query photograph shows.

python examples/visual_search.py photos query.jpg --index index

The folder is described once, with `binary` (32 bytes per keypoint), and kept in the index; only new
photographs are described later. Every photograph is compared with the query, which is right for
some thousands. For more, let `matchserve collection match --pairs retrieval:20` choose candidates.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from matchserve import Features, Matcher, MatchServeError
from matchserve.encoding import features_npz, read_features

SUFFIXES = {".jpg", ".jpeg", ".png", ".webp", ".tif", ".tiff"}
MODEL = "binary"


def main() -> int:
    """Describe what is new, rank all photographs by inliers, and print the best."""
    parser = argparse.ArgumentParser(description="Search a folder by photograph.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("query", type=Path)
    parser.add_argument("--index", type=Path, default=Path("index"))
    parser.add_argument("--top", type=int, default=5)
    names = parser.parse_args()
    matcher = Matcher(MODEL)
    try:
        query = matcher.features(names.query)
        ranked = sorted(search(matcher, query, names.folder, names.index), reverse=True)
    except MatchServeError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    sys.stdout.write("inliers  same_scene  photograph\n")
    for inliers, same_scene, name in ranked[: names.top]:
        sys.stdout.write(f"{inliers:7}  {same_scene:10.2f}  {name}\n")
    return 0


def search(
    matcher: Matcher, query: Features, folder: Path, index: Path
) -> Iterator[tuple[int, float, str]]:
    """Yield the inliers, the probability of one scene and the name of every photograph."""
    index.mkdir(parents=True, exist_ok=True)
    for path in sorted(p for p in folder.iterdir() if p.suffix.lower() in SUFFIXES):
        result = matcher.match_features(query, indexed(matcher, path, index))
        yield result.inlier_count, result.same_scene or 0.0, path.name


def indexed(matcher: Matcher, path: Path, index: Path) -> Features:
    """Return the features of a photograph, from the index if it has not changed since."""
    stored = index / f"{path.name}.npz"
    if not stored.exists() or stored.stat().st_mtime < path.stat().st_mtime:
        stored.write_bytes(features_npz(matcher.features(path)))
        sys.stderr.write(f"described {path.name}\n")
    return read_features(stored)


if __name__ == "__main__":
    sys.exit(main())
