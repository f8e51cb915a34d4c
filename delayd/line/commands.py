"""What each command of the line protocol does: one function each, and the table of them.

A handler parses first, then counts the command (beanstalkd counts a command once its arguments are
well-formed, found or not), then asks the engine. Refusals pass through.
"""

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from delayd.access.scopes import Scope
from delayd.core import views
from delayd.core.errors import OutOfSpace
from delayd.core.session import Handed
from delayd.core.topic import checked_name
from delayd.core.views import job_details, topic_details
from delayd.limits import RESERVE_BATCH_MAX
from delayd.line import grammar, replies
from delayd.line.extensions import EXTENSIONS, authenticate
from delayd.line.grammar import BadFormat
from delayd.line.table import About, Command

if TYPE_CHECKING:
    from delayd.line.connection import Connection

WAITS: Final = b""
"""No reply yet."""


def _nothing_after(rest: bytes) -> None:
    if rest:
        raise BadFormat(rest)


# --- Reserving -----------------------------------------------------------------------------------


def _reserve(client: "Connection", rest: bytes, now_ms: int) -> bytes:
    if rest:
        raise BadFormat(rest)
    client.stats.counts["reserve"] += 1
    return _reserve_or_wait(client, None, now_ms)


def _reserve_with_timeout(client: "Connection", rest: bytes, now_ms: int) -> bytes:
    wait_ms = grammar.parse_wait(rest)
    client.stats.counts["reserve-with-timeout"] += 1
    return _reserve_or_wait(client, wait_ms, now_ms)


def _reserve_batch(client: "Connection", rest: bytes, now_ms: int) -> bytes:
    jobs_max, wait_ms = grammar.parse_batch(rest)
    client.batch_max = min(jobs_max, RESERVE_BATCH_MAX)
    try:
        return _reserve_or_wait(client, wait_ms, now_ms)
    except OutOfSpace:
        client.batch_max = 0
        raise


def _reserve_or_wait(client: "Connection", wait_ms: int | None, now_ms: int) -> bytes:
    engine, session = client.engine, client.session
    if not session.works:
        client.stats.note_worker(session)
    job = engine.reserve(session, now_ms)
    if job is not None:
        return handed_over(client, job, now_ms)
    if session.deadline_soon(now_ms):
        client.batch_max = 0
        return replies.DEADLINE_SOON
    if wait_ms == 0:
        client.batch_max = 0
        return replies.TIMED_OUT
    engine.wait(session, now_ms, wait_ms)
    client.is_waiting = True
    return WAITS


def handed_over(client: "Connection", job: Handed, now_ms: int) -> bytes:
    """Return the reply that hands a job over; a batch takes what else is ready."""
    if not client.batch_max:
        return client.long_reply(replies.reserved(job))
    more = client.engine.reserve_batch(
        client.session, client.batch_max - 1, client.room_bytes - len(job[1]), now_ms
    )
    client.batch_max = 0
    return client.long_reply(replies.reserved_batch([job, *more]))


def _reserve_job(client: "Connection", rest: bytes, now_ms: int) -> bytes:
    job = client.engine.reserve_job(client.session, grammar.parse_job_id(rest), now_ms)
    client.stats.note_worker(client.session)
    return client.long_reply(replies.reserved(job))


# --- What a worker says of its job ---------------------------------------------------------------


def _delete(client: "Connection", rest: bytes, now_ms: int) -> bytes:
    job_id = grammar.parse_job_id(rest)
    client.stats.counts["delete"] += 1
    client.engine.delete(client.session, job_id, now_ms)
    return replies.DELETED


def _release(client: "Connection", rest: bytes, now_ms: int) -> bytes:
    job_id, priority, delay_ms = grammar.parse_release(rest)
    client.stats.counts["release"] += 1
    client.engine.release(client.session, job_id, priority, delay_ms, now_ms)
    return replies.RELEASED


def _bury(client: "Connection", rest: bytes, now_ms: int) -> bytes:
    job_id, priority = grammar.parse_bury(rest)
    client.stats.counts["bury"] += 1
    client.engine.bury(client.session, job_id, priority, now_ms)
    return replies.BURIED


def _touch(client: "Connection", rest: bytes, now_ms: int) -> bytes:
    job_id = grammar.parse_job_id(rest)
    client.stats.counts["touch"] += 1
    client.engine.touch(client.session, job_id, now_ms)
    return replies.TOUCHED


# --- What anybody may do with waiting jobs -------------------------------------------------------


def _kick(client: "Connection", rest: bytes, now_ms: int) -> bytes:
    bound = grammar.parse_kick(rest)
    client.stats.counts["kick"] += 1
    return b"KICKED %d\r\n" % client.engine.kick(client.used, bound, now_ms)


def _kick_job(client: "Connection", rest: bytes, now_ms: int) -> bytes:
    client.engine.kick_job(grammar.parse_job_id(rest), now_ms)
    return replies.KICKED


def _reschedule(client: "Connection", rest: bytes, now_ms: int) -> bytes:
    job_id, delay_ms = grammar.parse_reschedule(rest)
    client.engine.reschedule(job_id, delay_ms, now_ms)
    return replies.RESCHEDULED


def _peek(client: "Connection", rest: bytes, _now_ms: int) -> bytes:
    job_id = grammar.parse_job_id(rest)
    client.stats.counts["peek"] += 1
    return client.long_reply(replies.found(views.peek(client.engine, job_id)))


def _peek_ready(client: "Connection", rest: bytes, _now_ms: int) -> bytes:
    _nothing_after(rest)
    client.stats.counts["peek-ready"] += 1
    return _found(client, views.peek_ready(client.engine, client.used))


def _peek_delayed(client: "Connection", rest: bytes, _now_ms: int) -> bytes:
    _nothing_after(rest)
    client.stats.counts["peek-delayed"] += 1
    return _found(client, views.peek_delayed(client.engine, client.used))


def _peek_buried(client: "Connection", rest: bytes, _now_ms: int) -> bytes:
    _nothing_after(rest)
    client.stats.counts["peek-buried"] += 1
    return _found(client, views.peek_buried(client.engine, client.used))


def _found(client: "Connection", job: Handed | None) -> bytes:
    return replies.NOT_FOUND if job is None else client.long_reply(replies.found(job))


# --- Tubes ---------------------------------------------------------------------------------------


def _use(client: "Connection", rest: bytes, _now_ms: int) -> bytes:
    name = checked_name(grammar.parse_name(rest))
    client.stats.counts["use"] += 1
    client.engine.use(client.session, name)
    return b"USING %b\r\n" % rest


def _watch(client: "Connection", rest: bytes, _now_ms: int) -> bytes:
    name = checked_name(grammar.parse_name(rest))
    client.stats.counts["watch"] += 1
    client.engine.watch(client.session, name)
    return b"WATCHING %d\r\n" % len(client.session.watched)


def _ignore(client: "Connection", rest: bytes, _now_ms: int) -> bytes:
    name = checked_name(grammar.parse_name(rest))
    client.stats.counts["ignore"] += 1
    client.engine.ignore(client.session, name)
    return b"WATCHING %d\r\n" % len(client.session.watched)


def _pause_tube(client: "Connection", rest: bytes, now_ms: int) -> bytes:
    name, pause_ms = grammar.parse_pause(rest)
    client.stats.counts["pause-tube"] += 1
    client.engine.pause(name, pause_ms, now_ms)
    return replies.PAUSED


# --- Statistics and lists ------------------------------------------------------------------------


def _stats_job(client: "Connection", rest: bytes, now_ms: int) -> bytes:
    job_id = grammar.parse_job_id(rest)
    client.stats.counts["stats-job"] += 1
    view = views.view_job(client.engine, job_id, now_ms)
    details = job_details(client.engine, job_id, now_ms)
    return client.long_reply(replies.stats_job(view, details, now_ms))


def _stats_tube(client: "Connection", rest: bytes, now_ms: int) -> bytes:
    name = checked_name(grammar.parse_name(rest))
    client.stats.counts["stats-tube"] += 1
    view = views.view_topic(client.engine, name, now_ms)
    return client.long_reply(replies.stats_tube(view, topic_details(client.engine, name)))


def _stats(client: "Connection", rest: bytes, now_ms: int) -> bytes:
    _nothing_after(rest)
    client.stats.counts["stats"] += 1
    return client.long_reply(replies.yaml_map(client.stats.report(now_ms)))


def _list_tubes(client: "Connection", rest: bytes, _now_ms: int) -> bytes:
    _nothing_after(rest)
    client.stats.counts["list-tubes"] += 1
    names = (topic.name for topic in client.visible(client.engine.store.topics.listing))
    return client.long_reply(replies.yaml_list(names))


def _list_tubes_watched(client: "Connection", rest: bytes, _now_ms: int) -> bytes:
    _nothing_after(rest)
    client.stats.counts["list-tubes-watched"] += 1
    names = (topic.name for topic in client.session.watched)
    return client.long_reply(replies.yaml_list(names))


def _list_tube_used(client: "Connection", rest: bytes, _now_ms: int) -> bytes:
    _nothing_after(rest)
    client.stats.counts["list-tube-used"] += 1
    return b"USING %b\r\n" % client.used.name.encode()


def _put_in_tube(client: "Connection", rest: bytes, _now_ms: int) -> bytes:
    name, put = grammar.parse_put_in_tube(rest)
    return client.begin_put(put, checked_name(name))


def _quit(client: "Connection", _rest: bytes, _now_ms: int) -> bytes:
    client.is_closing = True
    return b""


COMMANDS: Final = (
    Command(b"peek ", _peek, About.JOB, Scope.PEEK),
    Command(b"peek-ready", _peek_ready, About.USED, Scope.PEEK),
    Command(b"peek-delayed", _peek_delayed, About.USED, Scope.PEEK),
    Command(b"peek-buried", _peek_buried, About.USED, Scope.PEEK),
    Command(b"reserve-with-timeout ", _reserve_with_timeout, About.WATCHED, Scope.RESERVE),
    Command(b"reserve-job ", _reserve_job, About.JOB, Scope.RESERVE),
    Command(b"reserve-batch ", _reserve_batch, About.WATCHED, Scope.RESERVE),
    Command(b"reserve", _reserve, About.WATCHED, Scope.RESERVE),
    Command(b"delete ", _delete, About.JOB, Scope.DELETE),
    Command(b"release ", _release, About.JOB, Scope.RELEASE),
    Command(b"bury ", _bury, About.JOB, Scope.BURY),
    Command(b"kick ", _kick, About.USED, Scope.KICK),
    Command(b"kick-job ", _kick_job, About.JOB, Scope.KICK),
    Command(b"touch ", _touch, About.JOB, Scope.RELEASE),
    Command(b"stats-job ", _stats_job, About.JOB, Scope.PEEK),
    Command(b"stats-tube ", _stats_tube, About.NAMED, Scope.STATS),
    Command(b"stats", _stats, About.DAEMON, Scope.STATS),
    Command(b"use ", _use, About.NAMED, Scope.PUT, (Scope.KICK, Scope.PEEK)),
    Command(b"watch ", _watch, About.NAMED, Scope.RESERVE),
    Command(b"ignore ", _ignore, About.ITSELF),
    Command(b"list-tubes-watched", _list_tubes_watched, About.ITSELF),
    Command(b"list-tube-used", _list_tube_used, About.ITSELF),
    Command(b"list-tubes", _list_tubes, About.ITSELF),
    Command(b"quit", _quit, About.DOOR),
    Command(b"pause-tube", _pause_tube, About.NAMED, Scope.PAUSE),
    Command(b"put-in-tube ", _put_in_tube, About.NAMED, Scope.PUT),
    Command(b"reschedule ", _reschedule, About.JOB, Scope.PUT),
    *EXTENSIONS,
)
"""A line's command is the first word here that it begins with, as beanstalkd finds it. So a client
that probes for commands sees the same answers: `stats x` begins with a known word and is badly
formed, `PUT` is unknown, `quitfoo` quits. (`put` is not here: the connection knows it by
itself.)"""

UNBOUND: Final = frozenset(
    {
        *(_use, _watch, _ignore, _list_tubes, _list_tubes_watched, _list_tube_used),
        *(_stats, _stats_tube, _put_in_tube, _quit, authenticate),
    }
)
"""Their replies say nothing of a job, and leave however slow the disk may be. (What begins a put is
not yet one.)"""

_BY_FIRST_WORD: Final = MappingProxyType(
    {command.word[:-1]: command for command in COMMANDS if command.word.endswith(b" ")}
)
_BY_LINE: Final = MappingProxyType(
    {command.word: command for command in COMMANDS if not command.word.endswith(b" ")}
)


def command_of(line: bytes) -> tuple[Command, bytes] | None:
    """Return the row of a line's command and the bytes after its word; None for an unknown one.

    Raises `BadFormat` for a NUL in a line, whatever its command.
    """
    if b"\0" in line:
        raise BadFormat(line)
    first, space, rest = line.partition(b" ")
    command = _BY_FIRST_WORD.get(first) if space else _BY_LINE.get(line)
    if command is not None:
        return command, rest
    for command in COMMANDS:
        if line.startswith(command.word):
            return command, line[len(command.word) :]
    return None
