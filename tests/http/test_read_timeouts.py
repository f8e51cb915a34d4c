"""Rounds against the stupid model: look at everybody every second."""

import asyncio
import random

from delayd.http.read_timeouts import DeadlineTimer
from tests.http.guarded import until


class Timed:
    """Is due at `due_ms`, unless that has moved meanwhile; notes when it was found to be."""

    def __init__(self, due_ms: int) -> None:
        self.due_ms = due_ms
        self.look_s = 0
        self.looks = 0
        self.found_ms: int | None = None

    def look(self, now_ms: int) -> int:
        self.looks += 1
        if now_ms < self.due_ms:
            return self.due_ms
        self.found_ms = now_ms
        return 0


def test_everybody_is_found_in_their_second_and_never_early(rng: random.Random) -> None:
    async def play() -> None:
        clock_ms = 0
        rounds = DeadlineTimer(asyncio.get_running_loop(), lambda: clock_ms)
        waiting: list[Timed] = []
        for _ in range(3_000):
            clock_ms += rng.randrange(1_000)
            match rng.randrange(4):
                case 0:
                    one = Timed(clock_ms + rng.randrange(30_000))
                    rounds.watch(one, one.due_ms)
                    waiting.append(one)
                case 1 if waiting:
                    one = rng.choice(waiting)
                    one.due_ms = clock_ms + rng.randrange(30_000)
                    rounds.watch(one, one.due_ms)
                case 2 if waiting:
                    one = waiting.pop(rng.randrange(len(waiting)))
                    rounds.forget(one)
                case _:
                    pass
            rounds.check()
            rounds.go()
            rounds.check()
            for one in [*waiting]:
                if one.found_ms is not None:
                    assert one.found_ms >= one.due_ms
                    waiting.remove(one)
                else:
                    assert clock_ms < one.due_ms + 1_000
        for one in waiting:
            rounds.forget(one)
        rounds.check()

    asyncio.run(play())


def test_a_deadline_that_moves_away_costs_one_look_a_period() -> None:
    async def play() -> None:
        clock_ms = 0
        rounds = DeadlineTimer(asyncio.get_running_loop(), lambda: clock_ms)
        one = Timed(10_000)
        rounds.watch(one, one.due_ms)
        for _ in range(1_000):
            clock_ms += 100
            one.due_ms = clock_ms + 10_000
            rounds.watch(one, one.due_ms)
            rounds.go()
        assert one.looks <= 10
        rounds.forget(one)

    asyncio.run(play())


def test_a_look_is_never_early_and_never_put_off() -> None:
    async def play() -> None:
        clock_ms = 0
        rounds = DeadlineTimer(asyncio.get_running_loop(), lambda: clock_ms)
        one = Timed(10_500)
        rounds.watch(one, one.due_ms)
        rounds.watch(one, 20_000)
        clock_ms = 10_999
        rounds.go()
        assert one.looks == 0
        clock_ms = 11_000
        rounds.go()
        assert one.found_ms == 11_000

    asyncio.run(play())


def test_the_timer_itself_makes_the_round() -> None:
    async def play() -> None:
        clock_ms = 999
        rounds = DeadlineTimer(asyncio.get_running_loop(), lambda: clock_ms)
        one = Timed(1_000)
        rounds.watch(one, one.due_ms)
        clock_ms = 1_000
        await until(lambda: one.found_ms is not None)
        rounds.check()

    asyncio.run(play())
