"""What a client may do to a connection, in memory: connections.txt, and what is no text."""

import asyncio
import inspect
import itertools
import re
import resource
import socket
from ast import literal_eval
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest
from aiohttp import http_parser

from delayd import limits
from delayd.access.connection_limits import Rejection
from delayd.http import connection as connection_module
from delayd.http.bounds import Bounds
from delayd.http.connection import HttpConnection
from delayd.http.request_reader import NoCParser, RequestReader, require_c_parser
from tests.rigs.http import HttpRig, request
from tests.rigs.http_connections import (
    FAR,
    HERE,
    Client,
    ConnectionRig,
    get,
    head_of_post,
    post,
    scenario,
    settle,
    with_guard,
)
from tests.rigs.written import Fact, facts_of

PEERS: Final = {"far": FAR, "here": HERE, "elsewhere": ("198.51.100.7", 50_000)}
TERM: Final = re.compile(
    r"(?P<kind>HEAD|head)?(?P<path>/\w+(?:\?bytes=\d+)?)(?:\[(?P<header>.*)\])?(?::(?P<body>\d+))?"
)


def bytes_of(told: str) -> bytes:
    """What `send` sends."""
    whole = b""
    for term in told.split(" + "):
        text, _, times = term.rpartition("*") if re.search(r"\*\d+$", term) else (term, "", "1")
        if text.startswith("b'"):
            data = literal_eval(text)
        elif text.startswith("x:"):
            data = b"x" * int(text[2:])
        else:
            match = TERM.fullmatch(text)
            assert match is not None, f"no request: {text}"
            data = get(match["path"], *([match["header"]] if match["header"] else []))
            if match["kind"] == "head":
                data = head_of_post(match["path"], int(match["body"]))
            elif match["kind"] == "HEAD":
                data = data.replace(b"GET", b"HEAD")
            elif match["body"]:
                data = post(match["path"], b"x" * int(match["body"]))
        whole += data * int(times)
    return whole


class Play:
    """One fact on its way."""

    def __init__(self, rig: ConnectionRig) -> None:
        self.rig = rig
        self.clients: dict[str, Client] = {}

    def client(self, name: str, peer: str = "far") -> Client:
        if name not in self.clients:
            self.clients[name] = self.rig.connect(PEERS[peer])
        return self.clients[name]

    async def step(self, step: str) -> None:
        match = re.fullmatch(r"(?:([a-z])\.)?(\w+) ?(.*)", step)
        assert match is not None, f"no step: {step}"
        name, act, more = match[1] or "a", match[2], match[3]
        if not await self.act(name, act, more):
            self.look(name, act, more)

    async def act(self, name: str, act: str, more: str) -> bool:
        rig = self.rig
        match act:
            case "connect":
                self.client(name, more or "far")
            case "send":
                await self.client(name).send(bytes_of(more))
            case "mute":
                self.client(name).takes = False
            case "take":
                await self.client(name).take(int(more))
            case "taking":  # so many seconds, so many bytes in each
                seconds, taken = map(int, more.split())
                for _ in range(seconds):
                    await self.client(name).take(taken)
                    await rig.pass_ms(1_000)
            case "go":
                rig.go.set()
                for _ in range(10):
                    await settle()
            case "sync":
                await rig.turns.sync()
            case "pass":
                seconds_text, _, steps = more.partition(" in ")
                await rig.pass_ms(round(float(seconds_text) * 1_000), steps=int(steps or "1"))
            case "every":
                pause, times, told = more.split(" ", 2)
                for _ in range(int(times)):
                    await self.client(name).send(bytes_of(told))
                    await rig.pass_ms(int(pause) * 1_000)
            case "end":
                await self.client(name).send_no_more()
            case "vanish":
                await self.client(name).break_off()
            case "shows":
                self.client(name).connection.has_shown_token()
            case "stop":
                rig.connections.finish()
            case "behind":
                self.client(name).connection.finish()
            case "tls":
                self.client(name).extra["ssl_object"] = object()
            case "guard_closes":
                rig.connections.close()
                await settle()
            case _:
                return False
        return True

    def look(self, name: str, act: str, more: str) -> None:
        rig = self.rig
        client = self.clients.get(name)
        if client is not None:
            seen = {
                "open": not client.is_closed and not client.is_closing(),
                "unclosed": not client.is_closed,
                "closing": client.is_closing(),
                "closed": client.is_closed,
                "aborted": client.was_aborted,
                "unaborted": not client.was_aborted,
                "reads": client.is_read_from(),
                "stuck": not client.is_read_from(),
            }
            if act in seen:
                assert seen[act]
                return
        match act:
            case "says":
                assert self.client(name).statuses() == [*map(int, more.split())]
            case "word":
                assert self.client(name).problem()["word"] == more
            case "has":
                assert literal_eval(more) in self.client(name).received
            case "lacks":
                assert literal_eval(more) not in self.client(name).received
            case "unsent":
                assert compared(self.client(name).unsent, more)
            case "held":
                assert compared(rig.connections.held_bytes, more), rig.connections.held_bytes
            case "noted":
                word, _, count = more.partition(" ")
                assert rig.noted[word] == int(count or "1")
            case "done":
                paths: list[str] = []
                for path in more.split():
                    word, _, times = path.partition("*")
                    paths += [word.replace("not_told", "not told")] * int(times or "1")
                assert rig.done == paths
            case "refused":
                word, peer, *status = more.split()
                assert rig.try_to_connect(PEERS[peer]) is Rejection[word]
                assert " ".join(status).encode() in rig.connections.replies[Rejection[word]][:13]
            case "all":
                assert rig.connections.open_count == int(more.split(maxsplit=1)[0])
            case _:
                raise AssertionError(f"no step: {act}")


def compared(found: int, told: str) -> bool:
    """Tell whether a number is what `7`, `<7` or `>7` says."""
    if told[0] in "<>":
        return found < int(told[1:]) if told[0] == "<" else found > int(told[1:])
    return found == int(told)


@pytest.mark.parametrize("fact", facts_of(Path(__file__).parent / "connections.txt"), ids=str)
def test_every_fact_is_as_written(fact: Fact) -> None:
    options = dict(option.split("=") for option in fact.options)
    how = {name: bool(options.pop(name, "")) for name in ("needs_token", "has_faults")}

    async def play(rig: ConnectionRig) -> None:
        told = Play(rig)
        for step in fact.steps:
            try:
                await told.step(step)
            except Exception as error:
                error.add_note(f"in the step: {step}")
                raise

    bounds = replace(Bounds(), **{name: int(value) for name, value in options.items()})
    with_guard(play, bounds, **how)


# --- What is read --------------------------------------------------------------------------------


@pytest.mark.parametrize("headers", [(), ("Connection: close",)])
@pytest.mark.parametrize(
    "behind", [get("/quick"), b"no request\r\n\r\n", get("/" + "a" * limits.HTTP_LINE_BYTES_MAX)]
)
@scenario()
async def test_what_is_wrong_behind_a_request_is_not_said_of_it(
    rig: ConnectionRig, headers: tuple[str, ...], behind: bytes
) -> None:
    for first in (get("/quick", *headers), post("/body", b"12345", *headers)):
        said = []
        for pieces in ([first + behind], [first, behind], [first[:-5], first[-5:] + behind]):
            rig.done.clear()
            client = rig.connect()
            for piece in pieces:
                await client.send(piece)
            said.append((client.statuses(), [*rig.done], client.is_closed))
        assert said[0] == said[1] == said[2]
        assert said[0][0][0] == 200


@scenario()
async def test_a_body_full_of_empty_lines_is_read_in_few_pieces(
    rig: ConnectionRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    pieces: list[bytes] = []
    parsed = RequestReader._parsed

    def counted(reader: RequestReader, data: bytes) -> object:
        pieces.append(data)
        return parsed(reader, data)

    monkeypatch.setattr(RequestReader, "_parsed", counted)
    client = rig.connect()
    await client.send(post("/body", b"\r\n\r\n" * 50_000))
    assert client.status() == 200
    assert client.received.endswith(b"\r\n\r\n200000")
    assert len(pieces) <= limits.HTTP_ROW_MAX + 1


@scenario()
async def test_pieces_of_any_length_are_answered_as_the_whole_is(rig: ConnectionRig) -> None:
    """T-R7: so is what is cut in two anywhere."""
    whole = get("/quick") + post("/body", b"hello") + get("/quick", "X: y")
    chunked = get("/body", "Transfer-Encoding: chunked").replace(b"GET", b"POST")
    whole += chunked + b"3\r\nabc\r\n2;x=y\r\nde\r\n0\r\nTrailer: z\r\n\r\n" + get("/none")
    cuts = [[*range(step, len(whole), step)] for step in (1, 2, 3, 7, 64)]
    for places in (*cuts, *([place] for place in range(len(whole)))):
        rig.done.clear()
        client = rig.connect()
        for start, end in itertools.pairwise([0, *places, len(whole)]):
            await client.send(whole[start:end])
        assert client.statuses() == [200, 200, 200, 200, 404], places
        assert rig.done == ["/quick", "/body", "/quick", "/body"]
        assert rig.connections.held_bytes == 0


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
    assert client.is_closed


@scenario()
async def test_what_flows_is_taken_however_much_always_waits(rig: ConnectionRig) -> None:
    client = rig.connect()
    client.takes = False
    await client.send(get("/long?bytes=20000"))
    for _ in range(60):
        await client.send(get("/long?bytes=5000"))
        await client.take(5_200)
        await rig.pass_ms(1_000)
    assert client.unsent > 10_000
    assert not client.is_closed


# --- All of them ---------------------------------------------------------------------------------


@scenario()
async def test_the_last_descriptors_are_left_to_the_journal(rig: ConnectionRig) -> None:
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    first_reserved = limit - min(limits.DESCRIPTORS_RESERVED, limit // 4)
    rig.connect(FAR, first_reserved - 1)
    assert rig.try_to_connect(FAR, first_reserved) is Rejection.DESCRIPTORS
    admitted = rig.try_to_connect(FAR)
    assert isinstance(admitted, HttpConnection)
    for _ in range(2):
        rig.connections.forget(admitted)
    assert rig.connections.open_count == 1, "a client that never gets through is forgotten"


@scenario(Bounds(held_bytes_max=1 << 20))
async def test_an_endless_row_does_not_pile_up_in_the_books(rig: ConnectionRig) -> None:
    client = rig.connect()
    one = post("/body", b"x" * 10_000)
    for _ in range(40):
        await client.send((one * 8)[:-100])
        await client.send(one[-100:])
        await settle()
        assert rig.connections.held_bytes == 0
    await client.send(one[:5_000])
    highest = 0
    for _ in range(300):
        # There is always the beginning of one more, so the row never ends.
        await client.send(one[5_000:] + one[:5_000])
        highest = max(highest, rig.connections.held_bytes)
    assert client.statuses() == [200] * 620
    assert highest < 40_000


@scenario()
async def test_many_that_are_due_at_once_are_closed_in_slices(rig: ConnectionRig) -> None:
    clients = [rig.connect(HERE) for _ in range(3 * limits.LOOKS_MAX)]
    await settle()
    rig.clock_ms += 20_000
    rig.connections.deadlines.go()
    assert sum(client.is_closing() for client in clients) == limits.LOOKS_MAX
    for _ in range(2):
        rig.connections.deadlines.go()
    await settle()
    assert all(client.is_closed for client in clients)
    assert rig.noted["SLOW_HEADER"] == len(clients)


# --- What is ours and what is aiohttp's ----------------------------------------------------------


@scenario()
async def test_aiohttp_sets_no_timer_of_its_own_and_what_was_answered_is_gone(
    rig: ConnectionRig,
) -> None:
    client = rig.connect()
    await client.send(get("/quick"))
    assert client.connection.task is None, "with all that it held"
    timers = rig.connections.loop._scheduled  # type: ignore[attr-defined]
    assert [timer._callback.__qualname__ for timer in timers if not timer.cancelled()] == [
        "Deadlines.go"
    ]
    await client.break_off()
    assert all(timer.cancelled() for timer in timers), "with nobody there nothing wakes the loop"


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


@scenario()
async def test_a_handler_learns_that_its_client_has_gone_in_the_pass_in_which_it_began(
    rig: ConnectionRig,
) -> None:
    client = rig.connect()
    client.takes = False
    client.connection.data_received(get("/told?bytes=100000"))
    client.connection.connection_lost(None)
    await settle()
    assert rig.done == ["not told"]


# --- Clients that send or hear nothing more ------------------------------------------------------


def test_a_client_that_sends_no_more_gets_its_answers_and_half_a_request_has_none(
    rig: HttpRig,
) -> None:
    told = request("POST", "/v1/topics/mail/jobs", {"body": 1})
    client, half = rig.connect(), rig.connect()
    for _ in range(3):
        client.say("POST", told)
    half.say("POST", told[:-3])
    for each in (client, half):
        each.say_no_more()
    rig.settle()
    assert (client.the_answer.status, client.the_answer.json["id"]) == (201, 3)
    assert client.is_closed
    assert half.is_closed
    assert rig.ok("GET", "/v1/stats")["jobs"]["ready"] == 3


@pytest.mark.parametrize("wait", [0, 30])
def test_a_reserve_ends_with_its_clients_sending_side(rig: HttpRig, wait: int) -> None:
    client = rig.connect()
    client.say("POST", request("POST", "/v1/topics/mail/reserve", {"wait": wait}))
    client.say_no_more()
    rig.settle()
    assert client.is_closed
    rig.ok("POST", "/v1/topics/mail/jobs", {"body": 1})
    (job,) = rig.ok("POST", "/v1/topics/mail/reserve", {})["jobs"]
    assert job["attempt"] == 1


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    """The socket of a client, at which its connection can look, and the other end."""
    here, there = socket.socketpair()
    with here, there:
        yield here, there


Ends = tuple[socket.socket, socket.socket]


@scenario()
async def test_a_client_that_has_closed_its_sending_side_alone_gets_every_answer(
    rig: ConnectionRig, ends: Ends
) -> None:
    client = rig.connect(sock=ends[0])
    await client.send(get("/slow") + get("/quick") * 3)
    ends[1].shutdown(socket.SHUT_WR)
    await client.send_no_more()
    await rig.pass_ms(10 * limits.HTTP_GONE_LOOK_MS, steps=10)
    rig.go.set()
    await settle()
    assert client.statuses() == [200] * 4


@pytest.mark.parametrize("when", ["before", "after", "unread"])
@scenario()
async def test_what_only_reads_ends_with_a_client_that_hears_nothing(
    rig: ConnectionRig, ends: Ends, when: str
) -> None:
    """It closes its socket as it sends no more, or some time after, or while nobody reads it."""
    client, there = rig.connect(sock=ends[0]), ends[1]
    row = 2 * limits.HTTP_ROW_MAX if when == "unread" else 3
    await client.send(get("/slow") + get("/quick") * row)
    assert client.is_read_from() == (when != "unread")
    if when == "after":
        there.shutdown(socket.SHUT_WR)
        await client.send_no_more()
        assert not client.is_closed
    there.close()
    if when == "before":
        await client.send_no_more()
    else:
        await rig.pass_ms(2 * limits.HTTP_GONE_LOOK_MS, steps=2)
        assert client.was_aborted
    assert client.is_closed
    assert not rig.done


@scenario()
async def test_what_only_reads_is_not_begun_for_a_client_that_hears_nothing(
    rig: ConnectionRig, ends: Ends
) -> None:
    client = rig.connect(sock=ends[0])
    await client.send(post("/slow", b"x") + get("/quick") * 3)
    ends[1].close()
    await client.send_no_more()
    await rig.pass_ms(10 * limits.HTTP_GONE_LOOK_MS, steps=10)
    assert rig.connections.open_count == 1, "what changes something goes on"
    rig.go.set()
    await settle()
    assert client.is_closed
    assert rig.done == ["/slow"]


@pytest.mark.parametrize("how", ["idle", "taken", "untaken"])
def test_a_stop_waits_for_a_bounded_time_until_what_was_answered_is_taken(
    rig: HttpRig, how: str
) -> None:
    client = rig.connect()
    if how != "idle":
        client.takes = False
        client.say("POST", request("POST", "/v1/topics/mail/jobs", {"body": 1}))
    rig.settle()
    rig.server.stop_accepting()
    stopping = rig.loop.create_task(rig.server.stop())
    if how == "taken":
        rig.pass_ms(limits.HTTP_STOP_MS_MAX - 1)
        assert not stopping.done()
        client.take_some(client.unsent)
        rig.pass_ms(limits.HTTP_STOP_STEP_MS)
        assert client.the_answer.status == 201
    elif how == "untaken":
        for _ in range(limits.HTTP_STOP_MS_MAX // limits.HTTP_STOP_STEP_MS + 1):
            rig.pass_ms(limits.HTTP_STOP_STEP_MS)
        assert client.is_closed
    else:
        rig.settle()
        assert client.is_closed
    assert stopping.done()
