"""What the client asks about schedules and makes of the answers, without a daemon."""

import datetime as dt
import json
from typing import Any, Final

import pytest

from delayd.client import (
    BackfillResult,
    Invalid,
    LastRun,
    NoRoom,
    NotOnThisProtocol,
    NotUnderstood,
    RunResult,
    ScheduleInfo,
    ScheduleInvalid,
)
from delayd.client.beanstalk import Replies, Reply
from delayd.client.http1 import Response
from delayd.client.http_calls import HttpCalls
from delayd.client.line_calls import LineCalls

AT: Final = dt.datetime(2030, 1, 1, 2, 30, tzinfo=dt.UTC)
TEXT: Final = "2030-01-01T02:30:00.000Z"
OFFSET: Final = "2030-01-01T02:30:00+00:00"
ANSWER: Final[dict[str, Any]] = json.loads(
    f"""{{
    "name": "nightly", "source": "run_time", "state": "paused", "note": "holidays",
    "definition": {{"topic": "reports", "cron": "30 2 * * *", "url": "https://example.com",
        "headers": {{"body": "x"}}, "body": "%BODY%"}},
    "next": "{TEXT}", "created": "{TEXT}", "changed": null, "queued": null, "tzdata": "2026a",
    "runs": 3, "missed": 1, "skipped": 0, "refused": 0, "late": 2,
    "last": {{"key": "nightly@2030-01-01T02:30:00Z", "id": null, "due": "{TEXT}",
        "outcome": "refused", "error": null}}
    }}"""
)
BODY: Final = '{"body":  1.0}'
WRITTEN: Final = json.dumps(ANSWER).replace('"%BODY%"', BODY).encode()
NIGHTLY: Final = ScheduleInfo(
    *("nightly", "reports", "paused", AT),
    body=BODY.encode(),
    definition={k: v for k, v in ANSWER["definition"].items() if k != "body"},
    source="run_time",
    note="holidays",
    created=AT,
    runs=3,
    missed=1,
    late=2,
    last=LastRun("refused", AT, "nightly@2030-01-01T02:30:00Z"),
    tzdata="2026a",
)
PAGE: Final = b'{"schedules":[' + WRITTEN + b'],"after":"nightly"}'


def asked(calls: Any, operation: str, *arguments: Any) -> Any:  # noqa: ANN401 - of either protocol
    return getattr(calls, operation)(*arguments)


def over_http(answer: bytes, status: int, operation: str, *arguments: Any) -> tuple[str, Any]:  # noqa: ANN401 - its result
    """Return the request, and the result of that answer."""
    steps = asked(HttpCalls(), operation, *arguments)
    ask = next(steps)
    request = f"{ask.method} {ask.target} {ask.body.decode()}".strip()
    with pytest.raises(StopIteration) as done:
        steps.send(Response(status, {}, answer))
    return request, done.value.value


def over_line(replies: list[Reply], operation: str, *arguments: Any) -> tuple[bytes, Any]:  # noqa: ANN401 - its result
    """Return all commands, and the result of these replies."""
    steps = asked(LineCalls("http://127.0.0.1:11301"), operation, *arguments)
    commands = next(steps).lines
    for reply in replies[:-1]:
        commands += steps.send(Replies([reply], None)).lines
    with pytest.raises(StopIteration) as done:
        steps.send(Replies(replies[-1:], None))
    return b"".join(commands), done.value.value


OPTIONS: Final = {
    "every": dt.timedelta(minutes=15),
    "start": AT,
    "window": "1h",
    "retry": ["15s", dt.timedelta(minutes=3)],
}
DEFINITION: Final = (
    '{"topic":"reports","every":900.0,"start":"2030-01-01T02:30:00+00:00","window":"1h",'
    '"retry":["15s",180.0],"body":{"all":true}}'
)
PUT: Final[tuple[Any, ...]] = ("put_schedule", "nightly", "reports", {"all": True}, OPTIONS)
REQUESTS: Final = [
    (PUT, f"PUT /v1/schedules/nightly {DEFINITION}"),
    (("schedule", "a;b"), "GET /v1/schedules/a%3Bb"),
    (
        ("pause_schedule", "nightly", "holidays"),
        'POST /v1/schedules/nightly/pause {"note":"holidays"}',
    ),
    (("resume_schedule", "nightly"), "POST /v1/schedules/nightly/resume {}"),
]


@pytest.mark.parametrize(("call", "request_text"), REQUESTS)
def test_what_is_asked_over_http_about_a_schedule_is_answered_with_all_of_it(
    call: tuple[Any, ...], request_text: str
) -> None:
    request, info = over_http(WRITTEN, 200, *call)
    assert request == request_text
    assert info._replace(details={}) == NIGHTLY
    assert (info.text, info.json()) == (BODY, {"body": 1})
    assert info.details["last"]["outcome"] == "refused"


def test_who_may_not_look_is_told_over_http_what_was_changed() -> None:
    short = b'{"name":"nightly","topic":"reports","state":"paused","next":null,"note":"why"}'
    call: Any
    for call, _ in REQUESTS:
        if call[0] == "schedule":
            with pytest.raises(NotUnderstood):
                over_http(short, 200, *call)
        else:
            _, info = over_http(short, 200, *call)
            told = ScheduleInfo("nightly", "reports", "paused", note="why")
            assert info._replace(details={}) == told._replace(details={})
    _, info = over_http(short.replace(b"null", b'"%b"' % TEXT.encode()), 200, *PUT)
    assert info.next == AT


def test_the_bounds_of_a_backfill_may_be_times() -> None:
    assert over_http(b'{"put":3,"kept":1}', 200, "backfill_schedule", "nightly", AT, TEXT) == (
        f'POST /v1/schedules/nightly/backfill {{"from":"{OFFSET}","until":"{TEXT}"}}',
        BackfillResult(3, 1),
    )
    assert over_line([Reply(["BACKFILLED", "3", "1"])], "backfill_schedule", "n", TEXT, AT) == (
        f"schedule-backfill n {TEXT} {OFFSET}\r\n".encode(),
        BackfillResult(3, 1),
    )


def test_a_run_that_was_there_already_is_kept() -> None:
    for more, outcome in (([], "created"), (["kept"], "kept")):
        _, ran = over_line([Reply(["RAN", "7", "n@1", *more])], "run_schedule", "n")
        assert ran == RunResult(7, "n@1", outcome)


def test_a_backfill_that_is_refused_says_how_many_jobs_it_had_put() -> None:
    full = b'{"word": "OUT_OF_MEMORY", "detail": "full", "put": 2}'
    with pytest.raises(NoRoom) as over_both:
        over_http(full, 507, "backfill_schedule", "n", TEXT)
    assert over_both.value.done == 2
    for words, done in ((["OUT_OF_MEMORY", "done=2"], 2), (["OUT_OF_MEMORY"], 0)):
        with pytest.raises(NoRoom) as over_both:
            over_line([Reply(words)], "backfill_schedule", "n", TEXT)
        assert over_both.value.done == done
        assert ("nothing was done" in str(over_both.value)) == (not done)


def page_of(calls: Any, answer: Any, after: str | None) -> tuple[list[ScheduleInfo], str | None]:  # noqa: ANN401 - of either protocol
    steps = calls.page_of_schedules("reports", "nig", after=after)
    next(steps)
    with pytest.raises(StopIteration) as done:
        steps.send(answer)
    found: tuple[list[ScheduleInfo], str | None] = done.value.value
    return found


@pytest.mark.parametrize(
    ("calls", "answer"),
    [
        (HttpCalls(), Response(200, {}, PAGE)),
        (LineCalls(""), Replies([Reply(["OK", "1"], PAGE)], None)),
    ],
)
def test_a_page_ends_behind_the_one_before(calls: Any, answer: Any) -> None:  # noqa: ANN401 - of either protocol
    (found,), after = page_of(calls, answer, "a")
    assert (found._replace(details={}), after) == (NIGHTLY, "nightly")
    with pytest.raises(NotUnderstood, match="a page of 1 schedules"):
        page_of(calls, answer, "nightly")


def test_on_the_line_what_is_changed_is_looked_at() -> None:
    shown = Reply(["OK", "1"], WRITTEN)
    sent, info = over_line([Reply(["SCHEDULED", "changed"]), shown], *PUT)
    assert (
        sent
        == (
            f"schedule-put nightly {len(DEFINITION)}\r\n{DEFINITION}\r\nschedule-get nightly\r\n"
        ).encode()
    )
    assert info._replace(details={}) == NIGHTLY._replace(change="changed")
    sent, info = over_line(
        [Reply(["PAUSED"]), Reply(["NOT_FOUND"])], "pause_schedule", "nightly", "für Ada"
    )
    assert sent == "schedule-pause nightly 8\r\nfür Ada\r\nschedule-get nightly\r\n".encode()
    assert info == ScheduleInfo("nightly", "", "paused", note="für Ada")


@pytest.mark.parametrize(
    ("call", "reply", "error", "said"),
    [
        (PUT, ["BAD_FORMAT", "every:", "no"], ScheduleInvalid, "every: no"),
        (("run_schedule", "n"), ["RAN", "7"], NotUnderstood, "no number and key"),
        (("backfill_schedule", "n", AT, "a b"), [], Invalid, "until: 'a b' is more than one word"),
        (("preview_schedule", {"topic": "a"}, 2), [], NotOnThisProtocol, "not made yet"),
    ],
)
def test_on_the_line_what_is_wrong_is_refused_with_its_reason(
    call: tuple[Any, ...], reply: list[str], error: type[Exception], said: str
) -> None:
    steps = asked(LineCalls("http://127.0.0.1:11301"), *call)
    with pytest.raises(error, match=said):
        next(steps), steps.send(Replies([Reply(reply)], None))


@pytest.mark.parametrize("calls", [HttpCalls(), LineCalls("")])
@pytest.mark.parametrize(
    "name", ["a b", "a\r\nquit", "", "x" * 176, "-a", "a@b", ".", "..", "../x"]
)
def test_a_name_cannot_bring_a_command_or_another_path(calls: Any, name: str) -> None:  # noqa: ANN401 - of either protocol
    if name == "../x":
        assert next(HttpCalls().schedule(name)).target == "/v1/schedules/..%2Fx"
        return
    with pytest.raises(ScheduleInvalid, match="must be 1 to 175 of"):
        next(calls.schedule(name))


@pytest.mark.parametrize("calls", [HttpCalls(), LineCalls("")])
def test_what_json_cannot_hold_is_refused_before_it_is_sent(calls: Any) -> None:  # noqa: ANN401 - of either protocol
    with pytest.raises(Invalid, match="limit: is nothing that JSON can say"):
        next(calls.put_schedule("n", "mail", "x", {"every": "1h", "limit": object()}))
    with pytest.raises(Invalid, match=r"start: .* needs a time zone"):
        next(calls.put_schedule("n", "mail", "x", {"start": dt.datetime(2030, 1, 1)}))  # noqa: DTZ001 - it has none
    with pytest.raises(TypeError, match="set is not JSON"):
        next(calls.put_schedule("n", "mail", {1}, {"every": "1h"}))
