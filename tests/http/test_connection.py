"""What a client may do to a connection, in memory and on a fake clock."""

import asyncio
import gzip
import inspect
import re
import socket
from collections.abc import Awaitable, Callable

import pytest
from aiohttp import http_parser

from delayd import limits
from delayd.http import connection as connection_module
from delayd.http.connection import Bounds, HttpConnection, NoCParser, require_c_parser
from tests.rigs.http import HttpRig, request
from tests.rigs.http_connections import (
    Client,
    ConnectionRig,
    get,
    head_of_post,
    post,
    scenario,
    settle,
    with_guard,
)

HEADER_MS = limits.HTTP_HEADER_MS_DEFAULT
IDLE_MS = limits.HTTP_IDLE_MS_DEFAULT
BODY_MS = limits.HTTP_BODY_MS_DEFAULT


# --- Heads -------------------------------------------------------------------------------------


@scenario()
async def test_a_client_that_says_nothing_is_closed_without_a_word(rig: ConnectionRig) -> None:
    client = rig.connect()
    await rig.pass_ms(HEADER_MS - 1)
    assert not client.is_closed()
    await rig.pass_ms(1_001)
    assert client.is_closed()
    assert not client.received
    assert rig.noted["SLOW_HEADER"] == 1


@scenario()
async def test_a_head_that_drips_is_answered_408_ten_seconds_after_the_connection(
    rig: ConnectionRig,
) -> None:
    client = rig.connect()
    for byte in get("/quick")[:9]:
        await rig.pass_ms(1_000)
        await client.send(bytes((byte,)))
    assert not client.received
    await rig.pass_ms(1_999)
    assert client.problem()["word"] == "REQUEST_TIMEOUT"
    assert client.is_closed()
    assert not client.was_aborted, "the reply is sent before the connection closes"
    assert rig.noted["SLOW_HEADER"] == 1
    assert not rig.done


@scenario()
async def test_the_next_head_has_its_time_from_its_first_byte(rig: ConnectionRig) -> None:
    client = rig.connect()
    await client.send(get("/quick"))
    await rig.pass_ms(IDLE_MS - 2_000)
    await client.send(b"GET /")
    await rig.pass_ms(HEADER_MS - 1, steps=7)
    assert not client.is_closed()
    await rig.pass_ms(1_001)
    assert client.statuses() == [200, 408]


@scenario()
async def test_a_head_that_came_during_a_request_has_its_time_from_the_answer(
    rig: ConnectionRig,
) -> None:
    client = rig.connect()
    await client.send(get("/slow"))
    await client.send(b"GET /")
    await rig.pass_ms(10 * HEADER_MS + 5_000, steps=105)
    rig.go.set()
    await settle()
    await rig.pass_ms(HEADER_MS - 1, steps=10)
    assert client.statuses() == [200]
    await rig.pass_ms(1_001)
    assert client.statuses() == [200, 408]


@scenario()
async def test_deadlines_that_come_sooner_than_the_idle_one_are_kept_as_well(
    rig: ConnectionRig,
) -> None:
    clients = [rig.connect() for _ in range(3)]
    for client in clients:
        await client.send(get("/quick"))
    await rig.pass_ms(2 * HEADER_MS, steps=2)
    clients[2].takes = False
    await clients[0].send(b"GET")
    await clients[1].send(head_of_post("/body", 10))
    await clients[2].send(get("/long?bytes=100000"))
    await rig.pass_ms(HEADER_MS + 1_000)
    assert [client.statuses() for client in clients] == [[200, 408], [200, 408], [200, 200]]
    assert clients[2].was_aborted


@scenario(Bounds(header_ms=3_000))
async def test_the_deadlines_can_be_chosen(rig: ConnectionRig) -> None:
    client = rig.connect()
    await rig.pass_ms(4_000)
    assert client.is_closed()


# --- Idle ----------------------------------------------------------------------------------------


@scenario()
async def test_an_idle_client_is_closed_75_seconds_after_its_last_answer(
    rig: ConnectionRig,
) -> None:
    client = rig.connect()
    await client.send(get("/quick"))
    await rig.pass_ms(IDLE_MS - 1, steps=10)
    await client.send(get("/quick"))
    await rig.pass_ms(IDLE_MS - 1, steps=10)
    assert not client.is_closed()
    await rig.pass_ms(1_001)
    assert client.is_closed()
    assert client.statuses() == [200, 200]
    assert rig.noted["SLOW_IDLE"] == 1


@scenario()
async def test_a_request_may_be_carried_out_for_as_long_as_it_takes(rig: ConnectionRig) -> None:
    client = rig.connect()
    await client.send(get("/slow"))
    await rig.pass_ms(20 * IDLE_MS, steps=100)
    assert not client.is_closed()
    rig.go.set()
    await settle()
    assert client.status() == 200
    await rig.pass_ms(IDLE_MS - 1)
    assert not client.is_closed(), "its idle time begins with the answer"


# --- Bodies --------------------------------------------------------------------------------------


@scenario()
async def test_a_body_that_drips_is_answered_408_after_ten_seconds(rig: ConnectionRig) -> None:
    client = rig.connect()
    await client.send(head_of_post("/body", 100_000))
    for _ in range(9):
        await rig.pass_ms(1_000)
        await client.send(b"x")
    assert not client.received
    await rig.pass_ms(2_000)
    assert client.problem()["word"] == "REQUEST_TIMEOUT"
    assert client.is_closed()
    assert rig.noted["SLOW_BODY"] == 1
    assert not rig.done
    assert rig.connections.held_bytes == 0


@scenario()
async def test_a_body_may_come_at_a_kibibyte_a_second_for_a_minute(rig: ConnectionRig) -> None:
    client = rig.connect()
    await client.send(head_of_post("/body", 59 * 1_100))
    for _ in range(59):
        await client.send(b"x" * 1_100)
        await rig.pass_ms(1_000)
    assert client.status() == 200
    assert rig.done == ["/body"]


@scenario()
async def test_a_body_that_takes_more_than_a_minute_is_refused(rig: ConnectionRig) -> None:
    client = rig.connect()
    await client.send(head_of_post("/body", 100_000))
    for _ in range(59):
        await client.send(b"x" * 1_100)
        await rig.pass_ms(1_000)
    assert not client.is_closed()
    await rig.pass_ms(2_000)
    assert client.status() == 408


@scenario()
async def test_a_body_that_comes_too_slowly_behind_a_request_is_closed_without_a_word(
    rig: ConnectionRig,
) -> None:
    client = rig.connect()
    await client.send(get("/slow") + head_of_post("/body", 10))
    await rig.pass_ms(BODY_MS, steps=60)
    assert client.was_aborted
    assert not client.received, "it would be taken for the answer to the first request"


@scenario()
async def test_a_chunked_body_that_never_ends_is_refused(rig: ConnectionRig) -> None:
    client = rig.connect()
    head = get("/body", "Transfer-Encoding: chunked").replace(b"GET", b"POST")
    await client.send(head)
    for _ in range(20):
        # What stands behind the ; is thrown away, and is not the body.
        await client.send(b"1;" + b"y" * 10_000 + b"\r\nx\r\n")
        await rig.pass_ms(1_000)
    assert client.status() == 408


@pytest.mark.parametrize("headers", [(), ("Connection: close",)])
@pytest.mark.parametrize(
    "behind", [get("/quick"), b"no request\r\n\r\n", get("/" + "a" * limits.HTTP_LINE_BYTES_MAX)]
)
def test_what_is_wrong_behind_a_request_is_not_said_of_it(
    headers: tuple[str, ...], behind: bytes
) -> None:
    async def play(rig: ConnectionRig) -> None:
        for first in (get("/quick", *headers), post("/body", b"12345", *headers)):
            said = []
            for pieces in ([first + behind], [first, behind], [first[:-5], first[-5:] + behind]):
                rig.done.clear()
                client = rig.connect()
                for piece in pieces:
                    await client.send(piece)
                said.append((client.statuses(), [*rig.done], client.is_closed()))
            assert said[0] == said[1] == said[2]
            assert said[0][0][0] == 200

    with_guard(play)


def test_a_body_full_of_empty_lines_is_read_in_few_pieces(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pieces: list[bytes] = []
    parsed = HttpConnection._parsed

    def counted(connection: HttpConnection, data: bytes) -> object:
        pieces.append(data)
        return parsed(connection, data)

    monkeypatch.setattr(HttpConnection, "_parsed", counted)

    @scenario()
    async def play(rig: ConnectionRig) -> None:
        client = rig.connect()
        await client.send(post("/body", b"\r\n\r\n" * 50_000))
        assert client.status() == 200
        assert client.received.endswith(b"\r\n\r\n200000")

    play()
    assert len(pieces) <= limits.HTTP_ROW_MAX + 1


@scenario()
async def test_a_body_that_ends_wrongly_behind_another_request_is_refused(
    rig: ConnectionRig,
) -> None:
    client = rig.connect()
    head = b"POST /body HTTP/1.1\r\nHost: here\r\nTransfer-Encoding: chunked\r\n\r\n"
    await client.send(get("/quick") + head + b"5\r\n12345\r\nx\r\n\r\n")
    assert client.statuses() == [200, 400]
    assert rig.done == ["/quick"]
    assert client.is_closed()


@scenario()
async def test_what_is_wrong_inside_a_body_is_told_at_once(rig: ConnectionRig) -> None:
    client = rig.connect()
    head = get("/body", "Transfer-Encoding: chunked").replace(b"GET", b"POST")
    await client.send(head + b"5\r\nhello\r\n")
    await client.send(b"zz\r\n")
    assert client.problem()["word"] == "BAD_FORMAT"
    assert client.is_closed()


@scenario()
async def test_a_request_answered_without_its_body_holds_nothing_while_the_rest_comes(
    rig: ConnectionRig,
) -> None:
    client = rig.connect()
    await client.send(head_of_post("/early", 1 << 20) + b"x" * 1_000)
    assert client.status() == 200
    await client.send(b"x" * 100_000)
    assert rig.connections.held_bytes == 0
    await client.send(b"x" * ((1 << 20) - 101_000))
    await client.send(get("/quick"))
    assert client.statuses() == [200, 200]
    assert rig.connections.held_bytes == 0


@scenario()
async def test_a_body_behind_a_request_that_is_answered_is_held_still(rig: ConnectionRig) -> None:
    client = rig.connect()
    await client.send(get("/quick") + head_of_post("/body", 50_000))
    assert client.status() == 200
    await client.send(b"x" * 40_000)
    assert rig.connections.held_bytes >= 40_000
    await client.send(b"x" * 10_000)
    assert client.statuses() == [200, 200]
    assert rig.connections.held_bytes == 0


@scenario()
async def test_nobody_is_too_slow_from_whom_nothing_is_read(rig: ConnectionRig) -> None:
    client = rig.connect()
    await client.send(get("/slow") + head_of_post("/body", 4 << 20))
    sent = 0
    while client.is_read_from():
        await client.send(b"x" * 100_000)
        sent += 100_000
    await rig.pass_ms(5 * BODY_MS, steps=50)
    assert not client.is_closed()
    rig.go.set()
    await settle()
    assert client.is_read_from()
    await rig.pass_ms(limits.HTTP_BODY_GRACE_MS - 1_000)
    await client.send(b"x" * ((4 << 20) - sent))
    assert client.statuses() == [200, 200]


@scenario()
async def test_what_comes_after_the_last_request_is_not_held(rig: ConnectionRig) -> None:
    client = rig.connect()
    await client.send(get("/slow"))
    client.connection.finish()
    await client.send(b"x" * 1_000)
    assert rig.connections.held_bytes == len(get("/slow"))
    rig.go.set()
    await settle()
    assert client.is_closed()


@scenario()
async def test_a_body_that_comes_while_the_daemon_stops_is_read_to_its_end(
    rig: ConnectionRig,
) -> None:
    client = rig.connect()
    await client.send(head_of_post("/body", 10) + b"12345")
    (task,) = rig.connections.finish()
    await client.send(b"67890" + get("/quick") + b"\0")
    assert client.status() == 200
    assert client.received.endswith(b"\r\n\r\n10")
    assert rig.done == ["/body"], "what came behind it is not begun"
    assert task.done()
    assert client.is_closed()


@scenario()
async def test_a_body_that_nobody_wants_is_discarded_while_the_daemon_stops(
    rig: ConnectionRig,
) -> None:
    client = rig.connect()
    await client.send(head_of_post("/early", 10) + b"12345")
    assert client.status() == 200
    (task,) = rig.connections.finish()
    await client.send(b"67890")
    assert task.done()


@scenario()
async def test_what_is_wrong_inside_a_body_is_told_while_the_daemon_stops(
    rig: ConnectionRig,
) -> None:
    client = rig.connect()
    head = b"POST /body HTTP/1.1\r\nHost: here\r\nTransfer-Encoding: chunked\r\n\r\n"
    await client.send(head + b"5\r\n12345\r\n")
    rig.connections.finish()
    await client.send(b"x\r\n")
    assert client.status() == 400
    assert client.is_closed()


@scenario()
async def test_packed_bodies_are_not_unpacked(rig: ConnectionRig) -> None:
    client = rig.connect()
    bomb = gzip.compress(bytes(100_000))
    await client.send(post("/body", bomb, "Content-Encoding: gzip"))
    assert client.received.endswith(b"\r\n\r\n%d" % len(bomb))


# --- What a request may be -----------------------------------------------------------------------


@pytest.mark.parametrize("target", [b"http://[::1]@", b"http://[@"])
def test_a_target_over_which_the_parser_stumbles_is_answered_400(target: bytes) -> None:
    async def play(rig: ConnectionRig) -> None:
        client = rig.connect()
        await client.send(b"GET %b HTTP/1.1\r\nHost: here\r\n\r\n" % target)
        assert client.problem()["word"] == "BAD_FORMAT"
        assert client.status() == 400
        assert client.is_closed()

    with_guard(play)


@scenario()
async def test_a_path_that_is_too_long_is_answered_414(rig: ConnectionRig) -> None:
    client = rig.connect()
    await client.send(get("/" + "a" * (limits.HTTP_LINE_BYTES_MAX - 1)))
    assert client.status() == 404
    client = rig.connect()
    await client.send(get("/" + "a" * limits.HTTP_LINE_BYTES_MAX))
    assert client.problem()["word"] == "URI_TOO_LONG"
    assert client.status() == 414
    assert client.is_closed()


@scenario()
async def test_a_header_that_is_too_long_is_answered_431(rig: ConnectionRig) -> None:
    client = rig.connect()
    await client.send(get("/quick", "X: " + "a" * limits.HTTP_HEADER_BYTES_MAX))
    assert client.status() == 200
    client = rig.connect()
    await client.send(get("/quick", "X: " + "a" * (limits.HTTP_HEADER_BYTES_MAX + 1)))
    assert client.problem()["word"] == "HEADER_TOO_LONG"
    assert client.status() == 431


@pytest.mark.parametrize("is_split", [False, True])
def test_too_many_trailers_are_answered_431(*, is_split: bool) -> None:
    @scenario()
    async def play(rig: ConnectionRig) -> None:
        client = rig.connect()
        head = b"POST /body HTTP/1.1\r\nHost: here\r\nTransfer-Encoding: chunked\r\n\r\n"
        trailers = b"0\r\n" + b"X: y\r\n" * 200 + b"\r\n"
        for piece in (head, trailers) if is_split else (head + trailers,):
            await client.send(piece)
        await settle()
        assert client.status() == 431
        assert client.is_closing()

    play()


@scenario()
async def test_too_many_headers_are_answered_431(rig: ConnectionRig) -> None:
    few = [f"X-{number}: 1" for number in range(limits.HTTP_HEADERS_MAX - 1)]
    client = rig.connect()
    await client.send(get("/quick", *few))
    assert client.status() == 200
    client = rig.connect()
    await client.send(get("/quick", *few, "X: 1"))
    assert client.problem()["word"] == "HEADER_TOO_LONG"


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"HELO there\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET /quick HTTP/1.1\r\n\r\n",
        b"GET /quick HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        b"GET /quick HTTP/1.1\r\nHost: a\r\n X: folded\r\n\r\n",
        b"GET /quick HTTP/1.1\r\nHost : a\r\n\r\n",
        b"POST /quick HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nxx",
        b"POST /quick HTTP/1.1\r\nHost: a\r\nContent-Length: +1\r\n\r\nx",
        b"POST /quick HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\nx",
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0",
        b"GET /quick HTTP/1.1\nHost: a\n\n",
    ],
)
def test_what_is_not_http_is_answered_400_and_closed(request_bytes: bytes) -> None:
    @scenario()
    async def play(rig: ConnectionRig) -> None:
        client = rig.connect()
        await client.send(request_bytes)
        assert client.problem()["word"] == "BAD_FORMAT"
        assert client.status() == 400
        assert client.is_closed()
        assert not rig.done

    play()


@pytest.mark.parametrize("step", [1, 2, 3, 7, 64])
def test_pieces_of_any_length_are_answered_as_the_whole_is(step: int) -> None:
    whole = get("/quick") + post("/body", b"hello") + get("/quick", "X: y")
    chunked = get("/body", "Transfer-Encoding: chunked").replace(b"GET", b"POST")
    whole += chunked + b"3\r\nabc\r\n2;x=y\r\nde\r\n0\r\nTrailer: z\r\n\r\n" + get("/none")

    @scenario()
    async def play(rig: ConnectionRig) -> None:
        client = rig.connect()
        for at in range(0, len(whole), step):
            await client.send(whole[at : at + step])
        assert client.statuses() == [200, 200, 200, 200, 404]
        assert rig.done == ["/quick", "/body", "/quick", "/body"]
        assert rig.connections.held_bytes == 0

    play()


@scenario()
async def test_a_row_of_requests_is_answered_in_order_and_none_is_begun_early(
    rig: ConnectionRig,
) -> None:
    client = rig.connect()
    await client.send(get("/slow") + get("/quick") * 100)
    assert rig.connections.held_bytes == len(get("/slow") + get("/quick") * 100)
    assert not rig.done
    assert not client.is_read_from(), "nobody reads on who has a row waiting"
    rig.go.set()
    for _ in range(20):
        await settle()
    assert rig.done == ["/slow"] + ["/quick"] * 100
    assert client.is_read_from(), "and on again"
    assert rig.connections.held_bytes == 0


# --- How it ends ---------------------------------------------------------------------------------


@scenario()
async def test_who_asks_for_the_head_gets_that_alone(rig: ConnectionRig) -> None:
    client = rig.connect()
    await client.send(get("/long?bytes=7").replace(b"GET", b"HEAD") + get("/quick"))
    assert client.statuses() == [200, 200]
    assert b"\r\nContent-Length: 7\r\n" in client.received
    assert b"xxx" not in client.received


@pytest.mark.parametrize(
    ("version", "header", "told"),
    [
        (b"1.1", "X: y", []),
        (b"1.1", "Connection: close", [b"close"]),
        (b"1.0", "Connection: keep-alive", [b"keep-alive"]),
        (b"1.0", "X: y", [b"close"]),
    ],
)
def test_the_connection_is_kept_as_its_client_wants(
    version: bytes, header: str, told: list[bytes]
) -> None:
    @scenario()
    async def play(rig: ConnectionRig) -> None:
        client = rig.connect()
        await client.send(get("/quick", header).replace(b"HTTP/1.1", b"HTTP/" + version))
        assert client.status() == 200
        assert re.findall(rb"\r\nConnection: (.*)\r\n", client.received) == told
        assert client.is_closed() == (told == [b"close"])

    play()


@scenario()
async def test_another_protocol_is_not_taken_up_and_what_follows_is_http(
    rig: ConnectionRig,
) -> None:
    client = rig.connect()
    upgrade = get("/quick", "Connection: upgrade", "Upgrade: websocket")
    await client.send(upgrade + get("/quick"))
    await client.send(get("/early"))
    assert rig.done == ["/quick", "/quick", "/early"]
    assert client.statuses() == [200, 200, 200]


@scenario()
async def test_the_rest_of_a_body_that_nobody_reads_has_ten_seconds(rig: ConnectionRig) -> None:
    client = rig.connect()
    loop = asyncio.get_running_loop()
    await client.send(head_of_post("/early", 100))
    assert client.status() == 200
    (timer,) = (
        timer
        for timer in loop._scheduled  # type: ignore[attr-defined]
        if timer._callback.__qualname__ == "Timeout._on_timeout"
    )
    assert 9 < timer.when() - loop.time() <= 10
    timer._run()
    await settle()
    assert client.is_closed()


# --- Coming and going ----------------------------------------------------------------------------


@scenario()
async def test_a_client_that_goes_is_forgotten_whatever_it_was_doing(rig: ConnectionRig) -> None:
    clients = [rig.connect() for _ in range(5)]
    await clients[1].send(b"GET ")
    await clients[2].send(get("/slow"))
    await clients[3].send(head_of_post("/body", 10) + b"x")
    clients[4].takes = False
    await clients[4].send(get("/long?bytes=100000"))
    for client in clients:
        await client.break_off()
    assert rig.connections.open_count == 0
    assert rig.connections.held_bytes == 0
    assert not rig.done or rig.done == ["/long"]


@scenario(has_faults=True)
async def test_a_fault_in_a_handler_is_told_and_answered_500(rig: ConnectionRig) -> None:
    client = rig.connect()
    await client.send(get("/broken"))
    assert client.problem()["word"] == "INTERNAL_ERROR"
    assert b"a fault of ours" not in client.received
    assert client.is_closed()
    (fault,) = rig.faults
    assert isinstance(fault, KeyError)


@scenario()
async def test_aiohttp_sets_no_timer_of_its_own(rig: ConnectionRig) -> None:
    client = rig.connect()
    await client.send(get("/quick"))
    timers = rig.connections.loop._scheduled  # type: ignore[attr-defined]
    assert [timer._callback.__qualname__ for timer in timers if not timer.cancelled()] == [
        "Deadlines.go"
    ]
    await client.break_off()
    assert all(timer.cancelled() for timer in timers), "with nobody there nothing wakes the loop"


@scenario()
async def test_an_answer_that_was_sent_is_not_kept_until_the_next_one(rig: ConnectionRig) -> None:
    client = rig.connect()
    await client.send(get("/quick"))
    assert client.status() == 200
    assert client.connection.task is None, "what has answered is gone, with all that it held"


def test_no_private_name_of_aiohttp_is_used_and_none_is_hidden() -> None:
    """A later aiohttp may have names of its own where a connection has some."""
    ours = {name for name in vars(HttpConnection) if not name.startswith("__")}
    theirs = {name for kind in HttpConnection.__mro__[1:] for name in vars(kind)}
    shared = {"connection_lost", "connection_made", "data_received", "pause_reading"}
    shared |= {"eof_received", "pause_writing", "resume_reading", "resume_writing"}
    assert ours & theirs == shared
    source = inspect.getsource(connection_module)
    private = {name for name in theirs if name.startswith("_") and not name.endswith("__")}
    assert private, "there are some"
    assert not {name for name in private if re.search(rf"[.]{name}\b", source)}


def test_the_parser_in_python_is_not_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    require_c_parser()
    monkeypatch.setattr(http_parser, "HttpRequestParser", http_parser.HttpRequestParserPy)
    with pytest.raises(NoCParser, match="AIOHTTP_NO_EXTENSIONS"):
        require_c_parser()


def test_a_client_that_sends_no_more_gets_its_answers() -> None:
    with HttpRig() as rig:
        client = rig.connect()
        for _ in range(3):
            client.say("POST", request("POST", "/v1/topics/mail/jobs", {"body": 1}))
        client.send_no_more()
        rig.settle()
        assert client.the_answer.status == 201
        assert client.the_answer.json["id"] == 3
        assert client.is_closed


@pytest.mark.parametrize("wait", [0, 30])
def test_a_reserve_ends_with_its_clients_sending_side(wait: int) -> None:
    with HttpRig() as rig:
        client = rig.connect()
        client.say("POST", request("POST", "/v1/topics/mail/reserve", {"wait": wait}))
        client.send_no_more()
        rig.settle()
        assert client.is_closed
        rig.ok("POST", "/v1/topics/mail/jobs", {"body": 1})
        (job,) = rig.ok("POST", "/v1/topics/mail/reserve", {})["jobs"]
        assert job["attempt"] == 1


def test_half_a_request_is_not_answered() -> None:
    with HttpRig() as rig:
        client = rig.connect()
        client.say("POST", request("POST", "/v1/topics/mail/jobs", {"body": 1})[:-3])
        client.send_no_more()
        rig.settle()
        assert client.is_closed
        assert rig.ok("GET", "/v1/stats")["jobs"]["ready"] == 0


# --- Clients that hear nothing --------------------------------------------------------------------

Sockets = tuple[socket.socket, socket.socket]


def looked_at(
    play: Callable[[ConnectionRig, Client, socket.socket], Awaitable[None]],
) -> Callable[[], None]:
    """Make a test of a client whose socket the connection can look at; it has the other end."""

    def test() -> None:
        async def scenario(rig: ConnectionRig) -> None:
            here, there = socket.socketpair()
            with here, there:
                await play(rig, rig.connect(sock=here), there)

        with_guard(scenario)

    return test


@looked_at
async def test_who_has_closed_its_sending_side_alone_gets_every_answer(
    rig: ConnectionRig, client: Client, there: socket.socket
) -> None:
    await client.send(get("/slow") + get("/quick") * 3)
    there.shutdown(socket.SHUT_WR)
    await client.send_no_more()
    await rig.pass_ms(10 * limits.HTTP_GONE_LOOK_MS, steps=10)
    rig.go.set()
    await settle()
    assert client.statuses() == [200] * 4


@looked_at
async def test_what_only_reads_ends_with_a_client_that_hears_nothing(
    rig: ConnectionRig, client: Client, there: socket.socket
) -> None:
    await client.send(get("/slow") + get("/quick") * 3)
    there.close()
    await client.send_no_more()
    assert client.is_closed()
    assert not rig.done


@looked_at
async def test_what_only_reads_ends_soon_after_its_client_hears_nothing(
    rig: ConnectionRig, client: Client, there: socket.socket
) -> None:
    await client.send(get("/slow") + get("/quick"))
    there.shutdown(socket.SHUT_WR)
    await client.send_no_more()
    assert not client.is_closed()
    there.close()
    await rig.pass_ms(2 * limits.HTTP_GONE_LOOK_MS, steps=2)
    assert client.was_aborted
    assert not rig.done


@looked_at
async def test_what_only_reads_is_not_begun_for_a_client_that_hears_nothing(
    rig: ConnectionRig, client: Client, there: socket.socket
) -> None:
    await client.send(post("/slow", b"x") + get("/quick") * 3)
    there.close()
    await client.send_no_more()
    await rig.pass_ms(10 * limits.HTTP_GONE_LOOK_MS, steps=10)
    assert not client.is_closed(), "what changes something goes on"
    rig.go.set()
    await settle()
    assert client.is_closed()
    assert rig.done == ["/slow"]


@looked_at
async def test_a_client_that_is_not_read_from_is_looked_at(
    rig: ConnectionRig, client: Client, there: socket.socket
) -> None:
    await client.send(get("/slow") + get("/quick") * (2 * limits.HTTP_ROW_MAX))
    assert not client.is_read_from()
    there.close()
    await rig.pass_ms(2 * limits.HTTP_GONE_LOOK_MS, steps=2)
    assert client.was_aborted
    assert not rig.done
