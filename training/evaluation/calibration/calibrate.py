"""Calibrate a model: measure pairs, fit, evaluate on held-out scenes, write to the card."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np

from matchserve.files import write_text_whole
from matchserve.models import handcrafted
from matchserve.models.calibration import (
    CALIBRATION_FILE,
    DIAGRAM_FILE,
    FEATURES,
    CalibratedKind,
    Calibration,
    GeometryCalibration,
)
from matchserve.models.card import read_card, write_card
from matchserve.models.descriptor import Descriptor
from matchserve.models.registry import shipped_models_dir
from matchserve.types import Bool, Float64
from training.errors import DataError
from training.evaluation.calibration.diagram import draw_reliability
from training.evaluation.calibration.fit import (
    at_prior,
    class_weights,
    divide_scenes,
    fit_logistic,
    held_out_probability,
)
from training.evaluation.calibration.measure import Detected, Measured, measure_pairs
from training.evaluation.calibration.pairs import MIN_SHARED_POINTS, PairSet
from training.evaluation.calibration.scoring import probability_scores, reliability

KINDS: tuple[CalibratedKind, ...] = get_args(CalibratedKind)
_DIGITS = 5


@dataclass(frozen=True, slots=True)
class FitOptions:
    """How a calibration is fitted and evaluated.

    `prior` is the probability of the same scene before matching.
    """

    prior: float = 0.5
    threshold_px: float = 3.0
    folds: int = 5
    seed: int = 0


def calibrate(
    descriptor: Descriptor,
    data: PairSet,
    keypoints: Detected,
    options: FitOptions,
    *,
    command: str = "",
) -> Calibration:
    """Match the pairs with a model, at the given keypoints, and fit its calibration.

    Raises:
        DataError: all pairs show the same scene, or none does.
    """
    measured = measure_pairs(descriptor, data, keypoints, KINDS, options.threshold_px)
    return fit_calibration(measured, data.multi_view, options, command=command)


def fit_calibration(
    measured: Sequence[Measured],
    multi_view: frozenset[str],
    options: FitOptions,
    *,
    command: str = "",
) -> Calibration:
    """Fit and evaluate a calibration for each kind of geometry.

    Raises:
        DataError: all pairs show the same scene, or none does.
    """
    is_same = np.array([m.pair.is_same for m in measured], np.bool_)
    if is_same.all() or not is_same.any():
        raise DataError("calibration needs pairs of the same scene and pairs of different scenes")
    scenes = {scene for m in measured for scene in m.pair.scenes}
    fold_of = {
        **divide_scenes(sorted(scenes & multi_view), options.folds, options.seed),
        **divide_scenes(sorted(scenes - multi_view), options.folds, options.seed),
    }
    folds = np.array([[fold_of[scene] for scene in m.pair.scenes] for m in measured], np.int64)
    geometries = {
        kind: _fit_kind(feature_rows(measured, kind), is_same, folds, options) for kind in KINDS
    }
    return Calibration(
        prior=options.prior,
        geometries=geometries,
        protocol=_protocol(measured, multi_view, is_same, options),
        command=command,
    )


def feature_rows(measured: Sequence[Measured], kind: CalibratedKind) -> Float64:
    """Return the features (N, F) of all pairs, in the order of `FEATURES`."""
    return np.array([[of(m.evidence[kind]) for of in FEATURES.values()] for m in measured])


def write_calibration(model: str, descriptor: Descriptor, calibration: Calibration) -> Path:
    """Write a calibration and its diagram to the directory of the model's card, and return it.

    Raises:
        ModelError: the card cannot be read.
    """
    if model in handcrafted.NAMES:
        directory = handcrafted.calibration_directory(model)
        directory.mkdir(parents=True, exist_ok=True)
        text = calibration.model_dump_json(indent=2) + "\n"
        write_text_whole(directory / CALIBRATION_FILE, text)
    else:
        directory = Path(model) if "/" in model else shipped_models_dir() / model
        card = read_card(directory)
        write_card(card.model_copy(update={"calibration": calibration}), directory)
    draw_reliability(calibration, descriptor.card.name, directory / DIAGRAM_FILE)
    return directory


def _fit_kind(
    rows: Float64, is_same: Bool, folds: np.ndarray, options: FitOptions
) -> GeometryCalibration:
    weights = class_weights(is_same, options.prior)
    fit = fit_logistic(rows, is_same, weights)
    # What n pairs never showed may still happen in the next one: Laplace's rule of succession.
    low = at_prior(1 / (int(is_same.sum()) + 2), options.prior)
    high = at_prior(1 - 1 / (int((~is_same).sum()) + 2), options.prior)
    held_out = held_out_probability(rows, is_same, folds, prior=options.prior)
    held_out = np.clip(held_out, low, high)
    scores = probability_scores(held_out, is_same, weights)
    return GeometryCalibration(
        intercept=round(fit.intercept, _DIGITS),
        coefficients={
            name: round(float(value), _DIGITS)
            for name, value in zip(FEATURES, fit.coefficients, strict=True)
        },
        low=float(f"{low:.{_DIGITS}g}"),
        high=1 - float(f"{1 - high:.{_DIGITS}g}"),
        held_out={name: round(value, _DIGITS) for name, value in scores.items()},
        reliability=reliability(held_out, is_same, weights),
    )


def _protocol(
    measured: Sequence[Measured], multi_view: frozenset[str], is_same: Bool, options: FitOptions
) -> dict[str, Any]:
    settings = {m.pair.setting for m in measured}
    views = sum(m.pair.is_same and m.pair.scenes[0] not in multi_view for m in measured)
    scenes = {scene for m in measured for scene in m.pair.scenes}
    return {
        "same": int(is_same.sum()),
        "same_generated_views": views,
        "different": int((~is_same).sum()),
        "scenes": len(scenes & multi_view),
        "photographs": len(scenes - multi_view),
        "min_shared_points": MIN_SHARED_POINTS,
        "max_keypoints": sorted({s.max_keypoints for s in settings}),
        "ratio": sorted({s.ratio for s in settings}, key=lambda r: (r is not None, r)),
        "raw_pairs": sum(m.pair.setting.is_raw for m in measured),
        "threshold_px": options.threshold_px,
        "held_out": f"{options.folds} folds of whole scenes and photographs; a pair is judged by "
        "a fit that saw neither of its scenes",
        "seed": options.seed,
    }
