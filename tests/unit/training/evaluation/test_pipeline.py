"""The pipeline of an evaluation is that of the service."""

from __future__ import annotations

from matchserve import defaults
from matchserve.options import DEFAULT_OPTIONS
from training.evaluation.pipeline import matcher_options, pipeline_protocol
from training.evaluation.protocol import Options


def test_keypoints_are_those_of_the_service() -> None:
    assert matcher_options(Options()).detect == DEFAULT_OPTIONS.detect
    assert matcher_options(Options(selection="contrast")).detect.selection == "contrast"


def test_a_search_for_views_ends_by_the_geometry_of_the_service() -> None:
    plain, searched = matcher_options(Options()), matcher_options(Options(views="auto"))
    assert (plain.views, plain.verify.kind) == (1, "none")
    assert (searched.views, searched.verify.kind) == ("auto", defaults.VERIFY)


def test_the_protocol_names_the_views_if_there_are_any() -> None:
    assert "views" not in pipeline_protocol(Options(pipeline="default"), "estimator")
    for pipeline in ("default", "both"):
        options = Options(pipeline=pipeline, views="auto")
        assert pipeline_protocol(options, "estimator")["views"] == "auto"
