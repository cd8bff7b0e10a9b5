"""The cache is bounded and exact; the pipeline gives what the matcher gives."""

from __future__ import annotations

import io
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image as Pillow

from matchserve import matcher
from matchserve.engine.batcher import BatchPolicy
from matchserve.engine.cache import FeatureCache, content_key, features_bytes
from matchserve.engine.deadline import ClientDeparted, Deadline, DeadlineClock
from matchserve.engine.pipeline import Pipeline, Task
from matchserve.engine.served import ServedModel
from matchserve.errors import DeadlineExceeded
from matchserve.limits import Limits
from matchserve.matcher import Matcher, Options
from matchserve.models.registry import load_descriptor
from matchserve.pattern import generate_pair
from matchserve.types import Features, Keypoints
from matchserve.vision.keypoints import detect


def features(count: int) -> Features:
    column = np.zeros(count, np.float32)
    keypoints = Keypoints(np.zeros((count, 2), np.float32), column, column, column)
    return Features(keypoints, np.zeros((count, 8), np.float32), "m", (64, 64))


@given(
    steps=st.lists(st.tuples(st.integers(0, 12), st.integers(1, 40)), max_size=60),
    max_bytes=st.integers(0, 4000),
)
def test_the_cache_never_holds_more_than_its_bytes(
    steps: list[tuple[int, int]], max_bytes: int
) -> None:
    cache = FeatureCache(max_bytes)
    for key, count in steps:
        held = features(count)
        cache.put(key, held)
        assert cache.bytes_held <= max_bytes
        found = cache.get(key)
        assert found is held or features_bytes(held) > max_bytes
    assert cache.hits + cache.misses == len(steps)


def test_the_least_recently_used_goes_first() -> None:
    one = features(10)
    cache = FeatureCache(2 * features_bytes(one))
    cache.put("a", one)
    cache.put("b", one)
    assert cache.get("a") is not None
    cache.put("c", one)
    assert cache.get("b") is None
    assert cache.get("a") is not None


def test_keys_differ_by_content_and_by_options() -> None:
    assert content_key(b"a", 1) == content_key(b"a", 1)
    assert len({content_key(b"a", 1), content_key(b"b", 1), content_key(b"a", 2)}) == 3


@pytest.fixture(scope="module")
def pair() -> tuple[bytes, bytes]:
    first, second, _ = generate_pair((320, 240))

    def png(array: np.ndarray) -> bytes:
        buffer = io.BytesIO()
        Pillow.fromarray(array).save(buffer, "PNG")
        return buffer.getvalue()

    return png(first), png(second)


@pytest.mark.parametrize("threads", [1, 2])
def test_the_pipeline_gives_what_the_matcher_gives(pair: tuple[bytes, bytes], threads: int) -> None:
    model = ServedModel(lambda: load_descriptor("rootsift"), BatchPolicy())
    pipeline = Pipeline(Limits(), FeatureCache(10_000_000))
    task = Task(model, Options(), DeadlineClock(Deadline(30)), lambda: threads)
    got = pipeline.match(pair, task)
    expected = Matcher("rootsift").match(*pair)
    np.testing.assert_array_equal(got.matches.pairs, expected.matches.pairs)
    np.testing.assert_allclose(got.features0.keypoints.xy, expected.features0.keypoints.xy)
    assert set(got.timings_ms) >= {"cache", "decode", "detect", "describe", "match", "verify"}

    again = pipeline.match(
        pair, Task(model, Options(), DeadlineClock(Deadline(30)), lambda: threads)
    )
    assert pipeline.cache.hits == 2
    assert "detect" not in again.timings_ms
    np.testing.assert_array_equal(again.matches.pairs, expected.matches.pairs)


@pytest.mark.parametrize("threads", [1, 2])
def test_a_request_runs_on_as_many_threads_as_it_may(
    pair: tuple[bytes, bytes], threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: set[int] = set()

    def watched(*args: Any) -> Keypoints:
        seen.add(threading.get_ident())
        return detect(*args)

    monkeypatch.setattr(matcher, "detect", watched)
    model = ServedModel(lambda: load_descriptor("rootsift"), BatchPolicy())
    pipeline = Pipeline(Limits(), FeatureCache(0))
    pipeline.match(pair, Task(model, Options(), DeadlineClock(Deadline(30)), lambda: threads))
    assert threading.get_ident() in seen
    assert len(seen) == threads


def test_stages_stop_when_the_time_is_up_or_the_client_is_gone(pair: tuple[bytes, bytes]) -> None:
    model = ServedModel(lambda: load_descriptor("rootsift"), BatchPolicy())
    pipeline = Pipeline(Limits(), FeatureCache(0))
    with pytest.raises(DeadlineExceeded):
        pipeline.match(pair, Task(model, Options(), DeadlineClock(Deadline(0.0))))
    departed = Deadline(30)
    departed.depart()
    with pytest.raises(ClientDeparted):
        pipeline.match(pair, Task(model, Options(), DeadlineClock(departed)))


def test_many_threads_share_one_model(pair: tuple[bytes, bytes]) -> None:
    model = ServedModel(lambda: load_descriptor("rootsift"), BatchPolicy())
    pipeline = Pipeline(Limits(), FeatureCache(0))

    def once(_: int) -> list[list[int]]:
        task = Task(model, Options(), DeadlineClock(Deadline(60)))
        rows: list[list[int]] = pipeline.match(pair, task).matches.pairs.tolist()
        return rows

    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(once, range(8)))
    assert all(answer == answers[0] for answer in answers)
