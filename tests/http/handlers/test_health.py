"""The calls about the daemon itself: does it live, does it take jobs, its metrics, its clock."""

from collections.abc import Iterator

import pytest

from delayd.access.scopes import Scope
from delayd.core.log_space import PUT_COST_BYTES, TOPIC_COST_BYTES
from delayd.limits import EMERGENCY_BYTES, READY_BODY_BYTES, SLOW_SYNC_MS, WALL_MS_MAX
from tests.rigs.http import Answer, HttpRig


def not_ready(rig: HttpRig) -> Answer:
    """The refusal of a daemon that lives all the same."""
    assert rig.call("GET", "/healthz").json == {"status": "ok"}
    answer = rig.call("GET", "/readyz")
    assert answer.status == 503
    assert int(answer.headers["retry-after"]) > 0
    return answer


# --- Health --------------------------------------------------------------------------------------


def test_health_and_readiness_need_no_token() -> None:
    with HttpRig(needs_token=True) as rig:
        assert rig.call("GET", "/healthz").json == {"status": "ok"}
        assert rig.call("GET", "/readyz").json == {"status": "ready"}
        assert rig.call("HEAD", "/readyz").status == 200


def test_a_daemon_that_drains_lives_and_is_not_ready() -> None:
    with HttpRig() as rig:
        rig.engine.draining = True
        assert not_ready(rig).word == "DRAINING"


def test_a_daemon_that_stops_is_not_ready() -> None:
    with HttpRig() as rig:
        assert rig.call("GET", "/readyz").status == 200
        rig.server.stop_accepting()
        answer = rig.call("GET", "/readyz")
        assert (answer.status, answer.word) == (503, "STOPPING")


def test_a_disk_that_does_not_answer_makes_it_unready() -> None:
    with HttpRig() as rig:
        rig.disk.sync_going_on_ms = SLOW_SYNC_MS
        assert rig.call("GET", "/readyz").status == 200
        rig.disk.sync_going_on_ms = 3_500
        answer = not_ready(rig)
        assert (answer.word, answer.json["detail"]) == (
            "NOT_READY",
            "the disk has not answered for 3 s",
        )


def test_a_full_disk_makes_it_unready_until_there_is_space_again() -> None:
    with HttpRig() as rig:
        job_bytes = PUT_COST_BYTES + 2 * READY_BODY_BYTES + TOPIC_COST_BYTES
        needed_bytes = EMERGENCY_BYTES + job_bytes
        asked: list[int] = []

        def ask(missing_bytes: int, _body_bytes: int, _places: int) -> int:
            asked.append(missing_bytes)
            return missing_bytes if len(asked) > 1 else -1

        rig.engine.log_space.limit(needed_bytes - 1, ask)
        assert not_ready(rig).word == "NOT_READY"
        assert rig.call("GET", "/readyz").status == 200, "nobody puts, and it asks all the same"
        assert asked == [1, 1]
        assert rig.engine.log_space.free_bytes == needed_bytes


# --- Metrics -------------------------------------------------------------------------------------


def pieces(now_ms: int) -> Iterator[bytes]:
    yield b"a %d\n" % now_ms
    yield b""
    yield b"b 2\n" * 10_000
    yield b"c 3\n"


def test_requests_are_counted_by_call_and_status() -> None:
    with HttpRig() as rig:
        rig.ok("POST", "/v1/topics/mail/jobs", {"body": 1})
        rig.call("POST", "/v1/topics/mail/jobs", {"body": 1, "delay": "soon"})
        rig.call("POST", "/v1/topics/mail/jobs", data=b"{")
        rig.call("GET", "/v1/nothing")
        counted = {name: each.by_status for name, each in rig.api.requests.items()}
        assert counted["put_job"] == {201: 1, 422: 1, 400: 1}
        assert sum(rig.api.requests["put_job"].took_ns.counts[:-1]) == 3
        assert counted[""] == {404: 1}
        assert counted["reserve"] == {}


def test_metrics_are_sent_in_pieces() -> None:
    with HttpRig() as rig:
        rig.api.reports = rig.api.reports._replace(
            metrics=pieces, metrics_type="text/plain; version=1"
        )
        before = rig.turns_taken
        answer = rig.call("GET", "/metrics")
        assert answer.status == 200
        assert answer.headers["content-type"] == "text/plain; version=1"
        assert answer.headers["transfer-encoding"] == "chunked"
        assert answer.body == b"".join(pieces(rig.api.now_ms()))
        assert rig.turns_taken - before >= 3, "others have their turns in between"
        head = rig.call("HEAD", "/metrics")
        assert (head.status, head.body) == (200, b"")
        assert "transfer-encoding" not in head.headers
        assert rig.call("GET", "/metrics").body == answer.body


@pytest.mark.parametrize("path", ["/metrics", "/v1/stats"])
def test_what_concerns_all_topics_needs_a_token_for_all_of_them(path: str) -> None:
    with HttpRig(needs_token=True) as rig:
        assert rig.call("GET", path).status == 401
        for token in (rig.token(Scope.PEEK), rig.token(Scope.STATS, topics=("mail",))):
            assert rig.call("GET", path, token=token).word == "FORBIDDEN"
        assert rig.call("GET", path, token=rig.token(Scope.STATS)).status == 200


# --- The virtual clock ---------------------------------------------------------------------------


def test_the_last_hour_is_told_minute_by_minute() -> None:
    with HttpRig(is_virtual=True) as rig:
        rig.ok("POST", "/v1/topics/mail/jobs", {"jobs": [{"body": 1, "delay": "90s"}] * 3})
        rig.ok("POST", "/v1/clock/advance", {"by": "100s"})
        job, *_ = rig.ok("POST", "/v1/topics/mail/reserve", {"max": 2})["jobs"]
        rig.ok("POST", f"/v1/jobs/{job['id']}/ack", {"token": job["token"]})
        rig.ok("POST", "/v1/clock/advance", {"by": "60s"})
        rig.ok("POST", "/v1/topics/mail/jobs", {"body": 1})
        told = rig.ok("GET", "/v1/stats/history")
        assert told["now"] == "2023-11-14T22:16:00.000Z"
        first, second, third = told["minutes"]
        assert (first["from"], first["put"], first["reserved"]) == (
            "2023-11-14T22:13:20.000Z",
            3,
            0,
        )
        # What is counted begins a minute: the reserve, 100 s after the first put.
        assert (second["from"], second["put"]) == ("2023-11-14T22:15:00.000Z", 0)
        assert (second["reserved"], second["deleted"], second["failed"]) == (2, 1, 1)
        assert (third["from"], third["put"]) == ("2023-11-14T22:16:00.000Z", 1)
        assert (first["late_p50"], second["late_p50"]) == (0.0005, None)
        rig.ok("POST", "/v1/clock/advance", {"by": "2h"})
        assert rig.ok("GET", "/v1/stats/history")["minutes"] == []


def test_a_client_is_told_what_it_may_do() -> None:
    with HttpRig() as rig:
        told = rig.ok("GET", "/v1/access")
        assert (told["name"], told["topics"]) == ("everybody", ["*"])
        assert told["scopes"] == sorted(told["scopes"])
        assert set(told["scopes"]) == {scope.value for scope in Scope}
    with HttpRig(needs_token=True) as rig:
        token = rig.token(Scope.RESERVE, Scope.DELETE, topics=("mail", "sms.*"))
        told = rig.ok("GET", "/v1/access", token=token)
        assert (told["scopes"], told["topics"]) == (["delete", "reserve"], ["mail", "sms.*"])
        assert token not in str(told)


def test_the_clock_goes_on_through_everything_that_is_due() -> None:
    with HttpRig(is_virtual=True) as rig:
        for delay in ("5s", "1s", "3s"):
            rig.ok("POST", "/v1/topics/mail/jobs", {"body": delay, "delay": delay})
        workers = [rig.send("POST", "/v1/topics/mail/reserve", {"wait": "1m"}) for _ in range(3)]
        told = rig.ok("POST", "/v1/clock/advance", {"by": "7d"})
        assert told == {"now": "2023-11-21T22:13:20.000Z"}
        bodies = [worker.the_answer.json["jobs"][0]["body"] for worker in workers]
        assert bodies == ["1s", "3s", "5s"]
        assert rig.ok("POST", "/v1/clock/advance", {"by": 0}) == told


def test_a_clock_of_the_system_is_not_advanced() -> None:
    with HttpRig() as rig:
        answer = rig.call("POST", "/v1/clock/advance", {"by": 1})
        assert (answer.status, answer.word) == (409, "NO_VIRTUAL_CLOCK")


def test_the_clock_stays_within_the_calendar() -> None:
    with HttpRig(is_virtual=True) as rig:
        rig.pass_ms(WALL_MS_MAX - rig.clock.now_ms() - 999)
        answer = rig.call("POST", "/v1/clock/advance", {"by": 1})
        assert (answer.status, answer.word) == (422, "BAD_FORMAT")
        told = rig.ok("POST", "/v1/clock/advance", {"by": 0.999})
        assert told == {"now": "9999-12-31T23:59:59.999Z"}


def test_only_who_may_do_everything_everywhere_advances_the_clock() -> None:
    with HttpRig(is_virtual=True, needs_token=True) as rig:
        given = {"by": 1}
        for token in (
            rig.token(*(scope for scope in Scope if scope is not Scope.ADMIN)),
            rig.token(Scope.ADMIN, topics=("mail",)),
        ):
            assert rig.call("POST", "/v1/clock/advance", given, token=token).status == 403
        rig.ok("POST", "/v1/clock/advance", given, token=rig.token(Scope.ADMIN))


def test_that_it_is_not_ready_is_told_while_nothing_becomes_durable() -> None:
    with HttpRig() as rig:
        rig.disk.hold()
        client = rig.send("POST", "/v1/topics/mail/jobs", {"body": 1})
        rig.engine.draining = True
        assert not_ready(rig).word == "DRAINING"
        assert client.answer is None
        rig.disk.release()


def test_files_that_are_missing_make_it_unready() -> None:
    with HttpRig() as rig:
        rig.disk.missing_files = "data/segment-0000000001.log was removed"
        answer = not_ready(rig)
        assert answer.word == "NOT_READY"
        assert answer.json["detail"] == (
            "data/segment-0000000001.log was removed: nothing is acknowledged until a snapshot "
            "replaces it"
        )


def test_a_file_that_cannot_be_made_is_not_a_full_disk() -> None:
    with HttpRig() as rig:
        rig.engine.log_space.limit(0, lambda _missing_bytes, _body_bytes, _places: -1)
        rig.disk.space_trouble = "Too many open files"
        assert not_ready(rig).json["detail"] == (
            "no file can be made for the log: Too many open files"
        )
