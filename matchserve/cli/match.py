"""`matchserve match`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from matchserve import defaults
from matchserve.cli.extras import IgnoredShapes, MaskFile, PointsFile, extras, refuse_with_tiles
from matchserve.cli.images import (
    limits_of,
    named_errors,
    named_service_errors,
    read_image_file,
)
from matchserve.cli.map_coordinates import MapCoordinates, read_map_coordinates
from matchserve.cli.options import (
    CameraOfBoth,
    CameraOfFirst,
    CameraOfSecond,
    DetectorOption,
    Duplicates,
    Exif,
    FurtherOrientations,
    ImageFile,
    JsonFile,
    MaxKeypoints,
    MaxPixels,
    MaxSide,
    ModelsDir,
    ProviderOption,
    SelectionOption,
    Server,
    Tiles,
    Upright,
    ViewsOption,
)
from matchserve.cli.output import (
    check_outputs,
    print_summary,
    same_scene_text,
    say,
    write,
    write_json,
)
from matchserve.drawing import draw_matches, png_bytes
from matchserve.encoding import result_fields, result_npz
from matchserve.large import match_large, thumbnail
from matchserve.limits import LIBRARY_LIMITS, Limits
from matchserve.matcher import Matcher, Options
from matchserve.options import parse_views, verify_options
from matchserve.pipeline.judging import JudgeOptions
from matchserve.types import MatchResult
from matchserve.vision.decode import ExifPolicy, decode_colour
from matchserve.vision.geometry import VerifyChoice
from matchserve.vision.keypoints import DetectOptions
from matchserve.vision.matching import MatchOptions

DRAWING_SIDE = 1600
JSON, NPZ, PNG = "application/json", "application/x-npz", "image/png"


def match(
    image0: ImageFile,
    image1: ImageFile,
    *,
    model: Annotated[
        str | None,
        typer.Option(help="Model name, or path to a model directory.", show_default=defaults.MODEL),
    ] = None,
    max_keypoints: MaxKeypoints = defaults.MAX_KEYPOINTS,
    ratio: Annotated[
        float | None,
        typer.Option(
            help="Maximum ratio of nearest to second-nearest distance (Lowe's ratio test), "
            "e.g. 0.85.",
            show_default="no test",
        ),
    ] = None,
    max_distance: Annotated[
        float | None,
        typer.Option(
            help="Maximum distance of matched descriptors: Euclidean, or a number of bits.",
            show_default="no limit",
        ),
    ] = None,
    min_confidence: Annotated[
        float,
        typer.Option(
            help="Least probability of being right with which a match is returned; 0 returns "
            "every mutual nearest neighbour."
        ),
    ] = defaults.MIN_CONFIDENCE,
    refine: Annotated[
        Literal["none", "affine"],
        typer.Option(help="Refine the points of the second image to a fraction of a pixel."),
    ] = defaults.REFINE,
    orientation: Annotated[
        Literal["auto", "oriented", "upright", "search"],
        typer.Option(
            help="Whether patches are turned by the orientation of their keypoint; auto also "
            "tries upright patches if turned ones find few matches, and search also tries to turn "
            "the second image as a whole."
        ),
    ] = defaults.ORIENTATION,
    views: ViewsOption = str(defaults.VIEWS),
    guided: Annotated[
        bool, typer.Option(help="Search more matches along the geometry that was found.")
    ] = defaults.GUIDED,
    verify: Annotated[
        VerifyChoice | None,
        typer.Option(
            help="Geometry that the matches are checked against: homography for a flat scene, "
            "similarity or affine for maps and aerial views, fundamental for any other; auto "
            "chooses; pose needs both cameras. By default auto with the model robust, fundamental "
            "with all others."
        ),
    ] = None,
    threshold_px: Annotated[
        float,
        typer.Option(help="Maximum distance between an inlier and the geometry, in pixels."),
    ] = defaults.THRESHOLD_PX,
    camera: CameraOfBoth = None,
    camera0: CameraOfFirst = None,
    camera1: CameraOfSecond = None,
    mask0: MaskFile = None,
    mask1: MaskFile = None,
    ignore0: IgnoredShapes = None,
    ignore1: IgnoredShapes = None,
    keypoints0: PointsFile = None,
    keypoints1: PointsFile = None,
    upright: Upright = False,
    duplicates: Duplicates = False,
    further_orientations: FurtherOrientations = defaults.FURTHER_ORIENTATIONS,
    detector: DetectorOption = defaults.DETECTOR,
    selection: SelectionOption = defaults.SELECTION,
    max_side: MaxSide = defaults.MAX_SIDE,
    max_pixels: MaxPixels = LIBRARY_LIMITS.max_pixels,
    exif: Exif = "apply",
    tiles: Tiles = False,
    map_coordinates: Annotated[
        bool,
        typer.Option(
            "--map-coordinates",
            help="Give the matched points of GeoTIFF files in coordinates of their maps as well: "
            "map_points0, map_points1, epsg0 and epsg1 of the JSON and npz files.",
        ),
    ] = False,
    details: Annotated[
        bool,
        typer.Option(help="Write the scale, orientation and score of each keypoint as well."),
    ] = False,
    json: JsonFile = None,
    npz: Annotated[
        Path | None, typer.Option(help="Write the result as NumPy arrays (npz) to this file.")
    ] = None,
    draw: Annotated[Path | None, typer.Option(help="Draw the matches into this PNG file.")] = None,
    models_dir: ModelsDir = None,
    provider: ProviderOption = "auto",
    server: Server = None,
) -> None:
    """Match two images."""
    check_outputs((json, npz, draw), picture=draw)
    extras0 = extras("image0", mask0, ignore0, keypoints0)
    extras1 = extras("image1", mask1, ignore1, keypoints1)
    if tiles:
        refuse_with_tiles(server, extras0, extras1)
    maps = MapCoordinates()
    if map_coordinates:
        maps = read_map_coordinates((image0, image1), server, exif=exif, in_windows=tiles)
    if server is not None:
        fields = {
            **({"model": model} if model is not None else {}),  # otherwise the server's default
            "max_keypoints": max_keypoints, "ratio": ratio, "verify": verify,
            "threshold_px": threshold_px, "upright": upright, "max_side": max_side, "exif": exif,
            "min_confidence": min_confidence, "refine": refine, "orientation": orientation,
            "duplicates": duplicates, "selection": selection, "views": views, "guided": guided,
            "camera": camera, "camera0": camera0, "camera1": camera1,
            "max_distance": max_distance, "details": details,
            "further_orientations": further_orientations, "detector": detector,
            **extras0.fields(), **extras1.fields(),
        }  # fmt: skip
        _match_on_server(server, (image0, image1), fields, (json, npz, draw))
        return
    options = Options(
        detect=DetectOptions(
            max_keypoints=max_keypoints,
            upright=upright,
            duplicates=duplicates,
            selection=selection,
            further_orientations=further_orientations,
            detector=detector,
        ),
        max_side=max_side,
        judge=JudgeOptions(min_confidence, refine),
        orientation=orientation,
        views=parse_views(views),
        guided=guided,
        match=MatchOptions(ratio, max_distance),
        verify=verify_options(verify, threshold_px, camera, camera0, camera1),
        exif=exif,
    )
    matcher = Matcher(
        model or defaults.MODEL,
        models_dir=models_dir,
        provider=provider,
        limits=limits_of(max_pixels),
    )
    data0 = data1 = b""
    if tiles:
        result = match_large(matcher, (image0, image1), options)
    else:
        data0, data1 = read_image_file(image0), read_image_file(image1)
        images = (("image0", image0, data0), ("image1", image1, data1))
        with named_errors(matcher, images, options):
            first, second = extras0.input(data0, matcher), extras1.input(data1, matcher)
            result = matcher.match(first, second, options)
    _write_result((json, npz), result, maps, details=details)
    if draw is not None and tiles:
        colours = [thumbnail(image, DRAWING_SIDE) for image in (image0, image1)]
        write(draw, png_bytes(draw_matches(colours[0], colours[1], result)))
    elif draw is not None:
        write(draw, _drawn((data0, data1), result, exif, matcher.limits))
    print_summary(result, matcher.descriptor.provider)
    maps.say_summary(result)


def _write_result(
    files: tuple[Path | None, Path | None],
    result: MatchResult,
    maps: MapCoordinates,
    *,
    details: bool,
) -> None:
    """Write the JSON and npz files that are wanted."""
    json, npz = files
    if json is not None:
        write_json(json, result_fields(result, details=details) | maps.fields(result))
    if npz is not None:
        write(npz, result_npz(result, details=details, extra=maps.arrays(result)))


def _match_on_server(
    url: str,
    images: tuple[Path, Path],
    fields: dict[str, Any],
    outputs: tuple[Path | None, Path | None, Path | None],
) -> None:
    """Match two images on a running service."""
    from matchserve.client import Client  # httpx is not needed otherwise

    for image in images:
        read_image_file(image)  # a folder or a missing file is reported before any request
    named = dict(zip(("image0", "image1"), images, strict=True))
    with named_service_errors(named), Client(url) as client:
        for path, accept in zip(outputs, (JSON, NPZ, PNG), strict=True):
            if path is not None:
                write(path, client.match_as(accept, *images, **fields))
        result = client.match(*images, **fields)
    say(
        f"[bold]{len(result.matches)} matches, {int(result.inliers.sum())} inliers[/]\n"
        f"{same_scene_text(result.same_scene, result.geometry_kind)}\n"
        f"{len(result.keypoints0)} and {len(result.keypoints1)} keypoints, {result.model} at {url}"
    )


def _drawn(
    data: tuple[bytes, bytes], result: MatchResult, exif: ExifPolicy, limits: Limits
) -> bytes:
    colour0, colour1 = (
        decode_colour(one, exif=exif, max_side=DRAWING_SIDE, limits=limits) for one in data
    )
    return png_bytes(draw_matches(colour0, colour1, result))
