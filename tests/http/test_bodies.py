"""Long requests: read as short ones are, in slices that leave the others their turns."""

import asyncio
import json
from collections.abc import Callable, Iterator
from itertools import islice, pairwise
from typing import Any

import pytest

from delayd import limits
from delayd.http import form_reader
from delayd.http.bodies import BodyReader
from delayd.http.form_reader import Form, Reader
from delayd.http.long_work import LoopTime, Slices
from delayd.http.problems import BodyTooLong, FieldError, NotJson, RequestInvalid
from delayd.http.request_forms import (
    HeldManyForm,
    NackForm,
    NackManyForm,
    PolicyBodyForm,
    PutJobForm,
    PutJobsForm,
    ReserveAnyForm,
)
from tests.rigs.http import JOBS, HttpRig, SliceWatch

LONG = "x" * (limits.HTTP_STEP_BYTES + 1)
PUTS = BodyReader(PutJobForm, PutJobsForm, limits.BODY_BYTES_DEFAULT)


def read(data: bytes, kind: type[Form], batch: type[Form] | None = None) -> Any:  # noqa: ANN401
    """What a long request says, read with a rest at every opportunity."""

    async def play() -> Form:
        async with Slices(LoopTime(SliceWatch())) as slices:
            return await BodyReader(kind, batch, limits.BODY_BYTES_DEFAULT).read_long(data, slices)

    return asyncio.run(play())


def at_ease() -> Slices:
    """A slice that is never over."""
    return Slices(LoopTime(lambda: 0))


def lines(data: bytes) -> Any:  # noqa: ANN401 (a batch)
    return asyncio.run(PUTS.read_lines(data, at_ease()))


def put(data: bytes) -> Any:  # noqa: ANN401 (either form)
    return read(data, PutJobForm, PutJobsForm)


def outcome(reader: Callable[[bytes], Form], data: bytes) -> object:
    """What was read, or every mistake."""
    try:
        return reader(data)
    except RequestInvalid as refusal:
        return sorted((error.field, error.detail) for error in refusal.errors)
    except NotJson:
        return NotJson


@pytest.mark.parametrize(
    ("kind", "batch", "given"),
    [
        (PutJobForm, PutJobsForm, {"body": LONG, "delay": "5s", "key": "a"}),
        (PutJobForm, PutJobsForm, {"body_base64": "YWJj" * 10_000}),
        (PutJobForm, PutJobsForm, {"body": [LONG, {"a": 1.5}], "retry": "1s 2s", "ttr": 7}),
        (PutJobForm, PutJobsForm, {"body": LONG, "dealy": 5, "at": 1, "delay": 2}),
        (PutJobForm, PutJobsForm, {"key": "a" * 20_000, "priority": "high", "jitter_percent": 1}),
        (PutJobForm, PutJobsForm, {"jobs": [{"body": LONG}, {"body": 2, "key": "b"}]}),
        (PutJobForm, PutJobsForm, {"jobs": [{"body": n, "retry": [n + 1]} for n in range(999)]}),
        (PutJobForm, PutJobsForm, {"jobs": [7, {"body": LONG, "at": "x"}, {}, LONG, [LONG]]}),
        (PutJobForm, PutJobsForm, {"jobs": [{"body": 1, "on_conflict": "keep"}] * 3, "pad": LONG}),
        (PutJobForm, PutJobsForm, {"jobs": [], "body": LONG}),
        (PutJobForm, PutJobsForm, {"jobs": {"body": LONG}}),
        (PutJobForm, PutJobsForm, {"jobs": [{"body": 1}] * (limits.HTTP_BATCH_MAX + 1)}),
        (NackForm, None, {"token": "1-1-1", "error": LONG}),
        (NackForm, None, {"error": LONG}),
        (NackManyForm, None, {"nacks": [{"token": "1-1-1", "error": LONG}, {"token": "x"}]}),
        (NackManyForm, None, {"nacks": [{"token": "1-1-1", "error": LONG}] * 3}),
        (NackManyForm, None, {"knacks": LONG}),
        (HeldManyForm, None, {"tokens": ["123456-1a1ff7acb80-1"] * limits.HTTP_BATCH_MAX}),
        (HeldManyForm, None, {"tokens": ["123456-1a1ff7acb80-1"] * (limits.HTTP_BATCH_MAX + 1)}),
        (HeldManyForm, None, {"tokens": [1] * 90 + [LONG]}),
        (ReserveAnyForm, None, {"topics": ["a", " ", LONG], "max": 0}),
    ],
)
def test_a_long_request_is_read_as_a_short_one_is(
    kind: type[Form], batch: type[Form] | None, given: dict[str, object]
) -> None:
    data = json.dumps(given).encode()
    short = Reader(batch if batch is not None and "jobs" in given else kind)
    told = outcome(short.read, data)
    assert outcome(lambda data: read(data, kind, batch), data) == told
    spaced = json.dumps(given, indent=2).encode() + b"\r\n"
    assert outcome(lambda data: read(data, kind, batch), spaced) == outcome(short.read, spaced)


@pytest.mark.parametrize("inner", [b"[]", b"{}"])
def test_a_body_of_very_many_arrays_or_objects_is_not_read(inner: bytes) -> None:
    items = b",".join([inner] * (limits.HTTP_CONTAINERS_MAX - 1))
    Reader(PutJobForm).read(b'{"body":[%b]}' % items)
    with pytest.raises(RequestInvalid, match="body: has more than 250000 arrays and objects: send"):
        Reader(PutJobForm).read(b'{"body":[%b,%b]}' % (inner, items))


@pytest.mark.parametrize("name", [b"jobs", rb"j\u006fbs", rb"\u006aobs"])
def test_a_short_batch_is_one_however_its_name_is_written(name: bytes) -> None:
    batch: Any = PUTS.read_short(b'{"%b": [{"body": 1}]}' % name)
    assert [job.body_bytes for job in batch.jobs] == [b"1"]
    with pytest.raises(RequestInvalid, match="key: there is no such field"):
        PUTS.read_short(b'{"key": 1, "%b": [{"body": 1}]}' % name)
    job: Any = PUTS.read_short(b'{"key": "a", "body": "%b"}' % name)
    assert job.body_bytes == b'"%b"' % name


def test_of_a_name_that_is_there_twice_the_last_value_counts() -> None:
    jobs = [b'"jobs": [%b]' % item for item in (b'{"body": 1}, 7', b'{"body": 2}', b"")]
    (job,) = put(b'{"jobs": 1, %b, %b}' % (jobs[0], jobs[1])).jobs
    assert job.body_bytes == b"2"
    for last, rule in ((jobs[2], "must be at least 1 long"), (b'"jobs": 1', "must be an array")):
        with pytest.raises(RequestInvalid, match=rule):
            put(b"{%b, %b}" % (jobs[1], last))
    texts = (LONG.encode(), b"y" * limits.HTTP_STEP_BYTES * 2, b"z")
    bodies = [b'"body": "%b"' % text for text in texts]
    assert put(b"{%b, %b}" % (bodies[0], bodies[1])).body_bytes == b'"%b"' % texts[1]
    assert put(b"{%b, %b}" % (bodies[1], bodies[2])).body_bytes == b'"z"'


@pytest.mark.parametrize(
    "wrong", [b"NaN", b'"\xff"', b'"a\nb"', b"1e999", b"[1,]", b"[}", b"[" * 5_000 + b"]" * 5_000]
)
def test_a_long_body_that_is_no_json_is_refused_as_a_whole(wrong: bytes) -> None:
    body = b'{"body": ["%b", %b]}' % (LONG.encode(), wrong)
    for data in (body, b'{"jobs": [{"body": 1}, %b]}' % body):
        with pytest.raises(NotJson):
            put(data)


def test_a_byte_that_is_no_utf_8_is_told_by_its_place_in_the_request() -> None:
    data = b'{"jobs": [{"body": 1}, {"body": "\xff"}]}'
    with pytest.raises(NotJson, match="the byte 0xff at offset 33 is not UTF-8"):
        put(data)


def test_a_body_that_is_longer_than_any_is_kept_unread_for_the_engine_to_refuse(
    rig: HttpRig,
) -> None:
    body = b'[%b"\xff"]' % (b"1," * limits.BODY_BYTES_DEFAULT)
    assert put(b'{"body": %b}' % body).body_bytes == body
    for data, status in (
        (b'{"body": %b}', 413),
        (b'{"jobs": [{"body": %b}, {"body": 1}]}', 207),
    ):
        assert rig.call("POST", JOBS, data=data % body).status == status
    assert rig.engine.log_space.jobs == 1


def test_fields_that_would_take_long_to_read_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    dense = b"[%b1]" % (b"1," * limits.HTTP_FIELDS_BYTES_MAX)
    monkeypatch.setattr(form_reader, "errors_in", None)
    for name in (b"retry", b"delay", b"priority", b"colour"):
        for data in (b"{%b}", b'{"jobs": [{%b}]}'):
            with pytest.raises(RequestInvalid, match="bodies of jobs excepted, are longer than"):
                put(data % (b'"body": 1, "%b": %b' % (name, dense)))
    with pytest.raises(RequestInvalid, match="are longer than"):
        put(b'{"jobs": [{"body": 1}], "retry": %b}' % dense)
    with pytest.raises(RequestInvalid, match="are longer than"):
        read(b'{"tokens": %b}' % dense, HeldManyForm)
    with pytest.raises(RequestInvalid, match="tokens: has more than 1000 items"):
        read(b'{"tokens": %b1]}' % dense[: limits.HTTP_FIELDS_BYTES_MAX - 100], HeldManyForm)
    with pytest.raises(RequestInvalid, match="jobs: has more than 1000 items"):
        put(b'{"jobs": %b}' % dense)
    with pytest.raises(BodyTooLong):
        read(b'{"retry": %b}' % dense, PolicyBodyForm)


@pytest.mark.thorough
def test_json_that_would_block_all_is_to_be_sent_in_lines() -> None:
    jobs = b",".join([b'{"body": "%b"}' % (b"x" * 60_000)] * 70)
    assert len(jobs) > limits.HTTP_JSON_BYTES_MAX
    with pytest.raises(BodyTooLong, match="as lines, with the Content-Type application/x-ndjson"):
        put(b'{"jobs": [%b]}' % jobs)
    assert len(lines(jobs.replace(b",", b"\n")).jobs) == 70
    with pytest.raises(BodyTooLong, match=f"longer than {limits.HTTP_JSON_BYTES_MAX} bytes$"):
        read(b'{"error": "%b"}' % (b"x" * limits.HTTP_JSON_BYTES_MAX), NackForm)
    longest = b"x" * (limits.HTTP_JSON_BYTES_MAX * 2)
    puts = BodyReader(PutJobForm, PutJobsForm, len(longest))
    for data in (b'{"body":"%b"}' % longest[2:], b'{"body_base64":"%b"}' % longest):
        job: Any = asyncio.run(puts.read_long(data, at_ease()))
        assert job.body_bytes


# --- Mistakes -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "batch", "name", "item"),
    [(PutJobForm, PutJobsForm, "jobs", {"body": 1}), (NackManyForm, None, "nacks", {})],
)
def test_mistakes_are_looked_for_until_there_are_enough_and_few_are_guessed_at(
    monkeypatch: pytest.MonkeyPatch,
    kind: type[Form],
    batch: type[Form] | None,
    name: str,
    item: dict[str, object],
) -> None:
    guesses: list[str] = []
    items: list[object] = []

    def guess(wrong: str, _: object) -> str:
        guesses.append(wrong)
        return ""

    def look_for(value: object, *more: Any) -> Iterator[FieldError]:  # noqa: ANN401
        items.append(value)
        return errors_in(value, *more)

    errors_in = form_reader.errors_in
    monkeypatch.setattr(form_reader, "did_you_mean", guess)
    monkeypatch.setattr(form_reader, "errors_in", look_for)
    wrong = {**item, **{f"priority_{number}": 1 for number in range(30)}}
    data = json.dumps({name: [wrong] * limits.HTTP_BATCH_MAX}).encode()
    short = json.dumps({name: [wrong] * 50}).encode()
    with pytest.raises(RequestInvalid) as caught:
        read(data, kind, batch)
    assert len(caught.value.errors) == limits.HTTP_ERRORS_MAX
    assert len(guesses) == limits.HTTP_HINTS_MAX
    assert len(items) <= limits.HTTP_ERRORS_MAX // 30 + 1
    guesses.clear()
    with pytest.raises(RequestInvalid):
        Reader(batch or kind).read(short)
    assert len(guesses) == limits.HTTP_HINTS_MAX


# --- Slices ---------------------------------------------------------------------------------------


def batch_of(count: int) -> bytes:
    """Jobs of which each takes a step to read."""
    return b'{"jobs": [%b]}' % b",".join(
        [b'{"body": 1%b}' % (b" " * limits.HTTP_STEP_BYTES)] * count
    )


def test_others_are_answered_while_a_long_request_is_read() -> None:
    with HttpRig(slice_now_ns=SliceWatch()) as rig:
        producer = rig.send("POST", JOBS, data=batch_of(100), is_settled=False)
        assert len([*islice(rig.meanwhile(producer), 20)]) == 20
        assert not rig.engine.log_space.jobs, "it is put when all of it has been read"
        before = len(rig.disk.frames)
        rig.settle()
        assert producer.the_answer.status == 201
        assert len(rig.disk.frames) == before + 1


def test_long_requests_take_turns_a_slice_each(monkeypatch: pytest.MonkeyPatch) -> None:
    read_bodies: list[bytes] = []
    begin = Slices._begin

    async def note(slices: Slices) -> None:
        await begin(slices)
        read_bodies.append(b"%d" % id(slices))

    monkeypatch.setattr(Slices, "_begin", note)
    with HttpRig(slice_now_ns=SliceWatch()) as rig:
        clients = [rig.send("POST", JOBS, data=batch_of(50), is_settled=False) for _ in range(3)]
        rig.settle()
        assert [client.the_answer.status for client in clients] == [201] * 3
        middle = read_bodies[30:90]
        assert all(len({*middle[at : at + 3]}) == 3 for at in range(0, len(middle), 3))


def test_a_client_that_goes_while_its_request_is_read_holds_up_nobody() -> None:
    with HttpRig(slice_now_ns=SliceWatch()) as rig:
        gone = rig.send("POST", JOBS, data=batch_of(100), is_settled=False)
        waiting = rig.send("POST", JOBS, data=batch_of(100), is_settled=False)
        for _ in range(20):
            rig.step()
        gone.hang_up()
        rig.settle()
        assert waiting.the_answer.status == 201
        assert rig.engine.log_space.jobs == 100
        assert rig.call("POST", JOBS, data=batch_of(100)).status == 201


def test_empty_lines_are_passed_over_together() -> None:
    watch = SliceWatch()
    steps = 20
    blanks = (b"\n" * limits.HTTP_STEP_BYTES + b" \r\n" * limits.HTTP_STEP_BYTES) * steps
    ends = 2 * steps * limits.HTTP_STEP_BYTES

    async def play() -> Any:  # noqa: ANN401
        data = b'%b{"body": 1}%b\n{"body": 2, "x": 1}%b' % (blanks, blanks, blanks)
        async with Slices(LoopTime(watch)) as slices:
            return await PUTS.read_lines(data, slices)

    with pytest.raises(RequestInvalid) as refused:
        asyncio.run(play())
    assert [error.field for error in refused.value.errors] == [f"line {2 * ends + 2}.x"]
    assert watch.looks < 4 * 3 * 4 * steps, "a few for each step, and not one for each line"


def test_of_many_short_requests_so_many_are_read_in_a_turn_as_take_a_slice() -> None:
    with HttpRig(slice_now_ns=SliceWatch()) as rig:
        body = b'{"body": 1}'.ljust(limits.HTTP_FREE_BYTES + 1)
        clients = [rig.send("POST", JOBS, data=body, is_settled=False) for _ in range(20)]
        quick = [rig.send("POST", JOBS, {"body": 2}, is_settled=False) for _ in range(20)]
        put = [0]
        while put[-1] < 40:
            rig.step()
            put.append(rig.engine.log_space.jobs)
        steps = [after - before for before, after in pairwise(put) if after > before]
        assert steps[0] == 21, "one of those that take a slice, and all others"
        assert {*steps[1:]} == {1}
        rig.settle()
        assert {client.the_answer.status for client in (*clients, *quick)} == {201}


def test_a_short_request_waits_for_no_slice(rig: HttpRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BodyReader, "read_long", None)
    body = b'{"body": 1}'.ljust(limits.HTTP_STEP_BYTES)
    assert rig.call("POST", JOBS, data=body).status == 201
