"""Match synthetic views of two images, one pair of views after the other, until it is enough."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from matchserve import defaults
from matchserve.clock import Call
from matchserve.models.descriptor import Descriptor
from matchserve.models.detection import find_keypoints
from matchserve.options import Options
from matchserve.pipeline.attempts import Attempt, as_sent, joined, judge_pair, verify_attempt
from matchserve.pipeline.turning import turned
from matchserve.threads import off_main_thread
from matchserve.types import Features, Image, Verification, ViewReport
from matchserve.vision.masks import Mask
from matchserve.vision.views import (
    FRONTAL,
    PAIRS_OF_SMALL_TILT,
    SMALL_TILT,
    SyntheticView,
    View,
    ViewRegion,
    render,
    view_pairs,
)

# Finding keypoints cannot be interrupted, so views are not larger than the default working size.
_MAX_PIXELS = defaults.MAX_SIDE**2
# The time of a step varies: stop if less than this many times the longest one is left.
_TIME_MARGIN = 2.0


@dataclass(frozen=True, slots=True, eq=False)
class SearchedImage:
    """An image whose views are searched, and its mask."""

    image: Image
    mask: Mask | None = None


@dataclass(slots=True)
class ViewSearch:
    """Matches views of two images in the order of `view_pairs`.

    One view of each image exists at a time, besides the images as sent.
    """

    images: tuple[SearchedImage, SearchedImage]
    descriptor: Descriptor
    options: Options
    call: Call
    _features: dict[tuple[int, View], Features] = field(default_factory=dict)
    _described: int = 2
    _longest_s: float = 0.0

    def run(self, frontal: Attempt) -> tuple[Attempt, Verification, ViewReport]:
        """Return the joined matches, starting with those of the images as sent."""
        for side in (0, 1):
            self._features[side, FRONTAL] = frontal.features[side]
        as_sent_alone = frontal, verify_attempt(frontal, self.options, self.call)
        found, verification = as_sent_alone
        best, most = (FRONTAL, FRONTAL), frontal.strength
        pairs = view_pairs()
        pairs = pairs[: self.options.views] if isinstance(self.options.views, int) else pairs
        is_auto, reason = self.options.views == "auto", ""
        for number, pair in enumerate(pairs[1:], 1):
            reason = self._reason_to_stop(found, verification)
            helps = best != pairs[0] and most >= defaults.PROMISING_MATCHES
            if not reason and is_auto and number == PAIRS_OF_SMALL_TILT and not helps:
                # What they added is chance, and would make unrelated images look alike.
                found, verification = as_sent_alone
                reason = "views that are tilted a little find too few matches"
            if reason:
                break
            started_s = self.call.clock.deadline.remaining_s()
            part = self._matched(pair, frontal)
            found = joined(found, part)
            verification = verify_attempt(found, self.options, self.call)
            if part.strength > most:
                best, most = pair, part.strength
            if math.isfinite(started_s):
                step_s = started_s - self.call.clock.deadline.remaining_s()
                self._longest_s = max(self._longest_s, step_s)
        reason = reason or f"{len(pairs)} pairs of views were matched"
        names = (best[0].tilt, best[0].angle_deg), (best[1].tilt, best[1].angle_deg)
        return found, verification, ViewReport(self._described, names, reason)

    def _reason_to_stop(self, found: Attempt, verification: Verification) -> str:
        """Say why no more views are matched; empty if there is no reason."""
        if not isinstance(self.options.views, int) and is_enough(found, verification):
            return "the geometry is sure"
        if self.call.clock.deadline.remaining_s() < _TIME_MARGIN * self._longest_s:
            return "there was no time for more views"
        return ""

    def _matched(self, pair: tuple[View, View], frontal: Attempt) -> Attempt:
        """Match two views, and map the matches to the images as sent."""
        views = (
            render(self.images[0].image, pair[0], _MAX_PIXELS),
            render(self.images[1].image, pair[1], _MAX_PIXELS),
        )
        features = (
            self._view_features(views[0], pair[0], 0, frontal),
            self._view_features(views[1], pair[1], 1, frontal),
        )
        images = (views[0].image, views[1].image)
        judged = judge_pair(features, images, self.descriptor.card, self.options, self.call)
        return as_sent(Attempt(features, judged, frontal.orientation), views, frontal.features)

    def _view_features(
        self, rendered: SyntheticView, view: View, side: int, frontal: Attempt
    ) -> Features:
        """Find and describe the keypoints of a view, in its own pixels."""
        known = self._features.get((side, view))
        if known is not None:
            return known
        searched = self.images[side]
        region = ViewRegion(rendered, searched.image.size, searched.mask)
        is_upright = frontal.orientation != "oriented"
        detect_options = replace(self.options.detect, upright=is_upright, further_orientations=0.0)
        with self.call.clock.stage("detect"):
            keypoints = off_main_thread(
                find_keypoints, self.descriptor, rendered.image, detect_options, region
            )
        if frontal.orientation == "turned":
            keypoints = turned(keypoints, float(frontal.features[side].keypoints.angle[0]))
        with self.call.clock.stage("describe"):
            descriptors = self.descriptor.describe(rendered.image, keypoints, self.call)
        features = replace(frontal.features[side], keypoints=keypoints, descriptors=descriptors)
        self._described += 1
        if _is_kept(view):
            self._features[side, view] = features
        return features


def kept_features() -> int:
    """Return the number of views whose features a search keeps, besides the images as sent."""
    pairs = view_pairs()
    return sum(len({pair[side] for pair in pairs if _is_kept(pair[side])}) for side in (0, 1))


def _is_kept(view: View) -> bool:
    """Return whether a view is matched again: larger tilts only meet the other image as sent."""
    return 1 < view.tilt <= SMALL_TILT


def is_enough(attempt: Attempt, verification: Verification) -> bool:
    """Return whether matching more views would not make the geometry surer."""
    confidence = attempt.judged.matches.confidence
    fewer = min(len(features) for features in attempt.features)
    enough = min(defaults.ENOUGH_INLIERS, defaults.ENOUGH_SHARE * fewer)
    if verification.kind == "none":
        return attempt.strength >= enough
    inliers = verification.inliers
    expected = float(inliers.sum() if confidence is None else confidence[inliers].sum())
    is_sure = verification.confidence >= defaults.ENOUGH_CONFIDENCE
    return is_sure and expected >= enough
