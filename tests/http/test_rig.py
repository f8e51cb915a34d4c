"""What tests of handlers rely on: time, turns and the disk do what the test says and no more."""

import pytest

from delayd.access.scopes import Scope
from tests.rigs.http import HttpRig


def test_nothing_happens_before_time_has_passed() -> None:
    with HttpRig() as rig:
        rig.ok("POST", "/v1/topics/mail/jobs", {"body": 1, "delay": "5s"})
        worker = rig.send("POST", "/v1/topics/mail/reserve", {"wait": "30s"})
        rig.pass_ms(5_000)
        assert worker.answer is None
        rig.pass_ms(1)
        assert worker.the_answer.json["jobs"][0]["body"] == 1


def test_a_put_is_answered_when_it_is_durable() -> None:
    with HttpRig() as rig:
        rig.disk.hold()
        producer = rig.send("POST", "/v1/topics/mail/jobs", {"body": 1})
        assert producer.answer is None
        assert rig.after_restart().log_space.jobs == 0
        rig.disk.release()
        rig.settle()
        assert producer.the_answer.status == 201
        assert rig.after_restart().log_space.jobs == 1


def test_who_hangs_up_waits_no_more() -> None:
    with HttpRig() as rig:
        worker = rig.send("POST", "/v1/topics/mail/reserve", {"wait": "30s"})
        assert rig.api.waiting
        worker.hang_up()
        rig.settle()
        assert not rig.api.waiting


def test_a_connection_is_used_again() -> None:
    with HttpRig() as rig:
        for _ in range(3):
            assert rig.call("GET", "/healthz").status == 200
        assert rig.connections.open_count == 1


def test_a_fault_in_a_handler_fails_the_test() -> None:
    with HttpRig() as rig:
        rig.api.reports = None  # type: ignore[assignment]
        with pytest.raises(AttributeError):
            rig.call("GET", "/readyz")
        rig.faults.clear()


def test_a_token_is_good_for_what_it_says() -> None:
    with HttpRig(needs_token=True) as rig:
        assert rig.call("GET", "/v1/topics").status == 401
        assert rig.call("GET", "/v1/topics", token=rig.token(Scope.PUT)).status == 403
        assert rig.call("GET", "/v1/topics", token=rig.token(Scope.STATS)).status == 200
