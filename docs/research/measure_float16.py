"""Compare a float16 model with its float32 original over many seeds of the robust estimator.

    python docs/research/measure_float16.py SEQUENCES [--pattern 'oxford_*'] [--seeds 20]

The images are described once; only the random samples of the estimator differ between seeds.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np
import typer

from training.evaluation.benchmarks.homography import AUC_LIMITS, PIXELS, read_sequences, score
from training.evaluation.pipeline import variants
from training.evaluation.protocol import Options, load_models
from training.metrics.metric import HOMOGRAPHY_AUC, MMA

ORIGINAL, SMALLER = "compact", "compact-fp16"


def main() -> None:
    """Print one row for each limit of the homography error, then the difference of MMA."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sequences", type=Path)
    parser.add_argument("--pattern", default="oxford_*")
    parser.add_argument("--seeds", type=int, default=20)
    arguments = parser.parse_args()
    options = Options(pattern=arguments.pattern)
    sequences = read_sequences([arguments.sequences], options.pattern)
    models = [m for m in load_models([ORIGINAL, SMALLER], options) if m.name in (ORIGINAL, SMALLER)]
    figures = {
        each.name: [
            score(each.predictions, each.found, sequences, replace(options, seed=seed)).figures
            for seed in range(arguments.seeds)
        ]
        for each in variants(models, sequences.images, options)
    }
    typer.echo("| AUC, % | float32: mean, lowest to highest | float16 | difference | its error |")
    typer.echo("|---|---|---|---|---|")
    for limit in AUC_LIMITS:
        name = HOMOGRAPHY_AUC.of(limit)
        one, other = (
            100 * np.array([seed[name] for seed in figures[model]]) for model in (ORIGINAL, SMALLER)
        )
        difference = other - one
        error = difference.std(ddof=1) / np.sqrt(len(difference))
        typer.echo(
            f"| {limit} px | {one.mean():.2f}, {one.min():.2f} to {one.max():.2f} | "
            f"{other.mean():.2f}, {other.min():.2f} to {other.max():.2f} | "
            f"{difference.mean():+.2f} | {error:.2f} |"
        )
    mma = [
        100 * abs(figures[SMALLER][0][MMA.of(px)] - figures[ORIGINAL][0][MMA.of(px)])
        for px in PIXELS
    ]
    typer.echo(f"MMA at {PIXELS[0]} to {PIXELS[-1]} px differs by at most {max(mma):.3f} points")


if __name__ == "__main__":
    main()
