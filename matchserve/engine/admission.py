"""Who may run now, who may wait, and who is told to come back later.

A place is taken by a request and weighted by its megapixels: memory grows with pixels (0.24 GB a
megapixel while keypoints are found), so four small pairs may run where one large one may.
Runs on the event loop only: no locks.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from matchserve.errors import DeadlineExceeded, ImageTooLarge, Overloaded, ShuttingDown

MIN_RETRY_S, MAX_RETRY_S = 1, 30
# Waiting requests hold encoded images only, so more megapixels may wait than run.
WAITING_SHARE = 8
# A body that takes longer to arrive keeps nobody else out, or a few slow senders would.
ARRIVAL_S = 0.5


@dataclass(frozen=True, slots=True)
class Places:
    """How many requests, and how many megapixels of images, run and wait at once."""

    running: int
    waiting: int
    megapixels: float


@dataclass(slots=True)
class _Waiter:
    granted: asyncio.Future[Place]
    megapixels: float


class Place:
    """The right to run; give it back with `release`, once the work has really ended."""

    def __init__(
        self,
        megapixels: float,
        *,
        is_alone: Callable[[], bool],
        on_release: Callable[[Place], None],
    ) -> None:
        self.megapixels = megapixels
        self._is_alone = is_alone
        self._on_release: Callable[[Place], None] | None = on_release

    @property
    def is_alone(self) -> bool:
        """Nobody else runs or waits now: all cores may be used; any thread may ask."""
        return self._is_alone()

    def release(self) -> None:
        """Give the place back; a second call does nothing."""
        on_release, self._on_release = self._on_release, None
        if on_release:
            on_release(self)


class Admission:
    """First come, first served; refuses at once what cannot be served soon."""

    def __init__(self, places: Places, clock: Callable[[], float] = time.monotonic) -> None:
        self.places = places
        self._clock = clock
        self._running: dict[Place, float] = {}
        self._waiters: deque[_Waiter] = deque()
        self._arrivals: dict[object, float] = {}
        self._service_s = 1.0
        self._is_closed = False
        self.released = 0
        """Places given back so far."""

    @property
    def running(self) -> int:
        """Requests that run now."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Requests that wait now."""
        return len(self._waiters)

    def close(self) -> None:
        """Take nothing new; what was taken is still served."""
        self._is_closed = True

    async def enter(self, megapixels: float, timeout_s: float, who: object = None) -> Place:
        """Wait for a place; `who` was said to be `arriving` and is no longer.

        Raises:
            ImageTooLarge: the images would not fit even alone.
            Overloaded: every place to wait in is taken.
            DeadlineExceeded: none became free in time.
            ShuttingDown: the service is draining.
        """
        self._arrivals.pop(who, None)
        self._refuse(megapixels)
        if not self._waiters and self._fits(megapixels):
            return self._grant(megapixels)
        if len(self._waiters) >= self._waiting_places() or self._is_full(megapixels):
            raise self._overloaded()
        waiter = _Waiter(asyncio.get_running_loop().create_future(), megapixels)
        self._waiters.append(waiter)
        try:
            return await asyncio.wait_for(asyncio.shield(waiter.granted), timeout_s)
        except TimeoutError as error:
            self._leave(waiter)
            raise DeadlineExceeded("no place became free in time", limit=timeout_s) from error
        except asyncio.CancelledError:
            self._leave(waiter)
            raise

    @contextmanager
    def arriving(self, who: object) -> Iterator[None]:
        """Keep a place free for a moment, while a body is received and parsed, until `enter`.

        Whoever cannot have one is refused here, before a byte of the body is looked at, and not
        after its parsing has taken time from those that run.

        Raises:
            Overloaded: every place to run and to wait in is taken.
            ShuttingDown: the service is draining.
        """
        self._refuse(0.0)
        if len(self._waiters) + self._arrivals_lately() >= self._waiting_places():
            raise self._overloaded()
        self._arrivals[who] = self._clock()
        try:
            yield
        finally:
            self._arrivals.pop(who, None)

    def _arrivals_lately(self) -> int:
        oldest = self._clock() - ARRIVAL_S
        return sum(since > oldest for since in self._arrivals.values())

    def _waiting_places(self) -> int:
        """How many may wait, those counted that would not have to."""
        free = 0 if self._waiters else max(0, self.places.running - len(self._running))
        return self.places.waiting + free

    def _overloaded(self) -> Overloaded:
        waiting = self.waiting + self._arrivals_lately()
        return Overloaded(
            f"{self.running} requests run and {waiting} wait; try again later",
            limit=self.places.running + self.places.waiting,
            value=self.running + waiting,
            retry_after_s=self.retry_after_s(),
        )

    def retry_after_s(self) -> int:
        """When a place is likely to be free, from how long requests have taken lately."""
        expected = self._service_s * (self.waiting + 1) / self.places.running
        return int(min(MAX_RETRY_S, max(MIN_RETRY_S, math.ceil(expected))))

    def _refuse(self, megapixels: float) -> None:
        if self._is_closed:
            raise ShuttingDown("the service is shutting down", retry_after_s=MIN_RETRY_S)
        if megapixels > self.places.megapixels:
            raise ImageTooLarge(
                f"{megapixels:.1f} working megapixels, at most {self.places.megapixels:.1f} fit "
                "in memory here; send a smaller max_side, or smaller images",
                limit=self.places.megapixels,
                value=megapixels,
            )

    def _fits(self, megapixels: float) -> bool:
        used = sum(place.megapixels for place in self._running)
        return (
            len(self._running) < self.places.running and used + megapixels <= self.places.megapixels
        )

    def _is_full(self, megapixels: float) -> bool:
        waiting = sum(waiter.megapixels for waiter in self._waiters)
        return waiting + megapixels > WAITING_SHARE * self.places.megapixels

    def _grant(self, megapixels: float) -> Place:
        place = Place(megapixels, is_alone=self._is_alone, on_release=self._released)
        self._running[place] = self._clock()
        return place

    def _is_alone(self) -> bool:
        return len(self._running) == 1 and not self._waiters

    def _released(self, place: Place) -> None:
        self.released += 1
        self._service_s += 0.1 * (self._clock() - self._running.pop(place) - self._service_s)
        self._admit()

    def _admit(self) -> None:
        """Give places to those who wait, as far as they reach."""
        # Strictly in order: a large pair at the head is not overtaken for ever by small ones.
        while self._waiters and self._fits(self._waiters[0].megapixels):
            waiter = self._waiters.popleft()
            waiter.granted.set_result(self._grant(waiter.megapixels))

    def _leave(self, waiter: _Waiter) -> None:
        """Forget a waiter; if its place was granted in the same instant, pass it on."""
        if waiter in self._waiters:
            self._waiters.remove(waiter)
            # Those behind a large one may fit where it did not.
            self._admit()
        elif waiter.granted.done() and not waiter.granted.cancelled():
            waiter.granted.result().release()
