"""Each server of the benchmarks does each operation once, with little of everything."""

from pathlib import Path

import pytest

from benchmarks.registry import EFFORTS, Bench, NotMeasuredError, Selection, cases_of
from benchmarks.runner import faults
from benchmarks.servers import operations
from benchmarks.servers.account import JobAccount
from benchmarks.servers.cases import peers
from benchmarks.servers.generator import Load
from benchmarks.servers.operations import OPERATIONS, Reading
from benchmarks.servers.peer import Peer

JOBS_MAX = 100_000
LOAD = Load(connections=2, in_flight=3, body_bytes=16_384)


@pytest.mark.parametrize("peer", peers(), ids=lambda peer: f"{peer.subject}, {peer.policy}")
def test_a_server_does_every_operation_and_nothing_is_lost_doubled_or_early(
    peer: Peer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operations, "LAST_SYNC_S", 0)  # a kill keeps what was only written
    bench = Bench(EFFORTS["tiny"], tmp_path)
    impossible = []
    try:
        with peer.serve(bench, tmp_path) as running:
            for place, (name, operation) in enumerate(OPERATIONS.items()):  # recovery is the last
                account = JobAccount(first=place * JOBS_MAX)
                try:
                    values = operation(Reading(peer, running, LOAD, bench, account))
                except NotMeasuredError:
                    impossible.append(name)
                else:
                    assert not faults(values), f"{name}: {values}"
    except NotMeasuredError as reason:
        pytest.skip(str(reason))
    assert impossible in ([], ["keyed put"])


@pytest.mark.parametrize(
    ("chapter", "words"),
    [
        ("outbox", ["subject=sqlite"]),
        ("groups", ["500 webhooks of fifty customers", "subject=fair"]),
        ("celery", ["due", "subject=delayd"]),
    ],
)
def test_a_case_that_needs_a_daemon_can_be_measured(
    chapter: str, words: list[str], tmp_path: Path
) -> None:
    selection = Selection.of(words)
    bench = Bench(EFFORTS["tiny"], tmp_path)
    try:
        for case in filter(selection.has, cases_of(chapter)):
            values = case.measure(bench)
            assert values
            assert not faults(values)
    except NotMeasuredError as reason:
        pytest.skip(str(reason))
    finally:
        bench.close()
