"""Draw the view graph of a collection beside the 3D points and cameras seen from above."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image as Pillow
from PIL import ImageDraw, ImageFont

from matchserve.collections.colmap import read_model
from matchserve.collections.report import Report, ViewGraph
from matchserve.drawing import BACKGROUND, INLIER_RAMP, QUIET_TEXT, REJECTED, TEXT
from matchserve.types import Float64, UInt8

PANEL = 760
_HEADER, _MARGIN, _SHIFT = 56, 40, 4
_WEAK, _MEDIUM, _STRONG = INLIER_RAMP
_MAX_EDGES = 20_000


def draw_report(report: Report, sparse: Path) -> UInt8:
    """Draw a report: (H, W, 3) RGB. The right half shows the largest 3D model, if there is one."""
    model = read_model(sparse / "0")
    graph = _panel()
    _draw_graph(graph, report.graph, layout(report.graph, model))
    if model is None:
        return _captioned(graph, report)
    above = _panel()
    _draw_above(above, model)
    return _captioned(np.concatenate([graph, above], axis=1), report)


def _panel() -> UInt8:
    return np.full((PANEL, PANEL, 3), BACKGROUND, np.uint8)


def _draw_graph(canvas: UInt8, graph: ViewGraph, places: Float64) -> None:
    """Draw edges by their number of inliers, weak ones below, and a dot for each image."""
    xy = _fixed_point(_fitted(places))
    edges = graph.edges[np.argsort(graph.edges[:, 2], kind="stable")][-_MAX_EDGES:]
    strength = np.clip(np.log10(np.maximum(edges[:, 2], 15) / 15) / 1.5, 0, 1)
    for (first, second, _), value in zip(edges.tolist(), strength.tolist(), strict=True):
        colour = _mixed(_mixed(BACKGROUND, REJECTED, 0.5), _STRONG, value)
        cv2.line(canvas, xy[first], xy[second], colour, 1, cv2.LINE_AA, _SHIFT)
    alone = set(graph.alone)
    for name, place in zip(graph.names, xy, strict=True):
        colour = _WEAK if name in alone else TEXT
        cv2.circle(canvas, place, 4 << _SHIFT, colour, -1, cv2.LINE_AA, _SHIFT)


def layout(graph: ViewGraph, model: Any | None) -> Float64:
    """Place registered images where their cameras are, and all others on a circle around them."""
    count = len(graph.names)
    turn = np.linspace(0, 2 * np.pi, count, endpoint=False)
    circle = np.stack([np.cos(turn), np.sin(turn)], axis=1)
    if model is None:
        return circle
    centres = {i.name: i.projection_center() for i in map(model.image, model.reg_image_ids())}
    rows = [row for row, name in enumerate(graph.names) if name in centres]
    flat = np.array([centres[graph.names[row]] for row in rows]) @ _ground_axes(model).T
    flat -= np.median(flat, axis=0)
    radius = max(float(np.abs(flat).max(initial=0.0)), 1e-9)
    places = 1.3 * circle
    places[rows] = flat / radius
    return places


def _draw_above(canvas: UInt8, model: Any) -> None:
    """Draw the 3D points by colour, and each camera with its viewing direction."""
    axes = _ground_axes(model)
    points = list(model.points3D.values())
    xyz = np.array([p.xyz for p in points]).reshape(-1, 3)
    colour = np.array([p.color for p in points]).reshape(-1, 3)
    images = [model.image(i) for i in model.reg_image_ids()]
    centres = np.array([i.projection_center() for i in images])
    looks = np.array([i.viewing_direction() for i in images])
    flat = np.concatenate([xyz, centres]) @ axes.T
    low, high = _robust_range(flat, len(xyz))
    scale = (PANEL - 2 * _MARGIN) / max(float((high - low).max()), 1e-9)
    placed = (flat - (low + high) / 2) * scale + PANEL / 2
    is_black = not colour.any()
    for (x, y), rgb in zip(placed[: len(xyz)].tolist(), colour.tolist(), strict=True):
        if 0 <= x < PANEL and 0 <= y < PANEL:
            row, column = int(y), int(x)
            shade = QUIET_TEXT if is_black else np.maximum(rgb, 40)
            canvas[row : row + 2, column : column + 2] = shade
    length = 16.0
    starts = placed[len(xyz) :]
    ends = starts + length * (looks @ axes.T)
    for start, end in zip(_fixed_point(starts), _fixed_point(ends), strict=True):
        cv2.line(canvas, start, end, _MEDIUM, 1, cv2.LINE_AA, _SHIFT)
        cv2.circle(canvas, start, 3 << _SHIFT, _STRONG, -1, cv2.LINE_AA, _SHIFT)


def _ground_axes(model: Any) -> Float64:
    """Return two unit vectors that span the ground, (2, 3).

    Up is the mean of the images' upward directions. Cameras that look straight down have none
    that agree; then up is against their viewing directions.
    """
    images = [model.image(i) for i in model.reg_image_ids()]
    rotations = np.array([i.cam_from_world().rotation.matrix() for i in images])
    upward, backward = -rotations[:, 1], -rotations[:, 2]
    mean = upward.mean(axis=0)
    is_level = np.linalg.norm(mean) > 0.6
    up = mean if is_level else backward.mean(axis=0)
    up = up / max(float(np.linalg.norm(up)), 1e-12)
    helper = np.eye(3)[np.argmin(np.abs(up))]
    east = np.cross(helper, up)
    east /= np.linalg.norm(east)
    # On the picture y points down: east, then the direction towards the viewer.
    return np.stack([east, np.cross(up, east) * -1.0])


def _robust_range(flat: Float64, points: int) -> tuple[Float64, Float64]:
    """Return a range that holds all cameras and most points, without a far background."""
    low = flat[points:].min(axis=0)
    high = flat[points:].max(axis=0)
    if points:
        near, far = np.percentile(flat[:points], (10, 90), axis=0)
        margin = 0.2 * (far - near)
        low, high = np.minimum(low, near - margin), np.maximum(high, far + margin)
    return low, high


def _fitted(places: Float64) -> Float64:
    if len(places) == 0:
        return places
    low, high = places.min(axis=0), places.max(axis=0)
    scale = (PANEL - 2 * _MARGIN) / max(float((high - low).max()), 1e-9)
    return np.asarray((places - (low + high) / 2) * scale + PANEL / 2)


def _fixed_point(places: Float64) -> list[tuple[int, int]]:
    return [(x, y) for x, y in np.round(places * (1 << _SHIFT)).astype(int).tolist()]


def _mixed(first: tuple[int, ...], second: tuple[int, ...], share: float) -> tuple[int, int, int]:
    red, green, blue = (round(a + (b - a) * share) for a, b in zip(first, second, strict=True))
    return red, green, blue


def _captioned(panels: UInt8, report: Report) -> UInt8:
    header: NDArray[np.uint8] = np.full((_HEADER, panels.shape[1], 3), BACKGROUND, np.uint8)
    picture = Pillow.fromarray(np.concatenate([header, panels]))
    draw = ImageDraw.Draw(picture)
    parts = [f"{report.images} images", f"{len(report.graph.edges)} verified pairs"]
    detail = "the view graph"
    if report.models:
        model = report.models[0]
        parts += [f"{model.registered} registered", f"{model.points} points"]
        detail = "left: the view graph, at the positions of the cameras     right: seen from above"
    draw.text((16, 9), "   ".join(parts), TEXT, ImageFont.load_default(18))
    draw.text((16, 33), detail, QUIET_TEXT, ImageFont.load_default(13))
    return np.asarray(picture, np.uint8).copy()
