"""The geometry that a match checks against if the request names none."""

from __future__ import annotations

from dataclasses import replace

import pytest

from matchserve import Matcher, VerifyOptions, defaults
from matchserve.collections.collection import DEFAULT_OPTIONS as COLLECTION_OPTIONS
from matchserve.models.card import DefaultGeometry, ModelCard
from matchserve.models.registry import load_descriptor
from matchserve.options import DEFAULT_OPTIONS, RAW_OPTIONS, with_geometry_of
from matchserve.pattern import generate_pair


@pytest.fixture(scope="module")
def card() -> ModelCard:
    return load_descriptor("rootsift").card


@pytest.mark.parametrize(
    ("named", "used"), [(None, defaults.VERIFY), ("auto", "auto"), ("affine", "affine")]
)
def test_the_card_names_the_geometry(
    card: ModelCard, named: DefaultGeometry | None, used: str
) -> None:
    of_card = card.model_copy(update={"verify": named})
    assert with_geometry_of(of_card, DEFAULT_OPTIONS).verify.kind == used


def test_a_request_has_precedence_over_the_card(card: ModelCard) -> None:
    of_card = card.model_copy(update={"verify": "auto"})
    for options in (
        RAW_OPTIONS,
        COLLECTION_OPTIONS,
        replace(DEFAULT_OPTIONS, verify=VerifyOptions()),
    ):
        assert with_geometry_of(of_card, options) is options
        assert options.verify.kind == "fundamental"


def test_robust_chooses_the_geometry_and_other_models_do_not() -> None:
    first, second, _ = generate_pair((320, 240), seed=1)
    kinds = {}
    for name in ("robust", "compact"):
        matcher = Matcher(name)
        options = replace(
            DEFAULT_OPTIONS, detect=replace(DEFAULT_OPTIONS.detect, max_keypoints=300)
        )
        found = matcher.match(first, second, options)
        again = matcher.match_features(found.features0, found.features1)
        kinds[name] = (found.verification.kind, again.verification.kind)
    assert kinds == {"robust": ("homography",) * 2, "compact": ("fundamental",) * 2}
