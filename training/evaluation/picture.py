"""Draw the matches of models between a photograph and a synthetic view of it.

The homography is known, so each match is correct or wrong by geometry, not by an estimator.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
from PIL import Image as Pillow
from PIL import ImageDraw, ImageFont

from matchserve.matcher import Matcher
from matchserve.types import Bool, Float64, UInt8
from training.data.photos.views import LEVELS, View, render
from training.errors import DataError

CORRECT_PX = 3.0
CORRECT, WRONG = (38, 166, 91), (214, 69, 65)
_HEADER, _GAP, _SHIFT = 30, 8, 4
# More lines would hide the images: every n-th match is drawn, whether correct or wrong.
_MAX_LINES = 120
_SUFFIXES = (".jpg", ".jpeg", ".png")


@dataclass(frozen=True, slots=True, eq=False)
class Drawn:
    """One row of the picture: a model, its number of correct and of all matches, and the pixels."""

    model: str
    correct: int
    matches: int
    pixels: UInt8


def picture(
    photo: Path,
    models: Sequence[str],
    out: Path,
    *,
    level: str,
    seed: int,
    titles: Sequence[str] | None = None,
) -> list[Drawn]:
    """Draw the matches of each model in a row of its own and write the picture to `out`.

    `titles` are printed above the rows; without them, the names of the models.

    Raises:
        DataError: the level does not exist, or `out` is not the name of a JPEG or PNG file.
    """
    if out.suffix.lower() not in _SUFFIXES:
        raise DataError(
            f"{out}: expected a JPEG or PNG file, with a name ending in {', '.join(_SUFFIXES)}"
        )
    if level not in LEVELS:
        raise DataError(f"no level {level!r}; there are {', '.join(LEVELS)}")
    matchers = [Matcher(model) for model in models]
    grey = matchers[0].load(photo).grey
    view = render(grey, photo.name, 1, seed=seed, level=level)
    titles = titles or [matcher.descriptor.card.name for matcher in matchers]
    rows = [_row(grey, view, m, title) for m, title in zip(matchers, titles, strict=True)]
    whole = np.concatenate([row.pixels for row in rows])
    out.parent.mkdir(parents=True, exist_ok=True)
    Pillow.fromarray(whole).save(out, quality=85)
    return rows


def _row(grey: UInt8, view: View, matcher: Matcher, title: str) -> Drawn:
    result = matcher.match(grey, view.grey)
    points0, points1 = (np.asarray(p, np.float64) for p in result.points())
    correct = is_correct(points0, points1, view.homography)
    height, width = grey.shape
    canvas = np.full((height + _HEADER, 2 * width + _GAP), 255, np.uint8)
    canvas[_HEADER:, :width] = grey
    canvas[_HEADER:, width + _GAP :] = view.grey
    colour = cv2.cvtColor(canvas, cv2.COLOR_GRAY2RGB)
    starts = np.array([(0, _HEADER), (width + _GAP, _HEADER)])
    ends = np.stack([points0, points1], axis=1) + starts
    scaled = np.round(ends * (1 << _SHIFT)).astype(int)
    step = max(1, -(-len(scaled) // _MAX_LINES))
    for (start, end), is_good in zip(scaled[::step].tolist(), correct[::step], strict=True):
        shade = CORRECT if is_good else WRONG
        cv2.line(colour, start, end, shade, 1, cv2.LINE_AA, _SHIFT)
        for point in (start, end):
            cv2.circle(colour, point, 2 << _SHIFT, shade, -1, cv2.LINE_AA, _SHIFT)
    pixels = Pillow.fromarray(np.asarray(colour, np.uint8))
    drawn = f", 1 in {step} drawn" if step > 1 else ""
    text = f"{title}: {correct.sum()} of {len(correct)} matches are correct{drawn}"
    ImageDraw.Draw(pixels).text((8, 5), text, (20, 20, 20), ImageFont.load_default(17))
    return Drawn(result.model, int(correct.sum()), len(correct), np.asarray(pixels, np.uint8))


def is_correct(points0: Float64, points1: Float64, homography: Float64) -> Bool:
    """Return whether each match is within `CORRECT_PX` of its true position."""
    if not len(points0):
        return np.zeros(0, np.bool_)
    true = cv2.perspectiveTransform(points0[None], homography)[0]
    return np.asarray(np.linalg.norm(true - points1, axis=1) <= CORRECT_PX)
