"""The probability that two images show the same scene, computed from their matches.

It is a logistic function of a few numbers, fitted for each model and kind of geometry by
`python -m training calibrate` and stored in the model's card. No coefficient is negative, so one
more inlier never lowers the probability. The probability is limited by the size of the data it
was fitted on: with n pairs it stays between 1 / (n + 2) and 1 - 1 / (n + 2).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic
from pydantic import BaseModel, ConfigDict, Field, model_validator

from matchserve.errors import ModelCorrupt
from matchserve.types import VerifyKind
from matchserve.vision.evidence import Evidence

CALIBRATION_FILE = "calibration.json"
DIAGRAM_FILE = "reliability.png"

FeatureName = Literal["log_evidence", "log_inliers", "log_inlier_share", "inlier_ratio", "coverage"]
CalibratedKind = Literal["homography", "fundamental"]

# Counts grow with the number of keypoints, also for unrelated images. The false-alarm number and
# the inlier ratio, which fall with the number of matches, compensate for this.
FEATURES: dict[FeatureName, Callable[[Evidence], float]] = {
    "log_evidence": lambda evidence: math.log1p(-evidence.log_nfa),
    "log_inliers": lambda evidence: math.log1p(evidence.inliers),
    "log_inlier_share": lambda evidence: math.log((1 + evidence.inliers) / (1 + evidence.matches)),
    "inlier_ratio": lambda evidence: evidence.inlier_ratio,
    "coverage": lambda evidence: evidence.coverage,
}

# No fit reaches this value, and sums of such products do not overflow.
_MOST = 1000.0
_Finite = Annotated[float, Field(allow_inf_nan=False)]
_Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
_Inside = Annotated[float, Field(gt=0, lt=1, allow_inf_nan=False)]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ReliabilityBin(_Frozen):
    """Held-out pairs with similar predicted probability, for the reliability diagram.

    `predicted` is their mean probability; `observed` is the share that shows one scene, at the
    prior of the calibration.
    """

    predicted: _Share
    observed: _Share
    same: Annotated[int, Field(ge=0)]
    different: Annotated[int, Field(ge=0)]


class GeometryCalibration(_Frozen):
    """The logistic function for one kind of geometry, and its scores on held-out scenes."""

    intercept: Annotated[float, Field(ge=-_MOST, le=_MOST)]
    coefficients: dict[FeatureName, Annotated[float, Field(ge=0, le=_MOST)]]
    low: _Inside
    high: _Inside
    held_out: dict[str, _Finite] = Field(default_factory=dict)
    reliability: tuple[ReliabilityBin, ...] = ()

    @model_validator(mode="after")
    def _limits_are_a_range(self) -> GeometryCalibration:
        if not self.low < self.high:
            raise ValueError("low must be below high")
        return self

    def probability(self, evidence: Evidence) -> float:
        """Return the probability that the evidence comes from two images of one scene."""
        parts = (weight * FEATURES[name](evidence) for name, weight in self.coefficients.items())
        return min(max(logistic(self.intercept + sum(parts)), self.low), self.high)


class Calibration(_Frozen):
    """The calibration of `same_scene` in a model's card.

    `prior` is the assumed share of pairs that show one scene. `protocol` describes the data of
    the fit, and `command` repeats it.
    """

    prior: _Inside
    geometries: Annotated[dict[CalibratedKind, GeometryCalibration], Field(min_length=1)]
    protocol: dict[str, Any] = Field(default_factory=dict)
    command: str = ""

    def probability(self, kind: VerifyKind, evidence: Evidence) -> float | None:
        """Return the probability that both images show one scene; None for other geometries.

        A similarity or an affine map is a homography with fewer unknowns, for which its number of
        false alarms accounts, and has the same calibration.
        """
        if kind == "none" or kind == "pose":
            return None
        fitted = self.geometries.get("fundamental" if kind == "fundamental" else "homography")
        return None if fitted is None else fitted.probability(evidence)


def read_calibration(directory: Path) -> Calibration:
    """Read `directory/calibration.json`, which built-in descriptors have instead of a card.

    Raises:
        ModelCorrupt: the file is missing or invalid; the message names the field.
    """
    where = f"{directory.name}/{CALIBRATION_FILE}"
    try:
        return Calibration.model_validate_json((directory / CALIBRATION_FILE).read_bytes())
    except OSError as error:
        raise ModelCorrupt(f"{where}: not readable") from error
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"]) or "the file"
        raise ModelCorrupt(f"{where}: {field}: {first['msg']}") from error


def logistic(logit: float) -> float:
    """Return 1 / (1 + exp(-logit)) without overflow."""
    return 0.5 * (1.0 + math.tanh(0.5 * logit))
