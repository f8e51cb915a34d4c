import pytest

from delayd.core.dump import JOB_FIELDS, MOMENTS, Dump, Dumped
from delayd.core.job_parts import Flag, Reason, Tally
from delayd.core.job_record import HEADER, State
from delayd.core.log_records import LAYOUTS, RECORDS, TAILED, Kind, UnknownRecord, pack, pack_put
from tests.core.test_log_records import whole

WHOLE = whole()


def dumped(*records: bytes) -> list[Dumped]:
    return list(Dump().records(b"".join(records)))


def topic(number: int, name: bytes) -> bytes:
    return pack(Kind.TOPIC, number, len(name)) + name


def put(record: bytes) -> bytes:
    return pack_put(Kind.PUT, len(record)) + record


@pytest.mark.parametrize("kind", sorted(set(Kind) - TAILED - {Kind.AMEND, Kind.PARTS}))
def test_every_kind_is_shown_with_the_values_it_was_packed_with(kind: Kind) -> None:
    values = range(1, 1 + len(RECORDS[kind].fields))
    (record,) = dumped(LAYOUTS[kind].pack(kind, *values))
    expected: dict[str, int | str] = dict(zip(RECORDS[kind].fields, values, strict=True))
    if "topic_number" in expected:
        expected["topic"] = "#1"
    assert record == Dumped(kind, expected, None)


def test_what_became_of_a_job_is_shown_in_words() -> None:
    fields = {"id": 7, "due_ms": 2_000, "delay_ms": 500, "priority": 3}
    amended, failed, moved = dumped(
        pack(Kind.AMEND, 7, 2_000, 500, 0, 9_000, 3, State.DELAYED),
        pack(Kind.FAIL, 7, 1_500, 2_000, 500, 3, Reason.NACKED, State.DELAYED, 0, 5)
        + b"oh \xc3\xa9",
        pack(Kind.FAIL, 7, 1_500, 2_000, 500, 3, Reason.TTR_RAN_OUT, State.READY, 4, 0),
    )
    assert amended.fields == fields | {"wall_ms": 0, "ttr_ms": 9_000, "state": "delayed"}
    fields["failed_ms"] = 1_500
    assert failed.fields == fields | {"reason": "nacked", "state": "delayed", "error": "oh é"}
    where = {"topic_number": 4, "topic": "#4", "state": "ready", "error": ""}
    assert moved.fields == fields | where | {"reason": "ttr_ran_out"}


def test_a_topic_goes_by_its_name_and_a_policy_is_shown_with_its_text() -> None:
    first, named, policy, strange, cleared, paused = dumped(
        topic(3, b"mail"),
        put(HEADER.pack(7, 2, 1, 9, 0, 3, State.READY, Flag.NONE)),
        pack(Kind.POLICY, 3, 1, 2) + b"{}",
        pack(Kind.POLICY, 3, 9, 0),
        pack(Kind.CLEAR, 3, 4),
        pack(Kind.PAUSE, 4, 20, 10),
    )
    of_mail = {"topic_number": 3, "topic": "mail"}
    assert first.fields == of_mail
    numbers = {"id": 7, "due_ms": 2, "created_ms": 1, "ttr_ms": 9, "priority": 0}
    assert named.fields == of_mail | numbers | {"state": "ready"}
    assert policy.fields == of_mail | {"source": "run time", "policy": "{}"}
    assert strange.fields == of_mail | {"source": 9, "policy": ""}
    assert cleared.fields == of_mail | {"next_topic_number": 4}
    assert paused.fields["topic"] == "mail"


def test_every_part_of_a_job_is_shown() -> None:
    (shown,) = dumped(pack(Kind.REWRITE, len(WHOLE)) + WHOLE)
    assert shown.kind is Kind.REWRITE
    assert shown.body == b"body"
    assert ", ".join(f"{name} {value!r}" for name, value in shown.fields.items()) == (
        "id 7, due_ms 2000, created_ms 500, ttr_ms 60000, priority 3, topic_number 1, "
        "state 'buried', topic '#1', delay_ms 10, reserves 5, timeouts 1, releases 0, buries 1, "
        "kicks 0, wall_ms 72623859790382856, rank 8589934593, reason 'nacked', "
        "attempts_before 2, failed_ms 1900, key 'or-1é', retry '15s 3m', max_attempts 9, "
        "jitter_percent 10, origin 'mail', error 'oé', target 'PUT https://a.b\\nA: '"
    )


def test_the_parts_that_jobs_may_have_are_named_and_unknown_ones_refused() -> None:
    (shown,) = dumped(pack(Kind.PARTS, 3))
    assert shown.fields == {"parts": "target group"}
    strange = HEADER.pack(7, 2_000, 1_000, 9, 5, 3, State.READY, Flag.MORE) + b"\0\xc0\1\0x"
    for record in (pack(Kind.PARTS, 1 << 14), put(strange)):
        with pytest.raises(UnknownRecord, match="parts that this version does not know: 0x4000"):
            dumped(record)


def test_every_time_is_either_a_moment_or_a_duration() -> None:
    names = {
        name
        for fields in (*(row.fields for row in RECORDS.values()), JOB_FIELDS, Tally._fields)
        for name in fields
    }
    times = {name for name in names if name.endswith("_ms")}
    assert times - MOMENTS == {"delay_ms", "lasted_ms", "offset_ms", "pause_ms", "ttr_ms"}
    assert times >= MOMENTS


@pytest.mark.parametrize(
    ("payload", "why"),
    [
        (b"\x00", "its kind is 0"),
        (b"\xff" * 40, "its kind is 255"),
        (put(bytes(HEADER.size - 1)), "shorter than a job's header"),
        (put(HEADER.pack(1, 2, 3, 4, 5, 6, 4, Flag.NONE)), "its job's state is 4"),
        (put(HEADER.pack(1, 2, 3, 4, 5, 6, 1, 1)), "shorter than a job's header and tally"),
    ],
)
def test_what_is_no_record_is_refused_by_its_place(payload: bytes, why: str) -> None:
    good = topic(1, b"t")
    seen: list[Dumped] = []
    with pytest.raises(UnknownRecord, match=why) as caught:
        seen += Dump().records(good + payload)
    assert caught.value.offset == len(good)


def test_a_job_cut_anywhere_before_its_body_is_refused() -> None:
    for end in range(HEADER.size, len(WHOLE) - len(b"body")):
        with pytest.raises(UnknownRecord, match="its job is shorter than"):
            dumped(put(WHOLE[:end]))
    assert dumped(put(WHOLE[: -len(b"body")]))[0].body == b""


def test_a_payload_cut_anywhere_is_refused_at_the_record_that_is_cut() -> None:
    whole = topic(1, b"mail") + put(HEADER.pack(1, 2, 3, 4, 5, 1, 1, Flag.NONE) + b"body")
    starts = {0, len(topic(1, b"mail"))}
    for end in set(range(1, len(whole))) - starts:
        with pytest.raises(UnknownRecord, match="cut short") as caught:
            list(Dump().records(whole[:end]))
        assert caught.value.offset == max(start for start in starts if start < end)


def test_a_name_that_no_topic_can_have_is_still_shown() -> None:
    (record,) = dumped(topic(1, b"\xff\n"))
    assert record.fields["topic"] == "\\xff\n"
