"""`delayd`: the command with its subcommands.

A subcommand reads the command line, the environment and the configuration once, calls the one thing
that does the work, and returns an exit code of `delayd/exits.py`. It imports what it needs when it
runs: `serve` has its sockets open before it imports the daemon.
"""

import importlib
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

import click

from delayd import __version__
from delayd.build import is_compiled
from delayd.cli.terminal import (
    CommandFailed,
    cannot_write,
    complain,
    complete,
    load_config,
    print_lines,
)
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

INTERRUPTED: Final = 128 + 2  # how shells report a process that ended by Ctrl-C

PRINTED_BY_CLICK: Final = frozenset(("-h", "--help", "--version"))
"""Flags that click answers itself, before any command runs; it raises what the output raises."""

TOOLS: Final = ("import-beanstalkd", "journal", "token")
"""Commands that have a module of their own, named like them and loaded when they are needed."""


class Commands(click.Group):
    """The subcommands: those of this module, and the tools."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return all names, in their order in the help."""
        return sorted([*super().list_commands(ctx), *TOOLS])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command of that name, if there is one."""
        if cmd_name not in TOOLS:
            return super().get_command(ctx, cmd_name)
        name = cmd_name.replace("-", "_")
        command: click.Command = getattr(importlib.import_module(f"delayd.cli.{name}"), name)
        return command


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, message="%(prog)s %(version)s")
def delayd() -> None:
    """Keep jobs safe until they are due, then hand them to workers."""


@delayd.command()
def version() -> int:
    """Show the versions of delayd and of its Python, and whether delayd is compiled."""
    kind = "compiled" if is_compiled() else "not compiled"
    print_lines([f"delayd {__version__} ({kind}; Python {platform.python_version()})"])
    return Exit.OK


@delayd.command()
@click.option("--config", "path", metavar="FILE", help="TOML file; see config.example.toml.")
@click.option("--data-dir", metavar="DIR", help="The directory of the jobs.")
@click.option("--line", metavar="ADDRESS", help="HOST:PORT, unix:PATH or off; port 0: any.")
@click.option("--http", metavar="ADDRESS", help="The same for the HTTP API.")
@click.option("--sync", metavar="POLICY", help="always, interval or never.")
@click.option("--log-format", metavar="FORMAT", help="text or json.")
@click.option("--clock", metavar="CLOCK", help="system, or virtual for tests.")
@click.option(
    "--insecure-no-auth",
    is_flag=True,
    default=None,
    help="Serve on addresses that other machines can reach, without authentication.",
)
def serve(path: str | None, **given: object) -> int:
    """Run the daemon until it is stopped.

    SIGTERM and SIGINT stop it gracefully; SIGUSR1 makes it refuse new jobs. Flags override
    variables (DELAYD_...), variables the file, and the file the defaults.
    """
    config = load_config(path, {f"--{name.replace('_', '-')}": given[name] for name in given})
    if lack := lack_of_descriptors():
        raise CommandFailed(Exit.BAD_CONFIGURATION, lack)
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
    return service.run(config, listeners, clock, Notifier(os.environ, os.getpid()))


def open_listeners(config: "Config", environment: Mapping[str, str], pid: int) -> Listeners:
    """Listen where systemd or else the configuration says.

    Sockets from systemd replace the configured address of their protocol, and the same rules apply
    to them. Raises `CannotListen` or `CommandFailed`; then nothing is open.
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
            opened = opened._replace(line=_opened(config.line_listen, config.line_unix_mode))
        if not opened.http:
            opened = opened._replace(http=_opened(config.http_listen, config.http_unix_mode))
    except CannotListen:
        opened.close()
        raise
    return opened


def _opened(address: Address | None, unix_mode: int) -> tuple[Listener, ...]:
    return () if address is None else (open_listener(address, unix_mode=unix_mode),)


def invoke(words: Sequence[str]) -> int:
    """Run the command line and return its exit code."""
    try:
        return int(delayd.main(args=list(words), prog_name="delayd", standalone_mode=False) or 0)
    except click.ClickException as wrong:
        wrong.show()
        return Exit.USAGE
    except click.Abort:
        return INTERRUPTED
    except CommandFailed as failed:
        from delayd.access.errors import redacted

        for error in failed.errors:
            complain(redacted(error))  # a token in the arguments is not repeated
        return failed.exit_code
    except OSError as error:
        if PRINTED_BY_CLICK.isdisjoint(words):
            raise
        complain(str(cannot_write(error)))
        return Exit.USAGE
    except SystemExit:
        return Exit.OK  # click ends with 1 when the reader of its help stops early


def main() -> None:
    """Run the command."""
    complete()
    sys.exit(invoke(sys.argv[1:]))
