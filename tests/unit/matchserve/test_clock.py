"""Stages add up, and the deadline is checked before each of them."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from matchserve.clock import ClientDeparted, Deadline, StageClock
from matchserve.errors import DeadlineExceeded


def test_a_stage_that_runs_twice_counts_twice() -> None:
    clock = StageClock()
    for _ in range(2):
        with clock.stage("a"):
            time.sleep(0.01)
    timings = clock.timings_ms()
    assert set(timings) == {"a", "total"}
    assert timings["a"] >= 20


def test_nested_stages_are_not_counted_twice() -> None:
    clock = StageClock()
    with clock.stage("outer"):
        time.sleep(0.01)
        with clock.stage("inner"):
            time.sleep(0.03)
            clock.add("queue", 0.01)
    timings = clock.timings_ms()
    total = timings.pop("total")
    assert timings["inner"] >= 20
    assert timings["queue"] == 10
    assert timings["outer"] >= 10
    assert sum(timings.values()) <= total


def test_stages_of_two_threads_do_not_nest() -> None:
    clock = StageClock()

    def work() -> None:
        with clock.stage("second"):
            time.sleep(0.02)

    with ThreadPoolExecutor(1) as pool, clock.stage("first"):
        pool.submit(work).result()
    timings = clock.timings_ms()
    assert timings["first"] >= timings["second"] >= 20


def test_a_stage_that_fails_is_counted() -> None:
    clock = StageClock()
    with pytest.raises(ValueError, match="broken"), clock.stage("a"):
        raise ValueError("broken")
    assert "a" in clock.timings_ms()


def test_the_deadline_is_checked_before_each_stage() -> None:
    now = [0.0]
    clock = StageClock(Deadline(1.0, lambda: now[0]))
    with clock.stage("a"):
        now[0] = 2.0
    with pytest.raises(DeadlineExceeded, match="longer than 1 s"), clock.stage("b"):
        pass
    clock.deadline.depart()
    with pytest.raises(ClientDeparted), clock.stage("c"):
        pass
    assert set(clock.timings_ms()) == {"a", "total"}
