"""`delayd version`: what to say in a report of a fault."""

import platform

from delayd import __version__
from delayd.build_kind import is_compiled
from delayd.cli.parameters import command
from delayd.cli.tables import JSON_OPTION, print_json
from delayd.cli.terminal import print_lines


@command("delayd version", "delayd version --json")
@JSON_OPTION
def version(*, as_json: bool) -> None:
    """Show the versions of delayd and Python, and whether delayd is compiled."""
    python = platform.python_version()
    if as_json:
        print_json([{"version": __version__, "compiled": is_compiled(), "python": python}])
        return
    kind = "compiled" if is_compiled() else "not compiled"
    print_lines([f"delayd {__version__} ({kind}; Python {python})"])
