"""Measure what the search for synthetic views costs on pairs of unrelated images.

    python docs/research/measure_unrelated.py PHOTOS SCENES [--count 100]

Half of the pairs are two photographs of PHOTOS, half are images of two different folders of SCENES.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import typer

from matchserve.matcher import Matcher
from matchserve.options import Options, Views
from training.data.images import list_images, read_image

CHOICES: tuple[Views, ...] = (1, "auto")


def unrelated_pairs(photos: Path, scenes: Path, count: int) -> list[tuple[Path, Path]]:
    """Draw pairs of two photographs and of two scenes in turn."""
    rng = np.random.default_rng(1)
    single = list(list_images([photos]).values())
    folders = [
        list(list_images([folder]).values())
        for folder in sorted(scenes.iterdir())
        if folder.is_dir()
    ]
    pairs = []
    for number in range(count):
        if number % 2:
            one, other = rng.choice(len(single), 2, replace=False)
            pairs.append((single[one], single[other]))
        else:
            one, other = rng.choice(len(folders), 2, replace=False)
            pairs.append((rng.choice(folders[one]), rng.choice(folders[other])))
    return pairs


def main() -> None:
    """Print one row for each choice of views."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("photos", type=Path)
    parser.add_argument("scenes", type=Path)
    parser.add_argument("--count", type=int, default=100)
    arguments = parser.parse_args()
    matcher = Matcher("compact", threads=1)
    pairs = unrelated_pairs(arguments.photos, arguments.scenes, arguments.count)
    typer.echo("| views | pairs | searched | CPU s a pair | matches | same_scene above 0.5 |")
    typer.echo("|---|---|---|---|---|---|")
    for views in CHOICES:
        cpu_s = 0.0
        matches = searched = alike = 0
        for one, other in pairs:
            images = read_image(one), read_image(other)
            start = time.process_time()
            found = matcher.match(*images, Options(views=views))
            cpu_s += time.process_time() - start
            matches += len(found.matches)
            searched += found.views.described > 2
            alike += (found.same_scene or 0.0) > 0.5
        row = [views, len(pairs), searched, f"{cpu_s / len(pairs):.2f}", matches, alike]
        typer.echo(f"| {' | '.join(map(str, row))} |")


if __name__ == "__main__":
    main()
