"""What every client promises, over every protocol, with asyncio and without, and of the double."""

import datetime as dt
from collections.abc import Callable
from typing import Any

import pytest

from delayd.client import (
    BodyTooBig,
    CapReached,
    DelayTooLong,
    Invalid,
    JobAlreadyExists,
    JobInfo,
    JobNotFound,
    KeyInvalid,
    NoRoom,
    NotFound,
    NotReserved,
    NoVirtualClock,
    PolicyInvalid,
    PushIsOff,
    Refused,
    TimedOut,
    TopicNameInvalid,
    TopicNotFound,
    WrongProtocol,
)
from delayd.client.results import PutResult
from delayd.testing.daemon import Daemon
from tests.client.worlds import World, asyncio_world, http_url, line_url, plain_world


def http_only(world: World) -> None:
    if not world.is_http:
        pytest.skip("the line cannot do this; test_sans_io.py proves that it says so")


# --- Producers -----------------------------------------------------------------------------------


def test_a_job_comes_when_it_is_due_and_not_before(world: World) -> None:
    put = world.client.put(world.topic, "hello", delay="1m")
    assert put.outcome == "created"
    world.advance(59.999)
    with pytest.raises(TimedOut):
        world.client.reserve(world.topic, timeout=0)
    world.advance(0.001)
    job = world.client.reserve(world.topic, timeout=0)
    assert (job.id, job.topic, job.body) == (put.id, world.topic, b"hello")


@pytest.mark.parametrize(
    ("body", "kept"),
    [
        (b"\x00\xff\r\n", b"\x00\xff\r\n"),
        (bytearray(b"ab"), b"ab"),
        ("grüße", "grüße".encode()),
        ("", b""),
        ({"to": "ada", "n": [1, 2.5, None]}, b'{"to":"ada","n":[1,2.5,null]}'),
        (17, b"17"),
        (None, b"null"),
    ],
)
def test_a_body_is_kept_byte_for_byte(world: World, body: object, kept: bytes) -> None:
    put = world.client.put(world.topic, body)
    assert world.client.get(put.id).body == kept
    assert world.client.reserve(world.topic, timeout=0).body == kept


def test_json_is_handed_back_as_the_very_text(world: World) -> None:
    text = '{"body":  "x", "n": 1.0}'
    put = world.client.put(world.topic, text, delay=60, key="k")
    assert world.client.get(put.id).text == text
    assert [job.text for job in world.client.jobs(world.topic, bodies=True)] == [text]
    assert world.client.get(put.id).json() == {"body": "x", "n": 1.0}


@pytest.mark.parametrize("delay", ["1h30m", 5400, 5400.0, "5400", "90m", dt.timedelta(minutes=90)])
def test_a_delay_may_be_said_in_several_ways(world: World, delay: object) -> None:
    put = world.client.put(world.topic, "x", delay=delay)
    world.advance(5399.5)
    assert world.client.get(put.id).state == "delayed"
    world.advance(0.5)
    assert world.client.get(put.id).state == "ready"


def test_a_job_may_come_at_a_moment(world: World) -> None:
    http_only(world)
    at = dt.datetime(2100, 1, 1, 12, tzinfo=dt.UTC)
    assert world.client.put(world.topic, "x", at=at).due == at
    assert world.client.put(world.topic, "x", at="2100-01-01T13:00:00+01:00").due == at
    with pytest.raises(ValueError, match="time zone"):
        world.client.put(world.topic, "x", at=at.replace(tzinfo=None))


@pytest.mark.parametrize(
    ("on_conflict", "outcome", "body"),
    [
        ("keep", "kept", b"first"),
        ("replace", "replaced", b"second"),
        ("preserve", "preserved", b"second"),
        ("extend", "extended", b"first"),
    ],
)
def test_a_key_that_is_taken_does_what_was_asked_for(
    world: World, on_conflict: str, outcome: str, body: bytes
) -> None:
    first = world.client.put(world.topic, "first", delay=60, key="k")
    second = world.client.put(world.topic, "second", delay=90, key="k", on_conflict=on_conflict)
    assert (second.id, second.outcome) == (first.id, outcome)
    assert world.client.find(world.topic, "k").body == body


def test_a_key_that_is_taken_is_refused_with_the_job_that_has_it(world: World) -> None:
    put = world.client.put(world.topic, "first", delay=60, key="k")
    with pytest.raises(JobAlreadyExists) as caught:
        world.client.put(world.topic, "second", key="k")
    assert caught.value.job_id == put.id
    assert caught.value.word == "JOB_ALREADY_EXISTS"


def test_many_jobs_are_put_at_once_and_each_has_its_result(world: World) -> None:
    world.client.put(world.topic, "x", delay=60, key="taken")
    jobs = [{"body": n, "delay": 60} for n in range(1_500)]
    results = world.client.put_many(world.topic, [*jobs, {"body": "y", "key": "taken"}])
    assert [result.outcome for result in results[:-1]] == ["created"] * 1_500
    assert isinstance(results[-1], JobAlreadyExists)
    assert world.client.topic(world.topic).delayed == 1_501
    assert world.client.put_many(world.topic, []) == []


def test_a_malformed_job_is_named_by_its_place_among_all_and_those_before_are_known(
    world: World,
) -> None:
    jobs: list[Any] = [{"body": n, "delay": 60} for n in range(1_500)]
    jobs[1_003]["delay"] = "soon"
    with pytest.raises(Invalid, match=r"jobs\[1003\]\.delay: must be seconds") as caught:
        world.client.put_many(world.topic, jobs)
    assert [problem.field for problem in caught.value.problems] == ["jobs[1003].delay"]
    put = 1_000 if world.is_http else 0  # the line writes all commands before it sends any
    assert [each.outcome for each in caught.value.results] == ["created"] * put
    if not world.is_http:
        return
    world.client.put(world.topic, "x")
    batch = world.client.batch()

    def fill() -> None:
        with batch:
            for job in jobs:
                batch.put(world.topic, **job)

    with pytest.raises(Invalid, match=r"jobs\[1003\]\.delay") as caught:
        fill()
    assert len(batch.results) == len(caught.value.results) == 1_000
    assert world.client.topic(world.topic).jobs == 2_001


def test_a_batch_has_every_result_in_order(world: World) -> None:
    world.client.set_policy(world.topic, {"body_bytes_max": 100})
    world.client.put(world.topic, "x", delay=60, key="taken")
    with world.client.batch() as batch:
        for n in range(2_300):
            batch.put(world.topic, str(n))
            if n == 1_100:
                batch.put(world.topic, "x", delay=60, key="taken")
        batch.put(world.topic, "x" * 101)
    refused = batch.results.pop(1_101)
    assert isinstance(refused, JobAlreadyExists)
    assert isinstance(batch.results.pop(), BodyTooBig)
    assert [result.outcome for result in batch.results] == ["created"] * 2_300
    ids = [result.id for result in batch.results]
    assert ids == sorted(ids)
    jobs = world.client.reserve_many(world.topic, limit=1_000, timeout=0)
    assert [job.json() for job in jobs] == list(range(1_000))


def test_a_batch_puts_into_several_topics(world: World) -> None:
    with world.client.batch() as batch:
        for n in range(10):
            batch.put(world.topic if n % 2 else f"{world.topic}-b", str(n))
    jobs = world.client.reserve_many(world.topic, limit=10, timeout=0)
    assert [job.json() for job in jobs] == [1, 3, 5, 7, 9]
    others = world.client.reserve_many(f"{world.topic}-b", limit=10, timeout=0)
    assert [job.json() for job in others] == [0, 2, 4, 6, 8]


def test_a_batch_of_long_bodies_has_few_in_flight(world: World) -> None:
    with world.client.batch() as batch:
        for _ in range(30):
            batch.put(world.topic, b"x" * 60_000, delay=60)
    assert len(batch.results) == 30
    assert world.client.topic(world.topic).delayed == 30


def test_a_job_belongs_to_a_group_until_a_change_says_otherwise(world: World) -> None:
    topic, client = world.topic, world.client
    put = client.put(topic, "x", delay=60, key="k", group="größe-4")
    many = client.put_many(topic, [{"body": "y", "group": "b"}, {"body": "z"}])
    infos = [client.get(each.id) for each in (put, *many) if isinstance(each, PutResult)]
    assert [info.group for info in infos] == ["größe-4", "b", ""]
    if world.is_http:
        listed = {job.id: job.details.get("group") for job in client.jobs(topic)}
        assert listed == {info.id: info.group or None for info in infos}
    job = client.reserve(topic, timeout=0)
    assert job.group == ("b" if world.is_http else None)
    job.ack()
    assert client.reserve(topic, timeout=0).group is None
    client.change(put.id, group="c", priority=5)
    assert client.get(put.id).group == "c"
    client.change(topic, "k", body="new")
    assert (client.get(put.id).group, client.get(put.id).body) == ("c", b"new")
    client.change(put.id, group=None)
    assert client.get(put.id).group == ""
    for on_conflict, group, is_now in (
        ("replace", "d", "d"),
        ("extend", "e", "d"),
        ("replace", None, ""),
    ):
        client.put(topic, "x", key="k", delay=60, group=group, on_conflict=on_conflict)
        assert client.get(put.id).group == is_now


def test_a_batch_whose_block_raises_puts_no_more(world: World) -> None:
    with pytest.raises(ZeroDivisionError), world.client.batch() as batch:
        batch.put(world.topic, "x" if batch.put(world.topic, "x") else 1 // 0)
    assert world.client.put(world.topic, "x").outcome == "created"  # the client goes on
    assert world.client.topic(world.topic).jobs == 1


def test_a_job_may_be_delivered_by_the_daemon_itself(world: World) -> None:
    url = "https://example.com/due"
    try:
        put = world.client.put(world.topic, "x", delay="10h", url=url, method="PUT")
    except PushIsOff as error:
        pytest.skip(str(error))
    assert world.client.get(put.id).details["url"] == url
    listed = {job.id: job.details for job in world.client.jobs(world.topic)}
    if world.is_http:
        assert (listed[put.id]["url"], listed[put.id]["method"]) == (url, "PUT")
    world.client.change(put.id, url=f"{url}/too", method="PATCH")
    details = world.client.get(put.id).details
    assert (details["url"], details["method"]) == (f"{url}/too", "PATCH")
    world.client.change(put.id, url=None)
    assert "url" not in world.client.get(put.id).details
    world.client.cancel(put.id)


# --- Workers -------------------------------------------------------------------------------------


def test_an_acknowledged_job_is_gone(world: World) -> None:
    put = world.client.put(world.topic, "x")
    job = world.client.reserve(world.topic, timeout=0)
    job.ack()
    assert job.is_finished
    with pytest.raises(JobNotFound):
        world.client.get(put.id)


def test_a_job_is_acknowledged_once(world: World) -> None:
    world.client.put(world.topic, "x")
    job = world.client.reserve(world.topic, timeout=0)
    world.client.ack(job)
    with pytest.raises((NotFound, NotReserved)):
        world.client.ack(job)


def test_a_reservation_that_ran_out_cannot_be_acknowledged(world: World) -> None:
    world.client.put(world.topic, "x", ttr=10)
    job = world.client.reserve(world.topic, timeout=0)
    world.advance(10)
    second = world.client.reserve(world.topic, timeout=0)
    assert second.id == job.id
    with pytest.raises((NotFound, NotReserved)):
        job.ack()
    second.ack()


def test_a_touch_extends_the_reservation(world: World) -> None:
    put = world.client.put(world.topic, "x", ttr=10)
    job = world.client.reserve(world.topic, timeout=0)
    world.advance(6)
    job.touch()
    world.advance(6)
    assert world.client.get(put.id).state == "reserved"
    job.ack()


def test_several_topics_are_watched_at_once_and_the_most_urgent_job_comes_first(
    world: World,
) -> None:
    other = f"{world.topic}-b"
    world.client.put(world.topic, "later", priority=10)
    world.client.put(other, "first", priority=5)
    job = world.client.reserve([world.topic, other], timeout=0)
    assert (job.topic, job.text) == (other, "first")
    assert world.client.reserve([world.topic, other], timeout=0).text == "later"


def test_many_are_reserved_and_acknowledged_at_once(world: World) -> None:
    world.client.put_many(world.topic, [{"body": n} for n in range(5)])
    jobs = world.client.reserve_many(world.topic, limit=4, timeout=0)
    assert [job.json() for job in jobs] == [0, 1, 2, 3]
    jobs[1].ack()
    first, second, *rest = world.client.ack_many(jobs)
    assert first is None
    assert isinstance(second, NotFound | NotReserved)
    assert rest == [None, None]
    assert world.client.reserve_many("nothing-there", limit=4, timeout=0) == []


def test_a_job_that_ends_well_is_acknowledged(world: World) -> None:
    put = world.client.put(world.topic, "x")
    with world.client.reserve(world.topic, timeout=0) as job:
        assert job.text == "x"
    with pytest.raises(JobNotFound):
        world.client.get(put.id)


def test_a_job_that_raises_is_nacked_with_the_reason(world: World) -> None:
    world.client.set_policy(world.topic, {"retry": "15s 3m"})
    put = world.client.put(world.topic, "x")
    with (
        pytest.raises(ZeroDivisionError),
        world.client.reserve(world.topic, timeout=0) as job,
    ):
        assert job.id // 0
    info = world.client.get(put.id)
    assert (info.state, info.attempts) == ("delayed", 1)
    assert info.failure is not None
    assert info.failure.error.startswith("ZeroDivisionError: integer division")


def test_a_job_may_be_finished_otherwise_in_its_block(world: World) -> None:
    put = world.client.put(world.topic, "x")
    with world.client.reserve(world.topic, timeout=0) as job:
        job.bury()
    assert world.client.get(put.id).state == "buried"


def test_a_nack_may_say_when_the_job_comes_again(world: World) -> None:
    put = world.client.put(world.topic, "x")
    job = world.client.reserve(world.topic, timeout=0)
    job.nack(delay="5m", error="busy\r\nquit")
    assert world.client.get(put.id).state == "delayed"
    assert "busy" in world.client.get(put.id).failure.error
    world.advance(300)
    assert world.client.reserve(world.topic, timeout=0).id == put.id


def test_a_released_job_is_ready_again(world: World) -> None:
    put = world.client.put(world.topic, "x")
    world.client.reserve(world.topic, timeout=0).release()
    assert world.client.get(put.id).state == "ready"
    world.client.reserve(world.topic, timeout=0).release(delay=60)
    assert world.client.get(put.id).state == "delayed"


def test_attempts_are_counted_to_the_last_and_the_job_is_a_dead_letter(world: World) -> None:
    world.client.set_policy(world.topic, {"retry": "15s", "max_attempts": 2})
    put = world.client.put(world.topic, "x", key="k")
    world.client.reserve(world.topic, timeout=0).nack(error="first")
    world.advance(15)
    world.client.reserve(world.topic, timeout=0).nack(error="second")
    (dead,) = world.client.dead_letters(world.topic)
    assert (dead.id, dead.state, dead.attempts, dead.body) == (put.id, "buried", 2, b"x")
    assert dead.failure is not None
    assert dead.failure.error == "second"
    assert world.client.redrive(world.topic) == 1
    assert world.client.get(put.id).state == "ready"


def test_an_exhausted_job_is_moved_once_and_then_buried(world: World) -> None:
    other = f"{world.topic}-failed"
    world.client.set_policy(world.topic, {"max_attempts": 1, "exhausted": other})
    world.client.set_policy(other, {"max_attempts": 1, "exhausted": world.topic})
    put = world.client.put(world.topic, "x", key="k")
    world.client.reserve(world.topic, timeout=0).nack(error="no")
    moved = world.client.get(put.id)
    assert (moved.topic, moved.state, moved.key, moved.attempts) == (other, "ready", "", 0)
    assert moved.failure is not None
    assert moved.failure.origin == world.topic
    world.client.reserve(other, timeout=0).nack(error="no again")
    assert world.client.get(put.id).state == "buried"


# --- Jobs ----------------------------------------------------------------------------------------


def test_a_job_is_found_by_its_number_and_by_its_key(world: World) -> None:
    put = world.client.put(world.topic, "x", delay=60, ttr=30, priority=7, key="k")
    for job in (world.client.get(put.id), world.client.find(world.topic, "k")):
        assert isinstance(job, JobInfo)
        assert (job.id, job.topic, job.state, job.key) == (put.id, world.topic, "delayed", "k")
        assert (job.priority, job.ttr, job.attempts, job.body) == (7, 30.0, 0, b"x")
    with pytest.raises(JobNotFound):
        world.client.find(world.topic, "none")
    with pytest.raises(JobNotFound):
        world.client.get(1 << 60)


def test_peek_shows_the_first_job_of_a_state(world: World) -> None:
    assert world.client.peek(world.topic) is None
    world.client.put(world.topic, "x", delay=60)
    assert world.client.peek(world.topic) is None
    assert world.client.peek(world.topic, "delayed").text == "x"


def test_a_job_is_cancelled_by_its_number_and_by_its_key(world: World) -> None:
    put = world.client.put(world.topic, "x", delay=60)
    keyed = world.client.put(world.topic, "x", delay=60, key="k")
    assert world.client.cancel(put.id) == put.id
    assert world.client.cancel(world.topic, "k") == keyed.id
    with pytest.raises(JobNotFound):
        world.client.cancel(put.id)
    with pytest.raises(NotFound):  # the topic is gone with its last job
        world.client.cancel(world.topic, "k")


def test_a_job_is_kicked_by_its_number_and_by_its_key(world: World) -> None:
    put = world.client.put(world.topic, "x", delay=60)
    keyed = world.client.put(world.topic, "x", delay=60, key="k")
    assert world.client.kick(put.id) == put.id
    assert world.client.kick(world.topic, "k") == keyed.id
    assert world.client.topic(world.topic).ready == 2


def test_a_job_that_waits_is_buried_by_its_number_and_by_its_key(world: World) -> None:
    http_only(world)
    put = world.client.put(world.topic, "x")
    keyed = world.client.put(world.topic, "x", delay=60, key="k")
    world.client.bury(put.id, error="wrong amount", priority=3)
    world.client.bury(world.topic, "k")
    (by_id, by_key) = (world.client.get(each.id) for each in (put, keyed))
    assert (by_id.state, by_id.priority, by_id.attempts) == ("buried", 3, 0)
    assert (by_id.failure.reason, by_id.failure.error) == ("buried", "wrong amount")
    assert (by_key.state, by_key.failure.error) == ("buried", "by hand")
    with pytest.raises(Refused, match="which does not allow to bury it"):
        world.client.bury(put.id)
    assert world.client.redrive(world.topic) == 2


def test_a_job_is_changed_in_one_step(world: World) -> None:
    put = world.client.put(world.topic, "x", delay=60, key="k")
    world.client.change(put.id, priority=5, ttr=20, body={"new": True})
    info = world.client.get(put.id)
    assert (info.priority, info.ttr, info.body) == (5, 20.0, b'{"new":true}')
    world.client.reschedule(world.topic, "k", delay=0)
    assert world.client.get(put.id).state == "ready"
    world.client.change(world.topic, "k", priority=6)
    assert world.client.get(put.id).priority == 6


def test_jobs_are_listed_in_due_order_page_after_page(world: World) -> None:
    world.client.put_many(
        world.topic, [{"body": n, "delay": 3_000 - n, "key": f"k{n}"} for n in range(2_100)]
    )
    keys = [job.key for job in world.client.jobs(world.topic)]
    assert keys == [f"k{n}" for n in reversed(range(2_100))]
    limited = list(world.client.jobs(world.topic, limit=3, bodies=True))
    assert [job.json() for job in limited] == [2_099, 2_098, 2_097]


@pytest.mark.parametrize("limit", [0, -1])
def test_a_list_of_fewer_than_one_job_is_refused(world: World, limit: int) -> None:
    world.client.put(world.topic, "a", delay=60)
    with pytest.raises(Invalid, match="must be at least 1") as caught:
        list(world.client.jobs(world.topic, limit=limit))
    assert [problem.field for problem in caught.value.problems] == ["limit"]


def test_jobs_are_filtered(world: World) -> None:
    world.client.put(world.topic, "a", delay=60, key="order-1")
    world.client.put(world.topic, "b", delay=120, key="order-2")
    world.client.put(world.topic, "c", delay=60, key="mail-1")
    world.client.put(world.topic, "d", key="order-3")

    def keys(**which: object) -> list[str]:
        return [job.key for job in world.client.jobs(world.topic, **which)]

    assert keys(state="ready") == ["order-3"]
    assert keys(state=["ready", "delayed"], key_prefix="order-") == [
        *("order-3", "order-1", "order-2")
    ]
    assert keys(due_from="90s") == ["order-2"]
    assert keys(due_to="90s", state="delayed") == ["order-1", "mail-1"]


def test_many_jobs_are_kicked_rescheduled_and_cancelled(world: World) -> None:
    client, topic = world.client, world.topic
    client.put_many(topic, [{"body": n, "delay": 60, "key": f"o-{n}"} for n in range(3)])
    client.put(topic, "x", delay=60, key="other")
    assert client.reschedule_many(topic, {"delay": "1h"}, key_prefix="o-", dry_run=True) == 3
    assert client.reschedule_many(topic, {"delay": "1h"}, key_prefix="o-") == 3
    world.advance(60)
    assert client.topic(topic).ready == 1
    assert client.kick_many(topic, key_prefix="o-1") == 1
    assert client.topic(topic).ready == 2
    assert client.cancel_many(topic, key_prefix="o-", dry_run=True) == 3
    assert client.cancel_many(topic, key_prefix="o-") == 3
    assert client.topic(topic).jobs == 1


# --- Topics and the daemon -----------------------------------------------------------------------


def test_the_calendar_counts_what_comes_due(world: World) -> None:
    world.client.put(world.topic, "x", delay="90m")
    calendar = world.client.calendar(world.topic, horizon="3h", bins=3)
    assert calendar.bin_s == 3_600
    assert calendar.topics == {world.topic: [0, 1, 0]}
    if world.is_http:
        closer = world.client.calendar(world.topic, due_from="1h", horizon="1h", bins=4)
        assert closer.topics == {world.topic: [0, 0, 1, 0]}


def test_topics_are_listed_with_their_counts(world: World) -> None:
    world.client.put(world.topic, "x")
    world.client.put(world.topic, "x", delay=60)
    (found,) = [topic for topic in world.client.topics() if topic.name == world.topic]
    assert (found.ready, found.delayed, found.jobs) == (1, 1, 2)
    assert world.client.topic(world.topic).name == world.topic
    with pytest.raises(TopicNotFound):
        world.client.topic("nobody-was-here")


def test_a_policy_is_set_read_and_cleared(world: World) -> None:
    world.client.set_policy(world.topic, {"jobs_max": 1, "delay_max": "1h", "body_bytes_max": 10})
    assert world.client.policy(world.topic).policy["jobs_max"] == 1
    with pytest.raises(Invalid) as caught:
        world.client.put(world.topic, "x", delay="2h")
    assert isinstance(caught.value, DelayTooLong) or not world.is_http
    with pytest.raises(BodyTooBig):
        world.client.put(world.topic, "x" * 11)
    world.client.put(world.topic, "x")
    with pytest.raises(NoRoom) as full:
        world.client.put(world.topic, "x")
    assert isinstance(full.value, CapReached) or not world.is_http
    world.client.clear_policy(world.topic)
    assert world.client.policy(world.topic).policy == {}
    with pytest.raises(PolicyInvalid, match="retry"):
        world.client.set_policy(world.topic, {"retry": 15})


def test_a_paused_topic_hands_out_nothing(world: World) -> None:
    world.client.put(world.topic, "x")
    world.client.pause(world.topic, "10m")
    assert world.client.reserve_many(world.topic, limit=1, timeout=0) == []
    world.client.resume(world.topic)
    assert world.client.reserve(world.topic, timeout=0).text == "x"


def test_a_topic_is_cleared(world: World) -> None:
    world.client.put(world.topic, "x")
    world.client.put(world.topic, "x", delay=60)
    assert world.client.clear(world.topic) == 2


def test_the_daemon_tells_how_it_is(world: World) -> None:
    assert world.client.health() == (True, "")
    assert world.client.stats()


def test_a_virtual_clock_is_advanced(world: World) -> None:
    before = world.client.advance_clock(0)
    assert world.client.advance_clock("7d") - before == dt.timedelta(days=7)


# --- Refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["plain", "asyncio"])
@pytest.mark.parametrize("said", ["http", "line"])
def test_the_port_of_the_other_protocol_is_said_at_once_with_the_url_to_use(
    said: str, kind: str, daemon: Daemon
) -> None:
    urls = {"http": http_url(daemon), "line": line_url(daemon)}
    right = urls.pop("line" if said == "http" else "http")
    wrong = f"{urls[said].partition(':')[0]}:{right.partition(':')[2]}"
    world = plain_world if kind == "plain" else asyncio_world
    with world("wrong", wrong, daemon) as there:
        for call in (
            lambda: there.client.put("mail", "x"),
            lambda: there.client.reserve("mail", timeout=0),
            there.client.topics,
            lambda: there.client.put_many("default", [{"body": 1}] * 300),
        ):
            with pytest.raises(WrongProtocol) as caught:
                call()
            assert caught.value.url == right
            assert f"use {right}" in str(caught.value)
    with plain_world("right", right, daemon) as there, pytest.raises(TopicNotFound):
        there.client.topic("mail")


def test_jobs_that_are_none_are_refused_with_an_example(world: World) -> None:
    for jobs in (["a"], {"body": "a"}, [("a", 1)], "ab"):
        with pytest.raises(TypeError, match=r'put_many\("mail", \[\{"body"'):
            world.client.put_many(world.topic, jobs)
    with pytest.raises(TopicNotFound):
        world.client.topic(world.topic)


MISTAKES: dict[str, Callable[[Any, str], object]] = {
    "delay": lambda client, topic: client.put(topic, "x", delay="soon"),
    "delay of None": lambda client, topic: client.put(topic, "x", delay=True),
    "delay below 0": lambda client, topic: client.put(topic, "x", delay=-1),
    "delay of units": lambda client, topic: client.put(topic, "x", delay="1m1h"),
    "ttr": lambda client, topic: client.put(topic, "x", ttr=0),
    "priority": lambda client, topic: client.put(topic, "x", priority=1 << 32),
    "priority below 0": lambda client, topic: client.put(topic, "x", priority=-1),
    "priority of text": lambda client, topic: client.put(topic, "x", priority="high"),
    "key": lambda client, topic: client.put(topic, "x", key="a b"),
    "group of words": lambda client, topic: client.put(topic, "x", group="a b"),
    "group of a number": lambda client, topic: client.put(topic, "x", group=5),
    "group of a list": lambda client, topic: client.put(topic, "x", group=["a"]),
    "group of bytes": lambda client, topic: client.put(topic, "x", group=b"a"),
    "half a pair as group": lambda client, topic: client.put(topic, "x", group="\ud800"),
    "change to half a pair": lambda client, topic: client.change(
        client.put(topic, "x", delay=60).id, group="\ud800"
    ),
    "half a pair in one of many": lambda client, topic: client.put_many(
        topic, [{"body": 1}, {"body": 2, "group": "\ud800"}]
    ),
    "key of a number": lambda client, topic: client.put(topic, "x", key=5),
    "key of bytes": lambda client, topic: client.put(topic, "x", key=b"x"),
    "half a pair as key": lambda client, topic: client.put(topic, "x", key="\ud800"),
    "retry of a number": lambda client, topic: client.put(topic, "x", retry=5),
    "retry of bytes": lambda client, topic: client.put(topic, "x", retry=b"x"),
    "half a pair as retry": lambda client, topic: client.put(topic, "x", retry="\ud800"),
    "a step that is none": lambda client, topic: client.put(topic, "x", retry=["1s", b"2s"]),
    "delay of bytes": lambda client, topic: client.put(topic, "x", delay=b"1"),
    "delay of a set": lambda client, topic: client.put(topic, "x", delay={1}),
    "delay without end": lambda client, topic: client.put(topic, "x", delay=float("inf")),
    "ttr of a set": lambda client, topic: client.put(topic, "x", ttr={1}),
    "priority of a set": lambda client, topic: client.put(topic, "x", priority={1}),
    "attempts of a set": lambda client, topic: client.put(topic, "x", max_attempts={1}),
    "url of a number": lambda client, topic: client.put(topic, "x", url=5),
    "url of bytes": lambda client, topic: client.put(topic, "x", url=b"x"),
    "method of bytes": lambda client, topic: client.put(topic, "x", method=b"x"),
    "pause of a set": lambda client, topic: client.pause(topic, {1}),
    "long group": lambda client, topic: client.put(topic, "x", group="g" * 201),
    "no group": lambda client, topic: client.put(topic, "x", group=""),
    "group of a change": lambda client, topic: client.change(
        client.put(topic, "x", delay=60).id, group="ü" * 101
    ),
    "change to no group": lambda client, topic: client.change(
        client.put(topic, "x", delay=60).id, group=""
    ),
    "on_conflict": lambda client, topic: client.put(topic, "x", key="k", on_conflict="merge"),
    "retry": lambda client, topic: client.put(topic, "x", retry="15s soon"),
    "max_attempts": lambda client, topic: client.put(topic, "x", max_attempts=-1),
    "too many attempts": lambda client, topic: client.put(topic, "x", max_attempts=1 << 20),
    "jitter below 0": lambda client, topic: client.put(topic, "x", retry="1s", jitter_percent=-1),
    "no steps": lambda client, topic: client.put(topic, "x", retry=""),
    "a step of 0": lambda client, topic: client.put(topic, "x", retry=["1s", 0]),
    "jitter_percent": lambda client, topic: client.put(topic, "x", retry="1s", jitter_percent=101),
    "a name": lambda client, topic: client.put(topic, "x", dellay="1s"),
    "topic": lambda client, _: client.put("-bad", "x"),
    "one of many": lambda client, topic: client.put_many(
        topic, [{"body": 1}, {"body": 2, "ttr": 0}]
    ),
    "no body": lambda client, topic: client.put_many(topic, [{"delay": 1}]),
    "pause": lambda client, topic: client.pause(topic, "soon"),
    "state": lambda client, topic: client.kick_many(topic, state="sleeping"),
    "limit": lambda client, topic: client.reserve_many(topic, limit=0, timeout=0),
    "bins": lambda client, topic: client.calendar(topic, bins=0),
    "horizon": lambda client, topic: client.calendar(topic, horizon="soon"),
    "by": lambda client, _: client.advance_clock("soon"),
    "redrive": lambda client, topic: client.redrive(topic, 0),
    "change": lambda client, topic: client.change(
        client.put(topic, "x", delay=60).id, priority="high"
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_the_same_error_over_both_protocols(mistake: str, rivals: list[World]) -> None:
    told = []
    for world in rivals:
        with pytest.raises(Invalid) as caught:
            MISTAKES[mistake](world.client, world.topic)
        told.append((type(caught.value), str(caught.value), caught.value.problems))
    assert told[0] == told[1]


def test_an_argument_that_http_alone_takes_is_checked_too(world: World) -> None:
    http_only(world)
    for at in (5, "\ud800"):
        with pytest.raises(Invalid, match=r"^at: "):
            world.client.put(world.topic, "x", at=at)
    for headers in ({"X": {1}}, {"X": "\ud800"}, 5):
        with pytest.raises(Invalid, match=r"^headers: "):
            world.client.put(world.topic, "x", url="https://example.com", headers=headers)
    with pytest.raises(Invalid, match=r"^idempotency_key: "):
        world.client.put(world.topic, "x", idempotency_key="\ud800")


def test_what_is_malformed_is_refused(world: World) -> None:
    world.client.put(world.topic, "x", delay=60)
    with pytest.raises(KeyInvalid):
        world.client.find(world.topic, "\ud800")
    with pytest.raises(KeyInvalid):
        world.client.put(world.topic, "x", key="a b")
    with pytest.raises(TopicNameInvalid):
        world.client.put("-bad", "x")
    with pytest.raises((Invalid, ValueError)):
        world.client.put(world.topic, "x", delay="soon")
    with pytest.raises(Invalid):
        world.client.put(world.topic, "x", priority=1 << 40)
    with pytest.raises(TypeError):
        world.client.cancel(world.topic)
    assert issubclass(NoVirtualClock, Refused)
