"""`delayd worker MODULE:APP`: work on the tasks of a Python program (`delayd.client.tasks`).

The program has its own client, and with it the address and the token. The first SIGTERM or Ctrl-C
ends the reserving, and tasks that run may finish; the second gives their jobs back, and ends it; a
third ends it at once. With `--reload` a parent process looks at the Python files below the working
directory each second, and starts the worker again when one has changed, gracefully too.
"""

import importlib
import logging
import os
import sys
from typing import TYPE_CHECKING, Any, Final

import click

from delayd.cli.connect import client_errors
from delayd.cli.parameters import command
from delayd.cli.terminal import CommandFailed, complain
from delayd.client.reloader import Reloader
from delayd.exits import Exit
from delayd.text import did_you_mean

if TYPE_CHECKING:
    from delayd.client.tasks import Tasks

LOG_FORMAT: Final = "%(asctime)s %(levelname)s %(message)s"


@command(
    "delayd worker shop.tasks:app",
    "delayd worker shop.tasks:app --concurrency 16 --topic mail --topic sms",
    "delayd worker tasks:app --reload",
)
@click.argument("app", metavar="MODULE:APP")
@click.option("--concurrency", type=click.IntRange(1, 1000), default=8, help="Tasks at once: 8.")
@click.option("--topic", "topics", multiple=True, help="Only this topic; by default those of all.")
@click.option("--reload", is_flag=True, help="Start again when a Python file has changed.")
def worker(app: str, *, concurrency: int, topics: tuple[str, ...], reload: bool) -> int:
    """Work on the tasks of APP, a Tasks object in the Python module MODULE.

    The module is looked for in the working directory first. Reservations are extended while tasks
    run. The first SIGTERM or Ctrl-C lets them finish. The second ends it, and gives their jobs
    back without counting an attempt.
    """
    if reload:
        only = [word for topic in topics for word in ("--topic", topic)]
        how = ("worker", app, "--concurrency", str(concurrency), *only)
        return Reloader([sys.executable, "-m", "delayd", *how], complain).run()
    logging.basicConfig(format=LOG_FORMAT, level=logging.INFO)
    tasks = found(app)
    if unknown := [topic for topic in topics if topic not in tasks.topics]:
        near = did_you_mean(unknown[0], tasks.topics)
        raise CommandFailed(Exit.USAGE, f"no task of {app} has the topic {unknown[0]!r}{near}")
    with client_errors():
        tasks.run(concurrency=concurrency, topics=list(topics) or None)
    return Exit.OK


def found(app: str) -> "Tasks[Any, Any]":
    """Return the tasks of MODULE:APP. Raises CommandFailed."""
    from delayd.client.tasks import Tasks

    name, colon, attribute = app.partition(":")
    if not (name and colon and attribute):
        raise CommandFailed(Exit.USAGE, f"{app!r}: write MODULE:APP, such as tasks:app")
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise CommandFailed(Exit.USAGE, f"{name} cannot be imported: {_why(error)}") from error
        where = f"neither in {here} nor among what is installed"
        raise CommandFailed(Exit.USAGE, f"there is no module {error.name!r}, {where}") from None
    except Exception as error:
        raise CommandFailed(Exit.USAGE, f"{name} cannot be imported: {_why(error)}") from error
    names = [each for each, value in vars(module).items() if isinstance(value, Tasks)]
    tasks = getattr(module, attribute, None)
    if not isinstance(tasks, Tasks):
        what = f"a {type(tasks).__name__}" if hasattr(module, attribute) else "not there"
        have = f"; it has {', '.join(names)}" if names else "; it has no Tasks object"
        raise CommandFailed(Exit.USAGE, f"{attribute!r} in {name} is {what}{have}")
    if not tasks.tasks:
        raise CommandFailed(Exit.USAGE, f"{app} has no tasks")
    return tasks


def _why(error: Exception) -> str:
    """Return the exception of an import, and the line that has raised it."""
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    place = ""
    if traceback is not None and not isinstance(error, SyntaxError):  # which names its place itself
        place = f" ({traceback.tb_frame.f_code.co_filename}:{traceback.tb_lineno})"
    return f"{type(error).__name__}: {error}{place}"
