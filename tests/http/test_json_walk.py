"""Where the parts of a JSON text are: the same as a reader of JSON finds, in steps that end."""

import json
import random

import pytest

from delayd.http import json_walk
from delayd.http.json_walk import JsonWalk, Part
from delayd.limits import HTTP_DEPTH_READ, HTTP_STEP_BYTES

LONG = HTTP_STEP_BYTES * 5 // 2


def parts_of(text: bytes, array: str | None = None) -> list[Part]:
    return [part for part in JsonWalk(text).members(array) if part is not None]


def read(text: bytes, part: Part) -> object:
    return json.loads(text[part.start : part.end])


def random_value(rng: random.Random, depth: int = 3) -> object:
    texts = ["", "a", "]", '"', "\\", '\\"', "}{[", "\u20ac", "\n", "x" * rng.randrange(LONG)]
    kinds: list[object] = [*rng.sample(texts, 3), 1, -0.5e-7, True, None, [], {}]
    if depth:
        inner = [random_value(rng, depth - 1) for _ in range(rng.randrange(4))]
        kinds += [inner, {str(number): one for number, one in enumerate(inner)}] * 4
    return rng.choice(kinds)


def test_the_parts_are_those_that_a_reader_of_json_finds(rng: random.Random) -> None:
    for _ in range(100):
        whole = {name: random_value(rng) for name in ("a", 'b"]', "", "list", "\\")}
        whole["list"] = [random_value(rng) for _ in range(rng.randrange(4))]
        text = json.dumps(
            whole,
            ensure_ascii=rng.random() < 0.5,
            indent=rng.choice([None, 1, "\t"]),
            separators=rng.choice([(",", ":"), (" , ", " : ")]),
        ).encode()
        parts = parts_of(text, "list")
        assert {one.name: read(text, one) for one in parts if one.number < 0} == whole
        assert [read(text, one) for one in parts if one.number >= 0] == whole["list"]
        assert all(text[one.end - 1] not in b" \t\n" for one in parts if one.name != "list")


@pytest.mark.parametrize(
    "value",
    [
        *('"' + "x" * LONG + '"', '{"a": "' + "x" * LONG + '"}', "[" + '"x]",' * LONG + '""]'),
        *('"' + "x\\n" * LONG + '"', '"' + "x" * LONG + '\\""', "7"),
        "[" * HTTP_DEPTH_READ + " " * LONG + "]" * HTTP_DEPTH_READ,
        "[" + "{}," * LONG + "1]",
    ],
)
def test_a_value_of_any_length_has_an_end(value: str) -> None:
    text = f' {{"a" : {value} , "b": [1]}} '.encode()
    a, b = parts_of(text)
    assert text[a.start : a.end] == value.encode()
    assert text[b.start : b.end] == b"[1]"


def steps_of(text: bytes, array: str | None = None) -> list[Part]:
    """The parts, of which each step has found no more than it may have looked at."""
    walk = JsonWalk(text)
    before = 0
    parts = []
    for part in walk.members(array):
        assert walk.at - before <= 2 * HTTP_STEP_BYTES
        before = walk.at
        if part is not None:
            parts.append(part)
    assert len(text) - before <= 2 * HTTP_STEP_BYTES
    assert walk.at == len(text)
    return parts


def test_a_step_looks_at_no_more_than_its_bytes() -> None:
    text = b'{"a": [%b], "b": "%b"}' % (b'"]",' * LONG + b"1", b"\\u00e9" * LONG)
    assert [part.name for part in steps_of(text)] == ["a", "b"]


class OtherWords(ValueError):
    """What another version of a reader of JSON might say."""

    def __str__(self) -> str:
        return "JSON is malformed: trailing characters (byte 1)"


def test_the_words_of_no_reader_of_json_decide_where_a_part_ends(
    rng: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    def other_words(*_: object) -> None:
        raise OtherWords

    text = json.dumps({"a": [random_value(rng) for _ in range(20)], "b": 1.5}).encode()
    usual = parts_of(text, "a")
    monkeypatch.setattr(json_walk, "_skip", other_words)
    assert parts_of(text, "a") == usual


@pytest.mark.parametrize("at", range(10))
def test_blanks_are_looked_at_in_steps_wherever_they_are(at: int) -> None:
    blanks = [b""] * 10
    blanks[at] = b" \t\r\n" * LONG
    text = b'%b{%b"a"%b:%b[%b1%b,%b2%b]%b}%b' % tuple(blanks)
    parts = steps_of(text, "a")
    assert [(part.number, text[part.start : part.end].strip()) for part in parts[:2]] == [
        (0, b"1"),
        (1, b"2"),
    ]


def test_numbers_are_looked_at_in_steps() -> None:
    text = b'{"a": 1%b, "b": [%b]}' % (b"0" * LONG, b"1" * LONG)
    assert [part.name for part in steps_of(text)] == ["a", "b"]


def test_a_text_that_is_cut_short_anywhere_is_refused() -> None:
    text = b'{"a": [1, {"b": "]\\""}], "list": [1, "x"], "c": true}'
    for length in range(len(text)):
        with pytest.raises(ValueError, match=r"at byte|unexpected|control"):
            parts_of(text[:length], "list")


@pytest.mark.parametrize(
    "text",
    [
        *(b'{"a" 1}', b'{"a": 1 "b": 2}', b'{"a": 1]', b'{"a": 1}}', b'{"a": 1},', b"{a: 1}"),
        b'{"a": %b1%b}' % (b"[" * (HTTP_DEPTH_READ + 200), b"]" * (HTTP_DEPTH_READ + 200)),
        *(b'{"a":}', b'{"a": ,}', b'{"list": [1 2]}', b'{"list": [,]}', b'{"list": [1}', b"[]"),
    ],
)
def test_what_does_not_go_on_as_json_does_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError, match="at byte"):
        parts_of(text, "list")
