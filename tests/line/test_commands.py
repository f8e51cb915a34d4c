import random
from itertools import combinations
from typing import Final

import pytest

from delayd.line.commands import COMMANDS, Command, command_of
from delayd.line.grammar import BadFormat
from tests.rigs.line import LineRig

WORDS = [command.word for command in COMMANDS]

BEANSTALKD_WORDS = (
    "peek_ peek-ready peek-delayed peek-buried reserve-with-timeout_ reserve-job_ reserve delete_"
    " release_ bury_ kick_ kick-job_ touch_ stats-job_ stats-tube_ stats use_ watch_ ignore_"
    " list-tubes-watched list-tube-used list-tubes quit pause-tube"
)
"""Debian's beanstalkd compares a line with these in this order; the underscore is a space."""

THEIRS = tuple(word.replace("_", " ").encode() for word in BEANSTALKD_WORDS.split())
OURS = tuple(word for word in WORDS if word not in THEIRS)


def first_in(words: list[bytes], line: bytes) -> bytes | None:
    return next((word for word in words if line.startswith(word)), None)


def row_of(word: bytes | None) -> Command | None:
    return next((command for command in COMMANDS if command.word == word), None)


def random_lines(rng: random.Random) -> list[bytes]:
    tails = (b"", b" ", b"  ", b"x", b" x", b"-x", b"s", b" 1", b" 1 ", b"\t1", b"\n", b"-job 1")
    heads = [*WORDS, *(word.strip() for word in WORDS), b"put", b"", b"Stats", b"list", b"pee"]
    return [rng.choice(heads) + rng.choice(tails) for _ in range(3_000)]


def test_the_table_knows_what_beanstalkd_knows_in_its_order() -> None:
    theirs = [word.replace("_", " ").encode() for word in BEANSTALKD_WORDS.split()]
    assert [word for word in WORDS if word not in OURS] == theirs


def test_no_row_hides_another() -> None:
    for first, second in combinations(WORDS, 2):
        assert not second.startswith(first)


def test_a_line_belongs_to_the_first_word_that_it_begins_with(rng: random.Random) -> None:
    for line in random_lines(rng):
        word = first_in(WORDS, line)
        rest = line[len(word) :] if word is not None else b""
        expected = None if word is None else (row_of(word), rest)
        assert command_of(line) == expected, line


def test_our_own_words_take_no_line_that_beanstalkd_understands(rng: random.Random) -> None:
    theirs = [word for word in WORDS if word not in OURS]
    for line in random_lines(rng):
        if first_in(WORDS, line) in OURS:
            assert first_in(theirs, line) in {None, b"reserve", b"stats"}
            assert line not in {b"reserve", b"stats"}, "they take nothing behind the word"


@pytest.mark.parametrize("word", [*WORDS, b"put 1", b"nonsense", b""])
def test_no_line_may_hold_a_nul(word: bytes) -> None:
    with pytest.raises(BadFormat):
        command_of(word + b"\0")


RUNS: Final[tuple[tuple[str, bytes, int], ...]] = (
    ("put", b"put 0 0 60 2\r\nhi\r\nput 0 0 60 2\r\nhi\r\nput 0 0 60 2\r\nhi", 3),
    ("put", b"put 0 0 60 2\r\nhixxlist-tubes", 1),
    ("put", b"put 0 0 60 70000\r\n" + b"x" * 70_000, 1),
    ("put", b"put-in-tube a 0 0 60 2\r\nhi", 1),
    ("reserve", b"put 0 0 60 0\r\n\r\nreserve\r\nreserve", 2),
    ("reserve", b"reserve-job 1", 0),
    ("reserve", b"reserve-batch 1 0", 0),
    ("delete", b"delete 9\r\ndelete 9\r\ndelete 8", 3),
    ("kick", b"kick-job 1", 0),
)
COUNTED: Final[dict[bytes, tuple[bytes, ...]]] = {
    b"put": (b" 0 0 60 2\r\nhi", b" 0 0 60 2 \r\nhi"),
    b"peek": (b" 9",),
    **dict.fromkeys((b"peek-ready", b"peek-delayed", b"peek-buried", b"reserve"), (b"",)),
    b"reserve-with-timeout": (b" 0",),
    b"delete": (b" 9", b"  9"),
    b"release": (b" 9 0 0",),
    b"use": (b" a",),
    b"watch": (b" a",),
    b"ignore": (b" a", b" default"),
    b"bury": (b" 9 0",),
    b"kick": (b" 1",),
    b"touch": (b" 9",),
    b"stats-job": (b" 9",),
    b"stats-tube": (b" nope",),
    **dict.fromkeys((b"stats", b"list-tubes", b"list-tube-used", b"list-tubes-watched"), (b"",)),
    b"pause-tube": (b" nope 1", b" -a 1", b" " + b"a" * 201 + b" 1"),
}
"""What may stand behind the word of a command, so that it counts."""
NOT_COUNTED: Final[dict[bytes, tuple[bytes, ...]]] = {
    b"put": (b" 0 0 60 x", b" 0 0 60 2\0"),
    **dict.fromkeys((b"peek", b"delete", b"stats-job"), (b" x",)),
    **dict.fromkeys((b"peek-ready", b"reserve", b"list-tubes"), (b" ",)),
    b"reserve-with-timeout": (b" 9223372036854775808", b" x"),
    b"release": (b" 9 0",),
    b"use": (b" -a",),
    b"watch": (b" a:b",),
    b"ignore": (b" -a",),
    b"bury": (b" 9",),
    b"kick": (b"", b" x"),
    b"touch": (b"",),
    b"stats": (b" x",),
    b"stats-tube": (b" a:b",),
    b"pause-tube": (b" a:b 1", b" nope x", b"  100"),
}


def test_a_command_counts_once_its_arguments_parse() -> None:
    told = [
        *((word.decode(), word + rest, 1) for word, rests in COUNTED.items() for rest in rests),
        *((word.decode(), word + rest, 0) for word, rests in NOT_COUNTED.items() for rest in rests),
        *RUNS,
    ]
    for name, line, times in told:
        rig = LineRig()
        rig.client().says(line + b"\r\n")
        assert rig.stats.counts[name] == times, line
    assert {word.decode() for word in COUNTED} == set(LineRig().stats.counts)


@pytest.mark.parametrize(
    ("said", "producers", "workers"),
    [
        (b"list-tubes\r\npeek 1\r\nkick 1\r\n", 0, 0),
        (b"put 0 0 60 70000\r\n" + b"x" * 70_002, 0, 0),
        (b"put 0 0 60 2x\r\n", 0, 0),
        (b"put 0 0 60 2\r\nhixx", 1, 0),
        (b"put 0 0 60 2\r\n", 1, 0),
        (b"put-in-tube a 0 0 60 2\r\nhi\r\n" * 2, 1, 0),
        (b"reserve-job 9\r\n", 0, 0),
        (b"reserve-with-timeout 0\r\n" * 2, 0, 1),
        (b"reserve-batch 1 0\r\n", 0, 1),
        (b"reserve\r\n", 0, 1),
        (b"put 0 0 60 0\r\n\r\n" * 3 + b"reserve\r\n" * 2 + b"reserve-job 3\r\n", 1, 1),
    ],
)
def test_who_puts_and_who_works_is_counted_until_it_goes(
    said: bytes, producers: int, workers: int
) -> None:
    rig = LineRig()
    client = rig.client()
    client.says(said)
    assert (rig.stats.producers, rig.stats.workers) == (producers, workers)
    client.closes()
    assert (rig.stats.producers, rig.stats.workers, rig.stats.connections) == (0, 0, 0)
    assert rig.stats.connections_total == 1
