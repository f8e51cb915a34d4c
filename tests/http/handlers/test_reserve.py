"""Handing out jobs: at once, after a wait, to several, and not to those who have gone."""

import pytest

from delayd.access.scopes import Scope
from delayd.core.operations.put import put_alike
from delayd.core.times import RequestMs
from delayd.limits import (
    BODY_BYTES_DEFAULT,
    HTTP_RESERVED_BYTES_MAX,
    HTTP_WAIT_MS_MAX,
    RETRY_AFTER_FULL_S,
)
from tests.rigs.clock import FakeClock
from tests.rigs.http import RESERVE, HttpRig, SliceWatch, ids, put, stored, wait

JOBS = "/v1/topics/mail/jobs"


# --- At once --------------------------------------------------------------------------------------


def test_with_nothing_ready_and_no_wait_the_answer_is_that_there_is_nothing() -> None:
    with HttpRig() as rig:
        put(rig, delay=5)
        for given in (None, {}, {"wait": 0}, {"max": 5, "wait": "0s"}):
            answer = rig.call("POST", RESERVE, given)
            assert (answer.status, answer.body) == (204, b"")
            assert answer.headers["server"].startswith("delayd/")


def test_a_reserve_of_a_topic_that_is_not_there_leaves_none() -> None:
    with HttpRig() as rig:
        assert rig.call("POST", "/v1/topics/nothing/reserve").status == 204
        waiting = rig.send("POST", "/v1/topics/nothing/reserve", {"wait": 1})
        assert "nothing" in rig.engine.store.topics.by_name
        rig.pass_ms(1_010)
        assert waiting.the_answer.status == 204
        assert "nothing" not in rig.engine.store.topics.by_name


def test_what_a_paused_topic_holds_is_not_handed_out() -> None:
    with HttpRig() as rig:
        put(rig)
        rig.ok("POST", "/v1/topics/mail/pause", {"duration": "10s"})
        waiting = wait(rig)
        assert waiting.answer is None
        rig.pass_ms(10_010)
        assert ids(waiting) == [1]


def test_no_more_bodies_are_handed_out_than_an_answer_should_hold() -> None:
    with HttpRig(is_checked=False) as rig:
        bodies = [b"x" * BODY_BYTES_DEFAULT] * 100
        for name in ("mail", "sms"):
            topic = rig.engine.store.topic(name)
            put_alike(rig.engine, topic, 0, 0, 60_000, bodies, RequestMs(rig.clock.now_ms()))
        expected = HTTP_RESERVED_BYTES_MAX // BODY_BYTES_DEFAULT + 1
        assert len(rig.ok("POST", RESERVE, {"max": 100})["jobs"]) == expected
        both = {"topics": ["mail", "sms"], "max": 100}
        assert len(rig.ok("POST", "/v1/reserve", both)["jobs"]) == expected


@pytest.mark.parametrize("path", [RESERVE, "/v1/reserve"])
@pytest.mark.parametrize("wait_s", [0, 30])
def test_where_there_is_no_space_for_a_reservation_it_is_said_so(path: str, wait_s: int) -> None:
    with HttpRig() as rig:
        given: dict[str, object] = {"wait": wait_s, "max": 5}
        if path == "/v1/reserve":
            given["topics"] = ["mail", "sms"]
        rig.engine.log_space.limit(0, lambda *_: -1)
        if not wait_s:
            assert rig.call("POST", path, given).status == 204, "nothing is ready"
        rig.engine.log_space.limit(10_000_000, lambda *_: -1)
        put(rig)
        rig.engine.log_space.limit(0, lambda *_: -1)
        answer = rig.call("POST", path, given)
        assert (answer.status, answer.word) == (507, "OUT_OF_MEMORY")
        assert answer.headers["retry-after"] == str(RETRY_AFTER_FULL_S)
        assert stored(rig.engine)["state"] == "ready"
        assert not rig.api.waiting
        assert rig.engine.store.topics.by_name["mail"].watchers == 0
        rig.engine.log_space.limit(0, lambda missing_bytes, *_: missing_bytes)
        assert len(rig.ok("POST", path, given)["jobs"]) == 1, "room was made"


def test_one_body_is_handed_out_however_long_it_is() -> None:
    with HttpRig(is_checked=False) as rig:
        rig.engine.body_bytes_max = 2 * HTTP_RESERVED_BYTES_MAX
        topic = rig.engine.store.topic("mail")
        body = b"x" * (HTTP_RESERVED_BYTES_MAX + 1)
        put_alike(rig.engine, topic, 0, 0, 60_000, (body, body), RequestMs(rig.clock.now_ms()))
        assert len(rig.ok("POST", RESERVE, {"max": 2})["jobs"]) == 1


# --- Waiting --------------------------------------------------------------------------------------


def test_who_waits_gets_a_job_in_the_turn_in_which_it_comes_due() -> None:
    with HttpRig() as rig:
        put(rig, delay=5)
        waiting = wait(rig)
        rig.pass_ms(5_000)
        assert waiting.answer is None
        before = rig.turns_taken
        rig.pass_ms(1)
        assert rig.turns_taken - before <= 3, "one for the job, one for the answer, one to sleep"
        (job,) = waiting.the_answer.json["jobs"]
        assert (job["id"], job["lateness"]) == (1, 0.001)


def test_who_waits_gets_a_job_that_is_put() -> None:
    with HttpRig() as rig:
        waiting = wait(rig)
        put(rig)
        assert ids(waiting) == [1]
        assert not rig.api.waiting


def test_who_waited_first_is_served_first() -> None:
    with HttpRig() as rig:
        waiting = [wait(rig) for _ in range(4)]
        for _ in range(3):
            put(rig)
        assert [ids(client) for client in waiting[:3]] == [[1], [2], [3]]
        assert waiting[3].answer is None


def test_who_wants_several_gets_what_is_ready_besides() -> None:
    with HttpRig() as rig:
        for _ in range(5):
            put(rig, delay=5)
        waiting = wait(rig, max=4)
        rig.pass_ms(5_001)
        assert ids(waiting) == [1, 2, 3, 4]
        assert stored(rig.engine, 5)["state"] == "ready"


def test_who_wants_several_does_not_wait_for_them_all() -> None:
    with HttpRig() as rig:
        put(rig)
        assert ids(wait(rig, max=4)) == [1]
        waiting = wait(rig, max=4)
        put(rig)
        assert ids(waiting) == [2]


@pytest.mark.parametrize("wait_s", [0.05, 30, HTTP_WAIT_MS_MAX // 1_000])
def test_a_wait_ends_when_it_was_to_end(wait_s: float) -> None:
    with HttpRig() as rig:
        waiting = wait(rig, wait=wait_s)
        rig.pass_ms(int(wait_s * 1_000))
        assert waiting.answer is None
        rig.pass_ms(1)
        answer = waiting.the_answer
        assert (answer.status, answer.body) == (204, b"")
        assert not rig.api.waiting
        assert "mail" not in rig.engine.store.topics.by_name


def test_a_job_that_comes_due_as_the_wait_ends_is_handed_out() -> None:
    with HttpRig() as rig:
        put(rig, delay=5)
        waiting = wait(rig, wait="5s")
        rig.pass_ms(5_001)
        assert waiting.answer is not None
        assert stored(rig.engine)["state"] == ("reserved" if ids(waiting) else "ready")


def test_a_connection_waits_again_and_again() -> None:
    with HttpRig() as rig:
        for _ in range(3):
            assert rig.call("POST", RESERVE, {"wait": 0}).status == 204
            put(rig)
            assert rig.call("POST", RESERVE, {"wait": 5}).status == 200
        assert rig.connections.open_count == 1


def test_lateness_is_that_of_the_hand_out_and_not_of_the_answer() -> None:
    with HttpRig(is_virtual=True) as rig:
        waiting = wait(rig)
        put(rig, delay=29)
        rig.disk.hold()
        advance = rig.send("POST", "/v1/clock/advance", {"by": 31})
        assert waiting.answer is advance.answer is None
        rig.disk.release()
        rig.settle()
        assert advance.the_answer.json["now"] == "2023-11-14T22:13:51.000Z"
        (job,) = waiting.the_answer.json["jobs"]
        assert (job["due"], job["expires"]) == (
            "2023-11-14T22:13:49.000Z",
            "2023-11-14T22:14:49.000Z",
        )
        assert job["lateness"] == 0.0


@pytest.mark.parametrize("has_waited", [False, True])
def test_a_slow_disk_makes_no_job_late_that_was_handed_out_in_time(has_waited: bool) -> None:
    with HttpRig(is_virtual=True) as rig:
        if has_waited:
            client = wait(rig)
            put(rig, delay=1)
            rig.disk.hold()
        else:
            put(rig, delay=1)
            rig.pass_ms(1_000)
            rig.disk.hold()
            client = rig.send("POST", RESERVE)
        rig.pass_ms(1_000)
        rig.pass_ms(5_000)
        assert client.answer is None
        rig.disk.release()
        rig.settle()
        (job,) = client.the_answer.json["jobs"]
        assert job["lateness"] == 0.0


# --- Several topics -------------------------------------------------------------------------------


def test_who_waits_for_several_topics_gets_what_comes_first() -> None:
    with HttpRig() as rig:
        given = {"topics": ["mail", "sms"], "wait": 30}
        first, second = (rig.send("POST", "/v1/reserve", given) for _ in range(2))
        put(rig, "fax")
        assert first.answer is None
        put(rig, "sms")
        put(rig, "mail")
        assert (ids(first), ids(second)) == ([2], [3])
        assert {*rig.engine.store.topics.by_name} >= {"fax", "mail", "sms"}


def test_a_token_must_be_good_for_each_topic_that_is_named() -> None:
    with HttpRig(needs_token=True) as rig:
        token = rig.token(Scope.RESERVE, topics=("mail",))
        given = {"topics": ["mail", "sms"]}
        assert rig.call("POST", "/v1/reserve", given, token=token).status == 403
        assert rig.call("POST", "/v1/reserve", {"topics": ["mail"]}, token=token).status == 204


# --- Durability -----------------------------------------------------------------------------------


def test_a_reservation_is_durable_before_anybody_hears_of_it() -> None:
    with HttpRig() as rig:
        put(rig)
        rig.disk.hold()
        at_once = rig.send("POST", RESERVE)
        waiting = wait(rig)
        rig.send("POST", JOBS, {"body": 2})
        assert (at_once.answer, waiting.answer) == (None, None)
        assert stored(rig.after_restart())["state"] == "ready"
        rig.disk.release()
        rig.settle()
        assert (ids(at_once), ids(waiting)) == ([1], [2])
        again = rig.after_restart()
        assert [stored(again, job_id)["state"] for job_id in (1, 2)] == ["reserved"] * 2


def test_a_job_whose_ttr_ran_out_while_the_disk_was_slow_is_not_handed_out() -> None:
    with HttpRig() as rig:
        put(rig, ttr=1)
        rig.disk.hold()
        late = wait(rig, max=2)
        rig.pass_ms(1_002)
        rig.disk.release()
        rig.settle()
        assert ids(late) == []
        (job,) = rig.ok("POST", RESERVE)["jobs"]
        assert (job["id"], job["attempt"]) == (1, 2)


def test_of_several_jobs_those_are_handed_out_whose_ttr_has_not_run_out() -> None:
    with HttpRig() as rig:
        put(rig, ttr=1)
        put(rig, ttr=9)
        rig.disk.hold()
        late = wait(rig, max=2)
        rig.pass_ms(1_002)
        rig.disk.release()
        rig.settle()
        assert ids(late) == [2]


# --- Stopping -------------------------------------------------------------------------------------


def test_who_waits_is_told_that_the_daemon_stops() -> None:
    with HttpRig() as rig:
        waiting = wait(rig)
        rig.server.stop_accepting()
        rig.settle()
        answer = waiting.the_answer
        assert (answer.status, answer.word) == (503, "STOPPING")
        assert answer.headers["retry-after"] == "1"
        assert not rig.api.waiting


def test_a_reservation_that_is_not_durable_when_the_daemon_stops_is_answered_all_the_same() -> None:
    with HttpRig() as rig:
        put(rig)
        rig.disk.hold()
        client = wait(rig)
        rig.server.stop_accepting()
        rig.disk.release()
        rig.settle()
        assert ids(client) == [1]


def test_a_daemon_that_stops_hands_out_nothing_more() -> None:
    with HttpRig() as rig:
        put(rig)
        client = rig.connect()
        rig.settle()
        rig.server.stop_accepting()
        answer = rig.call("POST", RESERVE)
        assert (answer.status, answer.word) == (503, "STOPPING")
        assert stored(rig.engine)["state"] == "ready"
        assert not client.received


def test_a_long_answer_is_written_in_slices_with_turns_of_others_between() -> None:
    with HttpRig() as rig:
        for number in range(40):
            put(rig, body=number, ttr=10 if number % 2 else 60)
        rig.api.loop_time.now_ns = SliceWatch()
        worker = rig.send("POST", RESERVE, {"max": 40}, is_settled=False)
        others = 0
        while worker.answer is None:
            other = rig.send("GET", "/healthz", is_settled=False)
            for _ in range(4):
                rig.step()
            others += other.the_answer.status == 200
            if others == 5:
                assert isinstance(rig.clock, FakeClock)
                rig.clock.advance(10_001)
        assert others > 8
        bodies = [job["body"] for job in worker.the_answer.json["jobs"]]
        assert len(bodies) < 40, "not those whose ttr ran out meanwhile"
        assert {number for number in range(40) if not number % 2} <= {*bodies}


def test_a_client_that_goes_while_its_answer_is_written_leaves_its_jobs_to_others() -> None:
    with HttpRig() as rig:
        for number in range(40):
            put(rig, body=number)
        rig.api.loop_time.now_ns = SliceWatch()
        gone = rig.send("POST", RESERVE, {"max": 40}, is_settled=False)
        for _ in range(20):
            rig.step()
        assert gone.answer is None
        assert len(rig.engine.store.leases.sessions) == 40
        gone.hang_up()
        rig.settle()
        jobs = rig.ok("POST", RESERVE, {"max": 40})["jobs"]
        assert [(job["body"], job["attempt"]) for job in jobs] == [(n, 1) for n in range(40)]
