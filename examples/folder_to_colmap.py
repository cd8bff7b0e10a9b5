"""Reconstruct a folder of photographs and print the cameras of the COLMAP model.

python examples/folder_to_colmap.py scene -o out

It needs pycolmap: pip install -e '.[cpu,colmap]' -c constraints.txt. When it is stopped, the same
command continues. `matchserve reconstruct scene -o out` does the same without a program.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from matchserve import Collection, DetectOptions, MatchServeError, Options
from matchserve.collections.progress import show
from matchserve.collections.reconstruct import reconstruct


def main() -> int:
    """Match the photographs, run COLMAP's mapper, and list the registered cameras."""
    parser = argparse.ArgumentParser(description="Reconstruct a folder of photographs.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--max-keypoints", type=int, default=2048)
    names = parser.parse_args()
    try:
        run(names.folder, names.output, names.max_keypoints)
    except MatchServeError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    return 0


def run(folder: Path, output: Path, max_keypoints: int) -> None:
    """Write database.db, sparse/0 and report.png to `output`, and print the model."""
    # COLMAP ignores the EXIF orientation, so keypoints are found in the stored raster.
    options = Options(detect=DetectOptions(max_keypoints=max_keypoints), exif="ignore")
    collection = Collection(output, images=folder, options=options)
    show(reconstruct(collection))

    import pycolmap

    model = pycolmap.Reconstruction(output / "sparse" / "0")
    sys.stdout.write(
        f"{model.num_reg_images()} of {len(collection.images())} images, "
        f"{model.num_points3D()} points, mean track {model.compute_mean_track_length():.1f}, "
        f"reprojection error {model.compute_mean_reprojection_error():.2f} px\n"
    )
    for image in sorted(model.images.values(), key=lambda image: image.name):
        x, y, z = image.projection_center()
        sys.stdout.write(f"{image.name}  centre {x:+.3f} {y:+.3f} {z:+.3f}\n")


if __name__ == "__main__":
    sys.exit(main())
