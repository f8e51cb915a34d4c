"""What the commands do that beanstalkd does not know, and the table of them.

Handlers as in `commands`, for lines of up to 1,024 bytes. Those that look at many jobs are long
commands (`passes`): the connection waits while they go on in slices, and is answered in the end.
"""

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from delayd.access.scopes import Scope
from delayd.core import views
from delayd.core.errors import PolicyInvalid
from delayd.core.job import Event, State
from delayd.core.operations.clock import leases_are_caught_up
from delayd.core.operations.put import checked_key
from delayd.core.operations.topics import SetPolicy
from delayd.core.policy import Policy
from delayd.core.scans.bulk import Action, Bulk
from delayd.core.scans.clear import Clear
from delayd.core.scans.list import Calendar, Search
from delayd.core.scans.scan import Wanted
from delayd.core.topic import checked_name
from delayd.core.virtual_clock import ClockAdvance
from delayd.limits import POLICY_JSON_BYTES_MAX
from delayd.line import grammar, options, replies
from delayd.line.grammar import BadFormat
from delayd.line.table import About, Command

if TYPE_CHECKING:
    from delayd.line.connection import Connection


_DONE: Final = MappingProxyType(
    {Event.DELETE: b"CANCELLED", Event.KICK: b"KICKED", Event.RESCHEDULE: b"RESCHEDULED"}
)


def _topic_and(rest: bytes) -> tuple[str, bytes]:
    """Return the name of the topic that the command is about, and what stands behind it."""
    name, _, rest = rest.lstrip(b" ").partition(b" ")
    return checked_name(grammar.parse_name(name)), rest


# --- Who is there --------------------------------------------------------------------------------


def authenticate(client: "Connection", rest: bytes, _now_ms: int) -> bytes:
    """Let the client say who it is."""
    return client.authenticate(rest)


# --- Looking -------------------------------------------------------------------------------------


def _list_jobs(client: "Connection", rest: bytes, now_ms: int) -> bytes:
    name, rest = _topic_and(rest)
    asked = options.parse_filter(rest, options.LIST_READERS)
    search = Search(client.engine.state, name, asked.wanted(now_ms), asked.limit, asked.after)
    absolute = client.engine.store.wall_times
    return client.begin(search, lambda: replies.jobs_page(search.page, absolute.offset_ms))


def _calendar(client: "Connection", rest: bytes, now_ms: int) -> bytes:
    name, rest = _topic_and(rest)
    bin_ms, bins = grammar.parse_spans(rest)
    calendar = Calendar(client.engine.state, name, from_ms=now_ms, bin_ms=bin_ms, bins=bins)
    return client.begin(calendar, lambda: replies.calendar(calendar.counts, bin_ms))


def _nothing_after(rest: bytes) -> None:
    if rest:
        raise BadFormat(rest)


# --- Keys and changes ----------------------------------------------------------------------------


def _key_and(rest: bytes) -> tuple[str, bytes, bytes]:
    """Return topic and key that the command is about, and what stands behind them."""
    name, rest = _topic_and(rest)
    key, _, rest = rest.lstrip(b" ").partition(b" ")
    return name, checked_key(key), rest


def _delete_key(client: "Connection", rest: bytes, now_ms: int) -> bytes:
    name, key, rest = _key_and(rest)
    _nothing_after(rest)
    client.engine.delete(client.session, client.engine.find_key(name, key), now_ms)
    return replies.DELETED


def _reschedule_key(client: "Connection", rest: bytes, now_ms: int) -> bytes:
    name, key, rest = _key_and(rest)
    delay_ms = grammar.parse_seconds(rest)
    client.engine.reschedule(client.engine.find_key(name, key), delay_ms, now_ms)
    return replies.RESCHEDULED


def _peek_key(client: "Connection", rest: bytes, _now_ms: int) -> bytes:
    name, key, rest = _key_and(rest)
    _nothing_after(rest)
    engine = client.engine
    return client.long_reply(replies.found(views.peek(engine, engine.find_key(name, key))))


def _kick_key(client: "Connection", rest: bytes, now_ms: int) -> bytes:
    name, key, rest = _key_and(rest)
    _nothing_after(rest)
    client.engine.kick_job(client.engine.find_key(name, key), now_ms)
    return replies.KICKED


def _change(client: "Connection", rest: bytes, now_ms: int) -> bytes:
    job_word, _, rest = rest.lstrip(b" ").partition(b" ")
    job_id = grammar.parse_job_id(job_word)
    changes = options.parse_changes(rest)

    def change(body: bytes | None, now_ms: int) -> bytes:
        client.engine.change(
            job_id,
            priority=changes.priority,
            delay_ms=changes.delay_ms,
            ttr_ms=changes.ttr_ms,
            body=body,
            now_ms=now_ms,
        )
        return b"CHANGED\r\n"

    body_bytes = changes.body_bytes
    if body_bytes is None:
        return change(None, now_ms)
    if body_bytes > client.engine.state.body_bytes_max:
        return client.discard_body(body_bytes, client.refuse(replies.JOB_TOO_BIG))
    return client.expect(body_bytes, change)


# --- Failed attempts and policies ----------------------------------------------------------------


def _nack(client: "Connection", rest: bytes, now_ms: int) -> bytes:
    job_id, _, rest = rest.lstrip(b" ").partition(b" ")
    delay_ms, error = options.split_nack(rest)
    client.engine.nack(
        client.session, grammar.parse_job_id(job_id), now_ms, delay_ms=delay_ms, error=error
    )
    return b"NACKED\r\n"


def _set_policy(client: "Connection", rest: bytes, _now_ms: int) -> bytes:
    name, rest = _topic_and(rest)
    json_bytes = grammar.parse_bytes(rest)
    if json_bytes > POLICY_JSON_BYTES_MAX:
        return client.discard_body(json_bytes, client.refuse(replies.JOB_TOO_BIG))

    def set_it(json: bytes, now_ms: int) -> bytes:
        try:
            policy = Policy.from_json(json) if json else None
        except PolicyInvalid as refusal:
            return client.refuse(replies.policy_refused(refusal))
        target = None if policy is None else policy.exhausted
        if target is not None and not client.may(Scope.ADMIN, target):
            # Exhausted jobs would be put there.
            return client.refuse(replies.FORBIDDEN)
        work = SetPolicy(client.engine.state, name, policy)
        if leases_are_caught_up(client.engine.state):
            work.step(0, now_ms)
            return b"POLICY_SET\r\n"
        return client.begin(work, lambda: b"POLICY_SET\r\n")

    return client.expect(json_bytes, set_it)


def _get_policy(client: "Connection", rest: bytes, _now_ms: int) -> bytes:
    name, rest = _topic_and(rest)
    _nothing_after(rest)
    policy, _ = client.engine.policy_of(name)
    return client.long_reply(replies.ok(policy.to_json().encode()))


def _redrive(client: "Connection", rest: bytes, _now_ms: int) -> bytes:
    name, rest = _topic_and(rest)
    jobs_max, per_s = grammar.parse_redrive(rest)
    wanted = Wanted(frozenset({State.BURIED}))
    action = Action.kick(per_s)
    bulk = Bulk(client.engine.state, name, wanted, action, limit=jobs_max)
    return client.begin(bulk, lambda: replies.bulk(bulk, b"REDRIVEN"))


# --- Many at once --------------------------------------------------------------------------------


def _clear_tube(client: "Connection", rest: bytes, _now_ms: int) -> bytes:
    name, rest = _topic_and(rest)
    _nothing_after(rest)
    clear = Clear(client.engine.state, name)
    return client.begin(clear, lambda: b"CLEARED %d\r\n" % clear.count)


def _cancel_jobs(client: "Connection", rest: bytes, now_ms: int) -> bytes:
    name, rest = _topic_and(rest)
    return _bulk(client, name, rest, Action.cancel(), now_ms)


def _kick_jobs(client: "Connection", rest: bytes, now_ms: int) -> bytes:
    name, rest = _topic_and(rest)
    return _bulk(client, name, rest, Action.kick(), now_ms)


def _reschedule_jobs(client: "Connection", rest: bytes, now_ms: int) -> bytes:
    name, rest = _topic_and(rest)
    delay, _, rest = rest.lstrip(b" ").partition(b" ")
    action = Action.reschedule(grammar.parse_seconds(delay))
    return _bulk(client, name, rest, action, now_ms)


def _bulk(client: "Connection", name: str, rest: bytes, action: Action, now_ms: int) -> bytes:
    asked = options.parse_filter(rest, options.BULK_READERS)
    wanted = asked.wanted(now_ms)
    bulk = Bulk(client.engine.state, name, wanted, action, dry_run=asked.is_dry)
    word = b"MATCHED" if asked.is_dry else _DONE[action.event]
    return client.begin(bulk, lambda: replies.bulk(bulk, word))


# --- Time ----------------------------------------------------------------------------------------


def _advance_clock(client: "Connection", rest: bytes, _now_ms: int) -> bytes:
    clock = client.passes.clock
    if clock is None:
        return client.refuse(replies.UNKNOWN_COMMAND)
    advance = ClockAdvance(client.engine.state, clock, grammar.parse_seconds(rest))
    return client.begin(advance, lambda: replies.advanced(advance.time_ms))


EXTENSIONS: Final = (
    Command(b"auth ", authenticate, About.DOOR),
    Command(b"delete-key ", _delete_key, About.NAMED, Scope.DELETE),
    Command(b"reschedule-key ", _reschedule_key, About.NAMED, Scope.PUT),
    Command(b"peek-key ", _peek_key, About.NAMED, Scope.PEEK),
    Command(b"kick-key ", _kick_key, About.NAMED, Scope.KICK),
    Command(b"change ", _change, About.JOB, Scope.PUT),
    Command(b"nack ", _nack, About.JOB, Scope.RELEASE),
    Command(b"set-policy ", _set_policy, About.NAMED, Scope.ADMIN),
    Command(b"get-policy ", _get_policy, About.NAMED, Scope.STATS),
    Command(b"redrive ", _redrive, About.NAMED, Scope.KICK),
    Command(b"list-jobs ", _list_jobs, About.NAMED, Scope.PEEK),
    Command(b"calendar ", _calendar, About.NAMED, Scope.PEEK),
    Command(b"cancel-jobs ", _cancel_jobs, About.NAMED, Scope.DELETE),
    Command(b"kick-jobs ", _kick_jobs, About.NAMED, Scope.KICK),
    Command(b"reschedule-jobs ", _reschedule_jobs, About.NAMED, Scope.PUT),
    Command(b"clear-tube ", _clear_tube, About.NAMED, Scope.ADMIN),
    Command(b"advance-clock ", _advance_clock, About.DAEMON, Scope.ADMIN),
)
"""What stands behind beanstalkd's commands in the table. No word begins like one of those."""
