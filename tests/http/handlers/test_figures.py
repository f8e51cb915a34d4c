"""What is told of how a topic and the daemon are doing."""

from typing import Any

import pytest

from delayd import __version__
from delayd.build_kind import is_compiled
from delayd.core.operations.topics import configure
from delayd.core.stats.counters import Operation
from delayd.core.throttle import PushBlock
from delayd.limits import TOTALS_STEP_TOPICS
from delayd.line.stats import COUNTED, LogFigures, Stats
from tests.rigs.http import HttpRig, SliceWatch

NOTHING_YET = {"jobs": 0, "mean": None, "p50": None, "p90": None, "p99": None}


def put(rig: HttpRig, jobs: int = 1, topic: str = "mail", **fields: object) -> None:
    given = {"jobs": [{"body": None, **fields}] * jobs}
    rig.ok("POST", f"/v1/topics/{topic}/jobs", given)


def of_topic(rig: HttpRig) -> dict[str, Any]:
    return dict(rig.ok("GET", "/v1/topics/mail"))


def test_a_topic_in_which_nothing_happened_says_so() -> None:
    with HttpRig(is_virtual=True) as rig:
        rig.ok("PUT", "/v1/topics/mail/policy", {"ttr": 1})
        assert of_topic(rig) == {
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
    with HttpRig(is_virtual=True) as rig:
        put(rig, 60)
        jobs = rig.ok("POST", "/v1/topics/mail/reserve", {"max": 30})["jobs"]
        rig.ok("POST", "/v1/ack", {"tokens": [job["token"] for job in jobs[:6]]})
        rig.pass_ms(10_000)
        told = of_topic(rig)
        assert told["rates"] == {"put": 1.0, "reserved": 0.5, "deleted": 0.1}
        counted = {word: count for word, count in told["operations"].items() if count}
        assert counted == {"put": 60, "reserve": 30, "delete": 6}
        rig.pass_ms(120_000)
        assert of_topic(rig)["rates"] == {"put": 0, "reserved": 0, "deleted": 0}


def test_waiting_for_a_consumer_shows_as_age_and_then_as_lateness() -> None:
    with HttpRig(is_virtual=True) as rig:
        put(rig)
        rig.pass_ms(60_000)
        assert of_topic(rig)["oldest_ready_age"] == pytest.approx(60, abs=0.5)
        rig.ok("POST", "/v1/topics/mail/reserve")
        told = of_topic(rig)
        assert told["oldest_ready_age"] is None
        assert told["ready_to_reserved"]["jobs"] == 1
        assert told["ready_to_reserved"]["mean"] == 60
        assert told["due_to_ready"]["jobs"] == 0, "it never had a delay"


def test_use_is_told_against_the_caps_before_they_bite() -> None:
    with HttpRig() as rig:
        caps = {"jobs_max": 10, "bytes_max": 10_000, "reserved_max": 1}
        rig.ok("PUT", "/v1/topics/mail/policy", caps)
        put(rig, 3)
        rig.ok("POST", "/v1/topics/mail/reserve", {"max": 3})
        told = of_topic(rig)
        assert told["blocks"] == ["full"]
        usage = told["usage"]
        assert usage["jobs"] == {"in_use": 3, "max": 10}
        assert usage["reserved"] == {"in_use": 1, "max": 1}
        assert usage["bytes"] == {
            "in_use": rig.engine.store.topics.by_name["mail"].bytes,
            "max": 10_000,
        }
        assert usage["bytes"]["in_use"] > 3 * 42


def test_who_waits_and_what_hinders_is_told() -> None:
    with HttpRig() as rig:
        for _ in range(2):
            rig.send("POST", "/v1/topics/mail/reserve", {"wait": "30s"})
        rig.ok("POST", "/v1/topics/mail/pause", {"duration": "1h"})
        told = of_topic(rig)
        assert (told["waiting"], told["watching"], told["blocks"]) == (2, 2, ["paused"])


def test_stats_sum_all_topics() -> None:
    with HttpRig(is_virtual=True) as rig:
        put(rig, 3, delay="1h")
        put(rig, 2, topic="sms", priority=1)
        rig.ok("POST", "/v1/topics/sms/reserve")
        rig.send("POST", "/v1/topics/fax/reserve", {"wait": "30s"})
        told = rig.ok("GET", "/v1/stats")
        assert told["jobs"] == {"ready": 1, "urgent": 1, "reserved": 1, "delayed": 3, "buried": 0}
        assert told["topics"] == len(rig.engine.store.topics.by_name) == 4
        assert told["operations"]["put"] == 5
        assert told["usage"]["jobs"] == {"in_use": 5, "max": None}
        assert told["http"] == {"connections": 2, "waiting": 1}
        assert told["draining"] is False
        assert told["disk"] is None, "there is none"


def test_stats_tell_the_caps_on_all_topics_together() -> None:
    with HttpRig() as rig:
        configure(rig.engine, None, jobs_max=100, bytes_max=50_000)
        put(rig, 3)
        usage = rig.ok("GET", "/v1/stats")["usage"]
        assert usage["jobs"] == {"in_use": 3, "max": 100}
        assert usage["bytes"]["max"] == 50_000


def test_stats_tell_what_the_line_knows_of_the_daemon() -> None:
    with HttpRig(is_virtual=True) as rig:
        stats = Stats(rig.engine, rig.clock.now_ms(), lambda: LogFigures(1, 2, 3, 4, 5))
        rig.api.reports = rig.api.reports._replace(beside_jobs=stats.beside_jobs)
        stats.counts["put"] += 7
        rig.pass_ms(1_500)
        told = rig.ok("GET", "/v1/stats")
        assert (told["version"], told["uptime"]) == (__version__, 1.5)
        assert told["compiled"] is is_compiled()
        assert told["journal"] == {
            "oldest_file": 1,
            "current_file": 2,
            "jobs_copied": 3,
            "records_written": 4,
            "segment_bytes": 5,
        }
        assert told["line"]["commands"] == dict.fromkeys(COUNTED, 0) | {"put": 7}


def test_stats_of_thousands_of_topics_are_summed_in_slices() -> None:
    with HttpRig(is_checked=False, slice_now_ns=SliceWatch()) as rig:
        topics = 20 * TOTALS_STEP_TOPICS
        for number in range(topics):
            rig.engine.store.topic(f"t{number}").users += 1
        before = rig.turns_taken
        assert rig.ok("GET", "/v1/stats")["topics"] == topics + 1
        assert rig.turns_taken - before >= 20


def test_a_topic_tells_why_its_jobs_are_not_pushed_beside_why_none_are_handed_out() -> None:
    with HttpRig() as rig:
        rig.ok("POST", "/v1/topics/mail/jobs", {"body": 1})
        rig.ok("POST", "/v1/topics/mail/pause", {"duration": "1h"})
        rig.push_blocks["mail"] = [PushBlock.OPEN, PushBlock.SLOW]
        told = rig.ok("GET", "/v1/topics/mail")
        assert told["blocks"] == ["paused", "breaker_open", "push_slow"]
