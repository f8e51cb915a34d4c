"""Each server of the benchmarks does each operation once, with little of everything."""

import itertools
from collections.abc import Container, Iterator
from pathlib import Path
from typing import Final

import pytest

from benchmarks import growth, two_machines
from benchmarks.processes import OwnServer
from benchmarks.registry import EFFORTS, Bench, NotMeasuredError, Selection, cases_of
from benchmarks.runner import faults
from benchmarks.servers import operations
from benchmarks.servers.account import JobAccount
from benchmarks.servers.cases import peers
from benchmarks.servers.generator import Load
from benchmarks.servers.operations import OPERATIONS, Reading
from benchmarks.servers.peer import Peer
from tests.rigs import fork_server

JOBS_MAX = 100_000
WRITTEN_S = 0.7
"""A kill keeps what was only written: PostgreSQL writes what it did not wait for 0.6 s later."""
LOAD = Load(connections=2, in_flight=3, body_bytes=16_384)
FILL = Load(connections=2, in_flight=20)
"""Each connection to PostgreSQL is a process, and all servers are filled three times."""
LEASE_S = 1


def program_of(peer: Peer) -> str:
    """`RabbitMQ`: what runs; a chapter starts some of them once for all of their peers."""
    return peer.subject.partition(",")[0]


NEIGHBOURS = (  # `all of it` is each that needs no configuration
    *("all of it", "patterns", "dead pipeliners", "empty lines", "idempotency keys"),
    *("answers 32 x 8 TLS", "redis nested 1 x 128"),
)
PROGRAMS = {name: list(each) for name, each in itertools.groupby(peers(), key=program_of)}


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    monkeypatch.setattr(OwnServer, "start_process", staticmethod(fork_server.start))
    made = Bench(EFFORTS["tiny"], tmp_path)
    yield made
    made.close()


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_server_does_every_operation_and_nothing_is_lost_doubled_or_early(
    program: str, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operations, "LAST_SYNC_S", WRITTEN_S)
    monkeypatch.setattr(operations, "FILL", FILL)
    peers_of_it = PROGRAMS[program]
    reasons = []
    for place, peer in enumerate(peers_of_it):
        home = bench.directory / str(place)
        home.mkdir()
        # A node of RabbitMQ takes ten seconds to start: it recovers once.
        skipped = {"recovery"} if program == "RabbitMQ" and peer is not peers_of_it[-1] else set()
        try:
            do_every_operation(peer, bench, home, skipped)
        except NotMeasuredError as reason:
            reasons.append(str(reason))
    if len(reasons) == len(peers_of_it):
        pytest.skip(reasons[0])


def do_every_operation(peer: Peer, bench: Bench, home: Path, skipped: Container[str]) -> None:
    impossible = []
    with peer.serve(bench, home) as running:
        for place, (name, operation) in enumerate(OPERATIONS.items()):  # recovery is the last
            account = JobAccount(first=place * JOBS_MAX)
            if name in skipped:
                continue
            try:
                values = operation(Reading(peer, running, LOAD, bench, account))
            except NotMeasuredError:
                impossible.append(name)
            else:
                assert not faults(values), f"{peer.subject}, {peer.policy}, {name}: {values}"
    assert impossible in ([], ["keyed put"])


def measure_each(chapter: str, choices: list[list[str]], bench: Bench) -> None:
    chosen = []
    for words in choices:
        found = [*filter(Selection.of(words).has, cases_of(chapter))]
        assert found, words
        chosen += found
    try:
        for case in chosen:
            values = case.measure(bench)
            assert values
            assert not faults(values)
    except NotMeasuredError as reason:
        pytest.skip(str(reason))


@pytest.mark.parametrize(
    ("chapter", "words"),
    [
        ("http", ["connections=8", "subject=delayd, on disk before", "subject=aiohttp"]),
        ("http", ["reserve + ack", "subject=delayd, on disk before"]),
        ("http", ["put over the line", "subject=delayd, http idle"]),
        ("outbox", ["subject=sqlite"]),
        ("groups", ["500 webhooks of fifty customers", "subject=fair"]),
        ("celery", ["due", "subject=delayd"]),
        ("client", ["put many"]),
        ("client", ["work", "at once=8"]),
        ("client", ["reserve + ack", "callers=1"]),
        ("push", ["deliver", "calls at once=8"]),
        ("push", ["a host that hangs", "a topic that fails", "its jobs=10000", "its jobs=200"]),
        ("push", ["deliver steadily", "put", "reserve + ack", "deliveries a second=200"]),
        ("neighbours", [f"beside={name}" for name in NEIGHBOURS]),
        # Delays of beanstalkd are whole seconds, and Redis is polled.
        ("lateness", ["due one by one", "workers=1", "subject=beanstalkd"]),
        ("lateness", ["steady load", "standing jobs=1000000", "load=50 %", "subject=redis, tuned"]),
    ],
)
def test_a_case_that_needs_a_server_can_be_measured(
    chapter: str, words: list[str], bench: Bench
) -> None:
    measure_each(chapter, [words], bench)


def test_two_machines_can_be_measured(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(two_machines, "ONE", Load(connections=2, in_flight=1))
    monkeypatch.setattr(two_machines, "MANY", FILL)
    monkeypatch.setattr(two_machines, "LEASE_S", LEASE_S)
    choices = [  # one pair of servers for all of them
        ["put", "reserve + ack", "in flight=1", "subject=log in postgresql", "subject=pgbench"],
        ["put", "in flight=1", "subject=log in files"],
        ["one INSERT"],
        ["log of a job", "subject=log in postgresql"],
        ["log of a job", "subject=pgbench", "body=JSON"],  # a row in SQL is the same with each
        ["takeover", "standing jobs=50"],
    ]
    measure_each("two_machines", choices, bench)


SAID_OF: Final = {
    **dict.fromkeys(("burst", "during a snapshot", "snapshot"), "held_ms"),
    **dict.fromkeys(("restart", "restart from a snapshot"), "recovery_s"),
}
"""What is said of these operations, and not of the others."""


@pytest.mark.parametrize(
    ("chapter", "subject"), [("lateness", "delayd"), ("growth", "delayd"), ("growth", "beanstalkd")]
)
def test_the_first_case_of_each_operation_is_measured_and_nothing_is_lost_doubled_or_early(
    chapter: str, subject: str, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(growth, "SETTLE_S", 0)
    monkeypatch.setattr(growth, "LAST_SYNC_S", 0)  # a kill keeps what was only written
    monkeypatch.setenv("DELAYD_JOURNAL_SEGMENT_BYTES", "1MiB")  # a snapshot is soon due
    first = {
        case.operation: case for case in reversed(cases_of(chapter)) if case.subject == subject
    }
    refused = {}
    for operation, case in reversed(first.items()):
        try:
            values = case.measure(bench)
        except NotMeasuredError as error:
            refused[operation] = str(error)
            continue
        assert not faults(values), case.name
        assert chapter != "lateness" or "lost" in values  # no job may be due in so short a time
        said = {"held_ms", "recovery_s"} & values.keys()
        assert said == ({SAID_OF[operation]} if operation in SAID_OF else set()), case.name
    if {*refused.values()} == {f"{subject} is not installed"}:
        pytest.skip(f"{subject} is not installed")
    refused.pop("burst", None)  # a busy machine may be too late for it
    assert {*refused.values()} <= {"it takes no snapshots"}
