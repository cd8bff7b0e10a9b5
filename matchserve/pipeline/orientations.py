"""Match two images with patches that are turned as their keypoints, and with others if need be."""

from __future__ import annotations

from dataclasses import dataclass, replace

from matchserve.models.descriptor import Descriptor
from matchserve.options import Options
from matchserve.pipeline.attempts import Attempt, judge_pair
from matchserve.pipeline.describing import Describer
from matchserve.pipeline.judging import JudgedMatches
from matchserve.pipeline.pair_runner import PairRunner, Source, fit_in_memory
from matchserve.pipeline.turning import find_turn, turned
from matchserve.types import Features, Keypoints
from matchserve.vision.keypoints import DetectOptions

# Below this expected number of right matches, upright patches are tried too. They find more above
# it as well, but take as long again (docs/research/match-quality.md).
CONVINCING_MATCHES = 80.0


@dataclass(frozen=True, slots=True)
class OrientationAttempts:
    """Describes and matches both images of one call, in one or several orientations."""

    describer: Describer
    descriptor: Descriptor
    options: Options
    run: PairRunner

    def match(self, sources: tuple[Source, Source]) -> list[Attempt]:
        """Match oriented patches, and others if these find too little."""
        is_upright = self.options.detect.upright or self.options.orientation == "upright"
        attempts = [self._attempt(sources, replace(self.options.detect, upright=is_upright))]
        if self._is_undecided(attempts[0]):
            upright = self._attempt(sources, replace(self.options.detect, upright=True))
            attempts.append(upright)
            if self._searches_turn(attempts):
                attempts.append(self._turned_attempt(sources, upright))
        return attempts

    def _attempt(self, sources: tuple[Source, Source], detect_options: DetectOptions) -> Attempt:
        """Describe both images in one orientation, and find and judge their matches."""
        options, call = self.options, self.run.call
        recalled = [
            self.describer.recall(source, detect_options, options, call) for source in sources
        ]
        wanted = [
            source
            for source, features in zip(sources, recalled, strict=True)
            if features is None or options.judge.refine != "none"
        ]
        if len(wanted) == 2:
            self.run.both(
                lambda source: self.describer.image(source, options, call),
                wanted,
                is_parallel=self.describer.fit_together([source.given for source in wanted]),
            )
        is_parallel = fit_in_memory([s.image for s in wanted if s.image is not None])
        features = self.run.both(
            lambda item: (
                self.describer.describe(item[0], detect_options, options, call)
                if item[1] is None
                else item[1]
            ),
            list(zip(sources, recalled, strict=True)),
            is_parallel=is_parallel,
        )
        images = None
        if options.judge.refine != "none":
            images = self.describer.images(sources, options, call)
        judged = judge_pair(features, images, self.descriptor.card, options, call)
        return Attempt(features, judged, "upright" if detect_options.upright else "oriented")

    def _is_undecided(self, attempt: Attempt) -> bool:
        """Return whether upright patches should be tried as well."""
        if self.options.orientation not in ("auto", "search") or attempt.orientation != "oriented":
            return False
        has_confidence = attempt.judged.matches.confidence is not None
        return has_confidence and attempt.judged.expected_right < CONVINCING_MATCHES

    def _searches_turn(self, attempts: list[Attempt]) -> bool:
        """Return whether the images should be matched upright at other angles too."""
        is_wanted = self.options.orientation == "search" or self.descriptor.card.searches_turn
        best = max(attempt.judged.expected_right for attempt in attempts)
        return is_wanted and best < CONVINCING_MATCHES

    def _turned_attempt(self, sources: tuple[Source, Source], upright: Attempt) -> Attempt:
        """Describe the upright keypoints of image 1 at the angle that finds most matches."""
        options, call = self.options, self.run.call
        images = self.describer.images(sources, options, call)
        features0, features1 = upright.features

        def describe(keypoints: Keypoints) -> Features:
            with call.clock.stage("describe"):
                descriptors = self.descriptor.describe(images[1], keypoints, call)
            return replace(features1, keypoints=keypoints, descriptors=descriptors)

        def judge(features: tuple[Features, Features]) -> JudgedMatches:
            return judge_pair(features, None, self.descriptor.card, options, call)

        angle = find_turn(features0, features1.keypoints, describe, judge)
        features = (features0, describe(turned(features1.keypoints, angle)))
        # Nothing is refined here either if the options say so.
        judged = judge_pair(features, images, self.descriptor.card, options, call)
        return Attempt(features, judged, "turned")
