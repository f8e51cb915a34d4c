"""The clients of a soak: one function for each thing that clients do, over and over.

An actor does one round on connections of its own and returns; `lasting` calls it again until told
to stop, and counts what went wrong. What it puts is in the book's ledger. Producers are stopped
first; workers go on until the ledger has nothing left to be finished.

`part` is a process with some of the actors. It answers what is asked through its pipe: `sample` for
what was noted since the last time, `stop` for what the ledger comes to.
"""

import contextlib
import http.client
import json
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from types import MappingProxyType
from typing import Final, NamedTuple

from benchmarks.accounts import Ledger, Totals
from benchmarks.line import Line
from benchmarks.neighbours import HYPHENS, pipeline_and_close

Ports = Mapping[str, int]
"""Of the daemon, by what is spoken there; and under `hostile` how many receivers there are."""
ROUND_S: Final = 10.0
"""An actor makes its connections anew after so long."""
PAUSE_S: Final = 0.2
DRAIN_S: Final = 30.0
WORK_TTR_S: Final = 2
KEYS: Final = 200
LISTED: Final = 300
PATTERN_TOPICS: Final = 50
EMPTY_LINES: Final = 200_000
CALLED_JOBS: Final = 100
"""For each hostile receiver, every round."""
UNKNOWN: Final = -1
"""Whether a key has a job: the connection broke before the answer."""
PUSHED: Final = "good"
FAILING: Final = "failing"


class UnexpectedAnswerError(Exception):
    """The daemon answered what it should not have; the message is what it was about."""


class Noted(NamedTuple):
    """What the actors of a part have noted since the last sample."""

    waits_ms: list[float]
    """Of a neighbour's puts."""
    late_ms: list[float]
    """Of jobs with a time."""
    troubles: Counter[str]
    """What went wrong, by actor; connections that a restart closed are among them."""


class Closed(NamedTuple):
    """What a part has come to."""

    noted: Noted
    totals: Totals
    pushed: int


class Book:
    """What the actors of a part share."""

    def __init__(self) -> None:
        self.ledger = Ledger()
        self.noted = Noted([], [], Counter())
        self.pushed = 0
        """Puts that were acknowledged, of jobs for the good receiver."""
        self.keyed: dict[int, int] = {}
        """The number of each key's live job, or `UNKNOWN`."""
        self.due_s: dict[int, float] = {}
        """The moments, by `time.monotonic`, before which timed jobs may not come."""
        self.ids: dict[str, int] = {}
        """By idempotency key."""

    def take(self) -> Noted:
        """Return what was noted, and begin anew."""
        noted, self.noted = self.noted, Noted([], [], Counter())
        return noted


class Http:
    """One connection that is kept alive."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)

    def ask(
        self, method: str, path: str, content: object = None, headers: dict[str, str] | None = None
    ) -> tuple[int, dict[str, object]]:
        """Send a request; return the status and the answer. Bytes are lines of JSON."""
        kind = "application/x-ndjson" if isinstance(content, bytes) else "application/json"
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        body = b"" if content is None else body
        self._connection.request(method, path, body, {"Content-Type": kind, **(headers or {})})
        response = self._connection.getresponse()
        answer = response.read()
        return response.status, json.loads(answer) if answer else {}

    def close(self) -> None:
        """Close it."""
        self._connection.close()


class Place(NamedTuple):
    """What an actor has of the daemon."""

    ports: Ports
    book: Book
    until: threading.Event

    def turns(self, pause_s: float) -> Iterator[None]:
        """Yield for a round, with pauses, unless it is time to stop."""
        ends_s = time.monotonic() + ROUND_S
        while not self.until.is_set() and time.monotonic() < ends_s:
            yield
            self.until.wait(pause_s)

    @contextlib.contextmanager
    def line(self, topic: str) -> Iterator[Line]:
        """Connect to the line for the length of the block."""
        with contextlib.closing(Line(self.ports["line"], topic)) as line:
            yield line

    @contextlib.contextmanager
    def http(self) -> Iterator[Http]:
        """The same for HTTP."""
        with contextlib.closing(Http(self.ports["http"])) as connection:
            yield connection

    def end(self, number: int, ask: Callable[[], bool]) -> None:
        """Ask for the end of a job, and note what becomes of it."""
        self.book.ledger.asked(number)
        if ask():
            self.book.ledger.finished(number)
        else:
            self.book.ledger.refused(number)


def expect(what: str, *, is_right: bool) -> None:
    """Raise `UnexpectedAnswerError` if it is not."""
    if not is_right:
        raise UnexpectedAnswerError(what)


def put_number(line: Line, number: int, delay_s: float) -> bytes:
    """Put a job whose body is its number; return the reply."""
    body = b"%d" % number
    return line.ask(b"put 100 %.3f %d %d\r\n%b\r\n" % (delay_s, WORK_TTR_S, len(body), body))


# --- Timed jobs, and a neighbour -----------------------------------------------------------------


def timed_puts(place: Place) -> None:
    """Put jobs that are due in a few milliseconds or seconds."""
    ledger = place.book.ledger
    with place.line("timed") as line:
        for _ in place.turns(0.01):
            delay_s = random.choice((0.001, 0.1, random.randrange(1, 3_000) / 1_000))
            number = ledger.number()
            place.book.due_s[number] = time.monotonic() + delay_s
            reply = put_number(line, number, delay_s)
            expect("put", is_right=reply.startswith(b"INSERTED"))
            ledger.acknowledged(number)


def timed_worker(place: Place) -> None:
    """Reserve them, and note how late they are; less than nothing is early."""
    with place.line("timed") as line:
        for _ in place.turns(0):
            reply = line.ask(b"reserve-with-timeout 1\r\n")
            now_s = time.monotonic()
            if not reply.startswith(b"RESERVED"):
                continue
            job_id, number = reply.split()[1], int(reply.split()[3])
            place.book.ledger.received(number)
            due_s = place.book.due_s.pop(number, None)
            if due_s is not None:
                place.book.noted.late_ms.append(1e3 * (now_s - due_s))
            place.end(number, lambda: line.ask(b"delete %b\r\n" % job_id) == b"DELETED\r\n")  # noqa: B023


def neighbour(place: Place) -> None:
    """Put jobs and delete them; note how long a put took."""
    with place.line("neighbour") as line:
        for _ in place.turns(0.005):
            start_s = time.perf_counter()
            reply = line.ask(b"put 0 3600 60 1\r\nx\r\n")
            place.book.noted.waits_ms.append(1e3 * (time.perf_counter() - start_s))
            line.ask(b"delete %b\r\n" % reply.split()[1])


# --- Workers whose jobs fail, come back and are buried -------------------------------------------


def line_puts(place: Place) -> None:
    """Put work over the line."""
    with place.line("work") as line:
        for _ in place.turns(0.02):
            number = place.book.ledger.number()
            expect("put", is_right=put_number(line, number, 0.5).startswith(b"INSERTED"))
            place.book.ledger.acknowledged(number)


def line_worker(place: Place) -> None:
    """Delete most; release some, bury and kick some, and let the ttr of some run out."""
    with place.line("work") as line:
        for _ in place.turns(0.01):
            reply = line.ask(b"reserve-with-timeout 1\r\n")
            if not reply.startswith(b"RESERVED"):
                continue
            job_id, number = reply.split()[1], int(reply.split()[3])
            place.book.ledger.received(number)
            chance = random.random()
            if chance < 0.8:
                place.end(number, lambda: line.ask(b"delete %b\r\n" % job_id) == b"DELETED\r\n")  # noqa: B023
            elif chance < 0.9:
                line.ask(b"release %b 10 0.1\r\n" % job_id)
            elif chance < 0.95:
                line.ask(b"bury %b 10\r\n" % job_id)
                line.ask(b"kick-job %b\r\n" % job_id)


def http_puts(place: Place) -> None:
    """Put batches as lines of JSON, some of them empty."""
    ledger = place.book.ledger
    with place.http() as connection:
        for _ in place.turns(PAUSE_S):
            numbers = [ledger.number() for _ in range(10)]
            jobs = [
                {"body": number, "delay": random.random(), "ttr": WORK_TTR_S} for number in numbers
            ]
            lines = "\n\n\n".join(json.dumps(job) for job in jobs).encode()
            _, answer = connection.ask("POST", "/v1/topics/batch/jobs", lines)
            results = answer.get("results")
            expect("batch", is_right=isinstance(results, list) and len(results) == len(numbers))
            for number in numbers:
                ledger.acknowledged(number)


def http_worker(place: Place) -> None:
    """Acknowledge most, nack some, and let the ttr of some run out."""
    with place.http() as connection:
        for _ in place.turns(0.05):
            content = {"max": 20, "wait": "1s"}
            _, answer = connection.ask("POST", "/v1/topics/batch/reserve", content)
            for job in answer.get("jobs", []):  # type: ignore[attr-defined]
                token, number = job["token"], job["body"]
                place.book.ledger.received(number)
                chance = random.random()
                path = f"/v1/jobs/{job['id']}/"
                if chance < 0.85:
                    place.end(
                        number,
                        lambda: connection.ask("POST", path + "ack", {"token": token})[0] == 200,  # noqa: B023
                    )
                elif chance < 0.95:
                    connection.ask("POST", path + "nack", {"token": token, "delay": 0.2})


# --- Producers that change their minds -----------------------------------------------------------


def keys(place: Place) -> None:
    """Put under keys, replace, reschedule and cancel; a key's latest job is there till then."""
    keyed = place.book.keyed
    with place.http() as connection:
        for _ in place.turns(0.02):
            key = random.randrange(KEYS)
            if key not in keyed or keyed[key] == UNKNOWN or random.random() < 0.3:
                put_keyed(place, connection, key)
            elif random.random() < 0.6:
                status, _ = connection.ask("PATCH", key_path(key), {"delay": "2h"})
                expect("reschedule", is_right=status == 200)
            else:
                cancel(place, connection, key)
        if place.until.is_set():
            for key in [key for key, number in keyed.items() if number != UNKNOWN]:
                cancel(place, connection, key)


def key_path(key: int) -> str:
    """Return where the job of a key is."""
    return f"/v1/topics/keyed/keys/soak-{key}"


def put_keyed(place: Place, connection: Http, key: int) -> None:
    """Put a job under the key, in the place of the one that has it."""
    ledger, before = place.book.ledger, place.book.keyed.get(key)
    number = ledger.number()
    if before not in {None, UNKNOWN}:
        ledger.asked(before)
    place.book.keyed[key] = UNKNOWN
    status, _ = connection.ask("PUT", key_path(key), {"body": number, "delay": "1h"})
    expected = {None: {201}, UNKNOWN: {200, 201}}.get(before, {200})
    expect(f"keyed put {status}", is_right=status in expected)
    ledger.acknowledged(number)
    if before not in {None, UNKNOWN}:
        ledger.finished(before)
    place.book.keyed[key] = number


def cancel(place: Place, connection: Http, key: int) -> None:
    """Cancel the job of a key, which is there."""
    number = place.book.keyed[key]
    place.book.keyed[key] = UNKNOWN
    place.end(number, lambda: connection.ask("DELETE", key_path(key))[0] == 200)
    del place.book.keyed[key]


def idempotent(place: Place) -> None:
    """Put with few keys for ever: the answer to a key is the same each time."""
    with place.http() as connection:
        for _ in place.turns(0.05):
            key = f"soak-{random.randrange(KEYS)}"
            content = {"body": key, "delay": "1h"}
            headers = {"Idempotency-Key": key}
            _, answer = connection.ask("POST", "/v1/topics/idempotent/jobs", content, headers)
            job_id = answer.get("id")
            expect("idempotent put", is_right=isinstance(job_id, int))
            assert isinstance(job_id, int)
            expect("same id", is_right=place.book.ids.setdefault(key, job_id) == job_id)


def listing(place: Place) -> None:
    """Page through jobs, and cancel all of them."""
    topic = "/v1/topics/listed/jobs"
    with place.http() as connection:
        connection.ask("DELETE", f"{topic}?all=true")
        for _ in place.turns(1.0):
            job = {"body": "listed", "delay": "1h"}
            connection.ask("POST", topic, {"jobs": [job] * LISTED})
            after, count = "", 0
            while True:
                _, page = connection.ask("GET", f"{topic}?limit=100{after}")
                count += len(page["jobs"])  # type: ignore[arg-type]
                if page["after"] is None:
                    break
                after = f"&after={page['after']}"
            _, answer = connection.ask("DELETE", f"{topic}?state=delayed")
            expect("listing", is_right=count == LISTED)
            expect("bulk cancel", is_right=answer == {"cancelled": LISTED})


# --- Clients that nobody wants -------------------------------------------------------------------


def patterns(place: Place) -> None:
    """Put to topics that take long to tell from a pattern with stars; delete the jobs."""
    with place.line("default") as line:
        for _ in place.turns(0.1):
            topic = f"t{random.randrange(PATTERN_TOPICS):-<{HYPHENS + 1}}"
            reply = line.ask(b"put-in-tube %b 0 3600 60 1\r\nx\r\n" % topic.encode())
            expect("put-in-tube", is_right=reply.startswith(b"INSERTED"))
            line.ask(b"delete %b\r\n" % reply.split()[1])


def pipeliners(place: Place) -> None:
    """Ask for more than anybody reads, and vanish."""
    for _ in place.turns(5.0):
        pipeline_and_close(place.ports["line"])


def slow_readers(place: Place) -> None:
    """Ask for statistics, and read a byte now and then."""
    with place.line("default") as line:
        line.send(b"stats\r\n" * 200)
        for _ in place.turns(0.2):
            line.read(10)


def empty_lines(place: Place) -> None:
    """Send a batch without jobs: it is refused."""
    with place.http() as connection:
        for _ in place.turns(ROUND_S):
            status, _ = connection.ask("POST", "/v1/topics/big/jobs", b"\n" * EMPTY_LINES)
            expect("empty lines", is_right=status == 422)


# --- Pushes --------------------------------------------------------------------------------------


def pushed(place: Place) -> None:
    """Put jobs that go to a receiver that takes them."""
    with place.line(PUSHED) as line:
        for _ in place.turns(0.05):
            reply = line.ask(b"put 0 0.2 60 2\r\n17\r\n")
            expect("put", is_right=reply.startswith(b"INSERTED"))
            place.book.pushed += 1


def failing(place: Place) -> None:
    """The same to its neighbour that refuses them; clear them in the end."""
    with place.line(FAILING) as line:
        for _ in place.turns(PAUSE_S):
            line.ask(b"put 0 0 60 1\r\nx\r\n")
        line.ask(b"clear-tube %b\r\n" % FAILING.encode())


def receivers(place: Place) -> None:
    """Put jobs for each hostile receiver; clear what is left."""
    with place.line("default") as line:
        for number in range(place.ports["hostile"]):
            topic = b"hostile-%d" % number
            line.ask(b"clear-tube %b\r\n" % topic)
            line.ask_many([b"put-in-tube %b 0 0 60 1\r\nx\r\n" % topic] * CALLED_JOBS)
        for _ in place.turns(1.0):
            pass


# --- The process ---------------------------------------------------------------------------------

Actor = Callable[[Place], None]

WORKERS: Final = (timed_worker, line_worker, http_worker)
ORDINARY: Final[tuple[Actor, ...]] = (
    *(line_puts, line_worker, line_worker, http_puts, http_worker, keys, idempotent, listing),
    *(slow_readers, pushed, failing),
)
HOSTILE: Final = MappingProxyType(
    {actor.__name__: actor for actor in (patterns, empty_lines, pipeliners, receivers)}
)
TIMED: Final[tuple[Actor, ...]] = (timed_puts, timed_worker, timed_worker)
NEIGHBOUR: Final[tuple[Actor, ...]] = (neighbour,)


def lasting(actor: Actor, place: Place) -> None:
    """Let the actor do its rounds until told to stop."""
    while not place.until.is_set():
        try:
            actor(place)
        except (OSError, http.client.HTTPException, AssertionError) as error:
            place.book.noted.troubles[f"{actor.__name__}: {type(error).__name__}"] += 1
            place.until.wait(PAUSE_S)
        except (UnexpectedAnswerError, ValueError, LookupError) as error:
            place.book.noted.troubles[f"{actor.__name__}: unexpected: {error}"] += 1
            place.until.wait(PAUSE_S)


def part(pipe: Connection, actors: Sequence[Actor], ports: Ports) -> None:
    """Let the actors act until told to stop; answer what is asked meanwhile."""
    book = Book()
    no_more_puts, no_more_work = threading.Event(), threading.Event()
    threads = []
    for actor in actors:
        until = no_more_work if actor in WORKERS else no_more_puts
        thread = threading.Thread(
            target=lasting, args=(actor, Place(ports, book, until)), daemon=True
        )
        thread.start()
        threads.append((until, thread))
    while pipe.recv() == "sample":
        pipe.send(book.take())
    no_more_puts.set()
    ends_s = time.monotonic() + DRAIN_S
    for until, thread in threads:
        if until is no_more_puts:
            thread.join(max(0, ends_s - time.monotonic()))
    while book.ledger.totals().lost and time.monotonic() < ends_s:
        time.sleep(PAUSE_S)
    no_more_work.set()
    pipe.send(Closed(book.take(), book.ledger.totals(), book.pushed))
