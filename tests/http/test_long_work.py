"""The time between two turns that all requests share, however many they are and whatever they ask.

The clock of most of these tests moves by a whole slice whenever it is read.
"""

import asyncio
from collections.abc import Callable

import pytest

from delayd.http.long_work import LoopTime, Slices
from delayd.limits import HTTP_ITEMS_FEW, HTTP_SLICE_NS
from tests.rigs.http import JOBS, RESERVE, Client, HttpRig, SliceWatch, put

MANY = HTTP_ITEMS_FEW + 1
CLIENTS = 6


async def begun_in_each_pass(
    now_ns: Callable[[], int], works: int, *, is_few: bool = False
) -> list[int]:
    """How many of so many works have begun after each pass of the loop, up to the last."""
    begun = 0
    counts: list[int] = []

    async def work(time: LoopTime) -> None:
        nonlocal begun
        async with Slices(time, is_few=is_few):
            begun += 1

    time = LoopTime(now_ns)
    tasks = [asyncio.ensure_future(work(time)) for _ in range(works)]
    while not all(task.done() for task in tasks):
        await asyncio.sleep(0)
        counts.append(begun)
    return counts


@pytest.mark.parametrize("is_few", [False, True])
async def test_of_works_that_take_a_slice_each_one_begins_in_each_pass(is_few: bool) -> None:
    counts = await begun_in_each_pass(SliceWatch(), 5, is_few=is_few)
    assert max(after - before for before, after in zip([0, *counts], counts, strict=False)) == 1
    assert counts[-1] == 5


async def test_of_few_items_as_many_begin_as_there_is_time_for() -> None:
    looks = iter(range(0, HTTP_SLICE_NS * 10, HTTP_SLICE_NS // 4))
    counts = await begun_in_each_pass(lambda: next(looks), 12, is_few=True)
    assert counts[:3] == [4, 8, 12]


async def test_while_the_clock_stands_still_nobody_waits_but_for_the_lock() -> None:
    assert await begun_in_each_pass(lambda: 7, 12, is_few=True) == [12]


@pytest.mark.parametrize("share", [3, 10])
async def test_who_asks_again_at_once_comes_behind_all_that_wait(share: int) -> None:
    """Some clients send a row of requests; others wait for each answer, and one has long work."""
    now_ns = 0
    rows, others = 4, 3
    served = dict.fromkeys(["many", *range(rows + others)], 0)

    async def ask(time: LoopTime, who: int) -> None:
        nonlocal now_ns
        while True:
            async with Slices(time, is_few=True):
                now_ns += HTTP_SLICE_NS // share
                served[who] += 1
            for _ in range(0 if who < rows else 3):
                await asyncio.sleep(0)

    async def ask_much(time: LoopTime) -> None:
        nonlocal now_ns
        async with Slices(time) as slices:
            while True:
                now_ns += HTTP_SLICE_NS
                served["many"] += 1
                await slices.rest()

    time = LoopTime(lambda: now_ns)
    tasks = [asyncio.ensure_future(ask(time, who)) for who in range(rows + others)]
    tasks.append(asyncio.ensure_future(ask_much(time)))
    for _ in range(200):
        await asyncio.sleep(0)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert min(served.values()) >= 20, served


async def test_who_is_cancelled_while_waiting_for_its_slice_leaves_it_to_the_next() -> None:
    time = LoopTime(SliceWatch())
    for is_few in (False, True):
        async with Slices(time):
            pass
        waiting = Slices(time, is_few=is_few).__aenter__()
        waiting.send(None)
        assert (time.lock.locked(), len(time.few_waiting)) == (not is_few, is_few)
        with pytest.raises(asyncio.CancelledError):
            waiting.throw(asyncio.CancelledError())
        assert (time.lock.locked(), len(time.few_waiting)) == (False, 0)
        await asyncio.sleep(0)


def answered_in_each_step(rig: HttpRig, clients: list[Client]) -> list[int]:
    """How many were answered after each step of the loop, until all were."""
    counts: list[int] = []
    while not counts or counts[-1] < len(clients):
        rig.step()
        counts.append(sum(client.answer is not None for client in clients))
    return counts


ASKED = {
    "list jobs": ("GET", f"{JOBS}?limit={MANY}", None),
    "list jobs with bodies": ("GET", f"{JOBS}?limit={MANY}&bodies=true", None),
    "list topics": ("GET", "/v1/topics", None),
    "calendar": ("GET", "/v1/calendar?horizon=1h&bins=3", None),
    "stats": ("GET", "/v1/stats", None),
    "reserve": ("POST", RESERVE, {"max": MANY}),
    "ack": ("POST", "/v1/ack", {"tokens": [f"{number}-1-1" for number in range(1, MANY + 1)]}),
    "nack": (
        *("POST", "/v1/nack"),
        {"nacks": [{"token": f"{number}-1-1"} for number in range(1, MANY + 1)]},
    ),
    "put": ("POST", JOBS, {"jobs": [{"body": number, "ttr": number} for number in range(1, MANY)]}),
}


@pytest.mark.thorough
@pytest.mark.parametrize("call", ASKED)
def test_many_clients_that_ask_for_much_are_answered_one_in_a_turn(rig: HttpRig, call: str) -> None:
    method, path, given = ASKED[call]
    for number in range(3 * MANY):
        put(rig, topic="mail", body=number)
    for number in range(MANY):
        put(rig, topic=f"t{number}", delay="1m")
    rig.api.loop_time.now_ns = SliceWatch()
    clients = [rig.send(method, path, given, is_settled=False) for _ in range(CLIENTS)]
    counts = answered_in_each_step(rig, clients)
    assert max(b - a for a, b in zip([0, *counts], counts, strict=False)) == 1, call
