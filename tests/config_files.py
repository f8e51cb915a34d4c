"""What tests of the configuration share: good values of every setting, a file, and its errors."""

import datetime as dt
import json
import math
import re
from collections.abc import Iterator
from ipaddress import ip_network
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from delayd.config import SETTINGS, Config, ConfigErrors, SinkSection, load
from delayd.core.policy import Patterns, Policy
from delayd.core.targets import Target
from delayd.durations import parse_duration_ms, parse_size_bytes, size_text
from delayd.fields import Field, Schema
from delayd.net.addresses import TcpAddress, UnixAddress
from delayd.schedules.definition import Definition

PROJECT = Path(__file__).parent.parent
EXAMPLE = PROJECT / "config.example.toml"
OPERATIONS = PROJECT / "docs" / "operations.md"


def written(directory: Path, text: str) -> str:
    """Write a configuration file and return its path."""
    path = directory / "delayd.toml"
    path.write_text(text)
    return str(path)


def errors_of(
    path: str | None = None,
    environment: dict[str, str] | None = None,
    flags: dict[str, object] | None = None,
) -> list[str]:
    with pytest.raises(ConfigErrors) as caught:
        load(path, environment or {}, flags or {})
    errors = [str(error) for error in caught.value.errors]
    assert str(caught.value) == "\n".join(errors)
    return [error.removeprefix(f"{path}: ") for error in errors]


Good = tuple[tuple[str, str | None, object], ...]


class Values(NamedTuple):
    """Values of a setting."""

    good: Good
    """As TOML, as a variable has it, and what that is; one is not the default."""
    rule: str
    """What begins the rule that the others break."""
    wrong: tuple[str, ...]
    """As TOML."""
    wrong_text: tuple[str, ...]
    """In a variable and a flag."""


PUSHED: Final = Policy(ttr_ms=120_000, push=Target(url="https://h/?q=1"))
ODD: Final = {'a "b"': [1, {"on": dt.date(2030, 1, 1), "at": dt.time(9)}], "end": math.inf}
NETWORKS: Final = (ip_network("10.1.0.0/16"), ip_network("::1"))
LINE: Final = UnixAddress("/run/delayd/line.sock")
HTTP_LISTEN: Final = (
    ('"off"', "off", None),
    ('"192.0.2.7:1"', "192.0.2.7:1", TcpAddress("192.0.2.7", 1)),
    ('"[::1]:0"', "[::1]:0", TcpAddress("::1", 0)),
)
MODES: Final = (('"0600"', "600", 0o600), ('"666"', "0666", 0o666))
IDS: Final = (
    ("[0, 4294967294]", "4294967294,0", frozenset({0, 2**32 - 2})),
    ("[33]", "33", frozenset({33})),
    ('"off"', "off", None),
)
DATABASE: Final = "postgres://ada@a:5433,b/jobs?sslmode=require"
HOST: Final = "db-a.example.com"
GOOD: Final[dict[str, Good]] = {
    "line.listen": ((f'"{LINE}"', str(LINE), LINE), *HTTP_LISTEN),
    "http.listen": HTTP_LISTEN,
    "line.unix_mode": MODES,
    "http.unix_mode": MODES,
    "http.hosts": (
        ('["jobs.example.com", "B_2"]', "jobs.example.com,B_2", ("jobs.example.com", "b_2")),
        ("[]", "", ()),
    ),
    "auth.unix_uids": IDS,
    "auth.unix_gids": IDS,
    "postgres.url": ((f'"{DATABASE}"', DATABASE, DATABASE), ('"off"', "off", None)),
    "postgres.name": (('"jobs_2"', "jobs_2", "jobs_2"), ('"delayd"', "delayd", "delayd")),
    "postgres.address": (
        *((f'"{HOST}"', HOST, HOST), ('"2001:db8::1"', "2001:db8::1", "2001:db8::1")),
        ('"off"', "off", None),
    ),
    "postgres.accept": (('["fsync"]', "fsync", ("fsync",)), ("[]", "", ())),
    "topics": (
        (
            '{"mail.*" = {ttr = "2m", push = {url = "https://h/?q=1"}}}',
            '{"mail.*": {"ttr": "2m", "push": {"url": "https://h/?q=1"}}}',
            Patterns({"mail.*": PUSHED}),
        ),
    ),
    "schedules": (
        (
            '{"a/b" = {topic = "t", cron = "@daily", start = 2030-01-01T00:00:00Z, body = ""}}',
            '{"a/b": {"topic": "t", "cron": "@daily", "start": 1893456000, "body": ""}}',
            {"a/b": (Definition(topic="t", cron="@daily", start_ms=1_893_456_000_000), b"")},
        ),
        (
            '{b = {topic = "t", every = 5, body_base64 = "/w=="}}',
            '{"b": {"topic": "t", "every": "5s", "body_base64": "/w=="}}',
            {"b": (Definition(topic="t", every_ms=5_000), b"\xff")},
        ),
    ),
    "push.hosts": (
        ('["*.Example.com", "::1"]', "*.Example.com,::1", ("*.example.com", "::1")),
        ("[]", "", ()),
    ),
    "push.private_networks": (('["10.1.0.0/16", "::1"]', "10.1.0.0/16,::1/128", NETWORKS),),
    "push.ports": (("[1, 65535]", "1,65535", (1, 65_535)),),
    "push.sign_with": (
        ('["orders", "orders.old"]', "orders,orders.old", ("orders", "orders.old")),
    ),
    "sinks": (
        (
            '{a={kind="\\U0001f600", "a \\"b\\""=[1, {on=2030-01-01, at=09:00:00}], end=inf}}',
            None,
            {"a": SinkSection("\U0001f600", ODD)},
        ),
    ),
}


def _own() -> Iterator[tuple[str, Values]]:
    """Of settings whose schema does not say what they may be; the wrong ones in a file of text."""
    text = (Path(__file__).parent / "config_values.txt").read_text(encoding="utf-8")
    for row in re.sub(r"\n +", " ", re.sub(r"(?m)^#.*\n", "", text)).strip().splitlines():
        names, rule, *wrong = (column.strip() for column in row.split(" | "))
        in_file, as_text = (column.split(" ; ") for column in wrong)
        as_text = [json.loads(each) if each.startswith('"') else each for each in as_text]
        for name in names.split(", "):
            yield name, Values(GOOD[name], rule, tuple(in_file), tuple(as_text))


OWN: Final = dict(_own())
PATH: Final = Values(
    (
        ("'/t\"\\.json'", '/t"\\.json', '/t"\\.json'),
        ('"/jobs\\u202e😀"', "/jobs\u202e😀", "/jobs\u202e😀"),
    ),
    "must be the path of a ",
    ("1",),
    ("", "a\0b"),
)
EMPTY: Final[Good] = ()
BOUNDS: Final = re.compile(
    r"([0-9,]+)(?: (ms|s|B|KiB|MiB))? to ([0-9,]+)(?: (s|min|h|KiB|MiB|GiB)\b)?"
)
ROW: Final = r"^\| `([a-z_.]+)` \| `DELAYD_[A-Z_]+` \| [^|]+ \| (.*) \|$"
PAGE: Final = dict(re.findall(ROW, OPERATIONS.read_text(), re.MULTILINE))
"""What the page for operators says of the values of each setting."""


def values_of(setting: Field) -> Values:
    """Return what its schema describes and the page says, or what it has of its own."""
    if setting.name in OWN:
        return OWN[setting.name]
    schema, off = setting.kind.schema, EMPTY
    if {"const": "off"} in schema.get("anyOf", ()):
        schema, off = schema["anyOf"][0], (('"off"', "off", None),)
    if "enum" in schema:
        good = tuple((f'"{word}"', word, setting.kind.read(word)) for word in schema["enum"])
        return Values(good, "must be one of ", ("1", '"ALWAYS"'), ("", "ALWAYS"))
    if schema.get("type") == "boolean":
        good = (("true", "true", True), ("false", "false", False))
        return Values(good, "must be true or false", ("1", '"true"'), ("", "1", "True"))
    values = PATH if schema.get("type") == "string" else between(setting.name, schema)
    return values._replace(good=values.good + off)


def between(name: str, schema: Schema) -> Values:
    """Return the bounds of a quantity, which the page tells too, and what is just beyond them."""
    said = BOUNDS.match(PAGE[name])
    if schema.get("type") == "integer":
        lowest, highest = schema["minimum"], schema["maximum"]
        assert said is None or (whole(said[1]), whole(said[3])) == (lowest, highest)
        good = tuple((f"{number}", f"{number}", number) for number in (lowest, highest))
        beyond = (f"{lowest - 1}", f"{highest + 1}")
        rule = f"must be a whole number from {lowest} to {highest}"
        return Values(good, rule, (*beyond, "1.5", "true", f'"{lowest}"'), ("", *beyond))
    first = schema["anyOf"][0]
    if first["type"] == "number":
        assert said is not None
        lowest, highest = (round(first[end] * 1_000) for end in ("minimum", "maximum"))
        highest_text = f"{said[3]}{said[4]}".replace("min", "m")
        told = parse_duration_ms(f"{said[1]}{said[2] or ''}"), parse_duration_ms(highest_text)
        assert told == (lowest, highest)
        good = (
            (f'"{lowest}ms"', f"{lowest / 1_000}", lowest),
            (f"{highest / 1_000}", highest_text, highest),
        )
        beyond = (f"{lowest - 0.1}ms", f"{highest + 0.1}ms")
        return Values(good, "must be ", (*(f'"{text}"' for text in beyond), "1e400"), beyond)
    lowest, highest = first["minimum"], first["maximum"]
    if said is not None:
        told = parse_size_bytes(f"{said[1]} {said[2]}"), parse_size_bytes(f"{said[3]} {said[4]}")
        assert told == (lowest, highest)
    good = ((f"{lowest}", f"{lowest}", lowest), (f'"{size_text(highest)}"', f"{highest}", highest))
    beyond = (f"{lowest - 1}", f"{highest + 1}")
    return Values(good, "must be ", (*beyond, f'"{lowest - 1}"'), beyond)


def whole(text: str) -> int:
    return int(text.replace(",", ""))


AS_BY_DEFAULT: Final = {"clock", "journal.sync"}
"""They have no other value where a log is in a database."""


def chosen() -> dict[str, tuple[str, str | None, object]]:
    """Return of every setting a good value that is not its default, where it may be another."""
    default = Config()
    return {
        setting.name: next(
            good
            for good in values_of(setting).good
            if (good[2] == getattr(default, setting.inside)) is (setting.name in AS_BY_DEFAULT)
        )
        for setting in SETTINGS
    }


def every_setting() -> str:
    """Return a file with every setting: what is in no section, and then each section."""
    lines: list[str] = []
    for name, (in_file, _, _) in sorted(chosen().items(), key=lambda it: it[0].rpartition(".")[0]):
        section, _, key = name.rpartition(".")
        if section and f"[{section}]" not in lines:
            lines.append(f"[{section}]")
        lines.append(f"{key} = {in_file}")
    return "\n".join(lines)
