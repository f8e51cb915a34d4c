"""The page for Prometheus: its format by prometheus-client's parser and writer; its docs."""

import json
import re
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest
from prometheus_client import exposition, metrics_core, registry
from prometheus_client.core import Metric
from prometheus_client.gc_collector import GCCollector
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.utils import floatToGoString

from delayd.core.job_parts import Own
from delayd.core.operations.ack import delete_batch
from delayd.core.operations.reserve import reserve_batch
from delayd.core.operations.sessions import close_session
from delayd.core.stats.counters import Operation
from delayd.core.stats.histogram import Histogram, new_histogram
from delayd.core.stats.refusals import Refusals
from delayd.core.stats.requests import RequestCounters
from delayd.limits import (
    BATCH_BOUNDS_RECORDS,
    HELD_BOUNDS_NS,
    LATENESS_BOUNDS_MS,
    METRICS_STEP_TOPICS,
    PUSH_BOUNDS_MS,
    SYNC_BOUNDS_NS,
    TOPICS_SHOWN_MAX,
)
from delayd.log import LogOwnership, LogStandby
from delayd.metrics import (
    CONTENT_TYPE,
    OTHER_TOPICS,
    JournalFigures,
    Metrics,
    PushFigures,
    ScheduleFigures,
    SchedulesFigures,
    Sources,
    TurnFigures,
    number_text,
    standby_page,
)
from tests.rigs.engine import EngineRig

ROOT: Final = Path(__file__).parents[1]
OPERATIONS_PAGE: Final = ROOT / "docs" / "operations.md"
DASHBOARD: Final = ROOT / "docs" / "grafana-dashboard.json"
TOLD: Final = (Path(__file__).parent / "metrics.txt").read_text(encoding="utf-8")
START_MS: Final = 1_700_000_000_000

AWKWARD: Final = 'line "a\\b":11300'
OWNERSHIP: Final = LogOwnership(
    *(True, "line here:11300", 7, 4_500, "postgresql://db/jobs", ""),
    (LogStandby("line there:11300", 3, 250), LogStandby(AWKWARD, 0, 40)),
)


EVENTS: Final = {"put": 8, "missed": 3, "skipped": 0, "refused": 1, "late": 2}
SCHEDULES: Final = SchedulesFigures(
    {"active": 1, "paused": 1, "over": 0},
    EVENTS,
    [
        ScheduleFigures("nightly", EVENTS | {"put": 5}, 1_795_287_600.25, "dead"),
        ScheduleFigures("hourly", EVENTS | {"put": 3}),
    ],
)


class Page:
    """Metrics of a rig's engine."""

    def __init__(self, rig: EngineRig, *, is_bare: bool = False) -> None:
        """`is_bare`: without a journal, a database, targets and schedules."""
        self.rig = rig
        self.refusals = Refusals()
        times = (Histogram(SYNC_BOUNDS_NS), Histogram(SYNC_BOUNDS_NS))
        self.journal = JournalFigures(*times, Histogram(BATCH_BOUNDS_RECORDS), 12_345_678, 90_000)
        self.turns = TurnFigures(Histogram(HELD_BOUNDS_NS), 1_500_000)
        took_ms = Histogram(PUSH_BOUNDS_MS)
        for value in (3, 30, 700_000):
            took_ms.note(value)
        self.push = PushFigures(
            {"mail.0": {"delivered": 2, "failed": 1}, OTHER_TOPICS: {"delivered": 0, "failed": 0}},
            4,
            {"closed": 3, "open": 2, "half_open": 1},
            {"url": took_ms},
        )
        self.requests = {"put_job": RequestCounters(), "reserve": RequestCounters()}
        for status in (201, 201, 422):
            self.requests["put_job"].note(status, 3_000_000)
        sources = Sources(
            "1.2.3",
            True,
            lambda: self.journal if not is_bare else None,
            lambda: self.turns,
            lambda: {"line": 17, "http": 4},
            lambda: 2,
            lambda: self.push if not is_bare else None,
            lambda: self.requests,
            lambda: OWNERSHIP if not is_bare else None,
            lambda: SCHEDULES if not is_bare else None,
        )
        self.metrics = Metrics(rig.engine, self.refusals, sources)

    def pieces(self) -> list[bytes]:
        return list(self.metrics.chunks(self.rig.now_ms))

    def text(self) -> str:
        return b"".join(self.pieces()).decode()

    def families(self) -> dict[str, Metric]:
        return families_of(self.text())

    def samples(self) -> "Samples":
        return samples_of(self.text())


Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def families_of(text: str) -> dict[str, Metric]:
    families = list(text_string_to_metric_families(text))
    found = {family.name: family for family in families}
    assert len(found) == len(families), "a family is there twice"
    return found


def samples_of(text: str) -> Samples:
    found: Samples = {}
    for family in families_of(text).values():
        for sample in family.samples:
            key = (sample.name, tuple(sorted(sample.labels.items())))
            assert key not in found, f"{key} is there twice"
            found[key] = sample.value
    return found


def busy_page() -> Page:
    """A page on which every metric is."""
    page = Page(busy_rig())
    page.refusals.note("DRAINING", 3)
    return page


def busy_rig(topics: int = 5) -> EngineRig:
    """A rig in which everything has happened that there is a metric of."""
    rig = EngineRig(time_ms=START_MS)
    for number in range(topics):
        name = f"mail.{number}"
        for _ in range(3):
            rig.put(name)
        rig.put_keyed(b"", topic=name, delay_ms=1_000, own=Own(group=b"acme"))
    rig.run(START_MS + 1_250)
    session = rig.client(*(f"mail.{number}" for number in range(topics)))
    for _ in range(topics):
        rig.reserve(session)
    return rig


def as_prometheus_client_writes(family: Metric) -> str:
    collector: Any = SimpleNamespace(collect=lambda: [family])
    return exposition.generate_latest(collector).decode()


# --- The format ----------------------------------------------------------------------------------


def test_the_page_is_what_prometheus_client_would_write() -> None:
    page = busy_page()
    page.refusals.note("DRAINING", 1_234_567)
    text = page.text()
    assert text == "".join(map(as_prometheus_client_writes, families_of(text).values()))
    assert CONTENT_TYPE == exposition.CONTENT_TYPE_PLAIN_0_0_4


@pytest.mark.parametrize("jobs", [1, 999_999, 1_000_000, 123_456_789])
def test_a_histogram_of_a_topic_is_written_like_prometheus_client_writes_it(jobs: int) -> None:
    rig = EngineRig(time_ms=START_MS)
    rig.put("mail")
    topic = rig.engine.store.topics.by_name["mail"]
    topic.waited = new_histogram()
    topic.waited[0], topic.waited[7], topic.waited[-1] = jobs, jobs, 250 * jobs
    family = metrics_core.HistogramMetricFamily(
        "delayd_ready_to_reserved_seconds",
        "How long jobs were ready until they were reserved.",
        labels=["topic"],
    )
    bounds = [*(str(bound / 1_000) for bound in LATENESS_BOUNDS_MS), "+Inf"]
    buckets = [(bound, jobs if at < 7 else 2 * jobs) for at, bound in enumerate(bounds)]
    family.add_metric(["mail"], buckets, 251 * jobs / 1_000)
    assert as_prometheus_client_writes(family) in Page(rig).text()


def test_names_follow_the_conventions() -> None:
    for family in Page(busy_rig()).families().values():
        if not family.name.startswith("delayd_"):
            continue
        assert family.documentation.endswith(".")
        assert re.fullmatch(r"[a-z][a-z_]*", family.name)
        assert not family.name.endswith(("_ms", "_ns", "_milliseconds", "_count", "_sum"))
        if family.type == "counter":
            assert all(sample.name.endswith("_total") for sample in family.samples)


# --- What it tells -------------------------------------------------------------------------------


def test_what_a_busy_daemon_tells() -> None:
    page = busy_page()
    page.journal.commit_ns.note(1_500_000)
    page.journal.batch_records.note(7)
    page.turns.held_ns.note(300_000)
    lines = page.text().splitlines()
    whole, some = (part.strip().splitlines() for part in re.split("(?m)(?:^#.*\n)+", TOLD)[1:])
    names = {re.split("[ {]", line)[0] for line in whole}
    assert [line for line in lines if re.split("[ {]", line)[0] in names] == whole
    assert {*some} <= {*lines}
    told = re.findall('delayd_operations_total{operation="(.*)"}', page.text())
    assert told == [operation.word for operation in Operation]


def test_of_what_is_not_there_nothing_is_told() -> None:
    of_parts = re.compile("delayd_(journal|snapshot|log|push|schedule)")
    names, bare = (Page(busy_rig(), is_bare=is_bare).families().keys() for is_bare in (False, True))
    assert names - bare == {name for name in names if of_parts.match(name)}


def test_a_standby_tells_its_own_lag_and_no_jobs() -> None:
    ownership = OWNERSHIP._replace(is_owner=False, trouble="no answer")
    text = b"".join(standby_page("1.2.3", ownership, is_compiled=True)).decode()
    families = families_of(text)
    assert families["delayd_log_owner"].samples[0].value == 0
    assert families["delayd_log_reachable"].samples[0].value == 0
    assert "delayd_log_standbys" not in families
    assert "delayd_log_standby_lag_seconds" in families
    assert "process_resident_memory_bytes" in families
    assert "delayd_jobs" not in families


@pytest.mark.thorough
def test_topics_beyond_the_limit_are_told_of_as_one() -> None:
    beyond = 40
    page = Page(busy_rig(TOPICS_SHOWN_MAX + beyond))
    samples = page.samples()
    jobs = {labels: value for (name, labels), value in samples.items() if name == "delayd_jobs"}
    assert len({topic for _, topic in jobs}) == TOPICS_SHOWN_MAX + 1
    assert sum(jobs.values()) == 4 * (TOPICS_SHOWN_MAX + beyond)
    others = ("topic", OTHER_TOPICS)
    # `default` has one of the names
    assert sum(jobs[state, topic] for state, topic in jobs if topic == others) == 4 * (beyond + 1)
    assert samples["delayd_due_to_ready_seconds_count", (others,)] == beyond + 1
    assert ("delayd_ready_to_reserved_seconds_count", (others,)) not in samples
    assert samples["delayd_oldest_ready_age_seconds", (others,)] > 1
    assert samples["delayd_topic_groups", (others,)] == beyond + 1


@pytest.mark.thorough
def test_no_counter_ever_goes_back_when_names_change_hands() -> None:
    rig = busy_rig(TOPICS_SHOWN_MAX + 40)
    page = Page(rig)
    before: Samples = {}
    for round_ in range(3):
        for number in range(8):
            topic = f"mail.{TOPICS_SHOWN_MAX + number + round_}"
            for _ in range(40):
                rig.put(topic, ttr_ms=9_999)
            reserve_batch(rig.engine, rig.client(topic), 5, 1 << 20, rig.now_ms)
        samples = page.samples()
        for key, value in samples.items():
            if key[0].startswith("delayd") and key[0].endswith(("_total", "_count", "_bucket")):
                assert value >= before.get(key, 0), key
        before = samples


# --- Pieces --------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_a_piece_tells_of_a_bounded_number_of_topics() -> None:
    rig = busy_rig(20 * METRICS_STEP_TOPICS)
    pieces = Page(rig).pieces()
    for piece in pieces:
        topics = set(re.findall(rb'topic="(mail[^"]*)"', piece))
        assert len(topics) <= METRICS_STEP_TOPICS
        assert len(piece) < 64 << 10


@pytest.mark.thorough
def test_topics_may_come_and_go_between_pieces() -> None:
    rig = busy_rig(60)
    page = Page(rig)
    text = b""
    for number, piece in enumerate(page.metrics.chunks(rig.now_ms)):
        text += piece
        rig.put(f"new.{number}")
        name = f"mail.{number % 60}"
        if name in rig.engine.store.topics.by_name:
            session = rig.client(name)
            delete_batch(rig.engine, session, rig.reserve_all(session), rig.now_ms)
            close_session(rig.engine, session, rig.now_ms)
    assert samples_of(text.decode())  # which looks for what is there twice


def test_the_process_is_described_as_prometheus_client_describes_it() -> None:
    names = {}
    for collector in (ProcessCollector, PlatformCollector, GCCollector):
        own = registry.CollectorRegistry()
        for family in collector(registry=own).collect():
            names[family.name] = (family.type, family.documentation)
    told = {
        family.name: (family.type, family.documentation)
        for family in Page(busy_rig()).families().values()
        if not family.name.startswith("delayd_")
    }
    assert told == names


def test_the_process_used_the_processor_and_began_as_prometheus_client_says() -> None:
    def told(families: Iterable[Metric]) -> tuple[float, float]:
        values = {family.name: family.samples[0].value for family in families}
        return values["process_cpu_seconds"], values["process_start_time_seconds"]

    collector = ProcessCollector(registry=registry.CollectorRegistry())
    before_s, begun_s = told(collector.collect())
    used_s, own_begun_s = told(Page(busy_rig()).families().values())
    assert before_s <= used_s <= told(collector.collect())[0]
    assert own_begun_s == begun_s


@pytest.mark.parametrize("value", [0, 1, 17, 0.25, 999_999, 1_000_000, 1_234_567.5, 1e21, 2**63])
def test_numbers_are_written_like_prometheus_client_writes_them(value: float) -> None:
    assert number_text(value) == floatToGoString(value)  # type: ignore[no-untyped-call]


# --- Documents -----------------------------------------------------------------------------------


def described() -> dict[str, tuple[str, set[str]]]:
    """Of each family, as people know it, the type and the labels."""
    return {
        family.name + "_total" * (family.type == "counter"): (
            family.type,
            {label for sample in family.samples for label in sample.labels} - {"le"},
        )
        for family in busy_page().families().values()
        if family.name.startswith("delayd_")
    }


def test_the_page_about_running_lists_all_metrics_and_no_others() -> None:
    rows = re.findall(
        r"^\| `(delayd_\w+)(\{[^`]*\})?` \| (\w+) \|", OPERATIONS_PAGE.read_text(), re.MULTILINE
    )
    assert {name: (kind, {*re.findall(r"\w+", told)}) for name, told, kind in rows} == described()


def test_the_dashboard_asks_for_nothing_that_is_not_told() -> None:
    told = {name for name, _ in busy_page().samples()}
    queries = re.findall(r'"(?:expr|query|definition)": "(.*)"', DASHBOARD.read_text())
    asked = {*re.findall(r"\b(?:delayd|process|python)_\w+", "\n".join(queries))}
    assert asked <= told, asked - told
    families = {re.sub(r"_(bucket|count|sum)$", "", name) for name in asked}
    assert described().keys() <= families, "the dashboard does not show it"


def test_the_dashboard_lets_people_choose_their_source() -> None:
    dashboard = json.loads(DASHBOARD.read_text())
    variables = {variable["name"]: variable for variable in dashboard["templating"]["list"]}
    assert variables["datasource"]["type"] == "datasource"
    assert variables["datasource"]["query"] == "prometheus"
    panels = [panel for panel in dashboard["panels"] if panel["type"] != "row"]
    assert panels
    for panel in panels:
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        assert panel["targets"]
        assert panel["fieldConfig"]["defaults"]["unit"]
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
