"""`stats`, `list-tubes`, `peek-delayed` and closes where there are very many topics or jobs."""

import re
from itertools import pairwise

import pytest

from delayd import limits
from delayd.access.scopes import Scope
from delayd.core.times import RequestMs
from tests.core.check import check
from tests.rigs.line import Client, LineRig

TOPICS = limits.TOPICS_AT_ONCE + 3 * limits.TASK_STEP_JOBS


def make_topics(rig: LineRig, count: int) -> list[str]:
    """Have somebody use so many topics, the default one included, a job in every third."""
    store = rig.engine.store
    for number in range(count - len(store.topics.listing)):
        store.topic(f"t{number}").users += 1
    for number in range(0, count - 1, 3):
        rig.clients[0].says(b"put-in-tube t%d 0 %d 60 1\r\nx\r\n" % (number, number % 2))
    return [topic.name for topic in store.topics.listing]


def asked(client: Client, rig: LineRig, command: bytes) -> bool:
    """Ask something; tell whether the client has to wait for the reply."""
    client.connection.receive(command, rig.now_ms)
    return client.connection.is_waiting


def values(reply: bytes) -> dict[str, str]:
    return dict(re.findall(r"^([a-z-]+): (.*)$", reply.decode(), re.MULTILINE))


@pytest.mark.parametrize("command", [b"stats\r\n", b"list-tubes\r\n"])
def test_what_looks_at_all_topics_is_answered_at_once_where_they_are_few(command: bytes) -> None:
    rig = LineRig()
    client = rig.client()
    make_topics(rig, limits.TOPICS_AT_ONCE)
    assert not asked(client, rig, command)
    assert client.connection.take_out().startswith(b"OK ")


def test_a_list_of_very_many_tubes_is_made_in_slices() -> None:
    rig = LineRig()
    client, other = rig.client(), rig.client()
    names = make_topics(rig, TOPICS)
    assert asked(client, rig, b"list-tubes\r\nlist-tube-used\r\n")
    assert rig.steps_beside(client, other) == 1 + TOPICS // limits.TASK_STEP_JOBS
    rows = "".join(f"- {name}\n" for name in names)
    body = f"---\n{rows}"
    assert client.connection.take_out().decode() == f"OK {len(body)}\r\n{body}\r\nUSING default\r\n"


def test_a_list_for_a_token_with_many_patterns_is_made_in_more_and_shorter_slices() -> None:
    rig = LineRig(needs_token=True)
    globs = (*(f"*a*b{number}" for number in range(limits.TOKEN_GLOBS_MAX - 1)), "*-7")
    client, other = (rig.user(Scope.STATS, topics=globs) for _ in range(2))
    store = rig.engine.store
    for number in range(200):
        store.topic(f"topic-{number}").users += 1
    assert asked(client, rig, b"list-tubes\r\n")
    assert client.connection.visible_us > limits.MATCHED_US, (
        "more than for a token with one pattern"
    )
    per_step = limits.TASK_STEP_JOBS // (1 + client.connection.visible_us)
    assert 1 <= per_step < limits.TASK_STEP_JOBS
    assert rig.steps_beside(client, other) == 1 + len(store.topics.listing) // per_step
    assert client.connection.take_out() == b"OK 14\r\n---\n- topic-7\n\r\n"


def test_statistics_of_very_many_topics_are_summed_in_slices() -> None:
    rig = LineRig()
    client, other = rig.client(), rig.client()
    make_topics(rig, TOPICS)
    client.says(b"watch t0\r\n", b"watch t6\r\n", b"reserve\r\n", b"reserve\r\n", b"bury 1 0\r\n")
    assert asked(client, rig, b"stats\r\n")
    assert rig.steps_beside(client, other) == 1 + TOPICS // limits.TASK_STEP_JOBS
    found = values(client.connection.take_out())
    expected = values(
        b"\n".join(
            b"%b: %d"
            % (name.encode(), sum(count(topic) for topic in rig.engine.store.topics.listing))
            for name, count in (
                ("current-jobs-urgent", lambda topic: topic.queues.ready.urgent),
                ("current-jobs-ready", lambda topic: len(topic.queues.ready)),
                ("current-jobs-reserved", lambda topic: topic.reserved),
                ("current-jobs-delayed", lambda topic: topic.delayed),
                ("current-jobs-buried", lambda topic: len(topic.queues.buried)),
                ("current-tubes", lambda _topic: 1),
            )
        )
    )
    assert {name: found[name] for name in expected} == expected
    assert "0" not in expected.values()


# --- The soonest of very many ---------------------------------------------------------------------


@pytest.mark.parametrize("delay_s", [b"5", b"%d"])
def test_of_very_many_delayed_jobs_the_soonest_is_looked_for_in_slices(delay_s: bytes) -> None:
    rig = LineRig()
    client, other = rig.client(), rig.client()
    jobs = limits.DELAYED_SORTED_MAX + 1
    for number in range(jobs):
        delay = delay_s if b"%" not in delay_s else delay_s % (jobs - number)
        client.says(b"put 0 %b 60 1\r\nx\r\n" % delay)
    soonest = jobs if b"%" in delay_s else 1
    assert asked(client, rig, b"peek-delayed\r\n")
    steps = rig.steps_beside(client, other)
    assert steps > 2 if soonest == 1 else steps == 1, "as many as there are of one instant"
    assert client.connection.take_out() == b"FOUND %d 1\r\nx\r\n" % soonest
    client.says(b"delete %d\r\n" % soonest)
    assert not asked(client, rig, b"peek-delayed\r\n")
    second = jobs - 1 if b"%" in delay_s else 2
    assert client.connection.take_out() == b"FOUND %d 1\r\nx\r\n" % second


def test_a_job_that_goes_while_the_soonest_is_looked_for_is_not_shown() -> None:
    for gone in (3, limits.DELAYED_SORTED_MAX + limits.DELAYED_SEARCHED):
        rig = LineRig()
        client, other = rig.client(), rig.client()
        client.says(
            b"put 0 5 60 1\r\nx\r\n" * (limits.DELAYED_SORTED_MAX + limits.DELAYED_SEARCHED)
        )
        assert asked(client, rig, b"peek-delayed\r\n")
        while not client.connection.out:
            task = rig.tasks.step(rig.now_ms)
            if task is not None:
                other.connection.receive(
                    b"".join(b"delete %d\r\n" % number for number in range(1, gone + 1)), rig.now_ms
                )
                task.conclude(rig.now_ms)
        shown = b"FOUND 4 1\r\nx\r\n" if gone == 3 else b"NOT_FOUND\r\n"
        assert client.connection.take_out() == shown


# --- Closing --------------------------------------------------------------------------------------


def test_many_tubes_of_a_closed_connection_are_let_go_in_slices() -> None:
    rig = LineRig()
    many, few, other = rig.client(), rig.client(), rig.client()
    for client, tubes in (
        (many, limits.TOPICS_WATCHED_MAX - 1),
        (few, limits.UNWATCHED_AT_ONCE - 1),
    ):
        name = b"many" if client is many else b"few"
        for number in range(tubes):
            client.says(b"watch %b-%d\r\n" % (name, number))
    listing = rig.engine.store.topics.listing
    few.connection.close(rig.now_ms)
    assert len(listing) == limits.TOPICS_WATCHED_MAX, "few are let go at once"
    many.connection.close(rig.now_ms)
    check(rig.engine)
    left = [len(listing)]
    while rig.tasks.has_more:
        rig.tasks.step(RequestMs(rig.now_ms))
        left.append(len(listing))
        check(rig.engine)
    steps = [before - after for before, after in pairwise(left)]
    assert max(steps) == limits.TASK_STEP_JOBS
    assert left[-1] == 1
    assert other.says(b"list-tubes\r\n") == b"OK 14\r\n---\n- default\n\r\n"
    assert listing[0].watchers == listing[0].users == 1
