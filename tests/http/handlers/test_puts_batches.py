"""Batches of puts: in slices, a result for each job, and the same as one put after the other."""

import json
import random
from collections.abc import Callable
from typing import Any, Final

import msgspec
import pytest

from delayd import limits
from delayd.core.engine import Engine
from delayd.http.answer_forms import PutResultsAnswer
from tests.rigs.http import JOBS, RESERVE, HttpRig, SliceWatch


def test_a_batch_is_one_commit(rig: HttpRig) -> None:
    before = len(rig.disk.frames)
    told = rig.ok("POST", JOBS, {"jobs": [{"body": n} for n in range(limits.HTTP_BATCH_MAX)]})
    assert len(rig.disk.frames) == before + 1
    assert [one["id"] for one in told["results"]] == list(range(1, limits.HTTP_BATCH_MAX + 1))
    assert {one["status"] for one in told["results"]} == {201}
    jobs = rig.ok("POST", RESERVE, {"max": limits.HTTP_BATCH_MAX})["jobs"]
    assert [job["body"] for job in jobs] == list(range(limits.HTTP_BATCH_MAX))


KINDS: Final[dict[str, Callable[[int], dict[str, Any]]]] = {
    "plain": lambda number: {"body": number},
    "delays": lambda number: {"body": number, "delay": f"{number}s"},
    "keys": lambda number: {"body": number, "key": f"k{number}"},
    "ladders": lambda number: {"body": number, "retry": "1m 2m"},
    "moments": lambda number: {"body": number, "at": "2040-01-01T00:00:00Z"},
}


def long_batch(kind: str, count: int = 40) -> dict[str, Any]:
    """A batch of more jobs than are few; the plain ones too long to be put together."""
    jobs = [KINDS[kind](number) for number in range(count)]
    if kind == "plain":
        jobs = [{**job, "ttr": 60 + number} for number, job in enumerate(jobs)]
    return {"jobs": jobs}


@pytest.mark.parametrize("kind", KINDS)
def test_a_long_batch_is_put_and_answered_in_slices_with_turns_of_others_between(kind: str) -> None:
    with HttpRig(slice_now_ns=SliceWatch()) as rig:
        producer = rig.send("POST", JOBS, long_batch(kind), is_settled=False)
        put_counts = [rig.engine.log_space.jobs for _ in rig.meanwhile(producer)]
        assert len({*put_counts}) > 10, "others were answered while it was put"
        assert put_counts.count(40) < 3, "its answer was written with the jobs"
        assert len(rig.disk.frames) >= 40, "each slice is committed by the turn after it"
        results = producer.the_answer.json["results"]
        assert [one["id"] for one in results] == [*range(1, 41)]
        assert {one["status"] for one in results} == {201}


def test_of_a_job_alone_a_run_and_a_batch_the_answers_say_the_same(rig: HttpRig) -> None:
    job = {"body": 1, "delay": "5s"}
    alone = rig.ok("POST", JOBS, job)
    for jobs in ([job], [job] * 3, [job, {**job, "key": "a"}]):
        answer = rig.call("POST", JOBS, {"jobs": jobs})
        results = answer.json["results"]
        assert [one.pop("id") for one in results] == [
            *range(alone["id"] + 1, alone["id"] + 1 + len(jobs))
        ]
        assert results == [{"status": 201, "outcome": "created", "due": alone["due"]}] * len(jobs)
        alone["id"] += len(jobs)
        read = msgspec.json.decode(answer.body, type=PutResultsAnswer)
        assert msgspec.json.encode(read) == answer.body, "with the members in their order"


def test_jobs_alike_are_put_together_up_to_a_number_and_a_length_of_bodies() -> None:
    for body_bytes, per_slice in (
        (1, limits.HTTP_RUN_JOBS_MAX),
        (40_000, 1 + limits.HTTP_RUN_BYTES // 40_002),
    ):
        with HttpRig(slice_now_ns=SliceWatch(), is_checked=False) as rig:
            jobs = [{"body": "x" * body_bytes}] * (2 * per_slice + 1)
            producer = rig.send("POST", JOBS, {"jobs": jobs}, is_settled=False)
            counts = {0}
            while producer.answer is None:
                rig.step()
                counts.add(rig.engine.log_space.jobs)
            assert sorted(counts) == [0, per_slice, 2 * per_slice, 2 * per_slice + 1]


def test_what_a_batch_has_put_when_the_daemon_is_killed_was_not_acknowledged() -> None:
    with HttpRig(slice_now_ns=SliceWatch()) as rig:
        producer = rig.send("POST", JOBS, long_batch("keys"), is_settled=False)
        while rig.engine.log_space.jobs < 20:
            rig.step()
        assert producer.answer is None
        after = rig.after_restart()
        assert 0 < after.log_space.jobs <= 20
        keys = [b"k%d" % number for number in range(after.log_space.jobs)]
        owners = [after.store.keys.owner_of(after.store.topic("mail"), key) for key in keys]
        assert owners == [*range(1, len(keys) + 1)], "its first jobs, whole"


def test_a_batch_whose_client_goes_ends_there() -> None:
    with HttpRig(slice_now_ns=SliceWatch()) as rig:
        gone = rig.send("POST", JOBS, long_batch("delays"), is_settled=False)
        while rig.engine.log_space.jobs < 20:
            rig.step()
        gone.hang_up()
        rig.settle()
        assert 20 <= rig.engine.log_space.jobs < 40
        assert rig.call("POST", JOBS, long_batch("delays")).status == 201


def test_a_long_batch_refused_from_the_first_slice_to_the_last_leaves_no_topic() -> None:
    with HttpRig(slice_now_ns=SliceWatch()) as rig:
        rig.engine.draining = True
        producer = rig.send("POST", JOBS, long_batch("keys"), is_settled=False)
        while producer.answer is None:
            rig.step()
            assert "mail" not in rig.engine.store.topics.by_name
        assert {one["status"] for one in producer.the_answer.json["results"]} == {503}


def test_a_batch_of_few_jobs_does_not_queue_behind_long_ones() -> None:
    few = {
        "jobs": [{"body": number, "priority": number} for number in range(limits.HTTP_ITEMS_FEW)]
    }
    steps_needed = []
    for long_batches in (0, 5):
        with HttpRig(slice_now_ns=SliceWatch()) as rig:
            for _ in range(long_batches):
                rig.send("POST", JOBS, long_batch("delays"), is_settled=False)
            for _ in range(5):
                rig.step()
            short = rig.send("POST", JOBS, few, is_settled=False)
            steps_needed.append(0)
            while short.answer is None:
                rig.step()
                steps_needed[-1] += 1
            assert short.the_answer.status == 201
    assert steps_needed[1] <= 2 * steps_needed[0], "one slice of theirs before each of its own"


def test_when_a_job_of_a_batch_was_due_is_told_also_if_it_has_gone_meanwhile() -> None:
    with HttpRig(is_virtual=True) as rig:
        worker = rig.send("POST", RESERVE, {"wait": "30s"})
        jobs = [{"body": n, "delay": 0} for n in range(limits.HTTP_BATCH_MAX)]
        rig.disk.hold()
        producer = rig.send("POST", JOBS, {"jobs": jobs})
        rig.send("POST", "/v1/topics/mail/clear")
        assert producer.answer is None
        rig.disk.release()
        rig.settle()
        assert worker.the_answer.status == 200
        dues = {one["due"] for one in producer.the_answer.json["results"]}
        assert dues == {"2023-11-14T22:13:20.000Z"}


LINES = {"Content-Type": "application/x-ndjson"}


def test_a_batch_of_lines_is_answered_as_the_same_batch_in_json_is(rng: random.Random) -> None:
    for end in (b"\n", b"\r\n", b"\n \n\t\n"):
        jobs = [drawn(rng) for _ in range(30)]
        jobs[3] = {"body": "x" * limits.BODY_BYTES_DEFAULT}
        with HttpRig() as rig, HttpRig() as other:
            told = other.call("POST", JOBS, {"jobs": jobs})
            lines = end.join(json.dumps(job).encode() for job in jobs)
            for data in (lines, lines + end):
                answer = rig.call("POST", JOBS, data=data, headers=LINES)
                if data is lines:
                    assert (answer.status, answer.json) == (told.status, told.json)
                    assert contents(rig.engine) == contents(other.engine)
            assert len(rig.disk.frames) == 2, "one commit for each batch"


def test_of_very_many_bad_lines_so_many_are_named() -> None:
    named = [f"line {number}.body" for number in range(1, limits.HTTP_ERRORS_MAX + 1)]
    for lines, fields in (
        ([b'{"body": 1, "key": "a", "pad": "%b"}' % (b"x" * 20_000)], ["line 1.pad"]),
        ([b'{"body": 1}'] * (limits.HTTP_BATCH_MAX + 1), ["jobs"]),
        ([b"{}"] * limits.HTTP_BATCH_MAX, named),
    ):
        with HttpRig() as rig:
            answer = rig.call("POST", JOBS, data=b"\n".join(lines), headers=LINES)
            assert (answer.status, answer.fields) == (422, fields)
            assert not rig.disk.frames


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b'{"body": "%b', "unexpected end of data (character "),
        (b'{"body": "%b\\ud800"}', "no low surrogate in string (character "),
        (b'{"body": "%b"}}', "JSON is malformed: trailing characters"),
        (b'{"body": "%b\xff"}', "the byte 0xff at offset"),
        (b'{"body": "%b", "delay": nope}', "JSON is malformed: invalid character"),
        (b'{"body": ["%b", tru]}', "JSON is malformed: invalid character"),
        (b'{"body": ["%b", NaN]}', ""),
    ],
)
def test_a_long_line_that_is_no_json_is_refused(rig: HttpRig, line: bytes, why: str) -> None:
    data = b'{"body": 1}\n' + line % (b"x" * limits.HTTP_STEP_BYTES)
    answer = rig.call("POST", JOBS, data=data, headers=LINES)
    assert (answer.status, answer.word) == (400, "BAD_JSON")
    assert f"line 2: {why}" in answer.json["detail"]
    assert rig.engine.log_space.jobs == 0


def drawn(rng: random.Random) -> dict[str, object]:
    """A job, mostly like others, now and then with something of its own."""
    job: dict[str, object] = {"body": rng.randrange(100)}
    if rng.random() < 0.1:
        job = {"body_base64": rng.choice(["", "/w==", "YWJj"])}
    if rng.random() < 0.05:
        job["body"] = "x" * rng.choice([limits.BODY_BYTES_DEFAULT, 30])
        job.pop("body_base64", None)
    for chance, field, values in (
        (0.3, "delay", [0, 5, "5s", "1h"]),
        (0.2, "priority", [0, 7]),
        (0.1, "ttr", ["1s", 9]),
        (0.1, "retry", ["1s 2s"]),
        (0.1, "max_attempts", [3]),
        (0.3, "key", ["a", "b", "c"]),
    ):
        if rng.random() < chance:
            job[field] = rng.choice(values)
    if "delay" not in job and rng.random() < 0.1:
        job["at"] = "2023-11-14T23:00:00Z"
    if "key" in job and rng.random() < 0.7:
        job["on_conflict"] = rng.choice(["reject", "keep", "replace", "preserve", "extend"])
    return job


def contents(engine: Engine) -> list[tuple[Any, ...]]:
    """What is there but for the ids, of which those that were refused have used some up."""
    store = engine.store
    records = map(store.jobs.get, range(1, store.last_id + 1))
    return [(store.topic_of(record).name, record[8:]) for record in records if record is not None]


@pytest.mark.walk(1, 10)
@pytest.mark.parametrize(
    "policy",
    [
        None,
        {"jobs_max": 25, "ttr": "9s"},
        {"body_bytes_max": 3},
        {"delay": "7s", "delay_max": "1m"},
    ],
)
def test_a_batch_does_what_one_put_after_the_other_does(
    policy: dict[str, object] | None, rng: random.Random, number: int
) -> None:
    del number  # of which `rng` knows
    for _ in range(6):
        jobs = [drawn(rng) for _ in range(rng.randrange(1, 40))]
        with HttpRig() as rig, HttpRig() as other:
            for one in (rig, other):
                one.engine.store.topic("mail").users += 1  # it keeps its number
                if policy is not None:
                    one.ok("PUT", "/v1/topics/mail/policy", policy)
            results = rig.call("POST", JOBS, {"jobs": jobs}).json["results"]
            for job, result in zip(jobs, results, strict=True):
                alone = other.call("POST", JOBS, job)
                said = dict(alone.json) if alone.status < 300 else {"problem": alone.json}
                problem = said.get("problem", {})
                assert alone.status == result["status"]
                assert problem.get("word") == result.get("problem", {}).get("word")
                assert said.get("outcome") == result.get("outcome")
                assert said.get("due") == result.get("due")
            assert contents(rig.engine) == contents(other.engine)
            assert contents(rig.after_restart()) == contents(rig.engine)
