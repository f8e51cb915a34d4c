"""What people may write on the command line: durations, times, and both.

Each is checked here, where the option can be named, and passed on as it was written: the daemon
reads the same texts.
"""

import re
from collections.abc import Callable
from typing import Any, Final

import click

from delayd.text import moment_text, parse_duration_ms, parse_moment_ms, parse_whole

SECONDS_SINCE_1970: Final = r"\d{9,}(\.\d+)?"
"""A number of seconds that is a time: as a duration it would be 30 years and more."""
BOUND_RULE: Final = 'must be a time such as 2026-11-21T19:00:00Z, or from now: "1h", "-15m", "now"'


def takes(*options: Callable[..., Any]) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Give a command these options."""

    def decorate(command: Callable[..., int]) -> Callable[..., int]:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


class DurationParameter(click.ParamType["str"]):
    """`30m`, `1h30m`, `0.25`."""

    name = "duration"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> str:
        """Return the text of a duration."""
        try:
            parse_duration_ms(value)
        except ValueError as error:
            self.fail(f"{str(value)!r} {error}", param, ctx)
        return str(value)


class MomentParameter(click.ParamType["str"]):
    """`2026-11-21T19:00:00Z`, or seconds since 1970."""

    name = "time"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> str:
        """Return the time as RFC 3339."""
        text = str(value)
        try:
            if re.fullmatch(SECONDS_SINCE_1970, text):
                return moment_text(parse_moment_ms(float(text)))
            parse_moment_ms(text)
        except ValueError as error:
            self.fail(f"{text!r} {error}", param, ctx)
        return text


class BoundParameter(click.ParamType["str"]):
    """A time, or how far it is from now: `1h`, `-15m`, `now`."""

    name = "time or duration"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> str:
        """Return the bound as the daemon reads it."""
        text = str(value)
        if text == "now":
            return "0s"
        try:
            parse_duration_ms(text.removeprefix("-"))
        except ValueError:
            try:
                return MOMENT.convert(text, param, ctx)
            except click.BadParameter:
                self.fail(f"{text!r} {BOUND_RULE}", param, ctx)
        return text


class PriorityParameter(click.ParamType["int"]):
    """0, the most urgent, to 4,294,967,295."""

    name = "number"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        """Return the number."""
        number = parse_whole(str(value))
        if number is None or number >= 1 << 32:
            self.fail(f"{str(value)!r} must be from 0 to {(1 << 32) - 1}", param, ctx)
        return number


DURATION: Final = DurationParameter()
MOMENT: Final = MomentParameter()
BOUND: Final = BoundParameter()
PRIORITY: Final = PriorityParameter()
