"""How a command is made, and the types of its arguments: durations, times, and both.

Each value is checked here, where the option can be named, and passed on as written: the daemon
reads the same texts.
"""

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, TypeAlias, TypeVar

import click

from delayd.durations import DURATION_RULE, INTERVAL_RULE, parse_duration_ms
from delayd.moments import moment_text, parse_moment_ms
from delayd.text import parse_whole

SECONDS_SINCE_1970: Final = r"\d{9,}(\.\d+)?"
"""A number of seconds that is a time: as a duration it would be 30 years and more."""
BOUND_RULE: Final = 'must be a time such as 2026-11-21T19:00:00Z, or from now: "1h", "-15m", "now"'


Run: TypeAlias = Callable[..., int | None]
"""The function of a command; it returns an exit code, or None for `Exit.OK`."""
Made: TypeAlias = Callable[[Run], click.Command]


def command(*examples: str, make: Callable[..., Made] = click.command, **settings: Any) -> Made:
    """Make a function a command of its name, whose help ends with lines to type, not wrapped.

    A `_` at the end of the name, which Python has uses for without it, is left out.
    """
    lines = "\n  ".join(("\b\nExamples:", *examples))

    def made(run: Run) -> click.Command:
        name = run.__name__.rstrip("_").replace("_", "-")
        return make(name, epilog=lines, **settings)(run)

    return made


class Subcommands(click.Group):
    """Commands below one: `delayd dead list`, `delayd dead show`."""

    def command(self, *examples: str, **settings: Any) -> Made:  # type: ignore[override]  # `command`
        """Make a function one of them."""
        return command(*examples, make=super().command, **settings)


def takes(*options: Callable[..., Any]) -> Callable[[Run], Run]:
    """Give a command these options."""

    def decorate(run: Run) -> Run:
        for option in reversed(options):
            run = option(run)
        return run

    return decorate


T = TypeVar("T")


class Checked(click.ParamType[T]):
    """A parameter that a function reads, or refuses with `ValueError` and the rule."""

    def __init__(self, name: str, read: Callable[[str], T]) -> None:
        self.name = name
        self._read = read

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> T:
        """Return the value."""
        try:
            return self._read(str(value))
        except ValueError as error:
            self.fail(f"{str(value)!r} {error}", param, ctx)


def _duration(text: str) -> str:
    parse_duration_ms(text)
    return text


def _interval(text: str) -> str:
    try:
        return _duration(text)
    except ValueError as broken:
        raise ValueError(str(broken).replace(DURATION_RULE, INTERVAL_RULE)) from None


def _moment(text: str) -> str:
    if re.fullmatch(SECONDS_SINCE_1970, text):
        return moment_text(parse_moment_ms(float(text)))
    parse_moment_ms(text)
    return text


def _bound(text: str) -> str:
    if text == "now":
        return "0s"
    try:
        parse_duration_ms(text.removeprefix("-"))
    except ValueError:
        try:
            return _moment(text)
        except ValueError:
            raise ValueError(BOUND_RULE) from None
    return text


def _job(of_topic: str, text: str) -> int:
    number = parse_whole(text)
    if number is None:
        raise ValueError(f"is not the number of a job; {of_topic}")
    return number


def _priority(text: str) -> int:
    number = parse_whole(text)
    if number is None or number >= 1 << 32:
        raise ValueError(f"must be from 0 to {(1 << 32) - 1}")
    return number


JOB: Final = Checked("number", partial(_job, "a topic is named by --topic"))
DEAD_JOB: Final = Checked("number", partial(_job, "those of a topic are in delayd dead list TOPIC"))
DURATION: Final = Checked("duration", _duration)
"""`30m`, `1h30m`, `0.25`."""
INTERVAL: Final = Checked("duration", _interval)
"""The same, where weeks and days are common."""
MOMENT: Final = Checked("time", _moment)
"""`2026-11-21T19:00:00Z`, or seconds since 1970; RFC 3339."""
BOUND: Final = Checked("time or duration", _bound)
"""A time, or how far it is from now: `1h`, `-15m`, `now`."""
PRIORITY: Final = Checked("number", _priority)
"""0, the most urgent, to 4,294,967,295."""

DRY_RUN: Final = click.option(
    "--dry-run", is_flag=True, help="Change nothing; say how many jobs would be changed."
)
YES: Final = click.option("--yes", is_flag=True, help="Do not ask for confirmation.")


def parts_of(values: Sequence[str]) -> list[str]:
    """Return the values of an option that is repeated, or has several with commas between."""
    return [part for value in values for part in value.split(",")]
