"""What happens when a connection ends at any byte: nothing is acknowledged twice."""

from collections.abc import Callable
from typing import Any, Final

import pytest

from delayd.client import (
    ConnectionLost,
    Forbidden,
    NotFound,
    NotReserved,
    NotUnderstood,
    PutResult,
    Unauthorized,
    Unreachable,
)
from tests.client.made import Made
from tests.client.peer import (
    ACKED,
    PUT,
    TOKEN,
    Close,
    Hold,
    Read,
    ScriptedPeer,
    Send,
    Step,
    lost,
    put_in,
)
from tests.servers import free_port

REFUSED: Final = (
    b"HTTP/1.1 404 Not Found\r\nContent-Length: 49\r\n\r\n"
    b'{"word":"NOT_FOUND","detail":"-","title":"x y z"}'
)
ALIVE: Final = b'HTTP/1.1 200 OK\r\nContent-Length: 18\r\n\r\n{"status":"ready"}'


def _ok(text: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(text), text)


@pytest.mark.parametrize("cut", range(0, len(ACKED), 3))
def test_an_ack_whose_answer_is_cut_is_not_sent_again(made: Made, cut: int) -> None:
    scripts: list[list[Step]] = [
        [Read(b"}"), Send(ACKED[:cut]), Close()],
        [Read(b"}"), Send(ACKED), Close()],
    ]
    with ScriptedPeer(scripts) as peer:
        with lost():
            made.client(peer.http).ack(TOKEN)
        assert peer.received[0].count(b"POST /v1/jobs/7/ack") == 1
        assert peer.received[1] == b""
    assert made.pauses == []


@pytest.mark.parametrize("cut", range(len(b"DELETED\r\n")))
def test_an_ack_on_the_line_whose_reply_is_cut_is_not_sent_again(made: Made, cut: int) -> None:
    reserved = b"RESERVED_BATCH 1\r\nRESERVED 7 1 60 1 key=\r\nx\r\n"
    script: list[Step] = [
        *(Read(b"ignore default\r\n"), Send(b"WATCHING 2\r\nWATCHING 1\r\n")),
        *(Read(b"\r\n"), Send(reserved), Read(b"delete 7\r\n"), Send(b"DELETED\r\n"[:cut])),
        Close(),
    ]
    with ScriptedPeer([script, [Hold()]]) as peer:
        client = made.client(peer.line)
        job = client.reserve("mail", timeout=0)
        with lost():
            job.ack()
        with pytest.raises(NotReserved, match="its reservation with it"):
            job.ack()
        assert peer.received[0].count(b"delete") == 1
        assert peer.received[1] == b""


@pytest.mark.parametrize(
    ("call", "answer"),
    [
        (lambda client: client.health(), ALIVE),
        (lambda client: client.put("mail", 1, key="k", on_conflict="replace"), PUT),
        (lambda client: client.put("mail", 1, idempotency_key="4711"), PUT),
    ],
)
def test_what_can_be_repeated_is_asked_again(
    made: Made, call: Callable[[Any], Any], answer: bytes
) -> None:
    end = b"\r\n\r\n" if answer is ALIVE else b"}"
    lives: list[Step] = [Read(b"\r\n\r\n"), Send(ALIVE)]
    scripts: list[list[Step]] = [
        [Read(end), Send(answer[:-1]), Close()],
        [*lives, Read(end), Close()],
        [*lives, Read(end), Send(answer), Close()],
    ]
    with ScriptedPeer(scripts) as peer:
        call(made.client(peer.http))
        asked = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n\r\n" % peer.port
        assert peer.received == [peer.received[0], *[asked + peer.received[0]] * 2]
    assert made.pauses == [0.05, 0.1]


@pytest.mark.parametrize(
    "call",
    [
        lambda client: client.put("mail", 1),
        lambda client: client.put("mail", 1, key="k"),
        lambda client: client.nack(TOKEN),
        lambda client: client.cancel(7),
        lambda client: client.ack_many([TOKEN]),
        lambda client: client.put_many("mail", [{"body": 1}]),
    ],
)
def test_what_cannot_be_repeated_is_asked_once(made: Made, call: Callable[[Any], Any]) -> None:
    end: list[Step] = [Read((b"}", b"\r\n\r\n")), Close()]
    with ScriptedPeer([end, end]) as peer:
        with pytest.raises(ConnectionLost):
            call(made.client(peer.http))
        assert peer.received[1] == b""


def test_a_connection_that_was_closed_while_idle_is_not_used(made: Made) -> None:
    scripts: list[list[Step]] = [
        [Read(b"\r\n\r\n"), Send(ALIVE), Close()],
        [Read(b"}"), Send(ACKED), Close()],
    ]
    with ScriptedPeer(scripts) as peer:
        client = made.client(peer.http)
        assert client.health().is_ready
        peer.ended[0].wait()
        client.ack(TOKEN)
        assert b"/ack" not in peer.received[0]
        assert peer.received[1].count(b"/ack") == 1


def test_a_wrong_address_is_told_at_once(made: Made) -> None:
    with free_port() as port, pytest.raises(Unreachable) as caught:
        made.client(f"http://127.0.0.1:{port}").health()
    assert f"http://127.0.0.1:{port}" in str(caught.value)
    assert "delayd serve" in str(caught.value)
    assert made.pauses == []


def test_a_daemon_that_was_there_is_waited_for_with_growing_pauses(made: Made) -> None:
    with free_port() as port:
        with ScriptedPeer([[Read(b"\r\n\r\n"), Send(ALIVE), Close()]], port) as peer:
            client = made.client(peer.http, patience_s=1)
            assert client.health().is_ready
            peer.ended[0].wait()
        with pytest.raises(Unreachable):
            client.ack(TOKEN)  # it was never sent, so it may be tried again
    assert made.pauses == pytest.approx([0.05, 0.1, 0.2, 0.4, 0.25])


def test_a_daemon_that_does_not_answer_in_time_is_given_up(made: Made) -> None:
    with ScriptedPeer([[Read(b"\r\n\r\n"), Send(ALIVE), Read(b"}"), Hold()]]) as peer:
        client = made.client(peer.http)
        assert client.health().is_ready
        # The time to connect is limited too, but that is another error.
        (link,) = made.connections[0]._pool._idle
        link.way.timeout_s = 0.05
        with lost("no answer in time"):
            client.ack(TOKEN)


@pytest.mark.parametrize(
    ("answers", "error", "said"),
    [
        ([b"OK\r\n", b"FORBIDDEN\r\n"], Forbidden, "lacks the scope delete"),
        ([b"UNAUTHORIZED\r\n"], Unauthorized, "token"),
    ],
)
def test_a_token_is_shown_first_and_nothing_is_sent_with_a_wrong_one(
    made: Made, answers: list[bytes], error: type[Exception], said: str
) -> None:
    script = [step for answer in answers for step in (Read(b"\r\n"), Send(answer))]
    with ScriptedPeer([[*script, Hold()]]) as peer:
        with pytest.raises(error, match=said):
            made.client(peer.line, token="dlyd_x").cancel(7)  # noqa: S106 - of nobody
        sent = b"auth dlyd_x\r\n", b"delete 7\r\n"
        assert peer.received == [b"".join(sent[: len(answers)])]


@pytest.mark.parametrize(
    "call",
    [
        lambda client: client.put_many("mail", [{"body": 1}]),
        lambda client: put_in(client.batch(), 1),
    ],
)
def test_where_a_topic_may_not_be_used_nothing_is_put_elsewhere(
    made: Made, call: Callable[[Any], Any]
) -> None:
    with ScriptedPeer([[Read(b"use mail\r\n"), Send(b"FORBIDDEN\r\n"), Hold()]]) as peer:
        with pytest.raises(Forbidden, match="lacks the scope put"):
            call(made.client(peer.line))
        assert b"put " not in peer.received[0]


def test_a_batch_whose_connection_is_lost_keeps_what_was_answered(made: Made) -> None:
    script: list[Step] = [
        *(Read(b"use mail\r\n"), Send(b"USING mail\r\n"), Read(b"2\r\n")),
        *(Send(b"INSERTED 1\r\nINSERTED 2\r\nINS"), Close()),
    ]
    with ScriptedPeer([script, [Hold()]]) as peer:
        batch = made.client(peer.line).batch()
        with pytest.raises(ConnectionLost):
            put_in(batch, 3)
        assert [result.id for result in batch.results] == [1, 2]
        assert peer.received[1] == b""


@pytest.mark.parametrize(
    ("call", "each", "result"),
    [
        (
            lambda client: client.put_many("mail", [{"body": 1}] * 1_001),
            b'{"id":7,"outcome":"created"}',
            PutResult(7, "created"),
        ),
        (lambda client: client.ack_many([TOKEN] * 1_001), b"{}", None),
    ],
)
@pytest.mark.parametrize("then", [b"", b'{"results":5}'])
def test_the_error_of_a_later_request_of_many_has_the_results_of_those_before(
    made: Made, call: Callable[[Any], Any], each: bytes, result: PutResult | None, then: bytes
) -> None:
    first = _ok(b'{"results":[%b]}' % b",".join([each] * 1_000))
    end: list[Step] = [Send(_ok(then)), Hold()] if then else [Close()]
    with ScriptedPeer([[Read(b"]}"), Send(first), Read(b"]}"), *end]]) as peer:
        with pytest.raises(NotUnderstood if then else ConnectionLost) as caught:
            call(made.client(peer.http))
        made.close()
    assert caught.value.results == [result] * 1_000


@pytest.mark.parametrize("status", [502, 503, 504])
def test_what_a_proxy_has_no_answer_to_may_have_been_done(made: Made, status: int) -> None:
    page = b"HTTP/1.1 %d -\r\nContent-Type: text/html\r\nContent-Length: 6\r\n\r\n<html>" % status
    with ScriptedPeer([[Read(b"}"), Send(page), Hold()]]) as proxy:
        with lost(f"a proxy answered {status}"):
            made.client(proxy.http).ack(TOKEN)
        assert proxy.received[0].count(b"/ack") == 1


def test_a_reply_that_nobody_asked_for_is_not_taken_for_the_next_one(made: Made) -> None:
    scripts: list[list[Step]] = [
        [Read(b"\r\n\r\n"), Send(ALIVE + ACKED), Read(b"never")],
        [Read(b"}"), Send(REFUSED), Close()],
    ]
    with ScriptedPeer(scripts) as peer:
        client = made.client(peer.http)
        assert client.health().is_ready
        with pytest.raises(NotFound):
            client.ack(TOKEN)
