"""`delayd serve`: the daemon. Its sockets are open before it is imported."""

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

import click

from delayd.cli.terminal import CommandFailed, examples, load_config, require_psycopg
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


@click.command(
    epilog=examples(
        "delayd serve --data-dir /var/lib/delayd",
        "delayd serve --config /etc/delayd/delayd.toml",
        "delayd serve --data-dir data --line 127.0.0.1:0 --http off",
    )
)
@click.option("--config", "path", metavar="FILE", help="TOML file; see config.example.toml.")
@click.option("--data-dir", metavar="DIR", help="The directory of the jobs.")
@click.option(
    "--postgres", metavar="URL", help="The PostgreSQL that keeps the jobs, in place of a directory."
)
@click.option(
    "--line",
    metavar="ADDRESS",
    help="Where the line protocol listens: HOST:PORT, unix:PATH or off; port 0 is any free one.",
)
@click.option("--http", metavar="ADDRESS", help="Where the HTTP API listens; the same forms.")
@click.option("--sync", metavar="POLICY", help="When jobs reach the disk: always, interval, never.")
@click.option("--log-format", metavar="FORMAT", help="The form of the log: text or json.")
@click.option("--clock", metavar="CLOCK", help="The clock: system, or virtual for tests.")
@click.option(
    "--insecure-no-auth",
    is_flag=True,
    default=None,
    help="Serve on addresses that other machines can reach, without authentication.",
)
def serve(path: str | None, **flags: object) -> int:
    """Run the daemon until it is stopped.

    SIGTERM and SIGINT stop it gracefully; SIGUSR1 makes it refuse new jobs. Flags override
    variables (DELAYD_...), variables the file, and the file the defaults.
    """
    config = load_config(path, {f"--{name.replace('_', '-')}": flags[name] for name in flags})
    if flags["data_dir"] is not None and config.postgres_url is not None:
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
