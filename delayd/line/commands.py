"""The table of the line protocol's commands, and one function for each.

    (b"kick ", grammar.parse_kick, _kick, About.USED, Scope.KICK)

    line ─► row ─► parse ─► may the client? ─► count ─► carry out ─► reply

beanstalkd counts a command once its arguments are well-formed, found or not. What a command is
about, and the scope that it takes, matter only to clients that have to authenticate, and not to
handlers. Their refusals pass through.

Those that look at many jobs are background tasks: the connection waits while they go on in slices,
and is answered in the end.
"""

import contextlib
import enum
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, final

from delayd.access.authorize import Denial, Right, to_put, to_set_policy
from delayd.access.scopes import Scope
from delayd.compat import Compat
from delayd.core import views
from delayd.core.engine import Engine
from delayd.core.errors import JobNotFound, OutOfSpace, PolicyInvalid, Refusal
from delayd.core.job_parts import Own
from delayd.core.job_record import State
from delayd.core.operations import ack, attempts, change
from delayd.core.operations.checks import topic_named, vetted_own
from delayd.core.operations.put import find_key
from delayd.core.operations.reserve import reserve, reserve_job, touch
from delayd.core.operations.sessions import ignore, use, watch
from delayd.core.operations.tick import caught_up, leases_are_caught_up
from delayd.core.operations.topics import Clear, SetPolicy, pause, pause_group, policy_of
from delayd.core.operations.waiting import wait
from delayd.core.policy import Policy
from delayd.core.scans.bulk import Action, Bulk
from delayd.core.scans.find import KeySearch
from delayd.core.scans.groups import GroupList, group_named
from delayd.core.scans.kick import Kick
from delayd.core.scans.list import Calendar, Search
from delayd.core.scans.reasons import DeadReasons
from delayd.core.scans.scan import Wanted
from delayd.core.scans.topics import TopicWalk
from delayd.core.session import Handed
from delayd.core.stats.totals import StateTotals
from delayd.core.targets import masked
from delayd.core.times import RequestMs
from delayd.core.topic import Topic
from delayd.core.virtual_clock import ClockAdvance
from delayd.limits import (
    DELAYED_SEARCHED,
    DELAYED_SORTED_MAX,
    KICKS_AT_ONCE,
    PASS_ACTION_COST,
    POLICY_JSON_BYTES_MAX,
    TOPICS_AT_ONCE,
)
from delayd.line import grammar, replies
from delayd.line.connection import LineConnection
from delayd.line.grammar import BadFormat, BatchLine, Changes, Filter, GroupsLine, KeyLine, PutLine
from delayd.line.stats import COUNTED, stats_job, stats_tube

Parser = Callable[[bytes], Any]
"""Returns the arguments that the bytes after a command's word are; may raise a `Refusal`."""

Handler = Callable[[LineConnection, Any, RequestMs], bytes]
"""Takes the connection, the arguments and the time; returns the reply, or nothing when the client
now waits."""

NO_JOB_ID: Final = 0
"""The id of no job: what a command is carried out for whose job must not show."""
NO_SCHEDULE: Final = ""


# --- Reserving -----------------------------------------------------------------------------------


def _reserve_batch(client: LineConnection, batch: BatchLine, now_ms: RequestMs) -> bytes:
    client.begin_batch(batch)
    try:
        reply = _reserve(client, batch.wait_ms, now_ms)
    except OutOfSpace:
        client.batch_max = 0
        raise
    client.ends_on_input = batch.ends_on_input and client.is_waiting
    return reply


def _reserve(client: LineConnection, wait_ms: int | None, now_ms: RequestMs) -> bytes:
    """Reserve a job, or wait for one: None is for ever."""
    engine, session = client.engine, client.session
    if not session.works:
        client.stats.note_worker(session)
    job = reserve(engine, session, now_ms)
    if job is not None:
        return client.hand_over(job, now_ms)
    if session.deadline_soon(now_ms):
        client.batch_max = 0
        return replies.DEADLINE_SOON
    if wait_ms == 0:
        client.batch_max = 0
        return replies.TIMED_OUT
    wait(engine, session, now_ms, wait_ms)
    client.is_waiting = True
    return b""


def _reserve_job(client: LineConnection, job_id: int, now_ms: RequestMs) -> bytes:
    job = reserve_job(client.engine, client.session, job_id, now_ms)
    client.stats.note_worker(client.session)
    return client.long_reply(replies.reserved(job))


# --- What a worker does with its job -------------------------------------------------------------


def _delete(client: LineConnection, job_id: int, now_ms: RequestMs) -> bytes:
    ack.delete(client.engine, client.session, job_id, now_ms)
    return replies.DELETED


def _release(client: LineConnection, args: tuple[int, int, int], now_ms: RequestMs) -> bytes:
    job_id, priority, delay_ms = args
    attempts.release(client.engine, client.session, job_id, priority, delay_ms, now_ms)
    return replies.RELEASED


def _bury(client: LineConnection, args: tuple[int, int, str], now_ms: RequestMs) -> bytes:
    job_id, priority, error = args
    attempts.bury(client.engine, client.session, job_id, priority, now_ms, error)
    return replies.BURIED


def _touch(client: LineConnection, job_id: int, now_ms: RequestMs) -> bytes:
    touch(client.engine, client.session, job_id, now_ms)
    return replies.TOUCHED


def _nack(
    client: LineConnection, args: tuple[int, int, str, bool, bool], now_ms: RequestMs
) -> bytes:
    job_id, delay_ms, error, counts, dead = args
    attempts.nack(
        *(client.engine, client.session, job_id, now_ms),
        delay_ms=delay_ms,
        error=error,
        counts=counts,
        dead=dead,
    )
    return b"NACKED\r\n"


# --- What any client may do with waiting jobs ----------------------------------------------------


def _kick(client: LineConnection, bound: int, now_ms: RequestMs) -> bytes:
    kick = Kick(client.engine, client.used, bound)

    def reply() -> bytes:
        return b"KICKED %d\r\n" % kick.done

    if kick.step(PASS_ACTION_COST * KICKS_AT_ONCE, now_ms):
        return reply()
    return client.begin(kick, reply, to_the_end=True)


def _kick_job(client: LineConnection, job_id: int, now_ms: RequestMs) -> bytes:
    change.kick_job(client.engine, job_id, now_ms)
    return replies.KICKED


def _reschedule(client: LineConnection, args: tuple[int, int], now_ms: RequestMs) -> bytes:
    job_id, delay_ms = args
    change.reschedule(client.engine, job_id, delay_ms, now_ms)
    return replies.RESCHEDULED


def _change(client: LineConnection, args: tuple[int, Changes], now_ms: RequestMs) -> bytes:
    job_id, changes = args

    def carry(body: bytes | None, now_ms: RequestMs) -> bytes:
        own = changes.own
        topic = client.topic_of(job_id, now_ms)
        new = changes.target
        # Before its body came the job may not have been there, or in another topic.
        if topic is not None:
            denial = client.denial_of(*to_put(topic, with_target=new is not None), hides=True)
            if denial is not None:
                if denial.is_hidden:
                    raise JobNotFound(job_id)
                return client.refuse(replies.forbidden(denial.lack))
        if new is not None:
            target = vetted_own(client.engine, new, topic) if new.url else b""
            own = (own or Own())._replace(target=target)
        change.change(
            client.engine,
            job_id,
            now_ms,
            priority=changes.priority,
            delay_ms=changes.delay_ms,
            ttr_ms=changes.ttr_ms,
            own=own,
            body=body,
        )
        return b"CHANGED\r\n"

    if changes.body_bytes is None:
        return carry(None, now_ms)
    return client.expect(changes.body_bytes, carry, client.engine.body_bytes_max)


def _peek(client: LineConnection, job_id: int, _now_ms: RequestMs) -> bytes:
    return client.long_reply(replies.found(views.peek(client.engine, job_id)))


def _peek_head(find: Callable[[Engine, Topic], Handed | None]) -> Handler:
    """Return the handler that shows the job which `find` finds in the topic used."""

    def peek(client: LineConnection, _nothing: None, _now_ms: RequestMs) -> bytes:
        job = find(client.engine, client.used)
        return client.find_nothing() if job is None else client.long_reply(replies.found(job))

    return peek


def _peek_delayed(client: LineConnection, nothing: None, now_ms: RequestMs) -> bytes:
    """Show the delayed job that comes due first; of many it is looked for in slices."""
    engine, topic = client.engine, client.used
    if topic.delayed <= DELAYED_SORTED_MAX:
        return _peek_head(views.peek_delayed)(client, nothing, now_ms)
    delayed = Wanted(frozenset({State.DELAYED}))
    search = Search(engine, topic.name, delayed, DELAYED_SEARCHED)
    return client.begin(search, lambda: _first_found(client, search))


def _first_found(client: LineConnection, search: Search) -> bytes:
    """Show the first job of a page that is still there."""
    for row in search.page.rows:
        with contextlib.suppress(JobNotFound):
            return client.long_reply(replies.found(views.peek(client.engine, row.job_id)))
    return client.find_nothing()


def _by_key(handle: Handler) -> Handler:
    """Return the handler that takes topic and key where `handle` takes the job's id."""

    def handle_key(client: LineConnection, args: tuple[Any, ...], now_ms: RequestMs) -> bytes:
        name, key, *rest = args
        job_id = find_key(client.engine, name, key)
        return handle(client, (job_id, *rest) if rest else job_id, now_ms)

    return handle_key


# --- Tubes ---------------------------------------------------------------------------------------


def _use(client: LineConnection, name: str, _now_ms: RequestMs) -> bytes:
    use(client.engine, client.session, name)
    return b"USING %b\r\n" % name.encode()


def _watch(client: LineConnection, name: str, _now_ms: RequestMs) -> bytes:
    watch(client.engine, client.session, name)
    client.note_watched()
    return b"WATCHING %d\r\n" % len(client.session.watched)


def _ignore(client: LineConnection, name: str, _now_ms: RequestMs) -> bytes:
    ignore(client.engine, client.session, name)
    return b"WATCHING %d\r\n" % len(client.session.watched)


def _pause_tube(client: LineConnection, args: tuple[str, int], now_ms: RequestMs) -> bytes:
    name, pause_ms = args
    pause(client.engine, name, pause_ms, now_ms)
    return replies.PAUSED


def _pause_group(client: LineConnection, args: tuple[str, bytes, int], now_ms: RequestMs) -> bytes:
    name, group, pause_ms = args
    pause_group(client.engine, name, group, pause_ms, now_ms)
    return replies.PAUSED


def _stats_group(client: LineConnection, args: tuple[str, bytes], now_ms: RequestMs) -> bytes:
    name, group = args
    row = group_named(topic_named(client.engine, name), group)
    offset_ms = client.engine.store.wall_times.offset_ms
    return client.long_reply(replies.group_stats(row, now_ms, offset_ms))


def _list_groups(client: LineConnection, args: tuple[str, GroupsLine], now_ms: RequestMs) -> bytes:
    name, which = args
    groups = GroupList(client.engine, name, which.order, which.limit, which.after.decode())
    wall_times = client.engine.store.wall_times
    return client.begin(
        groups,
        lambda: client.long_reply(replies.groups_page(groups, now_ms, wall_times.offset_ms)),
    )


def _put_in_tube(client: LineConnection, args: tuple[str, PutLine], _now_ms: RequestMs) -> bytes:
    name, put = args
    return client.begin_put(put, name)


def _set_policy(client: LineConnection, args: tuple[str, int, str], _now_ms: RequestMs) -> bytes:
    name, json_bytes, if_tag = args

    def set_it(json: bytes, now_ms: RequestMs) -> bytes:
        try:
            policy = Policy.from_json(json) if json else None
        except PolicyInvalid as refusal:
            return client.refuse(replies.policy_refused(refusal), kind=refusal.kind)
        if denial := client.denial_of(*to_set_policy(name, policy)):
            return client.refuse(replies.forbidden(denial.lack))
        work = SetPolicy(client.engine, name, policy, if_tag)
        if leases_are_caught_up(client.engine):
            work.step(0, now_ms)
            return b"POLICY_SET\r\n"
        return client.begin(work, lambda: b"POLICY_SET\r\n")

    return client.expect(json_bytes, set_it, POLICY_JSON_BYTES_MAX)


def _get_policy(client: LineConnection, name: str, _now_ms: RequestMs) -> bytes:
    policy, _ = policy_of(client.engine, name)
    if policy.push is not None and not client.may(Scope.ADMIN, name):
        policy = policy._replace(push=masked(policy.push))
    return client.long_reply(replies.ok(policy.to_json().encode()))


# --- Many jobs -----------------------------------------------------------------------------------


def _list_jobs(client: LineConnection, args: tuple[str, Filter], now_ms: RequestMs) -> bytes:
    name, selection = args
    search = Search(client.engine, name, selection.wanted(now_ms), selection.limit, selection.after)
    wall_times = client.engine.store.wall_times
    return client.begin(search, lambda: replies.jobs_page(search.page, wall_times.offset_ms))


def _find_key(client: LineConnection, wanted: KeyLine, _now_ms: RequestMs) -> bytes:
    may_see = partial(client.may, Scope.PEEK)
    cost = 1 + client.visible_us
    search = KeySearch(client.engine, wanted.key, may_see, wanted.limit, wanted.after, cost=cost)
    wall_times = client.engine.store.wall_times
    return client.begin(
        search, lambda: client.long_reply(replies.jobs_with_key(search, wall_times.offset_ms))
    )


def _calendar(client: LineConnection, args: tuple[str, int, int], now_ms: RequestMs) -> bytes:
    name, bin_ms, bins = args
    calendar = Calendar(client.engine, name, from_ms=now_ms, bin_ms=bin_ms, bins=bins)
    return client.begin(calendar, lambda: replies.calendar(calendar.counts, bin_ms))


def _dead_reasons(client: LineConnection, name: str, _now_ms: RequestMs) -> bytes:
    reasons = DeadReasons(client.engine, name)
    wall_times = client.engine.store.wall_times
    return client.begin(
        reasons, lambda: client.long_reply(replies.dead_reasons(reasons, wall_times.offset_ms))
    )


def _redrive(
    client: LineConnection, args: tuple[str, int, float, Wanted], _now_ms: RequestMs
) -> bytes:
    name, jobs_max, per_s, wanted = args
    bulk = Bulk(client.engine, name, wanted, Action.kick(per_s), limit=jobs_max)
    return client.begin(bulk, lambda: _bulk_reply(client, bulk, b"REDRIVEN"))


def _clear_tube(client: LineConnection, name: str, _now_ms: RequestMs) -> bytes:
    clear = Clear(client.engine, name)
    return client.begin(clear, lambda: b"CLEARED %d\r\n" % clear.count)


def _cancel_jobs(client: LineConnection, args: tuple[str, Filter], now_ms: RequestMs) -> bytes:
    name, selection = args
    if selection._replace(dry=False) == Filter():  # every job: who may not clear may not do this
        denial = client.denial_of(Right(Scope.ADMIN, name))
        if denial is not None:
            return client.refuse(replies.forbidden(denial.lack))
    return _bulk(client, name, selection, Action.cancel(), b"CANCELLED", now_ms)


def _kick_jobs(client: LineConnection, args: tuple[str, Filter], now_ms: RequestMs) -> bytes:
    return _bulk(client, *args, Action.kick(), b"KICKED", now_ms)


def _reschedule_jobs(
    client: LineConnection, args: tuple[str, int, Filter], now_ms: RequestMs
) -> bytes:
    name, delay_ms, selection = args
    return _bulk(client, name, selection, Action.reschedule(delay_ms), b"RESCHEDULED", now_ms)


def _bulk(
    client: LineConnection,
    name: str,
    selection: Filter,
    action: Action,
    word: bytes,
    now_ms: RequestMs,
) -> bytes:
    bulk = Bulk(client.engine, name, selection.wanted(now_ms), action, dry_run=selection.dry)
    word = b"MATCHED" if selection.dry else word
    return client.begin(bulk, lambda: _bulk_reply(client, bulk, word))


def _bulk_reply(client: LineConnection, bulk: Bulk, word: bytes) -> bytes:
    """Reply with how many jobs were changed, or in a dry run would be."""
    if bulk.refusal is not None:
        return client.refuse_with(bulk.refusal, done=bulk.done)
    return b"%b %d\r\n" % (word, bulk.done)


# --- Statistics and lists ------------------------------------------------------------------------


def _stats_job(client: LineConnection, job_id: int, now_ms: RequestMs) -> bytes:
    engine = client.engine
    record, state = caught_up(engine, job_id, now_ms)
    sees_all = client.may(Scope.ADMIN, engine.store.topic_of(record).name)
    compat = client.stats.compat
    return client.long_reply(
        stats_job(engine.store, job_id, record, state, now_ms, compat, sees_all=sees_all)
    )


def _stats_tube(client: LineConnection, name: str, now_ms: RequestMs) -> bytes:
    topic = topic_named(client.engine, name)
    return client.long_reply(stats_tube(topic, now_ms, client.stats.compat))


def _stats(client: LineConnection, _nothing: None, now_ms: RequestMs) -> bytes:
    totals = StateTotals()
    return _of_all_topics(
        client,
        totals.add_all,
        lambda: client.long_reply(replies.yaml_map(client.stats.report(now_ms, totals))),
    )


def _list_tubes(client: LineConnection, _nothing: None, _now_ms: RequestMs) -> bytes:
    rows: list[bytes] = []

    def add(topics: Sequence[Topic]) -> None:
        listed = [topic for topic in topics if not topic.is_internal]
        rows.append(replies.yaml_rows(client.visible(listed)))

    return _of_all_topics(
        client,
        add,
        lambda: client.long_reply(replies.yaml_list(b"".join(rows))),
        1 + client.visible_us,  # a topic takes 1 µs, and to tell whether it is visible
    )


def _of_all_topics(
    client: LineConnection,
    visit: Callable[[Sequence[Topic]], object],
    reply: Callable[[], bytes],
    cost: int = 1,
) -> bytes:
    """Look at all topics, and then reply: at once, or in slices if that takes long."""
    topics = client.engine.store.topics.listing
    if cost * len(topics) > TOPICS_AT_ONCE:
        return client.begin(TopicWalk(topics, visit, cost), reply)
    visit(topics)
    return reply()


def _list_tubes_watched(client: LineConnection, _nothing: None, _now_ms: RequestMs) -> bytes:
    return client.long_reply(replies.yaml_list(replies.yaml_rows(client.session.watched)))


def _list_tube_used(client: LineConnection, _nothing: None, _now_ms: RequestMs) -> bytes:
    return b"USING %b\r\n" % client.used.name.encode()


# --- Schedules -----------------------------------------------------------------------------------


def _of_schedules(word: str) -> Handler:
    """Return the handler of a command about schedules, which is loaded when one comes."""

    def handle(client: LineConnection, args: Any, now_ms: RequestMs) -> bytes:  # noqa: ANN401 - what the row's parser returns
        from delayd.line.schedules import HANDLERS  # noqa: PLC0415 - see there

        return HANDLERS[word](client, args, now_ms)

    return handle


# --- The connection and the clock ----------------------------------------------------------------


def _auth(client: LineConnection, token: bytes, _now_ms: RequestMs) -> bytes:
    return client.authenticate(token)


def _why(client: LineConnection, _nothing: None, _now_ms: RequestMs) -> bytes:
    return replies.why(client.refused_kind)


def _quit(client: LineConnection, _rest: bytes, _now_ms: RequestMs) -> bytes:
    client.is_closing = True
    return b""


def _advance_clock(client: LineConnection, rest: bytes, _now_ms: RequestMs) -> bytes:
    clock = client.context.clock
    if clock is None:
        return client.refuse(replies.UNKNOWN_COMMAND)
    advance = ClockAdvance(client.engine, clock, grammar.parse_seconds(rest))
    return client.begin(advance, lambda: replies.advanced(advance.time_ms))


# --- The table -----------------------------------------------------------------------------------


class About(enum.Enum):
    """Where the topic of a command is found, for which its scope is needed."""

    NOTHING = enum.auto()
    """For clients that have not authenticated, too. No scope."""

    ITSELF = enum.auto()
    """The connection alone. No scope: every client may that has authenticated."""

    DAEMON = enum.auto()
    """All topics, or none."""

    USED = enum.auto()
    """The topic used."""

    WATCHED = enum.auto()
    """Each of the topics watched."""

    VISIBLE = enum.auto()
    """All topics for which the client has the scope; the reply leaves the others out."""

    NAMED = enum.auto()
    """The topic whose name is the first word behind the command's."""

    JOB = enum.auto()
    """The topic of the job whose id is that word."""

    SCHEDULE = enum.auto()
    """The topic of the schedule whose name is that word."""


@final
class Command:
    """A row of the table."""

    __slots__ = (
        *("about", "counted", "handle", "is_bound", "only_reads", "or_scopes", "parse"),
        *("scope", "word"),
    )

    def __init__(
        self,
        word: bytes,
        parse: Parser,
        handle: Handler,
        about: About,
        *scopes: Scope,
        is_bound: bool = True,
        only_reads: bool = False,
    ) -> None:
        """Begin with this word; with a space where there are arguments.

        A client must be allowed one of the `scopes`; the first is what the tables name. Without
        any, every client may. A reply that is not bound says nothing of a job, and leaves however
        slow the disk may be. What only reads changes nothing but the counters of commands: it is
        left out when its reply would reach no client.
        """
        self.word = word
        self.parse = parse
        self.handle = handle
        self.about = about
        self.scope = scopes[0] if scopes else None
        self.or_scopes = scopes[1:]
        self.is_bound = is_bound
        self.only_reads = only_reads
        name = word.decode().rstrip()
        self.counted = name if name in COUNTED else ""


# Rows whose reply is not bound (what begins a put is not yet one), that only read, and both.
_free: Final = partial(Command, is_bound=False)
_look: Final = partial(Command, only_reads=True)
_free_look: Final = partial(Command, is_bound=False, only_reads=True)


def _schedule(word: bytes, parse: Parser, scope: Scope = Scope.PUT) -> Command:
    """Return the row of a command about one schedule."""
    handle = _of_schedules(word.decode().rstrip())
    return Command(word, parse, handle, About.SCHEDULE, scope, only_reads=scope is Scope.PEEK)


_id, _nothing, _later = grammar.parse_job_id, grammar.parse_nothing, grammar.parse_nothing_yet

_TIMED_RESERVE: Final = Command(
    *(b"reserve-with-timeout ", grammar.parse_wait, _reserve, About.WATCHED, Scope.RESERVE)
)
_TIMED_RESERVE_1_12: Final = Command(
    *(b"reserve-with-timeout ", grammar.parse_wait_1_12, _reserve, About.WATCHED, Scope.RESERVE)
)
"""Takes the place of the row above for clients of 1.12."""

COMMANDS: Final = (
    _look(b"peek ", _id, _peek, About.JOB, Scope.PEEK),
    _look(b"peek-ready", _nothing, _peek_head(views.peek_ready), About.USED, Scope.PEEK),
    _look(b"peek-delayed", _nothing, _peek_delayed, About.USED, Scope.PEEK),
    _look(b"peek-buried", _nothing, _peek_head(views.peek_buried), About.USED, Scope.PEEK),
    _TIMED_RESERVE,
    Command(b"reserve-job ", _id, _reserve_job, About.JOB, Scope.RESERVE),
    Command(b"reserve-batch ", grammar.parse_batch, _reserve_batch, About.WATCHED, Scope.RESERVE),
    Command(b"reserve", _nothing, _reserve, About.WATCHED, Scope.RESERVE),
    Command(b"delete ", _id, _delete, About.JOB, Scope.DELETE),
    Command(b"release ", grammar.parse_release, _release, About.JOB, Scope.RELEASE),
    Command(b"bury ", grammar.parse_bury, _bury, About.JOB, Scope.BURY),
    Command(b"kick ", grammar.parse_kick, _kick, About.USED, Scope.KICK),
    Command(b"kick-job ", _id, _kick_job, About.JOB, Scope.KICK),
    Command(b"touch ", _id, _touch, About.JOB, Scope.RELEASE),
    _look(b"stats-job ", _id, _stats_job, About.JOB, Scope.PEEK),
    _free_look(b"stats-tube ", grammar.parse_topic, _stats_tube, About.NAMED, Scope.STATS),
    # Ours, and here since `stats` would be the first word that it begins with.
    _look(b"stats-group ", grammar.parse_group, _stats_group, About.NAMED, Scope.STATS),
    _free_look(b"stats", _nothing, _stats, About.DAEMON, Scope.STATS),
    _free(b"use ", grammar.parse_topic, _use, About.NAMED, Scope.PUT, Scope.KICK, Scope.PEEK),
    _free(b"watch ", grammar.parse_topic, _watch, About.NAMED, Scope.RESERVE),
    _free(b"ignore ", grammar.parse_topic, _ignore, About.ITSELF),
    _free_look(b"list-tubes-watched", _nothing, _list_tubes_watched, About.ITSELF),
    _free_look(b"list-tube-used", _nothing, _list_tube_used, About.ITSELF),
    _free_look(b"list-tubes", _nothing, _list_tubes, About.ITSELF),
    _free(b"quit", _later, _quit, About.NOTHING),
    Command(b"pause-tube", grammar.parse_pause, _pause_tube, About.NAMED, Scope.PAUSE),
    # From here on beanstalkd knows none; no word begins like one of its own.
    _free(b"put-in-tube ", grammar.parse_put_in_tube, _put_in_tube, About.NAMED, Scope.PUT),
    Command(b"reschedule ", grammar.parse_reschedule, _reschedule, About.JOB, Scope.PUT),
    _free(b"auth ", _later, _auth, About.NOTHING),
    Command(b"delete-key ", grammar.parse_key, _by_key(_delete), About.NAMED, Scope.DELETE),
    Command(
        *(b"reschedule-key ", grammar.parse_key_and_delay, _by_key(_reschedule)),
        *(About.NAMED, Scope.PUT),
    ),
    _look(b"peek-key ", grammar.parse_key, _by_key(_peek), About.NAMED, Scope.PEEK),
    Command(b"kick-key ", grammar.parse_key, _by_key(_kick_job), About.NAMED, Scope.KICK),
    Command(b"change ", grammar.parse_change, _change, About.JOB, Scope.PUT),
    Command(b"nack ", grammar.parse_nack, _nack, About.JOB, Scope.RELEASE),
    Command(b"set-policy ", grammar.parse_set_policy, _set_policy, About.NAMED, Scope.ADMIN),
    _look(b"get-policy ", grammar.parse_only_topic, _get_policy, About.NAMED, Scope.STATS),
    Command(b"redrive ", grammar.parse_redrive, _redrive, About.NAMED, Scope.KICK),
    _look(b"list-jobs ", grammar.parse_list, _list_jobs, About.NAMED, Scope.PEEK),
    _look(b"dead-reasons ", grammar.parse_only_topic, _dead_reasons, About.NAMED, Scope.PEEK),
    Command(b"pause-group ", grammar.parse_pause_group, _pause_group, About.NAMED, Scope.PAUSE),
    _look(b"list-groups ", grammar.parse_groups, _list_groups, About.NAMED, Scope.STATS),
    _look(b"find-key ", grammar.parse_find, _find_key, About.VISIBLE, Scope.PEEK),
    _look(b"calendar ", grammar.parse_calendar, _calendar, About.NAMED, Scope.PEEK),
    Command(b"cancel-jobs ", grammar.parse_bulk, _cancel_jobs, About.NAMED, Scope.DELETE),
    Command(b"kick-jobs ", grammar.parse_bulk, _kick_jobs, About.NAMED, Scope.KICK),
    Command(
        *(b"reschedule-jobs ", grammar.parse_reschedule_jobs, _reschedule_jobs),
        *(About.NAMED, Scope.PUT),
    ),
    Command(b"clear-tube ", grammar.parse_only_topic, _clear_tube, About.NAMED, Scope.ADMIN),
    Command(
        *(b"schedule-put ", grammar.parse_schedule_put, _of_schedules("schedule-put")),
        *(About.VISIBLE, Scope.PUT),
    ),
    _schedule(b"schedule-delete ", grammar.parse_schedule),
    _schedule(b"schedule-pause ", grammar.parse_schedule_and_body),
    _schedule(b"schedule-resume ", grammar.parse_schedule),
    _schedule(b"schedule-run ", grammar.parse_schedule),
    _schedule(b"schedule-backfill ", grammar.parse_backfill),
    _schedule(b"schedule-get ", grammar.parse_schedule, Scope.PEEK),
    _schedule(b"schedule-preview ", grammar.parse_preview, Scope.PEEK),
    _look(
        *(b"schedules", grammar.parse_schedules, _of_schedules("schedules")),
        *(About.VISIBLE, Scope.PEEK),
    ),
    Command(b"advance-clock ", _later, _advance_clock, About.DAEMON, Scope.ADMIN),
    _free(b"why", _nothing, _why, About.ITSELF),
)
"""A line's command is the first word here that it begins with, as beanstalkd finds it. So a client
that probes for commands sees the same answers: `stats x` begins with a known word and is badly
formed, `PUT` is unknown, `quitfoo` quits. (`put` is not here: the connection knows it by
itself.)"""

_NUL: Final = 0
"""Of a byte that is looked for as a number, `in` takes half of the time."""

_BY_WORD: Final = {command.word: command for command in COMMANDS}
"""The row of most lines, at once."""


def command_of(line: bytes) -> tuple[Command, bytes] | None:
    """Return the row of a line's command and the bytes after its word; None for an unknown one.

    Raises `BadFormat` for a NUL in a line, whatever its command.
    """
    if _NUL in line:
        raise BadFormat(line)
    for command in COMMANDS:
        if line.startswith(command.word):
            return command, line[len(command.word) :]
    return None


# --- Carrying out --------------------------------------------------------------------------------


def carry_out(client: LineConnection, line: bytes, now_ms: RequestMs) -> None:
    """Carry out the command of a line, if the client may, and gather its reply."""
    peer = client.peer
    is_bound = False
    try:
        if peer is not None and peer.principal is None:
            found = None if _NUL in line else command_of(line)
            # The same reply to every command, so that none shows; unless it is another protocol.
            if found is None and client.is_foreign(line, 0):
                return
            if found is None or found[0].about is not About.NOTHING:
                _refuse(client, line, replies.UNAUTHORIZED)
                return
        word, space, rest = line.partition(b" ")
        command = _BY_WORD.get(word + space)
        if command is None or _NUL in line:
            found = command_of(line)
            if found is None:
                if not client.is_foreign(line, 0):
                    client.out.append(client.refuse(replies.UNKNOWN_COMMAND))
                return
            command, rest = found
        if command.only_reads and client.is_unheard:
            return
        if command is _TIMED_RESERVE and client.stats.compat is Compat.V1_12:
            command = _TIMED_RESERVE_1_12
        is_bound = command.is_bound
        args = command.parse(rest)
        if peer is not None and command.scope is not None:
            denial = _denial_of(client, command, args, now_ms)
            if denial is not None:
                if not denial.is_hidden:
                    _refuse(client, line, replies.forbidden(denial.lack))
                    return
                args = _hidden(args)
        if command.counted:
            client.stats.counts[command.counted] += 1
        reply = command.handle(client, args, now_ms)
    except Refusal as refusal:
        reply = client.refuse_command(line, replies.refused(refusal), refusal.kind)
    if reply:
        client.out.append(reply)
        if is_bound and reply not in replies.NO_JOB:
            client.is_bound = True
    elif client.session.waiting and client.is_half_closed:
        client.wait_no_longer()


def _refuse(client: LineConnection, line: bytes, reply: bytes) -> None:
    """Refuse a command, now or behind its body."""
    if reply := client.refuse_command(line, reply):
        client.out.append(reply)


def _hidden(args: Any) -> Any:  # noqa: ANN401 (what the row's parser returns)
    """Return the arguments of a command about a job or a schedule, with one that is not there."""
    first = args if isinstance(args, int | str) else args[0]
    nobody = NO_JOB_ID if isinstance(first, int) else NO_SCHEDULE
    return nobody if first is args else (nobody, *args[1:])


def _denial_of(
    client: LineConnection,
    command: Command,
    args: Any,  # noqa: ANN401 (what the row's parser returns)
    now_ms: RequestMs,
) -> Denial | None:
    """Return why a client that has authenticated may not have this carried out; None: it may."""
    assert command.scope is not None
    topic: str | None = None
    hides = False
    match command.about:
        case About.WATCHED:
            if client.may_reserve():
                return None
            watched = [each.name for each in client.session.watched]
            topic = next(each for each in watched if not client.may(command.scope, each))
        case About.VISIBLE:
            if client.has_scope(command.scope):
                return None
        case About.USED:
            topic = client.used.name
        case About.NAMED:
            topic = args if isinstance(args, str) else args[0]
        case About.JOB:
            job_id = args if isinstance(args, int) else args[0]
            topic = client.topic_of(job_id, now_ms)
            if topic is None:
                return None
            hides = job_id not in client.session.deadlines
        case About.SCHEDULE:
            from delayd.line.schedules import denial_of  # noqa: PLC0415 - see there

            return denial_of(client, command.scope, args if isinstance(args, str) else args[0])
    return client.denial_of(Right(command.scope, topic), or_scopes=command.or_scopes, hides=hides)
