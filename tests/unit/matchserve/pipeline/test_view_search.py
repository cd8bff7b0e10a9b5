"""Synthetic views: a strongly tilted photograph is matched, within time and number of views."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import cv2
import numpy as np
import pytest

from matchserve import defaults
from matchserve.clock import Call, Deadline, StageClock, one_thread
from matchserve.errors import InvalidParameter
from matchserve.limits import MAX_VIEWS
from matchserve.matcher import Matcher, _may_search_views
from matchserve.options import Options, parse_views
from matchserve.pipeline import view_search
from matchserve.pipeline.attempts import Attempt
from matchserve.pipeline.inputs import ImageInput
from matchserve.pipeline.orientations import OrientationAttempts
from matchserve.pipeline.pair_runner import Source
from matchserve.types import MatchResult, UInt8
from matchserve.vision.geometry import VerifyOptions
from matchserve.vision.given_points import GivenPoints
from matchserve.vision.masks import Mask
from matchserve.vision.views import SMALL_TILT_ANGLES, render
from training.evaluation.benchmarks.tilts import TiltedView, tilted
from training.metrics.image_pairs import corner_error

PLAIN = Options(verify=VerifyOptions("homography"), views=1)
AUTO = replace(PLAIN, views="auto")
SEARCH = replace(PLAIN, views="search")


@pytest.fixture(scope="module")
def matcher() -> Matcher:
    return Matcher("rootsift")


@pytest.fixture(scope="module")
def photo(grey_photograph: UInt8) -> UInt8:
    return np.ascontiguousarray(grey_photograph[:360, :400])


@pytest.fixture(scope="module")
def view(photo: UInt8) -> TiltedView:
    return tilted(photo, 77, axis_deg=20, turn_deg=0)


def error_of(result: MatchResult, photo: UInt8, view: TiltedView) -> float:
    size = (photo.shape[1], photo.shape[0])
    return corner_error(result.verification.matrix, view.homography, size)


def test_views_of_a_turned_image_have_oriented_patches(
    matcher: Matcher, photo: UInt8, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever orientation finds more by chance in the images as sent."""
    turned_too = tilted(photo, 76, axis_deg=20, turn_deg=90)
    attempt = OrientationAttempts._attempt

    def with_more_upright(*args: Any) -> Attempt:
        found = attempt(*args)
        judged = found.judged
        rows = np.arange(min(10, len(judged.matches)))
        confidence = np.full(len(rows), 0.2 if found.orientation == "oriented" else 0.5, np.float32)
        assert judged.refined is not None
        few = replace(
            judged,
            matches=replace(judged.matches[rows], confidence=confidence),
            refined=judged.refined[rows],
            returned=judged.returned[rows],
        )
        return replace(found, judged=few)

    monkeypatch.setattr(OrientationAttempts, "_attempt", with_more_upright)
    found = matcher.match(photo, turned_too.grey, SEARCH)
    assert found.orientation == "oriented"
    assert error_of(found, photo, turned_too) < 5


def test_views_solve_what_the_images_alone_do_not(
    matcher: Matcher, photo: UInt8, view: TiltedView
) -> None:
    alone = matcher.match(photo, view.grey, PLAIN)
    assert error_of(alone, photo, view) > 5
    assert (alone.views.described, alone.views.reason) == (2, "")
    found = matcher.match(photo, view.grey, SEARCH)
    assert error_of(found, photo, view) < 2
    assert found.views.described > 2
    assert found.views.best[0][0] > 1
    assert found.views.best[1] == (1.0, 0.0)
    assert found.views.reason == "the geometry is sure"
    # Every match is in the coordinates of the images as sent, and has its confidence and map.
    points0, points1 = found.points()
    mapped = cv2.perspectiveTransform(points0[None].astype(np.float64), view.homography)[0]
    gap = np.linalg.norm(mapped - points1, axis=1)[found.verification.inliers]
    assert np.median(gap) < 1.5
    assert found.matches.confidence is not None
    assert found.matches.confidence.min() >= 0.5
    assert found.refined is not None
    row = int(np.argmin(gap))
    step = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    at = points0[found.verification.inliers][row]
    truth = cv2.perspectiveTransform((at + step)[None], view.homography)[0]
    affine = found.refined.affine[found.verification.inliers][row]
    np.testing.assert_allclose(affine, (truth[1:] - truth[0]).T, atol=0.35)
    # No two matches share a position.
    for points in (points0, points1):
        assert len(np.unique(np.round(points, 3), axis=0)) == len(points)


def test_a_sure_pair_costs_no_view(matcher: Matcher, photo: UInt8) -> None:
    turned = np.ascontiguousarray(np.rot90(photo))
    plain, auto = (matcher.match(photo, turned, options) for options in (PLAIN, AUTO))
    assert auto.views.described == 2
    np.testing.assert_array_equal(auto.matches.pairs, plain.matches.pairs)


def test_the_number_of_views_is_kept(matcher: Matcher, photo: UInt8) -> None:
    noise = np.random.default_rng(0).integers(0, 255, photo.shape, np.uint8)
    found = matcher.match(photo, noise, replace(PLAIN, views=4))
    assert found.views.described == 5
    assert found.views.reason == "4 pairs of views were matched"


def test_views_end_before_the_deadline(
    matcher: Matcher, photo: UInt8, monkeypatch: pytest.MonkeyPatch
) -> None:
    noise = np.random.default_rng(0).integers(0, 255, photo.shape, np.uint8)
    now = [0.0]
    rendered = []

    def slow(*args: Any) -> Any:
        now[0] += 5.0  # two views a step: 10 s
        rendered.append(args)
        return render(*args)

    monkeypatch.setattr(view_search, "render", slow)
    call = Call(StageClock(Deadline(45.0, lambda: now[0])), one_thread)
    found = matcher.match(photo, noise, SEARCH, call)
    assert found.views.reason == "there was no time for more views"
    # After three steps 15 s are left, less than twice the time of a step.
    assert len(rendered) == 6
    assert now[0] == 30.0


def test_masks_hold_in_views(matcher: Matcher, photo: UInt8, view: TiltedView) -> None:
    left = np.array([[0, 0], [200, 0], [200, 360], [0, 360]], float)
    found = matcher.match(ImageInput(photo, Mask((left,))), view.grey, SEARCH)
    assert found.views.described > 2
    assert len(found.matches) > 10
    assert found.features0.keypoints.xy[:, 0].min() > 199


def test_auto_searches_where_the_images_as_sent_hint_at_a_common_scene(
    matcher: Matcher, photo: UInt8
) -> None:
    view = tilted(photo, 72, axis_deg=20, turn_deg=0)
    alone = matcher.match(photo, view.grey, PLAIN)
    assert alone.matches.confidence is not None
    assert defaults.HINT_MATCHES < alone.matches.confidence.sum() < defaults.ENOUGH_INLIERS
    found = matcher.match(photo, view.grey, AUTO)
    assert found.views.described > 2
    assert len(found.matches) > 2 * len(alone.matches)


def test_auto_matches_no_views_of_unrelated_images(matcher: Matcher, photo: UInt8) -> None:
    noise = np.random.default_rng(0).integers(0, 255, photo.shape, np.uint8)
    found = matcher.match(photo, noise, AUTO)
    assert found.views.described == 2
    assert found.views.reason == "the images as sent do not hint at a common scene"
    assert found.views.note == ""


def test_auto_matches_no_views_of_images_from_one_direction(matcher: Matcher, photo: UInt8) -> None:
    view = tilted(photo, 72, axis_deg=20, turn_deg=0)
    similar = replace(AUTO, verify=VerifyOptions("similarity"))
    assert matcher.match(photo, view.grey, similar).views.described == 2
    card = matcher.descriptor.card.model_copy(update={"searches_turn": True})
    sources = (Source(ImageInput(photo)), Source(ImageInput(photo)))
    assert not _may_search_views(sources, card, AUTO)
    assert _may_search_views(sources, matcher.descriptor.card, AUTO)


def test_auto_leaves_larger_tilts_out_if_small_ones_do_not_help(
    matcher: Matcher, photo: UInt8, monkeypatch: pytest.MonkeyPatch
) -> None:
    noise = np.random.default_rng(0).integers(0, 255, photo.shape, np.uint8)
    monkeypatch.setattr(defaults, "HINT_MATCHES", 0.0)
    found = matcher.match(photo, noise, AUTO)
    assert found.views.described == 2 + 2 * SMALL_TILT_ANGLES
    assert found.views.reason == "views that are tilted a little find too few matches"


def test_given_points_have_no_views(matcher: Matcher, photo: UInt8) -> None:
    points = GivenPoints(np.array([[100.0, 100.0], [200.0, 200.0]], np.float32))
    with pytest.raises(InvalidParameter, match="views"):
        matcher.match(ImageInput(photo, points=points), photo, SEARCH)
    assert matcher.match(ImageInput(photo, points=points), photo, AUTO).views.described == 2


@pytest.mark.parametrize("views", [0, MAX_VIEWS + 1, "many"])
def test_other_numbers_are_refused(views: Any) -> None:
    with pytest.raises(InvalidParameter, match="views"):
        Options(views=parse_views(str(views)))
