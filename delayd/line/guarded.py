"""A connection that has to say who it is, and may do what its principal may.

    auth dlyd_…  ─► OK                       from then on:
    put …        ─► PUT on the tube used?    yes: as everywhere    no: FORBIDDEN
    delete 7     ─► DELETE on 7's tube?      no, and it may not even see it: as if 7 were not there

Before each command the table is asked what it is about and which scope that takes; the handlers
do what they do for everybody. A body that was announced is thrown away before the answer, so that
it is never taken for commands.

A job that the client may not see must not show by anything, a reply that differs for a malformed
line among them. So such a command is carried out after all, for the job 0, which never exists.
"""

import re
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final, Protocol

from delayd.access.admission import Admission, Peer
from delayd.access.scopes import Scope
from delayd.core.engine import Engine
from delayd.core.errors import JobNotFound
from delayd.core.session import Owner
from delayd.core.topic import Topic
from delayd.line import replies
from delayd.line.commands import command_of
from delayd.line.connection import Connection
from delayd.line.grammar import read_put
from delayd.line.stats import Stats
from delayd.line.table import About, Command
from delayd.line.tasks import LineTasks

_EQUALS: Final = ord("=")
_OK: Final = b"OK\r\n"
_NOBODY: Final = b"0"
"""The id that no job has."""


class Host(Owner, Protocol):
    """Whoever made the connection, and answers for it later."""

    peer: Peer
    """Who is at the other end."""

    def postpone(self, by_ms: int, answer: Callable[[int], object]) -> None:
        """Have this called so much later with the time, unless the client has gone by then."""
        ...


class GuardedConnection(Connection):
    """The protocol state of one client that may not do everything, or not yet anything."""

    __slots__ = ("_admission", "_caller", "_elapsed_ms", "_host")

    def __init__(
        self,
        engine: Engine,
        stats: Stats,
        out_bytes_max: int,
        owner: Host,
        passes: LineTasks,
        admission: Admission,
        elapsed_ms: Callable[[], int],
    ) -> None:
        """Let the owner's caller be checked at the door; the rest as for everybody."""
        super().__init__(engine, stats, out_bytes_max, owner, passes)
        self._host = owner
        self._caller = owner.peer
        self._admission = admission
        self._elapsed_ms = elapsed_ms

    # --- Who it is -------------------------------------------------------------------------------

    def authenticate(self, token: bytes) -> bytes:
        """Check the token; a wrong one may be answered late, which holds up nobody else."""
        text = token.decode("ascii", "replace")
        late_ms = self._admission.login(self._caller, text, self._elapsed_ms())
        if late_ms is None:
            return _OK
        self.refuse(replies.UNAUTHORIZED)
        if not late_ms:
            return replies.UNAUTHORIZED
        self.is_waiting = True
        self._host.postpone(late_ms, partial(self.answer, replies.UNAUTHORIZED))
        return b""

    def may(self, scope: Scope, topic: str) -> bool:
        """Tell whether the client may do this to the topic."""
        principal = self._caller.principal
        return principal is not None and principal.may(scope, topic)

    @property
    def is_welcome(self) -> bool:
        """Whether the client's token is still good, and for the jobs that it waits for."""
        if not self._admission.is_valid(self._caller):
            return False
        return not self.session.waiting or self._may_reserve(Scope.RESERVE)

    def visible(self, topics: Iterable[Topic]) -> Iterable[Topic]:
        """Return the topics whose jobs or figures the client may see."""
        return (
            topic
            for topic in topics
            if self.may(Scope.STATS, topic.name) or self.may(Scope.PEEK, topic.name)
        )

    # --- What it may -----------------------------------------------------------------------------

    def _line(self, data: bytes, at: int, end: int, now_ms: int) -> int:
        """Carry out one line, or a run of them that the client may all."""
        if not self._skipping:
            line = data[at:end]
            if line.startswith(b"put "):
                if not self.may(Scope.PUT, self.used.name):
                    self.out.append(self._turn_down_put(line))
                    return end + 2
            elif self._caller.principal is None or (
                line == b"reserve" and not self._may_reserve(Scope.RESERVE)
            ):
                self._command(line, now_ms)
                return end + 2
        return super()._line(data, at, end, now_ms)

    def _delete_run(self, run: re.Match[bytes], now_ms: int) -> int:
        """Delete the jobs that consecutive commands name, all at once if the client may all."""
        lines = run[0][:-2].split(b"\r\n")
        topics = {self._topic_of_job(line.removeprefix(b"delete "), now_ms) for line in lines}
        if all(topic is None or self.may(Scope.DELETE, topic) for topic in topics):
            return super()._delete_run(run, now_ms)
        for line in lines:
            self._command(line, now_ms)
        return run.end()

    def _turn_down_unknown(self, line: bytes) -> None:
        """Tell a stranger no more than of any command; unless it is no client of ours at all."""
        if self._is_foreign(line, 0):
            self.is_closing = True
        else:
            self._refuse_command(line, replies.UNAUTHORIZED)

    def _refuse_command(self, line: bytes, reply: bytes) -> None:
        """Refuse a command, now or behind its body."""
        if reply := self.refuse_command(line, reply):
            self.out.append(reply)

    def _turn_down_put(self, line: bytes) -> bytes:
        """Refuse a put, having thrown its body away; a malformed one is what it is everywhere."""
        is_stranger = self._caller.principal is None
        reply = replies.UNAUTHORIZED if is_stranger else replies.FORBIDDEN
        put = read_put(line)
        if put is None or (put.extra and _EQUALS not in put.extra):
            return self.refuse_command(line, reply if is_stranger else replies.BAD_FORMAT)
        return self.discard_body(put.body_bytes, self.refuse(reply))

    def _command(self, line: bytes, now_ms: int) -> None:
        """Carry out a command if the client may."""
        found = None if b"\0" in line else command_of(line)
        if found is None:
            if self._caller.principal is None:
                self._turn_down_unknown(line)
                return
        else:
            command, rest = found
            if command.about is About.JOB and not self._knows_job(command, rest, now_ms):
                line = _of_nobody(command, rest)
            elif (reply := self._refusal(command, rest, now_ms)) is not None:
                self._refuse_command(line, reply)
                return
        super()._command(line, now_ms)

    def _refusal(self, command: Command, rest: bytes, now_ms: int) -> bytes | None:
        """Return what a command is refused with; None: the client may ask for it."""
        if command.about is About.DOOR:
            return None
        principal = self._caller.principal
        if principal is None:
            return replies.UNAUTHORIZED
        scope = command.scope
        if scope is None:
            return None
        match command.about:
            case About.WATCHED:
                is_allowed = self._may_reserve(scope)
            case About.DAEMON:
                is_allowed = principal.may(scope, None)
            case _:
                topic = self._topic(command.about, rest, now_ms)
                is_allowed = topic is None or any(
                    self.may(each, topic) for each in (scope, *command.or_scopes)
                )
        return None if is_allowed else replies.FORBIDDEN

    def _topic(self, about: About, rest: bytes, now_ms: int) -> str | None:
        """Return the topic that a command is about; None for a job that is not there."""
        if about is About.USED:
            return self.used.name
        if about is About.JOB:
            return self._topic_of_job(rest, now_ms)
        # Nobody has the right to what is not a name; the handler would refuse it in any case.
        return _first_word(rest).decode("ascii", "replace")

    def _may_reserve(self, scope: Scope) -> bool:
        return all(self.may(scope, topic.name) for topic in self.session.watched)

    # --- Jobs ------------------------------------------------------------------------------------

    def _topic_of_job(self, rest: bytes, now_ms: int) -> str | None:
        job_id = _first_word(rest)
        if not job_id.isdigit():
            return None
        try:  # a ttr that has run out may have moved it, and its slice has not come
            record, _ = self.engine.caught_up(int(job_id), now_ms)
        except JobNotFound:
            return None
        return self.engine.store.topic_of(record).name

    def _knows_job(self, command: Command, rest: bytes, now_ms: int) -> bool:
        """Tell whether the client may know that the job exists, if it does: as the answer shows."""
        topic = None if self._caller.principal is None else self._topic_of_job(rest, now_ms)
        if topic is None:
            return True
        assert command.scope is not None
        return (
            self.may(command.scope, topic)
            or self.may(Scope.PEEK, topic)
            or int(_first_word(rest)) in self.session.deadlines
        )


def _first_word(rest: bytes) -> bytes:
    return rest.lstrip(b" ").partition(b" ")[0]


def _of_nobody(command: Command, rest: bytes) -> bytes:
    """Return the same command about the job that never exists."""
    job_id = _first_word(rest)
    return command.word + rest.replace(job_id, _NOBODY, 1)
