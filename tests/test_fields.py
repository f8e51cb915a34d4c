"""Kinds of values and tables of fields: what each takes and refuses, and what is said of it.

The tables of the configuration, of policies, sinks, tokens and forms are made of these kinds, so
their own tests show which kind a field has, and not again what each kind refuses.
"""

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Final, NamedTuple, cast

import pytest

from delayd.core.policy import FIELDS as POLICY_FIELDS
from delayd.core.targets import TARGET_FIELDS
from delayd.durations import DURATION_RULE, SIZE_RULE
from delayd.fields import (
    DURATION,
    FLAG,
    TIME,
    TTR,
    Field,
    GivenText,
    Invalid,
    ValueKind,
    Wrong,
    duration,
    list_of,
    matching,
    number,
    one_of,
    or_off,
    read_all,
    read_json,
    shown,
    size,
    text_of,
    whole,
    written,
)
from delayd.limits import SHOWN_CHARACTERS_MAX
from delayd.moments import TIME_RULE
from delayd.push.amqp_sink import AMQP_FIELDS
from delayd.push.options import SERVER_FIELDS
from delayd.push.redis_sink import REDIS_FIELDS
from tests.rigs.openapi import validator

DOCS: Final = Path(__file__).parents[1] / "docs"
NAN: Final = float("nan")


class Kept(NamedTuple):
    """What a kind takes and refuses."""

    kind: ValueKind
    takes: dict[str | int | float | bool, object]
    """As JSON has it; in a variable the same, as text."""
    refuses: dict[str, tuple[object, ...]]
    """By the rule that is broken."""
    as_text: tuple[str, ...] = ()
    """What a variable may not hold."""


WHOLE_RULE: Final = "must be a whole number from 2 to 90"
KINDS: Final = {
    "text": Kept(text_of("must be it"), {"a": "a"}, {"must be it": ("", 1, None, "a\0b", ["a"])}),
    "matching": Kept(
        matching("a+", "must be a"), {"aa": "aa"}, {"must be a": ("", "aab", "a\n", 1)}
    ),
    "flag": Kept(
        FLAG,
        {True: True, False: False},
        {"must be true or false": (0, 1, "true", "yes", None)},
        ("", "1", "yes", "True"),
    ),
    "one of": Kept(
        one_of({"a": 7, "b": None}), {"a": 7, "b": None}, {"must be one of a, b": ("", "A", 1, [])}
    ),
    "whole": Kept(
        whole(2, 90),
        {2: 2, 90: 90},
        {WHOLE_RULE: (1, 91, -2, 2.5, 91.0, NAN, 1e400, True, None, "2", "many", [2])},
        ("", "-2", "2.0", "many", "1e1", "0x10", "1_0", " 5", "\u0665"),
    ),
    "number": Kept(
        number(0.5, 9),
        {0.5: 0.5, 9: 9},
        {"must be a number from 0.5 to 9": (0, 9.5, NAN, True, None, "5")},
    ),
    "duration": Kept(
        duration(100, 60_000),
        {"100ms": 100, "1m": 60_000, 0.1: 100, 60: 60_000, "0.1": 100},
        {
            'must be from "100ms" to "1m"': ("99ms", "99.9ms", "60001ms", 0, -1, NAN, 1e400, 2**99),
            f'{DURATION_RULE}, from "100ms" to "1m"': ("", "soon", "-1s", "1e3", True, None),
        },
        ("", "soon", "-1", "1s 1h", "nan", "inf", "5S"),
    ),
    "any duration": Kept(
        DURATION,
        {0: 0, "49710d": 4_294_944_000_000},
        {"must be from 0 to 4294967295 s": (-1, 2**32), DURATION_RULE: ("137y", "later", True)},
    ),
    "ttr": Kept(
        TTR,
        {0.0001: 1, "1ms": 1},
        {"must be more than 0, up to 4294967295 s": (0, "0s"), DURATION_RULE: ("", None)},
    ),
    "size": Kept(
        size(4096, 1 << 30),
        {4096: 4096, "1GiB": 1 << 30, "4 KiB": 4096, "4.1 kB": 4100},
        {
            "must be from 4096 to 1073741824 bytes": (4095, "100", 2**31),
            'must be from "4KiB" to "1GiB"': ("1 kB", "1025MiB"),
            SIZE_RULE: ("", "much", "-1", -1, "1e6", 65536.5, True, None, "1 Kib b"),
        },
        ("", "much", "-1", "1KiBB", "9999999TiB"),
    ),
    "or off": Kept(
        or_off(whole(2, 90)), {"off": None, 2: 2}, {f"{WHOLE_RULE}, or off": (1, "Off", False)}
    ),
    "list": Kept(
        list_of(whole(2, 90), "must be a list", 1, 2),
        {},
        {"must be a list": ([], [2, 2, 2], 2, "2,3", {}, None), WHOLE_RULE: ([1], [2, "3"])},
        ("", "2,3,4", "x"),
    ),
    "time": Kept(
        TIME,
        {"1970-01-01T00:00:07Z": 7, "1970-01-01T01:00:07.9+01:00": 7},
        {TIME_RULE: ("2026-11-21", "2026-02-30T00:00:00Z", 7, None, "")},
    ),
}


@pytest.mark.parametrize("name", KINDS)
def test_a_kind_takes_what_it_says_in_json_and_as_text_and_writes_it_so_that_it_is_read(
    name: str,
) -> None:
    kind, takes, _, _ = KINDS[name]
    for given, value in takes.items():
        as_text = given if isinstance(given, str) else json.dumps(given)
        assert kind.read(given) == value, given
        assert name == "number" or kind.read(GivenText(as_text)) == value, given
        assert kind.read(kind.show(value)) == value, given
        assert validator(kind.schema).is_valid(given), given


@pytest.mark.parametrize("name", KINDS)
def test_what_a_kind_refuses_breaks_one_rule_which_is_said_with_place_and_value(name: str) -> None:
    kind, _, refuses, as_text = KINDS[name]
    for rule, values in refuses.items():
        for value in values:
            with pytest.raises(Invalid) as caught:
                Field("a", "a_ms", kind).read(value, "place")
            assert caught.value.errors == (Wrong("place", rule, shown(value)),)
            with pytest.raises(Invalid) as caught:
                Field("a", "a_ms", kind, is_secret=True).read(value)
            assert str(caught.value) == f"a: {rule}"
    for text in as_text:
        with pytest.raises(ValueError, match=r"^must be"):
            kind.read(GivenText(text))


def test_a_number_without_a_fraction_is_whole_as_json_schema_says() -> None:
    for kind in (whole(2, 90), size(2, 90)):
        for given in (5.0, 5e0):
            assert kind.read(given) == 5
            assert type(kind.read(given)) is int
            assert validator(kind.schema).is_valid(given)


def test_a_list_is_read_of_a_text_with_commas_or_spaces() -> None:
    kind = list_of(whole(2, 90), "must be a list")
    assert (
        kind.read([2, 3]) == kind.read(GivenText("2,3")) == kind.read(GivenText(" 2 3 ")) == (2, 3)
    )
    assert kind.show((2, 3)) == [2, 3]


def test_all_that_is_wrong_with_a_table_is_told_at_once_each_with_its_place() -> None:
    inner = [Field("size", "size", whole(2, 90), is_needed=True)]
    parts = ValueKind(lambda value: read_all(cast("dict[str, object]", value), inner, "part"))
    fields = [
        Field("key", "key", text_of("must be a text"), is_secret=True),
        Field("parts", "parts", list_of(parts, "must be a list"), is_needed=True),
        Field("limit", "limit_ms", DURATION),
    ]
    wrong = {"key": 7, "limit": "x", "limmit": 1, "parts": [{"size": 2}, {"size": 1, "q": 1}, {}]}
    with pytest.raises(Invalid) as caught:
        read_all(wrong, fields)
    assert [*map(str, caught.value.errors)] == [
        "key: must be a text",
        f'limit = "x": {DURATION_RULE}',
        "limmit: there is no such field; did you mean limit?",
        f"parts[1].size = 1: {WHOLE_RULE}",
        "parts[1].q: there is no such part",
    ]
    with pytest.raises(Invalid, match=r"^parts: is missing$"):
        read_all({}, fields)
    assert read_all({"limit": None, "parts": []}, fields, takes_null=True) == {"parts": ()}
    held, other = (SimpleNamespace(limit_ms=0, key=key, parts=None) for key in "ab")
    assert written(fields, held) == {"limit": "0s", "key": "a"}
    assert written(fields, held, other) == {"key": "a"}


def test_what_is_shown_of_a_value_is_short_on_one_line_and_without_secrets() -> None:
    assert shown("a\nb") == '"a\\nb"'
    assert len(shown(["x" * 1_000])) == len(shown("x" * 1_000)) == SHOWN_CHARACTERS_MAX
    assert shown({"url": "https://ada:s3cret@host/"}) == '{"url": "https://***@host/"}'
    assert shown("a s3cret b", lambda text: text.replace("s3cret", "...")) == '"a ... b"'
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    assert shown(deep).endswith("...")


def test_json_says_which_names_stand_twice_in_an_object() -> None:
    text = '{"a": {"b": 1, "b": 2}, "c": [{"c": 1}], "a": 1, "a": 1}'
    assert read_json(text)[1] == [Wrong(name, "is given twice") for name in ("b", "a")]
    for wrong in ("", "{", "[" * 100_000, b"\xff"):
        with pytest.raises(ValueError, match=r"."):
            read_json(wrong)


# --- The tables of the documents -----------------------------------------------------------------

TABLES: Final = {
    ("policies.md", "Every field"): POLICY_FIELDS,
    ("push.md", "A topic with a target"): TARGET_FIELDS,
    ("sinks.md", "Passwords and TLS"): SERVER_FIELDS,
    ("sinks.md", "A Redis list or stream"): REDIS_FIELDS,
    ("sinks.md", "An AMQP exchange"): AMQP_FIELDS,
}


@pytest.mark.parametrize(("page", "title"), TABLES)
def test_a_table_in_the_documents_has_every_field_and_no_other(page: str, title: str) -> None:
    section = (DOCS / page).read_text().split(f"\n## {title}\n")[1].split("\n## ")[0]
    cells = re.findall(r"^\| (`[^|]*) \|", section, re.MULTILINE)
    names = [name for cell in cells for name in re.findall("`([a-z_]+)`", cell)]
    assert sorted(names) == sorted(field.name for field in TABLES[page, title])
