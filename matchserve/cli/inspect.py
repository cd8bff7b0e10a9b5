"""`matchserve doctor` and `matchserve bench`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import cv2
import numpy as np
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from matchserve import bench as benchmark
from matchserve import defaults
from matchserve import doctor as doctor_module
from matchserve.cli.images import read_image_file
from matchserve.cli.options import JsonFile, MaxKeypoints, ModelsDir, ProviderOption
from matchserve.cli.output import STANDARD_OUTPUT, print_bench, printable, write_json
from matchserve.errors import InvalidParameter
from matchserve.pattern import generate_pair
from matchserve.types import Image, UInt8
from matchserve.vision.decode import decode, from_array


def doctor(
    *,
    models_dir: ModelsDir = None,
    provider: ProviderOption = "auto",
    json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Report what this machine offers and what will run; exit with 1 if something is broken."""
    checks = doctor_module.examine(models_dir, provider)
    if json:
        write_json(STANDARD_OUTPUT, [check.fields() for check in checks], indent=True)
    else:
        table = Table("", "what", "finding")
        marks = {True: "[green]ok[/]", False: "[red]broken[/]", None: ""}
        for check in checks:
            table.add_row(marks[check.ok], check.name, escape(printable(check.detail)))
        Console().print(table)
    if any(check.ok is False for check in checks):
        raise typer.Exit(1)


def bench(
    images: Annotated[
        list[Path] | None,
        typer.Argument(help="Two images to time; a generated pair if none are given."),
    ] = None,
    *,
    model: Annotated[
        list[str] | None,
        typer.Option(help="Model to time; repeat for several.", show_default=defaults.MODEL),
    ] = None,
    max_keypoints: MaxKeypoints = defaults.MAX_KEYPOINTS,
    size: Annotated[
        str | None,
        typer.Option(
            help="Size that the images are scaled to, or of the generated pair, WIDTHxHEIGHT.",
            show_default="that of the images; 1024x768 for the generated pair",
        ),
    ] = None,
    threads: Annotated[
        int, typer.Option(help="Number of CPU threads for OpenCV, FAISS and ONNX Runtime.", min=1)
    ] = 1,
    rounds: Annotated[
        int, typer.Option(help="Number of rounds; the best time of each stage counts.", min=1)
    ] = 5,
    json: JsonFile = None,
) -> None:
    """Time every stage beside OpenCV's SIFT with brute-force matching."""
    if images and len(images) != 2:
        raise InvalidParameter(f"bench takes two images or none, not {len(images)}")
    pair = _timed_pair(images or [], None if size is None else _parsed_size(size))
    report = benchmark.run(
        pair, model or [defaults.MODEL], keypoints=max_keypoints, threads=threads, rounds=rounds
    )
    if json is not None:
        write_json(json, report.fields(), indent=True)
    print_bench(report)


def _timed_pair(images: list[Path], size: tuple[int, int] | None) -> tuple[Image, Image]:
    """Decode and scale the given images, or generate two."""
    if not images:
        first, second, _ = generate_pair(size or (1024, 768))
        return from_array(first), from_array(second)
    one, other = (decode(read_image_file(path)) for path in images)
    if size is None:
        return one, other
    return from_array(_scaled(one, size)), from_array(_scaled(other, size))


def _scaled(image: Image, size: tuple[int, int]) -> UInt8:
    is_smaller = size[0] < image.size[0]
    return np.asarray(
        cv2.resize(
            image.grey, size, interpolation=cv2.INTER_AREA if is_smaller else cv2.INTER_CUBIC
        )
    )


def _parsed_size(text: str) -> tuple[int, int]:
    width, _, height = text.partition("x")
    if not (width.isdigit() and height.isdigit() and int(width) >= 64 and int(height) >= 64):
        raise InvalidParameter(f"a size must be WIDTHxHEIGHT, each at least 64, not {text!r}")
    return int(width), int(height)
