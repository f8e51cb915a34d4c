"""What people read of delayd, and what a replay refuses, as JSON: for `test_optimized.py`.

It runs in processes of its own, `python` and `python -OO`, so it asserts nothing.
"""

import json
import sys
from collections.abc import Iterator

import click

from delayd.cli.main import delayd
from delayd.core.engine import Engine
from delayd.core.errors import Refusal
from delayd.core.job_parts import Flag
from delayd.core.job_record import HEADER, State
from delayd.core.log_records import LAYOUTS, Kind, UnknownRecord
from delayd.core.replay import Replay
from delayd.http import openapi, routes
from delayd.line import commands, replies


def helps(command: click.Command, *names: str) -> Iterator[tuple[str, str]]:
    """Every command with its help."""
    context = click.Context(command, info_name=" ".join(names))
    yield context.command_path, command.get_help(context)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            if below is not None:
                yield from helps(below, *names, name)


def refusals(kind: type[Refusal]) -> Iterator[tuple[str, str]]:
    """The kind and the title of every refusal."""
    for below in kind.__subclasses__():
        yield from refusals(below)
        yield getattr(below, "kind", ""), getattr(below, "title", "")


def job(number: int, flags: int, state: State, body: bytes = b"") -> bytes:
    """The PUT of a job of topic 1."""
    record = HEADER.pack(number, 5, 0, 60_000, 0, 1, state, flags) + body
    return LAYOUTS[Kind.PUT].pack(Kind.PUT, len(record)) + record


def misfits() -> Iterator[tuple[str, str]]:
    """What a replay says of records that do not fit what came before."""
    topic = LAYOUTS[Kind.TOPIC].pack(Kind.TOPIC, 1, 4) + b"mail"
    payloads = {
        "a job that is not there": LAYOUTS[Kind.DELETE].pack(Kind.DELETE, 7),
        "a key longer than its job": topic + job(1, int(Flag.KEY), State.READY, b"\x0bab"),
        "one key twice": topic + job(1, 1, State.READY, b"\1a") + job(2, 1, State.READY, b"\1a"),
        "a rank of one that is not buried": topic
        + job(1, 0, State.READY)
        + LAYOUTS[Kind.RANK].pack(Kind.RANK, 1, 1),
    }
    for name, payload in payloads.items():
        try:
            Replay(Engine(start_ms=0)).play(payload)
        except UnknownRecord:
            yield name, "refused"
        else:
            yield name, "taken for good"


if __name__ == "__main__":
    said = {
        "helps": dict(helps(delayd, "delayd")),
        "openapi": openapi.document(routes.ROUTES),
        "refusals": dict(refusals(Refusal)),
        "misfits": dict(misfits()),
        "commands": [command.word.decode() for command in commands.COMMANDS],
        "kinds": sorted(replies.KINDS.values()),
    }
    json.dump(said, sys.stdout)
