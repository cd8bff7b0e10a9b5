"""Draw the matches of two images."""

from __future__ import annotations

import io
from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image as Pillow
from PIL import ImageDraw, ImageFont

from matchserve.types import MatchResult, UInt8

# Colours as RGB, those of the web page (web/viewer.js). The ramp colours inliers from weak to
# strong: blue to green, because orange and red read as wrong.
BACKGROUND = (16, 18, 22)
TEXT = (236, 239, 244)
QUIET_TEXT = (150, 158, 172)
REJECTED = (255, 107, 87)
DOUBTFUL = (178, 186, 198)
INLIER_RAMP = ((92, 184, 255), (78, 204, 216), (64, 224, 176))

PANEL_HEIGHT = 640
MAX_PANEL_WIDTH = 1200
MAX_INLIER_LINES = 240
MAX_REJECTED_LINES = 150
_GAP, _HEADER, _MARGIN = 8, 56, 16
_SHIFT = 4  # number of sub-pixel bits in the drawing coordinates of OpenCV


@dataclass(frozen=True, slots=True)
class _Panel:
    """One image on the canvas: its offset and scale."""

    pixels: UInt8
    left: int
    top: int
    scale: NDArray[np.float64]

    def place(self, xy: NDArray[np.float32]) -> NDArray[np.float64]:
        """Convert points of the image as sent to canvas coordinates."""
        placed = (xy.astype(np.float64) + 0.5) * self.scale - 0.5
        return np.asarray(placed + np.array([self.left, self.top]))


def draw_matches(colour0: UInt8, colour1: UInt8, result: MatchResult) -> UInt8:
    """Draw both images side by side with their matches: (H, W, 3) RGB.

    `colour0` and `colour1` are RGB pictures of the two images, in any resolution.
    """
    panel0 = _panel(colour0, result.features0.size, 0)
    panel1 = _panel(colour1, result.features1.size, panel0.pixels.shape[1] + _GAP)
    width = panel1.left + panel1.pixels.shape[1]
    height = _HEADER + max(len(panel0.pixels), len(panel1.pixels))
    canvas = np.full((height, width, 3), BACKGROUND, np.uint8)
    for panel in (panel0, panel1):
        rows, columns = panel.pixels.shape[:2]
        canvas[panel.top : panel.top + rows, panel.left : panel.left + columns] = panel.pixels
    points0, points1 = result.points()
    ends = np.stack([panel0.place(points0), panel1.place(points1)], axis=1)
    is_inlier = _is_drawn_as_inlier(result)
    _draw_rejected(canvas, ends[~is_inlier], DOUBTFUL if is_doubtful(result) else REJECTED)
    _draw_inliers(canvas, ends[is_inlier], result.matches.score[is_inlier])
    return _captioned(canvas, result)


def png_bytes(picture: UInt8) -> bytes:
    """Encode an RGB picture as PNG."""
    buffer = io.BytesIO()
    Pillow.fromarray(picture).save(buffer, format="PNG", compress_level=6)
    return buffer.getvalue()


def is_doubtful(result: MatchResult) -> bool:
    """Return whether the images rather show two scenes: their inliers are coincidences."""
    return result.same_scene is not None and result.same_scene < 0.5


def _is_drawn_as_inlier(result: MatchResult) -> NDArray[np.bool_]:
    """Return the inliers, all matches if no geometry was requested, or none if in doubt."""
    if is_doubtful(result):
        return np.zeros(len(result.matches), np.bool_)
    if result.verification.kind == "none":
        return np.ones(len(result.matches), np.bool_)
    return result.verification.inliers


def _panel(colour: UInt8, sent_size: tuple[int, int], left: int) -> _Panel:
    rows, columns = colour.shape[:2]
    scale = min(PANEL_HEIGHT / rows, MAX_PANEL_WIDTH / columns)
    size = (max(1, round(columns * scale)), max(1, round(rows * scale)))
    method = cv2.INTER_AREA if scale < 1 else cv2.INTER_CUBIC
    pixels = np.asarray(cv2.resize(colour, size, interpolation=method), np.uint8)
    return _Panel(pixels, left, _HEADER, np.array(size) / np.array(sent_size))


def _draw_rejected(canvas: UInt8, ends: NDArray[np.float64], colour: tuple[int, int, int]) -> None:
    """Draw rejected matches faintly; only an even sample if there are many."""
    step = max(1, -(-len(ends) // MAX_REJECTED_LINES))
    layer = canvas.copy()
    for start, end in _fixed_point(ends[::step]):
        cv2.line(layer, start, end, colour, 1, cv2.LINE_AA, _SHIFT)
    cv2.addWeighted(layer, 0.35, canvas, 0.65, 0, dst=canvas)


def _draw_inliers(canvas: UInt8, ends: NDArray[np.float64], scores: NDArray[np.float32]) -> None:
    """Draw a dot for every inlier and lines for the best, coloured by rank, strongest on top."""
    order = np.argsort(scores, kind="stable")
    colours = _ramp(np.linspace(0, 1, len(order)) if len(order) > 1 else np.ones(len(order)))
    points = _fixed_point(ends[order])
    first_line = max(0, len(order) - MAX_INLIER_LINES)
    layer = canvas.copy()
    for (start, end), colour in zip(points[first_line:], colours[first_line:], strict=True):
        cv2.line(layer, start, end, colour, 1, cv2.LINE_AA, _SHIFT)
    cv2.addWeighted(layer, 0.75, canvas, 0.25, 0, dst=canvas)
    radius = 2 << _SHIFT
    for (start, end), colour in zip(points, colours, strict=True):
        cv2.circle(canvas, start, radius, colour, -1, cv2.LINE_AA, _SHIFT)
        cv2.circle(canvas, end, radius, colour, -1, cv2.LINE_AA, _SHIFT)


def _fixed_point(ends: NDArray[np.float64]) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    scaled = np.round(ends * (1 << _SHIFT)).astype(int).tolist()
    return [((x0, y0), (x1, y1)) for (x0, y0), (x1, y1) in scaled]


def _ramp(values: NDArray[np.float64]) -> list[tuple[int, int, int]]:
    stops = np.linspace(0, 1, len(INLIER_RAMP))
    channels = [np.interp(values, stops, channel) for channel in zip(*INLIER_RAMP, strict=True)]
    return [(int(r), int(g), int(b)) for r, g, b in zip(*channels, strict=True)]


def _captioned(canvas: UInt8, result: MatchResult) -> UInt8:
    picture = Pillow.fromarray(canvas)
    draw = ImageDraw.Draw(picture)
    headline, detail = caption(result)
    draw.text((_MARGIN, 9), headline, TEXT, ImageFont.load_default(18))
    draw.text((_MARGIN, 33), detail, QUIET_TEXT, ImageFont.load_default(13))
    return np.asarray(picture, np.uint8).copy()


def caption(result: MatchResult) -> tuple[str, str]:
    """Return the two lines of text below the picture: the result, and the numbers."""
    kind = result.verification.kind
    counts = f"{len(result.features0)} and {len(result.features1)} keypoints"
    if kind == "none":
        return f"{len(result.matches)} matches", f"{result.model}   {counts}   not verified"
    if is_doubtful(result):
        headline = f"Not the same scene: {len(result.matches)} doubtful matches"
        return (
            headline,
            f"{result.model}   {counts}   same scene {max(result.same_scene or 0, 0.01):.2f}",
        )
    headline = f"{result.inlier_count} of {len(result.matches)} matches agree on one {kind}"
    headline += {"fundamental": " matrix", "affine": " map"}.get(kind, "")
    detail = f"{result.model}   {counts}   confidence {result.verification.confidence:.3f}"
    if result.same_scene is not None:
        detail += f"   same scene {min(max(result.same_scene, 0.01), 0.99):.2f}"
    return headline, detail
