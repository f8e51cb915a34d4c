"""`delayd put`: one job from the command line, or many from NDJSON."""

import binascii
import contextlib
import io
import itertools
import json
import os
import select
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO, Final, NamedTuple

import click

from delayd.cli.connect import known_topics, with_client
from delayd.cli.parameters import DURATION, MOMENT, PRIORITY
from delayd.cli.tables import JSON_OPTION, print_json, time_or_none, time_shown
from delayd.cli.terminal import CommandFailed, complain, examples, print_lines, progress
from delayd.client.errors import (
    FieldProblem,
    Forbidden,
    Invalid,
    NoRoom,
    NotFound,
    NotNow,
    Refused,
    refused,
)
from delayd.client.results import PutResult
from delayd.durations import size_text
from delayd.exits import Exit
from delayd.limits import (
    BODY_BYTES_CEILING,
    NDJSON_LINE_BYTES_MAX,
    NDJSON_PIPE_BYTES_MAX,
    NDJSON_WRONG_SHOWN_MAX,
)

if TYPE_CHECKING:
    import datetime as dt

    from delayd.client.sync import Client
    from delayd.client.values import NewJob

BATCH_JOBS: Final = 1_000
BATCH_BYTES: Final = 1 << 20
"""A request has both bounds; the daemon's own are higher."""
PIPE_READ_BYTES: Final = 64 << 10
"""As much as a pipe of Linux holds."""

TIMES: Final = frozenset(("delay", "at"))
"""One excludes the other."""

PAST_MS: Final = 1_000
"""By more than any tick: a time is rounded up to the next one."""

PUT: Final = "put"
REFUSED: Final = "refused"
PASSING: Final = (NotNow, NoRoom)
"""Refusals for the moment: the same may be accepted later."""
COUNTED: Final = (PUT, "kept", "replaced", "preserved", "extended", REFUSED)
"""What became of a line; a job that was there already was not put."""


class JobLine(NamedTuple):
    """A line of NDJSON."""

    number: int
    """From 1."""
    job: "NewJob | Invalid"
    """Or what is wrong with it."""
    size: int
    """In bytes."""


def no_such_option(_ctx: click.Context, option: click.Parameter, value: str | None) -> None:
    """Refuse an option for the body, and say how to give one. Raises `click.UsageError`."""
    if value is not None:
        raise click.UsageError(
            f"put has no {option.opts[0]}: the body is an argument, --file FILE or standard input,"
            " as in: delayd put TOPIC 'hello'"
        )


@click.command(
    epilog=examples(
        "delayd put mail 'hello' --delay 15s",
        "delayd put orders close --delay 30m --key order-17 --on-conflict extend",
        "delayd put orders close --delay 30m --call https://example.com/due",
        "delayd put reports --file report.json --at 2030-01-01T09:00:00Z",
        'echo \'{"to": "ada"}\' | delayd put mail',
        'delayd put mail --ndjson jobs.ndjson    # {"body": ..., "delay": "1h", "key": ...}',
    )
)
@click.argument("topic", shell_complete=known_topics)
@click.argument("body", required=False)
@click.option(
    *("no_body", "--body", "--data"),
    callback=no_such_option,
    expose_value=False,
    hidden=True,
    help="There is none: the body is an argument.",
)
@click.option("--file", type=click.File("rb"), help="Read the body from a file; - is stdin.")
@click.option(
    "--ndjson", type=click.File("rb"), help="Put many jobs: one JSON object a line; - is stdin."
)
@click.option(
    "--keep-going",
    is_flag=True,
    help="With --ndjson: report wrong lines and put the others, as they are read.",
)
@click.option(
    "--from-line",
    type=click.IntRange(1),
    metavar="N",
    help="With --ndjson: begin with line N, to continue a file.",
)
@click.option("--delay", type=DURATION, help="How long until it is due: 15s, 30m, 1h30m, 7d.")
@click.option("--at", type=MOMENT, help="When it is due: 2030-01-01T09:00:00Z.")
@click.option("--key", metavar="KEY", help="A name of yours, unique in the topic.")
@click.option(
    "--on-conflict",
    type=click.Choice(["reject", "keep", "replace", "preserve", "extend"]),
    help="What to do if a job has the key already; by default reject.",
)
@click.option("--group", metavar="GROUP", help="A label for what the job belongs to.")
@click.option("--priority", type=PRIORITY, help="0 is the most urgent; by default 65536.")
@click.option("--ttr", type=DURATION, help="How long a worker may hold it; by default a minute.")
@click.option("--retry", metavar="STEPS", help="Delays after failures: '15s 3m 10m'.")
@click.option("--max-attempts", type=int, help="How often it is handed out at most.")
@click.option("--jitter-percent", type=int, help="Lengthen each step by chance, by up to so much.")
@click.option("--call", metavar="URL", help="Call this url when it is due; no worker is needed.")
@click.option("--method", metavar="METHOD", help="The method of the call; by default POST.")
@click.option(
    "--header", metavar="NAME:VALUE", multiple=True, help="A header of the call; repeatable."
)
@click.option("--idempotency-key", metavar="TEXT", help="Makes it safe to repeat this command.")
@JSON_OPTION
@with_client
def put(
    client: "Client",
    topic: str,
    body: str | None,
    *,
    file: BinaryIO | None,
    ndjson: BinaryIO | None,
    keep_going: bool,
    from_line: int | None,
    as_json: bool,
    **options: object,
) -> int:
    """Put a job into TOPIC: BODY, a file, or standard input.

    Prints the id of the job. When the command ends, the job is on the daemon's disk.

    With --ndjson the options apply to each line that does not set them itself. All lines are looked
    at before the first is put, of a pipe up to 64 MiB: their form, and the length of their bodies
    if the token has the scope stats. With --keep-going each is looked at when its turn comes.
    """
    job: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    if "delay" in job and "at" in job:
        raise click.UsageError("--delay and --at exclude each other")
    job |= called(job.pop("call", ""), job.pop("header"))
    if ndjson is not None:
        if body is not None or file is not None:
            raise click.UsageError("with --ndjson the bodies are in its lines")
        if "idempotency_key" in job:
            raise click.UsageError("--idempotency-key is for one job; give each line a key")
        if not keep_going:
            ndjson = ahead(ndjson)
            start = ndjson.tell()
            longest = check_lines(lines_of(ndjson, job, from_line or 1))
            ndjson.seek(start)
            if longest > (most := body_bytes_max(client, topic)):
                check_lines(lines_of(ndjson, job, from_line or 1), most)
        return put_lines(client, topic, ndjson, job, from_line or 1, as_json=as_json)
    if keep_going or from_line is not None:
        raise click.UsageError("--keep-going and --from-line are for --ndjson")
    result = client.put(topic, body_of(body, file), **job)
    warn_of_past(job.get("at"), result.due)
    try:
        if as_json:
            print_json([result_fields(result)])
        else:
            print_lines([str(result.id)])
    except CommandFailed as failed:
        raise CommandFailed(failed.exit_code, f"job {result.id} was put: {failed}") from failed
    if sys.stdout.isatty() and not as_json:
        due = "" if result.due is None else f", due {time_shown(result.due)}"
        complain(f"{result.outcome}{due}")
    return Exit.OK


def warn_of_past(at: str | None, due: "dt.datetime | None") -> None:
    """Say that a job is due now, because the time that was given has passed."""
    from delayd.moments import parse_moment_ms

    if (
        at is not None
        and due is not None
        and due.timestamp() * 1_000 > parse_moment_ms(at) + PAST_MS
    ):
        complain(f"{at} is in the past: the job is due at once")


def called(url: str, headers: Sequence[str]) -> dict[str, object]:
    """Return the fields of a job for its url and headers.

    >>> called("https://example.com/due", ["X-Shop: 7"])
    {'url': 'https://example.com/due', 'headers': {'X-Shop': '7'}}
    """
    fields = {"url": url, "headers": named(headers)}
    return {name: value for name, value in fields.items() if value}


def named(headers: Sequence[str]) -> dict[str, str]:
    """Return headers by name."""
    if not all(":" in header for header in headers):
        raise click.UsageError("--header must be NAME:VALUE")
    pairs = (header.partition(":") for header in headers)
    return {name.strip(): value.strip() for name, _, value in pairs}


def body_of(text: str | None, file: BinaryIO | None) -> bytes:
    """Return the body: the argument, the file, or standard input."""
    if text is not None and file is not None:
        raise click.UsageError("BODY and --file exclude each other")
    if file is not None:
        return _bounded(file)
    if text is not None and text != "-":
        return text.encode(errors="surrogateescape")
    if text is None and sys.stdin.isatty():
        raise click.UsageError("there is no body: give BODY, --file FILE, or pipe it in")
    return _bounded(sys.stdin.buffer)


def _bounded(file: BinaryIO) -> bytes:
    """Read a body, which may have no end. Raises UsageError."""
    body = file.read(BODY_BYTES_CEILING + 1)
    if len(body) > BODY_BYTES_CEILING:
        raise click.UsageError(f"the body is longer than {size_text(BODY_BYTES_CEILING)}")
    return body


def result_fields(result: PutResult) -> dict[str, object]:
    """Return the result of a put, for JSON."""
    return {"id": result.id, "outcome": result.outcome, "due": time_or_none(result.due)}


# --- Many at once --------------------------------------------------------------------------------


def size_of(file: BinaryIO) -> int:
    """Return how long the file is; 0 if it is a pipe."""
    if not file.seekable():
        return 0
    at = file.tell()
    size = file.seek(0, 2)
    file.seek(at)
    return size


def ahead(file: BinaryIO) -> BinaryIO:
    """Return the file so that it can be read twice; a pipe is read, and kept in memory.

    Raises CommandFailed for one that is too long.
    """
    if file.seekable():
        return file
    kept = file.read(NDJSON_PIPE_BYTES_MAX + 1)
    if len(kept) > NDJSON_PIPE_BYTES_MAX:
        most = size_text(NDJSON_PIPE_BYTES_MAX)
        why = f"the pipe holds more than {most}, too much to look at before the first put"
        raise CommandFailed(Exit.USAGE, f"{why}: nothing was put; give a file, or --keep-going")
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


def lines_of(
    file: BinaryIO | Pipe, defaults: Mapping[str, Any], first: int
) -> Iterator[JobLine | None]:
    """Read the lines from the `first` on; blank ones are left out.

    None comes where a pipe has no more for the moment.

    Raises CommandFailed for one that is too long, and if the file ends long before the first.
    """
    texts = texts_of(file)
    before = sum(1 for _ in itertools.islice(texts, first - 1))
    if before < first - 1:  # one after the last is the advice after a batch that was the last
        raise CommandFailed(Exit.USAGE, f"there is no line {first}: the last one is {before}")
    return job_lines(file, texts, defaults, first)


def job_lines(
    file: BinaryIO | Pipe, texts: Iterator[bytes], defaults: Mapping[str, Any], first: int
) -> Iterator[JobLine | None]:
    """Yield the lines, of which the next is the `first`."""
    check = checker()
    for number, text in enumerate(texts, first):
        if text.strip():
            try:
                job: NewJob | Invalid = job_of(text, defaults, check)
            except Invalid as error:
                job = error
            yield JobLine(number, job, len(text))
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


def invalid(*problems: FieldProblem) -> Refused:
    """Return the error for a line with these mistakes."""
    text = "; ".join(": ".join(filter(None, problem)) for problem in problems)
    return refused("BAD_FORMAT", text, problems=problems)


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
    told: list[object] = []
    with contextlib.suppress(Forbidden, NotFound):
        figures = client.stats()
        told += (figures.get("body_bytes_max"), figures.get("max-job-size"))  # HTTP, the line
    with contextlib.suppress(Forbidden, NotFound):
        told.append(client.policy(topic).policy.get("body_bytes_max"))
    return min((each for each in told if isinstance(each, int)), default=BODY_BYTES_CEILING)


def check_lines(lines: Iterator[JobLine | None], most_bytes: int = BODY_BYTES_CEILING) -> int:
    """Look at all lines; return how long the longest body is, which may have so many bytes.

    Raises CommandFailed with the first of those that are wrong.
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
        end = f"nothing was put, because {are} wrong; --keep-going puts the others"
        raise CommandFailed(Exit.USAGE, *shown, end)
    return longest


def batches(lines: "Iterator[JobLine] | Iterator[JobLine | None]") -> Iterator[list[JobLine]]:
    """Put the lines together to requests; None ends one, since the next line may take a while."""
    batch: list[JobLine] = []
    batch_bytes = 0
    for line in lines:
        size = 0 if line is None else line.size
        is_full = len(batch) == BATCH_JOBS or batch_bytes + size > BATCH_BYTES
        if batch and (line is None or is_full):
            yield batch
            batch, batch_bytes = [], 0
        if line is not None:
            batch.append(line)
            batch_bytes += size
    if batch:
        yield batch


@contextlib.contextmanager
def ends_as_by_ctrl_c() -> Iterator[None]:
    """Let SIGTERM interrupt the command as Ctrl-C does, so that it says how far it got."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def put_lines(
    client: "Client",
    topic: str,
    file: BinaryIO,
    defaults: Mapping[str, Any],
    first: int,
    *,
    as_json: bool,
) -> int:
    """Put all jobs; print the result of each in their order, and report refusals."""
    counts: Counter[str] = Counter()
    lines = lines_of(file if file.seekable() else Pipe(file), defaults, first)
    batch: list[JobLine] = []
    try:
        with ends_as_by_ctrl_c(), progress(f"putting into {topic}", size_of(file)) as on_bytes:
            for batch in batches(lines):
                results = put_batch(client, topic, batch)
                stop = stop_of(results)
                later = [] if stop is None else batch[stop:]
                first = later[0].number if later else batch[-1].number + 1
                why = next((each for each in results if isinstance(each, PASSING)), None)
                done, results = batch[:stop], results[:stop]
                counts.update(map(word_of, results))
                report_refusals(done, results)
                if as_json:
                    print_json(map(outcome, done, results))
                else:
                    print_lines(str(each.id) for each in results if isinstance(each, PutResult))
                on_bytes(sum(line.size for line in done))
                if why is not None:
                    raise CommandFailed(Exit.NOT_NOW, f"stopped, refused for the moment: {why}")
    except BaseException as error:
        complain(f"{summary(counts)}; {where_to_go_on(batch, first, error)}")
        raise
    complain(summary(counts))
    return Exit.REFUSED if counts[REFUSED] else Exit.OK


def stop_of(results: "Sequence[PutResult | Refused]") -> int | None:
    """Return with which line to go on later, if some were refused for the moment.

    It is behind the last that was put, since none must be put twice: a refusal before that one is
    reported like any other.

    >>> stop_of([PutResult(1, "created"), NoRoom("full"), NotNow("it drains")])
    1
    >>> stop_of([NoRoom("full"), PutResult(1, "kept")])
    2
    >>> stop_of([PutResult(1, "created"), refused("BAD_FORMAT", "is wrong")])
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
    >>> where_to_go_on([JobLine(7, {"body": b""}, 9), JobLine(9, {"body": b""}, 9)], 7, lost)
    'to go on: --from-line 7'
    >>> lost.may_have_happened = True
    >>> where_to_go_on([JobLine(7, {"body": b""}, 9), JobLine(9, {"body": b""}, 9)], 7, lost)
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


def outcome(line: JobLine, result: PutResult | Refused) -> dict[str, object]:
    """Return the result of a line, for JSON."""
    if isinstance(result, Refused):
        told = {"error": str(result), "word": result.word, "kind": result.kind}
        return {"line": line.number, **told}
    return {"line": line.number, **result_fields(result)}


def report_refusals(lines: Sequence[JobLine], results: "Sequence[PutResult | Refused]") -> None:
    """Say which of the lines were refused, and why."""
    for line, result in zip(lines, results, strict=True):
        if isinstance(result, Refused):
            complain(f"line {line.number}: {result}")


def put_batch(
    client: "Client", topic: str, batch: Sequence[JobLine]
) -> "list[PutResult | Refused]":
    """Put a batch; the result of a line that is wrong is what is wrong with it.

    What the daemon refuses of a whole batch is named by its line. Raises CommandFailed then.
    """
    good = [line for line in batch if not isinstance(line.job, Invalid)]
    try:
        results = iter(client.put_many(topic, [line.job for line in good]) if good else [])  # type: ignore[misc]
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
