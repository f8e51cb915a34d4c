"""What tests of handlers rely on: time, turns and the disk do what the test says and no more."""

import pytest

from delayd.access.scopes import Scope
from tests.http.scene import Scene


def test_nothing_happens_before_time_has_passed() -> None:
    with Scene() as scene:
        scene.ok("POST", "/v1/topics/mail/jobs", {"body": 1, "delay": "5s"})
        worker = scene.send("POST", "/v1/topics/mail/reserve", {"wait": "30s"})
        scene.pass_ms(5_000)
        assert worker.answer is None
        scene.pass_ms(1)
        assert worker.the_answer.json["jobs"][0]["body"] == 1


def test_a_put_is_answered_when_it_is_durable() -> None:
    with Scene() as scene:
        scene.disk.hold()
        producer = scene.send("POST", "/v1/topics/mail/jobs", {"body": 1})
        assert producer.answer is None
        assert scene.after_restart().log_space.jobs == 0
        scene.disk.release()
        scene.settle()
        assert producer.the_answer.status == 201
        assert scene.after_restart().log_space.jobs == 1


def test_who_hangs_up_waits_no_more() -> None:
    with Scene() as scene:
        worker = scene.send("POST", "/v1/topics/mail/reserve", {"wait": "30s"})
        assert scene.api.waiting
        worker.hang_up()
        scene.settle()
        assert not scene.api.waiting


def test_a_connection_is_used_again() -> None:
    with Scene() as scene:
        for _ in range(3):
            assert scene.call("GET", "/healthz").status == 200
        assert scene.connections.open_count == 1


def test_a_fault_in_a_handler_fails_the_test() -> None:
    with Scene() as scene:
        scene.api.reports = None  # type: ignore[assignment]
        with pytest.raises(AttributeError):
            scene.call("GET", "/readyz")
        scene.faults.clear()


def test_a_token_is_good_for_what_it_says() -> None:
    with Scene(needs_token=True) as scene:
        assert scene.call("GET", "/v1/topics").status == 401
        assert scene.call("GET", "/v1/topics", token=scene.token(Scope.PUT)).status == 403
        assert scene.call("GET", "/v1/topics", token=scene.token(Scope.STATS)).status == 200
