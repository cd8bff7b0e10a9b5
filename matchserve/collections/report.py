"""The report of a collection: its view graph, refused images, and the 3D model if there is one."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from matchserve.collections.collection import Collection
from matchserve.collections.colmap import read_model
from matchserve.collections.pairs import reason_names

_LISTED = 10
"""Number of images that the summary names; `report.json` names all."""


@dataclass(frozen=True, slots=True, eq=False)
class ViewGraph:
    """Images as nodes and verified pairs as edges.

    `edges` are rows (node, node, inliers) of verified pairs; `components` are the
    connected groups of at least two images, largest first; `alone` are images without an edge.
    """

    names: list[str]
    edges: NDArray[np.int64]
    components: list[list[str]]
    alone: list[str]


@dataclass(frozen=True, slots=True)
class ModelSummary:
    """Figures of one 3D model, and the names of its registered images."""

    names: frozenset[str]
    registered: int
    points: int
    observations: int
    track_length: float
    error_px: float


@dataclass(frozen=True, slots=True, eq=False)
class Report:
    """What is known about a collection; `refused` gives a code for each image."""

    images: int
    refused: dict[str, str]
    pairs: int
    pairs_matched: int
    pairs_by_reason: dict[str, int]
    graph: ViewGraph
    models: list[ModelSummary] = field(default_factory=list)

    @property
    def unregistered(self) -> list[str]:
        """Images that could be used, but are in no 3D model; none if there is no model."""
        known = frozenset[str]().union(*(model.names for model in self.models))
        return [name for name in self.graph.names if name not in known] if self.models else []

    def fields(self) -> dict[str, Any]:
        """Return the report as plain values."""
        return {
            "images": self.images,
            "refused": self.refused,
            "pairs": self.pairs,
            "pairs_matched": self.pairs_matched,
            "pairs_by_reason": self.pairs_by_reason,
            "pairs_verified": len(self.graph.edges),
            "components": [len(component) for component in self.graph.components],
            "alone": self.graph.alone,
            "unregistered": self.unregistered,
            "models": [
                {name: getattr(model, name) for name in ModelSummary.__slots__ if name != "names"}
                for model in self.models
            ],
        }


def make_report(collection: Collection) -> Report:
    """Collect the report of a collection, finished or not."""
    rows = collection.images()
    described = [row for row in rows if row.state == "described"]
    pairs = collection.pairs()
    reasons: Counter[str] = Counter()
    for mask, count in zip(*np.unique(pairs[:, 2], return_counts=True), strict=True):
        for name in reason_names(int(mask)):
            reasons[name] += int(count)
    return Report(
        images=len(rows),
        refused={row.name: row.code for row in rows if row.state == "refused"},
        pairs=len(pairs),
        pairs_matched=int((pairs[:, 3] >= 0).sum()),
        pairs_by_reason=dict(reasons),
        graph=view_graph({row.id: row.name for row in described}, pairs),
        models=model_summaries(collection.workspace.sparse),
    )


def view_graph(names: dict[int, str], pairs: NDArray[np.int64]) -> ViewGraph:
    """Build the view graph from image names by number and the pairs of the ledger."""
    numbers = np.array(list(names), np.int64)
    order = np.argsort(numbers)
    edges = pairs[pairs[:, 5] == 1][:, [0, 1, 4]]
    edges[:, :2] = order[np.searchsorted(numbers, edges[:, :2], sorter=order)]
    listed = list(names.values())
    groups: dict[int, list[str]] = {}
    for name, label in zip(listed, component_labels(len(listed), edges).tolist(), strict=True):
        groups.setdefault(label, []).append(name)
    ranked = sorted(groups.values(), key=len, reverse=True)
    alone = [group[0] for group in ranked if len(group) == 1]
    return ViewGraph(listed, edges, [group for group in ranked if len(group) > 1], alone)


def component_labels(count: int, edges: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the smallest node of each node's connected component."""
    labels = np.arange(count)
    first, second = edges[:, 0], edges[:, 1]
    while True:
        before = labels.copy()
        smallest = np.minimum(labels[first], labels[second])
        for side in (first, second):
            np.minimum.at(labels, labels[side], smallest)
            np.minimum.at(labels, side, smallest)
        labels = labels[labels]
        if np.array_equal(labels, before):
            return labels


def model_summaries(sparse: Path) -> list[ModelSummary]:
    """Read the figures of the 3D models `sparse/0`, `sparse/1`, ..."""
    folders = sorted((f for f in sparse.glob("*") if f.name.isdecimal()), key=lambda f: int(f.name))
    models = [read_model(folder) for folder in folders]
    return [
        ModelSummary(
            frozenset(model.image(number).name for number in model.reg_image_ids()),
            model.num_reg_images(),
            model.num_points3D(),
            model.compute_num_observations(),
            round(model.compute_mean_track_length(), 3),
            round(model.compute_mean_reprojection_error(), 4),
        )
        for model in models
        if model is not None
    ]


def summary(report: Report) -> str:
    """Return the report as a few lines of text."""
    lines = [
        f"{report.images} images{_refusals(report)}; {report.pairs} pairs"
        f"{_reasons(report)}, {len(report.graph.edges)} verified"
    ]
    sizes = [len(component) for component in report.graph.components]
    if sizes:
        text = f"{len(sizes)} component{'s' if len(sizes) > 1 else ''} of "
        text += ", ".join(map(str, sizes[:5])) + (", ..." if len(sizes) > 5 else "") + " images"
        if report.graph.alone:
            text += f"; {len(report.graph.alone)} without a verified pair: "
            text += _listed(report.graph.alone)
        lines.append(text)
    else:
        lines.append("no pair of images was verified")
    for number, model in enumerate(report.models[:3]):
        lines.append(
            f"model {number}: {model.registered} of {report.images} images registered, "
            f"{model.points} points, track length {model.track_length:.2f}, "
            f"reprojection error {model.error_px:.2f} px"
        )
    lost = [name for name in report.unregistered if name not in report.graph.alone]
    if lost:
        lines.append(f"in no model, although they have verified pairs: {_listed(lost)}")
    return "\n".join(lines)


def _listed(names: list[str]) -> str:
    return ", ".join(names[:_LISTED]) + (", ..." if len(names) > _LISTED else "")


def _refusals(report: Report) -> str:
    if not report.refused:
        return ""
    codes = Counter(report.refused.values())
    detail = ", ".join(f"{count} {code}" for code, count in codes.most_common())
    return f", {len(report.refused)} refused ({detail})"


def _reasons(report: Report) -> str:
    if not report.pairs_by_reason:
        return ""
    return " (" + ", ".join(f"{name} {n}" for name, n in report.pairs_by_reason.items()) + ")"
