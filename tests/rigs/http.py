"""The HTTP API in memory: the daemon's own parts on a clock that the test moves, and clients of it.

    with HttpRig() as rig:
        rig.ok("POST", "/v1/topics/mail/jobs", {"body": 1, "delay": "5s"})
        worker = rig.send("POST", "/v1/topics/mail/reserve", {"wait": "30s"})
        assert worker.answer is None
        rig.pass_ms(5_001)
        assert worker.the_answer.json["jobs"][0]["body"] == 1

    rig.call(method, path, json=..., ...)    the answer: status, headers, body, json, word, fields
    rig.ok(method, path, json=...)           the JSON of an answer that is no problem
    rig.send(...)                            a request on a connection of its own, which may wait
    rig.pass_ms(5_000)                       time goes on, and what follows from it happens
    rig.token(Scope.PEEK, topics=("mail",))  a new token; of `HttpRig(needs_token=True)`
    rig.disk.hold(), rig.disk.release()    nothing becomes durable; all of it does
    rig.after_restart()                      an engine made of what became durable
    rig.engine, .clock, .api, .server, .line the parts

There is no port, no socket and no sleep: a client is a transport in memory, asyncio's time is the
test's clock, and the loop runs until nobody has anything to do, with turns taken where it would
sleep, as in the service. A fault in a handler fails the test. `HttpRig(is_virtual=True)` has a
clock that clients may advance.
"""

import asyncio
import json as json_module
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self, TypedDict, Unpack

import msgspec

from delayd.access.authenticator import Authenticator
from delayd.access.reload import AccessControl
from delayd.access.scopes import Scope
from delayd.access.tokens import Tokens
from delayd.clock import NEVER_NS, VirtualClock
from delayd.core.background_tasks import BackgroundTasks
from delayd.core.engine import Engine
from delayd.core.errors import LastWatched, Refusal, TooManyWatched
from delayd.core.replay import Replay
from delayd.core.stats.refusals import Refusals
from delayd.http.api import Api, Reports
from delayd.http.bounds import Bounds
from delayd.http.connection import HttpConnection
from delayd.http.connections import HttpConnections
from delayd.http.handlers.job_responses import whole_job
from delayd.http.problems import HttpRefusal, ProblemAnswer
from delayd.http.server import HttpServer
from delayd.http.standby import standby_server
from delayd.limits import HTTP_SLICE_NS, IDEMPOTENCY_KEYS_DEFAULT, PASSES_US
from delayd.line.server import LineServer
from delayd.line.stats import Stats
from delayd.metrics import CONTENT_TYPE
from delayd.net.poller import Poller
from delayd.schedules.opening import ScheduleOpener
from delayd.turns import Turns, TurnSelector
from tests.access.samples import made
from tests.core.check import check
from tests.rigs import http_connections
from tests.rigs.clock import START_MS, FakeClock
from tests.rigs.commit import CrankedLoop
from tests.rigs.log import HeldDisk

if TYPE_CHECKING:
    from delayd.access.token_entries import Entry
    from delayd.core.throttle import PushBlock

PEER: Final = ("127.0.0.1", 50_000)
TURNS_MAX: Final = 100_000
"""What needs more turns than this never ends."""


class Loop(asyncio.SelectorEventLoop):
    """An event loop whose time is the test's."""

    def __init__(self, selector: TurnSelector, now_ms: Callable[[], int]) -> None:
        super().__init__(selector)
        self._now_ms = now_ms
        self.ahead_s = 0.0
        """How far beyond the test's clock it is, at the end."""

    def time(self) -> float:
        """Seconds since the rig began."""
        return (self._now_ms() - START_MS) / 1_000 + self.ahead_s


_HEAD: Final = re.compile(rb"HTTP/\d\.\d (\d{3}) [^\r\n]*\r\n(.*?\r\n)\r\n", re.DOTALL)


class Answer(NamedTuple):
    """What a client has received for one request."""

    status: int
    headers: Mapping[str, str]
    """Names in lower case."""
    body: bytes

    @property
    def json(self) -> Any:  # noqa: ANN401 (whatever it is)
        """The body, read as JSON."""
        return json_module.loads(self.body)

    @property
    def word(self) -> str:
        """The word of a problem."""
        assert self.status >= 400, self
        return str(self.json["word"])

    @property
    def fields(self) -> list[str]:
        """The fields that a problem names, in its order."""
        return [error["field"] for error in self.json.get("errors", [])]

    def check(self) -> None:
        """Raise unless a refusal is told whole."""
        if self.status < 400:
            return
        assert self.headers["content-type"] == "application/problem+json", self
        assert ("retry-after" in self.headers) == (self.status in {429, 503, 507}), self
        if self.body:
            problem = msgspec.json.decode(self.body, type=ProblemAnswer)
            (kind,) = (kind for kind in http_refusals() if kind.kind == problem.kind)
            said = (problem.word, problem.status, problem.title)
            assert said == (kind.word, self.status, kind.title), self


class SliceWatch:
    """A clock by which each look takes a whole slice: `HttpRig(slice_now_ns=SliceWatch())`."""

    def __init__(self) -> None:
        self.looks = 0

    def __call__(self) -> int:
        self.looks += 1
        return self.looks * HTTP_SLICE_NS


class Client(http_connections.Client):
    """One connection of the rig, and the reader of its answers."""

    def __init__(self, guard: HttpConnections, peer: tuple[str, int]) -> None:
        admitted = guard.admit(peer, 0)
        assert isinstance(admitted, HttpConnection), admitted
        super().__init__(admitted, peer, loop=guard.loop)
        self.is_found_gone = False
        """It has gone, which the daemon finds out when it writes."""
        self._methods: list[str] = []
        self._answers: list[Answer] = []
        guard.loop.call_soon(admitted.connection_made, self)

    @property
    def answer(self) -> Answer | None:
        """The answer to the latest request; None while there is none."""
        self._read()
        return None if self._methods or not self._answers else self._answers[-1]

    @property
    def the_answer(self) -> Answer:
        """The answer to the latest request, which is there."""
        answer = self.answer
        assert answer is not None, "there is no answer yet"
        return answer

    def say(self, method: str, data: bytes) -> None:
        """Send a whole request as it is."""
        self._methods.append(method)
        self._loop.call_soon(self.connection.data_received, data)

    def say_no_more(self) -> None:
        """Close the sending side; what is still answered is received."""
        self._loop.call_soon(self._end_input)

    def _end_input(self) -> None:
        if not self.connection.eof_received():
            self.close()

    def hang_up(self) -> None:
        """Go away without a word; what it has not taken never arrives."""
        del self.received[len(self.received) - self.unsent :]
        self.abort()

    def write(self, data: Any) -> None:  # noqa: ANN401 (asyncio's signature)
        """Receive, or end as asyncio's transports do when the system refuses a write."""
        if self.is_found_gone:
            self._closing = True
            self._loop.call_soon(self._lose, ConnectionResetError())
        else:
            super().write(data)

    def _read(self) -> None:
        """Take whole answers off what was received."""
        while self._methods:
            head = _HEAD.match(self.received)
            if head is None:
                assert not self.received or b"\r\n\r\n" not in self.received, self.received
                return
            headers = dict(_headers(head[2]))
            status = int(head[1])
            has_body = self._methods[0] != "HEAD" and status not in {204, 304}
            end = head.end()
            body = b""
            if has_body and headers.get("transfer-encoding") == "chunked":
                whole = _chunks(bytes(self.received), end)
                if whole is None:
                    return
                body, end = whole
            elif has_body:
                end += int(headers["content-length"])
                if len(self.received) < end:
                    return
                body = bytes(self.received[head.end() : end])
            del self.received[:end]
            self._methods.pop(0)
            self._answers.append(Answer(status, headers, body))
            self._answers[-1].check()


def _headers(data: bytes) -> Iterator[tuple[str, str]]:
    for line in data.decode().splitlines():
        name, _, value = line.partition(": ")
        yield name.lower(), value


def _chunks(data: bytes, at: int) -> tuple[bytes, int] | None:
    """The body that is sent in chunks, and where it ends; None if not all of it is there."""
    body = b""
    while (line_end := data.find(b"\r\n", at)) >= 0:
        size = int(data[at:line_end], 16)
        at = line_end + 2 + size + 2
        if len(data) < at:
            return None
        body += data[line_end + 2 : at - 2]
        if not size:
            return body, at
    return None


class Said(TypedDict, total=False):
    """What a request may have beside its JSON."""

    data: bytes | None
    """The body as it is."""
    headers: Mapping[str, str] | None
    token: str


def request(
    method: str,
    path: str,
    json: object = None,
    *,
    data: bytes | None = None,
    headers: Mapping[str, str] | None = None,
    token: str = "",
) -> bytes:
    """A request as bytes."""
    body = data
    if json is not None:
        body = json_module.dumps(json).encode()
    said = {"Host": "localhost"}
    if body is not None:
        said["Content-Length"] = str(len(body))
    if body is not None or method in {"POST", "PUT", "PATCH"}:
        said["Content-Type"] = "application/json"
    if token:
        said["Authorization"] = f"Bearer {token}"
    said |= headers or {}
    lines = [f"{method} {path} HTTP/1.1", *map(": ".join, said.items())]
    return "\r\n".join((*lines, "\r\n")).encode() + (body or b"")


class HttpRig:
    """A daemon without disk and network, and its clients."""

    cut_off = ""
    handover = ("", "the log is in files")

    def __init__(
        self,
        *,
        is_virtual: bool = False,
        needs_token: bool = False,
        is_checked: bool = True,
        serves_ui: bool = False,
        hosts: Sequence[str] = (),
        bounds: Bounds | None = None,
        slice_now_ns: Callable[[], int] = lambda: 0,
        standing_by: Callable[[], tuple[str, str]] | None = None,
    ) -> None:
        """Begin; `is_checked`: the engine is checked after each turn, which is slow with many jobs.

        `slice_now_ns` is the clock of long requests' slices; by default none is ever over.
        `needs_token`: nobody may do anything but by a `token`, which `call` and `send` take.
        `serves_ui`: with the dashboard. `standing_by`: it is what a standby answers in this state.
        """
        self.clock: FakeClock | VirtualClock = (
            VirtualClock(START_MS) if is_virtual else FakeClock(START_MS)
        )
        self.engine = Engine(start_ms=START_MS)
        self.main_loop = CrankedLoop()
        self.disk = HeldDisk(self.main_loop)
        self.push_blocks: dict[str, list[PushBlock]] = {}
        self.faults: list[BaseException] = []
        self.is_checked = is_checked
        self._serves_ui = serves_ui
        self.turns_taken = 0
        self._entries: list[Entry] = []
        self.authenticator = Authenticator(
            Tokens([]) if needs_token else None, wall_ms=self.clock.wall_ms
        )
        self.poller, self.tasks = Poller(), BackgroundTasks(self.engine)
        self.schedules = ScheduleOpener(self.engine, self.tasks, self._follow_wall, print)
        self.line = LineServer(
            *(self.engine, Stats(self.engine, START_MS), [], self.clock.request_ms),
            *(self.poller, self.tasks, self.schedules),
            out_bytes_max=1 << 20,
        )
        self.turns = Turns(
            *(self.engine, self.clock, self.poller, self.line, self.tasks),
            *(self.main_loop, self.disk.commit),
        )
        # Every pass of asyncio takes so long that a turn follows it.
        selector = TurnSelector(count(step=PASSES_US * 1_000).__next__)
        selector.sleep = self._sleep
        self.loop = Loop(selector, self.clock.now_ms)
        self.loop.set_exception_handler(self._note_fault)
        self._is_ending = False
        self._slice_now_ns, self._standing_by = slice_now_ns, standing_by
        self.loop.run_until_complete(self._start(tuple(hosts), bounds or Bounds()))
        self.connections = self.server.connections
        self._client: Client | None = None
        self._clients: list[Client] = []
        self.settle()

    def _follow_wall(self) -> None:
        self.turns.look_at_wall_clock()

    async def _start(self, hosts: Sequence[str], bounds: Bounds) -> None:
        beside_jobs = self.line.stats.beside_jobs(START_MS)
        self.api = Api(
            self.engine,
            self.turns,
            self.clock,
            self.tasks,
            self.schedules,
            standing=self.clock if isinstance(self.clock, VirtualClock) else None,
            refusals=Refusals(),
            idempotency_keys_max=IDEMPOTENCY_KEYS_DEFAULT,
            reports=Reports(
                lambda _now_ms: beside_jobs,
                metrics=lambda _now_ms: (),
                metrics_type=CONTENT_TYPE,
                log_trouble=lambda: self.disk.trouble,
                space_trouble=lambda: self.disk.space_trouble,
                push_blocks=lambda topic: self.push_blocks.get(topic.name, ()),
                cut_off=lambda: self.cut_off,
                hand_over=lambda: self.handover,
            ),
        )
        self.api.loop_time.now_ns = self._slice_now_ns
        entrance = AccessControl(self.authenticator)
        if self._standing_by is not None:
            self.server = standby_server(
                *(self.clock, entrance, bounds, hosts, (), self.faults.append),
                state=self._standing_by,
                metrics=lambda _now_ms: (b"its lag",),
                metrics_type=CONTENT_TYPE,
            )
        else:
            self.server = HttpServer(
                *(self.api, entrance, bounds, hosts, (), self.faults.append),
                serves_ui=self._serves_ui,
            )
        self.server.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for client in self._clients:
            client.abort()
        with _unless(kind is not None):
            self.settle()
            self.connections.check()
        self._is_ending = True
        self.server.stop_accepting()
        self.loop.run_until_complete(self.server.stop())
        self.loop.close()
        self.line.close()
        self.poller.close()

    # --- Asking ----------------------------------------------------------------------------------

    def call(self, method: str, path: str, json: object = None, **more: Unpack[Said]) -> Answer:
        """Ask, and return the answer, which comes without waiting.

        `json` is sent as such, `data` as it is; JSON's media type is said where
        a body may be.
        """
        client = self._client
        if client is None or client.is_closing():
            client = self._client = self.connect()
        client.say(method, request(method, path, json, **more))
        self.settle()
        return client.the_answer

    def ok(self, method: str, path: str, json: object = None, *, token: str = "") -> Any:  # noqa: ANN401
        """Ask, and return the JSON of the answer, which is no problem."""
        answer = self.call(method, path, json, token=token)
        assert answer.status in {200, 201}, answer
        return answer.json

    def send(
        self,
        method: str,
        path: str,
        json: object = None,
        *,
        is_settled: bool = True,
        **more: Unpack[Said],
    ) -> Client:
        """Ask on a connection of its own, and return it; `answer` is None while there is none.

        Without `is_settled` nothing has happened yet: until `step` or `settle`.
        """
        client = self.connect()
        client.say(method, request(method, path, json, **more))
        if is_settled:
            self.settle()
        return client

    def connect(self, peer: tuple[str, int] = PEER) -> Client:
        """A connection on which nothing has been said."""
        client = Client(self.connections, peer)
        self._clients.append(client)
        return client

    def token(self, *scopes: Scope, topics: tuple[str, ...] = ("*",)) -> str:
        """A new token, good for these scopes; for all of them if none is named."""
        text, entry = made(len(self._entries) + 1, scopes or tuple(Scope), topics)
        self._entries.append(entry)
        self.authenticator.tokens = Tokens(self._entries)
        return text

    # --- Going on --------------------------------------------------------------------------------

    def settle(self) -> None:
        """Let everything happen until nobody has anything to do but wait."""
        self.loop.run_forever()
        if self.faults:
            raise self.faults[0]

    def pass_ms(self, by_ms: int) -> None:
        """Let so much time pass, and what follows from it happen."""
        if isinstance(self.clock, VirtualClock):
            self.clock.go_on_to(self.clock.now_ms() + by_ms)
        else:
            self.clock.advance(by_ms)
        self.settle()

    def step(self) -> None:
        """Let asyncio call what is ready, once, and take one turn."""
        self.loop.call_soon(self.loop.stop)
        self.loop.run_forever()
        if self.is_checked:
            check(self.engine)
        if self.faults:
            raise self.faults[0]

    def meanwhile(self, client: Client) -> Iterator[None]:
        """Until that one is answered: others are, every four steps."""
        while client.answer is None:
            other = self.send("GET", "/healthz", is_settled=False)
            for _ in range(4):
                self.step()
            assert other.the_answer.status == 200
            yield

    def after_restart(self) -> Engine:
        """An engine made of what had become durable when the daemon was killed, at this time."""
        replay = Replay(Engine(start_ms=START_MS))
        for frame in self.disk.durable_frames:
            replay.play(frame)
        replay.finish(self.clock.now_ms())
        return replay.engine

    def _sleep(self, timeout_s: float | None) -> None:
        """Take turns until asyncio has something to do, or nobody has."""
        turns = self.turns
        for _ in range(TURNS_MAX):
            turns.sleep(0)
            self.turns_taken += 1
            if timeout_s == 0 or self.main_loop.is_woken:
                return
            if turns._wait_s(0, NEVER_NS) != 0:
                break
        else:
            raise AssertionError("it never comes to rest")
        if self.is_checked:
            check(self.engine)
        if self._is_ending and timeout_s is not None:
            self.loop.ahead_s += timeout_s
        else:
            self.loop.stop()

    def _note_fault(self, _loop: object, context: dict[str, Any]) -> None:
        self.faults.append(context.get("exception") or AssertionError(context["message"]))


@contextmanager
def _unless(is_over: bool) -> Iterator[None]:
    """Do not let a failure on the way out hide the first one."""
    try:
        yield
    except Exception:
        if not is_over:
            raise


# --- What tests of puts and workers do again and again --------------------------------------------

JOBS: Final = "/v1/topics/mail/jobs"
RESERVE: Final = "/v1/topics/mail/reserve"


def put(rig: HttpRig, topic: str = "mail", **fields: object) -> dict[str, Any]:
    return dict(rig.ok("POST", f"/v1/topics/{topic}/jobs", {"body": 1, **fields}))


def reserved(rig: HttpRig) -> dict[str, Any]:
    (job,) = rig.ok("POST", RESERVE)["jobs"]
    return dict(job)


def wait(rig: HttpRig, **fields: object) -> Client:
    return rig.send("POST", RESERVE, {"wait": "30s", **fields})


def ids(client: Client) -> list[int]:
    """Return the jobs that a client was handed; none if the answer is that there are none."""
    answer = client.the_answer
    assert answer.status in {200, 204}, answer
    return [job["id"] for job in answer.json["jobs"]] if answer.status == 200 else []


def stored(engine: Engine, job_id: int = 1) -> dict[str, Any]:
    """Return everything about a job but its body, as an answer has it."""
    record = engine.store.jobs.get(job_id)
    assert record is not None
    return dict(msgspec.to_builtins(whole_job(engine.store, job_id, record, lambda _: True)))


def http_refusals(kind: type[Refusal] = Refusal) -> Iterator[type[Refusal]]:
    """Yield every class of refusal that HTTP can answer; no call ignores a topic or has many."""
    for below in kind.__subclasses__():
        yield from http_refusals(below)
        is_ours = below.__module__.startswith(("delayd.core.", "delayd.http."))
        if is_ours and below not in {HttpRefusal, LastWatched, TooManyWatched}:
            yield below
