"""`delayd-beanstalkd`: delayd with beanstalkd's flags, for scripts that start `beanstalkd`.

The flags mean what they mean there, in the forms accepted there: `-p11300`, `-p 11300`, `-VV`,
`-Fb DIR`. Without `-b` nothing is kept on disk; with it the log is synced every 50 ms, as there.
Two things differ, because safe is the better default: without `-l` only this machine can connect,
and exit codes are delayd's (`delayd/exits.py`).

Clients' test suites start the daemon and connect 100 ms later, so this module listens first and
imports the daemon afterwards: clients that connect meanwhile wait in the socket's backlog. That is
why the flags are read from a table here and not by a library.
"""

import gc
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from delayd import __version__, limits
from delayd.cli import terminal
from delayd.compat import Compat
from delayd.exits import Exit
from delayd.net.accept import lack_of_descriptors
from delayd.net.addresses import (
    UNIX_PREFIX,
    Address,
    AddressInvalid,
    CannotListen,
    Listeners,
    inherited_listeners,
    is_local,
    open_listener,
    parse_address,
    tcp_address,
)
from delayd.text import parse_whole, visible

if TYPE_CHECKING:
    from delayd.config import Config

PROGRAM: Final = "delayd-beanstalkd"

VERSION: Final = f"beanstalkd 1.13 (delayd {__version__})"
"""Clients' test suites read from it which commands and replies to expect."""

PAGE_BYTES: Final = 4096
SEGMENT_BYTES_DEFAULT: Final = 10 << 20
"""beanstalkd's `-s`, which its `binlog-max-size` statistic shows."""


FLAGS: Final = {
    "b": ("DIR", "keep the jobs in this directory (default: nothing is kept on disk)"),
    "f": ("MS", "sync the log every MS milliseconds (default: 50); 0: before each reply"),
    "F": ("", "never sync the log; leave it to the operating system"),
    "l": ("ADDR", "listen on this address or unix:PATH (default: 127.0.0.1)"),
    "p": ("PORT", "listen on this port (default: 11300)"),
    "u": ("USER", "become this user and its group once listening"),
    "z": ("BYTES", f"accept bodies up to this size (default: {limits.BODY_BYTES_DEFAULT})"),
    "s": ("BYTES", f"size of each file of the log (default: {SEGMENT_BYTES_DEFAULT})"),
    "c": ("", "ignored"),
    "n": ("", "ignored"),
    "v": ("", "show the version"),
    "V": ("", "log more"),
    "h": ("", "show this help"),
}
"""The name of each flag's argument, if it takes one, and its line of help."""

COMPAT: Final = "--compat"
HELP: Final = "--help"
VERSIONS: Final = [version.value for version in Compat]

BOUNDS: Final = {
    "f": (limits.SYNC_INTERVAL_MS_DEFAULT, 0, limits.SYNC_INTERVAL_MS_MAX),
    "s": (
        SEGMENT_BYTES_DEFAULT,
        limits.JOURNAL_SEGMENT_BYTES_MIN,
        limits.JOURNAL_SEGMENT_BYTES_MAX,
    ),
    "z": (limits.BODY_BYTES_DEFAULT, 0, limits.BODY_BYTES_CEILING),
}
"""Default, lowest and highest number of the flags that take one."""


class UsageError(Exception):
    """The command line is wrong; the message says how."""


class Invocation(NamedTuple):
    """The settings of the command line."""

    answer: str = ""  # text to print instead of serving
    warnings: tuple[str, ...] = ()
    listen: Address = tcp_address("127.0.0.1", "11300")
    user: str | None = None
    data_dir: str | None = None
    sync_interval_ms: int | None = limits.SYNC_INTERVAL_MS_DEFAULT
    """0: sync before each reply; None: never sync."""
    segment_bytes: int = SEGMENT_BYTES_DEFAULT
    body_bytes_max: int = limits.BODY_BYTES_DEFAULT
    is_verbose: bool = False
    compat: Compat = Compat.V1_13


def usage() -> str:
    """The help, from the table."""
    rows = [f" -{letter} {argument:<6} {text}" for letter, (argument, text) in FLAGS.items()]
    rows.append(f" {COMPAT} {'|'.join(VERSIONS)}  answer like this beanstalkd (default: 1.13)")
    return "\n".join([f"Usage: {PROGRAM} [FLAGS]", "", "Flags:", *rows])


def split_flags(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Split the command line into flags and their arguments. Raises `UsageError`."""
    rest_of_line = iter(words)
    for word in rest_of_line:
        if word == HELP:
            yield "h", ""
            continue
        long, equals, argument = word.partition("=")
        if long == COMPAT:  # flags that beanstalkd does not have are no letters
            yield COMPAT, _required(COMPAT, argument if equals else next(rest_of_line, ""))
            continue
        if len(word) < 2 or word[0] != "-":
            raise UsageError(f"unknown argument: {word}")
        letters = word[1:]
        while letters:
            letter, letters = letters[0], letters[1:]
            if letter not in FLAGS:
                raise UsageError(f"unknown flag: -{letter}")
            argument = ""
            if FLAGS[letter][0]:
                # The argument is the rest of the word, or the next word, also with a hyphen.
                argument, letters = letters or next(rest_of_line, ""), ""
                _required(f"-{letter}", argument)
            yield letter, argument


def _required(flag: str, argument: str) -> str:
    if not argument:
        raise UsageError(f"flag requires an argument: {flag}")
    return argument


def parse(words: Sequence[str]) -> Invocation:
    """Read the command line; the last of several equal flags wins. Raises `UsageError`."""
    arguments: dict[str, str] = {}
    warnings: list[str] = []
    for letter, argument in split_flags(words):
        if letter in "vh":
            answer = VERSION if letter == "v" else usage()
            return Invocation(answer=answer, warnings=tuple(warnings))
        if letter in "cn":
            warnings.append(f"-{letter} is ignored")
        if letter in "fF":
            arguments.pop("f", None)
            arguments.pop("F", None)
        arguments[letter] = argument
    numbers = {letter: _bounded(arguments, letter, warnings) for letter in BOUNDS}
    listen = _listen(arguments.get("l", "127.0.0.1"), arguments.get("p", "11300"))
    if not is_local(listen):
        every = f"every client that reaches {listen} can use every job"
        warnings.append(f"{every}: there is no authentication")
    return Invocation(
        warnings=tuple(warnings),
        listen=listen,
        user=arguments.get("u"),
        data_dir=arguments.get("b"),
        sync_interval_ms=None if "F" in arguments else numbers["f"],
        segment_bytes=-(-numbers["s"] // PAGE_BYTES) * PAGE_BYTES,
        body_bytes_max=numbers["z"],
        is_verbose="V" in arguments,
        compat=_compat(arguments.get(COMPAT, Compat.V1_13.value)),
    )


def _bounded(arguments: Mapping[str, str], letter: str, warnings: list[str]) -> int:
    """Read a number, moved to the nearest bound with a warning, as beanstalkd does with `-z`."""
    default, lowest, highest = BOUNDS[letter]
    text = arguments.get(letter)
    if text is None:
        return default
    wanted = parse_whole(text, limits.QUANTITY_CHARACTERS_MAX)
    if wanted is None:
        raise UsageError(f"-{letter} takes a whole number, not {text!r}")
    number = min(max(wanted, lowest), highest)
    if number != wanted:
        warnings.append(f"-{letter} {wanted} was set to {number}")
    return number


def _compat(text: str) -> Compat:
    try:
        return Compat(text)
    except ValueError:
        raise UsageError(f"{COMPAT} takes {' or '.join(VERSIONS)}, not {text!r}") from None


def _listen(host: str, port_text: str) -> Address:
    try:
        if host.startswith(UNIX_PREFIX):
            return parse_address(host)
        return tcp_address(host, port_text)
    except AddressInvalid as error:
        raise UsageError(f"-l {host} -p {port_text} {error}") from error


def listeners_for(request: Invocation, environment: Mapping[str, str], pid: int) -> Listeners:
    """Listen where systemd or else the flags say. Raises `CannotListen`."""
    inherited = inherited_listeners(environment, pid)
    if inherited.line or inherited.http:
        return Listeners(line=inherited.line + inherited.http)
    return Listeners(line=(open_listener(request.listen),))


def become(user: str) -> None:
    """Switch to `user` and its groups for good. Raises `OSError` or `KeyError`."""
    import pwd

    account = pwd.getpwnam(user)
    # In this order: after the user has changed, the groups cannot be changed.
    os.initgroups(user, account.pw_gid)
    os.setgid(account.pw_gid)
    os.setuid(account.pw_uid)


def unreadable() -> str:
    """Return a folder of modules that this user cannot read; some are imported late."""
    folders = (
        os.path.dirname(os.path.dirname(os.path.abspath(__file__))),
        os.path.dirname(os.__file__),
    )
    return next((each for each in folders if not os.access(each, os.R_OK | os.X_OK)), "")


def config_of(request: Invocation) -> "Config":
    """Return delayd's settings for the flags; every address is accepted, since it is explicit."""
    from delayd.config import Config, SyncPolicy
    from delayd.log_lines import LogLevel

    interval_ms = request.sync_interval_ms
    policies = {None: SyncPolicy.NEVER, 0: SyncPolicy.ALWAYS}
    return Config(
        data_dir=request.data_dir,
        insecure_no_auth=True,
        line_listen=request.listen,
        http_listen=None,
        sync=policies.get(interval_ms, SyncPolicy.INTERVAL),
        sync_interval_ms=interval_ms or limits.SYNC_INTERVAL_MS_DEFAULT,
        segment_bytes=request.segment_bytes,
        body_bytes_max=request.body_bytes_max,
        push_enabled=False,
        log_level=LogLevel.DEBUG if request.is_verbose else LogLevel.INFO,
    )


def start(words: Sequence[str], environment: Mapping[str, str]) -> int:
    """Carry out the command line and return the exit code."""
    try:
        request = parse(words)
    except UsageError as error:
        _complain(f"{error}; -h shows the flags")
        return Exit.USAGE
    for warning in request.warnings:
        _complain(warning)
    if request.answer:
        try:
            terminal.print_lines([request.answer])
        except terminal.CommandFailed as error:
            _complain(str(error))
            return error.exit_code
        return Exit.OK
    if lack := lack_of_descriptors():
        _complain(lack)
        return Exit.BAD_CONFIGURATION
    try:
        listeners = listeners_for(request, environment, os.getpid())
    except CannotListen as error:
        _complain(str(error))
        return Exit.CANNOT_LISTEN

    # From here on clients can connect, and the imports take their time. The garbage collector would
    # traverse their definitions repeatedly, for 7 % of the time; `recover` turns it on.
    gc.disable()
    from delayd import service
    from delayd.clock import SystemClock
    from delayd.systemd import Notifier

    if request.user is not None:
        try:
            become(request.user)
        except (KeyError, OSError) as error:
            listeners.close()
            why = error.strerror if isinstance(error, OSError) else "there is no such user"
            _complain(f"cannot become {request.user!r}: {why}")
            return Exit.BAD_CONFIGURATION
        if folder := unreadable():
            listeners.close()
            lack = f"the user {request.user!r} cannot read {folder}, which delayd needs"
            _complain(
                f"{lack} while it runs: install delayd where every user can, such as /opt/delayd"
            )
            return Exit.BAD_CONFIGURATION
    notifier = Notifier(environment, os.getpid())
    return service.run(
        *(config_of(request), listeners, SystemClock(), notifier),
        compat=request.compat,
        prints=False,
    )


def _complain(message: str) -> None:
    print(f"{PROGRAM}: {visible(message)}", file=sys.stderr, flush=True)


def main() -> None:
    """Run the command."""
    terminal.complete()
    sys.exit(start(sys.argv[1:], os.environ))
