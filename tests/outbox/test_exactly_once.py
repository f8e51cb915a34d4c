"""Exactly one job for each commit, and none for a rollback, wherever relays are killed."""

import random
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from delayd import outbox
from tests.outbox.rig import KILLS, Fate, OutboxRig


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OutboxRig]:
    made = OutboxRig(tmp_path_factory.mktemp("outbox"))
    yield made
    made.close()


def commit_some(rig: OutboxRig) -> list[str]:
    """Commit two transactions and roll one back; return the bodies that are to be worked on."""
    rig.worked.clear()
    rig.order.clear()
    rig.commits(("mail", "a1"), ("sms", "a2"), ("mail", "a3"))
    outbox.put(rig.connection.cursor(), "mail", "never")
    rig.connection.rollback()
    rig.commits(("mail", "b1"), key="k")
    return ["a1", "a2", "a3", "b1"]


def check_once(rig: OutboxRig, bodies: list[str]) -> None:
    rig.relays()
    rig.deliver()
    rig.relays()
    assert rig.worked == Counter(bodies), "each is worked on once"
    assert not rig.rows()
    assert not [line for line in rig.told if "cannot" in line["event"]]
    assert {job.state for job in rig.client.jobs("outbox")} == {"delayed"}


def calls_of(rig: OutboxRig) -> int:
    """How many calls a relay makes that nothing happens to."""
    bodies = commit_some(rig)
    calls = rig.relays().calls
    check_once(rig, bodies)
    return calls


@pytest.mark.thorough
def test_a_relay_that_is_killed_anywhere_leaves_one_job_for_each_commit(rig: OutboxRig) -> None:
    calls = calls_of(rig)
    assert calls > 10
    for at in range(1, calls + 1):
        for how in KILLS:
            bodies = commit_some(rig)
            rig.relays(Fate(at, how))
            check_once(rig, bodies)


def test_a_request_of_a_killed_relay_may_arrive_at_any_time(
    rig: OutboxRig, share: Callable[[range], range]
) -> None:
    calls = calls_of(rig)
    for at in range(1, calls + 1):
        for arrives in share(range(1, calls + 3)):
            bodies = commit_some(rig)
            rig.relays(Fate(at, "late"))
            rig.relays(Fate(arrives, "deliver", rig.deliver))
            check_once(rig, bodies)


@pytest.mark.thorough
def test_a_relay_that_another_one_overtakes_anywhere_does_no_harm(rig: OutboxRig) -> None:
    calls = calls_of(rig)
    for at in range(1, calls + 1):
        bodies = commit_some(rig)
        rig.relays(Fate(at, "overtaken", lambda: (None, rig.relays())[0]))
        check_once(rig, bodies)


@pytest.mark.walk(2, 300)
def test_any_relays_killed_one_after_the_other(rig: OutboxRig, number: int, seed: int) -> None:
    draws = random.Random(f"{seed}-{number}")
    for _ in range(10):
        bodies = commit_some(rig)
        for _ in range(draws.randrange(1, 6)):
            fate = Fate(draws.randrange(1, 22), draws.choice(KILLS))
            rig.relays(fate)
            if draws.random() < 0.3:
                rig.deliver()
        check_once(rig, bodies)


def test_rows_of_a_topic_are_put_in_the_order_of_their_commits(rig: OutboxRig) -> None:
    rig.order.clear()
    rig.commits(*(("mail", f"n{number}") for number in range(50)))
    rig.relays(Fate(9, "after"))
    rig.relays()
    assert rig.order == [f"n{number}" for number in range(50)]
