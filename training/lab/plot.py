"""Plot a run: its curves, the distances of validation pairs, the weights of its loss."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from training.errors import DataError
from training.methods import METHODS
from training.methods.cdf import DynamicSoftMargin, MovingHistogram
from training.methods.sdgm import Sdgm, margin_weight, self_weight
from training.networks import build_network
from training.runs.checkpoint import Checkpoints, with_prefix
from training.runs.directory import read_recipe
from training.runs.recipe import Recipe
from training.runs.report import read_log
from training.runs.sources import open_sources
from training.runs.validation import describe, validation_sets
from training.runs.weights import load_network_weights, read_network

_CURVES = (
    ("loss",),
    ("positive/mean", "negative/mean", "difference/mean"),
    ("positive/std", "negative/std", "difference/std"),
    ("power/positive", "power/negative", "weight/mean", "active"),
    ("lr",),
)


def plot_run(run_dir: Path, out: Path) -> list[Path]:
    """Draw the plots of a run into the folder `out`; return the PNG files.

    Raises:
        DataError: the run has no log.
    """
    recipe, lines = read_recipe(run_dir), read_log(run_dir)
    if not lines:
        raise DataError(f"{run_dir}: has no log to plot")
    out.mkdir(parents=True, exist_ok=True)
    plots = [_draw_curves(lines, recipe.name, out / "curves.png")]
    stored = read_network(run_dir)
    net = build_network(recipe.network, int(stored.entries["patch_spec"]["size"]))
    load_network_weights(net, run_dir)
    stores = open_sources(recipe.data.validation, run_dir.parent / "stores")
    for pairs in validation_sets(stores, recipe.data.validation_pairs):
        distances = pairs.distances(lambda p: describe(net, p, torch.device("cpu")))
        path = out / f"distances-{pairs.name}.png"
        plots.append(_draw_distances(distances, pairs.is_match, pairs.name, path))
    weights = _weight_functions(run_dir, recipe)
    if weights:
        plots.append(_draw_weights(weights, recipe.loss.name, out / "weights.png"))
    return plots


def _figure(panels: int) -> tuple[Any, list[Any]]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 2.6 * panels), layout="constrained")
    return figure, list(figure.subplots(panels, 1, squeeze=False)[:, 0])


def _draw_curves(lines: list[dict[str, Any]], title: str, path: Path) -> Path:
    logged = {key for line in lines for key in line}
    rates = tuple(sorted(key for key in logged if key.startswith("fpr95/")))
    groups = [tuple(k for k in group if k in logged) for group in (*_CURVES, rates)]
    groups = [group for group in groups if group]
    figure, axes = _figure(len(groups))
    figure.suptitle(title)
    for axis, group in zip(axes, groups, strict=True):
        for key in group:
            rows = [(line["step"], line[key]) for line in lines if key in line]
            axis.plot(*zip(*rows, strict=True), label=key)
        axis.legend(fontsize="small")
        axis.grid(alpha=0.3)
    axes[-1].set_xlabel("step")
    figure.savefig(path, dpi=120)
    return path


def _draw_distances(
    distances: NDArray[Any], labels: NDArray[np.bool_], title: str, path: Path
) -> Path:
    figure, (axis,) = _figure(1)
    bins = np.linspace(0, float(distances.max()) * 1.02 + 1e-6, 80)
    axis.hist(distances[labels], bins, alpha=0.6, density=True, label="matching")
    axis.hist(distances[~labels], bins, alpha=0.6, density=True, label="not matching")
    axis.set_title(f"{title}: descriptor distances of pairs")
    axis.set_xlabel("distance")
    axis.legend()
    figure.savefig(path, dpi=120)
    return path


Curve = tuple[NDArray[Any], NDArray[Any]]


def _weight_functions(run_dir: Path, recipe: Recipe) -> dict[str, Curve]:
    """Return the weights that the loss gives to distances, in its state at the end of the run."""
    method = METHODS[recipe.loss.name]
    loss = method.build(recipe.loss, recipe.network.head, recipe.run.batch)
    stored, _ = Checkpoints(run_dir / "checkpoints").newest()
    state = with_prefix(stored.tensors, "loss.") if stored else {}
    if not state:
        return {}
    loss.load_state_dict(state)
    if isinstance(loss, Sdgm):
        return _sdgm_weights(loss)
    if isinstance(loss, DynamicSoftMargin) and isinstance(loss.distribution, MovingHistogram):
        return cdf_weights(loss.distribution, loss.options.distribution)
    return {}


def cdf_weights(distribution: MovingHistogram, kind: str) -> dict[str, Curve]:
    """Return the density in the histogram of a dynamic soft margin, and its weights."""
    histogram = distribution.histogram.numpy()
    x = np.linspace(distribution.low, distribution.high, len(histogram))
    cumulative = np.cumsum(histogram / histogram.sum())
    density = (x, histogram / histogram.max())
    if kind == "negative":
        return {"density of d-": density, "weight, 1 - CDF": (x, 1.0 - cumulative)}
    name = "d+" if kind == "positive" else "d+ - d-"
    return {f"density of {name}": density, "weight, CDF": (x, cumulative)}


def _sdgm_weights(loss: Sdgm) -> dict[str, Curve]:
    theta = torch.linspace(0, 2, 200)
    relative = torch.linspace(-1.5, 1.0, 200)
    kind, options = loss.options.self_weight, loss.options
    near = self_weight(kind, theta, loss.mean[1], loss.std[1])
    far = self_weight(kind, theta, loss.mean[2], loss.std[2])
    rank = margin_weight(
        relative, loss.mean[0], loss.std[0], margin=options.margin, soft=options.soft
    )
    return {
        "self weight of theta+": (theta.numpy(), near.numpy()),
        "self weight of theta-": (theta.numpy(), far.numpy()),
        "rank weight of theta+ - theta-": (relative.numpy(), rank.numpy()),
    }


def _draw_weights(curves: dict[str, Curve], title: str, path: Path) -> Path:
    figure, (axis,) = _figure(1)
    for label, (x, y) in curves.items():
        axis.plot(x, y, label=label)
    axis.set_title(f"{title}: weights")
    axis.legend(fontsize="small")
    axis.grid(alpha=0.3)
    figure.savefig(path, dpi=120)
    return path
