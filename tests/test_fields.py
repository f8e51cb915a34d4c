"""Kinds of values and tables of fields: what each takes and refuses, and what is said of it.

The tables of the configuration, of policies, sinks, tokens and forms are made of these kinds, so
their own tests show which kind a field has, and not again what each kind refuses.
"""

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, cast

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
from tests.rigs.written import Fact, facts_of

DOCS: Final = Path(__file__).parents[1] / "docs"


KINDS: Final = {
    "text": text_of("must be it"),
    "matching": matching("a+", "must be a"),
    "flag": FLAG,
    "one of": one_of({"a": 7, "b": None}),
    "whole": whole(2, 90),
    "number": number(0.5, 9),
    "duration": duration(100, 60_000),
    "any duration": DURATION,
    "ttr": TTR,
    "size": size(4096, 1 << 30),
    "or off": or_off(whole(2, 90)),
    "list": list_of(whole(2, 90), "must be a list", 1, 2),
    "time": TIME,
}
WHOLE_RULE: Final = "must be a whole number from 2 to 90"
RULES: Final = {"DURATION": DURATION_RULE, "SIZE": SIZE_RULE, "TIME": TIME_RULE}
FACTS: Final = facts_of(Path(__file__).parent / "fields.txt", separator="")


@pytest.mark.parametrize("fact", FACTS, ids=str)
def test_a_kind_takes_and_refuses_what_is_written_of_it(fact: Fact) -> None:
    kind = KINDS[fact.name]
    for line in fact.steps:
        if line.startswith("takes "):
            for each in line.removeprefix("takes ").split(" ; "):
                taken(kind, *map(json.loads, each.split(" = ")), has_text=fact.name != "number")
        elif line.startswith("no text "):
            for text in line.removeprefix("no text ").split(" ; "):
                with pytest.raises(ValueError, match=r"^must be"):
                    kind.read(GivenText(json.loads(text)))
        else:
            rule, _, values = line.rpartition(": ")
            word, comma, bounds = rule.partition(", ")
            for value in values.split(" ; "):
                refused(kind, json.loads(value), RULES.get(word, word) + comma + bounds)


def taken(kind: ValueKind, given: Any, value: object, *, has_text: bool) -> None:  # noqa: ANN401
    """In JSON and as text; what it writes it reads."""
    as_text = given if isinstance(given, str) else json.dumps(given)
    assert kind.read(given) == value, given
    assert not has_text or kind.read(GivenText(as_text)) == value, given
    assert kind.read(kind.show(value)) == value, given
    assert validator(kind.schema).is_valid(given), given


def refused(kind: ValueKind, value: object, rule: str) -> None:
    """With place and value, but of a secret."""
    with pytest.raises(Invalid) as caught:
        Field("a", "a_ms", kind).read(value, "place")
    assert caught.value.errors == (Wrong("place", rule, shown(value)),)
    with pytest.raises(Invalid) as caught:
        Field("a", "a_ms", kind, is_secret=True).read(value)
    assert str(caught.value) == f"a: {rule}"


def test_every_kind_is_tried() -> None:
    assert [fact.name for fact in FACTS] == [*KINDS]


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
