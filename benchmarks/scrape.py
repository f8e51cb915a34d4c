"""What a scrape of many topics costs: `python -m benchmarks.scrape`.

`--topics` topics (10,000) with some jobs each, ready, delayed and in hand, in one process and
without a journal. Each row is the median of `--runs` scrapes (20), the worst of the pieces is the
worst of all runs:

    pieces    into which the page is cut; the loop turns between them
    worst     the longest that one piece held the loop, in ms. It must stay below 5
    work      the same by the time of the processor: what remains of `worst` on an idle machine
    ms        the whole page
    kB        its length
    series    its lines that are no comments

A row for a tenth of the topics is there to show that what costs is to count them, not to tell of
them. The last row is one page by prometheus-client's own `generate_latest`, in one piece, of the
topics that have a name. The garbage collector is set up as in the daemon; a machine that does
something else meanwhile shows in `worst` first.
"""

import argparse
import gc
import statistics
from collections.abc import Callable, Iterator
from time import perf_counter, process_time
from typing import TYPE_CHECKING

from benchmarks.arguments import positive
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

START_MS = 1_700_000_000_000
TARGET_MS = 5.0
BODY = b"x" * 100


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


def row(name: str, pieces: Callable[[], Iterator[bytes]], runs: int) -> tuple[str, bytes]:
    """Measure one row; return it, and the last page."""
    taken = [scrape(pieces) for _ in range(runs + 2)][2:]
    worst_ms = max(max(times_ms) for times_ms, _, _ in taken)
    work_ms = max(work_ms for _, work_ms, _ in taken)
    whole_ms = statistics.median(sum(times_ms) for times_ms, _, _ in taken)
    page = taken[-1][2]
    series = sum(line[:1] not in {b"#", b""} for line in page.splitlines())
    figures = f"{len(taken[-1][0]):>8}{worst_ms:>8.2f}{work_ms:>8.2f}{whole_ms:>8.1f}"
    verdict = "" if work_ms < TARGET_MS else f"  above {TARGET_MS} ms"
    return f"{name:<28}{figures}{len(page) / 1_000:>8.0f}{series:>8}{verdict}", page


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--topics", type=positive, default=10_000, help="how many (%(default)s)")
    parser.add_argument("--runs", type=positive, default=20, help="scrapes of each (%(default)s)")
    given = parser.parse_args()
    heads = "".join(f"{head:>8}" for head in ("pieces", "worst", "work", "ms", "kB", "series"))
    print(f"{'':<28}{heads}")
    page = b""
    for topics in (given.topics // 10, given.topics):
        gc.disable()
        metrics = metrics_of(crowded(topics))
        gc.freeze()
        gc.set_threshold(GC_YOUNG_OBJECTS)
        gc.enable()
        text, page = row(
            f"{topics:,} topics",
            lambda metrics=metrics: metrics.chunks(START_MS + 3_000),  # type: ignore[misc]
            given.runs,
        )
        print(text, flush=True)
    from prometheus_client.exposition import generate_latest  # noqa: PLC0415

    registry = Rewritten(page.decode())

    def whole() -> Iterator[bytes]:
        yield generate_latest(registry)

    print(row("the same in one piece", whole, given.runs)[0])


if __name__ == "__main__":
    main()
