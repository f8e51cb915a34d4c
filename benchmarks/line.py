"""Measure the line protocol: `python -m benchmarks.line`, which is `make bench-line`.

Runs the rows one after the other, delayd and its peer in turn within each (A B A B …), and prints
the table with medians, spreads, ratios and targets as it grows. benchmarks/README.md says what each
row means.

Leaves with 0 when every row was measured, met or not: a benchmark reports, it does not judge. A row
whose server failed is reported and makes the exit status 1.
"""

import argparse
import gc
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks import round_trips
from benchmarks.arguments import length, positive
from benchmarks.load import ServerSilentError, UnexpectedReplyError
from benchmarks.peers import DELAYD, ServerFailedError, Stable, delayd_command
from benchmarks.plan import Plan, Reading, Row
from benchmarks.rows import ROWS
from benchmarks.table import Outcome, number_words, render

RUNS: Final = 5
JOBS: Final = 1_000_000
SECONDS: Final = 2.0
DIRECTORY: Final = Path("/var/tmp")  # noqa: S108 - a real disk almost everywhere, unlike /tmp
SYNC_SAMPLES: Final = 100
BLOCK: Final = bytes(4096)
ROUND_TRIPS: Final = 0
"""The number of the rows with one command in flight, which are measured and printed first."""


class Measured(NamedTuple):
    """A row and its readings."""

    row: Row
    commands: tuple[str, str]
    ours: list[Reading]
    peers: list[Reading]

    def outcomes(self) -> list[Outcome]:
        """Return one outcome for each measure of the row."""
        return [
            Outcome(
                measure,
                [reading.values[place] for reading in self.ours],
                [reading.values[place] for reading in self.peers],
            )
            for place, measure in enumerate(self.row.measures)
        ]


def row_numbers(words: str) -> list[int]:
    """Parse `1,4`, `1-3,8` or `0`; raises `ArgumentTypeError` for anything else."""
    known = {ROUND_TRIPS, *(row.number for row in ROWS)}
    numbers: list[int] = []
    for word in words.split(","):
        first, dash, last = word.partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise argparse.ArgumentTypeError(f"{word!r} is not a row or a range of rows")
        numbers.extend(range(int(first), int(last or first) + 1))
    if not set(numbers) <= known:
        raise argparse.ArgumentTypeError(f"the rows are {min(known)} to {max(known)}")
    return numbers


def counts(words: str) -> list[int]:
    """Parse `1,8,50`: whole numbers of at least 1."""
    return [positive(word) for word in words.split(",")]


def parse(words: Sequence[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.line",
        description="Measure delayd's line protocol beside beanstalkd's.",
        epilog="Commands are templates: {port}, {dir}, and for delayd {bin} and {sync}.",
    )
    parser.add_argument(
        "--rows",
        type=row_numbers,
        help="which rows, as 1,4 or 1-3,8; 0 is one command in flight (all)",
    )
    parser.add_argument(
        "--connections",
        type=counts,
        default=list(round_trips.CONNECTIONS),
        help="of the rows with one command in flight (1,8,50,200)",
    )
    parser.add_argument(
        "--runs", type=positive, default=RUNS, help=f"readings of each side ({RUNS})"
    )
    parser.add_argument("--jobs", type=positive, default=JOBS, help=f"standing jobs ({JOBS:,})")
    parser.add_argument(
        "--seconds", type=length, default=SECONDS, help=f"length of a rate's reading ({SECONDS:g})"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write everything here")
    parser.add_argument(
        "--dir", type=Path, default=DIRECTORY, help=f"where the logs are written ({DIRECTORY})"
    )
    parser.add_argument(
        "--pin", action="store_true", help="servers on the first processor, generator on the others"
    )
    parser.add_argument("--delayd-command", default=DELAYD, help=f"({DELAYD.replace('%', '%%')})")
    parser.add_argument("--peer-command", help="instead of the peer each row names")
    return parser.parse_args(words)


def fdatasync_ms(stable: Stable) -> float:
    """Return the median time of a synced 4 KiB append on the disk that is measured."""
    with stable.directory() as directory:
        descriptor = os.open(directory / "sync", os.O_WRONLY | os.O_CREAT)
        samples: list[float] = []
        try:
            for _ in range(SYNC_SAMPLES):
                started = time.perf_counter()
                os.write(descriptor, BLOCK)
                os.fdatasync(descriptor)
                samples.append(time.perf_counter() - started)
        finally:
            os.close(descriptor)
    return statistics.median(samples) * 1e3


def peer_version() -> str:
    """Return what beanstalkd calls itself; raises `ServerFailedError` if there is none."""
    try:
        answer = subprocess.run(["beanstalkd", "-v"], capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise ServerFailedError("beanstalkd is not installed") from error
    return answer.stdout.strip()


def machine(stable: Stable) -> dict[str, str]:
    """Describe what the figures depend on."""
    return {
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "processors": str(os.cpu_count()),
        "python": platform.python_version(),
        "peer": peer_version(),
        "load average before": f"{os.getloadavg()[0]:.2f}",
        "synced 4 KiB append": f"{fdatasync_ms(stable):.3f} ms",
    }


def contestant_command(who: round_trips.Contestant, options: argparse.Namespace) -> str:
    """Return the command of a server of the rows with one command in flight."""
    if who.sync:
        return delayd_command(options.delayd_command, who.sync)
    return str(options.peer_command or who.command)


def measure(row: Row, plan: Plan, options: argparse.Namespace) -> Measured:
    """Take the readings of a row, alternating between the two servers."""
    ours_command = delayd_command(options.delayd_command, row.sync)
    peer_command = options.peer_command or row.peer
    if row.peer_session is not None:  # delayd against itself
        peer_command = ours_command
    measured = Measured(row, (ours_command, peer_command), [], [])
    with (
        closing(row.session(plan, ours_command)) as ours,
        closing((row.peer_session or row.session)(plan, peer_command)) as peers,
    ):
        for _ in range(min(options.runs, row.runs_max)):
            measured.ours.append(next(ours))
            measured.peers.append(next(peers))
            gc.collect()
    return measured


def notes_words(who: str, readings: Sequence[Reading]) -> str:
    """Write the medians of the figures that explain a row."""
    names = readings[0].notes
    medians = {
        name: statistics.median(reading.notes[name] for reading in readings) for name in names
    }
    return f"    {who}: " + ", ".join(
        f"{name} {number_words(value)}" for name, value in medians.items()
    )


def as_json(measured: Measured) -> dict[str, object]:
    """Return everything about a row."""
    return {
        "row": measured.row.number,
        "commands": measured.commands,
        "measures": [
            {
                "name": outcome.measure.name,
                "unit": outcome.measure.unit,
                "ours": outcome.ours,
                "peer": outcome.peers,
                "ratios": outcome.ratios,
                "target": [outcome.measure.target.bound.name, outcome.measure.target.figure],
                "met": outcome.verdict,
            }
            for outcome in measured.outcomes()
        ],
        "notes_ours": [reading.notes for reading in measured.ours],
        "notes_peer": [reading.notes for reading in measured.peers],
    }


def main(words: Sequence[str]) -> int:
    """Measure the rows that were asked for and print the table."""
    options = parse(words)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # ends the servers too
    gc.disable()  # a collection in the generator would look like a stall of the server
    processors = sorted(os.sched_getaffinity(0))
    server_cpus: frozenset[int] | None = None
    if options.pin and len(processors) > 1:
        server_cpus = frozenset(processors[:1])
        os.sched_setaffinity(0, processors[1:])
    plan = Plan(Stable(options.dir, server_cpus), options.jobs, options.seconds)
    about = machine(plan.stable)
    print("\n".join(f"{name}: {value}" for name, value in about.items()), flush=True)
    failures = 0
    groups: list[round_trips.Group] = []
    if options.rows is None or ROUND_TRIPS in options.rows:
        try:
            for group in round_trips.measure(
                plan,
                options.runs,
                options.connections,
                lambda who: contestant_command(who, options),
            ):
                groups.append(group)
                print(f"row {ROUND_TRIPS}: {group.name}: done", flush=True)
        except (ServerFailedError, ServerSilentError, UnexpectedReplyError, OSError) as error:
            failures += 1
            print(f"    not measured: {error}", flush=True)
        if groups:
            print("\n" + round_trips.tables(groups) + "\n", flush=True)
    done: list[Measured] = []
    for row in ROWS:
        if options.rows is not None and row.number not in options.rows:
            continue
        print(f"row {row.number}: {', '.join(m.name for m in row.measures)}", flush=True)
        try:
            measured = measure(row, plan, options)
        except (ServerFailedError, ServerSilentError, UnexpectedReplyError, OSError) as error:
            failures += 1
            print(f"    not measured: {error}", flush=True)
            continue
        done.append(measured)
        print(notes_words("delayd", measured.ours))
        print(notes_words("peer", measured.peers), flush=True)
    print()
    if done:
        print(render([o.cells(m.row.number) for m in done for o in m.outcomes()]))
    if options.json is not None:
        report = {
            "machine": about,
            "round_trips": [round_trips.as_json(group) for group in groups],
            "rows": [as_json(measured) for measured in done],
        }
        options.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
