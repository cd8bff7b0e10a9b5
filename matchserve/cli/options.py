"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from matchserve.limits import MAX_VIEWS
from matchserve.settings import Settings
from matchserve.vision.cameras import TEXT_FORMS
from matchserve.vision.keypoints import DetectorChoice
from matchserve.vision.selection import Selection

ImageFile = Annotated[
    Path, typer.Argument(help="JPEG, PNG, WebP or TIFF file; with --server not TIFF.")
]
Model = Annotated[str, typer.Option(help="Model name, or path to a model directory.")]
ModelsDir = Annotated[
    Path | None,
    typer.Option(
        help="Folder of models to use instead of the shipped ones.",
        envvar="MATCHSERVE_MODELS_DIR",
        show_default="shipped models",
    ),
]
ProviderOption = Annotated[
    Literal["auto", "cpu", "cuda"],
    typer.Option(
        help="Device that runs the model; a named device that cannot be used is an error.",
        envvar="MATCHSERVE_PROVIDER",
    ),
]
MaxKeypoints = Annotated[int, typer.Option(help="Maximum number of keypoints per image.")]
MaxSide = Annotated[
    int,
    typer.Option(
        help="Longest side, in pixels, of the copy on which keypoints are found; 0 for the full "
        "size. Coordinates are always those of the original image."
    ),
]
MaxPixels = Annotated[
    int,
    typer.Option(
        help="Refuse images of more pixels than this, before they are decoded; not with --server, "
        "which has a limit of its own.",
        min=1,
    ),
]
Tiles = Annotated[
    bool,
    typer.Option(
        "--tiles",
        help="Describe images of any size at full resolution, in windows and bounded memory, with "
        "500 keypoints for each megapixel; --max-side, --max-keypoints and --max-pixels do not "
        "apply. Needs pyvips.",
    ),
]
Server = Annotated[
    str | None,
    typer.Option(help="Address of a running service that does the work, e.g. localhost:8000."),
]
Upright = Annotated[
    bool,
    typer.Option(help="Describe keypoints without rotation: better for cameras that never roll."),
]
Duplicates = Annotated[
    bool,
    typer.Option(
        help="Keep all keypoints that share a position and differ in orientation only, and count "
        "them in --max-keypoints."
    ),
]
FurtherOrientations = Annotated[
    float,
    typer.Option(
        help="Share of the best keypoints that are described in each of their other dominant "
        "orientations as well, besides --max-keypoints; not with --duplicates.",
        min=0.0,
        max=1.0,
    ),
]
DetectorOption = Annotated[
    DetectorChoice,
    typer.Option(
        help="How keypoints are found: dog for extrema of differences of Gaussians, learned for "
        "the network that comes with the model, auto for what the model's card names."
    ),
]
SelectionOption = Annotated[
    Selection,
    typer.Option(
        help="Which keypoints are used: those of the highest contrast, or those that are most "
        "likely found again in the other image."
    ),
]
ViewsOption = Annotated[
    str,
    typer.Option(
        help="Number of pairs of synthetic views that are matched, for extreme viewpoints: 1 for "
        f"the images as they are alone, at most {MAX_VIEWS}; search goes on until the geometry is "
        "sure, auto only as long as the matches hint at a common scene."
    ),
]
CameraOfBoth = Annotated[
    str | None,
    typer.Option(
        help="Camera of both images, for --verify pose: exif for the focal length of their EXIF "
        f"data, {TEXT_FORMS}."
    ),
]
CameraOfFirst = Annotated[
    str | None, typer.Option(help="Camera of the first image, as in --camera.")
]
CameraOfSecond = Annotated[
    str | None, typer.Option(help="Camera of the second image, as in --camera.")
]
Exif = Annotated[
    Literal["apply", "ignore"],
    typer.Option(help="Whether to rotate the image as its EXIF orientation says."),
]
JsonFile = Annotated[
    Path | None, typer.Option(help="Write the result as JSON to this file; - for standard output.")
]


def setting_option(name: str) -> Any:
    """Return an option of `serve` whose help and default are those of a setting."""
    setting = Settings.model_fields[name]
    return typer.Option(help=setting.description, show_default=str(setting.default))
