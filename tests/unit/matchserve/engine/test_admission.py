"""Slots are bounded in number and in megapixels, and always come back."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from matchserve.engine.admission import ARRIVAL_S, MAX_PASSING, OVERDUE_S, Admission, Slot, Slots
from matchserve.errors import DeadlineExceeded, ImageTooLarge, Overloaded, ShuttingDown


def run(coroutine: Coroutine[Any, Any, None]) -> None:
    asyncio.run(coroutine)


def test_a_lone_request_is_told_that_it_is_alone() -> None:
    async def body() -> None:
        admission = Admission(Slots(running=2, waiting=2, megapixels=10))
        first = await admission.enter(1, 1)
        assert first.is_alone
        second = await admission.enter(1, 1)
        assert (first.is_alone, second.is_alone) == (False, False)
        first.release()
        assert second.is_alone

    run(body())


def test_whoever_is_waited_for_is_not_alone() -> None:
    async def body() -> None:
        admission = Admission(Slots(running=1, waiting=2, megapixels=10))
        first = await admission.enter(1, 1)
        waiter = asyncio.create_task(admission.enter(1, 5))
        await asyncio.sleep(0)
        assert not first.is_alone
        first.release()
        assert (await waiter).is_alone

    run(body())


def test_a_departed_large_request_leaves_room_for_those_behind_it() -> None:
    async def body() -> None:
        admission = Admission(Slots(running=4, waiting=4, megapixels=10))
        running = await admission.enter(8, 1)
        large = asyncio.create_task(admission.enter(8, 5))
        await asyncio.sleep(0)
        for _ in range(MAX_PASSING):
            (await admission.enter(1, 5)).release()
        small = asyncio.create_task(admission.enter(1, 5))
        await asyncio.sleep(0)
        assert not small.done()
        large.cancel()
        slot = await asyncio.wait_for(small, 1)
        assert admission.running == 2
        slot.release()
        running.release()

    run(body())


def test_places_are_given_in_the_order_of_asking() -> None:
    async def body() -> None:
        admission = Admission(Slots(running=2, waiting=20, megapixels=10))
        served: list[int] = []

        async def one(number: int, turns: int) -> None:
            slot = await admission.enter(1, 5)
            served.append(number)
            for _ in range(turns):
                await asyncio.sleep(0)
            slot.release()

        await asyncio.gather(*(one(number, 1 + number % 3) for number in range(20)))
        assert served == list(range(20))

    run(body())


def test_full_places_refuse_at_once_with_a_time_to_come_back() -> None:
    async def body() -> None:
        admission = Admission(Slots(running=1, waiting=1, megapixels=10))
        first = await admission.enter(1, 1)
        waiter = asyncio.create_task(admission.enter(1, 5))
        await asyncio.sleep(0)
        with pytest.raises(Overloaded) as refusal:
            await admission.enter(1, 1)
        assert refusal.value.retry_after_s is not None
        assert 1 <= refusal.value.retry_after_s <= 30
        assert refusal.value.status == 429
        first.release()
        (await waiter).release()
        assert (admission.running, admission.waiting) == (0, 0)

    run(body())


def test_who_is_at_the_door_counts_as_one_who_waits() -> None:
    async def body() -> None:
        admission = Admission(Slots(running=1, waiting=1, megapixels=10))
        with admission.arriving("a"), admission.arriving("b"):
            with pytest.raises(Overloaded) as refusal, admission.arriving("c"):
                pass
            assert (refusal.value.limit, refusal.value.value) == (2, 2)
            # Those who were let in are not refused for each other's sake, nor counted twice.
            first = await admission.enter(1, 1, "a")
            second = asyncio.create_task(admission.enter(1, 5, "b"))
            await asyncio.sleep(0)
            first.release()
            with admission.arriving("c"):
                pass
            (await second).release()
        with admission.arriving("a"), admission.arriving("b"):
            pass

    run(body())


def test_who_stays_at_the_door_keeps_nobody_out() -> None:
    now = 0.0
    admission = Admission(Slots(running=1, waiting=0, megapixels=10), clock=lambda: now)
    with admission.arriving("a"):
        with pytest.raises(Overloaded), admission.arriving("b"):
            pass
        now = ARRIVAL_S
        with admission.arriving("b"):
            pass


def test_nobody_arrives_at_a_closed_admission() -> None:
    admission = Admission(Slots(running=1, waiting=1, megapixels=10))
    admission.close()
    with pytest.raises(ShuttingDown), admission.arriving("a"):
        pass


def test_large_images_run_alone_and_too_large_ones_never() -> None:
    async def body() -> None:
        admission = Admission(Slots(running=4, waiting=4, megapixels=10))
        big = await admission.enter(9, 1)
        other = asyncio.create_task(admission.enter(2, 5))
        small = asyncio.create_task(admission.enter(0.5, 5))
        await asyncio.sleep(0)
        assert admission.waiting == 1  # the small one passes: it fits beside the big one
        big.release()
        await asyncio.gather(other, small)
        with pytest.raises(ImageTooLarge) as refusal:
            await admission.enter(10.5, 1)
        assert (refusal.value.limit, refusal.value.value) == (10, 10.5)

    run(body())


def test_small_requests_pass_a_large_one_into_slots_that_it_cannot_use() -> None:
    """Three pairs of 12 megapixels made small requests wait for seconds while slots were free."""

    async def body() -> None:
        admission = Admission(Slots(running=4, waiting=20, megapixels=30))
        running = await admission.enter(24, 1)
        large = [asyncio.create_task(admission.enter(24, 9)) for _ in range(2)]
        await asyncio.sleep(0)
        small = await asyncio.wait_for(admission.enter(1, 5), 1)
        assert admission.waiting == 2
        small.release()
        running.release()
        (await large[0]).release()
        (await large[1]).release()

    run(body())


def test_a_freed_slot_goes_to_a_small_request_behind_one_that_does_not_fit() -> None:
    async def body() -> None:
        admission = Admission(Slots(running=2, waiting=20, megapixels=30))
        running = [await admission.enter(20, 1), await admission.enter(1, 1)]
        large = asyncio.create_task(admission.enter(24, 9))
        small = asyncio.create_task(admission.enter(1, 9))
        await asyncio.sleep(0)
        assert admission.waiting == 2  # both slots are taken
        running.pop().release()
        assert admission.waiting == 1
        (await small).release()
        assert not large.done()
        running.pop().release()
        (await large).release()

    run(body())


def test_small_requests_do_not_delay_a_large_one_for_ever() -> None:
    async def body() -> None:
        admission = Admission(Slots(running=4, waiting=20, megapixels=10))
        held = [await admission.enter(3, 1) for _ in range(2)]
        large = asyncio.create_task(admission.enter(9, 30))
        await asyncio.sleep(0)
        passed = 0
        for _ in range(3 * MAX_PASSING):
            small = asyncio.create_task(admission.enter(1, 30))
            await asyncio.sleep(0)
            if not small.done():
                break
            passed += 1
            held.append(small.result())
            held.pop(0).release()
        assert passed <= MAX_PASSING
        for slot in held:
            slot.release()
        (await asyncio.wait_for(large, 1)).release()

    run(body())


def test_slots_that_are_all_overdue_are_stuck() -> None:
    async def body() -> None:
        now = 0.0
        admission = Admission(Slots(running=2, waiting=2, megapixels=10), clock=lambda: now)
        first = await admission.enter(1, 5)
        await admission.enter(1, 7)
        now = 5.1 + OVERDUE_S
        stuck = [admission.is_stuck]
        now = 7.1 + OVERDUE_S
        stuck.append(admission.is_stuck)
        first.release()
        stuck.append(admission.is_stuck)
        assert stuck == [False, True, False]

    run(body())


def test_waiting_ends_with_the_deadline() -> None:
    async def body() -> None:
        admission = Admission(Slots(running=1, waiting=1, megapixels=10))
        slot = await admission.enter(1, 1)
        with pytest.raises(DeadlineExceeded):
            await admission.enter(1, 0.01)
        assert admission.waiting == 0
        slot.release()
        slot.release()
        assert admission.running == 0

    run(body())


def test_a_closed_admission_refuses_and_serves_who_was_taken() -> None:
    async def body() -> None:
        admission = Admission(Slots(running=1, waiting=1, megapixels=10))
        slot = await admission.enter(1, 1)
        waiter = asyncio.create_task(admission.enter(1, 5))
        await asyncio.sleep(0)
        admission.close()
        with pytest.raises(ShuttingDown):
            await admission.enter(1, 1)
        slot.release()
        (await waiter).release()

    run(body())


@settings(max_examples=300, deadline=None)
@given(
    requests=st.lists(
        st.tuples(st.floats(0.1, 8.0), st.integers(0, 4), st.booleans()), min_size=1, max_size=30
    )
)
def test_no_interleaving_leaks_a_place(requests: list[tuple[float, int, bool]]) -> None:
    async def body() -> None:
        slots = Slots(running=3, waiting=6, megapixels=8)
        admission = Admission(slots)
        held: list[Slot] = []

        async def one(megapixels: float, turns: int) -> None:
            try:
                slot = await admission.enter(megapixels, 10)
            except Overloaded:
                return
            held.append(slot)
            assert len(held) <= slots.running
            assert sum(p.megapixels for p in held) <= slots.megapixels
            try:
                for _ in range(turns):
                    await asyncio.sleep(0)
            finally:
                held.remove(slot)
                slot.release()

        tasks = []
        for megapixels, turns, is_cancelled in requests:
            tasks.append(asyncio.create_task(one(megapixels, turns)))
            await asyncio.sleep(0)
            if is_cancelled:
                tasks[-1].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        failures = [t.exception() for t in tasks if not t.cancelled() and t.exception()]
        assert not failures
        assert (admission.running, admission.waiting) == (0, 0)

    run(body())
