"""The commands `python -m training evaluate`, `compare` and `picture`."""

from __future__ import annotations

import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from matchserve import defaults
from matchserve.options import parse_views
from matchserve.vision.selection import Selection
from training.errors import DataError
from training.evaluation.protocol import (
    DEFAULT_CACHE,
    Benchmark,
    Options,
    Pipeline,
    load_models,
)

app = typer.Typer(
    help="Measure and compare descriptors.", no_args_is_help=True, add_completion=False
)

BENCHMARK_NAMES = (
    "homography", "pose", "wide", "sfm", "rotation", "speed", "tilts", "pairs", "phototour",
    "hpatches",
)  # fmt: skip
# Reconstruction needs more keypoints than a pair does.
_DEFAULT_KEYPOINTS = {"sfm": 8192}


def find_benchmark(name: str) -> Benchmark:
    """Return the benchmark of that name.

    Raises:
        DataError: there is no such benchmark.
    """
    from training.evaluation.benchmarks import (
        homography,
        hpatches,
        pairs,
        phototour,
        pose,
        rotation,
        sfm,
        speed,
        tilts,
        wide,
    )

    benchmarks: dict[str, Benchmark] = {
        "homography": homography.run,
        "pose": pose.run,
        "wide": wide.run,
        "sfm": sfm.run,
        "rotation": rotation.run,
        "speed": speed.run,
        "tilts": tilts.run,
        "pairs": pairs.run,
        "phototour": phototour.run,
        "hpatches": hpatches.run,
    }
    if name not in benchmarks:
        raise DataError(f"no benchmark {name!r}; there are {', '.join(benchmarks)}")
    return benchmarks[name]


@app.command()
def evaluate(
    models: Annotated[
        list[str],
        typer.Argument(
            help="Model names, or paths (with a /): model directories, runs, weights files."
        ),
    ],
    benchmark: Annotated[
        str, typer.Option(help=f"Benchmark to run: {', '.join(BENCHMARK_NAMES)}.")
    ],
    data: Annotated[list[Path], typer.Option(help="Data of the benchmark; may be repeated.")],
    json: Annotated[
        Path | None, typer.Option(help="Write the whole result to this JSON file.")
    ] = None,
    markdown: Annotated[
        Path | None, typer.Option(help="Write the table to this Markdown file.")
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the result to this PNG file.")] = None,
    max_keypoints: Annotated[
        int | None, typer.Option(help="Keypoints per image; default 2048, 8192 for sfm.", min=1)
    ] = None,
    ratio: Annotated[
        float | None, typer.Option(help="Threshold of the ratio test; no test if not given.")
    ] = None,
    threshold: Annotated[
        float, typer.Option(help="Inlier threshold of the estimator, in pixels.")
    ] = 3.0,
    pattern: Annotated[
        str, typer.Option(help="Pattern of the sequences to use, e.g. oxford_*.")
    ] = "*",
    limit: Annotated[int | None, typer.Option(help="Maximum number of pairs or images.")] = None,
    split: Annotated[str, typer.Option(help="HPatches split: a, b, c, illum, view, full.")] = "a",
    seed: Annotated[int, typer.Option(help="Random seed for estimators and samples.")] = 0,
    threads: Annotated[
        int | None, typer.Option(help="Number of CPU threads of a model; default all cores.")
    ] = None,
    pipeline: Annotated[
        Pipeline,
        typer.Option(
            help="Which matches are measured (homography, pose, wide, sfm): raw mutual nearest "
            "neighbours, the default of the service, or (not sfm) both beside OpenCV's SIFT with "
            "ratio 0.8."
        ),
    ] = "raw",
    selection: Annotated[
        Selection | None,
        typer.Option(
            help="How keypoints are chosen, with one raw match for each position; that of the "
            "pipeline if not given (homography, pose, wide)."
        ),
    ] = None,
    views: Annotated[
        str,
        typer.Option(
            help="Number of pairs of synthetic views that the default pipeline matches, auto or "
            "search (homography, pose, wide)."
        ),
    ] = str(defaults.VIEWS),
    cache: Annotated[Path, typer.Option(help="Folder to cache predictions in.")] = DEFAULT_CACHE,
) -> None:
    """Measure models on a benchmark; sift and rootsift are always measured too."""
    from training.evaluation import tables

    run = find_benchmark(benchmark)
    options = Options(
        max_keypoints=max_keypoints or _DEFAULT_KEYPOINTS.get(benchmark, 2048),
        ratio=ratio,
        threshold_px=threshold,
        pattern=pattern,
        limit=limit,
        split=split,
        seed=seed,
        threads=threads,
        pipeline=pipeline,
        selection=selection,
        views=parse_views(views),
        cache=cache,
    )
    options = replace(options, workspace=cache / "work")
    result = run(load_models(models, options), data, options)
    command = shown_command(sys.argv[1:])
    table = tables.to_markdown(result, command)
    typer.echo(table)
    for path, text in ((json, tables.to_json(result, command)), (markdown, table)):
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    if plot is not None:
        tables.plot(result, plot)


@app.command()
def compare(
    model_a: Annotated[str, typer.Argument(help="Model A, named as in the result.")],
    model_b: Annotated[str, typer.Argument(help="Model B, which may be better than A.")],
    result: Annotated[
        Path, typer.Option("--json", help="Result file written by `evaluate --json`.")
    ],
    other: Annotated[
        Path | None, typer.Option(help="Result file of model B, if it is another file.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Random seed for the bootstrap.")] = 0,
) -> None:
    """Compare two models by a paired bootstrap, with 95 % intervals."""
    from training.evaluation import compare as comparing
    from training.evaluation.tables import read_json

    result_a = read_json(result)
    result_b = result_a if other is None else read_json(other)
    comparisons = comparing.compare(result_a, model_a, result_b, model_b, seed=seed)
    typer.echo(comparing.to_markdown(comparisons, model_a, model_b))


# These options say where files are written, not what is measured.
_OUTPUTS = ("--json", "--markdown", "--plot", "--cache")


def shown_command(words: list[str]) -> str:
    """Return the command that measures the same, without output options and absolute paths."""
    kept = [
        word
        for before, word in zip(["", *words], words, strict=False)
        if word not in _OUTPUTS and before not in _OUTPUTS
    ]
    short = [Path(word).name if word.startswith("/") else word for word in kept]
    return shlex.join(["python", "-m", "training", *short])


@app.command()
def picture(
    photo: Annotated[Path, typer.Argument(help="Photograph; a synthetic view of it is generated.")],
    out: Annotated[Path, typer.Option("-o", "--out", help="JPEG or PNG file to write.")],
    model: Annotated[list[str], typer.Option(help="Model to draw a row of; may be repeated.")],
    level: Annotated[
        str, typer.Option(help="Difficulty of the view: easy, medium, hard, night.")
    ] = "night",
    seed: Annotated[int, typer.Option(help="Random seed of the view.")] = 0,
) -> None:
    """Draw the correct and wrong matches of models between a photograph and a synthetic view."""
    from training.evaluation.picture import picture as draw

    for row in draw(photo, model, out, level=level, seed=seed):
        typer.echo(f"{row.model}: {row.correct} of {row.matches} matches are correct")
