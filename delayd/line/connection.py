"""One connection of the line protocol, without a socket: bytes in, replies out.

`receive` takes whatever the network brought, in whatever pieces, and executes every command that
is complete. Replies gather in `out`; the server sends them when what they promise is on disk. The
same bytes give the same replies whole or one at a time.

    receive ─► framing ─► line ─► put, run, or `carry_out` (the table of commands) ─► engine ─► out
                  └─ body, once it is complete ─► the rest of the command

A connection stops reading its input while it waits for a job (`is_waiting`), unless input ends the
wait (`ends_on_input`), and while `out` holds more than it may (`is_choked`); `resume` continues
with what has already arrived. So it does when
its commands have taken a slice of time (`has_yielded`): the others have a turn first. A job is
delivered in two steps: the engine gives it to the session in the middle of another client's
command, and `deliver` follows at the end of the turn. Until then it still waits.

Where clients have to authenticate, a connection has a `peer` whose principal is checked before each
command; elsewhere it has none, which costs one test for a line. No reply may differ because of a
job that the client may not see: its commands are executed for job 0, which never exists.
"""

import re
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol, final

from delayd.access.authorize import Denial, Right, denial_of, to_put, to_put_instead
from delayd.access.connection_limits import ConnectionLimits, Peer
from delayd.access.scopes import Scope
from delayd.core.background_tasks import BackgroundTask, BackgroundTasks, Work
from delayd.core.engine import Engine
from delayd.core.errors import (
    CapReached,
    GroupFull,
    GroupMissing,
    JobNotFound,
    OutOfSpace,
    Refusal,
)
from delayd.core.job_parts import Own
from delayd.core.operations.ack import delete_batch, delete_held
from delayd.core.operations.checks import vetted_own
from delayd.core.operations.put import (
    Outcome,
    put_alike,
    put_keyed,
    put_keyed_run,
    put_one,
    take_id,
)
from delayd.core.operations.reserve import reserve, reserve_batch
from delayd.core.operations.sessions import close_session, open_session
from delayd.core.operations.succeed import put_instead
from delayd.core.operations.tick import caught_up
from delayd.core.operations.waiting import cancel_wait
from delayd.core.session import Handed, Owner, Session, WaitEnd
from delayd.core.times import RequestMs
from delayd.core.topic import Topic
from delayd.core.virtual_clock import StandingClock
from delayd.limits import LINE_BYTES_MAX, LINE_RUN_MAX, LINE_SLICE_MS, RESERVE_BATCH_MAX
from delayd.line import replies
from delayd.line.framing import Framing, Then
from delayd.line.grammar import (
    INSTEAD,
    U32_MAX,
    UNKNOWN_BYTES,
    BatchLine,
    Detail,
    PutLine,
    PutWords,
    Shape,
    announced_bytes,
    parse_batch,
    parse_put,
    parse_put_in_tube,
    parse_put_words,
    read_put,
    shape_of,
    split_at_key,
)
from delayd.line.stats import Stats
from delayd.schedules.opening import ScheduleOpener

if TYPE_CHECKING:
    from delayd.access.principal import Principal

_EQUALS: Final = ord("=")
"""Only lines with words have one; to look for a byte takes 30 ns, to look for ` key=` 300."""

_PUT: Final = b"put "
_PUT_IN_TUBE: Final = b"put-in-tube "
_PUTS: Final = (_PUT, _PUT_IN_TUBE)
_DELETE: Final = b"delete "
_RESERVE: Final = b"reserve\r\n"
_RESERVE_BATCH: Final = b"reserve-batch "
_PLAIN_LINE_BYTES_MAX: Final = LINE_BYTES_MAX - 2
_ID_DIGITS_MAX: Final = 19
_RESERVES: Final = re.compile(rb"(?:reserve\r\n){1,%d}" % LINE_RUN_MAX)
_DELETES: Final = re.compile(rb"(?:delete [0-9]{1,19}\r\n){1,%d}" % LINE_RUN_MAX)

_WEB_REQUEST: Final = (
    rb"(?:GET|HEAD|POST|PUT|DELETE|OPTIONS|PATCH|TRACE) +(?:/|\*|https?:)|CONNECT +[^ ]+:[0-9]"
    rb"|PRI \* HTTP/|[^ ]+ [^ ]+ HTTP/[0-9.]+$|[Hh][Oo][Ss][Tt] *:"
)
"""A web page made a browser connect to this port; it is closed before it can send more. Its
requests begin with such a line, and no command does."""

_WAIT_ENDS: Final = {
    WaitEnd.TIMED_OUT: replies.TIMED_OUT,
    WaitEnd.DEADLINE_SOON: replies.DEADLINE_SOON,
}


class Host(Owner, Protocol):
    """What a connection needs of its client."""

    def postpone(self, by_ms: int, answer: Callable[[int], object]) -> None:
        """Call this after a delay with the time, unless the client has disconnected by then."""

    def listen_again(self) -> None:
        """Read from the client again: its connection no longer waits."""

    def go_on_later(self) -> None:
        """Have the connection resume after others have had a turn: it has yielded."""


@final
class NoHost:
    """Takes the place of a client that has gone, so that nothing leads back to it."""

    def postpone(self, _by_ms: int, _answer: Callable[[int], object]) -> None:
        """Do nothing."""

    def listen_again(self) -> None:
        """Do nothing."""

    def go_on_later(self) -> None:
        """Do nothing."""

    def deliver(self, _outcome: Handed | WaitEnd, _now_ms: RequestMs) -> None:
        """Do nothing: what it got was given back."""


@final
class LineContext:
    """What the connections of one server share.

    `carry_out` executes a line by the table of commands. The input of a connection is not read
    while its long replies exceed `out_bytes_max`. Clients may advance the `clock`, if there is one.
    """

    __slots__ = (
        *("admission", "carry_out", "clock", "elapsed_ms", "engine", "out_bytes_max"),
        *("schedules", "stats", "tasks"),
    )

    def __init__(
        self,
        *,
        engine: Engine,
        stats: Stats,
        tasks: BackgroundTasks,
        admission: ConnectionLimits,
        carry_out: "Callable[[LineConnection, bytes, RequestMs], object]",
        elapsed_ms: Callable[[], int],
        out_bytes_max: int,
        clock: StandingClock | None,
        schedules: ScheduleOpener,
    ) -> None:
        self.engine = engine
        self.stats = stats
        self.tasks = tasks
        self.admission = admission
        self.carry_out = carry_out
        self.elapsed_ms = elapsed_ms
        self.out_bytes_max = out_bytes_max
        self.clock = clock
        self.schedules = schedules


@final
class LineConnection:
    """The protocol state of one client."""

    __slots__ = (
        *("_framing", "_host", "_is_at_rest", "_out_bytes", "_slice_ends_ms", "_task", "batch_max"),
        *("context", "ends_on_input", "engine", "has_yielded", "is_bound", "is_choked"),
        *("is_closing", "is_half_closed", "is_unheard", "is_waiting", "out", "peer"),
        *("batch_details", "refused_kind", "reserves_as", "session", "stats"),
    )

    def __init__(self, context: LineContext, host: Host, peer: Peer) -> None:
        """Open a session for the host, which is the client that was admitted as this peer."""
        self.context = context
        self.engine = context.engine
        self.stats = context.stats
        self.session: Session = open_session(context.engine, host)
        self.session.who = peer.who
        self.peer = peer if context.admission.has_tokens else None
        """None where clients need not authenticate."""
        self.reserves_as: Principal | None = None
        """The principal that may reserve from all topics watched, once that was checked."""
        self.out: list[bytes] = []
        self.is_bound = False
        """Some reply in `out` depends on a job: it may leave when the log is on disk. Others, such
        as statistics and the connection's own state, depend on nothing."""
        self.is_choked = False
        """The long replies in `out` have reached the limit for a client."""
        self.is_closing = False
        """Nothing more is executed; the connection closes when `out` has been sent."""
        self.is_waiting = False
        """A reserve, or a command that takes long, has not been answered yet."""
        self.refused_kind = ""
        """The kind of the last refusal; empty while there was none."""
        self.has_yielded = False
        """Its commands have taken their time in this turn; the others wait until `resume`."""
        self.is_half_closed = False
        """The client will send no more; it waits for no job any longer."""
        self.is_unheard = False
        """No client gets replies: the rest of the input is executed, but for what only reads."""
        self.batch_max = 0
        """How many jobs the current reserve takes at most; 0 for one in beanstalkd's form."""
        self.batch_details: tuple[Detail, ...] = ()
        """What the line of each of its jobs says besides number and length."""
        self.ends_on_input = False
        """The reserve that waits is answered as soon as the client sends something more."""
        self._host = host
        self._is_at_rest = True
        """The next byte begins a command."""
        self._task: BackgroundTask | None = None
        self._out_bytes = 0
        self._slice_ends_ms = 0
        """When it yields."""
        self._framing = Framing(
            *(self._line, self._end_body, self.refuse, self.refuse_command),
            *(self.is_foreign, self.out),
        )
        context.stats.note_connection()

    # --- What the commands use -------------------------------------------------------------------

    @property
    def used(self) -> Topic:
        """The topic that the client puts to."""
        topic = self.session.used
        assert topic is not None, "a session uses a topic until it is closed"
        return topic

    @property
    def space_bytes(self) -> int:
        """How much longer the replies may get; the one that exceeds it is the last."""
        return self.context.out_bytes_max - self._out_bytes

    def long_reply(self, reply: bytes) -> bytes:
        """Return the reply, and note its length: short commands can have very long ones."""
        self._out_bytes += len(reply)
        if self._out_bytes > self.context.out_bytes_max:
            self.is_choked = True
        return reply

    def begin_batch(self, batch: BatchLine) -> None:
        """Note that the next job is the first of a batch."""
        self.batch_max = min(batch.jobs_max, RESERVE_BATCH_MAX)
        self.batch_details = batch.details

    def hand_over(self, job: Handed, now_ms: RequestMs) -> bytes:
        """Return the reply with a job; a batch takes what else is ready."""
        if not self.batch_max:
            return self.long_reply(replies.reserved(job))
        jobs = [job]
        if self.batch_max > 1:
            space_bytes = self.space_bytes - len(job[1])
            jobs += reserve_batch(
                self.engine, self.session, self.batch_max - 1, space_bytes, now_ms
            )
        self.batch_max = 0
        return self.long_reply(replies.reserved_batch(jobs, self.engine.store, self.batch_details))

    def begin(self, work: Work, reply: Callable[[], bytes], *, to_the_end: bool = False) -> bytes:
        """Execute a command in slices, and reply in the end; the connection waits meanwhile.

        `to_the_end`: also if the client closes before, as beanstalkd would have executed it.
        """
        self._task = BackgroundTask(work, partial(self._end_task, reply), to_the_end=to_the_end)
        self.context.tasks.add(self._task)
        self.is_waiting = True
        return b""

    def expect(self, body_bytes: int, then: Then, bytes_max: int = U32_MAX) -> bytes:
        """Read a body of that length and its CRLF next; no reply before, unless it is too long."""
        if body_bytes > bytes_max:
            return self.discard_body(body_bytes, self.refuse(replies.JOB_TOO_BIG))
        self._framing.expect(body_bytes, then)
        return b""

    def discard_body(self, body_bytes: int, reply: bytes) -> bytes:
        """Discard a body of that length and its CRLF, and then reply."""
        self._framing.discard_body(body_bytes, reply)
        return b""

    def refuse(self, reply: bytes, times: int = 1, kind: str = "") -> bytes:
        """Return a reply that refuses something, having counted it.

        `kind` is that of its `Refusal`, if there is one.
        """
        word = reply.split(maxsplit=1)[0]
        self.stats.note_refusal(word.decode(), times)
        self.refused_kind = kind or replies.KINDS[word]
        return reply

    def refuse_with(self, refusal: Refusal, times: int = 1, done: int = 0) -> bytes:
        """Return the reply to a refused operation, having counted it.

        `done` is how many jobs one on many had put or changed before.
        """
        reply = self.refuse(replies.refused(refusal), times, refusal.kind)
        return reply.replace(b"\r\n", b" done=%d\r\n" % done) if done else reply

    def find_nothing(self) -> bytes:
        """Return the reply where there is no job to be shown; nothing was refused."""
        self.refused_kind = replies.KINDS[b"NOT_FOUND"]
        return replies.NOT_FOUND

    def refuse_command(
        self, line: bytes, reply: bytes = replies.BAD_FORMAT, kind: str = ""
    ) -> bytes:
        """Reply, but first discard the body that the line announces: it is no commands.

        Where its end is not known, whatever else comes is discarded, and the connection closes.
        """
        self.refuse(reply, kind=kind)
        body_bytes = announced_bytes(line)
        if body_bytes == UNKNOWN_BYTES:
            self.is_closing = True
            self.discard_body(body_bytes, b"")
        elif body_bytes is not None:
            return self.discard_body(body_bytes, reply)
        return reply

    def is_foreign(self, data: bytes, at: int) -> bool:
        """Tell whether a line belongs to another protocol: then the connection closes."""
        if re.compile(_WEB_REQUEST).match(data, at) is None:
            return False
        self.stats.note_refusal("HTTP_REQUEST")
        self.out.append(replies.NOT_HTTP)
        self.is_closing = True
        return True

    def wait_no_longer(self) -> None:
        """Answer the reserve that waits: its client sends no more, or has more to be done."""
        cancel_wait(self.engine, self.session)
        self.is_waiting = self.ends_on_input = False
        self.batch_max = 0
        self.out.append(replies.TIMED_OUT)

    # --- Rights ----------------------------------------------------------------------------------

    def authenticate(self, token: bytes) -> bytes:
        """Check the token; a wrong one may be answered late, which delays no other client."""
        if self.peer is None:
            return self.refuse(replies.UNKNOWN_COMMAND)
        text = token.decode("ascii", "replace")
        context = self.context
        late_ms = context.admission.login(self.peer, text, context.elapsed_ms())
        if late_ms is None:
            self.session.who = self.peer.who
            return replies.AUTHENTICATED
        reply = self.refuse(replies.unauthorized(context.admission.authenticator.expiry(text)))
        if not late_ms:
            return reply
        self.is_waiting = True
        self._host.postpone(late_ms, partial(self.reply_late, reply))
        return b""

    def may(self, scope: Scope, topic: str) -> bool:
        """Tell whether the client may do this to the topic."""
        if self.peer is None:
            return True
        principal = self.peer.principal
        return principal is not None and principal.may(scope, topic)

    def has_scope(self, scope: Scope) -> bool:
        """Tell whether the client may do this to any topic at all."""
        principal = None if self.peer is None else self.peer.principal
        return self.peer is None or (principal is not None and scope in principal.scopes)

    def denial_of(
        self, *rights: Right, or_scopes: tuple[Scope, ...] = (), hides: bool = False
    ) -> Denial | None:
        """Return which of these rights the client lacks; None: it has them all."""
        if self.peer is None:
            return None
        principal = self.peer.principal
        if principal is None:
            return Denial("a valid token is needed", is_hidden=False)
        return denial_of(principal, *rights, or_scopes=or_scopes, hides=hides)

    def _put_denied(self, topic: str, *, with_target: bool) -> bytes:
        """Return the reply to a put that is not allowed; empty: it is."""
        if self.peer is not None and self.peer.principal is None:
            return replies.UNAUTHORIZED
        denial = self.denial_of(*to_put(topic, with_target=with_target))
        return b"" if denial is None else replies.forbidden(denial.lack)

    def may_reserve(self) -> bool:
        """Tell whether the client may reserve from each topic that it watches.

        O(topics watched), and O(1) as long as they and the principal stay the same.
        """
        if self.peer is None:
            return True
        principal = self.peer.principal
        if principal is not self.reserves_as or principal is None:
            if not all(self.may(Scope.RESERVE, topic.name) for topic in self.session.watched):
                return False
            self.reserves_as = principal
        return True

    def note_watched(self) -> None:
        """Note that it watches one more, which the principal of now was allowed to."""
        if self.peer is not None and self.peer.principal is not self.reserves_as:
            self.reserves_as = None

    @property
    def visible_us(self) -> int:
        """About how long it takes to tell whether a topic is visible."""
        if self.peer is None or self.peer.principal is None:
            return 0
        return self.peer.principal.cost_us

    def visible(self, topics: Iterable[Topic]) -> Iterable[Topic]:
        """Return the topics whose jobs or figures the client may see."""
        if self.peer is None:
            return topics
        return (
            topic
            for topic in topics
            if self.may(Scope.STATS, topic.name) or self.may(Scope.PEEK, topic.name)
        )

    def topic_of(self, job_id: int, now_ms: RequestMs) -> str | None:
        """Return the topic of a job; None for one that is not there.

        A ttr that has run out may have moved it, and its slice has not come.
        """
        try:
            record, _ = caught_up(self.engine, job_id, now_ms)
        except JobNotFound:
            return None
        return self.engine.store.topic_of(record).name

    @property
    def may_stay(self) -> bool:
        """Whether the client's token is still valid, also for the jobs that it waits for."""
        if self.peer is None:
            return True
        if not self.context.admission.is_valid(self.peer):
            return False
        return not self.session.waiting or self.may_reserve()

    # --- What the server calls -------------------------------------------------------------------

    @property
    def is_listening(self) -> bool:
        """Tell whether more input would be executed now."""
        is_deaf = self.is_waiting and not self.ends_on_input
        return not (is_deaf or self.is_choked or self.is_closing or self.has_yielded)

    @property
    def incomplete_bytes(self) -> int | None:
        """Return how many bytes of an incomplete body are missing.

        0 where it is a line; None where nothing was begun. None too while nothing is executed:
        the rest may be there without having been looked at.
        """
        return self._framing.incomplete_bytes if self.is_listening else None

    def receive(self, data: bytes, now_ms: RequestMs) -> bool:
        """Take in what has arrived and execute every command that is complete.

        Returns whether something is incomplete.
        """
        if self.ends_on_input and data and self.session.waiting:
            self.wait_no_longer()
        if self.is_waiting or self.is_choked or self.is_closing or self.has_yielded:
            self._framing.keep(data)
            self._is_at_rest = False
            return False
        if self._is_at_rest and self.peer is None and self._lone(data, now_ms):
            return False
        self._slice_ends_ms = self.context.elapsed_ms() + LINE_SLICE_MS
        is_incomplete = self._framing.receive(data, now_ms)
        self._is_at_rest = not is_incomplete
        return is_incomplete

    def resume(self, now_ms: RequestMs) -> None:
        """Continue with what had arrived before a wait, a full `out` or a yield stopped it."""
        self.receive(b"", now_ms)

    def deliver(
        self, outcome: Handed | WaitEnd, now_ms: RequestMs, *, is_durable: bool = False
    ) -> None:
        """Answer the reserve that waited, unless its client has disconnected since, and continue.

        The reply may leave at once when the job is on disk. The reservation need not be: if it is
        lost, the job is handed out once too often.
        """
        if not self.is_waiting:
            return
        self.is_waiting = self.ends_on_input = False
        if isinstance(outcome, WaitEnd):
            self.batch_max = 0
            self.out.append(_WAIT_ENDS[outcome])
        else:
            self.is_bound |= self.batch_max > 1 or not is_durable
            self.out.append(self.hand_over(outcome, now_ms))
        self.resume(now_ms)

    def reply_late(self, reply: bytes, now_ms: RequestMs) -> None:
        """Answer the command that took long, and continue."""
        self.is_waiting = False
        self.is_bound = True
        self.out.append(self.long_reply(reply))
        self.resume(now_ms)

    def _end_task(
        self, reply: Callable[[], bytes], refusal: Refusal | None, now_ms: RequestMs
    ) -> None:
        self._task = None
        self.reply_late(reply() if refusal is None else self.refuse_with(refusal), now_ms)
        self._host.listen_again()

    def take_out(self) -> bytes:
        """Return the replies gathered, to be sent in one piece.

        A connection that is choked stays so: its owner ends that when they have been sent.
        """
        data = b"".join(self.out)
        self.out.clear()
        self.is_bound = False
        self._out_bytes = 0
        return data

    def half_close(self, now_ms: RequestMs) -> None:
        """Note that the client sends no more: a reserve that waits has timed out."""
        self.is_half_closed = True
        if self.session.waiting:
            self.wait_no_longer()
            self.resume(now_ms)

    def close(self, now_ms: RequestMs) -> None:
        """Give back the jobs that the client held; once, however often it is called."""
        if self.session.used is None:
            return
        self.is_closing = True
        self.is_waiting = False
        if self._task is not None:
            self.context.tasks.leave(self._task)
            self._task = None
        self.stats.forget(self.session)
        close_session(self.engine, self.session, now_ms)
        # What is left of it is freed at once, not by the garbage collector (`recover.py`).
        self._host = self.session.owner = NoHost()
        self._framing.close()

    # --- One command alone -----------------------------------------------------------------------
    #
    # A client that waits for each answer sends one command at a time, whole and with nothing behind
    # it. Those that workers and producers repeat take this straight way, if that is all there is to
    # them; whatever is not plain goes through `Framing` and `_line`, with the same effects.

    def _lone(self, data: bytes, now_ms: RequestMs) -> bool:
        """Execute what has arrived if it is one plain command and nothing else; tell whether."""
        if data == _RESERVE:
            return self._lone_reserve(now_ms)
        if data.startswith(_PUTS):
            return self._lone_put(data, now_ms)
        if data.startswith(_DELETE):
            return self._lone_delete(data, now_ms)
        return data.startswith(_RESERVE_BATCH) and self._lone_batch(data, now_ms)

    def _lone_put(self, data: bytes, now_ms: RequestMs) -> bool:
        """Put one job, without words, whose whole body is here."""
        line, _, rest = data.partition(b"\r\n")
        if len(line) > _PLAIN_LINE_BYTES_MAX or _EQUALS in line:
            return False
        engine, session = self.engine, self.session
        if line.startswith(_PUT):
            put, topic = parse_put(line), session.used
        else:
            try:
                name, put = parse_put_in_tube(line[len(_PUT_IN_TUBE) :])
            except Refusal:
                return False
            topic = engine.store.topics.by_name.get(name)
        if put is None or topic is None:
            return False
        priority, delay_ms, ttr_ms, body_bytes, extra = put
        if extra or len(rest) != body_bytes + 2 or not rest.endswith(b"\r\n"):
            return False
        if body_bytes > engine.body_bytes_max:
            return False
        self.is_bound = True
        self.stats.counts["put"] += 1
        if not session.produces:
            self.stats.note_producer(session)
        try:
            job_id = put_one(engine, topic, priority, delay_ms, ttr_ms, rest[:-2], now_ms)
            reply = b"INSERTED %d\r\n" % job_id
        except Refusal as refusal:
            reply = self.refuse_with(refusal)
        self.out.append(reply)
        return True

    def _lone_reserve(self, now_ms: RequestMs) -> bool:
        """Hand out the best job, if there is one and its reservation can be recorded."""
        try:
            job = reserve(self.engine, self.session, now_ms)
        except OutOfSpace:
            return False
        if job is None:
            return False
        self.is_bound = True
        self.stats.counts["reserve"] += 1
        if not self.session.works:
            self.stats.note_worker(self.session)
        self.out.append(self.long_reply(replies.reserved(job)))
        return True

    def _lone_batch(self, data: bytes, now_ms: RequestMs) -> bool:
        """Hand out the best jobs, as above the best one."""
        if not data.endswith(b"\r\n"):
            return False
        try:
            batch = parse_batch(data[len(_RESERVE_BATCH) : -2])
            job = reserve(self.engine, self.session, now_ms)
        except Refusal:
            return False
        if job is None:
            return False
        self.is_bound = True
        if not self.session.works:
            self.stats.note_worker(self.session)
        self.begin_batch(batch)
        self.out.append(self.hand_over(job, now_ms))
        return True

    def _lone_delete(self, data: bytes, now_ms: RequestMs) -> bool:
        """Delete a job that the client holds."""
        digits = data[len(_DELETE) : -2]
        if not data.endswith(b"\r\n") or not digits.isdigit() or len(digits) > _ID_DIGITS_MAX:
            return False
        if not delete_held(self.engine, self.session, int(digits), now_ms):
            return False
        self.is_bound = True
        self.stats.counts["delete"] += 1
        self.out.append(replies.DELETED)
        return True

    # --- Commands in the input -------------------------------------------------------------------

    def _line(self, data: bytes, at: int, end: int, now_ms: RequestMs) -> int:
        """Execute the command of one line, or a run of them; see `Framing`.

        With more behind them, it yields if what has arrived together has taken a slice of time.
        """
        after = self._execute(data, at, end, now_ms)
        return ~after if 0 <= after < len(data) and self._yields() else after

    def _yields(self) -> bool:
        """Tell whether the commands have taken a slice of time; then others have a turn."""
        if self.context.elapsed_ms() < self._slice_ends_ms or not self.is_listening:
            return False
        self.yield_turn()
        return True

    def yield_turn(self) -> None:
        """Leave what else has arrived to a later turn."""
        self.has_yielded = True
        self._host.go_on_later()

    def _execute(self, data: bytes, at: int, end: int, now_ms: RequestMs) -> int:
        line = data[at:end]
        after = end + 2
        if line.startswith(b"put "):
            if self.peer is not None and (
                denied := self._put_denied(self.used.name, with_target=False)
            ):
                self.out.append(self._refuse_put(line, denied))
                return after
            if _EQUALS in line:
                behind = self._keyed_run(data, at, line, now_ms)
                if behind:
                    return behind
                put = read_put(line)
                self.out.append(self.begin_put(put, None) if put else self.refuse_command(line))
                return after
            put = parse_put(line)
            if put is not None and not put.extra and put.body_bytes <= self.engine.body_bytes_max:
                return self._put_run(data, data[at:after], after, put, now_ms)
            self.out.append(self.begin_put(put, None))
            return after
        if line.startswith(b"delete ") and (run := _DELETES.match(data, at)):
            return self._delete_run(run, now_ms)
        if (
            line == b"reserve"
            and (self.peer is None or self.may_reserve())
            and (reserved := self._reserve_run(data, at, now_ms))
        ):
            after = reserved
        else:
            self.context.carry_out(self, line, now_ms)
            if self.ends_on_input and after < len(data):
                self.wait_no_longer()
        return after if self.is_listening else ~after

    def _end_body(self, then: Then, body: bytes | None, now_ms: RequestMs) -> bool:
        """Complete the command, now that the body is there; tell whether to continue."""
        self.is_bound = True
        try:
            reply = self.refuse(replies.EXPECTED_CRLF) if body is None else then(body, now_ms)
        except Refusal as refusal:
            reply = self.refuse_with(refusal)
        self.out.append(reply)
        return not (self.is_waiting or self._yields())

    def _refuse_put(self, line: bytes, reply: bytes) -> bytes:
        """Refuse a put and discard its body; a malformed one is `BAD_FORMAT` as everywhere."""
        put = read_put(line)
        if put is None or (put.extra and _EQUALS not in put.extra):
            is_known = reply != replies.UNAUTHORIZED
            return self.refuse_command(line, replies.BAD_FORMAT if is_known else reply)
        return self.discard_body(put.body_bytes, self.refuse(reply))

    # --- Runs ------------------------------------------------------------------------------------
    #
    # Clients that pipeline repeat the same command many times. A run of equal commands is executed
    # as one, with the same effects and replies as one by one: 1.1 µs a put instead of 3, 3.5 µs
    # instead of 6 a reserve with its delete.

    def _put_run(self, data: bytes, head: bytes, at: int, put: PutLine, now_ms: RequestMs) -> int:
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
            if len(bodies) == LINE_RUN_MAX or not data.startswith(head, at):
                break
            at += len(head)
        if bodies:
            self.is_bound = True
            self.stats.counts["put"] += len(bodies)
            self.stats.note_producer(self.session)
            self.out.append(self._put_bodies(put, bodies, now_ms))
        if not is_whole:
            self.begin_put(put, None)
        return at

    def _put_bodies(self, put: PutLine, bodies: list[bytes], now_ms: RequestMs) -> bytes:
        """Put jobs that differ only in their bodies; return the replies to all of them."""
        jobs = len(bodies)
        try:
            first_id = put_alike(self.engine, self.used, put[0], put[1], put[2], bodies, now_ms)
        except Refusal as refusal:
            if jobs == 1 or not isinstance(refusal, CapReached | GroupFull | GroupMissing):
                return self.refuse_with(refusal, jobs) * jobs
            # All or none would refuse also those for which there is space. Their ids are taken.
            first_id = self.engine.store.last_id + 1 - jobs
            each = enumerate(bodies, first_id)
            return b"".join([self._put_body(put, body, now_ms, at) for at, body in each])
        if jobs == 1:
            return b"INSERTED %d\r\n" % first_id
        return b"INSERTED %d\r\n" * jobs % tuple(range(first_id, first_id + jobs))

    def _put_body(self, put: PutLine, body: bytes, now_ms: RequestMs, job_id: int) -> bytes:
        """Put a job whose id is taken; return the reply."""
        try:
            put_one(self.engine, self.used, put[0], put[1], put[2], body, now_ms, job_id)
        except Refusal as refusal:
            return self.refuse_with(refusal)
        return b"INSERTED %d\r\n" % job_id

    def _keyed_run(self, data: bytes, at: int, line: bytes, now_ms: RequestMs) -> int:
        """Put the job of a line with a key, and those after it that differ in their keys only.

        Returns the place after them; 0 when it is better to execute one line after the other.
        """
        if INSTEAD in line:  # each line names another job: no two have one shape
            return 0
        before, key, after = split_at_key(line)
        shape = shape_of(before, after) if key else None
        if shape is None or not shape.each or shape.put.body_bytes > self.engine.body_bytes_max:
            return 0
        if shape.words.target and self._put_denied(self.used.name, with_target=True):
            return 0
        keys, bodies, end = shape.run_in(data, at)
        if not keys:
            return 0
        self.is_bound = True
        self.stats.counts["put"] += len(keys)
        self.stats.note_producer(self.session)
        self.out.append(self._put_keyed(shape, keys, bodies, now_ms))
        return end

    def _put_keyed(
        self, shape: Shape, keys: list[bytes], bodies: list[bytes], now_ms: RequestMs
    ) -> bytes:
        """Put jobs under their keys, all at once if the keys are all new."""
        put, words, _ = shape
        first_id = 0
        if words.own is None and words.target is None:
            try:
                first_id = put_keyed_run(
                    self.engine, self.used, put[0], put[1], put[2], keys, bodies, now_ms
                )
            except Refusal:
                first_id = 0  # of one at least: each gets its own reply
        if first_id:
            ids = tuple(range(first_id, first_id + len(keys)))
            return b"INSERTED %d\r\n" * len(keys) % ids
        answers = []
        for key, body in zip(keys, bodies, strict=True):
            try:
                named = words._replace(key=key)
                answers.append(self._put(0, put, named, None, body, now_ms))
            except Refusal as refusal:
                answers.append(self.refuse_with(refusal))
        return b"".join(answers)

    def _delete_run(self, run: re.Match[bytes], now_ms: RequestMs) -> int:
        """Delete the jobs that consecutive commands name, all at once if the client may all."""
        job_ids = list(map(int, run[0][len(b"delete ") : -2].split(b"\r\ndelete ")))
        if self.peer is not None and not self._may_delete(job_ids, now_ms):
            for job_id in job_ids:
                self.context.carry_out(self, b"delete %d" % job_id, now_ms)
            return run.end()
        self.is_bound = True
        self.stats.counts["delete"] += len(job_ids)
        deleted = delete_batch(self.engine, self.session, job_ids, now_ms)
        if all(deleted):
            self.out.append(replies.DELETED * len(deleted))
        else:
            self.refuse(replies.NOT_FOUND, deleted.count(False))
            self.out += [replies.DELETED if done else replies.NOT_FOUND for done in deleted]
        return run.end()

    def _may_delete(self, job_ids: list[int], now_ms: RequestMs) -> bool:
        """Tell whether the client may delete those of these jobs that are there."""
        topics = {self.topic_of(job_id, now_ms) for job_id in job_ids}
        assert self.peer is not None
        return self.peer.principal is not None and all(
            topic is None or self.may(Scope.DELETE, topic) for topic in topics
        )

    def _reserve_run(self, data: bytes, at: int, now_ms: RequestMs) -> int:
        """Hand out ready jobs to consecutive commands; return the place after them, or 0."""
        run = _RESERVES.match(data, at)
        assert run is not None
        commands = (run.end() - at) // len(_RESERVE)
        jobs = reserve_batch(self.engine, self.session, commands, self.space_bytes, now_ms)
        if not jobs:
            return 0
        self.is_bound = True
        self.stats.counts["reserve"] += len(jobs)
        self.stats.note_worker(self.session)
        self.out.append(self.long_reply(replies.reserved_run(jobs)))
        return at + len(jobs) * len(_RESERVE)

    # --- Putting ---------------------------------------------------------------------------------

    def begin_put(self, put: PutLine | None, name: str | None) -> bytes:
        """Check a put line in beanstalkd's order; expect its body, or discard it."""
        if put is None:
            return self.refuse(replies.BAD_FORMAT)
        self.stats.counts["put"] += 1
        if put.body_bytes > self.engine.body_bytes_max:
            return self.discard_body(put.body_bytes, self.refuse(replies.JOB_TOO_BIG))
        words = None
        if put.extra:
            if name is None and _EQUALS not in put.extra:
                # beanstalkd's junk: for it this announces no body.
                return self.refuse(replies.BAD_FORMAT)
            try:
                words = parse_put_words(put.extra)
            except Refusal as refusal:
                if name is not None:  # what was given for a name may have numbers of its own in it
                    raise
                return self.discard_body(put.body_bytes, self.refuse_with(refusal))
            if words.target and (
                denied := self._put_denied(name or self.used.name, with_target=True)
            ):
                return self.discard_body(put.body_bytes, self.refuse(denied))
            if words.instead and (denial := self.denial_of(to_put_instead(words.instead.topic))):
                reply = self.refuse(replies.forbidden(denial.lack))
                return self.discard_body(put.body_bytes, reply)
        self.stats.note_producer(self.session)
        job_id = 0 if words else take_id(self.engine)
        return self.expect(put.body_bytes, partial(self._put, job_id, put, words, name))

    def _put(
        self,
        job_id: int,
        put: PutLine,
        words: PutWords | None,
        name: str | None,
        body: bytes,
        now_ms: RequestMs,
    ) -> bytes:
        """Put the job, now that its body is there, or change the one that has its key."""
        topic = self.used if name is None else self.engine.store.topic(name)
        try:
            if words is not None:
                return self._put_with_words(put, words, topic, body, now_ms)
            numbers = put.priority, put.delay_ms, put.ttr_ms
            put_one(self.engine, topic, *numbers, body, now_ms, job_id)
        except Refusal:
            self.engine.store.drop_if_unwanted(topic)
            raise
        return b"INSERTED %d\r\n" % job_id

    def _put_with_words(
        self, put: PutLine, words: PutWords, topic: Topic, body: bytes, now_ms: RequestMs
    ) -> bytes:
        if words.instead is None:
            return replies.put_outcome(*self._put_named(put, words, topic, body, now_ms))
        named = partial(self._put_named, put, words, topic, body, now_ms)
        outcome = put_instead(self.engine, self.session, words.instead, topic, named, now_ms)
        return replies.put_outcome(*outcome)

    def _put_named(
        self, put: PutLine, words: PutWords, topic: Topic, body: bytes, now_ms: RequestMs
    ) -> tuple[int, Outcome]:
        own = words.own
        if words.target is not None:
            target = vetted_own(self.engine, words.target, topic.name)
            own = (own or Own())._replace(target=target)
        return put_keyed(
            self.engine,
            topic,
            words.key,
            words.on,
            priority=put.priority,
            delay_ms=put.delay_ms,
            ttr_ms=put.ttr_ms,
            body=body,
            now_ms=now_ms,
            own=own,
        )
