"""The benchmark `tilts`: the rendered views, and matching with and without synthetic views."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest
from skimage import data as samples

from training.evaluation.benchmarks import tilts
from training.evaluation.protocol import Options, load_models
from training.metrics.image_pairs import corner_error


@pytest.mark.parametrize("degrees", [0, 40, 75])
def test_a_disc_is_where_the_homography_says(degrees: int) -> None:
    grey = np.full((200, 300), 20, np.uint8)
    centre = np.array([210.0, 60.0])
    cv2.circle(grey, (210, 60), 6, 250, -1)
    view = tilts.tilted(grey, degrees, 30.0, 100.0)
    x, y, w = view.homography @ [*centre, 1.0]
    rows, columns = np.nonzero(view.grey > 100)
    assert np.hypot(columns.mean() - x / w, rows.mean() - y / w) < 1


def test_without_a_tilt_the_size_stays() -> None:
    grey = np.asarray(samples.camera()[:200, :300])
    view = tilts.tilted(grey, 0.0, 0.0, 0.0)
    assert view.grey.shape == grey.shape
    assert corner_error(view.homography, np.eye(3), (300, 200)) < 0.01
    assert np.abs(view.grey.astype(float) - grey).mean() < 4


def test_every_model_has_a_row_without_and_with_views(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tilts, "TILTS_DEG", (40, 60))
    small = cv2.resize(samples.coffee(), (300, 200), interpolation=cv2.INTER_AREA)
    for name in ("a", "b", "c"):
        cv2.imwrite(str(tmp_path / f"{name}.png"), small)
    options = Options(max_keypoints=400, threads=1, limit=1, cache=tmp_path / "cache")
    result = tilts.run(load_models(["compact"], options), [tmp_path], options)
    assert list(result.models) == [f"compact, views={views}" for views in (1, "auto", "search")]
    for found in result.models.values():
        assert len(found.units) == 2
        assert found.figures["solved@40deg"] == 1
        assert found.figures["inliers"] > 20
