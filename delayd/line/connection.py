"""One connection of the line protocol, without a socket: bytes in, replies out.

`receive` takes whatever the network brought, in whatever pieces, and carries out every command that
is complete. Replies gather in `out`; the server sends them when what they promise is on disk. The
same bytes give the same replies whole or one at a time.

    receive ─► bytes not yet a command ─► line ─► command ─► engine ─► out
                    │                       └─ put ─► body, once it is all there
                    └─ too long a line, or too big a body: thrown away as it comes

A connection stops reading its input while it waits for a job (`is_waiting`) and while `out` holds
more than it may (`is_choked`); `resume` goes on with what has already arrived. A job is handed over
in two steps: the engine gives it to the session in the middle of somebody else's command, and the
connection is told at the end of the turn. Until then it still waits.

Lines end as beanstalkd ends them: in a window of 224 bytes from where the last command ended, the
*first* CR must be followed by LF. Failing that, the window is thrown away when it is full, and so
are the next ones until one has an end in it; the whole gets one BAD_FORMAT.
"""

import re
from typing import Final

from delayd.core.engine import Engine
from delayd.core.errors import Refusal
from delayd.core.limits import LINE_BYTES_MAX
from delayd.core.session import Owner, Session
from delayd.core.timekeeper import Handed, WaitEnd
from delayd.core.topic import Topic
from delayd.line import replies
from delayd.line.commands import UNBOUND, command_of, handed_over
from delayd.line.grammar import PutLine, parse_put
from delayd.line.stats import Stats

_RESERVE: Final = b"reserve\r\n"
_RESERVES: Final = re.compile(rb"(?:reserve\r\n)+")
_DELETES: Final = re.compile(rb"(?:delete [0-9]{1,19}\r\n)+")

_WEB_REQUESTS: Final = (
    b"GET /",
    b"POST /",
    b"HEAD /",
    b"PUT /",
    b"DELETE /",
    b"OPTIONS /",
    b"Host:",
)
"""A browser was led to this port by a page; it is cut off before it can say more."""

_WAIT_ENDS: Final = {
    WaitEnd.TIMED_OUT: replies.TIMED_OUT,
    WaitEnd.DEADLINE_SOON: replies.DEADLINE_SOON,
}


class Connection:
    """The protocol state of one client."""

    __slots__ = (
        "_body",
        "_missing_bytes",
        "_out_bytes",
        "_put",
        "_rest",
        "_skipping",
        "_swallow_bytes",
        "batch_max",
        "engine",
        "is_bound",
        "is_choked",
        "is_closing",
        "is_half_closed",
        "is_waiting",
        "out",
        "out_bytes_max",
        "session",
        "stats",
    )

    def __init__(self, engine: Engine, stats: Stats, out_bytes_max: int, owner: Owner) -> None:
        """Open a session; the input waits while long replies exceed `out_bytes_max`."""
        self.engine = engine
        self.stats = stats
        self.session: Session = engine.open_session(owner)
        self.out: list[bytes] = []
        self.is_bound = False
        """Something in `out` says what a job is or was made to be: it may leave when the log is on
        disk. The rest, what a connection says of itself and statistics, depends on nothing."""
        self.is_choked = False
        """The long replies in `out` are as much as may wait for a client."""
        self.is_closing = False
        """Nothing more is carried out; the connection closes when `out` has been sent."""
        self.is_half_closed = False
        """The client will send no more; it waits for no job any longer."""
        self.is_waiting = False
        """A reserve has not been answered yet."""
        self.batch_max = 0
        """How many jobs the reserve going on takes at most; 0 for one in beanstalkd's form."""
        self._out_bytes = 0
        self.out_bytes_max = out_bytes_max
        self._rest = b""
        self._skipping = False
        self._swallow_bytes = 0
        self._put: tuple[int, PutLine, str | None] | None = None
        self._body: list[bytes] = []
        self._missing_bytes = 0
        stats.note_connection()

    # --- What the handlers use -------------------------------------------------------------------

    @property
    def used(self) -> Topic:
        """The topic that the client puts to."""
        topic = self.session.used
        assert topic is not None, "a session uses a topic until it is closed"
        return topic

    @property
    def room_bytes(self) -> int:
        """How much longer the replies may get; the one that exceeds it is the last."""
        return self.out_bytes_max - self._out_bytes

    def long_reply(self, reply: bytes) -> bytes:
        """Return the reply, and note its length: short commands can have very long ones."""
        self._out_bytes += len(reply)
        if self._out_bytes > self.out_bytes_max:
            self.is_choked = True
        return reply

    # --- What the server calls -------------------------------------------------------------------

    @property
    def is_listening(self) -> bool:
        """Tell whether more input would be carried out now."""
        return not (self.is_waiting or self.is_choked or self.is_closing)

    def receive(self, data: bytes, now_ms: int) -> None:
        """Take in what has arrived and carry out every command that is complete."""
        if self._missing_bytes > len(data):
            self._body.append(data)
            self._missing_bytes -= len(data)
            return
        if self._body:
            data = b"".join((*self._body, data))
            self._body.clear()
            self._missing_bytes = 0
        elif self._rest:
            data = self._rest + data
        if self.is_waiting or self.is_choked or self.is_closing:
            self._rest = data
            return
        at = self._run(data, now_ms)
        self._rest = data[at:] if at else data

    def resume(self, now_ms: int) -> None:
        """Go on with what had arrived before a wait or a full `out` stopped the reading."""
        self.receive(b"", now_ms)

    def deliver(self, outcome: Handed | WaitEnd, now_ms: int, *, is_durable: bool = False) -> None:
        """Answer the reserve that waited, unless its client has gone since, and go on.

        The reply is not bound when the job is on disk. That it is held need not be: if that is
        lost, the job was merely handed out once too often.
        """
        if not self.is_waiting:
            return
        self.is_waiting = False
        if isinstance(outcome, WaitEnd):
            self.batch_max = 0
            self.out.append(_WAIT_ENDS[outcome])
        else:
            if self.batch_max or not is_durable:
                self.is_bound = True
            self.out.append(handed_over(self, outcome, now_ms))
        self.resume(now_ms)

    def take_out(self) -> bytes:
        """Return the replies gathered, to be sent in one piece.

        A connection that is choked stays so: its owner ends that when they have been sent.
        """
        data = b"".join(self.out)
        self.out.clear()
        self.is_bound = False
        self._out_bytes = 0
        return data

    def half_close(self, now_ms: int) -> None:
        """Note that the client sends no more: a reserve that waits has timed out."""
        self.is_half_closed = True
        if self.session.waiting:
            self._wait_no_longer()
            self.resume(now_ms)

    def _wait_no_longer(self) -> None:
        self.engine.cancel_wait(self.session)
        self.is_waiting = False
        self.batch_max = 0
        self.out.append(replies.TIMED_OUT)

    def close(self, now_ms: int) -> None:
        """Give back what the client held."""
        self.is_waiting = False
        self.stats.forget(self.session)
        self.engine.close_session(self.session, now_ms)

    # --- Commands in the input -------------------------------------------------------------------

    def _run(self, data: bytes, now_ms: int) -> int:
        """Carry out the complete commands; return where the first incomplete one begins."""
        at = self._skip(data, 0) if self._swallow_bytes else 0
        while True:
            if self._put is not None:
                at = self._finish_put(data, at, now_ms)
                if self._put is not None:
                    return at
            end = data.find(b"\r", at, at + LINE_BYTES_MAX - 1)
            if end < 0 or data[end + 1 : end + 2] != b"\n":
                after = self._no_end(data, at)
                if after == at:
                    return at
                at = after
                continue
            at = self._line(data, at, end, now_ms)
            if at == len(data) and not self._swallow_bytes:
                return at
            if self._swallow_bytes:
                at = self._skip(data, at)
                if self._swallow_bytes:
                    return at
            elif self.is_waiting or self.is_choked or self.is_closing:
                return at

    def _line(self, data: bytes, at: int, end: int, now_ms: int) -> int:
        """Carry out the command of one line, or a run of them; return where the input goes on."""
        line = data[at:end]
        after = end + 2
        if self._skipping:
            self._skipping = False
            self.out.append(replies.BAD_FORMAT)
        elif line.startswith(b"put "):
            put = parse_put(line)
            if put is not None and not put.extra and put.body_bytes <= self.engine.body_bytes_max:
                return self._put_run(data, data[at:after], after, put, now_ms)
            self.out.append(self.begin_put(put, None))
        elif line.startswith(b"delete ") and (run := _DELETES.match(data, at)):
            return self._delete_run(run, now_ms)
        elif line == b"reserve" and (reserved := self._reserve_run(data, at, now_ms)):
            return reserved
        else:
            self._command(line, now_ms)
        return after

    def _no_end(self, data: bytes, at: int) -> int:
        """Return where to look for the end of the line: here again, or behind a full window."""
        if len(data) - at < LINE_BYTES_MAX:
            return at
        self._skipping = True
        return at + LINE_BYTES_MAX

    def _skip(self, data: bytes, at: int) -> int:
        """Throw away the body of a job that is too big, as much of it as is there."""
        skipped = min(self._swallow_bytes, len(data) - at)
        if skipped:
            self._swallow_bytes -= skipped
            if not self._swallow_bytes:
                self.out.append(replies.JOB_TOO_BIG)
        return at + skipped

    def _command(self, line: bytes, now_ms: int) -> None:
        """Carry out a command and gather its reply."""
        is_bound = False
        try:
            command = command_of(line)
            if command is None:
                self._unknown(line)
                return
            handler, rest = command
            is_bound = handler not in UNBOUND
            reply = handler(self, rest, now_ms)
        except Refusal as refusal:
            reply = replies.refused(refusal)
        if reply:
            self.out.append(reply)
            if is_bound and reply not in replies.NO_JOB:
                self.is_bound = True
        elif self.is_waiting and self.is_half_closed:
            self._wait_no_longer()

    def _unknown(self, line: bytes) -> None:
        if line.startswith(_WEB_REQUESTS):
            self.is_closing = True
        else:
            self.out.append(replies.UNKNOWN_COMMAND)

    # --- Runs ------------------------------------------------------------------------------------
    #
    # Clients that pipeline say the same many times over. A run of equal commands is carried out as
    # one, with the effects and replies that they have one by one: 1.1 µs a put instead of 3, 3.5 µs
    # instead of 6 a reserve with its delete.

    def _put_run(self, data: bytes, head: bytes, at: int, put: PutLine, now_ms: int) -> int:
        """Put the job whose command is `head`, and those after it with the same command."""
        bodies = []
        body_bytes = put.body_bytes
        while True:
            end = at + body_bytes
            is_whole = data[end : end + 2] == b"\r\n"
            if not is_whole:
                break
            bodies.append(data[at:end])
            at = end + 2
            if not data.startswith(head, at):
                break
            at += len(head)
        if bodies:
            self.is_bound = True
            self.stats.counts["put"] += len(bodies)
            self.stats.note_producer(self.session)
            self.out.append(self._put_alike(put, bodies, now_ms))
        if not is_whole:
            self.begin_put(put, None)
        return at

    def _put_alike(self, put: PutLine, bodies: list[bytes], now_ms: int) -> bytes:
        jobs = len(bodies)
        try:
            first_id = self.engine.put_alike(
                self.used, put.priority, put.delay_ms, put.ttr_ms, bodies, now_ms
            )
        except Refusal as refusal:
            return replies.refused(refusal) * jobs
        if jobs == 1:
            return b"INSERTED %d\r\n" % first_id
        return b"INSERTED %d\r\n" * jobs % tuple(range(first_id, first_id + jobs))

    def _delete_run(self, run: re.Match[bytes], now_ms: int) -> int:
        """Delete the jobs that consecutive commands name."""
        self.is_bound = True
        job_ids = list(map(int, run[0][len(b"delete ") : -2].split(b"\r\ndelete ")))
        self.stats.counts["delete"] += len(job_ids)
        deleted = self.engine.delete_batch(self.session, job_ids, now_ms)
        if all(deleted):
            self.out.append(replies.DELETED * len(deleted))
        else:
            self.out += [replies.DELETED if done else replies.NOT_FOUND for done in deleted]
        return run.end()

    def _reserve_run(self, data: bytes, at: int, now_ms: int) -> int:
        """Hand out ready jobs to consecutive commands; return behind them, 0 when none is ready."""
        run = _RESERVES.match(data, at)
        assert run is not None
        commands = (run.end() - at) // len(_RESERVE)
        jobs = self.engine.reserve_batch(self.session, commands, self.room_bytes, now_ms)
        if not jobs:
            return 0
        self.is_bound = True
        self.stats.counts["reserve"] += len(jobs)
        self.stats.note_worker(self.session)
        self.out.append(self.long_reply(replies.reserved_run(jobs)))
        return at + len(jobs) * len(_RESERVE)

    # --- Putting ---------------------------------------------------------------------------------

    def begin_put(self, put: PutLine | None, name: str | None) -> bytes:
        """Check a put line in beanstalkd's order; expect its body, or throw it away."""
        if put is None:
            return replies.BAD_FORMAT
        self.stats.counts["put"] += 1
        if put.body_bytes > self.engine.body_bytes_max:
            self._swallow_bytes = put.body_bytes + 2
            return b""
        if put.extra:
            return replies.BAD_FORMAT
        self.stats.note_producer(self.session)
        self._put = (self.engine.take_id(), put, name)
        return b""

    def _finish_put(self, data: bytes, at: int, now_ms: int) -> int:
        """Put the job when its body is all there; return where the input goes on."""
        assert self._put is not None
        job_id, put, name = self._put
        end = at + put.body_bytes
        if end + 2 > len(data):
            self._missing_bytes = end + 2 - len(data)
            self._body.append(data[at:])
            return len(data)
        self._put = None
        self.is_bound = True
        engine = self.engine
        if data[end : end + 2] != b"\r\n":
            self.out.append(replies.EXPECTED_CRLF)
            return end + 2
        topic = self.used if name is None else engine.store.topic(name)
        try:
            engine.put(
                topic,
                priority=put.priority,
                delay_ms=put.delay_ms,
                ttr_ms=put.ttr_ms,
                body=data[at:end],
                now_ms=now_ms,
                job_id=job_id,
            )
        except Refusal as refusal:
            engine.store.drop_if_unwanted(topic)
            self.out.append(replies.refused(refusal))
        else:
            self.out.append(b"INSERTED %d\r\n" % job_id)
        return end + 2
