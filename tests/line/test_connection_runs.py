"""Runs of equal commands have the effects and replies that the commands have one by one.

So has a command that comes alone, which takes a straight way of its own.
"""

import random

import pytest

from delayd.core.times import PlayedMs
from delayd.line.grammar import parse_put
from tests.rigs.line import Client, LineRig, bytewise

TUBES = (b"default", b"a", b"b")
CLIENTS = 4


def both(*said: bytes) -> bytes:
    """What is answered to the same pieces in runs and one by one, with the same effects."""
    rigs = LineRig(), LineRig()
    replies = []
    for rig, one_by_one in zip(rigs, (False, True), strict=True):
        replies.append(rig.client(one_by_one=one_by_one).says(*said))
    assert replies[0] == replies[1]
    assert rigs[0].state() == rigs[1].state()
    assert rigs[0].log == rigs[1].log
    return replies[0]


PUT = b"put 0 9 60 2\r\nhi\r\n"


@pytest.mark.parametrize("cut", range(1, len(PUT)))
def test_an_incomplete_last_put_is_finished_by_what_follows(cut: int) -> None:
    replies = b"INSERTED 1\r\nINSERTED 2\r\nINSERTED 3\r\n"
    assert both(PUT * 2 + PUT[:cut], PUT[cut:]) == replies
    assert both(PUT * 2 + PUT[:cut], *bytewise(PUT[cut:])) == replies


def test_a_run_of_reserves_takes_what_is_ready_and_then_waits() -> None:
    for one_by_one in (False, True):
        rig = LineRig()
        producer, worker = rig.client(), rig.client(one_by_one=one_by_one)
        producer.says(b"put 0 0 60 1\r\na\r\n" * 2)
        assert worker.says(b"reserve\r\n" * 4 + b"list-tube-used\r\n") == (
            b"RESERVED 1 1\r\na\r\nRESERVED 2 1\r\na\r\n"
        )
        assert rig.stats.counts["reserve"] == 3
        producer.says(b"put 0 0 60 1\r\nb\r\n" * 2)
        assert worker.replies() == b"RESERVED 3 1\r\nb\r\nRESERVED 4 1\r\nb\r\nUSING default\r\n"
        assert rig.stats.counts["reserve"] == 4


def random_words(rng: random.Random, jobs: int) -> bytes:
    """A few commands of one kind, or one of another."""
    times = rng.randrange(1, 7)
    job_id = rng.randrange(1, jobs + 3)
    tube = rng.choice(TUBES)
    ids = [rng.randrange(1, jobs + 3) for _ in range(times)]
    head = b"put %d %d %d 2\r\n" % (rng.randrange(3), rng.choice((0, 0, 1)), rng.choice((1, 5)))
    tails = (b"hi\r\n", b"hi\r\n", b"hi\r\n", b"\r\n\r\n", b"hixy")
    return rng.choice(
        (
            b"".join(head + rng.choice(tails) for _ in range(times)),
            b"".join(head + rng.choice(tails[:3]) for _ in range(times)),
            b"".join(b"delete %d\r\n" % each for each in ids),
            b"reserve\r\n" * times,
            b"reserve-with-timeout 0\r\n" * times,
            b"reserve-with-timeout 1\r\n",
            b"reserve-batch %d 0\r\n" % times,
            b"release %d %d %d\r\n" % (job_id, rng.randrange(3), rng.randrange(2)),
            b"bury %d 0\r\nkick 1\r\n" % job_id,
            b"touch %d\r\nkick-job %d\r\n" % (job_id, job_id),
            b"watch %b\r\n" % tube,
            b"use %b\r\n" % tube,
            b"ignore %b\r\n" % tube,
            b"pause-tube %b %d\r\n" % (tube, rng.randrange(2)),
            b"peek %d\r\nstats-tube default\r\n" % job_id,
        )
    )


def random_walk(rng: random.Random, *, one_by_one: bool) -> tuple[object, ...]:
    rig = LineRig()
    clients: list[Client] = []
    heard: list[bytes] = []
    for _ in range(60):
        while len(clients) < CLIENTS:
            clients.append(rig.client(one_by_one=one_by_one))
        client = clients[rng.randrange(CLIENTS)]
        jobs = rig.engine.store.last_id
        chance = rng.random()
        if chance < 0.03:
            heard.append(client.half_closes())
            client.closes()
            clients.remove(client)
        elif chance < 0.15:
            rig.pass_ms(rng.choice((1, 500, 1_000, 4_000)))
        else:
            rig.engine.draining = rng.random() < 0.05
            words = (random_words(rng, jobs) for _ in range(rng.randrange(1, 4)))
            heard.append(client.says(b"".join(words)))
        heard += [each.replies() for each in clients]
    return heard, rig.state()


@pytest.mark.walk(30, 150)
def test_random_walks_end_where_they_end_one_by_one(number: int, seed: int) -> None:
    seeds = [random.Random(f"{seed} {number}") for _ in range(2)]
    walk = random_walk(seeds[0], one_by_one=False)
    assert walk == random_walk(seeds[1], one_by_one=True)


# --- One command alone ---------------------------------------------------------------------------


def random_command(rng: random.Random, jobs: int) -> bytes:
    """One command, mostly one of those that take the straight way, or hardly not."""
    tail = rng.choice((b"\r\n", b"\r\n", b"\r\n", b"\r\n", b" \r\n", b"\n", b"\r\r\n", b"\0\r\n"))
    job_id = rng.choice((rng.randrange(jobs + 3), max(1, jobs - rng.randrange(3)), 10**19))
    delay = rng.choice((b"0", b"0", b"1", b"0.5", b"05"))
    words = rng.choice((b"", b"", b"", b" key=a", b" junk", b" " * 210, b"\r"))
    verb = rng.choice((b"put", b"put", b"put-in-tube a", b"put-in-tube b", b"put-in-tube -"))
    head = b"%b %d %b %d 2%b" % (verb, rng.randrange(3), delay, rng.choice((1, 5)), words)
    details = rng.choice((b"", b" with=ttr,key", b" with=tube,ttr,attempt", b" with=ttr,ttr"))
    batch = b"reserve-batch %d %d%b" % (rng.randrange(4), rng.randrange(2), details)
    body = rng.choice((b"hi\r\n", b"hi\r\n", b"hi\r\n", b"\r\n\r\n", b"hixy", b"h\r\n\r"))
    return rng.choice(
        (
            head + tail + body,
            b"put 0 0 9 2\r\n" + body,
            batch + tail,
            batch + b"\r\n",
            b"put 0 0 9 %d\r\n%b\r\n" % (size := rng.choice((0, 40, 41)), b"x" * size),
            b"reserve" + tail,
            b"reserve\r\n",
            b"delete %d" % job_id + tail,
            b"delete %d\r\n" % job_id,
            b"delete 0%d\r\n" % job_id,
            b"reserve-with-timeout %d\r\n" % rng.randrange(2),
            b"release %d %d %d\r\n" % (job_id, rng.randrange(3), rng.randrange(2)),
            b"bury %d 0\r\n" % job_id,
            b"watch %b\r\n" % rng.choice(TUBES),
            b"use %b\r\n" % rng.choice(TUBES),
            b"pause-tube %b %d\r\n" % (rng.choice(TUBES), rng.randrange(2)),
        )
    )


def walk_alone(rng: random.Random, *, one_by_one: bool) -> tuple[object, ...]:
    """Clients that send one command at a time; what they heard, the state, and the log."""
    rig = LineRig(body_bytes_max=40)
    clients = [rig.client(one_by_one=one_by_one) for _ in range(CLIENTS)]
    heard: list[bytes] = []
    for _ in range(120):
        if rng.random() < 0.15:
            rig.pass_ms(rng.choice((1, 500, 1_000, 4_000)))
        rig.engine.draining = rng.random() < 0.02
        client = clients[rng.randrange(CLIENTS)]
        heard.append(client.says(random_command(rng, rig.engine.store.last_id)))
        heard += [each.replies() for each in clients]
    return heard, rig.state(), rig.log, rig.refusals.by_reason


@pytest.mark.walk(25, 100)
def test_a_command_alone_does_what_it_does_byte_by_byte(number: int, seed: int) -> None:
    seeds = [random.Random(f"{seed} {number}") for _ in range(2)]
    walk = walk_alone(seeds[0], one_by_one=False)
    assert walk == walk_alone(seeds[1], one_by_one=True)


def test_a_plain_command_alone_takes_the_straight_way_and_another_does_not() -> None:
    rig = LineRig()
    connection, now_ms = rig.client().connection, rig.now_ms
    named = b"put-in-tube default 0 0 60 2\r\nhi\r\n"
    batch = b"reserve-batch 9 0 with=ttr,key\r\n"
    for plain in (b"put 0 0 60 2\r\nhi\r\n", b"reserve\r\n", b"delete 1\r\n", named, batch):
        assert connection._lone(plain, now_ms)
    replies = b"INSERTED 1\r\nRESERVED 1 2\r\nhi\r\nDELETED\r\nINSERTED 2\r\n"
    assert connection.take_out() == replies + b"RESERVED_BATCH 1\r\nRESERVED 2 2 60 key=\r\nhi\r\n"
    begun = (b"delete ", b"delete 1", b"delete \n", b"put ", b"put 0", b"put \r\n", batch[:-2])
    elsewhere = (named.replace(b"default", b"new"), named.replace(b"0 2", b"0 2 key=a"), batch * 2)
    nothing = (PUT * 2, PUT[:-1], b"reserve\r\n", b"delete 1\r\n", b"reserve\r\n" * 2, batch)
    for other in (*nothing, *begun, *elsewhere):
        assert not connection._lone(other, now_ms)
    assert connection.take_out() == b""


def test_a_line_alone_that_is_too_long_for_beanstalkd_is_so_for_us() -> None:
    rig = LineRig()
    connection, head = rig.client().connection, b"0 0 60 2\r\nhi\r\n"
    longest = 222 - len(b"put0 0 60 2")
    assert connection._lone(b"put" + b" " * longest + head, rig.now_ms)
    assert not connection._lone(b"put" + b" " * (longest + 1) + head, rig.now_ms)


def test_a_job_alone_whose_ttr_is_over_and_whose_slice_has_not_come_is_not_deleted() -> None:
    client = (rig := LineRig()).client()
    client.says(b"put 0 0 1 2\r\nhi\r\n", b"reserve\r\n")
    rig.engine.store.time_ms = PlayedMs(rig.now_ms + 1_000)
    assert not client.connection._lone(b"delete 1\r\n", rig.now_ms)


def test_a_delete_alone_may_be_of_more_digits_than_a_number_has() -> None:
    client = LineRig().client()
    client.says(PUT.replace(b"9", b"0"), b"reserve\r\n")
    digits = b"9" * 5_000
    assert client.says(b"delete %b\r\n" % digits).startswith(b"BAD_FORMAT\r\n")


def test_a_put_with_words_that_comes_alone_evicts_no_line_from_the_cache() -> None:
    client = LineRig().client()
    before = parse_put.cache_info().misses
    client.says(b"put 0 0 60 2 on=keep key=once\r\nhi\r\n")
    client.says(b"put 0 0 60 2 on=keep key=twice\r\nhi\r\n")
    client.says(b"put-in-tube a 0 0 60 2 key=thrice\r\nhi\r\n")
    assert parse_put.cache_info().misses <= before + 1
