"""The command line of benchmarks: `python -m training evaluate …` and `compare …`."""

from __future__ import annotations

import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from training.errors import DataError
from training.evaluation.protocol import (
    DEFAULT_CACHE,
    Benchmark,
    Options,
    load_models,
)

app = typer.Typer(
    help="Measure and compare descriptors.", no_args_is_help=True, add_completion=False
)

BENCHMARK_NAMES = (
    "homography", "pose", "sfm", "rotation", "speed", "pairs", "phototour", "hpatches",
)  # fmt: skip
# Reconstruction needs more keypoints than a pair does.
_DEFAULT_KEYPOINTS = {"sfm": 8192}


def find_benchmark(name: str) -> Benchmark:
    """The benchmark of that name; only its own imports are paid for.

    Raises:
        DataError: there is none.
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
    )

    benchmarks: dict[str, Benchmark] = {
        "homography": homography.run,
        "pose": pose.run,
        "sfm": sfm.run,
        "rotation": rotation.run,
        "speed": speed.run,
        "pairs": pairs.run,
        "phototour": phototour.run,
        "hpatches": hpatches.run,
    }
    if name not in benchmarks:
        raise DataError(f"no benchmark {name!r}; there are {', '.join(benchmarks)}")
    return benchmarks[name]


@app.command()
def evaluate(
    models: Annotated[list[str], typer.Argument(help="Names or model directories (with a /).")],
    benchmark: Annotated[str, typer.Option(help=", ".join(BENCHMARK_NAMES))],
    data: Annotated[list[Path], typer.Option(help="Its data; repeatable.")],
    json: Annotated[Path | None, typer.Option(help="Write everything here.")] = None,
    markdown: Annotated[Path | None, typer.Option(help="Write the table here.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw a PNG.")] = None,
    max_keypoints: Annotated[
        int | None, typer.Option(help="Per image; 2048, or 8192 for sfm.", min=1)
    ] = None,
    ratio: Annotated[float | None, typer.Option(help="Ratio test; none if not given.")] = None,
    threshold: Annotated[float, typer.Option(help="Of the robust estimator, in pixels.")] = 3.0,
    pattern: Annotated[str, typer.Option(help="Sequences to use, e.g. oxford_*.")] = "*",
    limit: Annotated[int | None, typer.Option(help="Pairs or images at most.")] = None,
    split: Annotated[str, typer.Option(help="HPatches split: a, b, c, illum, view, full.")] = "a",
    seed: Annotated[int, typer.Option(help="Of estimators and random choices.")] = 0,
    threads: Annotated[int | None, typer.Option(help="Of the models; all cores.")] = None,
    cache: Annotated[Path, typer.Option(help="Where predictions are kept.")] = DEFAULT_CACHE,
) -> None:
    """Measure models side by side, with sift and rootsift always in the table."""
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
    model_a: Annotated[str, typer.Argument(help="A model in the result.")],
    model_b: Annotated[str, typer.Argument(help="The one that may be better.")],
    result: Annotated[Path, typer.Option("--json", help="Written by evaluate --json.")],
    other: Annotated[
        Path | None, typer.Option(help="Result that holds the second model, if another.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the resampling.")] = 0,
) -> None:
    """Paired bootstrap: is B better than A, by how much, with a 95 % interval."""
    from training.evaluation import compare as comparing
    from training.evaluation.tables import read_json

    held = read_json(result)
    found = comparing.compare(
        held, model_a, held if other is None else read_json(other), model_b, seed=seed
    )
    typer.echo(comparing.to_markdown(found, model_a, model_b))


# Where a run leaves its files says nothing about what it measured.
_OUTPUTS = ("--json", "--markdown", "--plot", "--cache")


def shown_command(words: list[str]) -> str:
    """A command that prints the table again: no outputs, no folders above the data's own."""
    kept = [
        word
        for before, word in zip(["", *words], words, strict=False)
        if word not in _OUTPUTS and before not in _OUTPUTS
    ]
    short = [Path(word).name if word.startswith("/") else word for word in kept]
    return shlex.join(["python", "-m", "training", *short])


@app.command()
def picture(
    photo: Annotated[Path, typer.Argument(help="A photograph; a view of it is generated.")],
    out: Annotated[Path, typer.Option("-o", "--out", help="JPEG or PNG to write.")],
    model: Annotated[list[str], typer.Option(help="One row each; repeatable.")],
    level: Annotated[str, typer.Option(help="easy, medium, hard or night.")] = "night",
    seed: Annotated[int, typer.Option(help="Of the view.")] = 0,
) -> None:
    """Draw right and wrong matches of several models on one photograph and a view of it."""
    from training.evaluation.picture import picture as draw

    for row in draw(photo, model, out, level=level, seed=seed):
        typer.echo(f"{row.model}: {row.correct} of {row.matches} matches are right")
