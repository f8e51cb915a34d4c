"""A mix of everything for minutes or hours: `python -m benchmarks.soak --minutes 60`.

One daemon in plain Python, with a load that comes to stand: workers over both protocols that
delete, release, nack, bury, and let ttrs run out; keyed puts, reschedules and cancels; timed jobs;
batches with empty lines; idempotency keys; listings and bulk cancels; readers that are slow; pushes
to a receiver that takes them, while it refuses those of another topic. And what
`--hostile` names (`all`, or some of them): `receivers` of pushes that never end
(`benchmarks.receivers`), plain and with TLS; `pipeliners` that vanish; topics that are hard to tell
from `patterns`; `empty_lines`, 200,000 in one body. Those take all that the daemon has: beside them
there is no half of a peak, and how late jobs are says how the daemon shares its time.
`--restarts S` kills the daemon every S seconds and starts it again on the same directory.

A stream of jobs that are due a second later makes up most of the load: the peak of such a stream
beside all the others is found first, and then half of it is offered, by an open loop, for all the
time (`benchmarks.soak_stream`). With restarts, which break connections, a few timed jobs take its
place.

With `--results FOLDER` the samples are kept in `soak.jsonl`, as the readings of a case for each
minute.

Every ten seconds it reads the daemon's resident memory, descriptors, jobs and bytes of log, how
late timed jobs were, and how long a neighbour waited for a put. The table has the medians of the
samples of each line, but the longest of what is called longest. The verdict:

    memory, descriptors, lateness (p99),  flat, by the rule of `benchmarks.accounts`; a sample in
    put (p99)                             which nothing was answered is not
    early                                 no timed job and no push came before its time
    lost, doubled                         each put that was acknowledged ended exactly once, and
                                          each job for the good receiver arrived
    troubles                              no answer was unexpected, no connection broke; with
                                          restarts, broken connections do not count

It exits with 1 if any of it does not hold. The daemon, its clients and the receivers share the
machine's processors: absolute times mean little beside hostile receivers, that they rise does.
"""

import argparse
import contextlib
import datetime as dt
import math
import multiprocessing
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks import actors, machine, results, soak_stream
from benchmarks.accounts import DESCRIPTORS, MEMORY, TIMES, Totals, added
from benchmarks.actors import Closed, Noted
from benchmarks.arguments import length, names_of
from benchmarks.endpoint import Endpoint, push_settings, send_to
from benchmarks.neighbours import KINDS, PATTERN
from benchmarks.processes import descriptors, held_bytes
from benchmarks.receivers import hostile, loopback_certificate, trusting
from benchmarks.registry import Case, Durability, Values
from benchmarks.servers.delayd import RunningDelayd, running
from benchmarks.table import percentile, render

SAMPLE_S: Final = 10.0
MIB: Final = 1 << 20
LINES: Final = 10
PLACES: Final = 2
"""Hostile receivers of each kind, plain and with TLS."""
CALLS: Final = 8
STOP_S_MAX: Final = 3 * actors.DRAIN_S
ARRIVED_S_MAX: Final = 60.0
"""A call that a kill cut off is made again after its timeout, 5 s, and a step of the ladder."""
HEADINGS: Final = (
    *("minute", "MiB", "fds", "late p50", "p99", "longest ms", "put p99", "longest ms"),
    *("jobs", "log MiB"),
)
NAN: Final = float("nan")


class Sample(NamedTuple):
    """What was read at one moment; of times, what was noted since the last. In MiB and ms."""

    minute: float
    memory: float
    descriptors: float
    late_p50: float
    late_p99: float
    late_longest: float
    put_p99: float
    put_longest: float
    jobs: float
    """The daemon was asked; as in the others NaN is: it did not answer."""
    log: float


LONGEST: Final = ("late_longest", "put_longest")


@dataclass(slots=True)
class Course:
    """All that a soak has noted."""

    samples: list[Sample] = field(default_factory=list)
    troubles: Counter[str] = field(default_factory=Counter)
    timed: int = 0
    early: int = 0
    totals: Totals = field(default_factory=Totals)
    pushes: int = 0
    """Acknowledged puts of jobs for the good receiver."""
    arrived: int = 0
    rate: float = 0.0
    """Jobs a second that the stream offers: half of its peak; 0 if there is none."""

    @property
    def lost(self) -> int:
        """Jobs that were not finished, and those of the good receiver that did not arrive."""
        return self.totals.lost + max(0, self.pushes - self.arrived)

    def surplus(self, *, with_restarts: bool) -> int:
        """Return how many pushes came more than once; after a restart one may be repeated."""
        return 0 if with_restarts else max(0, self.arrived - self.pushes)

    def note(self, noted: Sequence[Noted]) -> tuple[list[float], list[float]]:
        """Add what parts have noted; return the lateness of jobs and the waits of puts."""
        late_ms = [ms for one in noted for ms in one.late_ms]
        for one in noted:
            self.troubles += one.troubles
        self.timed += len(late_ms)
        self.early += sum(ms < 0 for ms in late_ms)
        return late_ms, [ms for one in noted for ms in one.waits_ms]


Keep = Callable[[Course, Values], None]
"""What takes the values of a sample, and those of the end."""


# --- What runs -----------------------------------------------------------------------------------


class Part:
    """A process with some of the clients, or with the stream."""

    def __init__(self, target: Callable[..., None], *what: object) -> None:
        self.pipe, theirs = multiprocessing.Pipe()
        arguments = (theirs, *what)
        self._process = multiprocessing.Process(target=target, args=arguments, daemon=True)
        self._process.start()
        theirs.close()

    def take(self) -> Noted:
        """Return what was noted since the last time."""
        self.pipe.send("sample")
        noted: Noted = self.pipe.recv()
        return noted

    def close(self) -> None:
        """End it at once."""
        self._process.kill()
        self._process.join()


@contextlib.contextmanager
def grounds(
    endpoint: Endpoint, seconds: float, names: Sequence[str]
) -> Iterator[tuple[RunningDelayd, int]]:
    """Start a daemon whose topics have their receivers; tell how many of them are hostile."""
    with contextlib.ExitStack() as stack:
        trusted, called = None, []
        config = f'[topics."{PATTERN}"]\nretry = "1s"\n' if "patterns" in names else ""
        if "receivers" in names:
            trusted = stack.enter_context(loopback_certificate())
            for kind, certificate in product(KINDS, (None, trusted)):
                receivers = hostile(kind, places=PLACES, seconds=seconds, certificate=certificate)
                called.append(stack.enter_context(receivers))
        ports = [port for receivers in called for port in receivers.ports]
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-soak-"))
        settings = config + push_settings([endpoint.port, *ports])
        started = running(Path(directory), config=settings, environment=trusting(trusted))
        daemon = stack.enter_context(started)
        send_to(daemon.port, actors.PUSHED, endpoint.url())
        send_to(daemon.port, actors.FAILING, endpoint.url("/failing"))
        urls = [url for receivers in called for url in receivers.urls()]
        for number, url in enumerate(urls):
            send_to(daemon.port, f"hostile-{number}", url, concurrency=CALLS)
        yield daemon, len(urls)


def sample(daemon: RunningDelayd, parts: Sequence[Part], course: Course, began_s: float) -> Sample:
    """Read all figures."""
    late_ms, waits_ms = course.note([part.take() for part in parts])
    jobs = log = NAN
    try:
        jobs, log = daemon.standing(), daemon.log_bytes() / MIB
    except OSError as error:
        course.troubles[f"sample: {type(error).__name__}"] += 1
    minute = (time.monotonic() - began_s) / 60
    held = (held_bytes(daemon.pid) / MIB, descriptors(daemon.pid))
    late = (share(late_ms, 50), share(late_ms, 99), share(late_ms, 100))
    return Sample(minute, *held, *late, share(waits_ms, 99), share(waits_ms, 100), jobs, log)


def share(times_ms: Sequence[float], percent: float) -> float:
    """Return the percentile; NaN for no times."""
    return percentile(times_ms, percent) if times_ms else NAN


def follow(
    course: Course,
    daemon: RunningDelayd,
    parts: Sequence[Part],
    seconds: float,
    restarts_s: float,
    keep: Keep,
) -> None:
    """Take samples until the time is over, and kill the daemon now and then."""
    began_s = time.monotonic()
    restart_s = began_s + restarts_s if restarts_s else float("inf")
    next_s = began_s + SAMPLE_S
    while time.monotonic() < began_s + seconds:
        time.sleep(max(0.0, min(next_s, restart_s) - time.monotonic()))
        if time.monotonic() >= restart_s:
            restart_s += restarts_s
            daemon.restart()
            continue
        next_s += SAMPLE_S
        course.samples.append(sample(daemon, parts, course, began_s))
        print(shown(course.samples[-1:]), file=sys.stderr, flush=True)
        keep(course, reading(course.samples[-1], course.rate))


def close_parts(parts: Sequence[Part], course: Course) -> None:
    """Stop the clients, let the workers finish, and add up what became of the jobs."""
    closed: list[Closed] = []
    for part in parts:
        part.pipe.send("stop")
    ends_s = time.monotonic() + STOP_S_MAX
    for part in parts:
        if part.pipe.poll(max(0.0, ends_s - time.monotonic())):
            closed.append(part.pipe.recv())
        else:
            course.troubles["a part that did not stop"] += 1
    course.note([one.noted for one in closed])
    course.totals = added([one.totals for one in closed])
    course.pushes = sum(one.pushed for one in closed)


def wait_for_pushes(endpoint: Endpoint, course: Course) -> None:
    """Wait until each job for the good receiver has arrived, and see whether one was early."""
    ends_s = time.monotonic() + ARRIVED_S_MAX
    while endpoint.count() < course.pushes and time.monotonic() < ends_s:
        time.sleep(0.1)
    report = endpoint.report()
    course.arrived = report.requests
    course.early += sum(ms < 0 for ms in report.lateness_ms)


def soak(minutes: float, restarts_s: float, names: Sequence[str], keep: Keep) -> Course:
    """Do it all; end what was started. `keep` is called after each sample."""
    seconds = 60 * minutes
    course = Course()
    with contextlib.ExitStack() as stack:
        endpoint = Endpoint()
        stack.callback(endpoint.close)
        whole_s = seconds + STOP_S_MAX + ARRIVED_S_MAX
        daemon, count = stack.enter_context(grounds(endpoint, whole_s, names))
        ports = {"line": daemon.port, "http": daemon.http_port, "hostile": count}
        crowd = (*actors.ORDINARY, *(actors.HOSTILE[name] for name in names))
        played = [actors.NEIGHBOUR, crowd, *([actors.TIMED] if restarts_s else [])]
        parts = [Part(actors.part, what, ports) for what in played]
        for part in parts:
            stack.callback(part.close)
        if not restarts_s:
            stream = Part(soak_stream.part, ports["line"])
            stack.callback(stream.close)
            parts.append(stream)
            course.rate = stream.pipe.recv()
            for part in parts:
                course.note([part.take()])  # what was meanwhile is no sample
        follow(course, daemon, parts, seconds, restarts_s, keep)
        close_parts(parts, course)
        wait_for_pushes(endpoint, course)
    keep(course, ends(course, with_restarts=bool(restarts_s)))
    return course


# --- What is told --------------------------------------------------------------------------------


def middle(samples: Sequence[Sample]) -> Sample:
    """Return the medians, but the longest of what is longest."""
    return Sample(
        *(
            typical(figures, max if name in LONGEST else statistics.median)
            for name, figures in zip(Sample._fields, zip(*samples, strict=True), strict=True)
        )
    )


def typical(figures: Sequence[float], of: Callable[[Sequence[float]], float]) -> float:
    """Return what stands for those that are figures; NaN if none is."""
    known = [figure for figure in figures if not math.isnan(figure)]
    return of(known) if known else NAN


def shown(samples: Sequence[Sample], headings: Sequence[str] | None = None) -> str:
    """Lay samples out as lines, with headings as a table."""
    lines = [["-" if math.isnan(figure) else f"{figure:,.1f}" for figure in one] for one in samples]
    return render(lines, headings) if headings else "  ".join(lines[0])


def tenths(samples: Sequence[Sample]) -> list[Sample]:
    """Return at most so many lines, of as many samples each as can be."""
    size = -(-len(samples) // LINES) or 1
    return [middle(samples[first : first + size]) for first in range(0, len(samples), size)]


def findings(course: Course, *, with_restarts: bool) -> list[tuple[bool, str]]:
    """Return what holds and what does not, in words."""
    found = []
    figures = {
        "memory": (MEMORY, [one.memory * MIB for one in course.samples], MIB),
        "descriptors": (DESCRIPTORS, [one.descriptors for one in course.samples], 1),
        "lateness": (TIMES, [one.late_p99 for one in course.samples], 1),
        "put": (TIMES, [one.put_p99 for one in course.samples], 1),
    }
    for name, (flatness, values, unit) in figures.items():
        known = [value for value in values if not math.isnan(value)]
        trend = flatness.trend(known, len(values))
        rose, most = trend.rose / unit, trend.at_most / unit
        said = f"{name} rose by {rose:.1f}, at most {most:.1f} is flat"
        said += f"; {trend.missing} samples have none" * bool(trend.missing)
        found.append((trend.is_flat, said))
    totals, lost = course.totals, course.lost
    surplus = course.surplus(with_restarts=with_restarts)
    troubles = troubles_of(course, with_restarts=with_restarts)
    timed = f"{course.early} of {course.timed:,} timed jobs and {course.arrived:,} pushes early"
    jobs = f"of {totals.acknowledged + course.pushes:,} jobs {lost} lost"
    return [
        *found,
        (course.early == 0 and course.timed > 0, timed),
        (lost == 0, jobs),
        (totals.doubled + surplus == 0, f"{totals.doubled} doubled, {surplus} pushes repeated"),
        (not troubles, f"troubles: {troubles or 'none'}"),
    ]


def troubles_of(course: Course, *, with_restarts: bool) -> dict[str, int]:
    """Return what went wrong; with restarts, broken connections do not count."""
    return {
        what: count
        for what, count in course.troubles.items()
        if not with_restarts or "unexpected" in what
    }


def reading(one: Sample, rate: float) -> Values:
    """Return what is kept of a sample, by names of the registry; nothing for what was not read."""
    found = {
        "rate": rate,
        "p50_ms": one.late_p50,
        "p99_ms": one.late_p99,
        "worst_ms": one.late_longest,
        "put_p99_ms": one.put_p99,
        "held_ms": one.put_longest,
        "memory_bytes": one.memory * MIB,
        "disk_bytes": one.log * MIB,
        "descriptors": one.descriptors,
        "jobs": one.jobs,
    }
    return {name: figure for name, figure in found.items() if not math.isnan(figure)}


def ends(course: Course, *, with_restarts: bool) -> Values:
    """Return what has to be 0 in the end."""
    return {
        "lost": course.lost,
        "doubled": course.totals.doubled + course.surplus(with_restarts=with_restarts),
        "early": course.early,
        "troubles": sum(troubles_of(course, with_restarts=with_restarts).values()),
    }


def forget(_: Course, __: Values) -> None:
    """Keep nothing."""


@contextlib.contextmanager
def kept_in(folder: Path, settings: str) -> Iterator[Keep]:
    """Give what writes values to `soak.jsonl`: a reading of the case of the newest minute."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "soak.jsonl").open("w", encoding="utf-8") as file:
        at = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
        described = machine.describe(Path(tempfile.gettempdir()))
        writer = results.Writer(file, described, {"at": at, "effort": "full"})

        def keep(course: Course, values: Values) -> None:
            if not course.samples:
                return
            case = Case(
                chapter="soak",
                operation="half of the peak" if course.rate else "restarts",
                size={"minute": int(course.samples[-1].minute)},
                subject="delayd",
                measure=lambda _: {},
                policy=Durability.BEFORE_ANSWER,
                settings=settings,
            )
            writer.reading(case, values)

        yield keep


def main() -> None:
    """Print the table and the verdict."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=length, default=60.0, help="(%(default)s)")
    chosen = names_of((*actors.HOSTILE, "all", "none"))
    everything = ",".join(actors.HOSTILE)
    parser.add_argument(
        "--hostile", type=chosen, default="none", help=f"all, or some of {everything} (%(default)s)"
    )
    parser.add_argument("--restarts", type=float, default=0.0, help="kill it every S seconds")
    parser.add_argument("--results", type=Path, metavar="FOLDER", help="keep soak.jsonl there")
    options = parser.parse_args()
    names = [name for name in actors.HOSTILE if {name, "all"} & set(options.hostile)]
    words = f"--minutes {options.minutes:g} --hostile {','.join(names) or 'none'}"
    words += f" --restarts {options.restarts:g}" * bool(options.restarts)
    with contextlib.ExitStack() as stack:
        keep = stack.enter_context(kept_in(options.results, words)) if options.results else forget
        course = soak(options.minutes, options.restarts, names, keep)
    print(shown(tenths(course.samples), HEADINGS))
    verdict = findings(course, with_restarts=bool(options.restarts))
    for is_right, said in verdict:
        print(f"{'yes' if is_right else 'NO':<5}{said}")
    sys.exit(0 if all(is_right for is_right, _ in verdict) else 1)


if __name__ == "__main__":
    main()
