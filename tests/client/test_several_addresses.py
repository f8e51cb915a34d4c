"""A client of daemons that share a log: the one that serves is found, and nothing is done twice."""

import json
import socket
from collections.abc import Iterator
from typing import Final

import pytest

from delayd.client import Draining, NotReady, NotUnderstood, Unreachable
from delayd.client.attempts import CONNECT_S_MAX
from delayd.client.protocols import way_to
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
)
from tests.servers import free_port

DOES: Final[list[Step]] = [Read(b"}"), Send(ACKED)]
"""What the owner does with an ack."""
LIVES: Final[list[Step]] = [Read(b"\r\n\r\n"), Send(b"HTTP/1.1 200 -\r\nContent-Length: 0\r\n\r\n")]
"""What a daemon does with the first request over a connection, which changes nothing."""
PUTS: Final[dict[str, tuple[list[Step], list[Step]]]] = {
    "http": (LIVES, [Read(b"}"), Send(PUT)]),
    "beanstalk": (
        [Read(b"list-tube-used\r\n"), Send(b"USING default\r\n")],
        [Read(b"\r\nx\r\n"), Send(b"INSERTED 7\r\n")],
    ),
}
"""The same of either protocol, and what the owner does with a put."""


def refusal(word: str, **more: object) -> bytes:
    problem = {"word": word, "title": "-", "detail": f"{word} it is", "status": 503, **more}
    body = json.dumps(problem).encode()
    return b"HTTP/1.1 503 -\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)


def standby(word: str = "NOT_READY", **more: object) -> list[Step]:
    return [*LIVES, Read(b"}"), Send(refusal(word, **more)), Close()]


def urls(*ports: int, scheme: str = "http") -> str:
    return ",".join(f"{scheme}://127.0.0.1:{port}" for port in ports)


@pytest.fixture
def trap() -> Iterator[socket.socket]:
    """A server that is in no list."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setblocking(False)
        yield listening
        with pytest.raises(BlockingIOError):
            listening.accept()


def test_an_address_that_refuses_is_passed_over_and_the_one_that_answers_is_remembered(
    made: Made,
) -> None:
    with free_port() as away, ScriptedPeer([[*LIVES, *DOES, *DOES, Hold()]]) as owner:
        client = made.client(urls(away, owner.port))
        client.ack(TOKEN)
        with ScriptedPeer([[Hold()]], away) as other:
            client.ack(TOKEN)
        assert other.received == [b""]
        assert owner.received[0].count(b"/ack") == 2
    assert made.pauses == []


@pytest.mark.parametrize("word", ["NOT_READY", "STOPPING", "STANDBY"])
def test_what_a_daemon_refuses_that_does_not_serve_is_done_by_the_one_that_does(
    made: Made, trap: socket.socket, word: str
) -> None:
    elsewhere = f"http://127.0.0.1:{trap.getsockname()[1]}"
    script = standby(word, owner=elsewhere, kind="standby")
    with ScriptedPeer([script]) as waits, ScriptedPeer([[*LIVES, *DOES, *DOES, Hold()]]) as owner:
        client = made.client(urls(waits.port, owner.port))
        client.ack(TOKEN)
        client.ack(TOKEN)
        assert made.connections[0].way.outage.era == 0, "none is told"
        assert waits.received[0].count(b"/ack") == 1
        assert owner.received[0].count(b"/ack") == 2
    assert made.pauses == []


def test_no_answer_leads_to_an_address_that_is_not_in_the_list(
    made: Made, trap: socket.socket
) -> None:
    to = b"http://127.0.0.1:%d/v1/jobs/7/ack" % trap.getsockname()[1]
    moved = b"HTTP/1.1 307 -\r\nContent-Length: 0\r\nLocation: %b\r\n\r\n" % to
    with (
        ScriptedPeer([[*LIVES, Read(b"}"), Send(moved), Hold()]]) as hostile,
        free_port() as away,
        pytest.raises(NotUnderstood, match="answer 307"),
    ):
        made.client(urls(hostile.port, away)).ack(TOKEN)


def test_what_a_serving_daemon_refuses_for_now_is_not_asked_of_the_others(made: Made) -> None:
    with ScriptedPeer([standby("DRAINING")]) as owner, ScriptedPeer([[Hold()]]) as other:
        with pytest.raises(Draining):
            made.client(urls(owner.port, other.port)).ack(TOKEN)
        assert other.received == [b""]
    assert made.pauses == []


@pytest.mark.parametrize("scheme", PUTS)
def test_what_the_owner_may_have_done_is_not_asked_of_the_next_one(made: Made, scheme: str) -> None:
    lives, does = PUTS[scheme]
    with (
        ScriptedPeer([[*lives, does[0], Close()]]) as fenced,
        ScriptedPeer([[*lives, *does, Hold()]]) as owner,
    ):
        client = made.client(urls(fenced.port, owner.port, scheme=scheme))
        with lost():
            client.put("mail", b"x")
        assert owner.received == [b""]
        assert client.put("mail", b"x").id == 7  # the next call begins at the next address
    assert made.pauses == []


def test_all_addresses_are_tried_before_each_pause_for_as_long_as_there_is_patience(
    made: Made,
) -> None:
    with free_port() as one, free_port() as two:
        client = made.client(urls(one, two), patience_s=1)
        where = f"http://127.0.0.1:{one}, http://127.0.0.1:{two}"
        told: list[str] = []
        made.connections[0].way.outage.tell = lambda error: told.append(str(error))
        with pytest.raises(Unreachable, match=f"{one}, http://127.0.0.1:{two}: Connection refused"):
            client.ack(TOKEN)
        refused = "Connection refused. Is one of them running?"
        assert told == [f"no delayd answers at {where}: {refused}"]
    assert made.pauses == pytest.approx([0.05, 0.1, 0.2, 0.4, 0.25])


def test_while_none_serves_the_others_are_asked_again_and_then_the_refusal_is_told(
    made: Made,
) -> None:
    scripts = [standby() for _ in range(3)]
    with ScriptedPeer(scripts) as one, ScriptedPeer(scripts) as two:
        client = made.client(urls(one.port, two.port), patience_s=0.15)
        with pytest.raises(NotReady, match="NOT_READY it is"):
            client.ack(TOKEN)
    assert made.pauses == pytest.approx([0.05, 0.1])


def test_an_owner_that_comes_while_it_is_waited_for_is_found(made: Made) -> None:
    with (
        ScriptedPeer([standby(), [*LIVES, *DOES]]) as takes_over,
        free_port() as away,
    ):
        made.client(urls(away, takes_over.port)).ack(TOKEN)
    assert made.pauses == [0.05]


def test_a_batch_on_the_line_passes_over_a_daemon_without_an_open_port(made: Made) -> None:
    script: list[Step] = [
        *(Read(b"use mail\r\n"), Send(b"USING mail\r\n")),
        *(Read(b"x\r\n"), Send(b"INSERTED 7\r\n"), Hold()),
    ]
    with free_port() as away, ScriptedPeer([script]) as owner:
        with made.client(urls(away, owner.port, scheme="beanstalk")).batch() as batch:
            batch.put("mail", b"x")
        assert [each.id for each in batch.results] == [7]


@pytest.mark.parametrize("scheme", PUTS)
def test_a_daemon_that_hangs_is_passed_over_before_anything_was_asked_of_it(
    made: Made, scheme: str
) -> None:
    lives, does = PUTS[scheme]
    with (
        ScriptedPeer([[Hold()]]) as paused,
        ScriptedPeer([[*lives, *does, *does, Hold()]]) as owner,
    ):
        client = made.client(urls(paused.port, owner.port, scheme=scheme), timeout_s=0.6)
        assert client.put("mail", b"x").id == 7
        assert client.put("mail", b"x").id == 7
        assert b"/healthz" not in owner.received[0].partition(b"\r\n\r\n")[2]
    assert made.pauses == []


def test_a_token_or_the_topics_of_a_worker_are_asked_about_as_briefly(made: Made) -> None:
    watches: list[Step] = [Read(b"ignore default\r\n"), Send(b"WATCHING 2\r\nWATCHING 1\r\n")]
    script: list[Step] = [*watches, Read(b"\r\n"), Send(b"RESERVED_BATCH 0\r\n"), Hold()]
    with ScriptedPeer([[Hold()]]) as paused, ScriptedPeer([script]) as owner:
        client = made.client(urls(paused.port, owner.port, scheme="beanstalk"), timeout_s=0.6)
        assert client.reserve_many("mail", limit=1, timeout=0) == []
        assert b"list-tube-used" not in owner.received[0]
    assert made.pauses == []


def test_a_proxy_that_closes_each_connection_after_its_answer_is_not_asked_before(
    made: Made,
) -> None:
    closes = b'HTTP/1.0 200 OK\r\nContent-Length: 8\r\n\r\n{"id":7}'
    lives: list[Step] = [Read(b"\r\n\r\n"), Send(closes), Close()]
    does: list[Step] = [Read(b"}"), Send(closes), Close()]
    with ScriptedPeer([lives, does, does]) as proxy, free_port() as away:
        client = made.client(urls(proxy.port, away))
        client.ack(TOKEN)
        client.ack(TOKEN)
    assert made.pauses == [0.05]


@pytest.mark.parametrize("scheme", PUTS)
def test_after_a_loss_a_put_waits_for_a_daemon_behind_a_proxy_that_accepts_without_one(
    made: Made, scheme: str
) -> None:
    lives, does = PUTS[scheme]
    closes: list[Step] = [Read(b"\r\n"), Close()]
    scripts = [[does[0], Close()], closes, closes, [*lives, *does, Hold()]]
    with ScriptedPeer(scripts) as proxy:
        client = made.client(urls(proxy.port, scheme=scheme))
        with lost():
            client.put("mail", b"x")
        assert client.put("mail", b"x").id == 7
    assert made.pauses == [0.05, 0.1]


def test_machines_that_do_not_refuse_have_together_the_time_of_an_answer() -> None:
    def connect_s(count: int, timeout_s: float) -> float:
        return way_to(urls(*range(1, count + 1)), "", None, timeout_s, 1)[1].connect_s

    assert connect_s(1, 30) == 30
    assert connect_s(2, 30) == CONNECT_S_MAX
    assert connect_s(3, 6) == 2
