"""`delayd serve` as click has it: its help, and what is wrong with a command line.

The options and what the command does are in `delayd.cli.daemon`.
"""

import click

from delayd.cli import daemon
from delayd.cli.parameters import command


@command(
    "delayd serve --data-dir /var/lib/delayd",
    "delayd serve --config /etc/delayd/delayd.toml",
    "delayd serve --data-dir data --line 127.0.0.1:0 --http off",
    params=[
        click.Option([option], metavar=argument, help=text)
        if argument
        else click.Option([option], is_flag=True, flag_value=daemon.TRUE, default=None, help=text)
        for option, (argument, text) in daemon.OPTIONS.items()
    ],
)
def serve(**arguments: str | None) -> int:
    """Run the daemon until it is stopped.

    SIGTERM and SIGINT stop it gracefully; SIGUSR1 makes it refuse new jobs. Flags override
    variables (DELAYD_...), variables the file, and the file the defaults.
    """
    return daemon.run(
        {
            f"--{name.replace('_', '-')}": argument
            for name, argument in arguments.items()
            if argument is not None
        }
    )
