"""The time of one call: how long each stage took, and when the call must end."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from matchserve.errors import CapacityError, DeadlineExceeded
from matchserve.hardware import available_cpus

Clock = Callable[[], float]
"""Returns seconds; `time.monotonic` outside of tests."""

Threads = Callable[[], int]
"""Number of threads that a call may use now; it changes as other calls start and end."""


def one_thread() -> int:
    """Limit a call to one thread."""
    return 1


class ClientDeparted(CapacityError):
    """The client closed the connection before the response was ready."""

    code, status = "client_departed", 499


class Deadline:
    """The time at which a request must end; safe to share between threads."""

    def __init__(self, seconds: float, clock: Clock = time.monotonic) -> None:
        self.seconds = seconds
        self._clock = clock
        self._end = clock() + seconds
        self._departed = threading.Event()

    def depart(self) -> None:
        """Record that the client closed the connection: every later `check` raises."""
        self._departed.set()

    @property
    def is_over(self) -> bool:
        """Whether the time is up or the client is gone."""
        return self._departed.is_set() or self._clock() >= self._end

    def remaining_s(self) -> float:
        """Return the seconds left, at least 0."""
        return 0.0 if self._departed.is_set() else max(0.0, self._end - self._clock())

    def check(self) -> None:
        """Raise an error if the result would no longer be used.

        Raises:
            ClientDeparted: the client closed the connection.
            DeadlineExceeded: the time is up.
        """
        if self._departed.is_set():
            raise ClientDeparted("the client closed the connection")
        if self._clock() >= self._end:
            raise DeadlineExceeded(
                f"the request took longer than {self.seconds:g} s", limit=self.seconds
            )


class StageClock:
    """Measures the stages of a call, and checks its deadline before each of them.

    Each moment of a thread counts for the innermost stage only, so the stages add up: while
    `infer` runs inside `describe`, only `infer` counts. Two images that are processed at the same
    time both count.
    """

    def __init__(self, deadline: Deadline | None = None) -> None:
        self.deadline = deadline or Deadline(math.inf)
        self._start = time.perf_counter()
        self._stages: list[tuple[str, float]] = []
        self._open = threading.local()

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Measure one stage.

        Raises:
            DeadlineExceeded: the call is over already.
        """
        self.deadline.check()
        nested = self._nested()
        nested.append(0.0)
        start = time.perf_counter()
        try:
            yield
        finally:
            duration = time.perf_counter() - start
            self._stages.append((name, duration - nested.pop()))
            if nested:
                nested[-1] += duration

    def add(self, name: str, seconds: float) -> None:
        """Count seconds of the open stage for the stage `name` instead."""
        self._stages.append((name, seconds))
        if nested := self._nested():
            nested[-1] += seconds

    def timings_ms(self) -> dict[str, float]:
        """Return milliseconds by stage, and `total`, the wall time since the clock was made."""
        sums: dict[str, float] = {}
        for name, seconds in self._stages:
            sums[name] = sums.get(name, 0.0) + 1e3 * seconds
        return {**sums, "total": 1e3 * (time.perf_counter() - self._start)}

    def _nested(self) -> list[float]:
        """Return, for each open stage of this thread, the seconds of the stages inside it."""
        if not hasattr(self._open, "seconds"):
            self._open.seconds = []
        seconds: list[float] = self._open.seconds
        return seconds


@dataclass(frozen=True, slots=True)
class Call:
    """The clock of one call, and how many threads the call may use."""

    clock: StageClock = field(default_factory=StageClock)
    threads: Threads = available_cpus
