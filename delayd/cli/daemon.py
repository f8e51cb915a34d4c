"""What `delayd serve` does, and its options: no library reads them where they are plainly right.

Clients may connect as soon as the sockets are open, so this module opens them before it imports
the daemon. click would take a fifth of the time until the first reply, so the usual command line is
read here, and any other is left to click: help, mistakes, values that begin with a hyphen. Both
read the same table, and a test has both read every combination of words. What `plain_options`
returns is what click passes to `delayd.cli.serve`:

>>> plain_options(["--line", "127.0.0.1:0", "--http=off", "--insecure-no-auth"])
{'--line': '127.0.0.1:0', '--http': 'off', '--insecure-no-auth': 'true'}
>>> print(plain_options(["--line", "127.0.0.1:0", "--help"]))
None
"""

import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, NoReturn

from delayd.cli.terminal import CommandFailed, complete, load_config, require_psycopg
from delayd.exits import Exit
from delayd.net.accept import lack_of_descriptors
from delayd.net.addresses import (
    Address,
    CannotListen,
    Listener,
    Listeners,
    inherited_listeners,
    open_listener,
)

if TYPE_CHECKING:
    from delayd.config import Config

CONFIG_OPTION: Final = "--config"
OPTIONS: Final = {
    CONFIG_OPTION: ("FILE", "TOML file; see config.example.toml."),
    "--data-dir": ("DIR", "The directory of the jobs."),
    "--postgres": ("URL", "The PostgreSQL that keeps the jobs, in place of a directory."),
    "--line": (
        "ADDRESS",
        "Where the line protocol listens: HOST:PORT, unix:PATH or off; port 0 is any free one.",
    ),
    "--http": ("ADDRESS", "Where the HTTP API listens; the same forms."),
    "--sync": ("POLICY", "When jobs reach the disk: always, interval, never."),
    "--log-format": ("FORMAT", "The form of the log: text or json."),
    "--clock": ("CLOCK", "The clock: system, or virtual for tests."),
    "--insecure-no-auth": (
        "",
        "Serve on addresses that other machines can reach, without authentication.",
    ),
}
"""The name of each option's argument, if it takes one, and its line of help."""
TRUE: Final = "true"
"""What an option says that takes none."""


def plain_options(words: Sequence[str]) -> dict[str, str] | None:
    """Return the options with their arguments if the words are nothing else, otherwise None.

    The last of several equal options wins, and they stay in the order given, as with click.
    """
    options: dict[str, str] = {}
    rest_of_line = iter(words)
    for word in rest_of_line:
        option, equals, argument = word.partition("=")
        if option not in OPTIONS:
            return None
        takes_argument = OPTIONS[option][0] != ""
        if takes_argument and not equals:
            argument = next(rest_of_line, "-")
        if argument.startswith("-") or (equals and not takes_argument):
            return None
        options[option] = argument if takes_argument else TRUE
    return options


def main(options: Mapping[str, str]) -> NoReturn:
    """Run the command for such options, as `delayd.cli.main` does."""
    complete()
    try:
        exit_code = run(options)
    except CommandFailed as failed:
        exit_code = failed.complain()
    sys.exit(exit_code)


def run(options: Mapping[str, str]) -> int:
    """Run the daemon until it is stopped. Raises CommandFailed."""
    config = load_config(
        options.get(CONFIG_OPTION),
        {flag: given for flag, given in options.items() if flag != CONFIG_OPTION},
    )
    if "--data-dir" in options and config.postgres_url is not None:
        rule = (
            "--data-dir: jobs are in the database of postgres.url; --postgres off keeps them here"
        )
        raise CommandFailed(Exit.BAD_CONFIGURATION, rule)
    if lack := lack_of_descriptors():
        raise CommandFailed(Exit.BAD_CONFIGURATION, lack)
    if config.postgres_url is not None:
        require_psycopg("postgres.url", Exit.BAD_CONFIGURATION)
        if os.environ.get("LISTEN_PID") == str(os.getpid()):
            rule = "postgres.url: sockets of systemd take clients while another daemon owns the log"
            raise CommandFailed(Exit.BAD_CONFIGURATION, rule)
    try:
        listeners = open_listeners(config, os.environ, os.getpid())
    except CannotListen as error:
        raise CommandFailed(Exit.CANNOT_LISTEN, str(error)) from error
    # From here on clients can connect, and the imports take their time.

    from delayd import service
    from delayd.clock import SystemClock, VirtualClock
    from delayd.config import ClockKind
    from delayd.systemd import Notifier

    clock = VirtualClock() if config.clock is ClockKind.VIRTUAL else SystemClock()
    notifier = Notifier(os.environ, os.getpid())
    return service.run(config, listeners, clock, notifier)


def open_listeners(config: "Config", environment: Mapping[str, str], pid: int) -> Listeners:
    """Listen where systemd or else the configuration says.

    Sockets from systemd replace the configured address of their protocol, and the same rules apply
    to them. Where another daemon may own the log, the line does not listen yet. Raises
    `CannotListen` or `CommandFailed`; then nothing is open.
    """
    from delayd.config import exposed

    inherited = inherited_listeners(environment, pid)
    errors = [
        str(error)
        for listeners, has_tls in (
            (inherited.line, config.line_tls),
            (inherited.http, config.http_tls),
        )
        for listener in listeners
        for error in exposed(config, "systemd", listener.address, has_tls=has_tls)
    ]
    if errors:
        inherited.close()
        raise CommandFailed(Exit.BAD_CONFIGURATION, *errors)
    opened = inherited
    try:
        if not opened.line:
            opened = opened._replace(
                line=_opened(
                    config.line_listen, config.line_unix_mode, listens=config.postgres_url is None
                )
            )
        if not opened.http:
            opened = opened._replace(http=_opened(config.http_listen, config.http_unix_mode))
    except CannotListen:
        opened.close()
        raise
    return opened


def _opened(
    address: Address | None, unix_mode: int, *, listens: bool = True
) -> tuple[Listener, ...]:
    if address is None:
        return ()
    return (open_listener(address, unix_mode=unix_mode, listens=listens),)
