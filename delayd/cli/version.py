"""`delayd version`: what to say in a report of a fault."""

import platform

from delayd import __version__
from delayd.build_kind import is_compiled
from delayd.cli.parameters import command
from delayd.cli.tables import JSON_OPTION, print_answer


@command("delayd version", "delayd version --json")
@JSON_OPTION
def version(*, as_json: bool) -> None:
    """Show the versions of delayd and Python, and whether delayd is compiled."""
    python, kind = platform.python_version(), "compiled" if is_compiled() else "not compiled"
    fields = {"version": __version__, "compiled": is_compiled(), "python": python}
    print_answer(fields, f"delayd {__version__} ({kind}; Python {python})", as_json=as_json)
