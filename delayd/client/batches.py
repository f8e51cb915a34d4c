"""Many puts in flight at once, without asyncio and with it.

    with client.batch() as batch:
        for order in orders:
            batch.put("orders", order, delay="30m")
    print(batch.results[0].id)

A batch sends while it is filled, and does not wait for each answer: over the line up to so many
commands are under way on one connection (`IN_FLIGHT_MAX`), over HTTP they are requests of a
thousand jobs. At the end of the block every result is there, in the order of the puts: a
`PutResult`, or the error that the put was refused with. If the connection is lost, `results` has
those that were answered, and no job is put again. A block that raises puts no more.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Self, Unpack, cast

from delayd.client.beanstalk import Commands, Reply, topic_word, words_of
from delayd.client.errors import DelaydError, NotUnderstood, Refused, counted_from
from delayd.client.limits import BATCH_JOBS_MAX, LINE_BYTES_MAX, NUMBER_DIGITS_MAX
from delayd.client.line_calls import LineCalls, plain_head, put_result
from delayd.client.results import PutResult
from delayd.client.steps import Steps, awaited, carried_out
from delayd.client.values import Body, NewJob, PutOptions, body_bytes

if TYPE_CHECKING:  # without asyncio none of it is imported
    from delayd.client.aio_connection import AsyncConnections
    from delayd.client.connection import Connections

IN_FLIGHT_MAX: Final = 1_000
PART: Final = 250
"""Commands are sent in parts of so many, so that the daemon never waits for the next one."""
PART_BYTES: Final = 1 << 18

_PLAIN: Final = frozenset(("priority", "delay", "ttr"))
_INSERTED: Final = b"INSERTED "

OUTSIDE: Final = "a batch puts within its `with` block alone: nobody would send what comes later"

Result = PutResult | Refused


class PutReplies:
    r"""Reads the replies to puts, one line each.

    >>> replies = PutReplies()
    >>> replies.sent(2)
    >>> replies.feed(b"INSERTED 7\r\nJOB_TOO")
    1
    >>> replies.results
    [PutResult(id=7, outcome='created', due=None)]
    """

    def __init__(self) -> None:
        self.results: list[Result] = []
        self.in_flight = 0
        self._rest = b""

    def sent(self, count: int) -> None:
        """Note that so many replies will come."""
        self.in_flight += count

    def feed(self, data: bytes) -> int:
        """Read bytes; return how many replies are still to come.

        Replies before one that is not understood are in `results`.
        """
        lines = (self._rest + data).split(b"\r\n", self.in_flight)
        self._rest = lines.pop()
        if self._rest and len(lines) == self.in_flight:
            raise NotUnderstood("more was answered than was asked")
        if len(self._rest) > LINE_BYTES_MAX:
            raise NotUnderstood(f"a line is longer than {LINE_BYTES_MAX} bytes")
        numbers = [line[9:] for line in lines if line[:9] == _INSERTED]
        if len(numbers) == len(lines) and are_numbers(numbers):
            new: Callable[..., PutResult] = (
                tuple.__new__
            )  # as `PutResult` itself does, in half the time
            self.results += [new(PutResult, (int(each), "created", None)) for each in numbers]
        else:
            for line in lines:
                self.results.append(put_result(Reply(words_of(line)), b"put"))
        self.in_flight -= len(lines)
        return self.in_flight


def are_numbers(texts: list[bytes]) -> bool:
    """Tell whether each is a whole number; checked together, since there are many.

    >>> are_numbers([b"7", b"18"]), are_numbers([b"7", b""]), are_numbers([b"7", b"-1"])
    (True, False, False)
    """
    lengths = set(map(len, texts))
    return not texts or (
        b"".join(texts).isdigit() and 0 not in lengths and max(lengths) <= NUMBER_DIGITS_MAX
    )


class PutWriter:
    r"""Writes puts as commands, in parts.

    The plain `put` is the daemon's fastest command. It puts into the topic that the connection
    uses, which is that of the first job.

    >>> writer = PutWriter(LineCalls(""))
    >>> writer.add("mail", "a", {}), writer.add("sms", "b", {"delay": "1m"})
    (False, False)
    >>> writer.used, writer.take()
    ('mail', (b'put 65536 0 60 1\r\na\r\nput-in-tube sms 65536 60 60 1\r\nb\r\n', 2))
    """

    def __init__(self, calls: LineCalls) -> None:
        self._calls = calls
        self.used: str | None = None
        """The topic that the connection is to use."""
        self._head = b""
        self._head_says: PutOptions | None = None
        self._lines: list[bytes] = []
        self._bytes = 0

    def add(self, topic: str, body: Body, options: PutOptions) -> bool:
        """Write a put; return whether the part is full."""
        if self.used is None:
            self.used = topic_word(topic)
        is_used = topic == self.used
        if is_used and options != self._head_says and options.keys() <= _PLAIN:
            self._head, self._head_says = plain_head(options), options
        if is_used and options == self._head_says:
            text = body if type(body) is bytes else body_bytes(body)
            line = b"%b%d\r\n%b\r\n" % (self._head, len(text), text)
        else:
            line = self._calls.put_line(topic, cast("NewJob", {"body": body, **options}))
        self._lines.append(line)
        self._bytes += len(line)
        return len(self._lines) >= PART or self._bytes > PART_BYTES

    def take(self) -> tuple[bytes, int]:
        """Return the bytes of the commands, and how many they are."""
        lines, self._lines, self._bytes = self._lines, [], 0
        return b"".join(lines), len(lines)

    def in_flight_max(self, count: int) -> int:
        """Return how many puts may be in flight while a part of so many is sent.

        A part that is full of long bodies has few, and then few are in flight.
        """
        return min(IN_FLIGHT_MAX - PART, 3 * count)


class HttpParts:
    """A batch as requests of many jobs."""

    def __init__(self, put_many: Callable[[str, list[NewJob]], Any]) -> None:
        self.results: list[Result] = []
        self._put_many = put_many
        self._parts: list[tuple[str, list[NewJob]]] = []

    def add(self, topic: str, body: Body, options: PutOptions) -> bool:
        """Take a put; return whether a part is to be sent: it is full, or another topic follows."""
        if not self._parts or self._parts[-1][0] != topic:
            self._parts.append((topic, []))
        jobs = self._parts[-1][1]
        jobs.append(cast("NewJob", {"body": body, **options}))
        return len(self._parts) > 1 or len(jobs) >= BATCH_JOBS_MAX

    def send(self) -> Steps[None]:
        """Send the first part."""
        if self._parts:
            try:
                self.results += yield self._put_many(*self._parts.pop(0))
            except DelaydError as error:
                error.results = self.results
                counted_from(error, "jobs", len(self.results))
                raise

    def end(self) -> Steps[None]:
        """Do nothing: there are no further answers."""
        yield from ()


class LineParts:
    """A batch as commands of which many are in flight."""

    def __init__(self, connections: "Connections | AsyncConnections", calls: LineCalls) -> None:
        self._connections: Any = connections
        self._writer = PutWriter(calls)
        self._replies = PutReplies()
        self._connection: Any = None
        self.add = self._writer.add

    @property
    def results(self) -> list[Result]:
        """The result of each put that was answered."""
        return self._replies.results

    def send(self) -> Steps[None]:
        """Send the written commands, once few enough are in flight."""
        data, count = self._writer.take()
        if self._connection is None:
            commands = Commands((), used=self._writer.used)
            self._connection = yield self._connections.borrow(commands)
        yield from self._receive(self._writer.in_flight_max(count))
        self._connection.send(data)
        self._replies.sent(count)

    def end(self) -> Steps[None]:
        """Receive all replies, and give the connection back."""
        if self._connection is not None and not self._connection.is_closed:
            yield from self._receive(0)
            self._connections.give_back(self._connection)

    def _receive(self, left: int) -> Steps[None]:
        if self._connection is not None and self._replies.in_flight > left:
            yield self._connection.receive_until(lambda data: self._replies.feed(data) <= left)


class Batch:
    """A batch of puts: `with client.batch() as batch: batch.put(...)`."""

    def __init__(self, parts: HttpParts | LineParts) -> None:
        self._parts = parts
        self._is_open = False

    @property
    def results(self) -> list[Result]:
        """The result of each put that was answered."""
        return self._parts.results

    def __enter__(self) -> Self:
        self._is_open = True
        return self

    def __exit__(self, kind: type[BaseException] | None, *_exception: object) -> None:
        self._is_open = False
        if kind is None:
            carried_out(self._parts.send())
        carried_out(self._parts.end())

    def put(self, topic: str, body: Body, **options: Unpack[PutOptions]) -> None:
        """Put a job, within the block; its result is in `results` at the end."""
        if not self._is_open:
            raise RuntimeError(OUTSIDE)
        if self._parts.add(topic, body, options):
            carried_out(self._parts.send())


class AsyncBatch:
    """The same with asyncio: `async with client.batch() as batch: await batch.put(...)`."""

    def __init__(self, parts: HttpParts | LineParts) -> None:
        self._parts = parts
        self._is_open = False

    @property
    def results(self) -> list[Result]:
        """The result of each put that was answered."""
        return self._parts.results

    async def __aenter__(self) -> Self:
        self._is_open = True
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_exception: object) -> None:
        self._is_open = False
        if kind is None:
            await awaited(self._parts.send())
        await awaited(self._parts.end())

    async def put(self, topic: str, body: Body, **options: Unpack[PutOptions]) -> None:
        """Put a job, within the block; its result is in `results` at the end."""
        if not self._is_open:
            raise RuntimeError(OUTSIDE)
        if self._parts.add(topic, body, options):
            await awaited(self._parts.send())
