"""Record the matches that later versions must reproduce: `python -m tests.golden.record`.

The recorded file holds, for each case, the keypoints, match indices, scores and inliers of the
library. Record it again only when a change of results is intended, and say so in CHANGELOG.md.
"""

from __future__ import annotations

import io
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image as Pillow

import matchserve
from matchserve import DetectOptions, Matcher, Options, VerifyOptions
from matchserve.options import RAW_OPTIONS
from matchserve.pattern import generate_pair

RECORDED = Path(__file__).parent / "matches.npz"
SAMPLES = Path(matchserve.__file__).parent / "web"
ARRAYS = ("keypoints0", "keypoints1", "matches", "scores", "inliers")


@dataclass(frozen=True)
class Case:
    """One pair, one model and the options that every interface is given."""

    model: str
    images: str
    verify: str
    max_keypoints: int = 256
    upright: bool = False

    @property
    def name(self) -> str:
        """The key of this case in the recorded file."""
        upright = "-upright" if self.upright else ""
        return f"{self.model}-{self.images}-{self.verify}-{self.max_keypoints}{upright}"

    def options(self) -> Options:
        """The same options for the library, with all raw mutual nearest neighbours."""
        return replace(
            RAW_OPTIONS,
            detect=DetectOptions(
                max_keypoints=self.max_keypoints,
                upright=self.upright,
                duplicates=True,
                selection="contrast",
            ),
            verify=VerifyOptions(kind=self.verify),  # type: ignore[arg-type]
        )


MODELS = ("compact", "compact-int8", "accurate", "binary", "rootsift", "sift")
CASES = (
    *(Case(model, "generated", "homography") for model in MODELS),
    *(Case(model, "sample", "fundamental") for model in MODELS),
    Case("compact", "sample", "homography", 2048),
    Case("compact", "sample", "none", 512, upright=True),
)


def image_pair(name: str) -> tuple[bytes, bytes]:
    """The two encoded images of a case."""
    if name == "sample":
        return (SAMPLES / "sample0.jpg").read_bytes(), (SAMPLES / "sample1.jpg").read_bytes()
    first, second, _ = generate_pair((640, 480), seed=7)
    return _png(first), _png(second)


def match(case: Case) -> dict[str, NDArray[Any]]:
    """The arrays of one case, from the library."""
    result = Matcher(case.model).match(*image_pair(case.images), case.options())
    return {
        "keypoints0": result.features0.keypoints.xy,
        "keypoints1": result.features1.keypoints.xy,
        "matches": result.matches.pairs,
        "scores": result.matches.score,
        "inliers": result.verification.inliers,
    }


def _png(array: NDArray[np.uint8]) -> bytes:
    buffer = io.BytesIO()
    Pillow.fromarray(array).save(buffer, format="PNG")
    return buffer.getvalue()


def main() -> None:
    """Write the recorded file."""
    arrays = {f"{case.name}/{name}": a for case in CASES for name, a in match(case).items()}
    np.savez_compressed(RECORDED, **arrays)  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
