"""Print the pairs of photographs in a folder that probably show the same scene.

python examples/find_duplicates.py photos
"""

from __future__ import annotations

import argparse
import itertools
import sys
from pathlib import Path

from matchserve import Matcher

SUFFIXES = {".jpg", ".jpeg", ".png", ".webp"}


def main() -> int:
    """Describe every photograph once, match every pair, print the probable ones."""
    parser = argparse.ArgumentParser(description="Find photographs of the same scene.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--at-least", type=float, default=0.9, help="Smallest same_scene.")
    arguments = parser.parse_args()

    matcher = Matcher()
    paths = sorted(p for p in arguments.folder.iterdir() if p.suffix.lower() in SUFFIXES)
    features = {path: matcher.features(path) for path in paths}
    for path0, path1 in itertools.combinations(paths, 2):
        result = matcher.match_features(features[path0], features[path1])
        if (result.same_scene or 0.0) >= arguments.at_least:
            sys.stdout.write(f"{result.same_scene:.2f}  {path0.name}  {path1.name}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
