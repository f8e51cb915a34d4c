import random

import pytest

from delayd.compat import Compat
from delayd.limits import RESERVE_BATCH_MAX
from delayd.line import replies
from tests.rigs.line import LineRig, bytewise, in_pieces

PUT = b"put 0 0 60 2\r\nhi\r\n"


def waiting(rig: LineRig) -> object:
    return rig.stats.report(rig.now_ms)["current-waiting"]


# --- Waiting -------------------------------------------------------------------------------------


def test_a_waiting_client_is_answered_by_the_next_put() -> None:
    rig = LineRig()
    worker, producer = rig.client(), rig.client()
    assert worker.says(b"reserve\r\nlist-tube-used\r\n") == b""
    assert producer.says(PUT) == b"INSERTED 1\r\n"
    assert worker.replies() == b"RESERVED 1 2\r\nhi\r\nUSING default\r\n"


def test_what_a_waiting_client_says_waits_too() -> None:
    rig = LineRig()
    worker, producer = rig.client(), rig.client()
    assert worker.says(b"reserve\r\n", b"list-tube-used\r\n", PUT[:5], PUT[5:]) == b""
    producer.says(PUT)
    assert worker.replies() == b"RESERVED 1 2\r\nhi\r\nUSING default\r\nINSERTED 2\r\n"


def test_a_wait_ends_at_its_time_and_not_before() -> None:
    rig = LineRig()
    worker = rig.client()
    assert worker.says(b"reserve-with-timeout 1.5\r\n") == b""
    rig.pass_ms(1_499)
    assert worker.replies() == b""
    rig.pass_ms(1)
    assert worker.replies() == b"TIMED_OUT\r\n"


def test_a_waiting_client_is_warned_a_second_before_it_loses_a_job() -> None:
    rig = LineRig()
    worker = rig.client()
    worker.says(b"put 0 0 3 2\r\nhi\r\nreserve\r\n")
    assert worker.says(b"reserve\r\n") == b""
    rig.pass_ms(1_999)
    assert worker.replies() == b""
    rig.pass_ms(1)
    assert worker.replies() == b"DEADLINE_SOON\r\n"


@pytest.mark.parametrize("seconds", [b"-1", b"2147483648", b"4294967295"])
def test_a_negative_wait_of_1_12_has_no_end(seconds: bytes) -> None:
    rig = LineRig(compat=Compat.V1_12)
    worker = rig.client()
    assert worker.says(b"reserve-with-timeout %b\r\n" % seconds) == b""
    rig.pass_ms(10**12)
    assert worker.replies() == b""
    assert rig.client().says(PUT) == b"INSERTED 1\r\n"
    assert worker.replies() == b"RESERVED 1 2\r\nhi\r\n"


def test_a_client_just_handed_a_job_still_waits_until_it_is_told() -> None:
    """Between the put that serves it and the end of the turn its input must not be carried out."""
    rig = LineRig()
    worker, producer = rig.client(), rig.client()
    worker.says(b"reserve\r\n")
    producer.connection.receive(PUT, rig.now_ms)
    assert not worker.connection.is_listening
    assert worker.says(b"list-tube-used\r\n") == b"RESERVED 1 2\r\nhi\r\nUSING default\r\n"


def test_a_client_just_handed_a_job_may_half_close() -> None:
    rig = LineRig()
    worker, producer = rig.client(), rig.client()
    worker.says(b"reserve\r\nlist-tube-used\r\n")
    producer.connection.receive(PUT, rig.now_ms)
    assert worker.half_closes() == b"RESERVED 1 2\r\nhi\r\nUSING default\r\n"


@pytest.mark.parametrize("behind", [b"", PUT, b"reserve\r\nuse a\r\n"])
@pytest.mark.parametrize("wait", [b"reserve\r\n", b"reserve-batch 5 9\r\n"])
def test_a_client_just_handed_a_job_may_close(wait: bytes, behind: bytes) -> None:
    rig = LineRig()
    worker, producer = rig.client(), rig.client()
    worker.says(wait + behind)
    producer.connection.receive(PUT * 2, rig.now_ms)
    worker.closes()
    assert worker.replies() == b""
    assert producer.says(b"reserve-batch 5 0\r\n")[:32] == b"INSERTED 1\r\nINSERTED 2\r\nRESERVED"
    assert waiting(rig) == 0
    rig.state()


def test_statistics_in_the_same_packet_know_that_the_wait_is_over() -> None:
    rig = LineRig()
    rig.client().says(b"reserve\r\n")
    assert b"\ncurrent-waiting: 0\n" in rig.client().says(PUT + b"stats\r\n")


def test_who_waits_is_counted_once() -> None:
    rig = LineRig()
    workers = [rig.client() for _ in range(4)]
    for worker in workers:
        worker.says(b"watch a\r\nreserve\r\n")
    assert waiting(rig) == 4
    rig.client().says(PUT)
    assert waiting(rig) == 3
    workers[1].closes()
    workers[2].half_closes()
    assert waiting(rig) == 1


# --- Half a connection ---------------------------------------------------------------------------


def test_half_closing_ends_the_wait_and_what_was_said_is_answered() -> None:
    client = LineRig().client()
    said = b"reserve\r\nreserve\r\n" + PUT + b"reserve\r\nreserve-batch 3 9\r\nlist-tube-used\r\n"
    assert client.says(said, b"reserve-with-timeout 9\r\n" * 30, b"list-tu") == b""
    assert client.half_closes() == (
        b"TIMED_OUT\r\nTIMED_OUT\r\nINSERTED 1\r\nRESERVED 1 2\r\nhi\r\nTIMED_OUT\r\n"
        b"USING default\r\n" + b"TIMED_OUT\r\n" * 30
    )


def test_after_half_closing_nothing_waits() -> None:
    rig = LineRig()
    client = rig.client()
    assert client.half_closes() == b""
    waits = b"reserve\r\nreserve-with-timeout 9\r\nreserve-batch 2 9\r\n"
    assert client.says(waits) == b"TIMED_OUT\r\n" * 3
    assert client.says(*bytewise(waits)) == b"TIMED_OUT\r\n" * 3
    assert client.says(PUT + b"reserve\r\n") == b"INSERTED 1\r\nRESERVED 1 2\r\nhi\r\n"
    assert waiting(rig) == 0


def test_half_a_body_is_dropped_with_its_client() -> None:
    rig = LineRig()
    client = rig.client()
    client.says(PUT[:-3])
    assert client.half_closes() == b""
    client.closes()
    assert rig.state()["jobs"] == []


# --- Long replies --------------------------------------------------------------------------------


def test_many_peeks_in_one_packet_gather_no_more_than_the_limit_and_one_reply() -> None:
    rig = LineRig()
    client = rig.client(out_bytes_max=4_096)
    body = b"x" * 3_000
    client.says(b"put 0 0 60 3000\r\n%b\r\n" % body)
    found = b"FOUND 1 3000\r\n%b\r\n" % body
    client.gathered_bytes_max = 0
    assert (
        client.says(b"peek 1\r\n" * 50 + b"list-tube-used\r\n") == found * 50 + b"USING default\r\n"
    )
    assert 4_096 < client.gathered_bytes_max <= 4_096 + len(found)


def test_a_choked_client_is_not_listened_to_until_its_replies_have_gone() -> None:
    rig = LineRig()
    client = rig.client(out_bytes_max=100)
    client.says(b"put 0 0 60 200\r\n%b\r\n" % (b"x" * 200))
    connection = client.connection
    connection.receive(b"peek 1\r\npeek 2\r\n", rig.now_ms)
    assert connection.is_choked
    assert not connection.is_listening
    assert connection.take_out().startswith(b"FOUND 1 200\r\n")
    connection.resume(rig.now_ms)
    assert connection.take_out() == b""
    connection.is_choked = False
    connection.resume(rig.now_ms)
    assert connection.take_out() == b"NOT_FOUND\r\n"


@pytest.mark.parametrize(
    "words", [b"reserve\r\n", b"reserve-job %d\r\n", b"reserve-batch 40 0\r\n"]
)
def test_reserving_gathers_no_more_than_the_limit_and_one_reply(words: bytes) -> None:
    rig = LineRig()
    client = rig.client(out_bytes_max=4_096)
    job = b"put 0 0 60 1000\r\n%b\r\n" % (b"x" * 1_000)
    client.says(b"peek 1\r\n" * 3 + job * 40)
    client.gathered_bytes_max = 0
    if b"%d" in words:
        said = b"".join(words % number for number in range(1, 41))
    else:
        said = b"peek 1\r\npeek 2\r\n" + words * 40
    reply = client.says(said)
    assert reply.count(b"RESERVED ") == 40
    assert reply.count(b"\r\n" + b"x" * 1_000) == reply.count(b" 1000\r\n")
    heads = 40 * len(b"RESERVED 10 1000\r\n")
    assert 4_096 < client.gathered_bytes_max <= 4_096 + 1_100 + heads


def test_a_batch_takes_so_many_at_most() -> None:
    rig = LineRig()
    client = rig.client()
    for _ in range(RESERVE_BATCH_MAX // 100 + 1):
        client.says(b"put 0 0 60 0\r\n\r\n" * 100)
    reply = client.says(b"reserve-batch 4294967295 0\r\n")
    assert reply.startswith(b"RESERVED_BATCH %d\r\n" % RESERVE_BATCH_MAX)
    assert client.says(b"reserve-batch 1001 0\r\n").startswith(b"RESERVED_BATCH 100\r\n")


def test_a_batch_that_waited_takes_all_that_is_there_by_then() -> None:
    rig = LineRig()
    worker, producer = rig.client(), rig.client()
    assert worker.says(b"reserve-batch 3 9\r\n") == b""
    producer.says(PUT * 5)
    job = b"RESERVED %d 2\r\nhi\r\n"
    assert worker.replies() == b"RESERVED_BATCH 3\r\n" + job % 1 + job % 2 + job % 3
    assert worker.says(b"reserve\r\n") == job % 4


def test_a_batch_that_waited_in_vain_leaves_no_trace() -> None:
    rig = LineRig()
    worker = rig.client()
    assert worker.says(b"reserve-batch 3 2\r\n") == b""
    rig.pass_ms(2_000)
    assert worker.replies() == b"TIMED_OUT\r\n"
    assert worker.says(PUT * 2 + b"reserve\r\n").endswith(b"RESERVED 1 2\r\nhi\r\n")


# --- Draining, tubes, the unauthenticated --------------------------------------------------------


def test_draining_refuses_puts_and_nothing_else() -> None:
    rig = LineRig()
    client = rig.client()
    client.says(PUT * 2)
    rig.engine.draining = True
    said = PUT + b"put-in-tube a 0 0 60 2\r\nhi\r\n" + PUT[:-1] + b"x" + b"reserve\r\ndelete 1\r\n"
    assert client.says(said) == (
        b"DRAINING\r\nDRAINING\r\nEXPECTED_CRLF\r\nRESERVED 1 2\r\nhi\r\nDELETED\r\n"
    )


@pytest.mark.parametrize("pieces", [lambda said: [said], bytewise])
def test_a_refused_put_into_a_tube_leaves_no_tube(pieces: object) -> None:
    assert callable(pieces)
    rig = LineRig()
    client = rig.client()
    rig.engine.draining = True
    assert client.says(*pieces(b"put-in-tube a 0 0 60 2\r\nhi\r\n")) == b"DRAINING\r\n"
    assert client.says(b"list-tubes\r\n") == b"OK 14\r\n---\n- default\n\r\n"
    rig.state()


@pytest.mark.parametrize("line", [b"GET / HTTP/1.1", b"POST /a", b"PUT /x", b"Host: here"])
def test_web_requests_are_cut_off(line: bytes) -> None:
    rig = LineRig()
    client = rig.client()
    said = b"list-tube-used\r\n" + line + b"\r\nHost: a\r\n\r\n" + PUT
    assert client.says(said, PUT) == b"USING default\r\n" + replies.NOT_HTTP
    assert client.connection.is_closing
    assert not client.connection.is_listening
    assert rig.engine.store.last_id == 0


def test_a_web_request_too_long_for_a_line_ends_with_its_host() -> None:
    rig = LineRig()
    client = rig.client()
    client.says(b"POST /" + b"a" * 500 + b" HTTP/1.1\r\nHost: a\r\n\r\n" + PUT)
    assert client.connection.is_closing
    assert rig.engine.store.last_id == 0


def test_after_quit_nothing_is_carried_out() -> None:
    rig = LineRig()
    client = rig.client()
    assert client.says(PUT + b"quit\r\n" + PUT, PUT) == b"INSERTED 1\r\n"
    assert client.connection.is_closing
    assert rig.engine.store.last_id == 1


# --- Any pieces ----------------------------------------------------------------------------------

LINES = (
    *(PUT, PUT, PUT * 3, b"put 1 0 1 0\r\n\r\n", b"put 0 9 60 2\r\nhixy", b"put 0 0 60 2 \r\n"),
    *(b"put 0 0 60 30\r\n" + b"y" * 32, b"put 0 0 60 4\r\n\r\n\r\n\r\n", b"put\r\n", b"\r\n"),
    *(b"reserve\r\n", b"reserve\r\n" * 3, b"reserve-with-timeout 0\r\n", b"reserve-batch 3 0\r\n"),
    *(b"delete %d\r\n", b"delete %d\r\ndelete 1\r\n", b"release %d 0 0\r\n", b"bury %d 3\r\n"),
    *(b"kick 2\r\n", b"kick-job %d\r\n", b"touch %d\r\n", b"peek %d\r\n", b"peek-ready\r\n"),
    *(b"peek-delayed\r\n", b"peek-buried\r\n", b"stats-job %d\r\n", b"stats-tube default\r\n"),
    *(b"stats\r\n", b"list-tubes\r\n", b"list-tubes-watched\r\n", b"list-tube-used\r\n"),
    *(b"use a\r\n", b"use default\r\n", b"watch a\r\n", b"ignore a\r\n", b"ignore default\r\n"),
    *(
        b"pause-tube a 1\r\n",
        b"pause-tube a 0\r\n",
        b"reschedule %d 0.5\r\n",
        b"reserve-job %d\r\n",
    ),
    *(b"put-in-tube b 0 0 60 1\r\nz\r\n", b"z" * 230 + b"\r\n", b"z" * 223 + b"\r\n", b"a\0b\r\n"),
    b"delete -1\r\n",
)


def test_random_streams_have_the_same_replies_and_effects_in_any_pieces(
    rng: random.Random,
) -> None:
    for _ in range(120):
        lines = rng.choices(LINES, k=30)
        stream = b"".join(line.replace(b"%d", b"%d" % rng.randrange(1, 20)) for line in lines)
        outcomes = []
        for pieces in ([stream], bytewise(stream), in_pieces(stream, rng)):
            rig = LineRig(body_bytes_max=20)
            client = rig.client(out_bytes_max=200)
            replies = client.says(*pieces) + client.half_closes()
            outcomes.append((replies, rig.state(), rig.log))
        assert outcomes[0] == outcomes[1] == outcomes[2], stream
