"""An outbox in SQLite, a daemon in memory, and relays that can be killed wherever they wait.

A relay waits at its *calls*: transactions of the table and requests to the daemon. At one of them,
counted from 1, something may happen:

    before      it is killed, and the call is not carried out
    after       it is killed, and the call was carried out; its answer is lost
    late        it is killed, and the call to the daemon is carried out when `deliver` says so
    overtaken   it stands still until another relay has done all there is to do, and goes on

A worker reserves and acknowledges whatever is ready after each request, so that no key and no job
is left of what was put.
"""

# ruff: noqa: ANN401 - options and requests go on as they are

import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

from delayd import outbox
from delayd.client import Client
from delayd.client.addresses import DEFAULT_URL, read_address
from delayd.client.http1 import HttpWire
from delayd.client.http_calls import HttpCalls
from delayd.client.steps import Steps, answered_by, carried_out
from delayd.outbox.permits import Permits
from delayd.outbox.relay import Relay
from delayd.outbox.sqlite import SqliteOutbox
from delayd.outbox.stop import StopSignal
from delayd.outbox.table import Run, Table
from delayd.testing import FakeDelayd

T = TypeVar("T")
TOPICS: Final = ("mail", "sms")
KILLS: Final = ("before", "after", "late")


class Killed(BaseException):
    """The relay was killed here."""


class Fate:
    """What happens at which of a relay's calls."""

    def __init__(self, at: int = 0, how: str = "", then: Callable[[], None] = lambda: None) -> None:
        self._at, self.how, self._then = at, how, then
        self.calls = 0

    def comes(self) -> str:
        """Count a call; return what happens at it."""
        self.calls += 1
        if self.calls != self._at:
            return ""
        if self.how in {"overtaken", "deliver"}:
            self._then()
        return self.how


class Requests:
    """Carries out the requests of a client, as its fate has it."""

    def __init__(self, rig: "OutboxRig", fate: Fate) -> None:
        self._rig, self._fate = rig, fate

    def run(self, steps: Steps[T]) -> T:
        return carried_out(answered_by(steps, self._exchange))

    def _exchange(self, ask: Any) -> Any:
        how = self._fate.comes()
        if how == "late":
            self._rig.late.append(ask)
        if how in {"before", "late"}:
            raise Killed
        answer = self._rig.answer(ask)
        if how == "after":
            raise Killed
        return answer

    def close(self) -> None:
        """Hold nothing."""


class FatefulDatabase(SqliteOutbox):
    """The file; `late` is `before` here: what a killed client has sent it carries out or not."""

    def __init__(self, path: str, fate: Fate) -> None:
        super().__init__(path)
        self._fate = fate

    @contextmanager
    def transaction(self) -> Iterator[Run]:
        how = self._fate.comes()
        if how in {"before", "late"}:
            raise Killed
        with super().transaction() as run:
            yield run
        if how == "after":
            raise Killed


class OutboxRig:
    """What stays when relays come and go."""

    def __init__(self, directory: Path) -> None:
        self.path = str(directory / "app.db")
        self.connection = sqlite3.connect(self.path)
        self.connection.execute("PRAGMA synchronous = OFF")
        self.connection.executescript(outbox.schema("sqlite"))
        self.fake = FakeDelayd()
        self.client = self.fake.client()
        self._wire = HttpWire(read_address(DEFAULT_URL), "")
        self.late: list[Any] = []
        self.worked: Counter[str] = Counter()
        """How often a worker has had each body."""
        self.order: list[str] = []
        self.told: list[dict[str, Any]] = []
        """Lines of the log."""
        self.now_s = 0.0
        self.stop = StopSignal()
        self._tables: list[Table] = []

    def close(self) -> None:
        self.stop.__exit__()
        for table in self._tables:
            table.database.close()
        self.fake.close()
        self.connection.close()

    # --- The application -------------------------------------------------------------------------

    def commits(self, *rows: tuple[str, str], **options: Any) -> None:
        """Commit rows of topic and body in one transaction."""
        with self.connection:
            for topic, body in rows:
                outbox.put(self.connection.cursor(), topic, body, **options)

    def sql(self, statement: str, *values: object) -> None:
        """Do to the table as any program may."""
        with self.connection:
            self.connection.execute(statement, values)

    def rows(self, what: str = "count(*)") -> Any:
        """What the table has."""
        return self.connection.execute(f"SELECT {what} FROM delayd_outbox").fetchone()[0]  # noqa: S608

    # --- The daemon ------------------------------------------------------------------------------

    def answer(self, ask: Any) -> Any:
        answer = self.fake.answer(self._wire, ask)
        self.work()
        return answer

    def deliver(self) -> None:
        """Have what killed relays had sent arrive now."""
        late, self.late = self.late, []
        for ask in late:
            self.answer(ask)

    def work(self) -> None:
        """Reserve and acknowledge all that is ready."""
        while jobs := self.client.reserve_many(TOPICS, limit=100, timeout=0):
            for job in jobs:
                job.ack()
                self.worked[job.text] += 1
                self.order.append(job.text)

    def info(self, event: str, **fields: Any) -> None:
        self.told.append({"event": event, **fields})

    warning = info

    # --- Relays ----------------------------------------------------------------------------------

    def relay(self, fate: Fate | None = None, token: str = "") -> Relay:
        fate = fate or Fate()
        client = self.fake.client(token=token) if token else self._client(fate)
        table = Table(FatefulDatabase(self.path, fate))
        self._tables.append(table)
        clock = lambda: self.now_s  # noqa: E731
        return Relay(table, Permits(client, "outbox"), self.stop, self, clock)

    def started(self) -> Relay:
        relay = self.relay()
        relay.start()
        return relay

    def _client(self, fate: Fate) -> Client:
        requests: Any = Requests(self, fate)
        return Client.over(requests, HttpCalls(lambda _wait: (0.0,)))

    def relays(self, fate: Fate | None = None) -> Fate:
        """Have a relay do all there is to do, or as much as its fate lets it; return that."""
        fate = fate or Fate()
        relay = self.relay(fate)
        try:
            relay.start()
            while relay.step():
                pass
        except Killed:
            pass
        finally:
            self._tables.pop().database.close()
        return fate
