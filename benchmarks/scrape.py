"""What a scrape of many topics costs: the chapter `scrape`.

So many topics with some jobs each, ready, delayed and in hand, in a process for each reading and
without a journal. A reading is several scrapes:

    longest           the longest that one piece of the page held the loop, which turns between
                      pieces. It is to stay below 5 ms
    processor time    the same by the time of the processor: what remains of it on a machine that
                      does nothing else
    p50               of the time of the whole page

A tenth of the topics shows that what costs is to count them, not to tell of them. Beside it is one
page by prometheus-client's own `generate_latest`, in one piece, of the topics that have a name. The
garbage collector is set up as in the daemon.
"""

import functools
import gc
from collections.abc import Callable, Iterator, Sequence
from time import perf_counter, process_time
from typing import TYPE_CHECKING, Final

from benchmarks.alone import in_a_process
from benchmarks.registry import Bench, Case, Values
from benchmarks.table import percentile
from delayd.core.engine import Engine
from delayd.core.operations.put import put_alike
from delayd.core.operations.reserve import reserve
from delayd.core.operations.sessions import open_session, watch
from delayd.core.operations.tick import advance
from delayd.core.stats.histogram import Histogram
from delayd.core.stats.refusals import Refusals
from delayd.core.times import PlayedMs, RequestMs
from delayd.limits import (
    BATCH_BOUNDS_RECORDS,
    GC_YOUNG_OBJECTS,
    HELD_BOUNDS_NS,
    SYNC_BOUNDS_NS,
)
from delayd.metrics import JournalFigures, Metrics, Sources, TurnFigures

if TYPE_CHECKING:
    from prometheus_client.core import Metric

START_MS: Final = 1_700_000_000_000
BODY: Final = b"x" * 100
TOPICS: Final = (1_000, 10_000)
SCRAPES: Final = 20
WARM_UP: Final = 2
OURS: Final = "delayd"
WHOLE: Final = "prometheus-client, in one piece"


def crowded(topics: int) -> Engine:
    """Make an engine with so many topics, in all of which something has happened."""
    engine = Engine(start_ms=START_MS)
    for number in range(topics):
        topic = engine.store.topic(f"customer-{number:06}.mail")
        put_alike(engine, topic, 0, 0, 60_000, [BODY] * 3, RequestMs(START_MS))
        for delay_ms in (1_000, 86_400_000):
            put_alike(engine, topic, 0, delay_ms, 60_000, [BODY], RequestMs(START_MS))
        engine.take_log()
    while advance(engine, PlayedMs(START_MS + 1_000 + topics // 1_000)):
        pass
    for topic in list(engine.store.topics.listing):
        if topic.queues.ready:
            session = open_session(engine)
            watch(engine, session, topic.name)
            reserve(engine, session, RequestMs(START_MS + 2_000))
            engine.take_log()
    return engine


def metrics_of(engine: Engine) -> Metrics:
    """Return its metrics, with a journal that says something."""
    syncs = Histogram(SYNC_BOUNDS_NS)
    journal = JournalFigures(syncs, syncs, Histogram(BATCH_BOUNDS_RECORDS), 1 << 20, 1_000)
    sources = Sources(
        version="0",
        is_compiled=False,
        journal=lambda: journal,
        turns=lambda: TurnFigures(Histogram(HELD_BOUNDS_NS), 0),
        connections=lambda: {"line": 1, "http": 1},
        watchdog_repairs=int,
    )
    return Metrics(engine, Refusals(), sources)


class Rewritten:
    """A page as a registry, to be written by prometheus-client in one go."""

    def __init__(self, text: str) -> None:
        """Take the page apart."""
        from prometheus_client.parser import text_string_to_metric_families  # noqa: PLC0415

        self._families = list(text_string_to_metric_families(text))

    def collect(self) -> "Iterator[Metric]":
        """Yield its families."""
        yield from self._families


def scrape(pieces: Callable[[], Iterator[bytes]]) -> tuple[list[float], float, bytes]:
    """Take all pieces; return how long each took and the most work of one, in ms, and the page."""
    times_ms = []
    worst_work_ms = 0.0
    page: list[bytes] = []
    coming = pieces()
    while True:
        start, start_work = perf_counter(), process_time()
        piece = next(coming, None)
        worst_work_ms = max(worst_work_ms, (process_time() - start_work) * 1e3)
        times_ms.append((perf_counter() - start) * 1e3)
        if piece is None:
            return times_ms, worst_work_ms, b"".join(page)
        page.append(piece)


def measured(subject: str, topics: int) -> Values:
    """Scrape several times."""
    gc.disable()
    metrics = metrics_of(crowded(topics))
    gc.freeze()
    gc.set_threshold(GC_YOUNG_OBJECTS)
    gc.enable()

    def pieces() -> Iterator[bytes]:
        return metrics.chunks(START_MS + 3_000)

    if subject == WHOLE:
        from prometheus_client.exposition import generate_latest  # noqa: PLC0415

        page = Rewritten(scrape(pieces)[2].decode())
        pieces = lambda: map(generate_latest, (page,))  # noqa: E731 - made when `scrape` asks for it
    taken = [scrape(pieces) for _ in range(SCRAPES + WARM_UP)][WARM_UP:]
    return {
        "p50_ms": percentile([sum(times_ms) for times_ms, _, _ in taken], 50),
        "worst_ms": max(max(times_ms) for times_ms, _, _ in taken),
        "cpu_ms": max(work_ms for _, work_ms, _ in taken),
    }


def reading(subject: str, topics: int, bench: Bench) -> Values:
    """Measure in a new process."""
    return in_a_process(measured, subject, bench.entries(topics))


def cases() -> Sequence[Case]:
    """Return the chapter."""
    return [
        Case(
            chapter="scrape",
            operation="scrape",
            size={"topics": topics},
            subject=subject,
            measure=functools.partial(reading, subject, topics),
        )
        for topics in TOPICS
        for subject in (OURS, WHOLE)
    ]
