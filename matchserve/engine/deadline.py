"""One deadline per request, asked at every stage; a client that hangs up ends it early."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from matchserve.errors import CapacityError, DeadlineExceeded
from matchserve.matcher import StageClock

Clock = Callable[[], float]


class ClientDeparted(CapacityError):
    """Nobody waits for the answer any more."""

    code, status = "client_departed", 499


class Deadline:
    """When a request's time is up; safe to share between threads."""

    def __init__(self, seconds: float, clock: Clock = time.monotonic) -> None:
        self.seconds = seconds
        self._clock = clock
        self._end = clock() + seconds
        self._departed = threading.Event()

    def depart(self) -> None:
        """Note that the client is gone: every later `check` raises."""
        self._departed.set()

    @property
    def is_over(self) -> bool:
        """Whether work for this request is wasted."""
        return self._departed.is_set() or self._clock() >= self._end

    def remaining_s(self) -> float:
        """Seconds left, never negative."""
        return 0.0 if self._departed.is_set() else max(0.0, self._end - self._clock())

    def check(self) -> None:
        """Raise when the request is not worth going on with.

        Raises:
            ClientDeparted: the client hung up.
            DeadlineExceeded: the time is up.
        """
        if self._departed.is_set():
            raise ClientDeparted("the client closed the connection")
        if self._clock() >= self._end:
            raise DeadlineExceeded(
                f"the request took longer than {self.seconds:g} s", limit=self.seconds
            )


class DeadlineClock(StageClock):
    """A stage clock that asks the deadline before each stage begins."""

    def __init__(self, deadline: Deadline) -> None:
        super().__init__()
        self.deadline = deadline

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Time a stage, unless the request is over already."""
        self.deadline.check()
        with super().stage(name):
            yield

    def add(self, name: str, seconds: float) -> None:
        """Count time that was measured elsewhere."""
        self._stages.append((name, 1e3 * seconds))
