"""What is told of how a topic and the daemon are doing."""

from typing import Any

import pytest

from delayd import __version__
from delayd.core.stats.operations import Operation
from delayd.http.api import Reports
from delayd.limits import CENSUS_STEP_TOPICS
from delayd.line.stats import COUNTED, LogFigures, Stats
from tests.http.scene import Scene

NOTHING_YET = {"jobs": 0, "mean": None, "p50": None, "p90": None, "p99": None}


def put(scene: Scene, jobs: int = 1, topic: str = "mail", **fields: object) -> None:
    given = {"jobs": [{"body": None, **fields}] * jobs}
    scene.ok("POST", f"/v1/topics/{topic}/jobs", given)


def of_topic(scene: Scene) -> dict[str, Any]:
    return dict(scene.ok("GET", "/v1/topics/mail"))


def test_a_topic_in_which_nothing_happened_says_so() -> None:
    with Scene(is_virtual=True) as scene:
        scene.ok("PUT", "/v1/topics/mail/policy", {"ttr": 1})
        assert of_topic(scene) == {
            "name": "mail",
            **dict.fromkeys(("jobs", "delayed", "ready", "reserved", "buried", "urgent"), 0),
            **dict.fromkeys(("waiting", "using", "watching"), 0),
            "paused_until": None,
            "blocks": [],
            "oldest_ready_age": None,
            "rates": {"put": 0, "reserved": 0, "deleted": 0},
            "due_to_ready": NOTHING_YET,
            "ready_to_reserved": NOTHING_YET,
            "operations": {operation.word: 0 for operation in Operation},
            "usage": {
                "jobs": {"in_use": 0, "max": None},
                "bytes": {"in_use": 0, "max": None},
                "reserved": {"in_use": 0, "max": None},
            },
            "policy": {"ttr": "1s"},
            "source": "run_time",
        }


def test_what_happens_to_jobs_is_counted_and_told_as_rates() -> None:
    with Scene(is_virtual=True) as scene:
        put(scene, 60)
        jobs = scene.ok("POST", "/v1/topics/mail/reserve", {"max": 30})["jobs"]
        scene.ok("POST", "/v1/ack", {"tokens": [job["token"] for job in jobs[:6]]})
        scene.pass_ms(10_000)
        told = of_topic(scene)
        assert told["rates"] == {"put": 1.0, "reserved": 0.5, "deleted": 0.1}
        counted = {word: count for word, count in told["operations"].items() if count}
        assert counted == {"put": 60, "reserve": 30, "delete": 6}
        scene.pass_ms(120_000)
        assert of_topic(scene)["rates"] == {"put": 0, "reserved": 0, "deleted": 0}


def test_waiting_for_a_consumer_shows_as_age_and_then_as_lateness() -> None:
    with Scene(is_virtual=True) as scene:
        put(scene)
        scene.pass_ms(60_000)
        assert of_topic(scene)["oldest_ready_age"] == pytest.approx(60, abs=0.5)
        scene.ok("POST", "/v1/topics/mail/reserve")
        told = of_topic(scene)
        assert told["oldest_ready_age"] is None
        assert told["ready_to_reserved"]["jobs"] == 1
        assert told["ready_to_reserved"]["mean"] == 60
        assert told["due_to_ready"]["jobs"] == 0, "it never had a delay"


def test_use_is_told_against_the_caps_before_they_bite() -> None:
    with Scene() as scene:
        caps = {"jobs_max": 10, "bytes_max": 10_000, "reserved_max": 1}
        scene.ok("PUT", "/v1/topics/mail/policy", caps)
        put(scene, 3)
        scene.ok("POST", "/v1/topics/mail/reserve", {"max": 3})
        told = of_topic(scene)
        assert told["blocks"] == ["full"]
        usage = told["usage"]
        assert usage["jobs"] == {"in_use": 3, "max": 10}
        assert usage["reserved"] == {"in_use": 1, "max": 1}
        assert usage["bytes"] == {
            "in_use": scene.engine.store.topics.by_name["mail"].bytes,
            "max": 10_000,
        }
        assert usage["bytes"]["in_use"] > 3 * 42


def test_who_waits_and_what_hinders_is_told() -> None:
    with Scene() as scene:
        for _ in range(2):
            scene.send("POST", "/v1/topics/mail/reserve", {"wait": "30s"})
        scene.ok("POST", "/v1/topics/mail/pause", {"duration": "1h"})
        told = of_topic(scene)
        assert (told["waiting"], told["watching"], told["blocks"]) == (2, 2, ["paused"])


def test_stats_sum_all_topics() -> None:
    with Scene(is_virtual=True) as scene:
        put(scene, 3, delay="1h")
        put(scene, 2, topic="sms", priority=1)
        scene.ok("POST", "/v1/topics/sms/reserve")
        scene.send("POST", "/v1/topics/fax/reserve", {"wait": "30s"})
        told = scene.ok("GET", "/v1/stats")
        assert told["jobs"] == {"ready": 1, "urgent": 1, "reserved": 1, "delayed": 3, "buried": 0}
        assert told["topics"] == len(scene.engine.store.topics.by_name) == 4
        assert told["operations"]["put"] == 5
        assert told["usage"]["jobs"] == {"in_use": 5, "max": None}
        assert told["http"] == {"connections": 2, "waiting": 1}
        assert told["draining"] is False


def test_stats_tell_the_caps_on_all_topics_together() -> None:
    with Scene() as scene:
        scene.engine.configure(None, jobs_max=100, bytes_max=50_000)
        put(scene, 3)
        usage = scene.ok("GET", "/v1/stats")["usage"]
        assert usage["jobs"] == {"in_use": 3, "max": 100}
        assert usage["bytes"]["max"] == 50_000


def test_stats_tell_what_the_line_knows_of_the_daemon() -> None:
    with Scene(is_virtual=True) as scene:
        stats = Stats(scene.engine, scene.clock.now_ms(), lambda: LogFigures(1, 2, 3, 4, 5))
        scene.api.reports = Reports(stats.beside_jobs)
        stats.counts["put"] += 7
        scene.pass_ms(1_500)
        told = scene.ok("GET", "/v1/stats")
        assert (told["version"], told["uptime"]) == (__version__, 1.5)
        assert told["journal"] == {
            "oldest_file": 1,
            "current_file": 2,
            "jobs_copied": 3,
            "records_written": 4,
            "segment_bytes": 5,
        }
        assert told["line"]["commands"] == dict.fromkeys(COUNTED, 0) | {"put": 7}


def test_stats_of_thousands_of_topics_are_summed_in_slices() -> None:
    with Scene(is_checked=False) as scene:
        topics = 20 * CENSUS_STEP_TOPICS
        for number in range(topics):
            scene.engine.store.topic(f"t{number}").users += 1
        before = scene.turns_taken
        assert scene.ok("GET", "/v1/stats")["topics"] == topics + 1
        assert scene.turns_taken - before >= 20
