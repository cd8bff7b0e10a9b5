"""Admission control: which requests run, which wait, and which are refused as overload.

Each running request holds a slot, weighted by its megapixels, because memory grows with pixels
(0.24 GB per megapixel while keypoints are found). Everything here runs on the event loop, so
there are no locks.
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
# A waiting request that does not fit in memory may be passed by this many smaller ones.
MAX_PASSING = 8
# A request that holds its slot this long after its deadline is stuck.
OVERDUE_S = 1.0
# A body that takes longer to arrive no longer reserves a slot: otherwise a few slow clients could
# block all others.
ARRIVAL_S = 0.5


@dataclass(frozen=True, slots=True)
class Slots:
    """Maximum number of running and of waiting requests, and of megapixels that run."""

    running: int
    waiting: int
    megapixels: float


@dataclass(slots=True)
class _Waiter:
    granted: asyncio.Future[Slot]
    megapixels: float
    ends_at: float
    passed_by: int = 0


class Slot:
    """The right to run; `release` it when the work has really ended."""

    def __init__(
        self,
        megapixels: float,
        ends_at: float,
        *,
        is_alone: Callable[[], bool],
        on_release: Callable[[Slot], None],
    ) -> None:
        self.megapixels = megapixels
        self.ends_at = ends_at
        self._is_alone = is_alone
        self._on_release: Callable[[Slot], None] | None = on_release

    @property
    def is_alone(self) -> bool:
        """Whether no other request runs or waits now; safe to read from any thread."""
        return self._is_alone()

    def release(self) -> None:
        """Free the slot; a second call does nothing."""
        on_release, self._on_release = self._on_release, None
        if on_release:
            on_release(self)


class Admission:
    """Admits requests in the order of arrival and refuses those that would wait too long.

    A request that waits for memory, not for a slot, may be passed by a few smaller ones.
    """

    def __init__(self, slots: Slots, clock: Callable[[], float] = time.monotonic) -> None:
        self.slots = slots
        self._clock = clock
        self._running: dict[Slot, float] = {}
        self._waiters: deque[_Waiter] = deque()
        self._arrivals: dict[object, float] = {}
        self._service_s = 1.0
        self._is_closed = False
        self.released = 0
        """Number of slots freed so far."""

    @property
    def running(self) -> int:
        """Number of running requests."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Number of waiting requests."""
        return len(self._waiters)

    @property
    def is_stuck(self) -> bool:
        """Whether every slot is held by a request that is past its deadline."""
        overdue = self._clock() - OVERDUE_S
        late = sum(slot.ends_at < overdue for slot in self._running)
        return late >= self.slots.running

    def close(self) -> None:
        """Refuse new requests; those already admitted are still served."""
        self._is_closed = True

    async def enter(self, megapixels: float, timeout_s: float, who: object = None) -> Slot:
        """Wait for a slot; this ends the reservation that `who` made with `arriving`.

        Raises:
            ImageTooLarge: the images would not fit in memory even alone.
            Overloaded: too many requests wait already.
            DeadlineExceeded: no slot became free in time.
            ShuttingDown: the service is shutting down.
        """
        self._arrivals.pop(who, None)
        self._refuse(megapixels)
        ends_at = self._clock() + timeout_s
        if self._fits(megapixels) and self._may_pass(len(self._waiters)):
            return self._grant(megapixels, ends_at)
        if len(self._waiters) >= self._max_waiting() or self._is_full(megapixels):
            raise self._overloaded()
        waiter = _Waiter(asyncio.get_running_loop().create_future(), megapixels, ends_at)
        self._waiters.append(waiter)
        try:
            return await asyncio.wait_for(asyncio.shield(waiter.granted), timeout_s)
        except TimeoutError as error:
            self._leave(waiter)
            raise DeadlineExceeded("no slot became free in time", limit=timeout_s) from error
        except asyncio.CancelledError:
            self._leave(waiter)
            raise

    @contextmanager
    def arriving(self, who: object) -> Iterator[None]:
        """Reserve a slot while a body is received and parsed, until `enter`.

        A request that cannot have a slot is refused here, before its body is read, so that
        parsing does not take time from running requests.

        Raises:
            Overloaded: all slots are taken and too many requests wait.
            ShuttingDown: the service is shutting down.
        """
        self._refuse(0.0)
        if len(self._waiters) + self._recent_arrivals() >= self._max_waiting():
            raise self._overloaded()
        self._arrivals[who] = self._clock()
        try:
            yield
        finally:
            self._arrivals.pop(who, None)

    def _recent_arrivals(self) -> int:
        oldest = self._clock() - ARRIVAL_S
        return sum(since > oldest for since in self._arrivals.values())

    def _max_waiting(self) -> int:
        """Return the maximum number of queued requests, including those that could start now."""
        free = 0 if self._waiters else max(0, self.slots.running - len(self._running))
        return self.slots.waiting + free

    def _overloaded(self) -> Overloaded:
        waiting = self.waiting + self._recent_arrivals()
        return Overloaded(
            f"{self.running} requests are running and {waiting} are waiting; try again later",
            limit=self.slots.running + self.slots.waiting,
            value=self.running + waiting,
            retry_after_s=self.retry_after_s(),
        )

    def retry_after_s(self) -> int:
        """Estimate when a slot will be free, from the duration of recent requests."""
        expected = self._service_s * (self.waiting + 1) / self.slots.running
        return int(min(MAX_RETRY_S, max(MIN_RETRY_S, math.ceil(expected))))

    def _refuse(self, megapixels: float) -> None:
        if self._is_closed:
            raise ShuttingDown("the service is shutting down", retry_after_s=MIN_RETRY_S)
        if megapixels > self.slots.megapixels:
            raise ImageTooLarge(
                f"{megapixels:.1f} working megapixels, at most {self.slots.megapixels:.1f} fit "
                "in memory here; send a smaller max_side, or smaller images",
                limit=self.slots.megapixels,
                value=megapixels,
            )

    def _fits(self, megapixels: float) -> bool:
        used = sum(slot.megapixels for slot in self._running)
        return (
            len(self._running) < self.slots.running and used + megapixels <= self.slots.megapixels
        )

    def _is_full(self, megapixels: float) -> bool:
        waiting = sum(waiter.megapixels for waiter in self._waiters)
        return waiting + megapixels > WAITING_SHARE * self.slots.megapixels

    def _grant(self, megapixels: float, ends_at: float) -> Slot:
        slot = Slot(megapixels, ends_at, is_alone=self._is_alone, on_release=self._released)
        self._running[slot] = self._clock()
        return slot

    def _is_alone(self) -> bool:
        return len(self._running) == 1 and not self._waiters

    def _released(self, slot: Slot) -> None:
        self.released += 1
        self._service_s += 0.1 * (self._clock() - self._running.pop(slot) - self._service_s)
        self._admit()

    def _admit(self) -> None:
        """Give free slots to waiting requests."""
        position = 0
        while position < len(self._waiters) and len(self._running) < self.slots.running:
            waiter = self._waiters[position]
            if self._fits(waiter.megapixels) and self._may_pass(position):
                del self._waiters[position]
                waiter.granted.set_result(self._grant(waiter.megapixels, waiter.ends_at))
            else:
                position += 1

    def _may_pass(self, position: int) -> bool:
        """Count a request that passes all waiters before `position`, or return false.

        Each waiter is passed a few times only: small requests must not delay a large one for ever.
        """
        before = [self._waiters[i] for i in range(position)]
        if any(waiter.passed_by >= MAX_PASSING for waiter in before):
            return False
        for waiter in before:
            waiter.passed_by += 1
        return True

    def _leave(self, waiter: _Waiter) -> None:
        """Remove a waiter; if its slot was granted in the same moment, free the slot."""
        if waiter in self._waiters:
            self._waiters.remove(waiter)
            # Smaller requests behind it may fit now.
            self._admit()
        elif waiter.granted.done() and not waiter.granted.cancelled():
            waiter.granted.result().release()
