r"""AMQP 0-9-1 as the generator speaks it: frames that are built once, and read without a library.

A put is three frames, of which only the number in the body changes; the server confirms it. A take
is no request: a consumer is sent as many messages as it may hold, and an acknowledgement makes room
for the next. So only the first takes ask for anything. A message that no take waits for goes back
to its queue, and the consumer is cancelled, as by a worker that stops.

    generator          dialect                                   server
    put 7         -->  publish, header, "0000000007…"       -->
                  <--  Heard(put=1)                         <--  ack 1
    take 20       -->  qos 20, consume                      -->
                  <--  Heard(taken=[(7, tag)])              <--  deliver, header, "0000000007…"
    acknowledge   -->  ack tag                              -->  (no answer)

The library pamqp builds and reads the frames of the handshake and of queues; hot ones are read
here by their first bytes. docs: "Advanced Message Queuing Protocol, version 0-9-1", 4.2.
"""

import socket
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from pamqp import commands, constants, frame, header
from pamqp.body import ContentBody

from benchmarks.line import PATIENCE_S, UnexpectedReplyError
from benchmarks.registry import NotMeasuredError
from benchmarks.servers.peer import NUMBER_DIGITS, Heard, filler

CHANNEL: Final = 1
GREETING: Final = b"AMQP\x00\x00\x09\x01"
LOGIN: Final = "\0guest\0guest"
FRAME_BYTES_MAX: Final = 131_072
"""RabbitMQ's own: a body of 16 KiB is one frame."""
PERSISTENT: Final = 2

FRAME_HEAD: Final = struct.Struct(">BHI")
METHOD: Final = constants.FRAME_METHOD
BODY: Final = constants.FRAME_BODY
CONFIRMED: Final = b"\x00\x3c\x00\x50"
"""Class 60, method 80, from the server: a publish is confirmed."""
CONFIRM: Final = struct.Struct(">QB")
DELIVERED: Final = b"\x00\x3c\x00\x3c"
TAG_BYTES: Final = 8
ACKNOWLEDGEMENT: Final = b"\x01\x00\x01\x00\x00\x00\x0d\x00\x3c\x00\x50%b\x00\xce"
REJECT: Final = b"\x01\x00\x01\x00\x00\x00\x0d\x00\x3c\x00\x5a%b\x01\xce"
"""It goes back to where it stood in the queue."""
NO_TAG: Final = b"\xff" * TAG_BYTES
CONSUMER: Final = "worker"
EXPECTED: Final = (commands.Basic.QosOk, commands.Basic.ConsumeOk)


def exactly(sock: socket.socket, count: int) -> bytes:
    """Return so many bytes of a socket that blocks; raise `ConnectionError` at its end."""
    received = b""
    while len(received) < count:
        more = sock.recv(count - len(received))
        if not more:
            raise ConnectionError("closed within a frame")
        received += more
    return received


def answer(sock: socket.socket, kind: type[Any]) -> Any:  # noqa: ANN401 - of the kind that is asked for
    """Wait for the next frame, which has to be of this kind."""
    head = exactly(sock, FRAME_HEAD.size)
    rest = exactly(sock, FRAME_HEAD.unpack(head)[2] + 1)
    found = frame.unmarshal(head + rest)[2]
    if not isinstance(found, kind):
        raise UnexpectedReplyError(f"not {kind.name}, but {words_of(found)}")
    return found


def ask(sock: socket.socket, request: Any, kind: type[Any], channel: int = CHANNEL) -> Any:  # noqa: ANN401
    """Send a method and wait for its answer."""
    sock.sendall(frame.marshal(request, channel))
    return answer(sock, kind)


def words_of(found: Any) -> str:  # noqa: ANN401 - whatever pamqp makes of it
    """Return a frame in words: `Channel.Close: NOT_FOUND - no queue 'x'`."""
    text = getattr(found, "reply_text", "")
    return f"{found.name}: {text}" if text else str(found.name)


def log_in(sock: socket.socket) -> None:
    """Open a connection and a channel, without heartbeats."""
    sock.sendall(GREETING)
    answer(sock, commands.Connection.Start)
    ask(sock, commands.Connection.StartOk(response=LOGIN), commands.Connection.Tune, channel=0)
    tuned = commands.Connection.TuneOk(CHANNEL, FRAME_BYTES_MAX, heartbeat=0)
    sock.sendall(frame.marshal(tuned, 0))
    ask(sock, commands.Connection.Open(), commands.Connection.OpenOk, channel=0)
    ask(sock, commands.Channel.Open(), commands.Channel.OpenOk)


def publish(queue: str, body_bytes: int, properties: Mapping[str, Any]) -> bytes:
    """Return the frames that put a message into a queue, with `%010d` where its number stands."""
    letters = filler(body_bytes - NUMBER_DIGITS)
    wanted = commands.Basic.Properties(delivery_mode=PERSISTENT, **properties)
    frames = (
        frame.marshal(commands.Basic.Publish(routing_key=queue), CHANNEL),
        frame.marshal(header.ContentHeader(body_size=body_bytes, properties=wanted), CHANNEL),
        frame.marshal(ContentBody(b"#" * NUMBER_DIGITS + letters), CHANNEL),
    )
    return b"".join(frames).replace(b"%", b"%%").replace(b"#" * NUMBER_DIGITS, b"%010d")


class AmqpDialect:
    """One connection with one channel, which confirms what is put."""

    answers_acknowledgements = False

    def __init__(
        self, body_bytes: int, work: str, waiting: Callable[[int], tuple[str, Mapping[str, Any]]]
    ) -> None:
        self._body_bytes = body_bytes
        self._work = work
        self._waiting = waiting
        """Return the queue for a delay in ms, made if there is none, and a message's properties."""
        self._templates: dict[int, bytes] = {}
        self._tail = b""
        self._confirmed_to = 0
        """Every publish up to this number is confirmed."""
        self._confirmed_above: set[int] = set()
        self._delivery = bytes(TAG_BYTES)
        """The tag of the message that came last."""
        self._wanted = 0
        """Takes that nothing has arrived for."""
        self._room = 0
        """Acknowledgements that no take has followed: the consumers are sent as many more."""
        self._consumers = 0
        self._cancelled_to = bytes(TAG_BYTES)
        """Messages up to this tag are of consumers that were cancelled."""

    def greet(self, sock: socket.socket) -> None:
        """Log in, and have each publish confirmed."""
        log_in(sock)
        ask(sock, commands.Confirm.Select(), commands.Confirm.SelectOk)

    def puts(self, first: int, count: int, delay_ms: int) -> bytes:
        """Return the publishes that put jobs with the numbers from `first` on."""
        template = self._templates.get(delay_ms)
        if template is None:
            queue, properties = self._waiting(delay_ms) if delay_ms else (self._work, {})
            template = publish(queue, self._body_bytes, properties)
            self._templates[delay_ms] = template
        return template * count % tuple(range(first, first + count))

    def keyed_puts(self, first: int, count: int, delay_ms: int) -> bytes:
        """Raise `NotMeasuredError`."""
        del first, count, delay_ms
        raise NotMeasuredError("RabbitMQ does not know a message by a key")

    def takes(self, count: int) -> bytes:
        """Return a consumer that may hold so many messages; nothing where one has room for them."""
        self._wanted += count
        more = count - self._room
        self._room = max(-more, 0)
        if more <= 0:
            return b""
        self._consumers += 1
        prefetch = commands.Basic.Qos(prefetch_count=more)
        consume = commands.Basic.Consume(
            queue=self._work, consumer_tag=f"{CONSUMER}{self._consumers}"
        )
        return frame.marshal(prefetch, CHANNEL) + frame.marshal(consume, CHANNEL)

    def acknowledgements(self, handles: Sequence[bytes]) -> bytes:
        """Return what acknowledges these messages; RabbitMQ answers nothing."""
        self._room += sum(handle > self._cancelled_to for handle in handles)
        return b"".join([ACKNOWLEDGEMENT % handle for handle in handles])

    def _give_back(self) -> bytes:
        """Return what cancels all consumers and rejects the last message."""
        cancelled = [
            frame.marshal(commands.Basic.Cancel(f"{CONSUMER}{number}"), CHANNEL)
            for number in range(1, self._consumers + 1)
        ]
        if cancelled:
            # Until the last answer, what arrives is theirs.
            self._consumers, self._room, self._cancelled_to = 0, 0, NO_TAG
        return b"".join(cancelled) + REJECT % self._delivery

    def hear(self, data: bytes) -> Heard:
        """Return what arrived says; raise `UnexpectedReplyError` if it is an error."""
        if self._tail:
            data = self._tail + data
        heard = Heard()
        at, whole = 0, len(data)
        while whole - at > FRAME_HEAD.size:
            kind, _, payload_bytes = FRAME_HEAD.unpack_from(data, at)
            payload = at + FRAME_HEAD.size
            end = payload + payload_bytes + 1
            if end > whole:
                break
            if kind == METHOD:
                method = data[payload : payload + 4]
                if method == CONFIRMED:
                    heard.put += self._confirm(*CONFIRM.unpack_from(data, payload + 4))
                elif method == DELIVERED:
                    tag = payload + 5 + data[payload + 4]  # behind the name of the consumer
                    self._delivery = data[tag : tag + TAG_BYTES]
                else:
                    self._hear_other(data[at:end])
            elif kind == BODY:
                if self._wanted:
                    self._wanted -= 1
                    number = int(data[payload : payload + NUMBER_DIGITS])
                    heard.taken.append((number, self._delivery))
                else:
                    heard.follow += self._give_back()
            at = end
        self._tail = data[at:]
        return heard

    def _confirm(self, number: int, multiple: int) -> int:
        """Return how many publishes this confirms that were not."""
        if not multiple:
            if number > self._confirmed_to + 1:
                self._confirmed_above.add(number)
            else:
                self._advance(number)
            return 1
        known = sum(1 for other in self._confirmed_above if other <= number)
        count = number - self._confirmed_to - known
        self._confirmed_above = {other for other in self._confirmed_above if other > number}
        self._advance(number)
        return count

    def _advance(self, number: int) -> None:
        while number + 1 in self._confirmed_above:
            number += 1
            self._confirmed_above.remove(number)
        self._confirmed_to = number

    def _hear_other(self, data: bytes) -> None:
        found = frame.unmarshal(data)[2]
        if isinstance(found, commands.Basic.CancelOk):
            self._cancelled_to = self._delivery
        elif not isinstance(found, EXPECTED):
            raise UnexpectedReplyError(words_of(found))


def connect(port: int) -> socket.socket:
    """Return a connection that blocks, with a channel."""
    sock = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
    log_in(sock)
    return sock
