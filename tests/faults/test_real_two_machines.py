"""T-H: two daemons, a database with a synchronous standby, and what befalls each of them.

A course is a log of its own, two machines, and rounds: clients work, something happens, a daemon
hands out a job again, clients go on, and then everything is looked at. What clients saw goes into
one record over all owners of the log, and the checker of all fault tests reads it: acknowledged is
kept, nothing early, one holder at a time, keys unique, nothing deleted returns. Beside it, clients
were never given a job more often than it counts itself: no attempt was handed out by two owners.
"""

import contextlib
import random
import shutil
import signal
import socket
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Final

import psycopg
import pytest

from delayd.exits import Exit
from delayd.postgres.statements import Statements
from tests.faults.conftest import COUNTS_KEY, Runs
from tests.faults.real_daemon import need_root
from tests.faults.real_disk import small_disk
from tests.faults.real_load import GONE, PatientClient, Record, Worker, drain, load, look
from tests.faults.real_machines import Machine, Machines, machines
from tests.faults.real_network import DOWN, UP, Network, network
from tests.faults.test_real_clock import WallClock
from tests.line_client import LineClient
from tests.postgres_server import USER, PostgresPair, PostgresServer, postgres_pair, postgres_server
from tests.rigs.waiting import until

LEASE_S: Final = 1.0
TAKEOVER_S_MAX: Final = LEASE_S + 2.0
BUSY_S: Final = 30.0
"""In the everyday run others work beside it, and nothing is judged by its speed."""

PIECE_BYTES: Final = 32 << 10

SMALL: Final = {"database": "jobs", "segment_bytes": "256KiB"}
"""A log on a small disk: a snapshot for every 32 KiB."""

ROUNDS_PER_LOG: Final = 6
WELL: Final = (Exit.OK, Exit.FENCED, -signal.SIGKILL)
"""How daemons may end here."""

Fault = Callable[["Course"], AbstractContextManager[None]]


Takeovers = defaultdict[str, list[float]]
"""How many seconds each of them took, by what had happened."""


class Course:
    """A log, its machines, and what clients saw of it."""

    def __init__(
        self,
        cluster: Machines,
        rng: random.Random,
        runs: Runs,
        takeovers: Takeovers,
        pair: PostgresPair | None = None,
    ) -> None:
        """Start all machines at once: one of them serves."""
        self.cluster, self.rng = cluster, rng
        self._pair = pair
        self.record = Record()
        self.how = "kill"
        """How the owner ends in this round, as histories name it."""
        self.begun_s = 0.0
        """Since when nothing is handed out in this round."""
        self._runs, self._takeovers = runs, takeovers
        for name in cluster.all:
            cluster.launch(name)
        for machine in cluster.all.values():
            until(partial(cluster.is_up, machine), seen=machine.output)
        self.owner = cluster.owner()
        assert sum("ready: " in each.output() for each in cluster.all.values()) == 1
        self.record.note("started")

    @property
    def pair(self) -> PostgresPair:
        """The servers of the log, where faults befall them."""
        assert self._pair is not None
        return self._pair

    @property
    def machine(self) -> Machine:
        return self.cluster.all[self.owner]

    def client(self) -> PatientClient:
        return PatientClient(self.machine.address)

    # --- A round ---------------------------------------------------------------------------------

    def play(self, kind: str, fault: Fault) -> None:
        """Let this happen while clients work, and look at what it did."""
        rng, record = self.rng, self.record
        before = record.acknowledged
        self.how = "kill"
        self._settle()
        self.cluster.put_probe(self.owner)
        old = self.machine
        with ExitStack() as clients, ExitStack() as trouble:
            crew = clients.enter_context(self._load())
            time.sleep(rng.uniform(0.02, 0.12))
            self.begun_s = time.monotonic()
            trouble.enter_context(fault(self))
            served = self.cluster.served_again()
            took_s = served.at_s - self.begun_s
            if served.name != self.owner:
                self._judge_takeover(kind, took_s)
                self._hand_over(clients, crew, served.name)
                crew = clients.enter_context(self._load())
            trouble.close()
            assert self.machine is old or old.code() in WELL, old.output()
            time.sleep(rng.uniform(0.02, 0.12))
        self._look()
        record.check(f"after {kind}")
        assert not (twice := record.handed_out_twice()), (kind, twice[:5])
        self.cluster.start_ended(WELL)
        self._runs.count(kind, 1, "rounds")
        acknowledged = record.acknowledged - before
        self._runs.count(kind, acknowledged, "answers with an acknowledgement")

    def _load(self) -> AbstractContextManager[list[Worker]]:
        address = self.cluster.address(self.owner)
        return load(address, self.record, str(self.rng.random()), has_keys=True)

    def _judge_takeover(self, kind: str, took_s: float) -> None:
        self._takeovers[kind].append(took_s)
        most_s = TAKEOVER_S_MAX + (0.0 if self._runs.is_long else BUSY_S)
        assert took_s < most_s or kind not in JUDGED, (
            f"{kind} at {time.time() % 1_000:.2f}: {took_s:.2f} s\n{self.machine.output()}"
        )

    def _hand_over(self, clients: ExitStack, crew: Sequence[Worker], to: str) -> None:
        """Note that another daemon serves: nothing that the old one has not answered counts."""
        for worker in crew:
            with contextlib.suppress(OSError):
                worker.client.socket.shutdown(socket.SHUT_RDWR)
        clients.close()
        self.record.note("stopped", how=self.how)
        self.owner = to
        self.record.note("started")

    def _look(self) -> None:
        """Look at all jobs, at the daemon that serves by now."""
        while True:
            self._settle()
            with contextlib.suppress(*GONE), self.client() as client:
                look(client, self.record)
                return

    def _settle(self) -> None:
        """See that all is as it was believed: a machine that is busy may have lost its lease."""
        owner = self.cluster.owner()
        if owner != self.owner:
            self.record.note("stopped", how="kill")
            self.owner = owner
            self.record.note("started")

    def end(self) -> None:
        """Take what is due, and look at the rest."""
        self._look()
        time.sleep(0.3)  # longer than all delays but those of an hour
        self._settle()
        with self.client() as client:
            drain(client, self.record)
        self.record.note("drained")
        self.record.check("in the end")


# --- What happens to the owner -------------------------------------------------------------------


@contextmanager
def killed(course: Course) -> Iterator[None]:
    """T-H1: at any moment."""
    course.machine.signal(signal.SIGKILL)
    yield


@contextmanager
def killed_at_a_statement(course: Course) -> Iterator[None]:
    """T-H1: before a statement has reached the database, or before its answer is there."""
    machine, direction = course.machine, course.rng.choice((UP, DOWN))
    for link in machine.links:
        link.watch(direction, partial(machine.signal, signal.SIGKILL))
    machine.code()
    yield
    for link in machine.links:
        link.heal()


def paused(leases: float) -> Fault:
    """T-H2: shorter than a lease, it goes on as if nothing was."""

    @contextmanager
    def briefly(course: Course) -> Iterator[None]:
        machine = course.machine
        machine.signal(signal.SIGSTOP)
        time.sleep(leases * LEASE_S)
        machine.signal(signal.SIGCONT)
        yield

    @contextmanager
    def long(course: Course) -> Iterator[None]:
        """Another one serves: it answers nothing that came meanwhile, and ends."""
        machine = course.machine
        with LineClient(machine.address) as late:
            machine.signal(signal.SIGSTOP)
            paused_s = time.monotonic()
            late.send(b"put 0 0 60 4\r\nlate\r\nreserve-with-timeout 0\r\nlist-tubes\r\n")
            yield
            time.sleep(max(0.0, paused_s + leases * LEASE_S - time.monotonic()))
            machine.signal(signal.SIGCONT)
            assert late.rest() == b"", "a daemon whose lease was over has answered"
            assert machine.code() == Exit.FENCED

    return long if leases > 1 else briefly


@contextmanager
def stopped(course: Course) -> Iterator[None]:
    """T-H7: a graceful stop hands over at once: the gap begins when its clients are closed."""
    course.how = "stop"
    with LineClient(course.machine.address) as client:
        course.machine.signal(signal.SIGTERM)
        assert client.rest() == b""
    course.begun_s = time.monotonic()
    assert course.machine.code() == Exit.OK
    yield


# --- What happens between it and the database ----------------------------------------------------


def cut(*directions: str, leases: float, drop: bool = False) -> Fault:
    @contextmanager
    def fault(course: Course) -> Iterator[None]:
        """T-H3: nothing passes for a while, and then it goes on, or the connection ends."""
        links, ends_s = course.machine.links, time.monotonic() + leases * LEASE_S
        for link in links:
            link.block(*directions)
        if leases >= 1:
            yield
        time.sleep(max(0.0, ends_s - time.monotonic()))
        for link in links:
            link.heal(drop=drop)
        if leases < 1:
            yield

    return fault


@contextmanager
def delayed(course: Course) -> Iterator[None]:
    """T-H3: each piece takes a part of a lease, both ways."""
    links = course.machine.links
    for link in links:
        link.delay_s = course.rng.uniform(0.01, 0.2) * LEASE_S
    time.sleep(LEASE_S / 2)
    yield
    for link in links:
        link.heal()


@contextmanager
def cut_in_answers(course: Course) -> Iterator[None]:
    """T-H3: in the middle of an answer, several times."""
    for _ in range(4):
        for link in course.machine.links:
            link.cut_in_answer()
        time.sleep(course.rng.uniform(0.0, 0.3))
    for link in course.machine.links:
        link.heal()
    yield


# --- What happens to the database ----------------------------------------------------------------


@contextmanager
def database_killed(course: Course) -> Iterator[None]:
    """T-H4: kill -9 of all of it, and a restart."""
    course.pair.primary.kill()
    course.pair.primary.start()
    yield


@contextmanager
def database_stopped(course: Course) -> Iterator[None]:
    """T-H4: an immediate shutdown, and a restart."""
    course.pair.primary.stop()
    course.pair.primary.start()
    yield


@contextmanager
def failed_over(course: Course) -> Iterator[None]:
    """T-H4: the primary dies, and its synchronous standby is promoted."""
    dead = [
        link
        for machine in course.cluster.all.values()
        for link in machine.links
        if link.to_port == course.pair.primary.port
    ]
    for link in dead:
        link.refuse()
    course.pair.fail_over()
    yield
    course.pair.rebuild()
    for link in dead:
        link.listen()


@contextmanager
def connections_exhausted(course: Course) -> Iterator[None]:
    """T-H4: the daemons lose their connections, and others have taken all that there are."""
    with ExitStack() as stack:
        primary = course.pair.primary
        asking = stack.enter_context(psycopg.connect(primary.url, autocommit=True))
        with contextlib.suppress(psycopg.OperationalError):
            while True:
                stack.enter_context(psycopg.connect(primary.url))
        asking.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE application_name = 'delayd'"
        )
        with contextlib.suppress(psycopg.OperationalError):
            for _ in range(2):
                stack.enter_context(psycopg.connect(primary.url))
        time.sleep(course.rng.uniform(0.3, 1.5) * LEASE_S)
    yield


@contextmanager
def settings_reloaded(course: Course) -> Iterator[None]:
    """T-H4: a reload switches fsync off: the server is used only once it is on again."""
    primary = course.pair.primary
    primary.set(fsync="off")
    for machine in course.cluster.all.values():
        for link in machine.links:
            link.drop()
    time.sleep(course.rng.uniform(0.3, 1.5) * LEASE_S)
    assert "fsync = off" in course.machine.output()
    primary.set(fsync="")
    yield


FAULTS: Final[dict[str, Fault]] = {
    "T-H1 kill -9": killed,
    "T-H1 kill -9 at a statement": killed_at_a_statement,
    "T-H2 paused for 0.5 leases": paused(0.5),
    "T-H2 paused for 1 lease": paused(1),
    "T-H2 paused for 2 leases": paused(2),
    "T-H2 paused for 4 leases": paused(4),
    "T-H3 delayed": delayed,
    "T-H3 cut to the database": cut(UP, leases=0.5),
    "T-H3 cut from the database": cut(DOWN, leases=0.5, drop=True),
    "T-H3 cut both ways": cut(UP, DOWN, leases=2),
    "T-H3 cut both ways for good": cut(UP, DOWN, leases=2, drop=True),
    "T-H3 cut from the database for good": cut(DOWN, leases=2, drop=True),
    "T-H3 closed in an answer": cut_in_answers,
    "T-H7 graceful stop": stopped,
    "T-H4 database killed": database_killed,
    "T-H4 database stopped": database_stopped,
    "T-H4 failed over": failed_over,
    "T-H4 connections exhausted": connections_exhausted,
    "T-H4 settings reloaded": settings_reloaded,
}
"""What may happen, by what the table calls it."""
JUDGED: Final = frozenset(each for each in FAULTS if each[:4] in {"T-H1", "T-H2", "T-H7"})
"""In which the takeover has to be in time: the others keep the database away, too."""

SHORT: Final = ("T-H1 kill -9 at a statement", "T-H2 paused for 2 leases", "T-H4 failed over")


# --- The tests -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pair() -> Iterator[PostgresPair]:
    with postgres_pair() as running:
        yield running


@pytest.fixture(scope="module")
def net() -> Iterator[Network]:
    with network() as running:
        yield running


@pytest.fixture(scope="module")
def takeovers(pytestconfig: pytest.Config) -> Iterator[Takeovers]:
    """Put them into the table in the end."""
    made = Takeovers(list)
    yield made
    counts = pytestconfig.stash[COUNTS_KEY]
    for kind, took_s in made.items():
        counts[kind, "takeovers"] += len(took_s)
        counts[kind, "takeover, median, ms"] = round(1_000 * statistics.median(took_s))
        counts[kind, "takeover, longest, ms"] = round(1_000 * max(took_s))


def test_h_two_machines_through_faults(
    pair: PostgresPair, net: Network, takeovers: Takeovers, runs: Runs
) -> None:
    """T-H1 to T-H4, T-H7: rounds of all kinds, one after the other, on one log and then another."""
    for rng in runs.rng("T-H courses", 1, 50):
        kinds = [*SHORT]
        if runs.is_long:
            kinds = [rng.choice([*FAULTS]) for _ in range(ROUNDS_PER_LOG)]
        names = rng.choice(("ab", "ab", "abc")) if runs.is_long else "ab"
        with machines(pair.servers, net, lease_s=LEASE_S, names=names) as cluster:
            course = Course(cluster, rng, runs, takeovers, pair)
            for kind in kinds:
                course.play(kind, FAULTS[kind])
            course.end()


@pytest.mark.long
def test_h6_clocks_that_differ_by_an_hour_and_a_year_and_one_that_is_set(
    net: Network, takeovers: Takeovers, runs: Runs
) -> None:
    """T-H6: those of the machines are ahead and behind, and that of the database jumps."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        wall = WallClock(Path(name))

        @contextmanager
        def set_and_killed(course: Course) -> Iterator[None]:
            wall.set(course.rng.choice(("+3600", "-3600", "+0", "+31536000")))
            course.machine.signal(signal.SIGKILL)
            yield

        for rng in runs.rng("T-H6", 1, 6):
            wall.set("+0")
            with (
                postgres_server(environment=wall.environment) as server,
                machines((server,), net, lease_s=LEASE_S) as cluster,
            ):
                for machine, shift in zip(cluster.all.values(), ("-1y", "+1h"), strict=True):
                    machine.environment = wall.environment | {"FAKETIME": shift}
                    del machine.environment["FAKETIME_TIMESTAMP_FILE"]
                course = Course(cluster, rng, runs, takeovers)
                for _ in range(ROUNDS_PER_LOG if runs.is_long else 1):
                    course.play("T-H6 killed, with clocks that differ", set_and_killed)
                course.end()


def test_h4_jobs_of_a_full_database_are_removed_and_puts_are_refused(
    net: Network, runs: Runs
) -> None:
    """T-H4: until there is space again; what was acknowledged is there on the other machine."""
    for _ in runs.rng("T-H4 full database", 1, 5):
        with (
            full_disk() as (server, disk),
            machines((server,), net, lease_s=LEASE_S, **SMALL) as cluster,
        ):
            owner = cluster.start("a")
            until(partial(has_reserve, server))
            kept = fill_and_remove(owner, disk)
            other = cluster.start("b")
            owner.signal(signal.SIGTERM)
            until(partial(serves, other), seen=other.output)
            with PatientClient(other.address) as client:
                stats = client.stats()
                assert (stats["current-jobs-delayed"], stats["current-jobs-ready"]) == ("1", "1")
                assert client.ask(f"delete {kept[0]}") == "DELETED"
                assert client.ask("cancel-jobs default") == "CANCELLED 1"
        runs.count("T-H4 full database", len(kept) - 1, "jobs removed")


def serves(machine: Machine) -> bool:
    return "ready: " in machine.output()


def has_reserve(server: PostgresServer) -> bool:
    return server.ask(Statements(f"log_{server.logs}").has_reserve) == "1"


def fill_and_remove(owner: Machine, disk: Path) -> list[int]:
    """Put, fill the disk, delete all of these jobs but the first, and have space again.

    Every second one is handed out before. No new session can begin on the full disk: a VACUUM of
    catalogues deletes the file that PostgreSQL has to write then, too.
    """
    put, body = "put 0 0 60", random.Random(1).randbytes(2_000)
    ballast = disk / "ballast"
    with PatientClient(owner.address) as client:
        kept = [client.put(body, delay=3_600), *(client.put(body) for _ in range(50))]
        for _ in range(2):  # a snapshot may begin a session in between
            for written in disk.rglob("pg_internal.init"):
                written.unlink()
            with contextlib.suppress(OSError), ballast.open("ab", buffering=0) as file:
                while file.write(b"x" * PIECE_BYTES):
                    pass
        while (reply := client.ask(put, body)).startswith("INSERTED"):
            kept.append(int(reply.split()[1]))
        assert reply == "OUT_OF_MEMORY"
        for number, job_id in enumerate(kept[1:]):
            if number % 2:
                assert client.ask(f"reserve-job {job_id}").startswith(f"RESERVED {job_id} ")
            assert client.ask(f"delete {job_id}") == "DELETED"
        assert client.ask("reserve-with-timeout 0") == "TIMED_OUT"
        assert client.ask(put, body) == "OUT_OF_MEMORY"
        ballast.unlink()
        until(lambda: client.ask(put, body).startswith("INSERTED"))
    return kept


@contextmanager
def full_disk() -> Iterator[tuple[PostgresServer, Path]]:
    """A server whose database `jobs` is on a small file system."""
    need_root()
    with tempfile.TemporaryDirectory() as name, postgres_server() as server:
        Path(name).chmod(0o755)
        with small_disk(Path(name), "size=24m") as disk:
            (disk / "jobs").mkdir()
            shutil.chown(disk / "jobs", USER)
            server.ask(f"CREATE TABLESPACE small LOCATION '{disk / 'jobs'}'")
            server.ask("CREATE DATABASE jobs TABLESPACE small")
            server.url = f"{server.url.removesuffix('postgres')}jobs"
            yield server, disk
            server.stop()
