"""What every client promises, over every protocol, with asyncio and without, and of the double."""

import datetime as dt
from collections.abc import Callable
from typing import Any

import pytest

from delayd.client import (
    BodyTooBig,
    ClientClosed,
    Invalid,
    JobAlreadyExists,
    JobNotFound,
    KeyInvalid,
    NotFound,
    NotReserved,
    NoVirtualClock,
    Refused,
    TimedOut,
    TopicNotFound,
    WrongProtocol,
)
from delayd.testing.daemon import Daemon
from tests.client.worlds import World, client_of, http_url, line_url


def http_only(world: World) -> None:
    if not world.is_http:
        pytest.skip("the line cannot do this; test_sans_io.py proves that it says so")


# --- Producers -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "kept"),
    [
        *((b"\x00\xff\r\n", b"\x00\xff\r\n"), (bytearray(b"ab"), b"ab"), ("", b"")),
        ("grüße", "grüße".encode()),
        ({"to": "ada", "n": [1, 2.5, None]}, b'{"to":"ada","n":[1,2.5,null]}'),
        *((17, b"17"), (None, b"null"), ('{"body":  "x", "n": 1.0}', b'{"body":  "x", "n": 1.0}')),
    ],
)
def test_a_body_is_kept_byte_for_byte(world: World, body: object, kept: bytes) -> None:
    put = world.client.put(world.topic, body)
    info = world.client.get(put.id)
    assert info.body == kept
    assert "body" not in info.details
    assert [job.body for job in world.client.jobs(world.topic, bodies=True)] == [kept]
    assert world.client.reserve(world.topic, timeout=0).body == kept


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


def test_many_jobs_are_put_at_once_and_each_has_its_result(world: World) -> None:
    world.client.put(world.topic, "x", delay=60, key="taken")
    jobs = [{"body": n, "delay": 60} for n in range(1_500)]
    results = world.client.put_many(world.topic, [*jobs, {"body": "y", "key": "taken"}])
    assert [result.outcome for result in results[:-1]] == ["created"] * 1_500
    assert isinstance(results[-1], JobAlreadyExists)
    assert world.client.topic(world.topic).delayed == 1_501
    assert world.client.put_many(world.topic, []) == []


@pytest.mark.thorough
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


@pytest.mark.thorough
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


def test_a_client_that_is_closed_does_nothing_more(world: World) -> None:
    put = world.client.put(world.topic, "x")
    world.client.close()
    for call, argument in (("get", put.id), ("topics", None), ("cancel", put.id)):
        with pytest.raises(ClientClosed, match="make a new one"):
            getattr(world.client, call)(*[] if argument is None else [argument])
    world.client.close()


def test_a_batch_takes_no_put_outside_of_its_block_where_nobody_would_send_it(world: World) -> None:
    batch = world.client.batch()
    for number in range(2):
        with pytest.raises(RuntimeError, match="within its `with` block alone"):
            batch.put(world.topic, "late")
        if number == 0:
            with batch:
                batch.put(world.topic, "x")
    assert len(batch.results) == world.client.topic(world.topic).ready == 1


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


def test_a_batch_whose_block_raises_puts_no_more(world: World) -> None:
    with pytest.raises(ZeroDivisionError), world.client.batch() as batch:
        batch.put(world.topic, "x" if batch.put(world.topic, "x") else 1 // 0)
    assert world.client.put(world.topic, "x").outcome == "created"  # the client goes on
    assert world.client.topic(world.topic).jobs == 1


# --- Workers -------------------------------------------------------------------------------------


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
    with pytest.raises(TimedOut, match="no job was ready within 0 s"):
        world.client.reserve("nothing-there", timeout="0s")


def test_a_job_that_ends_well_is_acknowledged(world: World) -> None:
    put = world.client.put(world.topic, "x")
    with world.client.reserve(world.topic, timeout=0) as job:
        assert job.text == "x"
        assert not job.is_finished
    assert job.is_finished
    with pytest.raises(JobNotFound):
        world.client.get(put.id)
    assert world.client.peek(world.topic) is None
    put = world.client.put(world.topic, "x")
    with world.client.reserve(world.topic, timeout=0) as job:
        job.bury()  # it may be finished otherwise
    assert world.client.get(put.id).state == "buried"


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


class Unsayable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize("error", [Unsayable(), ValueError("nul\0"), ValueError("half \ud800")])
def test_an_attempt_has_failed_whatever_its_exception_says(world: World, error: Exception) -> None:
    world.client.set_policy(world.topic, {"retry": "15s"})
    put = world.client.put(world.topic, "x")
    with pytest.raises(type(error)), world.client.reserve(world.topic, timeout=0):
        raise error
    info = world.client.get(put.id)
    assert info.state == "delayed"
    assert info.failure is not None
    assert info.failure.error.startswith(type(error).__name__)


def test_a_reason_of_any_characters_buries_a_job(world: World) -> None:
    put = world.client.put(world.topic, "x")
    world.client.reserve(world.topic, timeout=0).bury(error="exit code 65: \0\x1b[31m")
    assert world.client.get(put.id).state == "buried"


# --- Jobs ----------------------------------------------------------------------------------------


@pytest.mark.thorough
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


# --- Topics and the daemon -----------------------------------------------------------------------


def test_the_daemon_tells_how_it_is_and_a_virtual_clock_is_advanced(world: World) -> None:
    assert world.client.health() == (True, "")
    assert world.client.stats()
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
    with client_of(kind, wrong) as client:
        for call in (
            lambda: client.put("mail", "x"),
            lambda: client.reserve("mail", timeout=0),
            client.topics,
            lambda: client.put_many("default", [{"body": 1}] * 300),
        ):
            with pytest.raises(WrongProtocol) as caught:
                call()
            assert caught.value.url == right
            assert f"use {right}" in str(caught.value)
    with client_of(kind, right) as client, pytest.raises(TopicNotFound):
        client.topic("mail")


def test_jobs_that_are_none_are_refused_with_an_example(world: World) -> None:
    for jobs in (["a"], {"body": "a"}, [("a", 1)], "ab"):
        with pytest.raises(TypeError, match=r'put_many\("mail", \[\{"body"'):
            world.client.put_many(world.topic, jobs)
    with pytest.raises(TopicNotFound):
        world.client.topic(world.topic)


PUTS: list[dict[str, Any]] = [
    *({"delay": wrong} for wrong in ("soon", True, -1, "1m1h", b"1", {1}, float("inf"))),
    *({"ttr": wrong} for wrong in (0, {1})),
    *({"priority": wrong} for wrong in (1 << 32, -1, "high", {1})),
    *({"key": wrong} for wrong in ("a b", 5, b"x", "\ud800")),
    *({"group": wrong} for wrong in ("a b", 5, ["a"], b"a", "\ud800", "g" * 201, "")),
    *({"retry": wrong} for wrong in (5, b"x", "\ud800", ["1s", b"2s"], "15s soon", "", ["1s", 0])),
    *({"max_attempts": wrong} for wrong in ({1}, -1, 1 << 20)),
    *({"retry": "1s", "jitter_percent": wrong} for wrong in (-1, 101)),
    *({"url": 5}, {"url": b"x"}, {"method": b"x"}, {"dellay": "1s"}),
    {"key": "k", "on_conflict": "merge"},
]
"""What a put may not be given."""


def _taken(client: Any, topic: str) -> Any:  # noqa: ANN401 - a job of either kind
    client.put(topic, "x")
    return client.reserve(topic, timeout=0)


MISTAKES: dict[str, Callable[[Any, str], object]] = {
    "topic": lambda client, _: client.put("-bad", "x"),
    "one of many": lambda client, topic: client.put_many(
        topic, [{"body": 1}, {"body": 2, "ttr": 0}]
    ),
    "half a pair in one of many": lambda client, topic: client.put_many(
        topic, [{"body": 1}, {"body": 2, "group": "\ud800"}]
    ),
    "no body": lambda client, topic: client.put_many(topic, [{"delay": 1}]),
    "pause": lambda client, topic: client.pause(topic, "soon"),
    "pause of a set": lambda client, topic: client.pause(topic, {1}),
    "state": lambda client, topic: client.kick_many(topic, state="sleeping"),
    "limit": lambda client, topic: client.reserve_many(topic, limit=0, timeout=0),
    "bins": lambda client, topic: client.calendar(topic, bins=0),
    "horizon": lambda client, topic: client.calendar(topic, horizon="soon"),
    "by": lambda client, _: client.advance_clock("soon"),
    "redrive": lambda client, topic: client.redrive(topic, 0),
    "schedule": lambda client, _: client.schedule("a b"),
    "start": lambda client, topic: client.put_schedule(
        "n",
        topic,
        "x",
        every="1h",
        start=dt.datetime(2030, 1, 1),  # noqa: DTZ001 - it has none
    ),
    "limit of a schedule": lambda client, topic: client.put_schedule("n", topic, "x", limit={1}),
    "note": lambda client, _: client.pause_schedule("n", "\ud800"),
    "no text": lambda client, _: client.pause_schedule("n", 5),
    "no topics": lambda client, _: client.reserve([], timeout=0),
    **{
        f"reason {wrong!r}": lambda client, topic, wrong=wrong: _taken(client, topic).nack(  # type: ignore[misc]
            error=wrong
        )
        for wrong in ("\ud800", 5, b"x")
    },
    "no runs": lambda client, _: client.preview_schedule("n", 0),
    "many runs": lambda client, _: client.preview_schedule("n", 101),
    **{
        f"change {wrong}": lambda client, topic, wrong=wrong: client.change(  # type: ignore[misc]
            client.put(topic, "x", delay=60).id, **wrong
        )
        for wrong in (*({"group": group} for group in ("\ud800", "ü" * 101, "")), {"priority": "x"})
    },
}


def told_of(ask: Callable[[Any, str], object], rivals: list[World]) -> None:
    """Raise unless both clients refuse it with the same error."""
    told = []
    for world in rivals:
        with pytest.raises(Invalid) as caught:
            ask(world.client, world.topic)
        told.append((type(caught.value), str(caught.value), caught.value.problems))
    assert told[0] == told[1]


@pytest.mark.parametrize("wrong", PUTS, ids=repr)
def test_a_wrong_put_is_the_same_error_over_both_protocols(
    wrong: dict[str, Any], rivals: list[World]
) -> None:
    told_of(lambda client, topic: client.put(topic, "x", **wrong), rivals)


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_the_same_error_over_both_protocols(mistake: str, rivals: list[World]) -> None:
    told_of(MISTAKES[mistake], rivals)


def test_what_cannot_be_a_key_or_says_no_job_is_refused(world: World) -> None:
    world.client.put(world.topic, "x", delay=60)
    with pytest.raises(KeyInvalid):
        world.client.find(world.topic, "\ud800")
    with pytest.raises(TypeError):
        world.client.cancel(world.topic)
    assert issubclass(NoVirtualClock, Refused)


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


def test_a_paused_topic_is_listed_as_paused(world: World) -> None:
    client = world.client
    client.put(world.topic, "x")
    is_paused = [client.topic(world.topic).paused_until is not None]
    for pause_s in (60, None):
        client.resume(world.topic) if pause_s is None else client.pause(world.topic, pause_s)
        (listed,) = [each for each in client.topics() if each.name == world.topic]
        is_paused.append(listed.paused_until is not None)
    assert is_paused == [False, True, False]


def test_the_daemons_own_topics_are_in_no_list_and_in_no_total(world: World) -> None:
    client = world.client
    client.put_schedule(world.topic, world.topic, "x", every="1h")
    assert client.topic("$schedules").delayed >= 1
    listed = client.topics()
    assert not [each.name for each in listed if each.name.startswith("$")]
    assert not [name for name in client.calendar().topics if name.startswith("$")]
    stats = client.stats()
    counted = stats["jobs"]["delayed"] if "jobs" in stats else stats["current-jobs-delayed"]
    assert counted == sum(each.delayed for each in listed)
    client.remove_schedule(world.topic)
