"""The calls about the daemon itself: does it take jobs, and its figures; stories.txt has more."""

from collections.abc import Iterator

import pytest

from delayd import __version__
from delayd import turns as turns_module
from delayd.build_kind import is_compiled
from delayd.core.log_space import PUT_COST_BYTES, TOPIC_COST_BYTES
from delayd.limits import EMERGENCY_BYTES, READY_BODY_BYTES, TASK_SLICE_US, TOTALS_STEP_TOPICS
from delayd.line.stats import COUNTED, LogFigures, Stats
from tests.rigs.http import Answer, HttpRig, SliceWatch, put


def not_ready(rig: HttpRig) -> Answer:
    """The refusal of a daemon that lives all the same."""
    assert rig.call("GET", "/healthz").json == {"status": "ok"}
    answer = rig.call("GET", "/readyz")
    assert answer.status == 503
    assert int(answer.headers["retry-after"]) > 0
    return answer


def test_a_full_disk_makes_it_unready_until_there_is_space_again(rig: HttpRig) -> None:
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


def test_requests_are_counted_by_call_and_status(rig: HttpRig) -> None:
    rig.ok("POST", "/v1/topics/mail/jobs", {"body": 1})
    rig.call("POST", "/v1/topics/mail/jobs", {"body": 1, "delay": "soon"})
    rig.call("POST", "/v1/topics/mail/jobs", data=b"{")
    rig.call("GET", "/v1/nothing")
    counted = {name: each.by_status for name, each in rig.api.requests.items()}
    assert counted["put_job"] == {201: 1, 422: 1, 400: 1}
    assert sum(rig.api.requests["put_job"].took_ns.counts[:-1]) == 3
    assert counted[""] == {404: 1}
    assert counted["reserve"] == {}


def test_metrics_are_sent_in_pieces(rig: HttpRig) -> None:
    rig.api.reports = rig.api.reports._replace(metrics=pieces, metrics_type="text/plain; version=1")
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


# --- The virtual clock ---------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["hang_up", "say_no_more"])
def test_the_clock_stops_where_it_is_when_who_advances_it_goes(
    monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    with HttpRig(is_virtual=True) as rig:
        for delay in range(1, 51):
            put(rig, delay=delay)
        looks = iter(range(0, 10**12, TASK_SLICE_US * 1_000))
        monkeypatch.setattr(turns_module, "monotonic_ns", looks.__next__)
        start_ms = rig.clock.now_ms()
        client = rig.send("POST", "/v1/clock/advance", {"by": "100s"}, is_settled=False)
        while rig.clock.now_ms() == start_ms:
            rig.step()
        getattr(client, how)()
        rig.settle()
        assert client.is_closed
        assert rig.clock.now_ms() - start_ms < 10_000
