"""The pipeline of an evaluation is that of the service."""

from __future__ import annotations

from pathlib import Path

import pytest

from matchserve import defaults
from matchserve.options import DEFAULT_OPTIONS
from matchserve.pattern import generate_pair
from matchserve.vision.decode import from_array
from training.evaluation.pipeline import (
    matcher_options,
    pair_options,
    pipeline_protocol,
    run_pipeline,
)
from training.evaluation.predictions import ImageSet, predict
from training.evaluation.protocol import Options, load_models


def test_keypoints_are_those_of_the_service() -> None:
    assert matcher_options(Options()).detect == DEFAULT_OPTIONS.detect
    assert matcher_options(Options(selection="contrast")).detect.selection == "contrast"


def test_a_search_for_views_ends_by_the_geometry_that_the_service_is_asked_for() -> None:
    plain, searched = matcher_options(Options(views=1)), matcher_options(Options())
    assert (plain.views, pair_options(plain, "homography").verify.kind) == (1, "none")
    assert searched.views == defaults.VIEWS == "auto"
    assert pair_options(searched, "homography").verify.kind == "homography"
    assert pair_options(searched, "similarity").judge.min_confidence < defaults.SUPPORT_CONFIDENCE


def test_the_protocol_names_the_views_if_they_are_not_the_default() -> None:
    for pipeline in ("default", "both"):
        assert "views" not in pipeline_protocol(Options(pipeline=pipeline), "estimator")
        options = Options(pipeline=pipeline, views="search")
        assert pipeline_protocol(options, "estimator")["views"] == "search"


def test_cached_matches_are_of_the_same_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = [from_array(image) for image in generate_pair((160, 120), seed=3)[:2]]
    data = ImageSet({"a": lambda: images[0], "b": lambda: images[1]}, [("a", "b")], "digest")
    options = Options(max_keypoints=100, threads=1, cache=tmp_path)
    model = next(m for m in load_models([], options) if m.name == "rootsift")

    def kept() -> int:
        predict(model, data, options)
        run_pipeline(model, data, options)
        return len(list(tmp_path.iterdir()))

    assert [kept(), kept()] == [3, 3]
    for module in ("pipeline", "predictions"):
        monkeypatch.setattr(f"training.evaluation.{module}.matching_code", lambda: "changed")
    assert kept() == 6
