"""Bodies are told as JSON where this API would take them as JSON, and nowhere else."""

import random
from typing import Final

import orjson
import pytest

from delayd.core.operations.put import put_alike
from delayd.core.times import RequestMs
from delayd.json_text import is_json
from delayd.limits import HTTP_CONTAINERS_MAX
from tests.rigs.http import JOBS, HttpRig

SPACES: Final = b" \t\r\n"
ATOMS: Final = (
    *(b"1", b"-0", b"1e5", b"1e+99", b"1e308", b"1e309", b"-1.5E+400", b"1e999", b"1e-999"),
    *(
        b"0e999",
        b"1e00000000309",
        b"9" * 308,
        b"9" * 309,
        b"9" * 309 + b"e-10",
        b"9" * 215 + b"e95",
    ),
    *(b"9" * 210 + b"e98", b"9" * 210 + b"e99", b"0." + b"0" * 400 + b"1e700"),
    *(b'"1e999"', b'"\\ud800"', b'"\\ud83d\\ude00"', b'"\\udc00\\ud800"', b'"\x1f"', b'"\\n"'),
    *(b'"\xff"', b'"\xed\xa0\x80"', b'"\xc0\x80"', "é".encode(), b'"\\u00e"', b"\xef\xbb\xbf1"),
    *(b"", b" 1", b"1\n", b"hello", b"1 2", b"{a}", b"\0\xff"),
    *(b"NaN", b"-Infinity", b"true", b"null", b"nul", b"01", b"1.", b".5", b"[]", b"{}", b"\x0b1"),
)
"""What readers of JSON do not agree on, and what is like it."""


def is_read(body: bytes) -> bool:
    """Whether the API reads this text where it stands in a request."""
    try:
        orjson.loads(body)
    except orjson.JSONDecodeError:
        return False
    return bool(body) and body[0] not in SPACES and body[-1] not in SPACES


def drawn(rng: random.Random, depth: int = 0) -> bytes:
    """A text that is nearly always JSON but for its atoms."""
    chance = rng.random()
    if depth == 3 or chance < 0.4:
        return rng.choice(ATOMS)
    items = [drawn(rng, depth + 1) for _ in range(rng.randrange(4))]
    if chance < 0.7:
        return b"[" + rng.choice((b",", b" , ")).join(items) + b"]"
    return b"{" + b",".join(rng.choice((b'"k":', b'"\\ud800" :')) + item for item in items) + b"}"


def spoiled(rng: random.Random, body: bytes) -> bytes:
    """The same with a byte less, another one, or one more."""
    at = rng.randrange(len(body) + 1)
    byte = bytes((rng.choice(b'"\\[]{},:09eE+-. udDcC\x00\x1f\xff\xc3'),))
    return body[:at] + rng.choice((b"", byte)) + body[at + rng.randrange(2) :]


@pytest.mark.parametrize("number", range(10))
def test_a_text_counts_as_json_exactly_where_the_api_reads_it(
    number: int, rng: random.Random
) -> None:
    for atom in ATOMS:
        assert is_json(atom) == is_read(atom), atom
    counts = [0, 0]
    for _ in range(2_000):
        body = drawn(rng)
        for _ in range(rng.randrange(3)):
            body = spoiled(rng, body)
        assert is_json(body) == is_read(body), body
        counts[is_read(body)] += 1
    assert min(counts) > 200, "the texts are too good or too bad to say anything"


@pytest.mark.parametrize("depth", [900, 1_025, 5_000])
@pytest.mark.parametrize(("opening", "closing"), [(b"[", b"]"), (b'{"a":', b"}")])
def test_a_text_that_is_too_deep_for_the_api_is_none(
    depth: int, opening: bytes, closing: bytes
) -> None:
    body = opening * depth + b"1" + closing * depth
    assert is_json(body) == is_read(body) == (depth == 900)


def test_a_text_of_more_arrays_than_the_api_reads_is_none() -> None:
    for count in (HTTP_CONTAINERS_MAX, HTTP_CONTAINERS_MAX + 1):
        body = b"[" + b",".join([b"[]"] * (count - 1)) + b"]"
        assert is_json(body) == (count == HTTP_CONTAINERS_MAX)


@pytest.mark.parametrize("text", [b"1e999", b'{"a":[1,-1.5E+400]}', b"9" * 309])
def test_one_job_of_the_line_makes_no_answer_unreadable(rig: HttpRig, text: bytes) -> None:
    topic = rig.engine.store.topic("mail")
    put_alike(rig.engine, topic, 0, 0, 60_000, (text, b'"fine"'), RequestMs(rig.clock.now_ms()))
    for path in ("/v1/jobs/1", f"{JOBS}?bodies=true", "/v1/topics/mail/reserve"):
        answer = rig.call("POST" if "reserve" in path else "GET", path, None)
        read = orjson.loads(answer.body)
        job = read["jobs"][0] if "jobs" in read else read
        assert "body" not in job
        assert job["body_base64"]
        assert rig.call("POST", JOBS, data=b'{"body":%b}' % text).status == 400
