"""How every command that talks to a daemon finds it, and how it fails.

The url is that of `--url`, of `--line` for the line protocol, of DELAYD_URL, or the default. A
token comes from `--token-file`, DELAYD_TOKEN_FILE or DELAYD_TOKEN; no option takes the token
itself, since every user of the machine can read the arguments of a process.

Whatever the client raises ends the command with a sentence and an exit code, by `EXITS`.
"""

import contextlib
import functools
import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

import click

from delayd.cli.parameters import takes
from delayd.cli.terminal import CommandFailed
from delayd.client.errors import (
    ConnectionLost,
    DelaydError,
    Forbidden,
    Invalid,
    NoRoom,
    NotFound,
    NotNow,
    NotOnThisProtocol,
    Refused,
    TimedOut,
    Unauthorized,
    Unreachable,
)
from delayd.exits import Exit

if TYPE_CHECKING:
    import ssl

    from delayd.client.sync import Client

URL_VARIABLE: Final = "DELAYD_URL"
TOKEN_VARIABLE: Final = "DELAYD_TOKEN"  # noqa: S105 - the name of a variable
TOKEN_BYTES_MAX: Final = 4_096

OPTIONS: Final = (
    click.option(
        "--url",
        metavar="URL",
        envvar=URL_VARIABLE,
        help="Where the daemon is: http://HOST:PORT, https://HOST, http+unix:/PATH,"
        " beanstalk://HOST:PORT, unix:/PATH. [env: DELAYD_URL; default: http://127.0.0.1:11301]",
    ),
    click.option(
        "--line", metavar="ADDRESS", help="Use the line protocol: HOST:PORT or unix:/PATH."
    ),
    click.option(
        "--token-file",
        metavar="FILE",
        envvar="DELAYD_TOKEN_FILE",
        type=click.File("rb"),
        help="The file with the token. [env: DELAYD_TOKEN_FILE, or the token in DELAYD_TOKEN]",
    ),
    click.option(
        "--ca-file",
        metavar="FILE",
        envvar="DELAYD_CA_FILE",
        type=click.Path(exists=True, dir_okay=False),
        help="The authority of the daemon's certificate, as PEM. [env: DELAYD_CA_FILE]",
    ),
)

EXITS: Final = (
    ((Unauthorized, Forbidden), Exit.NOT_ALLOWED),
    ((NotFound, TimedOut), Exit.NOTHING_THERE),
    ((Unreachable, ConnectionLost), Exit.UNREACHABLE),
    ((NotNow, NoRoom), Exit.NOT_NOW),
    ((Invalid, NotOnThisProtocol), Exit.USAGE),
    ((DelaydError,), Exit.REFUSED),
)
"""The exit code of each error of the client; the first row that fits counts."""


def with_client(command: Callable[..., int]) -> Callable[..., int]:
    """Give a command the options above, and call it with the client that they say."""

    @functools.wraps(command)
    def run(
        url: str | None, line: str | None, token_file: object, ca_file: str | None, **rest: object
    ) -> int:
        with client_errors(), client(url, line, token_file, ca_file) as found:
            return command(found, **rest)

    return takes(*OPTIONS)(run)


def client(
    url: str | None, line: str | None, token_file: object = None, ca_file: str | None = None
) -> "Client":
    """Return a client; nothing is connected before its first call. Raises CommandFailed."""
    from delayd.client.sync import Client

    try:
        return Client(url_of(url, line), token=token(token_file), tls=context(ca_file))
    except ValueError as error:
        raise CommandFailed(Exit.USAGE, str(error)) from None


def url_of(url: str | None, line: str | None) -> str:
    """Return the url that the options say.

    >>> url_of(None, None), url_of(None, "127.0.0.1:11300"), url_of("x", "unix:/run/line.sock")
    ('http://127.0.0.1:11301', 'beanstalk://127.0.0.1:11300', 'unix:/run/line.sock')
    """
    from delayd.client.addresses import DEFAULT_URL

    if line is None:
        return url or DEFAULT_URL
    return line if line.startswith("unix:") else f"beanstalk://{line}"


def token(file: object) -> str:
    """Return the token of the file, or that of the environment; empty if there is none."""
    if file is None:
        return os.environ.get(TOKEN_VARIABLE, "").strip()
    read: Callable[[int], bytes] = getattr(file, "read")  # noqa: B009 - click's lazy file
    text = read(TOKEN_BYTES_MAX).decode(errors="replace").strip()
    if not text or not text.isprintable() or " " in text:
        raise CommandFailed(Exit.USAGE, "the token file holds no token: one line, dlyd_...")
    return text


def context(ca_file: str | None) -> "ssl.SSLContext | None":
    """Return what trusts this authority; None: the system's own."""
    if ca_file is None:
        return None
    import ssl

    try:
        return ssl.create_default_context(cafile=ca_file)
    except OSError as error:
        raise CommandFailed(Exit.USAGE, f"{ca_file} is not a certificate: {error}") from None


@contextlib.contextmanager
def client_errors() -> Iterator[None]:
    """Let the command fail on an error of the client, with its exit code."""
    try:
        yield
    except DelaydError as error:
        raise CommandFailed(exit_of(error), *said(error)) from error


def exit_of(error: DelaydError) -> Exit:
    """Return the exit code of an error."""
    return next(code for kinds, code in EXITS if isinstance(error, kinds))


def said(error: DelaydError) -> Iterator[str]:
    """Write an error for a person: one line for each mistake, and what to do."""
    if isinstance(error, Refused) and error.problems:
        yield from (f"{problem.field}: {problem.detail}" for problem in error.problems)
    else:
        yield str(error)
    if isinstance(error, Unauthorized):
        yield "the daemon asks for a token: --token-file FILE, DELAYD_TOKEN_FILE or DELAYD_TOKEN"
    if isinstance(error, Forbidden) and error.scope:
        yield f"the token lacks the scope {error.scope}: delayd token create NAME --scope ..."
    if isinstance(error, NotNow | NoRoom):
        later = "later" if error.retry_after_s is None else f"in {error.retry_after_s:g} s"
        yield f"nothing was changed; try again {later}"
