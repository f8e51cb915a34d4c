"""`delayd version`: what to say in a report of a fault."""

import platform

import click

from delayd import __version__
from delayd.build import is_compiled
from delayd.cli.help import examples
from delayd.cli.terminal import print_lines
from delayd.exits import Exit


@click.command(epilog=examples("delayd version"))
def version() -> int:
    """Show the versions of delayd and Python, and whether delayd is compiled."""
    kind = "compiled" if is_compiled() else "not compiled"
    print_lines([f"delayd {__version__} ({kind}; Python {platform.python_version()})"])
    return Exit.OK
