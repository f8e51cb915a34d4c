"""Every operation over HTTP: its requests, and reading their answers.

An operation is a generator. It yields requests, is sent their responses, and returns the result or
raises the refusal, so that the clients with and without asyncio share it:

>>> steps = HttpCalls().kick_many("mail", {"state": "buried"})
>>> next(steps)[:2]
('POST', '/v1/topics/mail/jobs/kick?state=buried')
>>> steps.send(Response(200, {}, b'{"kicked":3}'))
Traceback (most recent call last):
StopIteration: 3

`docs/http.md` describes the calls themselves.
"""

import datetime as dt
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar, Unpack

from delayd.client.answers import (
    array_in,
    base64_in,
    body_texts,
    checked,
    member,
    members,
    moment_in,
    named,
    read_json,
    seconds_in,
    shown,
    text_in,
    whole_in,
)
from delayd.client.errors import (
    ConnectionLost,
    DelaydError,
    FieldProblem,
    Invalid,
    KeyInvalid,
    NotUnderstood,
    Refused,
    TopicNameInvalid,
    counted_from,
    refused,
    wrong,
)
from delayd.client.http1 import Request, Response, query_text, quoted
from delayd.client.limits import BATCH_JOBS_MAX, DETAIL_CHARACTERS_MAX, PAGES_BYTES_MAX, PAGES_MAX
from delayd.client.results import (
    TEXTS,
    Attempt,
    BackfillResult,
    Became,
    Calendar,
    DeadGroup,
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
    preview_json,
    read_changed,
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
    PutOptions,
    ScheduleOptions,
    Timing,
    duration_value,
    is_json,
    job_fields,
    json_bytes,
    listed,
    moment,
    seconds,
    tag_word,
    text_bytes,
    waits,
)

T = TypeVar("T")
Steps = Generator[Request, Response, T]

NoneType: Final = type(None)
_OF_A_PROXY: Final = frozenset((502, 503, 504))
_DONE: Final = ("put", "kicked", "cancelled", "rescheduled")
"""How many jobs an operation on many had put or changed before it was refused."""

Held = Reservation | str


class HttpCalls:
    """The operations, under the names that the clients give them; `Client` describes them."""

    def __init__(self, waits: Callable[[Duration | None], Iterable[float]] = waits) -> None:
        """`waits` yields how long each request of a reserve waits; a double has its own."""
        self._waits = waits

    # --- Producers -------------------------------------------------------------------------------

    def put(self, topic: str, body: Body, **options: Unpack[PutOptions]) -> Steps[PutResult]:
        key = options.pop("idempotency_key", "")
        if key:  # it goes into a header
            _check_fields({"idempotency_key": key})
        may_repeat = bool(key) or options.get("on_conflict", "reject") != "reject"
        job = job_fields({"body": body, **options})
        headers = {"Idempotency-Key": key} if key else {}
        target = f"{_topic(topic)}/jobs"
        answer = yield from _ask("POST", target, job, may_repeat=may_repeat, headers=headers)
        return _put_result(answer)

    def put_many(self, topic: str, jobs: Iterable[NewJob]) -> Steps[list[PutResult | Refused]]:
        """Put many jobs, in requests as long as the daemon accepts."""
        written = [job_fields(job) for job in listed(jobs)]
        return (yield from _in_parts(f"{_topic(topic)}/jobs", "jobs", written, _put_result))

    # --- Workers ---------------------------------------------------------------------------------

    def reserve(
        self, topics: str | Sequence[str], *, limit: int = 1, timeout: Duration | None = None
    ) -> Steps[list[Reservation]]:
        wanted: dict[str, Any] = {"max": limit, "bodies": "base64"}
        if isinstance(topics, str):
            target = f"{_topic(topics)}/reserve"
        else:
            target = "/v1/reserve"
            wanted["topics"] = list(topics)
        for wait_s in self._waits(timeout):
            body = {**wanted, "wait": wait_s}
            # The jobs of a lost answer come again when their ttr ends; others will do meanwhile.
            answer = yield from _ask("POST", target, body, may_repeat=True, wait_s=wait_s)
            if answer is not None:
                jobs = array_in(answer, "jobs")
                if len(jobs) > limit:
                    raise NotUnderstood(f"{len(jobs)} jobs, and {limit} were asked for")
                return [_reservation(job) for job in jobs]
        return []

    def ack(self, job: Held) -> Steps[None]:
        yield from _held(job, "ack", {})

    def ack_many(self, jobs: Iterable[Held]) -> Steps[list[Refused | None]]:
        return (yield from _in_parts("/v1/ack", "tokens", [*map(_token, jobs)], lambda _: None))

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
        body: dict[str, Any] = _present(
            error=text_bytes(error, "error").decode() or None, priority=priority
        )
        if not counts:
            body["counts"] = False
        if dead:
            body["dead"] = True
        if delay is not None:
            body["delay"] = duration_value(delay)
        return named(Became, (yield from _held(job, "nack", body)))

    def release(
        self, job: Held, delay: Duration | None = None, priority: int | None = None
    ) -> Steps[Became]:
        """Give a job back. Over HTTP this is a nack without an error."""
        return (yield from self.nack(job, delay=delay, priority=priority))

    def touch(self, job: Held) -> Steps[Time | None]:
        return moment_in((yield from _held(job, "touch", {}, may_repeat=True)), "expires")

    def bury(
        self, job: Held | int, key: str | None = None, error: str = "", priority: int | None = None
    ) -> Steps[None]:
        """Bury a job in hand; or one that is not reserved, by its number or by topic and key."""
        body = _present(error=text_bytes(error, "error").decode() or None, priority=priority)
        if isinstance(job, int) or (isinstance(job, str) and key is not None):
            yield from _ask("POST", f"{_job_path(job, key)}/bury", body)
        else:
            yield from _held(job, "bury", body)

    # --- Jobs ------------------------------------------------------------------------------------

    def get(self, job_id: int) -> Steps[JobInfo]:
        return (yield from _look(f"/v1/jobs/{job_id}"))

    def find(self, topic: str, key: str) -> Steps[JobInfo]:
        return (yield from _look(_job_path(topic, key)))

    def page_of_key(
        self, key: str, *, after: str | None
    ) -> Steps[tuple[list[JobInfo], str | None]]:
        """Return a page of the jobs that have a key; the rest as `page`."""
        query = [("limit", str(PAGE_JOBS)), *([("after", after)] if after else [])]
        answer = yield from _get(f"/v1/keys/{_key(key)}?{query_text(query)}")
        jobs, next_after = array_in(answer, "jobs"), _after(answer)
        if len(jobs) > PAGE_JOBS or (next_after and next_after <= (after or "")):
            raise NotUnderstood(f"a page of {len(jobs)} jobs and `after` {shown(next_after)}")
        return [_job_info(job, iter(())) for job in jobs], next_after

    def page(
        self, topic: str, which: Filter, *, limit: int | None, after: str | None, bodies: bool
    ) -> Steps[tuple[list[JobInfo], str | None]]:
        """Return a page of jobs, and `after` of the next one; None: there is none."""
        most = PAGE_JOBS if limit is None else min(limit, PAGE_JOBS)
        query = {
            **_query(which),
            "limit": str(most),
            **({"bodies": "true"} if bodies else {}),
            **({"after": after} if after else {}),
        }
        response = yield Request(
            "GET", f"{_topic(topic)}/jobs?{query_text(query.items())}", may_repeat=True
        )
        answer = _read(response)
        texts = body_texts(response.body)
        jobs, next_after = array_in(answer, "jobs"), _after(answer)
        if len(jobs) > most or (after and next_after == after):
            raise NotUnderstood(f"a page of {len(jobs)} jobs and `after` {shown(next_after)}")
        return [_job_info(job, texts, topic) for job in jobs], next_after

    def kick(self, which: int | str, key: str | None = None) -> Steps[int]:
        return whole_in((yield from _ask("POST", f"{_job_path(which, key)}/kick", {})), "id")

    def cancel(self, which: int | str, key: str | None = None) -> Steps[int]:
        return whole_in((yield from _ask("DELETE", _job_path(which, key))), "id")

    def change(
        self, which: int | str, key: str | None = None, **changes: Unpack[Changes]
    ) -> Steps[Time | None]:
        body = job_fields(changes)
        body |= {name: None for name in ("url", *TEXTS) if changes.get(name, "") is None}
        return moment_in((yield from _ask("PATCH", _job_path(which, key), body)), "due")

    def kick_many(self, topic: str, which: Filter, *, dry_run: bool = False) -> Steps[int]:
        return (yield from _many("POST", topic, "/kick", which, dry_run=dry_run))

    def cancel_many(self, topic: str, which: Filter, *, dry_run: bool = False) -> Steps[int]:
        return (yield from _many("DELETE", topic, "", which, dry_run=dry_run))

    def reschedule_many(
        self, topic: str, which: Filter, timing: Timing, *, dry_run: bool = False
    ) -> Steps[int]:
        time = job_fields(timing)
        return (yield from _many("POST", topic, "/reschedule", which, time, dry_run=dry_run))

    # --- Topics ----------------------------------------------------------------------------------

    def calendar(
        self, topics: Sequence[str], due_from: Bound, horizon: Duration, bins: int
    ) -> Steps[Calendar]:
        query = [("horizon", str(duration_value(horizon))), ("bins", str(bins))]
        if due_from != 0:
            query.append(("from", _bound(due_from)))
        query += [("topic", topic) for topic in topics]
        counts: dict[str, list[int]] = {}
        for answer in (yield from _pages("/v1/calendar", query)):
            for topic in array_in(answer, "topics"):
                counts[text_in(topic, "name")] = _counts_of(topic, bins)
        return Calendar(moment_in(answer, "from"), seconds_in(answer, "bin"), counts)

    def topics(self) -> Steps[list[TopicInfo]]:
        pages = yield from _pages("/v1/topics", [("limit", str(PAGE_JOBS))])
        return [_topic_info(topic) for answer in pages for topic in array_in(answer, "topics")]

    def topic(self, name: str) -> Steps[TopicInfo]:
        return _topic_info((yield from _get(_topic(name))))

    def policy(self, topic: str) -> Steps[PolicyInfo]:
        return named(PolicyInfo, (yield from _get(f"{_topic(topic)}/policy")))

    def set_policy(self, topic: str, policy: Mapping[str, Any], if_tag: str) -> Steps[PolicyInfo]:
        return (yield from self._change_policy("PUT", topic, dict(policy), if_tag))

    def clear_policy(self, topic: str, if_tag: str) -> Steps[PolicyInfo]:
        return (yield from self._change_policy("DELETE", topic, None, if_tag))

    def _change_policy(
        self, method: str, topic: str, policy: dict[str, Any] | None, if_tag: str
    ) -> Steps[PolicyInfo]:
        # Once it is done the tag is another one: a repetition would be refused.
        headers = {"If-Match": f'"{tag_word(if_tag)}"'} if if_tag else {}
        how: dict[str, Any] = {"may_repeat": not if_tag, "headers": headers}
        target = f"{_topic(topic)}/policy"
        return named(PolicyInfo, (yield from _ask(method, target, policy, **how)))

    def pause(self, topic: str, duration: Duration) -> Steps[None]:
        body = {"duration": duration_value(duration)}
        yield from _ask("POST", f"{_topic(topic)}/pause", body, may_repeat=True)

    def resume(self, topic: str) -> Steps[None]:
        yield from _ask("POST", f"{_topic(topic)}/resume", {}, may_repeat=True)

    def groups(self, topic: str, order: GroupOrder, limit: int, after: str) -> Steps[GroupPage]:
        query = {"order": order, "limit": str(limit), **_present(after=after or None)}
        answer = yield from _get(f"{_topic(topic)}/groups?{query_text(query.items())}")
        groups = [named(GroupInfo, each) for each in array_in(answer, "groups")]
        return GroupPage(groups, whole_in(answer, "count"), _after(answer))

    def group(self, topic: str, name: str) -> Steps[GroupInfo]:
        return named(GroupInfo, (yield from _get(_group(topic, name))))

    def pause_group(self, topic: str, name: str, duration: Duration) -> Steps[None]:
        body = {"duration": duration_value(duration)}
        yield from _ask("POST", f"{_group(topic, name)}/pause", body, may_repeat=True)

    def resume_group(self, topic: str, name: str) -> Steps[None]:
        yield from _ask("POST", f"{_group(topic, name)}/resume", {}, may_repeat=True)

    def clear(self, topic: str) -> Steps[int]:
        return whole_in((yield from _ask("POST", f"{_topic(topic)}/clear", {})), "cleared")

    def dead_reasons(self, topics: Sequence[str]) -> Steps[list[DeadGroup]]:
        pages = yield from _pages("/v1/dead", [("topic", topic) for topic in topics])
        return [
            group
            for answer in pages
            for topic in array_in(answer, "topics")
            for group in _dead_groups(topic)
        ]

    def redrive(
        self,
        topic: str,
        limit: int | None = None,
        per_second: float | None = None,
        reason: str | None = None,
        group: str | None = None,
    ) -> Steps[int]:
        body = _present(max=limit, per_second=per_second, reason=reason, group=group)
        return whole_in((yield from _ask("POST", f"{_topic(topic)}/kick", body)), "kicked")

    # --- Schedules -------------------------------------------------------------------------------

    def put_schedule(
        self, name: str, topic: str, body: Body, options: ScheduleOptions
    ) -> Steps[ScheduleInfo]:
        text = definition_json({"topic": topic, **options, "body": body})
        return (yield from _schedule("PUT", name, "", text))

    def schedule(self, name: str) -> Steps[ScheduleInfo]:
        return (yield from _schedule("GET", name))

    def page_of_schedules(
        self, topic: str, prefix: str, *, after: str | None
    ) -> Steps[tuple[list[ScheduleInfo], str | None]]:
        """Return a page of schedules by name, and `after` of the next one; None: there is none."""
        parts = _present(topic=topic or None, prefix=prefix or None, after=after)
        query = f"?{query_text(parts.items())}" if parts else ""
        response = yield Request("GET", f"/v1/schedules{query}", may_repeat=True)
        return read_page(_read(response), response.body, after)

    def remove_schedule(self, name: str) -> Steps[None]:
        yield from _ask("DELETE", _schedule_path(name))

    def pause_schedule(self, name: str, note: str) -> Steps[ScheduleInfo]:
        text = json_bytes({"note": text_bytes(note, "note").decode()})
        return (yield from _schedule("POST", name, "/pause", text))

    def resume_schedule(self, name: str) -> Steps[ScheduleInfo]:
        return (yield from _schedule("POST", name, "/resume", b"{}"))

    def run_schedule(self, name: str) -> Steps[RunResult]:
        return named(RunResult, (yield from _ask("POST", f"{_schedule_path(name)}/run", {})))

    def backfill_schedule(
        self, name: str, due_from: Moment, due_to: Moment | None = None
    ) -> Steps[BackfillResult]:
        span = {"from": moment(due_from, "from")}
        if due_to is not None:
            span["until"] = moment(due_to, "until")
        answer = yield from _ask("POST", f"{_schedule_path(name)}/backfill", span)
        return named(BackfillResult, answer)

    def preview_schedule(
        self, which: str | NewSchedule, count: int, name: str = ""
    ) -> Steps[SchedulePreview]:
        query = f"preview?count={count}"
        if isinstance(which, str):
            return read_preview((yield from _get(f"{_schedule_path(which)}/{query}")))
        if name:
            query += f"&name={quoted(name)}"
        text = preview_json(which)
        response = yield Request("POST", f"/v1/schedules/{query}", text, may_repeat=True)
        return read_preview(_read(response))

    # --- The daemon ------------------------------------------------------------------------------

    def stats(self) -> Steps[dict[str, Any]]:
        return members((yield from _get("/v1/stats")))

    def health(self) -> Steps[Health]:
        response = yield Request("GET", "/readyz", may_repeat=True)
        if response.status == 503:
            return Health(is_ready=False, reason=_detail(_problem(response)))
        _read(response)
        return Health(is_ready=True)

    def metrics(self) -> Steps[str]:
        response = yield Request("GET", "/metrics", may_repeat=True)
        if response.status != 200:
            _read(response)
        try:
            return response.body.decode()
        except ValueError:
            raise NotUnderstood(f"{shown(response.body)} is not UTF-8") from None

    def hand_over(self) -> Steps[str]:
        return text_in((yield from _ask("POST", "/v1/handover")), "standby")

    def advance_clock(self, by: Duration) -> Steps[Time]:
        answer = yield from _ask("POST", "/v1/clock/advance", {"by": duration_value(by)})
        return moment_in(answer, "now")


# --- Asking --------------------------------------------------------------------------------------


def _ask(method: str, target: str, value: object = None, **how: Any) -> Steps[Any]:  # noqa: ANN401 - as `Request` takes it
    """Send JSON and return the JSON of the answer; None if it has none. Raises Invalid."""
    try:
        body = b"" if value is None else json_bytes(value)
    except (TypeError, ValueError):
        _check_fields(value)
        raise
    return _read((yield Request(method, target, body, **how)))


def _check_fields(value: object, place: str = "") -> None:
    """Raise Invalid for the first field that JSON cannot hold; bodies have errors of their own."""
    for name, field in value.items() if isinstance(value, dict) else ():
        if name == "jobs":
            for number, job in enumerate(field):
                _check_fields(job, f"jobs[{number}].")
        elif name != "body" and not is_json(field):
            from delayd.client.line_calls import check_argument  # noqa: PLC0415 - only then

            try:
                check_argument(name, field)
            except Invalid as error:
                raise wrong(place + name, error.problems[0].detail) from None
            raise wrong(place + name, "is nothing that JSON can say")


def _in_parts(
    target: str, name: str, values: Sequence[object], read: Callable[[dict[str, Any]], T]
) -> Steps[list[T | Refused]]:
    """Send values in requests as long as the daemon accepts; return the result of each.

    An error has the results of the requests before it.
    """
    results: list[T | Refused] = []
    for start in range(0, len(values), BATCH_JOBS_MAX):
        part = values[start : start + BATCH_JOBS_MAX]
        try:
            answer = yield from _ask("POST", target, {name: part})
            answered = array_in(answer, "results")
            if len(answered) != len(part):
                raise NotUnderstood(f"{len(answered)} results for {len(part)} {name}")
            for result in answered:
                problem = members(result).get("problem")
                results.append(read(result) if problem is None else _refusal(members(problem)))
        except DelaydError as error:
            error.results = results
            counted_from(error, name, start)
            raise
    return results


def _pages(path: str, query: list[tuple[str, str]]) -> Steps[list[Any]]:
    """Return all pages of a list by names, which come in their order."""
    pages: list[Any] = []
    after, left_bytes = "", PAGES_BYTES_MAX
    while len(pages) < PAGES_MAX and left_bytes > 0:
        parts = [*query, ("after", after)] if after else query
        response = yield Request("GET", f"{path}?{query_text(parts)}", may_repeat=True)
        left_bytes -= len(response.body)
        pages.append(_read(response))
        if not (next_after := _after(pages[-1])):
            return pages
        if next_after <= after:
            raise NotUnderstood(f"a page after {shown(after)} ends with {shown(next_after)}")
        after = next_after
    raise NotUnderstood(f"{len(pages)} pages of {path}, and there are more")


def _after(answer: object) -> str | None:
    """Return `after` of the next page; None: this was the last one."""
    after: str | None = checked("after", member(answer, "after"), str, NoneType)
    return after


def _counts_of(topic: object, bins: int) -> list[int]:
    counts = array_in(topic, "counts")
    if len(counts) != bins:
        raise NotUnderstood(f"a calendar of {len(counts)} parts and not of {bins}")
    return [checked("counts", count, int) for count in counts]


def _get(target: str) -> Steps[Any]:
    return (yield from _ask("GET", target, may_repeat=True))


def _held(job: Held, verb: str, body: dict[str, Any], *, may_repeat: bool = False) -> Steps[Any]:
    """Send a request about a reservation, whose token begins with the job's number."""
    token = _token(job)
    target = f"/v1/jobs/{quoted(token.partition('-')[0])}/{verb}"
    return (yield from _ask("POST", target, {"token": token, **body}, may_repeat=may_repeat))


def _look(target: str) -> Steps[JobInfo]:
    response = yield Request("GET", target, may_repeat=True)
    job = _read(response)
    return _job_info(job, body_texts(response.body))


def _many(
    method: str, topic: str, verb: str, which: Filter, body: object = None, *, dry_run: bool
) -> Steps[int]:
    """Send an operation on all jobs that match; return how many they are."""
    parts = {**_query(which), **({"dry_run": "true"} if dry_run else {})}
    if method == "DELETE" and not which and not dry_run:
        parts["all"] = "true"
    query = query_text(parts.items())
    if body is None and method == "POST":
        body = {}
    target = f"{_topic(topic)}/jobs{verb}" + (f"?{query}" if query else "")
    counts = [*members((yield from _ask(method, target, body))).values()]
    return int(checked("the count", counts[0] if counts else None, int))


def _schedule(method: str, name: str, verb: str = "", body: bytes = b"") -> Steps[ScheduleInfo]:
    """Send a request about a schedule, which may be done twice, and read what it answers."""
    response = yield Request(method, _schedule_path(name) + verb, body, may_repeat=True)
    read = read_schedule if method == "GET" else read_changed
    return read(_read(response), response.body)


def _schedule_path(name: str) -> str:
    return f"/v1/schedules/{quoted(schedule_word(name))}"


def _topic(name: str) -> str:
    if not isinstance(name, str):
        raise wrong("topic", f"must be the name of a topic, and is {name!r:.80}")
    if not name:  # a path without it is another one
        raise TopicNameInvalid("the topic name is empty", "BAD_FORMAT")
    return f"/v1/topics/{quoted(name)}"


def _group(topic: str, name: str) -> str:
    if not name:
        raise wrong("group", "is empty")
    return f"{_topic(topic)}/groups/{quoted(name)}"


def _key(key: str) -> str:
    if not key:
        raise KeyInvalid("the key is empty", "BAD_FORMAT")
    return quoted(key)


def _job_path(which: int | str, key: str | None) -> str:
    """Return the path of a job: its number alone, or a topic and a key."""
    if isinstance(which, int):
        return f"/v1/jobs/{which}"
    if key is None:
        raise TypeError("a job is named by its number, or by its topic and its key")
    return f"{_topic(which)}/keys/{_key(key)}"


def _token(job: Held) -> str:
    return job if isinstance(job, str) else job.token


def _present(**values: Any) -> dict[str, Any]:  # noqa: ANN401 - values of JSON
    """Return the values that are not None."""
    return {name: value for name, value in values.items() if value is not None}


def _query(which: Filter) -> dict[str, str]:
    query: dict[str, str] = {}
    if state := which.get("state"):
        query["state"] = state if isinstance(state, str) else ",".join(state)
    if prefix := which.get("key_prefix"):
        query["prefix"] = prefix
    if reason := which.get("reason"):
        query["reason"] = reason
    if (group := which.get("group")) is not None:
        query["group"] = group
    if (due_from := which.get("due_from")) is not None:
        query["from"] = _bound(due_from)
    if (due_to := which.get("due_to")) is not None:
        query["to"] = _bound(due_to)
    return query


def _bound(bound: Bound) -> str:
    if isinstance(bound, str):
        return bound
    if isinstance(bound, dt.datetime):
        return moment(bound)
    return f"{seconds(bound):.3f}"


# --- Reading answers -----------------------------------------------------------------------------


def _read(response: Response) -> Any:  # noqa: ANN401 - JSON
    """Return the JSON of an answer, None if it has none. Raises its refusal."""
    if response.status == 204:
        return None
    if response.status >= 400:
        raise _refusal(_problem(response), response.headers.get("retry-after", ""))
    if response.status >= 300:
        raise _unlike_delayd(response)
    return read_json(response.body)


def _unlike_delayd(response: Response) -> NotUnderstood:
    return NotUnderstood(f"unexpected answer {response.status}: this does not look like delayd")


def _problem(response: Response) -> dict[str, Any]:
    """Return the problem in an answer. Raises NotUnderstood: all of delayd's errors have one.

    Raises ConnectionLost where a proxy says that it has no answer of the daemon.
    """
    try:
        problem = read_json(response.body)
    except NotUnderstood:
        problem = None
    is_problem = isinstance(problem, dict) and "word" in problem
    if not is_problem and response.status in _OF_A_PROXY:
        why = f"a proxy answered {response.status}"
        raise ConnectionLost("the daemon", why, may_have_happened=True)
    if not isinstance(problem, dict) or "word" not in problem:
        raise _unlike_delayd(response)
    return problem


def _refusal(problem: Mapping[str, Any], retry_after: str = "") -> Refused:
    errors = checked("errors", problem.get("errors", []), list)
    return refused(
        text_in(problem, "word"),
        _detail(problem),
        text_in({"title": "", **problem}, "title"),
        problems=[FieldProblem(text_in(each, "field"), _detail(each)) for each in errors],
        job_id=checked("job_id", problem.get("job_id"), int, NoneType),
        retry_after_s=_seconds_of(retry_after),
        kind=text_in({"kind": "", **problem}, "kind"),
        done=sum(checked(name, problem.get(name, 0), int) for name in _DONE),
    )


def _detail(problem: object) -> str:
    detail = text_in({"detail": "", **members(problem)}, "detail")
    is_long = len(detail) > DETAIL_CHARACTERS_MAX
    return f"{detail[:DETAIL_CHARACTERS_MAX]}..." if is_long else detail


def _seconds_of(retry_after: str) -> float | None:
    """Read the header Retry-After; None for a date, which a proxy may send."""
    is_number = retry_after.isascii() and retry_after.isdigit() and len(retry_after) < 10
    return float(retry_after) if is_number else None


def _put_result(answer: Mapping[str, Any]) -> PutResult:
    return named(PutResult, answer)


def _reservation(job: Mapping[str, Any]) -> Reservation:
    return named(Reservation, job, body=base64_in(job, "body_base64"))


def _job_info(job: dict[str, Any], texts: Iterator[bytes], topic: str = "") -> JobInfo:
    body = None
    if "body" in members(job):
        del job["body"]
        body = next(texts, None)
        if body is None:
            raise NotUnderstood("the body of a job does not stand where delayd writes it")
    elif "body_base64" in job:
        body = base64_in(job, "body_base64")
        del job["body_base64"]
    history = tuple(named(Attempt, each) for each in array_in({"history": [], **job}, "history"))
    return named(JobInfo, {"topic": topic, **job}, body=body, history=history, details=job)


def _dead_groups(topic: dict[str, Any]) -> list[DeadGroup]:
    name = text_in(topic, "name")
    reasons = array_in(topic, "reasons")
    groups = [named(DeadGroup, {**members(each), "topic": name}) for each in reasons]
    return with_others(groups, name, whole_in(topic, "jobs"))


def _topic_info(topic: dict[str, Any]) -> TopicInfo:
    return named(TopicInfo, topic, details=topic)
