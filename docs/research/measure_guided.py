"""Measure what guided matching adds: matches, how many are right, and CPU time.

    python docs/research/measure_guided.py PHOTOS [--limit 3] [--tilt 50]

Photographs are matched with tilted views of themselves, so the truth is known.
"""

from __future__ import annotations

import argparse
import time
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import typer

from matchserve.matcher import Matcher
from matchserve.options import Options
from matchserve.types import MatchResult
from matchserve.vision.geometry import VerifyOptions
from training.data.images import list_images, read_image
from training.evaluation.benchmarks.tilts import TiltedView, tilted
from training.metrics.image_pairs import transfer_error

RIGHT_PX = 3.0


def right(result: MatchResult, view: TiltedView) -> np.ndarray:
    """Return which matches are within 3 pixels of the truth."""
    return np.asarray(transfer_error(view.homography, *result.points()) <= RIGHT_PX)


def main() -> None:
    """Print one row for each kind of geometry."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("photos", type=Path)
    parser.add_argument("--limit", type=int, default=3)
    parser.add_argument("--tilt", type=float, default=50)
    arguments = parser.parse_args()
    matcher = Matcher("compact", threads=1)
    typer.echo(
        "| geometry | matches | right % | guided | right % | added | right % | confidence | CPU |"
    )
    typer.echo("|---|---|---|---|---|---|---|---|---|")
    for kind in ("homography", "fundamental"):
        options = Options(verify=VerifyOptions(kind))
        correct: list[list[np.ndarray]] = [[], [], []]
        confidence, cpu_s = [], [0.0, 0.0]
        for name, path in list(list_images([arguments.photos]).items())[: arguments.limit]:
            grey = np.asarray(read_image(path, max_side=1024).grey)
            rng = np.random.default_rng(zlib.crc32(name.encode()))
            view = tilted(grey, arguments.tilt, rng.uniform(0, 360), rng.uniform(-180, 180))
            for number, is_guided in enumerate((False, True)):
                start = time.process_time()
                found = matcher.match(grey, view.grey, replace(options, guided=is_guided))
                cpu_s[number] += time.process_time() - start
                is_right = right(found, view)
                correct[number].append(is_right)
            if found.guided is not None and found.matches.confidence is not None:
                correct[2].append(is_right[found.guided])
                confidence.append(found.matches.confidence[found.guided])
        cells = []
        for values in correct:
            joined = np.concatenate(values)
            cells += [str(len(joined)), f"{100 * joined.mean():.1f}"]
        mean = np.concatenate(confidence).mean()
        row = [kind, *cells, f"{mean:.2f}", f"{cpu_s[1] / cpu_s[0]:.2f}x"]
        typer.echo(f"| {' | '.join(row)} |")


if __name__ == "__main__":
    main()
