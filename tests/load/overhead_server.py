"""A service whose matcher does nothing: what is left is the cost of HTTP."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from matchserve import defaults
from matchserve.api import serve as serving
from matchserve.api.app import create_app
from matchserve.settings import Settings
from matchserve.types import Features, Keypoints, Matches, MatchResult, Verification


def ready_result(matches: int = 1000, keypoints: int = 2048) -> MatchResult:
    """A result of ordinary size."""
    rng = np.random.default_rng(0)

    def features() -> Features:
        xy = rng.uniform(0, 640, (keypoints, 2)).astype(np.float32)
        column = np.ones(keypoints, np.float32)
        rows = np.zeros((keypoints, 128), np.float32)
        return Features(Keypoints(xy, column, column, column), rows, defaults.MODEL, (640, 480))

    pairs = np.stack([np.arange(matches), rng.permutation(matches)], axis=1).astype(np.int32)
    scores = rng.uniform(0, 1, matches).astype(np.float32)
    inliers = rng.uniform(size=matches) < 0.7
    verification = Verification("fundamental", rng.normal(size=(3, 3)), inliers, 1.0)
    timings = {"decode": 4.0, "detect": 90.0, "describe": 80.0, "match": 30.0, "total": 150.0}
    return MatchResult(
        features(), features(), Matches(pairs, 1 - scores, scores), verification, timings
    )


def main() -> None:
    settings = Settings(port=int(sys.argv[1]), log_format="json")
    app = create_app(settings)
    result = ready_result()

    def match(*_: Any) -> MatchResult:
        return result

    app.state.service.model("").matcher.match = match
    vars(serving)["create_app"] = lambda _: app
    serving.serve(settings)


if __name__ == "__main__":
    main()
