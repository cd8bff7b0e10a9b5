"""Matches of the pipeline as the service runs it: filtered, refined, one for each position."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image as Pillow

from matchserve import defaults
from matchserve.clock import Call
from matchserve.feature_cache import FeatureCache
from matchserve.matcher import Matcher
from matchserve.options import DEFAULT_OPTIONS
from matchserve.options import Options as MatcherOptions
from matchserve.pipeline.judging import support_confidence
from matchserve.types import Bool, Float32, Image, MatchResult, VerifyKind
from matchserve.vision.matching import MatchOptions
from training.data.parallel import progress
from training.evaluation.peer import PEER, match_by_peer, peer_stamp
from training.evaluation.predictions import Arrays, ImageSet, Predictions, cached, predict
from training.evaluation.protocol import Model, Options, matching_code, stamp_of

_CACHE_BYTES = 2_000_000_000

Kinds = Mapping[tuple[str, str], VerifyKind]


@dataclass(frozen=True, slots=True, eq=False)
class PairMatches:
    """Matched points (M, 2) of a pair, and the confidence of each, None if the model has none.

    The geometry is fitted to all of them; `returned` (M,) marks those that the service returns.
    `is_peer` marks matches of OpenCV's SIFT, whose geometry OpenCV estimates too.
    """

    points0: NDArray[Any]
    points1: NDArray[Any]
    confidence: Float32 | None = None
    is_peer: bool = False

    @property
    def returned(self) -> Bool:
        """Which matches the service returns."""
        if self.confidence is None:
            return np.ones(len(self.points0), np.bool_)
        return np.asarray(self.confidence >= defaults.MIN_CONFIDENCE)


@dataclass(frozen=True, slots=True, eq=False)
class Variant:
    """One row of a result: its name, the stamp of its model, keypoints and matches of all pairs."""

    name: str
    stamp: str
    predictions: Predictions
    found: Mapping[tuple[str, str], PairMatches]


def variants(
    models: Iterable[Model], data: ImageSet, options: Options, kinds: Kinds | None = None
) -> Iterator[Variant]:
    """Match all pairs with every model, by the pipelines that the protocol asks for.

    `kinds` are the geometries that the service is asked for, where they are not the default.
    """
    predictions = None
    for model in models:
        predictions = predict(model, data, options)
        if options.pipeline != "default":
            raw = {pair: PairMatches(*predictions.points(pair)) for pair in data.pairs}
            name = raw_name(model.name) if options.pipeline == "both" else model.name
            yield Variant(name, model.stamp, predictions, raw)
        if options.pipeline != "raw":
            found = run_pipeline(model, data, options, kinds)
            yield Variant(model.name, model.stamp, predictions, found)
    if options.pipeline == "both" and predictions is not None:
        matched = match_by_peer(data, options)
        peer = {pair: PairMatches(*points, is_peer=True) for pair, points in matched.items()}
        yield Variant(PEER, peer_stamp(), predictions, peer)


def raw_name(model: str) -> str:
    """Return the name of the raw matches of a model in a result that has both."""
    return f"{model} (raw)"


def pipeline_protocol(options: Options, raw_estimator: str) -> dict[str, str]:
    """Name the matcher and the estimator of the protocol's pipeline."""
    chosen = {} if options.selection is None else {"selection": options.selection}
    views = {} if options.views == defaults.VIEWS else {"views": str(options.views)}
    raw = {"matcher": "mutual nearest neighbour", "estimator": raw_estimator, **chosen}
    default = {
        **chosen,
        **views,
        "matcher": f"default pipeline, confidence at least {defaults.MIN_CONFIDENCE:g}, refined",
        "estimator": "PoseLib, progressive sampling by confidence",
    }
    if options.pipeline == "both":
        return {key: f"{default[key]}; raw: {raw[key]}" for key in raw} | views
    return raw if options.pipeline == "raw" else default


def run_pipeline(
    model: Model, data: ImageSet, options: Options, kinds: Kinds | None = None
) -> dict[tuple[str, str], PairMatches]:
    """Match all pairs as the service does, or read the matches from the cache."""
    rule = matcher_options(options)
    asked = [(kinds or {}).get(pair, defaults.VERIFY) for pair in data.pairs]
    stamp = stamp_of(
        model=model.stamp,
        confidence=confidence_stamp(model),
        data=data.digest,
        pairs=data.pairs,
        rule=repr(rule),
        code=matching_code(),
        kinds=asked,
    )
    path = options.cache / f"pipeline-{model.name}-{stamp}.npz"
    arrays = cached(path, lambda: _match_all(model, data, rule, asked))
    return {pair: _read(arrays, number) for number, pair in enumerate(data.pairs)}


def matcher_options(options: Options) -> MatcherOptions:
    """Return the default options of the service at the full size."""
    return replace(
        DEFAULT_OPTIONS,
        detect=replace(
            DEFAULT_OPTIONS.detect,
            max_keypoints=options.max_keypoints,
            selection=options.selection or DEFAULT_OPTIONS.detect.selection,
        ),
        match=MatchOptions(ratio=options.ratio),
        views=options.views,
        max_side=0,
    )


def pair_options(rule: MatcherOptions, kind: VerifyKind) -> MatcherOptions:
    """Return the options of a pair for which the service is asked for a geometry of this kind.

    Benchmarks fit a geometry of their own; the matcher's only says when enough views were matched.
    """
    return replace(
        rule,
        judge=replace(rule.judge, min_confidence=support_confidence(kind)),
        verify=replace(rule.verify, kind="none" if rule.views == 1 else kind),
    )


def _match_all(
    model: Model, data: ImageSet, rule: MatcherOptions, kinds: list[VerifyKind]
) -> Arrays:
    matcher = Matcher(model.descriptor, cache=FeatureCache(_CACHE_BYTES))
    encoded = {name: _png(load()) for name, load in data.images.items()}
    arrays: Arrays = {}
    for number, (one, other) in enumerate(
        progress(data.pairs, total=len(data.pairs), label=f"{model.name}, pipeline")
    ):
        options = pair_options(rule, kinds[number])
        result = matcher.match(encoded[one], encoded[other], options, Call())
        arrays |= {f"{number}/{name}": value for name, value in _arrays(result).items()}
    return arrays


def _arrays(result: MatchResult) -> dict[str, NDArray[Any]]:
    points0, points1 = result.points()
    found: dict[str, NDArray[Any]] = {"points0": points0, "points1": points1}
    if result.matches.confidence is not None:
        found["confidence"] = result.matches.confidence
    return found


def _read(arrays: Arrays, number: int) -> PairMatches:
    return PairMatches(
        arrays[f"{number}/points0"],
        arrays[f"{number}/points1"],
        arrays.get(f"{number}/confidence"),
    )


def _png(image: Image) -> bytes:
    """Encode without loss: features are cached by the bytes of an encoded image."""
    buffer = io.BytesIO()
    Pillow.fromarray(np.asarray(image.grey)).save(buffer, format="PNG", compress_level=1)
    return buffer.getvalue()


def confidence_stamp(model: Model) -> str:
    """Return what identifies the networks that judge the matches of a model."""
    fitted = model.descriptor.card.confidence
    text = "" if fitted is None else fitted.model_dump_json()
    return hashlib.sha256(text.encode()).hexdigest()[:20]
