r"""Every operation over the line protocol, under the names that `http_calls` gives them.

Operations that the line lacks raise NotOnThisProtocol, which names the url of the other one.

>>> steps = LineCalls("http://127.0.0.1:11301").cancel(17)
>>> next(steps).lines
(b'delete 17\r\n',)
>>> steps.send(Replies([Reply(["DELETED"])], None))
Traceback (most recent call last):
StopIteration: 17

`docs/protocol.md` describes the commands themselves.
"""

import datetime as dt
import functools
import json
import re
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, TypeVar, Unpack, get_args

from delayd.client.answers import (
    array_in,
    checked,
    from_epoch,
    members,
    named,
    read_json,
    seconds_in,
    shown,
    text_in,
    whole_in,
)
from delayd.client.beanstalk import (
    Commands,
    Replies,
    Reply,
    choice_word,
    is_topic,
    key_word,
    label_word,
    line,
    read_group,
    read_group_page,
    read_groups,
    read_map,
    read_names,
    read_rows,
    read_value,
    refusal_of,
    seconds_word,
    topic_word,
    whole_at,
    whole_word,
)
from delayd.client.errors import (
    Invalid,
    JobNotFound,
    NotFound,
    NotOnThisProtocol,
    NotReserved,
    NotUnderstood,
    NoVirtualClock,
    Refused,
    ScheduleNotFound,
    TopicNotFound,
    wrong,
)
from delayd.client.limits import PREVIEW_RUNS_MAX
from delayd.client.results import (
    TEXTS,
    Attempt,
    BackfillResult,
    Became,
    Calendar,
    DeadGroup,
    Failure,
    GroupInfo,
    GroupPage,
    Health,
    JobInfo,
    PolicyInfo,
    PutResult,
    Reservation,
    RunResult,
    ScheduleInfo,
    SchedulePreview,
    Time,
    TopicInfo,
    with_others,
)
from delayd.client.schedules import (
    definition_json,
    read_page,
    read_preview,
    read_schedule,
    schedule_word,
)
from delayd.client.values import (
    PAGE_JOBS,
    Body,
    Bound,
    Changes,
    Duration,
    Filter,
    GroupOrder,
    Moment,
    NewJob,
    NewSchedule,
    OnConflict,
    Outcome,
    PutOptions,
    ScheduleOptions,
    State,
    Timing,
    body_bytes,
    json_bytes,
    listed,
    moment,
    seconds,
    tag_word,
    text_bytes,
    waits,
)

T = TypeVar("T")
Steps = Generator[Commands, Replies, T]

PRIORITY: Final = 65_536
_PRIORITY_WORD: Final = "65536"
_TTR_WORD: Final = "60"
IN_FLIGHT_MAX: Final = 1_000
DEFAULT: Final = "default"
"""The topic that is always there."""
ALL: Final = (1 << 32) - 1
BINS_MAX: Final = 1_000
ATTEMPTS_MAX: Final = 65_535
STEPS_MAX: Final = 255
CONFLICTS: Final = get_args(OnConflict)
GROUP_ORDERS: Final = get_args(GroupOrder)
STATES: Final = get_args(State)
_OUTCOMES: Final[Mapping[str, Outcome]] = {
    "INSERTED": "created",
    "KEPT": "kept",
    "REPLACED": "replaced",
    "PRESERVED": "preserved",
    "EXTENDED": "extended",
}
_NO_JOB: Final = frozenset(("TIMED_OUT", "DEADLINE_SOON"))
_PLAIN: Final = frozenset(("body", "priority", "delay", "ttr"))
LINES_KEPT: Final = 64
"""So many sets of topics and commands of workers are kept, of all clients."""
_TTR: Final = re.compile(r"[0-9]{1,10}(?:\.[0-9]{1,3})?")
"""Seconds up to 4294967295.000."""
_HTTP_PUT: Final = ("at", "idempotency_key", "headers")
_HTTP_CHANGE: Final = ("at", "headers")


Held = Reservation | str
Words = Mapping[str, tuple[str, Callable[[Any], str]]]


class LineCalls:
    """The operations, which `Client` describes.

    `http_url` is the daemon's address over HTTP, for errors that name it.
    """

    def __init__(self, http_url: str) -> None:
        self._http_url = http_url

    # --- Producers -------------------------------------------------------------------------------

    def put(self, topic: str, body: Body, **options: Unpack[PutOptions]) -> Steps[PutResult]:
        may_repeat = options.get("on_conflict", "reject") != "reject"
        command = self.put_line(topic, {"body": body, **options})
        replies, _link = yield Commands((command,), may_repeat=may_repeat)
        result = put_result(replies[0], command)
        if isinstance(result, Refused):
            raise result
        return result

    def put_many(self, topic: str, jobs: Iterable[NewJob]) -> Steps[list[PutResult | Refused]]:
        """Put many jobs, with many commands in flight."""
        used = topic_word(topic)
        commands: list[bytes] = []
        for job in listed(jobs):
            try:
                commands.append(self.put_line(topic, job, is_used=True))
            except Invalid as error:
                (problem,) = error.problems
                place = f"jobs[{len(commands)}].{problem.field}"
                raise wrong(place, problem.detail) from None
        replies = yield from _ask_many(commands, used=used)
        return [put_result(*each) for each in zip(replies, commands, strict=True)]

    def put_line(self, topic: str, job: NewJob, *, is_used: bool = False) -> bytes:
        """Write the command that puts a job; `is_used`: the connection uses the topic.

        The daemon carries out many plain `put`s at once, and others one by one.
        """
        if is_used and job.keys() <= _PLAIN:
            text = body_bytes(job["body"])
            return b"%b%d\r\n%b\r\n" % (plain_head(job), len(text), text)
        if len(job) == 1:
            text = body_bytes(job["body"])
            return b"%b%d\r\n%b\r\n" % (_bare_head(topic), len(text), text)
        if job.keys() <= _PLAIN:
            options = ""
        else:
            for name, value in job.items():
                if name not in NewJob.__annotations__:
                    raise wrong(name, f"there is no such field{_did_you_mean(name)}")
                if name in _HTTP_PUT and value is not None:
                    raise self._elsewhere(f"a put with {name}")
            options = "".join([f" {word}" for word in _option_words(job, _PUT_WORDS)])
        text = body_bytes(job["body"])
        head = f"put-in-tube {topic_word(topic)} {' '.join(_plain_words(job))}"
        return b"%b %d%b\r\n%b\r\n" % (head.encode(), len(text), options.encode(), text)

    # --- Workers ---------------------------------------------------------------------------------

    def reserve(
        self, topics: str | Sequence[str], *, limit: int = 1, timeout: Duration | None = None
    ) -> Steps[list[Reservation]]:
        """Reserve jobs; commands about them go over the connection that reserved them."""
        watched, only = _watched(topics if isinstance(topics, str) else tuple(topics))
        for wait_s in waits(timeout):
            command = _reserve_line(limit, wait_s, is_named=bool(only))
            replies, link = yield Commands((command,), wait_s, may_repeat=True, watched=watched)
            first = replies[0]
            if first.word == "RESERVED_BATCH":
                if len(replies) > limit + 1:
                    raise NotUnderstood(f"{len(replies) - 1} jobs, and {limit} were asked for")
                return [reservation_of(reply, only, link) for reply in replies[1:]]
            if first.word not in _NO_JOB:
                raise refusal_of(first, command, "nothing was reserved")
        return []

    def ack(self, job: Held) -> Steps[None]:
        held = self._held(job)
        command = b"delete %d\r\n" % held.id
        replies, _link = yield Commands((command,), link=held.link)
        if (refusal := _not_finished(replies[0], command, "DELETED", held)) is not None:
            raise refusal

    def ack_many(self, jobs: Iterable[Held]) -> Steps[list[Refused | None]]:
        """Acknowledge many jobs, with the commands of each connection in flight together."""
        held = [self._held(job) for job in jobs]
        outcomes: dict[int, Refused | None] = {}
        for link in {id(job.link): job.link for job in held}.values():
            mine = [number for number, job in enumerate(held) if job.link is link]
            commands = [b"delete %d\r\n" % held[number].id for number in mine]
            replies = yield from _ask_many(commands, link=link)
            for number, command, reply in zip(mine, commands, replies, strict=True):
                outcomes[number] = _not_finished(reply, command, "DELETED", held[number])
        return [outcomes[number] for number in range(len(held))]

    def nack(
        self,
        job: Held,
        delay: Duration | None = None,
        error: str = "",
        priority: int | None = None,
        *,
        counts: bool = True,
        dead: bool = False,
    ) -> Steps[Became]:
        if priority is not None:
            raise self._elsewhere("a nack with a priority")
        words = ["dead=1"] if dead else [] if counts else ["counts=0"]
        if delay is not None and not dead:
            words.append(f"delay={seconds_word(delay, 'delay')}")
        if text := _one_line(error):
            words.append(text)
        held = yield from self._finish(job, "NACKED", "nack", *words)
        return Became(None, held.topic)

    def release(
        self, job: Held, delay: Duration | None = None, priority: int | None = None
    ) -> Steps[Became]:
        """Give a job back; a nack keeps its priority, and does the same otherwise."""
        if priority is None:
            return (yield from self.nack(job, delay=delay))
        words = (_priority(priority), seconds_word(0 if delay is None else delay, "delay"))
        held = yield from self._finish(job, "RELEASED", "release", *words)
        return Became(None, held.topic)

    def touch(self, job: Held) -> Steps[Time | None]:
        yield from _say_of(self._held(job), "touch", {"TOUCHED"})
        return None

    def bury(
        self, job: Held | int, key: str | None = None, error: str = "", priority: int | None = None
    ) -> Steps[None]:
        """Bury a job in hand; without a `priority` it keeps its own."""
        if isinstance(job, int) or key is not None:
            raise self._elsewhere("burying a job that is not reserved")
        if priority is None:  # a token without the scope `peek` is shown none
            reply = yield from _say_of(self._held(job), "stats-job", {"OK", "FORBIDDEN"})
            stats = read_map(reply.body)
            priority = whole_in({"pri": PRIORITY, **stats}, "pri")
        words = [f"error={text}"] if (text := _one_line(error)) else []
        yield from self._finish(job, "BURIED", "bury", _priority(priority), *words)

    def _held(self, job: Held) -> Reservation:
        if isinstance(job, str):
            raise self._elsewhere("to finish a job by its token")
        return job

    def _finish(self, job: Held, word: str, verb: str, *words: object) -> Steps[Reservation]:
        """Send a command that ends a reservation, on its connection."""
        held = self._held(job)
        command = line(verb, held.id, *words)
        replies, _link = yield Commands((command,), link=held.link)
        if (refusal := _not_finished(replies[0], command, word, held)) is not None:
            raise refusal
        return held

    # --- Jobs ------------------------------------------------------------------------------------

    def get(self, job_id: int) -> Steps[JobInfo]:
        (job,) = yield from _look([int(job_id)])
        if job is None:
            raise JobNotFound(f"there is no job {job_id}", "NOT_FOUND")
        return job

    def find(self, topic: str, key: str) -> Steps[JobInfo]:
        return (yield from self.get((yield from self._id_of(topic, key))))

    def page_of_key(
        self, key: str, *, after: str | None
    ) -> Steps[tuple[list[JobInfo], str | None]]:
        """Return a page of the jobs that have a key; the rest as `page`."""
        words = [key_word(key), f"limit={PAGE_JOBS}"]
        words += [f"after={topic_word(after)}"] if after else []
        reply = yield from _done(line("find-key", *words), "OK", may_repeat=True)
        rows, next_after = read_rows(reply.body)
        if len(rows) > PAGE_JOBS or (next_after and next_after <= (after or "")):
            raise NotUnderstood(f"a page of {len(rows)} jobs and `after` {shown(next_after)}")
        return [JobInfo(**{"topic": "", **row}) for row in rows], next_after or None

    def page(
        self, topic: str, which: Filter, *, limit: int | None, after: str | None, bodies: bool
    ) -> Steps[tuple[list[JobInfo], str | None]]:
        """As over HTTP. Bodies need commands for each job, which are all in flight."""
        most = PAGE_JOBS if limit is None else min(limit, PAGE_JOBS)
        words = [*self._filter(which), f"limit={whole_word(most, 'limit', 1, PAGE_JOBS)}"]
        words += [f"after={_option(after, 'after')}"] if after else []
        reply = yield from _of_topic("list-jobs", topic, "OK", *words, may_repeat=True)
        rows, next_after = read_rows(reply.body)
        if len(rows) > most or (after and next_after == after):
            raise NotUnderstood(f"a page of {len(rows)} jobs and `after` {shown(next_after)}")
        found: dict[int, JobInfo] = {}
        if bodies:
            with_bodies = yield from _look([row["id"] for row in rows])
            found = {job.id: job for job in with_bodies if job is not None}
        jobs = [
            found.get(row["id"], JobInfo(row["id"], topic, row["state"]))._replace(**row)
            for row in rows
        ]
        return jobs, next_after or None

    def kick(self, which: int | str, key: str | None = None) -> Steps[int]:
        return (yield from self._do(which, key, "kick", "KICKED", "kick-job"))

    def cancel(self, which: int | str, key: str | None = None) -> Steps[int]:
        return (yield from self._do(which, key, "delete", "DELETED", "delete"))

    def change(
        self, which: int | str, key: str | None = None, **changes: Unpack[Changes]
    ) -> Steps[Time | None]:
        for name in _HTTP_CHANGE:
            if name in changes:
                raise self._elsewhere(f"a change of {name}")
        job_id = which if isinstance(which, int) else (yield from self._id_of(which, key))
        words = list(_option_words(changes, _CHANGE_WORDS))
        values: Mapping[str, Any] = changes
        words += [  # an empty value removes it
            f"{name}={'' if values[name] is None else _PUT_WORDS[name][1](values[name])}"
            for name in ("url", *TEXTS)
            if name in values
        ]
        body = b""
        if "body" in changes:
            text = body_bytes(changes["body"])
            words.append(f"bytes={len(text)}")
            body = text + b"\r\n"
        command = line("change", int(job_id), *words) + body
        yield from _done(command, "CHANGED", f"there is no such job {job_id}")
        return None

    def kick_many(self, topic: str, which: Filter, *, dry_run: bool = False) -> Steps[int]:
        return (yield from self._many(topic, which, "kick-jobs", "KICKED", dry_run=dry_run))

    def cancel_many(self, topic: str, which: Filter, *, dry_run: bool = False) -> Steps[int]:
        return (yield from self._many(topic, which, "cancel-jobs", "CANCELLED", dry_run=dry_run))

    def reschedule_many(
        self, topic: str, which: Filter, timing: Timing, *, dry_run: bool = False
    ) -> Steps[int]:
        if timing.get("at") is not None or timing.get("delay") is None:
            raise self._elsewhere("a change of the time to a moment")
        verb, delay = "reschedule-jobs", seconds_word(timing["delay"], "delay")
        return (yield from self._many(topic, which, verb, "RESCHEDULED", delay, dry_run=dry_run))

    def _id_of(self, topic: str, key: str | None) -> Steps[int]:
        command = line("peek-key", topic_word(topic), key_word(_key(key)))
        missing = f"topic {topic!r} has no job with the key {key!r}"
        reply = yield from _done(command, "FOUND", missing, may_repeat=True)
        return reply.number

    def _do(
        self, which: int | str, key: str | None, verb: str, word: str, by_id: str
    ) -> Steps[int]:
        """Send a command about one job; return its number."""
        if isinstance(which, int):
            command = line(by_id, which)
            yield from _done(command, word, f"there is no such job {which}")
            return which
        named = (topic_word(which), key_word(_key(key)))
        commands = (line("peek-key", *named), line(f"{verb}-key", *named))
        found, done = (yield Commands(commands)).replies
        detail = f"topic {which!r} has no such job with the key {key!r}"
        _expect(done, commands[1], word, detail)
        return found.number

    def _many(
        self, topic: str, which: Filter, verb: str, word: str, *words: str, dry_run: bool
    ) -> Steps[int]:
        dry = ["dry=1"] if dry_run else []
        word = "MATCHED" if dry_run else word
        return (yield from _counted(verb, topic, word, *words, *self._filter(which), *dry))

    def _filter(self, which: Filter) -> Iterator[str]:
        if state := which.get("state"):
            yield "state=" + _states(state)
        if (due_from := which.get("due_from")) is not None:
            yield f"from={self._bound(due_from, 'from')}"
        if (due_to := which.get("due_to")) is not None:
            yield f"to={self._bound(due_to, 'to')}"
        if reason := which.get("reason"):
            yield f"reason={_option(reason, 'reason')}"
        if prefix := which.get("key_prefix"):
            yield f"prefix={key_word(prefix, 'prefix')}"
        if (group := which.get("group")) is not None:
            yield f"group={label_word(group, 'group')}"

    def _bound(self, bound: Bound, field: str) -> str:
        if isinstance(bound, dt.datetime) or (isinstance(bound, str) and "T" in bound):
            raise self._elsewhere("a filter by a moment")
        if str(bound).startswith("-"):
            raise self._elsewhere("a filter by a time before now")
        return seconds_word(bound, field)

    # --- Topics ----------------------------------------------------------------------------------

    def calendar(
        self, topics: Sequence[str], due_from: Bound, horizon: Duration, bins: int
    ) -> Steps[Calendar]:
        if due_from != 0:
            raise self._elsewhere("a calendar that does not begin now")
        bin_s = seconds(horizon, "horizon") / int(whole_word(bins, "bins", 1, BINS_MAX))
        words = seconds_word(bin_s, "horizon"), bins
        counts: dict[str, list[int]] = {}
        for name, body in (yield from self._of_each(topics, "calendar", *words)):
            counts[name] = [checked("a count", n, int) for n in read_map(body).values()]
            if len(counts[name]) != bins:
                raise NotUnderstood(f"a calendar of {len(counts[name])} parts and not of {bins}")
        return Calendar(None, bin_s, counts)

    def topics(self) -> Steps[list[TopicInfo]]:
        found = yield from self._of_each((), "stats-tube")
        return [_topic_info(read_map(body)) for _name, body in found]

    def topic(self, name: str) -> Steps[TopicInfo]:
        reply = yield from _of_topic("stats-tube", name, "OK", may_repeat=True)
        return _topic_info(read_map(reply.body))

    def _of_each(
        self, topics: Sequence[str], verb: str, *words: object
    ) -> Steps[list[tuple[str, bytes | None]]]:
        """Send a command about each of these topics; return their names and what was answered.

        Or about all, but for those that the token does not see, or that are gone meanwhile.
        """
        names = topics
        if not topics:
            reply = yield from _done(line("list-tubes"), "OK", may_repeat=True)
            names = sorted(read_names(reply.body)) or [DEFAULT]
        commands = [line(verb, topic_word(name), *words) for name in names]
        replies = yield from _ask_many(commands, may_repeat=True)
        if not topics:
            _check_scope(replies, commands)
        found: list[tuple[str, bytes | None]] = []
        for name, command, reply in zip(names, commands, replies, strict=True):
            if topics or reply.word not in {"FORBIDDEN", "NOT_FOUND"}:
                _expect(reply, command, "OK", _no_topic(name), TopicNotFound)
                found.append((name, reply.body))
        return found

    def policy(self, topic: str) -> Steps[PolicyInfo]:
        command = line("get-policy", topic_word(topic))
        reply = yield from _done(command, "OK", may_repeat=True)
        import hashlib  # noqa: PLC0415 - takes 1 ms, and few ask for a policy

        text = reply.body or b"{}"
        return PolicyInfo(members(read_json(text)), "", hashlib.sha256(text).hexdigest()[:16])

    def set_policy(self, topic: str, policy: Mapping[str, Any], if_tag: str) -> Steps[PolicyInfo]:
        return (yield from self._set_policy(topic, json_bytes(dict(policy)), if_tag))

    def clear_policy(self, topic: str, if_tag: str) -> Steps[PolicyInfo]:
        return (yield from self._set_policy(topic, b"", if_tag))

    def _set_policy(self, topic: str, body: bytes, if_tag: str) -> Steps[PolicyInfo]:
        words = [f"if={tag_word(if_tag)}"] if if_tag else []
        command = line("set-policy", topic_word(topic), len(body), *words) + body + b"\r\n"
        yield from _done(command, "POLICY_SET", may_repeat=not if_tag)
        return (yield from self.policy(topic))

    def pause(self, topic: str, duration: Duration) -> Steps[None]:
        pause = seconds_word(duration, "duration")
        yield from _of_topic("pause-tube", topic, "PAUSED", pause, may_repeat=True)

    def resume(self, topic: str) -> Steps[None]:
        yield from self.pause(topic, 0)

    def groups(self, topic: str, order: GroupOrder, limit: int, after: str) -> Steps[GroupPage]:
        words = [f"order={choice_word(order, 'order', GROUP_ORDERS)}"]
        words.append(f"limit={whole_word(limit, 'limit', 1, PAGE_JOBS)}")
        words += [f"after={label_word(after, 'after')}"] if after else []
        reply = yield from _of_topic("list-groups", topic, "OK", *words, may_repeat=True)
        return read_group_page(reply.body)

    def group(self, topic: str, name: str) -> Steps[GroupInfo]:
        group = label_word(name, "group")
        reply = yield from _of_topic("stats-group", topic, "OK", group, may_repeat=True)
        return read_group(reply.body)

    def pause_group(self, topic: str, name: str, duration: Duration) -> Steps[None]:
        words = label_word(name, "group"), seconds_word(duration, "duration")
        yield from _of_topic("pause-group", topic, "PAUSED", *words, may_repeat=True)

    def resume_group(self, topic: str, name: str) -> Steps[None]:
        yield from self.pause_group(topic, name, 0)

    def clear(self, topic: str) -> Steps[int]:
        return (yield from _counted("clear-tube", topic, "CLEARED"))

    def dead_reasons(self, topics: Sequence[str]) -> Steps[list[DeadGroup]]:
        found: list[DeadGroup] = []
        for name, body in (yield from self._of_each(topics, "dead-reasons")):
            groups, jobs = read_groups(body, name)
            found += with_others(groups, name, jobs)
        return found

    def redrive(
        self,
        topic: str,
        limit: int | None = None,
        per_second: float | None = None,
        reason: str | None = None,
        group: str | None = None,
    ) -> Steps[int]:
        most = str(ALL) if limit is None else whole_word(limit, "max", 1, ALL)
        words = [] if per_second is None else [f"{per_second:.3f}"]
        words += [] if reason is None else [f"reason={_option(reason, 'reason')}"]
        words += [] if group is None else [f"group={label_word(group, 'group')}"]
        return (yield from _counted("redrive", topic, "REDRIVEN", most, *words))

    # --- Schedules -------------------------------------------------------------------------------

    def put_schedule(
        self, name: str, topic: str, body: Body, options: ScheduleOptions
    ) -> Steps[ScheduleInfo]:
        text = definition_json({"topic": topic, **options, "body": body})
        made = ScheduleInfo(name, topic, "active")
        return (yield from _changed_schedule("put", "SCHEDULED", made, text))

    def schedule(self, name: str) -> Steps[ScheduleInfo]:
        text = (yield from _of_schedule("get", name, "OK", may_repeat=True)).body or b""
        return read_schedule(read_json(text), text)

    def page_of_schedules(
        self, topic: str, prefix: str, *, after: str | None
    ) -> Steps[tuple[list[ScheduleInfo], str | None]]:
        """Return a page of schedules by name, and `after` of the next one; None: there is none."""
        words = [f"topic={topic_word(topic)}"] if topic else []
        words += [f"prefix={schedule_word(prefix, 'prefix')}"] if prefix else []
        words += [f"after={schedule_word(after, 'after')}"] if after else []
        text = (yield from _done(line("schedules", *words), "OK", may_repeat=True)).body or b""
        return read_page(read_json(text), text, after)

    def remove_schedule(self, name: str) -> Steps[None]:
        yield from _of_schedule("delete", name, "DELETED")

    def pause_schedule(self, name: str, note: str) -> Steps[ScheduleInfo]:
        paused = ScheduleInfo(name, "", "paused", note=note)
        return (yield from _changed_schedule("pause", "PAUSED", paused, text_bytes(note, "note")))

    def resume_schedule(self, name: str) -> Steps[ScheduleInfo]:
        return (yield from _changed_schedule("resume", "RESUMED", ScheduleInfo(name, "", "active")))

    def run_schedule(self, name: str) -> Steps[RunResult]:
        words = (yield from _of_schedule("run", name, "RAN")).words
        if words[3:] not in ([], ["kept"]) or len(words) < 3:
            raise NotUnderstood(f"{shown(' '.join(words))} has no number and key")
        return RunResult(whole_at(words, 1), words[2], "kept" if words[3:] else "created")

    def backfill_schedule(
        self, name: str, due_from: Moment, due_to: Moment | None = None
    ) -> Steps[BackfillResult]:
        span = [_option(moment(due_from, "from"), "from")]
        if due_to is not None:
            span.append(_option(moment(due_to, "until"), "until"))
        words = (yield from _of_schedule("backfill", name, "BACKFILLED", *span)).words
        return BackfillResult(whole_at(words, 1), whole_at(words, 2))

    def preview_schedule(
        self, which: str | NewSchedule, count: int, _name: str = ""
    ) -> Steps[SchedulePreview]:
        if not isinstance(which, str):
            raise self._elsewhere("a preview of a schedule that is not made yet")
        most = f"count={whole_word(count, 'count', 1, PREVIEW_RUNS_MAX)}"
        reply = yield from _of_schedule("preview", which, "OK", most, may_repeat=True)
        return read_preview(read_json(reply.body or b""))

    # --- The daemon ------------------------------------------------------------------------------

    def stats(self) -> Steps[dict[str, Any]]:
        return read_map((yield from _done(line("stats"), "OK", may_repeat=True)).body)

    def health(self) -> Steps[Health]:
        """Return whether the daemon accepts jobs now, as far as the line knows."""
        is_draining = (yield from self.stats()).get("draining") == "true"
        return Health(is_ready=not is_draining, reason="it is draining" if is_draining else "")

    def metrics(self) -> Steps[str]:
        """Refuse: only HTTP has them."""
        raise self._elsewhere("the page for Prometheus")
        yield  # type: ignore[unreachable]  # as all operations, a generator

    def hand_over(self) -> Steps[str]:
        """Refuse: only HTTP has it."""
        raise self._elsewhere("a handover")
        yield  # type: ignore[unreachable]  # as all operations, a generator

    def advance_clock(self, by: Duration) -> Steps[Time]:
        command = line("advance-clock", seconds_word(by, "by"))
        reply = yield from _ask(command)
        if reply.word == "UNKNOWN_COMMAND":
            raise NoVirtualClock("this daemon uses the system's clock", "NO_VIRTUAL_CLOCK")
        _expect(reply, command, "ADVANCED")
        return from_epoch(seconds_in({"the time": _value_at(reply, 1)}, "the time"))

    def _elsewhere(self, operation: str) -> NotOnThisProtocol:
        return NotOnThisProtocol(operation, self._http_url)


@functools.lru_cache(maxsize=LINES_KEPT)
def _bare_head(topic: str) -> bytes:
    """Write a put without options up to the number of bytes."""
    return f"put-in-tube {topic_word(topic)} {' '.join(_plain_words({}))} ".encode()


def plain_head(options: PutOptions) -> bytes:
    """Write a plain `put` up to the number of bytes."""
    return " ".join(("put", *_plain_words(options), "")).encode()


def _plain_words(options: PutOptions) -> tuple[str, str, str]:
    priority, delay, ttr = options.get("priority"), options.get("delay"), options.get("ttr")
    return (
        _PRIORITY_WORD if priority is None else _priority(priority),
        "0" if delay is None else seconds_word(delay, "delay"),
        _TTR_WORD if ttr is None else _ttr(ttr),
    )


def _priority(number: int) -> str:
    return whole_word(number, "priority", 0, ALL)


def _option_words(options: Mapping[str, Any], words: Words) -> Iterator[str]:
    """Yield the words of the options that are not None."""
    for name, (word, write) in words.items():
        if (value := options.get(name)) is not None:
            yield f"{word}={write(value)}"


def _ttr(length: Duration) -> str:
    word = seconds_word(length, "ttr")
    if word == "0":
        raise wrong("ttr", "must be more than 0, up to 4294967295 s")
    return word


def _steps(retry: object) -> Iterator[str]:
    """Yield the steps of a ladder."""
    steps = retry.replace(",", " ").split() if isinstance(retry, str) else retry
    if (
        not isinstance(steps, Sequence)
        or isinstance(steps, bytes)
        or not 0 < len(steps) <= STEPS_MAX
    ):
        rule = f'must be 1 to {STEPS_MAX} durations, such as "15s 3m 10m" or ["15s", "3m"]'
        raise wrong("retry", rule)
    for number, step in enumerate(steps, 1):
        try:
            word = seconds_word(step, "")
            if word == "0":
                raise wrong("", "must be more than 0: what failed would fail again at once")
        except Invalid as error:
            detail = f"step {number}, {json.dumps(step, default=str)}, {error}"
            raise wrong("retry", detail) from None
        yield word


def _option(word: object, field: str) -> str:
    if not isinstance(word, str):
        raise wrong(field, "must be a text")
    if not word.isprintable() or " " in word:
        raise wrong(field, f"{word!r} is more than one word")
    return word


_PUT_WORDS: Final[Words] = MappingProxyType(
    {
        "key": ("key", key_word),
        "on_conflict": ("on", lambda mode: choice_word(mode, "on_conflict", CONFLICTS)),
        "retry": ("retry", lambda retry: ",".join(_steps(retry))),
        "max_attempts": ("attempts", lambda n: whole_word(n, "max_attempts", 1, ATTEMPTS_MAX)),
        "jitter_percent": ("jitter", lambda share: whole_word(share, "jitter_percent", 0, 100)),
        **{name: (name, functools.partial(label_word, field=name)) for name in TEXTS},
        "instead_of": ("instead", lambda job: _option(job, "instead_of")),
        "url": ("url", lambda url: _option(url, "url")),
        "method": ("method", lambda method: _option(method, "method")),
    }
)
"""Option of `put` -> the option of the line, and the function that writes its value."""
_CHANGE_WORDS: Final[Words] = MappingProxyType(
    {
        "priority": ("pri", _priority),
        "delay": ("delay", lambda delay: seconds_word(delay, "delay")),
        "ttr": ("ttr", _ttr),
        "method": _PUT_WORDS["method"],
    }
)


def check_argument(field: str, value: object) -> None:
    """Raise Invalid, as the line would, for an argument that no command can hold."""
    if field in {"duration", "by"}:
        seconds_word(value, field)  # type: ignore[arg-type]  # which it may not be
    for _word in _option_words({field: value}, {**_PUT_WORDS, **_CHANGE_WORDS}):
        pass


def _states(state: State | Sequence[State]) -> str:
    states = [state] if isinstance(state, str) else state
    if not set(states) <= set(STATES):
        raise wrong("state", f"must be one or more of {', '.join(STATES)}, with commas between")
    return ",".join(states)


def _did_you_mean(name: str) -> str:
    import difflib  # noqa: PLC0415 - only after a mistake

    close = difflib.get_close_matches(name, NewJob.__annotations__, n=1, cutoff=0.5)
    return f"; did you mean {close[0]}?" if close else ""


# --- Asking --------------------------------------------------------------------------------------


def _ask_many(commands: Sequence[bytes], **how: Any) -> Steps[list[Reply]]:  # noqa: ANN401 - as `Commands`
    """Send commands, at most IN_FLIGHT_MAX in flight; return the replies."""
    replies: list[Reply] = []
    for start in range(0, len(commands), IN_FLIGHT_MAX):
        part = tuple(commands[start : start + IN_FLIGHT_MAX])
        replies += (yield Commands(part, **how)).replies
    return replies


def _ask(command: bytes, **how: Any) -> Steps[Reply]:  # noqa: ANN401 - the same
    return (yield Commands((command,), **how)).replies[0]


def _done(
    command: bytes, word: str, detail: str = "nothing was done", *, may_repeat: bool = False
) -> Steps[Reply]:
    """Return the reply if it is that word. Raises its refusal."""
    reply = yield from _ask(command, may_repeat=may_repeat)
    _expect(reply, command, word, detail)
    return reply


def _of_topic(
    verb: str, topic: str, word: str, *words: str, may_repeat: bool = False
) -> Steps[Reply]:
    """Send a command about a topic. Raises TopicNotFound."""
    command = line(verb, topic_word(topic), *words)
    reply = yield from _ask(command, may_repeat=may_repeat)
    _expect(reply, command, word, _no_topic(topic), TopicNotFound)
    return reply


def _of_schedule(
    verb: str,
    name: str,
    word: str,
    *words: str,
    body: bytes | None = None,
    may_repeat: bool = False,
) -> Steps[Reply]:
    """Send a command about a schedule. Raises ScheduleNotFound."""
    command = line(f"schedule-{verb}", schedule_word(name), *words, body=body)
    reply = yield from _ask(command, may_repeat=may_repeat)
    _expect(reply, command, word, f"there is no schedule {name!r}", ScheduleNotFound)
    return reply


def _changed_schedule(
    verb: str, word: str, known: ScheduleInfo, body: bytes | None = None
) -> Steps[ScheduleInfo]:
    """Change a schedule, and look at it; what is `known` of it is all for those who may not."""
    done = yield from _of_schedule(verb, known.name, word, body=body, may_repeat=True)
    change = "".join(done.words[1:2])
    command = line("schedule-get", known.name)
    reply = yield from _ask(command, may_repeat=True)
    if reply.word in {"FORBIDDEN", "NOT_FOUND"}:
        return known._replace(change=change)
    _expect(reply, command, "OK")
    info = read_schedule(read_json(reply.body or b""), reply.body or b"")
    return info._replace(change=change)


def _counted(verb: str, topic: str, word: str, *words: str) -> Steps[int]:
    """Send a command about a topic's jobs; return how many they were."""
    return (yield from _of_topic(verb, topic, word, *words)).number


def _say_of(job: Reservation, verb: str, words: set[str]) -> Steps[Reply]:
    """Send a command about a job on its connection; return the reply if it is one of `words`."""
    command = line(verb, job.id)
    reply = yield from _ask(command, link=job.link)
    if reply.word not in words:
        raise _not_held(reply, command, job)
    return reply


def _look(job_ids: Sequence[int]) -> Steps[list[JobInfo | None]]:
    """Return jobs; None for those that are gone."""
    commands = [line(verb, job_id) for job_id in job_ids for verb in ("peek", "stats-job")]
    replies = yield from _ask_many(commands, may_repeat=True)
    jobs: list[JobInfo | None] = []
    for command, found, stats in zip(commands[::2], replies[::2], replies[1::2], strict=True):
        if found.word == "FOUND" and stats.word == "OK":
            jobs.append(_job_info(read_map(stats.body), found.body or b""))
        elif "NOT_FOUND" in {found.word, stats.word}:
            jobs.append(None)
        else:
            raise refusal_of(found, command, "it was not looked at")
    return jobs


# --- Reading and writing -------------------------------------------------------------------------


def put_result(reply: Reply, command: bytes) -> PutResult | Refused:
    """Return the result of a put, or its refusal."""
    if (outcome := _OUTCOMES.get(reply.word)) is None:
        if reply.word == "NOT_FOUND" and b" instead=" in command.partition(b"\r\n")[0]:
            detail = "the job in whose place it was to be put is not there: nothing was put"
            return JobNotFound(detail, "NOT_FOUND")
        return refusal_of(reply, command, "nothing was put")
    return PutResult(reply.number, outcome)


def _expect(
    reply: Reply,
    command: bytes,
    word: str,
    detail: str = "nothing was done",
    missing: type[NotFound] = JobNotFound,
) -> None:
    """Raise the refusal of a reply that is not `word`."""
    if reply.word == word:
        return
    if reply.word == "NOT_FOUND":
        raise missing(detail, "NOT_FOUND")
    raise refusal_of(reply, command, "nothing was done")


def _check_scope(replies: Sequence[Reply], commands: Sequence[bytes]) -> None:
    """Raise Forbidden for a token without the scope; one for other topics is not refused."""
    if not replies or any(reply.word != "FORBIDDEN" for reply in replies):
        return
    refusal = refusal_of(replies[0], commands[0], "nothing was shown")
    if getattr(refusal, "scope", ""):
        raise refusal


def _no_topic(topic: str) -> str:
    return f"there is no topic {topic!r}"


def _not_finished(reply: Reply, command: bytes, word: str, job: Reservation) -> Refused | None:
    """Note that a job is in hand no more; return the refusal, if its reservation had ended."""
    if reply.word == word:
        _drop(job)
        return None
    return _not_held(reply, command, job)


def _not_held(reply: Reply, command: bytes, job: Reservation) -> Refused:
    if reply.word == "NOT_FOUND":
        _drop(job)
        return NotReserved(f"job {job.id} is not reserved, or no longer", "NOT_RESERVED")
    return refusal_of(reply, command, f"job {job.id} is as it was")


def _drop(job: Reservation) -> None:
    if job.link is not None:  # one that was reserved over HTTP has none
        job.link.held.discard(job.id)


def _key(key: str | None) -> str:
    if key is None:
        raise TypeError("a job is named by its number, or by its topic and its key")
    return key


def _one_line(error: object) -> str:
    r"""Return a reason for the end of a line, cut to the length that fits. Raises Invalid.

    >>> _one_line("busy\r\nquit"), _one_line("delay=5"), _one_line("\0 in a file")
    ('busy quit', '"delay=5', 'in a file')
    """
    text = " ".join(text_bytes(error, "error").decode().replace("\0", " ").split())
    if text.startswith(("delay=", "counts=", "dead=")):
        text = f'"{text}'
    return text.encode()[:900].decode(errors="ignore")


@functools.lru_cache(maxsize=LINES_KEPT)
def _watched(topics: str | tuple[str, ...]) -> tuple[frozenset[str], str]:
    """Return the topics of a reserve, and their name if there is only one."""
    names = [topics] if isinstance(topics, str) else topics
    if not names:
        raise wrong("topics", "must be at least 1 long")
    watched = frozenset(map(topic_word, names))
    return watched, names[0] if len(watched) == 1 else ""


@functools.lru_cache(maxsize=LINES_KEPT)
def _reserve_line(limit: int, wait_s: float, *, is_named: bool) -> bytes:
    """Write a reserve, which a worker sends again and again; the topic may be known by name."""
    most, wait = whole_word(limit, "max", 1, 1_000), seconds_word(wait_s, "wait")
    details = "ttr,attempt,key" if is_named else "ttr,attempt,key,tube"
    return line("reserve-batch", most, wait, f"with={details}")


def reservation_of(reply: Reply, topic: str, link: Any) -> Reservation:  # noqa: ANN401 - a connection of either kind
    """Return a job of a batch; its line has ttr, attempt, key, and the tube unless it is known."""
    words, body = reply
    if (
        len(words) != (6 if topic else 7)
        or words[0] != "RESERVED"
        or not words[5].startswith("key=")
    ):
        raise NotUnderstood(f"{shown(' '.join(words))} is not a reserved job with its details")
    if not _TTR.fullmatch(words[3]):
        raise NotUnderstood(f"{shown(words[3])} is not a ttr")
    if not topic and not is_topic(words[6]):
        raise NotUnderstood(f"{shown(words[6])} is not a topic's name")
    return Reservation(
        int(words[1]),
        topic or words[6],
        "",
        body or b"",
        whole_at(words, 4),
        ttr=float(words[3]),
        key=words[5].removeprefix("key="),
        link=link,
    )


def _job_info(stats: dict[str, Any], body: bytes) -> JobInfo:
    failure = None
    if "failure" in stats:
        error, origin = str(stats.get("error", "")), str(stats.get("moved-from", ""))
        failure = Failure(str(stats["failure"]).replace("-", "_"), error=error, origin=origin)
    if "history" in stats:
        stats["history"] = read_json(str(stats["history"]).encode())
    texts: dict[str, Any] = {name: str(stats.get(name, "")) for name in TEXTS}
    return JobInfo(
        whole_in(stats, "id"),
        _name_of(stats, "tube"),
        text_in(stats, "state"),  # type: ignore[arg-type]  # a later daemon may have more of them
        priority=whole_in(stats, "pri"),
        ttr=seconds_in(stats, "ttr"),
        key=str(stats.get("key", "")),
        **texts,
        attempts=whole_in({"attempts": 0, **stats}, "attempts"),
        failure=failure,
        history=tuple(map(_attempt, array_in({"history": [], **stats}, "history"))),
        body=body,
        details=stats,
    )


def _attempt(answer: object) -> Attempt:
    attempt = named(Attempt, answer)
    return attempt._replace(reason=attempt.reason.replace("-", "_"))


def _topic_info(stats: dict[str, Any]) -> TopicInfo:
    kinds = ("jobs-delayed", "jobs-ready", "jobs-reserved", "jobs-buried", "jobs-urgent", "waiting")
    counts = [whole_in(stats, f"current-{kind}") for kind in kinds]
    groups = whole_in({"current-groups": 0, **stats}, "current-groups")
    left_s = whole_in({"pause-time-left": 0, **stats}, "pause-time-left")
    until = from_epoch(time.time() + min(left_s, ALL)) if left_s > 0 else None
    return TopicInfo._make((_name_of(stats, "name"), *counts, until, stats, None, None, groups))


def _name_of(stats: Mapping[str, Any], field: str, *default: str) -> str:
    """Return a topic's name; one of digits alone may be without quotes."""
    name = str(stats.get(field, *default))
    if name not in default and not is_topic(name):
        raise NotUnderstood(f"`{field}` is {shown(stats.get(field))} and not a topic's name")
    return name


def _value_at(reply: Reply, at: int) -> Any:  # noqa: ANN401 - a number or a text
    return read_value(reply.words[at]) if at < len(reply.words) else None
