"""Exactly one job for each row, whatever is killed when, and however late a request arrives.

A row's own key would not do: once a worker has acknowledged the job its key is free, and a relay
that was killed before it could delete the row would put a second job. So each row is put *in the
place of a permit*: a small job in a topic of the relay's own, under the row's key.

    1. draw    put a permit under the row's key, or keep the one that is there   (the daemon)
    2. bind    write its number into the row, if the row has none yet; commit    (the database)
    3. put     put the job in the permit's place: both, or neither               (the daemon)
    4. settle  delete the row; commit                                            (the database)

*At most one job.* A job of the row is put in step 3 alone, in the place of the permit that the row
names. A row names one permit for ever (2), and a number is never used twice, so the first put that
succeeds is the last one: any other, of this relay, of another one or of one that was killed and
whose request arrives a day later, is refused, since the permit is gone.
*At least one job.* A row is deleted (4) only after a put in the place of the permit that it names
has succeeded, or was refused because that permit is gone, which only such a put does.
*None for a rollback.* Nothing is drawn for a row that was not committed.
A permit that is drawn late, for a row that is gone, is never bound: it stays, and no job comes.

That a permit is gone says that the row was put only of the daemon that has drawn it, and as long
as nobody else changes its topic. So the topic has a *mark*, a job with a random body, and a row
names it too. Where the mark is another one, or is gone (another daemon, a topic that was cleared),
it is not known whether the row was put: it is kept with an error that says so.

`docs/internals/decisions/outbox.md` has what else was weighed.
"""

import json
import secrets
from collections.abc import Iterable
from typing import Any, Final, NamedTuple, Unpack

from delayd.client.errors import (
    Invalid,
    JobNotFound,
    NoRoom,
    NotFound,
    NotNow,
    NotOnThisProtocol,
    NotUnderstood,
    Refused,
    ServerFault,
    Unauthorized,
    wrong,
)
from delayd.client.results import PutResult
from delayd.client.sync import Client
from delayd.client.values import NewJob, PutOptions, seconds
from delayd.outbox.table import BATCH_BYTES, BODY_BYTES_MAX, OPTIONS_BYTES_MAX, OutboxRow, batches

HELD: Final = "36500d"
"""The delay of a permit, so that it counts nowhere as ready: a hundred years."""
MARK: Final = "mark"
SHORTEST_S: Final = 0.001
"""The delay of a job that is late already: 0 would mean the topic's own on the line protocol."""

Result = PutResult | Exception
"""An exception: why the job was not put."""


_OF_JOBS: Final = (Refused, NotOnThisProtocol, TypeError, ValueError)
"""What a job is refused with, by the daemon or because no request can say it."""


class DaemonUnfit(Exception):
    """The daemon, or the token, cannot be used as it is; trying again changes nothing."""


class Sent(NamedTuple):
    """What has become of rows that were put."""

    done: list[int]
    failed: dict[int, str]
    undecided: list[int]
    """Those of the failed ones of which it is not known whether they were put."""
    later: dict[str, str]
    """By topic, why rows of it have to wait."""


class Permits:
    """The daemon, as the relay uses it."""

    def __init__(self, client: Client, topic: str) -> None:
        self._client = client
        self._topic = topic
        self._mark = ""

    # --- At the start ----------------------------------------------------------------------------

    def check(self) -> None:
        """See that the daemon knows `instead_of`, and that the token may all that is needed.

        It puts the mark in its own place, which changes nothing. Raises DaemonUnfit, and
        DelaydError if the daemon is away or cannot now.
        """
        try:
            number = self._put_mark()
            self._mark = self._found_mark()
            self._put_mark(instead_of=self._place(number, MARK))
            self._refuse_another(number)
        except (NotNow, NoRoom, ServerFault):
            raise
        except (Refused, NotOnThisProtocol, NotUnderstood) as error:
            raise DaemonUnfit(
                f"this daemon, or this token, cannot be used for an outbox: {message_of(error)}; "
                "it needs `instead_of`, and the scopes put, peek and delete on the topic "
                f"{self._topic!r}"
            ) from error

    def _refuse_another(self, number: int) -> None:
        try:
            self._put_mark(instead_of=self._place(number, "another"))
        except JobNotFound:
            return
        raise DaemonUnfit("this daemon puts a job in the place of one that is not there")

    def _put_mark(self, **options: Unpack[PutOptions]) -> int:
        """Put the mark of the topic, or keep the one that is there; return its number."""
        body = secrets.token_hex(8)
        how: PutOptions = {"key": MARK, "delay": HELD, "on_conflict": "keep", **options}
        return self._client.put(self._topic, body, **how).id

    def _found_mark(self) -> str:
        """Return the mark of the topic; empty: there is none."""
        try:
            body = self._client.find(self._topic, MARK).body
        except NotFound:
            return ""
        return (body or b"").decode(errors="replace")

    # --- Rows ------------------------------------------------------------------------------------

    def draw(self, rows: Iterable[OutboxRow]) -> dict[int, str]:
        """Return a permit for each row, as the table is to have it. Raises DelaydError."""
        wanted = [*rows]
        jobs: list[NewJob] = [
            {"body": "", "key": row.key, "delay": HELD, "on_conflict": "keep"} for row in wanted
        ]
        permits: dict[int, str] = {}
        for row, result in zip(wanted, self._client.put_many(self._topic, jobs), strict=True):
            if isinstance(result, Refused):
                raise result
            permits[row.id] = f"{self._mark}:{result.id}"
        return permits

    def put(self, rows: list[OutboxRow]) -> Sent:
        """Put rows in the places of the permits that they name; tell what has become of each.

        Raises DelaydError if the daemon is away: then it is not known, and they are put again.
        """
        sent = Sent([], {}, [], {})
        gone: list[OutboxRow] = []
        refused: dict[int, str] = {}
        for topic, group in batches(rows):
            jobs: list[tuple[OutboxRow, NewJob]] = []
            for row in group:
                try:
                    jobs.append((row, self._job(row)))
                except (Invalid, TypeError) as error:
                    sent.failed[row.id] = message_of(error)
            for row, result in self._put_group(topic, jobs):
                if isinstance(result, PutResult):
                    sent.done.append(row.id)
                elif isinstance(result, JobNotFound):
                    gone.append(row)
                elif isinstance(result, NotNow | NoRoom | ServerFault):
                    sent.later[topic] = message_of(result)
                else:
                    refused[row.id] = message_of(result)
        self._look_for(gone, sent)
        if refused:
            self.check()  # that it is the rows' fault, and not that of a token or of another daemon
            sent.failed.update(refused)
        return sent

    def _put_group(
        self, topic: str, jobs: list[tuple[OutboxRow, NewJob]]
    ) -> Iterable[tuple[OutboxRow, Result]]:
        """Put jobs of a topic in their order, long bodies alone: a request has its limit."""
        start = 0
        for at in range(len(jobs) + 1):
            if at < len(jobs) and jobs[at][0].body_bytes <= BATCH_BYTES:
                continue
            yield from self._put_run(topic, jobs[start:at])
            if at < len(jobs):
                yield jobs[at][0], self._put_one(topic, jobs[at][1])
            start = at + 1

    def _put_run(
        self, topic: str, jobs: list[tuple[OutboxRow, NewJob]]
    ) -> Iterable[tuple[OutboxRow, Result]]:
        """Put them with one request; if all of it is refused, one by one."""
        if not jobs:
            return
        try:
            results: list[PutResult | Refused] = self._client.put_many(
                topic, [job for _, job in jobs]
            )
        except (NotNow, NoRoom, Unauthorized):
            raise
        except _OF_JOBS:
            yield from ((row, self._put_one(topic, job)) for row, job in jobs)
        else:
            yield from zip((row for row, _ in jobs), results, strict=True)

    def _put_one(self, topic: str, job: NewJob) -> Result:
        options: dict[str, Any] = {**job}
        try:
            return self._client.put(topic, options.pop("body"), **options)
        except Unauthorized:
            raise
        except _OF_JOBS as error:
            return error

    def _job(self, row: OutboxRow) -> NewJob:
        """Return the job of a row, in the place of its permit. Raises Invalid."""
        if row.body is None:
            raise wrong("body", f"has {row.body_bytes} bytes; {BODY_BYTES_MAX} are read at most")
        if row.options is None:
            raise wrong("options", f"are longer than {OPTIONS_BYTES_MAX} bytes")
        try:
            options = json.loads(row.options)
        except (ValueError, RecursionError):
            options = None
        if not isinstance(options, dict):
            raise wrong("options", f"must be a JSON object, and not {row.options:.80}")
        if options.get("delay"):
            left_s = seconds(options["delay"], "delay") - row.age_ms / 1_000
            options["delay"] = max(left_s, SHORTEST_S)
        _, number = parted(row.permit or "")
        return {**options, "body": row.body, "instead_of": self._place(number, row.key)}  # type: ignore[typeddict-item]

    def _look_for(self, rows: list[OutboxRow], sent: Sent) -> None:
        """See what it means that permits of rows are gone."""
        mark = self._found_mark() if rows else ""
        for row in rows:
            drawn_under, number = parted(row.permit or "")
            if drawn_under != mark or not mark:
                sent.undecided.append(row.id)
                sent.failed[row.id] = (
                    "it is not known whether this was put: it was under way to another daemon, or"
                    f" its topic {self._topic!r} was cleared; to try again puts it"
                )
            elif self._is_there(number):
                sent.later[row.topic] = f"the permit {number} is in somebody's hands, or was moved"
            else:
                sent.done.append(row.id)
        if rows and mark != self._mark:  # the next ones are drawn under the one that is there
            self._put_mark()
            self._mark = self._found_mark()

    def _is_there(self, number: int) -> bool:
        try:
            self._client.get(number)
        except JobNotFound:
            return False
        return True

    def _place(self, number: int, key: str) -> str:
        return f"{self._topic}:{number}:{key}"

    def give_back(self, key: str) -> None:
        """Cancel the permit of a row that is gone, if it has one."""
        try:
            self._client.cancel(self._topic, key)
        except NotFound:
            return


def message_of(error: Exception) -> str:
    """Return what an error says, with the fields that it is about."""
    problems = error.problems if isinstance(error, Refused) else ()
    return "; ".join(f"{each.field}: {each.detail}" for each in problems) or str(error)


def parted(permit: str) -> tuple[str, int]:
    """Return mark and number of a permit, as the table has it; 0: it has no number.

    >>> parted("0a1b:17"), parted("what?")
    (('0a1b', 17), ('', 0))
    """
    mark, _, number = permit.rpartition(":")
    return (mark, int(number)) if number.isascii() and number.isdigit() else ("", 0)
