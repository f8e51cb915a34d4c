"""How long the others wait for one client: the chapter `neighbours`.

A neighbour puts a job a millisecond after the reply to the last and notes how long each reply took.
Beside it one client does something big:

    nothing                     what the neighbour waits on an idle daemon
    unknown names               a batch of 4 MB, each job of which has 300 fields that nobody knows
    unknown names in nacks      the same for `POST /v1/nack`
    retry ladders               a batch of 1,000 jobs with a ladder of 255 steps each
    dense JSON                  one job of 4 MB whose body is a list of numbers
    lines of JSON               a batch of 4 MB
    kick                        200,000 buried jobs by one command of the line
    close                       a connection ends that holds 200,000 jobs
    close with a ladder         the same, where each is a failed attempt
    watch                       40,000 tubes on one connection, then 2,700 reserves in one go
    list and cancel             300,000 jobs, in pages and then at once
    all of it                   each of these at the same time, beside eight workers
    patterns                    300 topics with 198 hyphens, where the configuration has a pattern
                                with six stars
    dead pipeliners             60 connections that asked for statistics as often as the buffers
                                take, and closed; *processor time* is what the daemon takes of the
                                time of half a reading, five readings later
    empty lines                 3 million empty lines of JSON
    idempotency keys            100,000 of them, where 50,000 may be remembered
    answers 32 x 8              32 topics whose jobs go to a receiver each that writes small answers
                                without end, by 8 connections each
    answers 1 x 256             one such receiver, and 256 connections
    answers 32 x 8 TLS, ...     the same with TLS, with 1xx answers (hints) and with chunks of one
                                byte (chunks); `benchmarks.receivers`
    redis replies 1 x 128, ...  a topic whose jobs go to a Redis sink by 128 connections, with a
                                server that answers so; `amqp frames` and `frame` with a broker

Each has a daemon of its own. A reading says how long the client's work took, what the neighbour
waited, and the daemon's resident memory before, at its highest and some seconds after. Work that is
not done after 40 s (`all of it`: 120 s) is left there and has no time; the wait that the neighbour
is in counts as long as it has lasted.
"""

import contextlib
import functools
import http.client
import json
import multiprocessing
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import product
from multiprocessing.connection import Connection, wait
from types import MappingProxyType
from typing import Final, NamedTuple

from benchmarks.endpoint import push_settings, put_each, set_policy
from benchmarks.http import Answered, converse
from benchmarks.http import request as post
from benchmarks.line import LINE_S_MAX, PATIENCE_S, Line, connect
from benchmarks.processes import forget_highest, held_bytes, spent_seconds
from benchmarks.receivers import Certificate, hostile, loopback_certificate, trusting
from benchmarks.registry import Bench, Case, Durability, Values
from benchmarks.servers.beanstalk import standing_jobs
from benchmarks.servers.delayd import RunningDelayd, new_delayd
from benchmarks.table import percentile

JOBS: Final = 200_000
LISTED: Final = 300_000
PAGES: Final = 50
TUBES: Final = 40_000
RESERVES: Final = 2_700
WORKERS: Final = 8
BATCH: Final = 1_000
JOBS_PATH: Final = "/v1/topics/big/jobs"
BODY_BYTES: Final = 4_000_000
SETTLE_SHARE: Final = 0.5
"""Of a reading's time: before the work begins, and when it is done."""
AFTERWARDS_SHARE: Final = 2.0
"""Before the memory after the work is read."""
WATCHED_SHARE: Final = 5.0
"""How long hostile servers are called, and vanished clients looked at."""
ALL_S_MAX: Final = 120.0
WORK_S_MAX: Final = 40.0
GRACE_S: Final = 2.0
"""For the neighbour's last reply."""
PAUSE_S: Final = 0.001
BEGIN_S: Final = 0.2

PATTERN: Final = "*-*-*-*-*-dead"
HYPHENS: Final = 198
PATTERN_TOPICS: Final = 300
PIPELINERS: Final = 60
PIPELINED_BYTES: Final = 4_000_000
EMPTY_LINES: Final = 3_000_000
IDEMPOTENCY_KEYS: Final = 100_000
KEYS_S_MAX: Final = 32.0
KEYS_CONFIG: Final = "[http]\nidempotency_keys_max = 50000\n"
KINDS: Final = ("answers", "hints", "chunks")
SHAPES: Final = ((32, 8), (1, 256))
"""How many topics, each with a receiver of its own, and how many calls to each."""
SINKS: Final = (1, 128)
SINK_KINDS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {"redis": ("replies", "bulk", "array", "nested", "errors"), "amqp": ("frames", "frame")}
)
SINK_OPTIONS: Final[Mapping[str, str]] = MappingProxyType(
    {"redis": 'list = "a"\nconnections_max = 128', "amqp": 'routing_key = "a"'}
)
CALLED_JOBS: Final = 8_192

Work = Callable[[], Values | None]
"""What is done while the neighbour is measured; returns what is known besides, if anything."""
Prepare = Callable[[RunningDelayd, Bench], Work]
"""Prepares it, before anything is measured."""


def ask_http(port: int, method: str, path: str, body: bytes = b"", kind: str = "json") -> None:
    """Send one request and read the answer; a daemon may well close the connection instead."""
    kinds = {"json": "application/json", "lines": "application/x-ndjson"}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LINE_S_MAX)
    with contextlib.closing(connection), contextlib.suppress(OSError, http.client.HTTPException):
        connection.request(method, path, body, {"Content-Type": kinds[kind]})
        connection.getresponse().read()


# --- What the one client does --------------------------------------------------------------------


def nothing(_daemon: RunningDelayd, bench: Bench) -> Work:
    """Leave the neighbour alone for a while."""
    return lambda: time.sleep(bench.seconds)


def request(method: str, path: str, content: Callable[[Bench], object]) -> Prepare:
    """Send a body that has been made before."""

    def prepare(daemon: RunningDelayd, bench: Bench) -> Work:
        body = json.dumps(content(bench)).encode()
        return lambda: ask_http(daemon.http_port, method, path, body)

    return prepare


def repeated(item: Mapping[str, object], bench: Bench) -> list[Mapping[str, object]]:
    """Return the item so often that the body is as long as one may be."""
    return [item] * bench.entries(BODY_BYTES // (len(json.dumps(item)) + 2))


UNKNOWN: Final = {f"delai{number}": 1 for number in range(300)}
"""Three hundred fields that nobody knows."""
LADDER: Final = [f"{step + 1}s" for step in range(255)]
"""The longest."""


def lines(daemon: RunningDelayd, bench: Bench) -> Work:
    """Put a batch as lines of JSON, as many jobs as one batch may have."""
    job = json.dumps({"body": "x" * (BODY_BYTES // BATCH - 40), "delay": "1h"}) + "\n"
    body = job.encode() * bench.entries(BATCH)
    return lambda: ask_http(daemon.http_port, "POST", JOBS_PATH, body, "lines")


def fill(line: Line, jobs: int, delay_s: int = 0) -> None:
    """Put jobs with short bodies and a long ttr."""
    line.put_all([b"put 0 %d 86400 1\r\nx\r\n" % delay_s] * jobs)


def hold(line: Line, jobs: int) -> list[bytes]:
    """Put and reserve jobs; return their ids."""
    fill(line, jobs)
    return [reply.split()[1] for reply in line.ask_many([b"reserve\r\n"] * jobs)]


def kick(daemon: RunningDelayd, bench: Bench) -> Work:
    """Kick all that is buried by one command."""
    jobs, line = bench.entries(JOBS), Line(daemon.port, "big")
    line.ask_many([b"bury %b 0\r\n" % job_id for job_id in hold(line, jobs)])

    def work() -> None:
        line.ask(b"kick %d\r\n" % jobs)
        line.close()

    return work


def close(daemon: RunningDelayd, bench: Bench) -> Work:
    """End a connection that holds many jobs, and wait until all are ready again."""
    holder = Line(daemon.port, "big")
    hold(holder, bench.entries(JOBS))

    def work() -> None:
        holder.close()
        while standing_jobs(daemon.port, b"big", states=(b"reserved",)):
            time.sleep(0.05)

    return work


def close_with_ladder(daemon: RunningDelayd, bench: Bench) -> Work:
    """The same where the end of a connection is a failed attempt of each job."""
    set_policy(daemon.port, "big", {"retry": ["15s", "3m", "10m"]})
    return close(daemon, bench)


def watch(daemon: RunningDelayd, bench: Bench) -> Work:
    """Watch many tubes, then reserve in one go."""
    tubes, reserves = bench.entries(TUBES), bench.entries(RESERVES)

    def work() -> None:
        line = Line(daemon.port, "big")
        line.ask_many([b"watch tube-%d\r\n" % number for number in range(tubes)])
        line.send(b"reserve-with-timeout 0\r\n" * reserves)
        for _ in range(reserves):
            line.reply()
        line.close()

    return work


def list_and_cancel(daemon: RunningDelayd, bench: Bench) -> Work:
    """Page through many delayed jobs, and cancel all."""
    with contextlib.closing(Line(daemon.port, "big")) as line:
        fill(line, bench.entries(LISTED), 3_600)

    def work() -> None:
        for _ in range(PAGES):
            ask_http(daemon.http_port, "GET", f"{JOBS_PATH}?limit=1000")
        ask_http(daemon.http_port, "DELETE", f"{JOBS_PATH}?state=delayed")

    return work


ROWS: Final[Mapping[str, Prepare]] = MappingProxyType(
    {
        "nothing": nothing,
        "unknown names": request(
            "POST",
            JOBS_PATH,
            lambda bench: {"jobs": repeated({"body": 1, **UNKNOWN}, bench)},
        ),
        "unknown names in nacks": request(
            "POST",
            "/v1/nack",
            lambda bench: {"nacks": repeated({"token": "1-1-1", **UNKNOWN}, bench)},
        ),
        "retry ladders": request(
            "POST",
            JOBS_PATH,
            lambda bench: {
                "jobs": [{"body": "x", "retry": LADDER, "delay": "1h"}] * bench.entries(BATCH)
            },
        ),
        "dense JSON": request(
            "POST",
            JOBS_PATH,
            lambda bench: {"body": [1] * bench.entries(1_300_000), "delay": "1h"},
        ),
        "lines of JSON": lines,
        "kick": kick,
        "close": close,
        "close with a ladder": close_with_ladder,
        "watch": watch,
        "list and cancel": list_and_cancel,
    }
)


def ordinary(port: int, until: threading.Event) -> None:
    """Put a job, reserve it and delete it, until told to stop."""
    line = Line(port, "ordinary")
    while not until.is_set():
        line.ask(b"put 0 0 60 1\r\nx\r\n")
        line.ask(b"delete %b\r\n" % line.ask(b"reserve\r\n").split()[1])
    line.close()


def all_of_it(daemon: RunningDelayd, bench: Bench) -> Work:
    """Prepare each row, then do all at once beside ordinary traffic."""
    works = [row(daemon, bench) for name, row in ROWS.items() if name not in {"nothing", "close"}]

    def work() -> None:
        until = threading.Event()
        workers = [
            threading.Thread(target=ordinary, args=(daemon.port, until)) for _ in range(WORKERS)
        ]
        clients = [threading.Thread(target=one) for one in works]
        for thread in workers + clients:
            thread.start()
        for thread in clients:
            thread.join()
        until.set()
        for thread in workers:
            thread.join()

    return work


# --- What a stranger does ------------------------------------------------------------------------


class Stage(NamedTuple):
    """What a row needs besides a daemon."""

    prepare: Prepare
    config: str = ""
    trusted: Certificate | None = None


Row = Callable[[], AbstractContextManager[Stage]]


@contextlib.contextmanager
def staged(prepare: Prepare, config: str = "") -> Iterator[Stage]:
    """Return a row that needs no more than settings."""
    yield Stage(prepare, config)


def patterns(daemon: RunningDelayd, bench: Bench) -> Work:
    """Put to topics that take long to tell from the pattern."""
    names = [f"t{number:-<{HYPHENS + 1}}" for number in range(bench.entries(PATTERN_TOPICS))]

    def work() -> None:
        with contextlib.closing(Line(daemon.port)) as line:
            line.put_all([b"put-in-tube %b 0 3600 60 1\r\nx\r\n" % name.encode() for name in names])

    return work


def dead_pipeliners(daemon: RunningDelayd, bench: Bench) -> Work:
    """Ask for more than anybody waits for, and close; see what the daemon still does."""

    def work() -> Values:
        for _ in range(bench.entries(PIPELINERS)):
            pipeline_and_close(daemon.port)
        time.sleep(WATCHED_SHARE * bench.seconds)
        used_s = spent_seconds(daemon.processes())
        time.sleep(SETTLE_SHARE * bench.seconds)
        return {"cpu_ms": (spent_seconds(daemon.processes()) - used_s) * 1e3}

    return work


def pipeline_and_close(port: int) -> None:
    """Ask for statistics as often as the buffers take at once, and close.

    No reply has come by then, so the end is one like any other and no reset.
    """
    command = b"stats\r\n"
    with connect(port) as sock:
        sock.send(command * (PIPELINED_BYTES // len(command)))


def empty_lines(daemon: RunningDelayd, bench: Bench) -> Work:
    """Send a body that has no jobs."""
    body = b"\n" * bench.entries(EMPTY_LINES)
    return lambda: ask_http(daemon.http_port, "POST", JOBS_PATH, body, "lines")


def idempotency_keys(daemon: RunningDelayd, bench: Bench) -> Work:
    """Put jobs, each with a key of its own; tell what is on disk afterwards."""
    numbers = iter(range(bench.entries(IDEMPOTENCY_KEYS)))

    def work() -> Values:
        until_s = time.monotonic() + KEYS_S_MAX

        def following(_connection: int, _answer: Answered | None) -> bytes | None:
            number = next(numbers, None)
            if number is None or time.monotonic() > until_s:
                return None
            header = f"Idempotency-Key: order-{number}"
            return post(JOBS_PATH, {"body": number, "delay": "1h"}, header)

        converse(daemon.http_port, following)
        return {"disk_bytes": daemon.log_bytes()}

    return work


def calls_for(
    daemon: RunningDelayd, bench: Bench, policies: Sequence[object], gone: Callable[[], None]
) -> Work:
    """Have a topic called by each of these policies for a while; `gone` ends who is called."""
    each = max(1, bench.entries(CALLED_JOBS) // len(policies))
    for number in range(len(policies)):
        put_each(daemon.port, f"called-{number}", [0.0] * each)

    def work() -> None:
        for number, policy in enumerate(policies):
            set_policy(daemon.port, f"called-{number}", policy)
        time.sleep(WATCHED_SHARE * bench.seconds)
        gone()

    return work


@contextlib.contextmanager
def hostile_receivers(kind: str, places: int, calls: int, *, is_secure: bool) -> Iterator[Stage]:
    """Send jobs to receivers that never end; they go before the memory after it is read."""
    with contextlib.ExitStack() as stack:
        trusted = stack.enter_context(loopback_certificate()) if is_secure else None
        receivers = stack.enter_context(hostile(kind, places=places, certificate=trusted))
        policies = [
            {"retry": "30s", "push": {"url": url, "concurrency": calls}} for url in receivers.urls()
        ]

        def prepare(daemon: RunningDelayd, bench: Bench) -> Work:
            return calls_for(daemon, bench, policies, stack.close)

        yield Stage(prepare, push_settings(receivers.ports), trusted)


@contextlib.contextmanager
def hostile_sinks(kind: str, scheme: str) -> Iterator[Stage]:
    """The same with the servers of sinks."""
    places, calls = SINKS
    with contextlib.ExitStack() as stack:
        ports = stack.enter_context(hostile(kind, places=places)).ports
        config = "".join(
            f'[sinks.sink-{number}]\nkind = "{scheme}"\nurl = "{scheme}://127.0.0.1:{port}/0"\n'
            f"{SINK_OPTIONS[scheme]}\n"
            for number, port in enumerate(ports)
        )
        policies = [
            {"retry": "1s", "push": {"sink": f"sink-{number}", "concurrency": calls}}
            for number in range(places)
        ]

        def prepare(daemon: RunningDelayd, bench: Bench) -> Work:
            return calls_for(daemon, bench, policies, stack.close)

        yield Stage(prepare, config)


STRANGERS: Final[Mapping[str, Row]] = MappingProxyType(
    {
        "patterns": functools.partial(staged, patterns, f'[topics."{PATTERN}"]\nretry = "1s"\n'),
        "dead pipeliners": functools.partial(staged, dead_pipeliners),
        "empty lines": functools.partial(staged, empty_lines),
        "idempotency keys": functools.partial(staged, idempotency_keys, KEYS_CONFIG),
        **{
            f"{kind} {places} x {calls}{' TLS' * is_secure}": functools.partial(
                hostile_receivers, kind, places, calls, is_secure=is_secure
            )
            for kind, (places, calls), is_secure in product(KINDS, SHAPES, (False, True))
        },
        **{
            f"{scheme} {kind} {' x '.join(map(str, SINKS))}": functools.partial(
                hostile_sinks, kind, scheme
            )
            for scheme, kinds in SINK_KINDS.items()
            for kind in kinds
        },
    }
)


# --- The neighbour -------------------------------------------------------------------------------


def put_and_wait(port: int, pipe: Connection) -> None:
    """Put jobs until told to stop; send back how long each reply took, in seconds.

    A reply that does not come soon after that counts as long as it was waited for.
    """
    sock = connect(port)
    waits_s = []
    is_answered = True
    while is_answered and not pipe.poll(PAUSE_S):
        start_s = time.perf_counter()
        sock.sendall(b"put 0 3600 60 1\r\nx\r\n")
        is_answered = sock in wait([sock, pipe]) or sock in wait([sock], GRACE_S)
        waits_s.append(time.perf_counter() - start_s)
        assert not is_answered or sock.recv(100).startswith(b"INSERTED")
    pipe.send(waits_s)


@contextlib.contextmanager
def neighbour(port: int) -> Iterator[list[float]]:
    """Measure while the block runs; the list has the waits afterwards."""
    waits_s: list[float] = []
    here, there = multiprocessing.Pipe()
    process = multiprocessing.Process(target=put_and_wait, args=(port, there), daemon=True)
    process.start()
    try:
        time.sleep(BEGIN_S)
        yield waits_s
    finally:
        here.send(None)
        if here.poll(LINE_S_MAX):
            waits_s.extend(here.recv())
        process.join(PATIENCE_S)


def done_within(work: Work, seconds: float) -> Sequence[Values]:
    """Do it in a thread; return what it returns, or nothing: it is not done, and left there.

    Raises what the work raises.
    """
    found: list[Values | Exception] = []

    def act() -> None:
        try:
            found.append(work() or {})
        except Exception as error:  # noqa: BLE001 - the thread that waits raises it
            found.append(error)

    thread = threading.Thread(target=act, daemon=True)
    thread.start()
    thread.join(seconds)
    for one in found:
        if isinstance(one, Exception):
            raise one
    return [one for one in found if not isinstance(one, Exception)]


# --- The chapter ---------------------------------------------------------------------------------


def row_of(name: str) -> Row:
    """Return what the row needs."""
    if name in STRANGERS:
        return STRANGERS[name]
    return functools.partial(staged, all_of_it if name == "all of it" else ROWS[name])


def measured(name: str, bench: Bench) -> Values:
    """Carry out a row beside a neighbour."""
    with row_of(name)() as stage:
        environment = trusting(stage.trusted)
        with new_delayd(bench, config=stage.config, environment=environment) as daemon:
            return beside(daemon, stage.prepare(daemon, bench), name, bench)


def beside(daemon: RunningDelayd, work: Work, name: str, bench: Bench) -> Values:
    """Do the work, and see what the neighbour waits and what the daemon holds."""
    time.sleep(SETTLE_SHARE * bench.seconds)
    before_bytes = held_bytes(daemon.pid)
    forget_highest(daemon.pid)
    with neighbour(daemon.port) as waits_s:
        start_s = time.perf_counter()
        found = done_within(work, ALL_S_MAX if name == "all of it" else WORK_S_MAX)
        took_s = time.perf_counter() - start_s
        time.sleep(SETTLE_SHARE * bench.seconds)
    time.sleep(AFTERWARDS_SHARE * bench.seconds)
    waits_ms = [1e3 * wait_s for wait_s in waits_s]
    return {
        **{f"p{of}_ms": percentile(waits_ms, of) for of in (50, 99)},
        "held_ms": max(waits_ms),
        "before_bytes": before_bytes,
        "highest_bytes": held_bytes(daemon.pid, "VmHWM"),
        "memory_bytes": held_bytes(daemon.pid),
        **({"seconds": took_s} | dict(found[0]) if found else {}),
    }


def cases() -> Sequence[Case]:
    """Return the chapter."""
    return [
        Case(
            chapter="neighbours",
            operation="a put of a neighbour",
            size={"beside": name},
            subject="delayd",
            measure=functools.partial(measured, name),
            policy=Durability.BEFORE_ANSWER,
            runs_max=1,
        )
        for name in (*ROWS, "all of it", *STRANGERS)
    ]
