"""What a job is given on the command line: the same options to put, to change and to schedule one.

A text that jobs have of their own is a row of `OWN_TEXTS`: each of these commands takes it then.
"""

import sys
from collections.abc import Iterator, Sequence
from types import MappingProxyType
from typing import Any, BinaryIO, Final

import click

from delayd.cli.parameters import DURATION, PRIORITY
from delayd.durations import size_text
from delayd.limits import BODY_BYTES_CEILING

OWN_TEXTS: Final = MappingProxyType({"group": "A label for what the job belongs to"})
"""Option, and name of the field -> what it is."""
REMOVABLE: Final = (*OWN_TEXTS, "url")
"""What an empty option takes away from a job that has it."""


def _texts(end: str) -> Iterator[Any]:
    for name, what in OWN_TEXTS.items():
        yield click.option(f"--{name}", metavar=name.upper(), help=f"{what}{end}")


BODY_FILE: Final = click.option(
    "--file", type=click.File("rb"), help="Read the body from a file; - is stdin."
)
_REQUEST: Final = (
    click.option("--method", metavar="METHOD", help="The method of the call; by default POST."),
    click.option(
        "--header", metavar="NAME:VALUE", multiple=True, help="A header of the call; repeatable."
    ),
)
OF_NEW: Final = (
    *_texts("."),
    click.option("--priority", type=PRIORITY, help="0 is the most urgent; by default 65536."),
    click.option(
        "--ttr", type=DURATION, help="How long a worker may hold it; by default a minute."
    ),
    click.option("--retry", metavar="STEPS", help="Delays after failures: '15s 3m 10m'."),
    click.option("--max-attempts", type=int, help="How often it is handed out at most."),
    click.option(
        "--jitter-percent", type=int, help="Lengthen each step by chance, by up to so much."
    ),
    click.option(
        "--call", metavar="URL", help="Call this url when it is due; no worker is needed."
    ),
    *_REQUEST,
)
"""Of a job that is put, now or by a schedule."""
OF_CHANGED: Final = (
    *_texts("; '' removes it."),
    click.option("--priority", type=PRIORITY, help="0 is the most urgent."),
    click.option("--ttr", type=DURATION, help="How long a worker may hold it."),
    click.option("--body", metavar="TEXT", help="Another body; - reads standard input."),
    BODY_FILE,
    click.option(
        "--call", metavar="URL", help="Another url to call when it is due; '' removes it."
    ),
    *_REQUEST,
)


def fields_of(
    *, call: str | None = None, header: Sequence[str] = (), **options: Any
) -> dict[str, Any]:
    """Return the fields of a job for the options that were given. Raises `click.UsageError`.

    >>> fields_of(call="https://example.com/due", header=["X-Shop: 7"], ttr=None)
    {'url': 'https://example.com/due', 'headers': {'X-Shop': '7'}}
    """
    fields = {**options, "url": call, "headers": named(header) or None}
    given = {name: value for name, value in fields.items() if value is not None}
    if "delay" in given and "at" in given:
        raise click.UsageError("--delay and --at exclude each other")
    return given


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
