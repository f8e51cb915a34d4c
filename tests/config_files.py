"""What tests of the configuration share: good values of every setting, a file, and its errors."""

import datetime as dt
import math
import re
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


class Values(NamedTuple):
    """Values of a setting."""

    good: tuple[tuple[str, str | None, object], ...]
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
ADDRESS: Final = Values(
    (
        ('"unix:/run/delayd/line.sock"', "unix:/run/delayd/line.sock", LINE),
        ('"off"', "off", None),
        ('"192.0.2.7:1"', "192.0.2.7:1", TcpAddress("192.0.2.7", 1)),
        ('"[::1]:0"', "[::1]:0", TcpAddress("::1", 0)),
    ),
    "must ",
    ('""', "11300", "false", '"11300"', '"host:65536"', '"::1:5"', '"unix:"', '":1"'),
    ("", "11300", "host:65536", "host:-1", "::1:5", "unix:", ":1", "a b:1", "Off"),
)
MODE: Final = Values(
    (('"0600"', "600", 0o600), ('"666"', "0666", 0o666)),
    "must be a file mode in octal digits",
    ('""', "432", "true", '"0999"', '"1000"', '"00660"', '"0o660"', '"-1"', '"rw"'),
    ("", "0999", "1000", "0o660", "-1", "rw"),
)
IDS: Final = Values(
    (
        ("[0, 4294967294]", "4294967294,0", frozenset({0, 2**32 - 2})),
        ("[33]", "33", frozenset({33})),
        ('"off"', "off", None),
    ),
    "must be a list of whole numbers from 0 to 4294967294",
    (
        *('"1000"', '"1000,1001"', "1000", "true", "[-1]", "[1.5]", '["1000"]', "[4294967295]"),
        "[true]",
    ),
    ("", "root", "1,,2", "-1", "1.5", "4294967295", "[1000]", "1000 1001"),
)
DATABASE: Final = "postgres://ada@a:5433,b/jobs?sslmode=require"
OWN: Final = {
    "line.listen": ADDRESS,
    "http.listen": ADDRESS._replace(good=ADDRESS.good[1:]),
    "line.unix_mode": MODE,
    "http.unix_mode": MODE,
    "http.hosts": Values(
        (
            ('["jobs.example.com", "B_2"]', "jobs.example.com,B_2", ("jobs.example.com", "b_2")),
            ("[]", "", ()),
        ),
        "must be names of hosts",
        (
            *('"x"', '""', '"a,b"', "true", "1", '[""]', '["a b"]', '["a:1"]', '["http://a"]'),
            *("[1]", '["a*"]'),
        ),
        ("a:1", "http://a", "[::1]", "a*", "a\0b"),
    ),
    "auth.unix_uids": IDS,
    "auth.unix_gids": IDS,
    "postgres.url": Values(
        ((f'"{DATABASE}"', DATABASE, DATABASE), ('"off"', "off", None)),
        "must be a url",
        (
            *('""', "1", '"a"', '"mysql://a"', '"postgresql://ada:s3cret@db/jobs"'),
            *('"postgresql://db/jobs?password=s3cret"', '"postgresql://ada@db@db/jobs"'),
        ),
        ("", "host=db", "postgresql://:s3cret@db", "postgres://db/?sslpassword=s3cret"),
    ),
    "postgres.name": Values(
        (('"jobs_2"', "jobs_2", "jobs_2"), ('"delayd"', "delayd", "delayd")),
        "must be a name of a schema",
        ("1", '""', '"Jobs"', '"a b"', '"2"', '"pg_jobs"', "'a\"'", f'"{"a" * 64}"'),
        ("", "Jobs", "a-b", "pg_x"),
    ),
    "postgres.address": Values(
        (
            ('"db-a.example.com"', "db-a.example.com", "db-a.example.com"),
            ('"2001:db8::1"', "2001:db8::1", "2001:db8::1"),
            ('"off"', "off", None),
        ),
        "must be a name or an IP address of this machine",
        ("1", '""', '"a:1"', '"a:b:c"', '"[::1]"', '"fe80::1%eth0"', '"a b"', '"http://a"'),
        ("", "a:1", "1:2:3", "a b"),
    ),
    "postgres.accept": Values(
        (('["fsync"]', "fsync", ("fsync",)), ("[]", "", ())),
        'must be a list of "fsync", "full_page_writes"',
        ('"fsync"', "1", '["sync"]', "[1]"),
        ("sync", "fsync,x"),
    ),
    "topics": Values(
        (
            (
                '{"mail.*" = {ttr = "2m", push = {url = "https://h/?q=1"}}}',
                '{"mail.*": {"ttr": "2m", "push": {"url": "https://h/?q=1"}}}',
                Patterns({"mail.*": PUSHED}),
            ),
        ),
        "must ",
        ('""', "true", "1", '"{}"', "[{}]", "{ a = 1 }", '{ "a b" = {} }', "{ a = { ttr = 0 } }"),
        ("", "a", "[]", "1", "null", '{"a": 1}', '{"a b": {}}', '{"a": {"ttr": 0}}', "{}{}"),
    ),
    "schedules": Values(
        (
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
        "",
        (
            *('""', "true", "1", '"{}"', "[{}]", "{ a = 1 }"),
            '{ "a b" = { topic = "t", every = 5, body = 1 } }',
            '{ a = { topic = "t", every = 5 } }',
            '{ a = { topic = "t", every = "1ms", body = 1 } }',
            '{ a = { topic = "t", every = 5, body = 1, start = 2030-01-01T00:00:00 } }',
        ),
        ("", "a", "[]", "1", "null", '{"a": 1}', '{"a": {"topic": "t", "every": 5}}', "{}{}"),
    ),
    "push.hosts": Values(
        (
            ('["*.Example.com", "::1"]', "*.Example.com,::1", ("*.example.com", "::1")),
            ("[]", "", ()),
        ),
        "must be hosts or patterns",
        ('"*"', '""', "true", "1", '[""]', '["a b"]', '["a:1"]', '["https://a"]', "[1]", '["a/b"]'),
        ("a:1", "https://a", "[::1]", "a/b", "a\0b"),
    ),
    "push.private_networks": Values(
        (('["10.1.0.0/16", "::1"]', "10.1.0.0/16,::1/128", NETWORKS),),
        "must be networks",
        ('"10.0.0.0/8"', '""', "1", '["x"]', "[1]", '["10.0.0.1/8"]', '["10.0.0.0/33"]', '[""]'),
        ("x", "10.0.0.1/8", "fe80::/129", "10.0.0.0/8,y", "1"),
    ),
    "push.ports": Values(
        (("[1, 65535]", "1,65535", (1, 65_535)),),
        "must be a list of whole numbers from 1 to 65535",
        ("443", '"443"', "[0]", "[65536]", '["443"]', "[443.5]", "[true]"),
        ("0", "65536", "443,x", "-1", "*"),
    ),
    "push.sign_with": Values(
        (('["orders", "orders.old"]', "orders,orders.old", ("orders", "orders.old")),),
        "must be at most 2 names of secrets",
        ('"a"', "1", '[""]', "[1]", '["a b"]', '["a", "b", "c"]', '["a/b"]'),
        ("a/b", "a,b,c", "a\0b"),
    ),
    "sinks": Values(
        (
            (
                '{a={kind="\\U0001f600", "a \\"b\\""=[1, {on=2030-01-01, at=09:00:00}], end=inf}}',
                None,
                {"a": SinkSection("\U0001f600", ODD)},
            ),
        ),
        "",
        ('"{}"', '{ a = "secret" }', "{ a = {} }", '{ "a b" = {} }', "{ a = { kind = 5 } }"),
        ("a", "[]", '{"a": "secret"}', '{"a": {}}', '{"a": {"kind": 5}}', '{"a b": {}}'),
    ),
}
"""Of settings whose schema does not say what they may be."""
PATH: Final = Values(
    (
        ("'/t\"\\.json'", '/t"\\.json', '/t"\\.json'),
        ('"/jobs\\u202e😀"', "/jobs\u202e😀", "/jobs\u202e😀"),
    ),
    "must be the path of a ",
    ("1",),
    ("", "a\0b"),
)
EMPTY: Final[tuple[tuple[str, str | None, object], ...]] = ()
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


def chosen() -> dict[str, tuple[str, str | None, object]]:
    """Return of every setting a good value that is not its default."""
    default = Config()
    return {
        setting.name: next(
            good for good in values_of(setting).good if good[2] != getattr(default, setting.inside)
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
