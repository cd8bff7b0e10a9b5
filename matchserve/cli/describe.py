"""`matchserve describe`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from matchserve import defaults
from matchserve.cli.extras import IgnoredShapes, MaskFile, PointsFile, extras, refuse_with_tiles
from matchserve.cli.images import (
    limits_of,
    named_errors,
    named_service_errors,
    read_image_file,
)
from matchserve.cli.options import (
    DetectorOption,
    Exif,
    ImageFile,
    MaxKeypoints,
    MaxPixels,
    MaxSide,
    ModelsDir,
    ProviderOption,
    Server,
    Tiles,
    Upright,
)
from matchserve.cli.output import STANDARD_OUTPUT, say, write
from matchserve.encoding import features_npz
from matchserve.errors import InvalidParameter
from matchserve.large import describe_large
from matchserve.limits import LIBRARY_LIMITS
from matchserve.matcher import Matcher, Options
from matchserve.types import Features
from matchserve.vision.keypoints import DetectOptions

H5_SUFFIXES = (".h5", ".hdf5")


def describe(
    image: ImageFile,
    *,
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            help="Write the features to this file: .npz, or .h5 as hloc reads it; - writes npz to "
            "standard output.",
        ),
    ],
    model: Annotated[
        str | None,
        typer.Option(help="Model name, or path to a model directory.", show_default=defaults.MODEL),
    ] = None,
    max_keypoints: MaxKeypoints = defaults.MAX_KEYPOINTS,
    mask: MaskFile = None,
    ignore: IgnoredShapes = None,
    keypoints: PointsFile = None,
    upright: Upright = False,
    detector: DetectorOption = defaults.DETECTOR,
    max_side: MaxSide = defaults.MAX_SIDE,
    max_pixels: MaxPixels = LIBRARY_LIMITS.max_pixels,
    exif: Exif = "apply",
    tiles: Tiles = False,
    models_dir: ModelsDir = None,
    provider: ProviderOption = "auto",
    server: Server = None,
) -> None:
    """Write the keypoints and descriptors of an image."""
    _check_output(output)
    given = extras("image", mask, ignore, keypoints)
    if tiles:
        refuse_with_tiles(server, given)
    data = b"" if tiles else read_image_file(image)
    if server is not None:
        from matchserve.client import Client  # httpx is not needed otherwise

        with named_service_errors({"image": image}), Client(server) as client:
            features = client.features(
                data,
                model=model,
                max_keypoints=max_keypoints,
                upright=upright,
                detector=detector,
                max_side=max_side,
                exif=exif,
                **given.fields(),
            )
    else:
        options = Options(
            detect=DetectOptions(max_keypoints=max_keypoints, upright=upright, detector=detector),
            max_side=max_side,
            exif=exif,
        )
        matcher = Matcher(
            model or defaults.MODEL,
            models_dir=models_dir,
            provider=provider,
            limits=limits_of(max_pixels),
        )
        if tiles:
            features = describe_large(matcher, image, options)
        else:
            with named_errors(matcher, [("image", image, data)], options):
                features = matcher.features(given.input(data, matcher), options)
    _write(output, image.name, features)
    name = "standard output" if output == STANDARD_OUTPUT else output
    say(escape(f"{len(features)} keypoints described by {features.model} in {name}"))


def _check_output(output: Path) -> None:
    """Check the kind of file before any work is done.

    Raises:
        InvalidParameter: the suffix names a format that is not written.
        ProviderUnavailable: the file is HDF5, and h5py is not installed.
    """
    suffix = output.suffix.lower()
    if suffix in H5_SUFFIXES:
        from matchserve.libraries import import_h5py

        import_h5py()
    elif output != STANDARD_OUTPUT and suffix != ".npz":
        raise InvalidParameter(
            f"features are written as .npz or .h5: name the file {output.with_suffix('.npz')}"
        )


def _write(output: Path, image_name: str, features: Features) -> None:
    """Write features as npz, or as HDF5 with one group, named after the image."""
    if output.suffix.lower() not in H5_SUFFIXES:
        write(output, features_npz(features))
        return
    from matchserve.collections.export_h5 import whole_h5, write_features

    try:
        with whole_h5(output) as file:
            write_features(file.create_group(image_name), features)
    except OSError as error:
        raise InvalidParameter(f"cannot write {output}: {error}") from error
