"""The command line: `matchserve match a.jpg b.jpg`.

Answers go to standard output or to files, words for people to standard error.
"""

from __future__ import annotations

import io
import signal
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from matchserve import bench as benchmark
from matchserve import doctor as doctor_module
from matchserve.drawing import draw_matches, png_bytes
from matchserve.encoding import features_npz, result_fields, result_npz
from matchserve.errors import InvalidParameter, MatchServeError, ModelError
from matchserve.matcher import Matcher, Options, read_file
from matchserve.models.registry import DEFAULT_MODEL, list_models
from matchserve.output import (
    STANDARD_OUTPUT,
    check_outputs,
    print_bench,
    print_summary,
    same_scene_text,
    say,
    write,
    write_json,
)
from matchserve.pattern import generate_pair
from matchserve.settings import load_settings
from matchserve.types import MatchResult, VerifyKind
from matchserve.vision.decode import ExifPolicy, decode, decode_colour, from_array
from matchserve.vision.geometry import Camera, VerifyOptions
from matchserve.vision.keypoints import DetectOptions
from matchserve.vision.matching import MatchOptions

app = typer.Typer(
    help="Match photographs with learned local descriptors.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

DRAWING_SIDE = 1600
JSON, NPZ, PNG = "application/json", "application/x-npz", "image/png"

Model = Annotated[str, typer.Option(help="Model name, or path to a model directory.")]
ModelsDir = Annotated[
    Path | None,
    typer.Option(help="Folder of models.", envvar="MATCHSERVE_MODELS_DIR", show_default="shipped"),
]
ProviderOption = Annotated[
    Literal["auto", "cpu", "cuda"],
    typer.Option(help="Device; a named one runs or it is an error.", envvar="MATCHSERVE_PROVIDER"),
]
MaxKeypoints = Annotated[int, typer.Option(help="Strongest keypoints kept, per image.")]
MaxSide = Annotated[int | None, typer.Option(help="Detect on a copy reduced to this side.")]
Upright = Annotated[bool, typer.Option(help="Ignore orientation: for cameras that never roll.")]
Exif = Annotated[
    Literal["apply", "ignore"], typer.Option(help="Turn the image as EXIF says, or not.")
]


@app.command()
def match(
    image0: Annotated[Path, typer.Argument(help="JPEG, PNG, WebP or TIFF.")],
    image1: Annotated[Path, typer.Argument(help="JPEG, PNG, WebP or TIFF.")],
    *,
    model: Annotated[
        str | None,
        typer.Option(help="Model name or path to its directory.", show_default=DEFAULT_MODEL),
    ] = None,
    max_keypoints: MaxKeypoints = 2048,
    ratio: Annotated[float | None, typer.Option(help="Lowe's ratio test, e.g. 0.85.")] = None,
    verify: Annotated[
        Literal["none", "homography", "fundamental", "pose"],
        typer.Option(help="Geometry the matches must agree on; pose needs both cameras."),
    ] = "fundamental",
    threshold_px: Annotated[float, typer.Option(help="Distance of an inlier.")] = 3.0,
    camera0: Annotated[str | None, typer.Option(help="fx,fy,cx,cy in pixels, for pose.")] = None,
    camera1: Annotated[str | None, typer.Option(help="fx,fy,cx,cy in pixels, for pose.")] = None,
    upright: Upright = False,
    max_side: MaxSide = None,
    exif: Exif = "apply",
    json: Annotated[Path | None, typer.Option(help="Write JSON here, - for stdout.")] = None,
    npz: Annotated[Path | None, typer.Option(help="Write arrays here.")] = None,
    draw: Annotated[Path | None, typer.Option(help="Draw the matches here, as PNG.")] = None,
    models_dir: ModelsDir = None,
    provider: ProviderOption = "auto",
    server: Annotated[
        str | None, typer.Option(help="Ask a running service, e.g. http://localhost:8000.")
    ] = None,
) -> None:
    """Match two images."""
    check_outputs((json, npz, draw), picture=draw)
    if server is not None:
        fields = {
            **({"model": model} if model is not None else {}),  # else the server's own default
            "max_keypoints": max_keypoints, "ratio": ratio, "verify": verify,
            "threshold_px": threshold_px, "upright": upright, "max_side": max_side, "exif": exif,
        }  # fmt: skip
        _match_on_server(server, (image0, image1), fields, (json, npz, draw))
        return
    options = Options(
        detect=DetectOptions(max_keypoints=max_keypoints, upright=upright),
        max_side=max_side,
        match=MatchOptions(ratio=ratio),
        verify=_verify_options(verify, threshold_px, camera0, camera1),
        exif=exif,
    )
    matcher = Matcher(model or DEFAULT_MODEL, models_dir=models_dir, provider=provider)
    data0, data1 = read_file(image0), read_file(image1)
    result = matcher.match(data0, data1, options)
    if json is not None:
        write_json(json, result_fields(result))
    if npz is not None:
        write(npz, result_npz(result))
    if draw is not None:
        write(draw, _drawn(data0, data1, result, exif))
    print_summary(result, matcher.descriptor.provider)


@app.command()
def describe(
    image: Annotated[Path, typer.Argument(help="JPEG, PNG, WebP or TIFF.")],
    *,
    output: Annotated[Path, typer.Option("--output", "-o", help="The npz file to write.")],
    model: Model = DEFAULT_MODEL,
    max_keypoints: MaxKeypoints = 2048,
    upright: Upright = False,
    max_side: MaxSide = None,
    exif: Exif = "apply",
    models_dir: ModelsDir = None,
    provider: ProviderOption = "auto",
) -> None:
    """Write an image's keypoints and descriptors."""
    options = Options(
        detect=DetectOptions(max_keypoints=max_keypoints, upright=upright),
        max_side=max_side,
        exif=exif,
    )
    matcher = Matcher(model, models_dir=models_dir, provider=provider)
    features = matcher.features(read_file(image), options)
    write(output, features_npz(features))
    say(escape(f"{len(features)} keypoints described by {features.model} in {output}"))


@app.command()
def models(
    *,
    models_dir: ModelsDir = None,
    json: Annotated[bool, typer.Option("--json", help="Print the cards as JSON.")] = False,
) -> None:
    """List the models there are."""
    found = list_models(models_dir)
    if json:
        cards = {
            name: {"error": card.message} if isinstance(card, ModelError) else card.model_dump()
            for name, card in found.items()
        }
        write_json(STANDARD_OUTPUT, cards, indent=True)
        return
    table = Table("model", "kind", "dim", "K", "method", "licence")
    for name, card in found.items():
        mark = f"{name} (default)" if name == DEFAULT_MODEL else name
        if isinstance(card, ModelError):
            table.add_row(mark, "-", "-", "-", f"[red]{escape(card.message)}[/]", "-")
        else:
            side = f"{card.patch.magnification:g}"
            table.add_row(mark, card.kind, str(card.dim), side, card.method, card.licence)
    Console().print(table)


@app.command()
def doctor(
    *,
    models_dir: ModelsDir = None,
    provider: ProviderOption = "auto",
    json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Say what this machine offers and what will really run; exit 1 if something is broken."""
    checks = doctor_module.examine(models_dir, provider)
    if json:
        write_json(STANDARD_OUTPUT, [check.fields() for check in checks], indent=True)
    else:
        table = Table("", "what", "finding")
        marks = {True: "[green]ok[/]", False: "[red]broken[/]", None: ""}
        for check in checks:
            table.add_row(marks[check.ok], check.name, escape(check.detail))
        Console().print(table)
    if any(check.ok is False for check in checks):
        raise typer.Exit(1)


@app.command()
def bench(
    images: Annotated[list[Path] | None, typer.Argument(help="Two images; else generated.")] = None,
    *,
    model: Annotated[list[str] | None, typer.Option(help="Repeat for several.")] = None,
    max_keypoints: MaxKeypoints = 2048,
    size: Annotated[str, typer.Option(help="Of the generated pair.")] = "1024x768",
    threads: Annotated[int, typer.Option(help="For every library.", min=1)] = 1,
    rounds: Annotated[int, typer.Option(help="Best of this many.", min=1)] = 5,
    json: Annotated[Path | None, typer.Option(help="Write JSON here, - for stdout.")] = None,
) -> None:
    """Time every stage, interleaved with OpenCV's SIFT and brute-force matching."""
    if images and len(images) != 2:
        raise InvalidParameter(f"bench takes two images or none, not {len(images)}")
    if images:
        pair = (decode(read_file(images[0])), decode(read_file(images[1])))
    else:
        first, second, _ = generate_pair(_parsed_size(size))
        pair = (from_array(first), from_array(second))
    report = benchmark.run(
        pair, model or [DEFAULT_MODEL], keypoints=max_keypoints, threads=threads, rounds=rounds
    )
    if json is not None:
        write_json(json, report.fields(), indent=True)
    print_bench(report)


@app.command()
def serve(
    *,
    host: Annotated[str | None, typer.Option(help="Address.", show_default="127.0.0.1")] = None,
    port: Annotated[int | None, typer.Option(help="Port.", show_default="8000")] = None,
    workers: Annotated[int | None, typer.Option(help="Processes.", show_default="1")] = None,
    default_model: Annotated[
        str | None, typer.Option(help="Of requests that name none.", show_default=DEFAULT_MODEL)
    ] = None,
    models_dir: ModelsDir = None,
    provider: ProviderOption = "auto",
    strict: Annotated[
        bool | None, typer.Option("--strict", help="Refuse to start when any model is broken.")
    ] = None,
) -> None:
    """Serve matches over HTTP; every other setting is a variable MATCHSERVE_*."""
    settings = load_settings(
        host=host,
        port=port,
        workers=workers,
        default_model=default_model,
        models_dir=models_dir,
        provider=provider,
        strict=strict,
    )
    # The service's libraries take a second to import that no other command needs.
    from matchserve.api.serve import serve as run_service

    raise typer.Exit(run_service(settings))


def main() -> None:
    """Run the command line; our own errors are one line and an exit code."""
    # Ctrl-C ends the process at once: nothing here needs tidying, and threads inside the
    # libraries would be waited for. The service sets handlers of its own.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that lacks a letter shows "?"
    try:
        app()
    except MatchServeError as error:
        say(f"[red]error:[/] {escape(error.message)}")
        sys.exit(error.exit_code)


def _match_on_server(
    url: str,
    images: tuple[Path, Path],
    fields: dict[str, Any],
    outputs: tuple[Path | None, Path | None, Path | None],
) -> None:
    """The same through a service, which describes and matches."""
    from matchserve.client import Client  # httpx is not needed otherwise

    with Client(url) as client:
        for path, accept in zip(outputs, (JSON, NPZ, PNG), strict=True):
            if path is not None:
                write(path, client.match_as(accept, *images, **fields))
        found = client.match(*images, **fields)
    say(
        f"[bold]{len(found.matches)} matches, {int(found.inliers.sum())} inliers[/]\n"
        f"{same_scene_text(found.same_scene)}\n"
        f"{len(found.keypoints0)} and {len(found.keypoints1)} keypoints, {found.model} at {url}"
    )


def _verify_options(
    kind: VerifyKind, threshold_px: float, camera0: str | None, camera1: str | None
) -> VerifyOptions:
    if kind != "pose" and (camera0 or camera1):
        raise InvalidParameter("cameras are for --verify pose")
    if camera0 is None or camera1 is None:
        return VerifyOptions(kind, threshold_px)
    cameras = (_parsed_camera(camera0), _parsed_camera(camera1))
    return VerifyOptions(kind, threshold_px, cameras=cameras)


def _parsed_camera(text: str) -> Camera:
    try:
        fx, fy, cx, cy = (float(part) for part in text.split(","))
    except ValueError as error:
        raise InvalidParameter(f"a camera is fx,fy,cx,cy in pixels, not {text!r}") from error
    return Camera(fx, fy, cx, cy)


def _parsed_size(text: str) -> tuple[int, int]:
    width, _, height = text.partition("x")
    if not (width.isdigit() and height.isdigit() and int(width) >= 64 and int(height) >= 64):
        raise InvalidParameter(f"a size is WIDTHxHEIGHT of at least 64 each, not {text!r}")
    return int(width), int(height)


def _drawn(data0: bytes, data1: bytes, result: MatchResult, exif: ExifPolicy) -> bytes:
    colour0 = decode_colour(data0, exif=exif, max_side=DRAWING_SIDE)
    colour1 = decode_colour(data1, exif=exif, max_side=DRAWING_SIDE)
    return png_bytes(draw_matches(colour0, colour1, result))
