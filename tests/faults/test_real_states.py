"""T-P7: every state in which a power cut may leave what a real daemon did to its directory."""

import copy
import random
from pathlib import Path
from typing import Final

from delayd.core.job_parts import body_of
from delayd.exits import Exit
from delayd.journal.journal import Journal
from tests.faults.conftest import Runs
from tests.faults.disk import some_survive
from tests.faults.real_daemon import Tracing, started, wait_for_tracer
from tests.faults.real_load import PatientClient
from tests.faults.real_replay import CALLS, DIRECTORY, FLAGS, Answers, Mirror, done_in
from tests.rigs.disk import SimulatedDisk
from tests.rigs.engine import played

SEGMENT_BYTES: Final = 16 << 10
PACKETS: Final = 200


def talk(client: PatientClient, rng: random.Random) -> list[dict[int, bytes]]:
    """Put and delete, some in one piece; the log goes through many files and some snapshots.

    Return the jobs that there are after so many commands.
    """
    states: list[dict[int, bytes]] = [{}]
    last_id = 0
    for _ in range(PACKETS):
        pieces = []
        for _ in range(rng.choice((1, 1, 2, 5))):
            jobs = dict(states[-1])
            if jobs and rng.random() < 0.55:
                job_id = rng.choice([*jobs])
                del jobs[job_id]
                pieces.append(b"delete %d\r\n" % job_id)
            else:
                last_id += 1
                body = b"%d %b" % (last_id, rng.randbytes(rng.choice((10, 900, 6_000))))
                jobs[last_id] = body
                pieces.append(b"put 0 3600 60 %d\r\n%b\r\n" % (len(body), body))
            states.append(jobs)
        client.send(b"".join(pieces))
        for _ in pieces:
            assert client.reply().startswith((b"INSERTED ", b"DELETED"))
    return states


def recovered(disk: SimulatedDisk) -> dict[int, bytes]:
    """Start on the disk, and return the bodies of the jobs by their ids."""
    journal = Journal.open(DIRECTORY, disk=disk, segment_bytes=SEGMENT_BYTES)
    try:
        replay = played(journal.replay())
    finally:
        journal.close()
    if replay is None:
        return {}
    return {job_id: body_of(record) for job_id, record in replay.engine.store.jobs}


def test_p7_every_state_that_a_power_cut_may_leave(quick_path: Path, runs: Runs) -> None:
    """T-P7: the calls of a real daemon are done again on a disk that forgets, up to each of them.

    Whatever survives of what was not synced: all that was answered is there, nothing of what came
    later than the rest, and a second recovery finds the same.
    """
    home, trace = quick_path / DIRECTORY, quick_path / "trace"
    tracing = Tracing(trace, ",".join(CALLS), flags=FLAGS)
    with started(home, segment_bytes=str(SEGMENT_BYTES), tracing=tracing) as daemon:
        with PatientClient(daemon.address) as client:
            states = talk(client, random.Random("what is said"))
        assert daemon.stop() == Exit.OK
        assert "a snapshot was taken" in daemon.log()
    mirror, answers = Mirror(str(home)), Answers()
    rng = random.Random("what survives")
    crashes = 0
    for done in done_in(wait_for_tracer(trace)):
        is_ours = mirror.take(done)
        if not is_ours:
            answers.take(done)
            continue
        if not runs.is_long and rng.random() > 0.15:
            continue
        choices = [None, lambda _piece: True, *(some_survive(rng) for _ in range(runs.times(1, 6)))]
        for choice in choices:
            disk = copy.deepcopy(mirror.disk)
            disk.crash(choice)
            found = recovered(disk)
            assert found in states[answers.count :], f"after {done.name}({done.arguments[:200]})"
            disk.crash()
            assert recovered(disk) == found
            crashes += 1
    assert mirror.disk.list_directory(DIRECTORY)
    assert answers.count == len(states) - 1
    runs.count("T-P7", crashes, "crash states")
