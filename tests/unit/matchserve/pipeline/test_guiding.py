"""Guided matching adds matches along the geometry, judged and marked."""

from __future__ import annotations

from dataclasses import replace

import cv2
import numpy as np
import pytest

from matchserve.matcher import Matcher
from matchserve.options import Options
from matchserve.types import UInt8
from matchserve.vision.geometry import VerifyOptions
from tests.distorted_scene import CAMERAS, distorted_pair
from training.evaluation.benchmarks.tilts import tilted

PLAIN = Options(verify=VerifyOptions("homography"))
GUIDED = replace(PLAIN, guided=True)


@pytest.mark.parametrize("model", ["rootsift", "sift"])
def test_matches_are_added_and_are_right(model: str, grey_photograph: UInt8) -> None:
    photo = np.ascontiguousarray(grey_photograph[:360, :400])
    view = tilted(photo, 45, axis_deg=30, turn_deg=0)
    matcher = Matcher(model)
    plain, found = (matcher.match(photo, view.grey, options) for options in (PLAIN, GUIDED))
    assert plain.guided is None
    assert found.guided is not None
    assert found.guided.sum() >= 5
    assert len(found.matches) > len(plain.matches)
    assert found.verification.inliers[found.guided].all()
    points0, points1 = found.points()
    mapped = cv2.perspectiveTransform(points0[None].astype(np.float64), view.homography)[0]
    error = np.linalg.norm(mapped - points1, axis=1)
    assert (error[found.guided] < 4).mean() > 0.9
    # Still sorted, and no keypoint is in two returned matches.
    assert (np.diff(found.matches.pairs[:, 0]) > 0).all()
    assert len(np.unique(found.matches.pairs[:, 1])) == len(found.matches)
    if found.matches.confidence is not None:
        assert found.matches.confidence[found.guided].min() >= 0.5
    assert any("added along the geometry" in note for note in found.notes)


def test_a_pose_guides_through_the_distortion() -> None:
    pair = distorted_pair()
    options = Options(verify=VerifyOptions("pose", 1.5, cameras=CAMERAS), guided=True)
    found = Matcher("rootsift").match(*pair.images, options)
    assert found.guided is not None
    assert found.verification.pose is not None
    assert max(pair.errors(found.verification.pose)) < 0.3


def test_without_a_geometry_nothing_is_added(pattern: UInt8) -> None:
    options = replace(GUIDED, verify=VerifyOptions("none"))
    assert Matcher("rootsift").match(pattern, pattern, options).guided is None
