"""Served models: one matcher for all requests gives what the library gives."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from matchserve.clock import Call, ClientDeparted, Deadline, StageClock
from matchserve.decoding import detection
from matchserve.engine.batcher import BatchPolicy
from matchserve.engine.served_models import MatcherResources, ServedModel
from matchserve.errors import DeadlineExceeded
from matchserve.feature_cache import FeatureCache
from matchserve.matcher import Matcher
from matchserve.models.registry import load_descriptor
from matchserve.pattern import generate_pair
from matchserve.types import Keypoints
from matchserve.vision.keypoints import detect
from tests.conftest import encoded

CACHE_BYTES = 10_000_000


@pytest.fixture(scope="module")
def pair() -> tuple[bytes, bytes]:
    first, second, _ = generate_pair((320, 240))
    return encoded(first), encoded(second)


@pytest.fixture(params=["rootsift", "compact"])
def model(request: pytest.FixtureRequest) -> Iterator[ServedModel]:
    yield from served(request.param)


@pytest.fixture
def rootsift() -> Iterator[ServedModel]:
    yield from served("rootsift")


def served(name: str, cache_bytes: int = CACHE_BYTES) -> Iterator[ServedModel]:
    with ThreadPoolExecutor(1) as executor:
        resources = MatcherResources(cache=FeatureCache(cache_bytes), executor=executor)
        model = ServedModel(lambda: load_descriptor(name), BatchPolicy(), resources)
        yield model
        model.batcher.close()


def call(threads: int = 1, seconds: float = 60) -> Call:
    return Call(StageClock(Deadline(seconds)), lambda: threads)


@pytest.mark.parametrize("threads", [1, 2])
def test_a_served_model_gives_what_the_library_gives(
    model: ServedModel, pair: tuple[bytes, bytes], threads: int
) -> None:
    result = model.matcher.match(*pair, call=call(threads))
    expected = Matcher(model.card.name).match(*pair)
    np.testing.assert_array_equal(result.matches.pairs, expected.matches.pairs)
    np.testing.assert_array_equal(result.features0.keypoints.xy, expected.features0.keypoints.xy)
    assert set(result.timings_ms) >= {"cache", "decode", "detect", "describe", "match", "verify"}

    again = model.matcher.match(*pair, call=call(threads))
    assert "detect" not in again.timings_ms
    np.testing.assert_array_equal(again.matches.pairs, expected.matches.pairs)


def test_stages_add_up(pair: tuple[bytes, bytes]) -> None:
    for model in served("compact", cache_bytes=0):
        one_thread = call(threads=1)
        timings = dict(model.matcher.match(*pair, call=one_thread).timings_ms)
        total = timings.pop("total")
        assert set(timings) >= {"crop", "queue", "infer"}
        # One thread, no overlap: the stages are all of the wall time but for the code between.
        assert 0.8 * total < sum(timings.values()) <= total


@pytest.mark.parametrize("threads", [1, 2])
def test_a_request_runs_on_as_many_threads_as_it_may(
    rootsift: ServedModel,
    pair: tuple[bytes, bytes],
    threads: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: set[int] = set()

    def watched(*args: Any) -> Keypoints:
        seen.add(threading.get_ident())
        return detect(*args)

    monkeypatch.setattr(detection, "detect", watched)
    with ThreadPoolExecutor(1) as requests:
        requests.submit(lambda: rootsift.matcher.match(*pair, call=call(threads))).result()
    assert len(seen) == threads


def test_stages_stop_when_the_time_is_up_or_the_client_is_gone(
    rootsift: ServedModel, pair: tuple[bytes, bytes]
) -> None:
    with pytest.raises(DeadlineExceeded):
        rootsift.matcher.match(*pair, call=call(seconds=0.0))
    departed = Deadline(30)
    departed.depart()
    with pytest.raises(ClientDeparted):
        rootsift.matcher.match(*pair, call=Call(StageClock(departed)))


def test_many_threads_share_one_model(pair: tuple[bytes, bytes]) -> None:
    for model in served("rootsift", cache_bytes=0):

        def once(_: int, model: ServedModel = model) -> list[list[int]]:
            rows: list[list[int]] = model.matcher.match(*pair, call=call()).matches.pairs.tolist()
            return rows

        with ThreadPoolExecutor(4) as pool:
            answers = list(pool.map(once, range(8)))
        assert all(answer == answers[0] for answer in answers)
