"""Register an aerial image to a GeoTIFF: write it in the grid and coordinates of the reference.

python examples/register_geotiff.py reference.tif image.tif -o registered.tif

`image.tif` may be any image that GDAL reads, with or without coordinates: a newer photograph of the
same ground, rotated, scaled and shifted. The ground is taken as flat. For another season or sensor,
where few matches are right, add --model robust --verify similarity. It needs rasterio:
pip install '.[cpu,geo]' -c constraints.txt
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from matchserve import Matcher, Options, VerifyOptions

# Least probability that so many matches do not agree by chance.
MIN_CONFIDENCE = 0.999


def main() -> int:
    """Match both images, estimate how they lie, resample, and write the result."""
    parser = argparse.ArgumentParser(description="Register an aerial image to a GeoTIFF.")
    parser.add_argument("reference", type=Path)
    parser.add_argument("image", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--model", default="compact")
    parser.add_argument(
        "--verify", choices=["homography", "affine", "similarity"], default="homography"
    )
    names = parser.parse_args()
    try:
        import rasterio
    except ImportError:
        sys.stderr.write(
            "rasterio is not installed; run: pip install '.[cpu,geo]' -c constraints.txt\n"
        )
        return 78
    with rasterio.open(names.reference) as file:
        reference, profile = file.read(), dict(file.profile)
    if profile.get("crs") is None:
        sys.stderr.write(f"{names.reference}: has no coordinate reference system\n")
        return 65
    with rasterio.open(names.image) as file:
        image = file.read()

    options = Options(verify=VerifyOptions(kind=names.verify))
    result = Matcher(names.model).match(to_eight_bits(reference), to_eight_bits(image), options)
    matrix = result.verification.matrix
    if matrix is None or result.verification.confidence < MIN_CONFIDENCE:
        sys.stderr.write(
            f"only {result.inlier_count} inliers: these images do not overlap enough\n"
        )
        return 1

    registered = resample(image, np.linalg.inv(matrix), reference.shape[1:])
    profile.update(count=len(registered), dtype=registered.dtype.name, nodata=0, driver="GTiff")
    with rasterio.open(names.output, "w", **profile) as file:
        file.write(registered)
    report(result, matrix, profile)
    return 0


def to_eight_bits(bands: NDArray[Any]) -> NDArray[np.uint8]:
    """Return (B, H, W) bands as an image: stretched between the 1st and the 99th percentile."""
    grey = bands[:3].astype(np.float32).mean(axis=0)
    low, high = np.percentile(grey, (1, 99))
    return (255 * np.clip((grey - low) / max(high - low, 1e-6), 0, 1)).astype(np.uint8)


def resample(
    bands: NDArray[Any], to_reference: NDArray[np.float64], shape: tuple[int, int]
) -> NDArray[Any]:
    """Return the bands in the grid of the reference; 0 where the image shows nothing."""
    size = (shape[1], shape[0])
    warped = [
        cv2.warpPerspective(band, to_reference, size, flags=cv2.INTER_CUBIC) for band in bands
    ]
    return np.stack(warped)


def report(result: Any, matrix: NDArray[np.float64], profile: dict[str, Any]) -> None:
    """Print the residual of the inliers on the ground, and where the image's centre lies."""
    points0, points1 = (p[result.verification.inliers] for p in result.points())
    back = cv2.perspectiveTransform(points1[None].astype(np.float64), np.linalg.inv(matrix))[0]
    error_px = float(np.sqrt(((back - points0) ** 2).sum(axis=1).mean()))
    unit = profile["crs"].linear_units if profile["crs"].is_projected else "degrees"
    width, height = result.features1.size
    centre = np.array([[[(width - 1) / 2, (height - 1) / 2]]])
    column, row = cv2.perspectiveTransform(centre, np.linalg.inv(matrix))[0, 0]
    # A pixel's centre is (0, 0) here, and its corner in GDAL.
    x, y = profile["transform"] @ (column + 0.5, row + 0.5)
    sys.stdout.write(
        f"{result.inlier_count} inliers, residual {error_px:.2f} px "
        f"({error_px * abs(profile['transform'].a):.3f} {unit}); "
        f"centre of the image at {x:.3f}, {y:.3f}\n"
    )


if __name__ == "__main__":
    sys.exit(main())
