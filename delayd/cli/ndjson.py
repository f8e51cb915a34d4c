"""Many jobs from a file or a pipe with one JSON object a line: `put --ndjson`, `dead import`.

Lines are read, looked at and put together to requests, and the result of each is told in their
order. A refusal for the moment, such as a cap, stops it unless it ends soon: what was put and with
which line to go on is said, since none must be put twice. What a line looks like is for a `Read` to
know.
"""

import binascii
import contextlib
import io
import itertools
import json
import os
import select
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO, Final, NamedTuple, TypeAlias

from delayd.cli.tables import print_json
from delayd.cli.terminal import CommandFailed, complain, print_lines, progress
from delayd.client.attempts import drawn, pauses
from delayd.client.errors import (
    FieldProblem,
    Forbidden,
    Invalid,
    NoRoom,
    NotFound,
    NotNow,
    Refused,
)
from delayd.client.results import PutResult
from delayd.client.signals import handled
from delayd.durations import size_text
from delayd.exits import Exit
from delayd.limits import (
    BODY_BYTES_CEILING,
    NDJSON_LINE_BYTES_MAX,
    NDJSON_PIPE_BYTES_MAX,
    NDJSON_WRONG_SHOWN_MAX,
)

if TYPE_CHECKING:
    from delayd.client.sync import Client
    from delayd.client.values import NewJob

BATCH_JOBS: Final = 1_000
BATCH_BYTES: Final = 1 << 20
"""A request has both bounds; the daemon's own are higher."""
PIPE_READ_BYTES: Final = 64 << 10
"""As much as a pipe of Linux holds."""

TIMES: Final = frozenset(("delay", "at"))
"""One excludes the other."""

PUT: Final = "put"
REFUSED: Final = "refused"
PASSING: Final = (NotNow, NoRoom)
"""Refusals for the moment: the same may be accepted later."""
PATIENCE_S: Final = 5.0
"""How long lines are tried again that are refused so: on a disk that is nearly full, space that a
snapshot frees is there again after milliseconds."""
COUNTED: Final = (PUT, "kept", "replaced", "preserved", "extended", REFUSED)
"""What became of a line; a job that was there already was not put."""


class JobLine(NamedTuple):
    """A line of NDJSON."""

    number: int
    """From 1."""
    topic: str
    job: "NewJob | Invalid"
    """Or what is wrong with it."""
    size: int
    """In bytes."""


Read: TypeAlias = "Callable[[bytes], tuple[str, NewJob | Invalid]]"
"""Makes a topic and a job of a line, or tells what is wrong with it."""
Tell: TypeAlias = "Callable[[Sequence[JobLine], Sequence[PutResult | Refused]], object]"
"""Is called with lines and their results."""


def size_of(file: BinaryIO) -> int:
    """Return how long the file is; 0 if it is a pipe."""
    if not file.seekable():
        return 0
    at = file.tell()
    size = file.seek(0, 2)
    file.seek(at)
    return size


def ahead(file: BinaryIO, otherwise: str = "") -> BinaryIO:
    """Return the file so that it can be read twice; a pipe is read, and kept in memory.

    Raises CommandFailed for one that is too long; `otherwise` is what else there is to do then.
    """
    if file.seekable():
        return file
    kept = file.read(NDJSON_PIPE_BYTES_MAX + 1)
    if len(kept) > NDJSON_PIPE_BYTES_MAX:
        most = size_text(NDJSON_PIPE_BYTES_MAX)
        why = f"the pipe holds more than {most}, too much to look at before the first put"
        raise CommandFailed(Exit.USAGE, f"{why}: nothing was put; give a file{otherwise}")
    return io.BytesIO(kept)


class Pipe:
    """The lines of a pipe, which tells whether the next one is there already."""

    def __init__(self, file: BinaryIO) -> None:
        self._descriptor = file.fileno()
        self._kept = bytearray()
        self._searched = 0
        """So many of the bytes kept have no end of a line."""
        self._has_ended = False

    def readline(self, size: int) -> bytes:
        """Return the next line, of a longer one `size` bytes; empty at the end. Waits for it."""
        while (found := self._found(size)) is None:
            self._read()
        text = bytes(self._kept[:found])
        del self._kept[:found]
        self._searched = 0
        return text

    def is_silent(self, size: int) -> bool:
        """Tell whether the next line is not there yet; reads what there is of it."""
        while self._found(size) is None:
            if not select.select([self._descriptor], [], [], 0)[0]:
                return True
            self._read()
        return False

    def _found(self, size: int) -> int | None:
        """Return how many bytes of the next line can be read; None if they are not there yet."""
        end = self._kept.find(b"\n", self._searched) + 1
        if end or self._has_ended or len(self._kept) >= size:
            return min(end or len(self._kept), size)
        self._searched = len(self._kept)
        return None

    def _read(self) -> None:
        data = os.read(self._descriptor, PIPE_READ_BYTES)
        self._kept += data
        self._has_ended = not data


def lines_of(file: BinaryIO | Pipe, read: Read, first: int) -> Iterator[JobLine | None]:
    """Read the lines from the `first` on; blank ones are left out.

    None comes where a pipe has no more for the moment.

    Raises CommandFailed for one that is too long, and if the file ends long before the first.
    """
    texts = texts_of(file)
    before = sum(1 for _ in itertools.islice(texts, first - 1))
    if before < first - 1:  # one after the last is the advice after a batch that was the last
        raise CommandFailed(Exit.USAGE, f"there is no line {first}: the last one is {before}")
    return job_lines(file, texts, read, first)


def job_lines(
    file: BinaryIO | Pipe, texts: Iterator[bytes], read: Read, first: int
) -> Iterator[JobLine | None]:
    """Yield the lines, of which the next is the `first`."""
    for number, text in enumerate(texts, first):
        if text.strip():
            topic, job = read(text)
            yield JobLine(number, topic, job, len(text))
        if isinstance(file, Pipe) and file.is_silent(NDJSON_LINE_BYTES_MAX + 1):
            yield None


def texts_of(file: BinaryIO | Pipe) -> Iterator[bytes]:
    """Yield the lines of a file. Raises CommandFailed for one that is too long."""
    for number in itertools.count(1):
        text = file.readline(NDJSON_LINE_BYTES_MAX + 1)
        if not text:
            return
        if len(text) > NDJSON_LINE_BYTES_MAX:
            why = f"line {number} is longer than {size_text(NDJSON_LINE_BYTES_MAX)}"
            raise CommandFailed(Exit.USAGE, f"{why}: put its body by itself, with --file")
        yield text


Check = Callable[[bytes], object]
"""Raises `Invalid`."""


def checker() -> Check:
    """Return what checks a job as the daemon would."""
    from delayd.http.form_reader import Reader
    from delayd.http.problems import NotJson, RequestInvalid
    from delayd.http.request_forms import PutJobForm

    read = Reader(PutJobForm).read

    def check(text: bytes) -> None:
        try:
            read(text)
        except NotJson as error:
            raise invalid(FieldProblem("", f"is not JSON: {error.shown[0]}")) from None
        except RequestInvalid as error:
            raise invalid(
                *(FieldProblem(each.field, each.detail) for each in error.errors)
            ) from None

    return check


def invalid(*problems: FieldProblem) -> Invalid:
    """Return the error for a line with these mistakes."""
    text = "; ".join(": ".join(filter(None, problem)) for problem in problems)
    return Invalid(text, "BAD_FORMAT", problems=problems)


def reader_for(topic: str, defaults: Mapping[str, Any]) -> Read:
    """Return what reads lines with jobs of this topic."""
    check = checker()

    def read(text: bytes) -> "tuple[str, NewJob | Invalid]":
        try:
            return topic, job_of(text, defaults, check)
        except Invalid as error:
            return topic, error

    return read


def job_of(text: bytes, defaults: Mapping[str, Any], check: Check) -> "NewJob":
    """Read a line. Raises Invalid with all its mistakes.

    >>> job_of(b'{"body": "hello", "at": "2030-01-01T09:00:00Z"}', {"delay": "1h"}, checker())
    {'body': b'"hello"', 'at': '2030-01-01T09:00:00Z'}
    """
    try:
        job = json.loads(text.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        where = f"byte {error.start + 1} is 0x{error.object[error.start]:02x}"
        raise invalid(FieldProblem("", f"is not UTF-8: {where}")) from None
    except json.JSONDecodeError as error:  # whose own sentence has a line too, that of the text
        why = f"{error.msg} at character {error.pos + 1}"
        raise invalid(FieldProblem("", f"is not JSON: {why}")) from None
    except (ValueError, RecursionError) as error:
        raise invalid(FieldProblem("", f"is not JSON: {error}")) from None
    if not isinstance(job, dict):
        raise invalid(FieldProblem("", "must be an object"))
    is_timed = not job.keys().isdisjoint(TIMES)
    kept = {name: value for name, value in defaults.items() if not (is_timed and name in TIMES)}
    merged: Any = {**kept, **job}
    check(json.dumps(merged).encode())
    if "body" in merged:
        # As JSON, whatever it is: so a body is the same as in the daemon's own batches.
        merged["body"] = json_body(merged["body"])
    else:
        merged["body"] = binascii.a2b_base64(merged.pop("body_base64"))
    return merged  # type: ignore[no-any-return]


def json_body(value: object) -> bytes:
    """Return the body that is kept of a value of JSON."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def body_bytes_max(client: "Client", topic: str) -> int:
    """Return how long a body may be, by the daemon and the topic as far as the token may ask."""
    limits: list[object] = []
    with contextlib.suppress(Forbidden, NotFound):
        figures = client.stats()
        limits += (figures.get("body_bytes_max"), figures.get("max-job-size"))  # HTTP, the line
    with contextlib.suppress(Forbidden, NotFound):
        limits.append(client.policy(topic).policy.get("body_bytes_max"))
    return min((each for each in limits if isinstance(each, int)), default=BODY_BYTES_CEILING)


def check_lines(
    lines: Iterator[JobLine | None], most_bytes: int = BODY_BYTES_CEILING, otherwise: str = ""
) -> int:
    """Look at all lines; return how long the longest body is, which may have so many bytes.

    Raises CommandFailed with the first of those that are wrong, and `otherwise` what there is to do
    but mending them.
    """
    shown: list[str] = []
    count = longest = 0
    for line in filter(None, lines):
        wrong: NewJob | Refused = line.job
        if not isinstance(wrong, Refused):
            body_bytes = len(wrong["body"])
            longest = max(longest, body_bytes)
            if body_bytes <= most_bytes:
                continue
            why = f"has {body_bytes} bytes, and this daemon or topic takes {most_bytes} at most"
            wrong = invalid(FieldProblem("body", why))
        count += 1
        if count <= NDJSON_WRONG_SHOWN_MAX:
            shown.append(f"line {line.number}: {wrong}")
    if count:
        are = "1 line is" if count == 1 else f"{count} lines are"
        end = f"nothing was put, because {are} wrong{otherwise}"
        raise CommandFailed(Exit.USAGE, *shown, end)
    return longest


def batches(lines: "Iterator[JobLine] | Iterator[JobLine | None]") -> Iterator[list[JobLine]]:
    """Put the lines together to requests, each for one topic.

    None ends one, since the next line may take a while.
    """
    batch: list[JobLine] = []
    batch_bytes = 0
    for line in lines:
        size = 0 if line is None else line.size
        is_full = len(batch) == BATCH_JOBS or batch_bytes + size > BATCH_BYTES
        if batch and (line is None or is_full or line.topic != batch[0].topic):
            yield batch
            batch, batch_bytes = [], 0
        if line is not None:
            batch.append(line)
            batch_bytes += size
    if batch:
        yield batch


def put_lines(
    client: "Client", file: BinaryIO, read: Read, first: int, *, where: str, tell: Tell
) -> int:
    """Put all jobs from a line on; tell the result of each in their order, and report refusals.

    `where` they go is shown with the progress. What is refused for the moment is tried again with
    growing pauses; raises CommandFailed once nothing was taken for PATIENCE_S.
    """
    counts: Counter[str] = Counter()
    lines = lines_of(file if file.seekable() else Pipe(file), read, first)
    batch: list[JobLine] = []
    todo, pauses_s = batches(lines), pauses(PATIENCE_S, drawn)
    try:
        with (
            # As Ctrl-C does, it interrupts the command, which says how far it got.
            handled(signal.default_int_handler, signal.SIGTERM),
            progress(f"putting into {where}", size_of(file)) as on_bytes,
        ):
            while batch := next(todo, []):
                results = put_batch(client, batch)
                stop = stop_of(results)
                later = [] if stop is None else batch[stop:]
                first = later[0].number if later else batch[-1].number + 1
                why = next((each for each in results if isinstance(each, PASSING)), None)
                done, results = batch[:stop], results[:stop]
                counts.update(map(word_of, results))
                report_refusals(done, results)
                tell(done, results)
                on_bytes(sum(line.size for line in done))
                if done:
                    pauses_s = pauses(PATIENCE_S, drawn)
                if why is not None:
                    pause_s = next(pauses_s, None) if later else None
                    if pause_s is None:
                        raise CommandFailed(Exit.NOT_NOW, f"stopped, refused for the moment: {why}")
                    batch, todo = [], itertools.chain([later], todo)  # nothing is under way
                    pause(pause_s)
    except BaseException as error:
        complain(f"{summary(counts)}; {where_to_go_on(batch, first, error)}")
        raise
    complain(summary(counts))
    return Exit.REFUSED if counts[REFUSED] else Exit.OK


def pause(seconds: float) -> None:
    """Wait before lines are tried again; a signal ends it."""
    threading.Event().wait(seconds)


def stop_of(results: "Sequence[PutResult | Refused]") -> int | None:
    """Return with which line to go on later, if some were refused for the moment.

    It is after the last that was put, since none must be put twice: a refusal before that one is
    reported like any other.

    >>> stop_of([PutResult(1, "created"), NoRoom("full"), NotNow("it drains")])
    1
    >>> stop_of([NoRoom("full"), PutResult(1, "kept")])
    2
    >>> stop_of([PutResult(1, "created"), Invalid("is wrong")])
    """
    is_put = [isinstance(each, PutResult) for each in results]
    passing = [n for n, each in enumerate(results) if isinstance(each, PASSING)]
    if not passing:
        return None
    last_put = max(itertools.compress(itertools.count(), is_put), default=-1)
    return next((n for n in passing if n > last_put), len(results))


def summary(counts: Mapping[str, int]) -> str:
    """Say what became of the lines.

    >>> summary(Counter({"put": 2, "kept": 1}))
    '2 put, 1 kept, 0 refused'
    """
    words = [word for word in COUNTED if counts[word] or word in {PUT, REFUSED}]
    return ", ".join(f"{counts[word]} {word}" for word in words)


def where_to_go_on(batch: Sequence[JobLine], first: int, error: BaseException) -> str:
    """Say with which line to go on, if the lines before the `first` have their results.

    >>> lost = ConnectionResetError()
    >>> batch = [JobLine(number, "mail", {"body": b""}, 9) for number in (7, 9)]
    >>> where_to_go_on(batch, 7, lost)
    'to go on: --from-line 7'
    >>> lost.may_have_happened = True
    >>> where_to_go_on(batch, 7, lost)
    'lines 7 to 9 may have been put: go on with --from-line 10 if they were, else --from-line 7'
    """
    is_unknown = getattr(error, "may_have_happened", isinstance(error, KeyboardInterrupt))
    if not (is_unknown and batch and batch[-1].number >= first):
        return f"to go on: --from-line {first}"
    last = batch[-1].number
    lines = f"lines {batch[0].number} to {last} may have been put"
    return f"{lines}: go on with --from-line {last + 1} if they were, else --from-line {first}"


def word_of(result: PutResult | Refused) -> str:
    """Return the word under which a line is counted."""
    if isinstance(result, Refused):
        return REFUSED
    return PUT if result.outcome == "created" else result.outcome


def print_outcomes(lines: Sequence[JobLine], results: "Sequence[PutResult | Refused]") -> None:
    """Print the result of each line as JSON."""
    print_json(map(outcome, lines, results))


def print_ids(_lines: Sequence[JobLine], results: "Sequence[PutResult | Refused]") -> None:
    """Print the ids of the jobs."""
    print_lines(str(each.id) for each in results if isinstance(each, PutResult))


def outcome(line: JobLine, result: PutResult | Refused) -> dict[str, object]:
    """Return the result of a line, for JSON."""
    if isinstance(result, Refused):
        failure = {"error": str(result), "word": result.word, "kind": result.kind}
        return {"line": line.number, **failure}
    return {"line": line.number, **result._asdict()}


def report_refusals(lines: Sequence[JobLine], results: "Sequence[PutResult | Refused]") -> None:
    """Say which of the lines were refused, and why."""
    for line, result in zip(lines, results, strict=True):
        if isinstance(result, Refused):
            complain(f"line {line.number}: {result}")


def put_batch(client: "Client", batch: Sequence[JobLine]) -> "list[PutResult | Refused]":
    """Put a batch of one topic; the result of a line that is wrong is what is wrong with it.

    What the daemon refuses of a whole batch is named by its line. Raises CommandFailed then.
    """
    good = [line for line in batch if not isinstance(line.job, Invalid)]
    try:
        results = iter(client.put_many(batch[0].topic, [line.job for line in good]) if good else [])  # type: ignore[misc]
    except Invalid as error:
        errors = []
        for problem in error.problems:
            place, _, field = problem.field.partition(".")
            index = place.removeprefix("jobs[").removesuffix("]")
            if index.isdigit() and int(index) < len(good):
                place = f"line {good[int(index)].number}"
            errors.append(": ".join(filter(None, (place, field, problem.detail))))
        raise CommandFailed(Exit.USAGE, *(errors or [str(error)])) from error
    return [line.job if isinstance(line.job, Invalid) else next(results) for line in batch]
