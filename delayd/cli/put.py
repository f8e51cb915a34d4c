"""`delayd put`: one job from the command line, or many from NDJSON."""

import binascii
import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO, Final

import click

from delayd.cli.connect import known_topics, with_client
from delayd.cli.parameters import DURATION, MOMENT, PRIORITY
from delayd.cli.tables import JSON_OPTION, print_json, time_or_none, time_shown
from delayd.cli.terminal import CommandFailed, complain, examples, print_lines, progress
from delayd.client.errors import Invalid, Refused
from delayd.client.results import PutResult
from delayd.durations import size_text
from delayd.exits import Exit
from delayd.limits import BODY_BYTES_CEILING

if TYPE_CHECKING:
    from delayd.client.sync import Client
    from delayd.client.values import NewJob

BATCH_JOBS: Final = 1_000
BATCH_BYTES: Final = 1 << 20
"""A request has both bounds; the daemon's own are higher."""

FIELDS: Final = frozenset(
    (
        *("body", "body_base64", "delay", "at", "priority", "ttr", "key", "on_conflict"),
        "group",
        *("retry", "max_attempts", "jitter_percent", "url", "method", "headers"),
    )
)
"""The fields of a line of NDJSON."""

PUT: Final = "put"
REFUSED: Final = "refused"
COUNTED: Final = (PUT, "kept", "replaced", "preserved", "extended", REFUSED)
"""What became of a line; a job that was there already was not put."""

Line = tuple[int, "NewJob"]
"""The number of a line, from 1, and its job."""


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
@click.option("--delay", type=DURATION, help="How long until it is due: 15s, 30m, 1h30m, 7d.")
@click.option("--at", type=MOMENT, help="When it is due: 2030-01-01T09:00:00Z.")
@click.option("--key", metavar="KEY", help="A name of yours, unique in the topic.")
@click.option(
    "--on-conflict",
    type=click.Choice(["reject", "keep", "replace", "preserve", "extend"]),
    help="What to do if a job has the key already; by default reject.",
)
@click.option("--group", metavar="GROUP", help="What it belongs to.")
@click.option("--priority", type=PRIORITY, help="0 is the most urgent; by default 65536.")
@click.option("--ttr", type=DURATION, help="How long a worker may hold it; by default a minute.")
@click.option("--retry", metavar="STEPS", help="Delays after failures: '15s 3m 10m'.")
@click.option("--max-attempts", type=int, help="How often it is handed out at most.")
@click.option("--jitter-percent", type=int, help="Lengthens each step by up to this much.")
@click.option("--call", metavar="URL", help="Send it there when it is due; no worker is needed.")
@click.option("--method", metavar="METHOD", help="Of that request; by default POST.")
@click.option("--header", metavar="NAME:VALUE", multiple=True, help="Of that request; repeatable.")
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
    as_json: bool,
    **options: object,
) -> int:
    """Put a job into TOPIC: BODY, a file, or standard input.

    Prints the id of the job. When the command ends, the job is on the daemon's disk. With --ndjson
    the options are those of every job whose line does not say otherwise.
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
        return put_lines(client, topic, lines_of(ndjson, job), size_of(ndjson), as_json=as_json)
    result = client.put(topic, body_of(body, file), **job)
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


def lines_of(file: BinaryIO, defaults: Mapping[str, Any]) -> Iterator[tuple[Line, int]]:
    """Read the jobs of the lines, each with how many bytes were read for it.

    Raises CommandFailed at the first line that is wrong; blank ones are left out.
    """
    for number, text in enumerate(file, 1):
        if text.strip():
            yield (number, job_of(number, text, defaults)), len(text)


def job_of(number: int, text: bytes, defaults: Mapping[str, Any]) -> "NewJob":
    """Read a line.

    >>> job_of(1, b'{"body": "hello", "at": "2030-01-01T09:00:00Z"}', {"delay": "1h"})
    {'body': b'"hello"', 'at': '2030-01-01T09:00:00Z'}
    """
    from delayd.text import did_you_mean

    try:
        job = json.loads(text)
    except ValueError as error:
        raise wrong_line(number, f"is not JSON: {error}") from None
    if not isinstance(job, dict):
        raise wrong_line(number, "must be an object")
    for name in job:
        if name not in FIELDS:
            raise wrong_line(number, f"there is no field {name!r}{did_you_mean(name, FIELDS)}")
    if ("body" in job) == ("body_base64" in job):
        raise wrong_line(number, "must have body or body_base64")
    if "body" in job:
        # As JSON, whatever it is: so a body is the same as in the daemon's own batches.
        job["body"] = json.dumps(job["body"], ensure_ascii=False, separators=(",", ":")).encode()
    else:
        try:
            job["body"] = binascii.a2b_base64(job.pop("body_base64"), strict_mode=True)
        except (ValueError, TypeError):
            raise wrong_line(number, "body_base64 is not base64") from None
    timed = {"delay", "at"} & job.keys()
    kept = {
        name: value for name, value in defaults.items() if not (timed and name in {"delay", "at"})
    }
    merged: NewJob = {**kept, **job}  # type: ignore[typeddict-item]
    return merged


def wrong_line(number: int, mistake: str) -> CommandFailed:
    """Return the failure for a line."""
    return CommandFailed(Exit.USAGE, f"line {number}: {mistake}")


def batches(jobs: Iterator[tuple[Line, int]]) -> Iterator[tuple[list[Line], int]]:
    """Put the jobs together to requests, each with how many bytes of the file it is."""
    batch: list[Line] = []
    batch_bytes = 0
    for line, line_bytes in jobs:
        if batch and (len(batch) == BATCH_JOBS or batch_bytes + line_bytes > BATCH_BYTES):
            yield batch, batch_bytes
            batch, batch_bytes = [], 0
        batch.append(line)
        batch_bytes += line_bytes
    if batch:
        yield batch, batch_bytes


def put_lines(
    client: "Client",
    topic: str,
    jobs: Iterator[tuple[Line, int]],
    total_bytes: int,
    *,
    as_json: bool,
) -> int:
    """Put all jobs; print the result of each in their order, and report refusals."""
    counts: Counter[str] = Counter()
    ended = "; it ended before line 1"
    try:
        with progress(f"putting into {topic}", total_bytes) as on_bytes:
            for batch, batch_bytes in batches(jobs):
                results = put_batch(client, topic, batch)
                counts.update(map(word_of, results))
                ended = f"; it ended before line {batch[-1][0] + 1}"
                for (number, _job), result in zip(batch, results, strict=True):
                    if isinstance(result, Refused):
                        complain(f"line {number}: {result}")
                if as_json:
                    print_json(map(outcome, batch, results))
                else:
                    print_lines(str(each.id) for each in results if isinstance(each, PutResult))
                on_bytes(batch_bytes)
        ended = ""
    finally:
        words = [word for word in COUNTED if counts[word] or word in {PUT, REFUSED}]
        complain(", ".join(f"{counts[word]} {word}" for word in words) + ended)
    return Exit.REFUSED if counts[REFUSED] else Exit.OK


def word_of(result: PutResult | Refused) -> str:
    """Return the word under which a line is counted."""
    if isinstance(result, Refused):
        return REFUSED
    return PUT if result.outcome == "created" else result.outcome


def outcome(line: Line, result: PutResult | Refused) -> dict[str, object]:
    """Return the result of a line, for JSON."""
    if isinstance(result, Refused):
        return {"line": line[0], "error": str(result), "word": result.word, "kind": result.kind}
    return {"line": line[0], **result_fields(result)}


def put_batch(client: "Client", topic: str, batch: list[Line]) -> list[PutResult | Refused]:
    """Put a batch. A mistake in one of its jobs refuses all of it; it is named by its line."""
    try:
        return client.put_many(topic, [job for _number, job in batch])
    except Invalid as error:
        errors = []
        for problem in error.problems:
            place, _, field = problem.field.partition(".")
            index = place.removeprefix("jobs[").removesuffix("]")
            if index.isdigit() and int(index) < len(batch):
                place = f"line {batch[int(index)][0]}"
            errors.append(
                f"{place}: {field}: {problem.detail}" if field else f"{place}: {problem.detail}"
            )
        raise CommandFailed(Exit.USAGE, *(errors or [str(error)])) from error
