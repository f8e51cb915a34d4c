"""What `outbox.put` writes, and what it refuses while the transaction can still fail."""

import datetime as dt
import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from delayd import outbox
from delayd.client import Invalid, TopicNameInvalid
from delayd.client.values import PutOptions
from delayd.outbox.rows import _NOT_HERE, Style

NINE = dt.datetime(2030, 1, 1, 9, tzinfo=dt.UTC)
GOOD: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {}),
    ({"delay": dt.timedelta(minutes=30)}, {"delay": 1800.0}),
    ({"delay": "1h30m", "priority": 7, "ttr": 9}, {"delay": "1h30m", "priority": 7, "ttr": 9}),
    ({"at": NINE}, {"at": "2030-01-01T09:00:00+00:00"}),
    ({"at": "2030-01-01T09:00:00Z"}, {"at": "2030-01-01T09:00:00Z"}),
    ({"key": "größe", "on_conflict": "keep"}, {"key": "größe", "on_conflict": "keep"}),
    ({"retry": ["15s", dt.timedelta(minutes=3)]}, {"retry": ["15s", 180.0]}),
    ({"retry": "1s", "max_attempts": 3, "jitter_percent": 5}, None),  # type: ignore[list-item]
    ({"url": "https://a.example/", "method": "PUT", "headers": {"X": "1"}}, None),  # type: ignore[list-item]
    ({"group": "g", "delay": None}, {"group": "g"}),
]
BAD: list[tuple[dict[str, Any], str]] = [
    ({"delay": "soon"}, "delay"),
    ({"delay": "1h", "at": NINE}, "at"),
    ({"at": dt.datetime(2030, 1, 1)}, "at"),  # noqa: DTZ001 - that is what is wrong with it
    ({"at": "tomorrow"}, "at"),
    ({"at": "2030-01-01T09:00:00"}, "at"),
    ({"key": "a b"}, "key"),
    ({"on_conflict": "keep"}, "on_conflict"),
    ({"jitter_percent": 5}, "jitter_percent"),
    ({"method": "PUT"}, "method"),
    ({"headers": {"X": "1"}}, "headers"),
    ({"url": "https://a.example/", "headers": {"X": 1}}, "headers"),
    ({"colour": "red"}, "colour"),
    ({"instead_of": "a:1"}, "instead_of"),
    ({"idempotency_key": "a"}, "idempotency_key"),
]


@pytest.fixture(name="connection")
def opened() -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(outbox.schema("sqlite"))
        yield connection


@pytest.mark.parametrize(("options", "kept"), GOOD)
def test_a_row_has_topic_body_and_options(
    connection: sqlite3.Connection, options: dict[str, Any], kept: dict[str, Any] | None
) -> None:
    outbox.put(connection.cursor(), "mail", {"to": "ada"}, **options)
    sql = "SELECT topic, body, options, uid, permit, error FROM delayd_outbox"
    ((topic, body, written, uid, *unset),) = connection.execute(sql).fetchall()
    assert (topic, body, unset) == ("mail", b'{"to":"ada"}', [None, None])
    assert json.loads(written) == (options if kept is None else kept)
    assert len(uid) == 32


@pytest.mark.parametrize(("options", "field"), BAD)
def test_a_wrong_option_is_refused_and_nothing_is_written(
    connection: sqlite3.Connection, options: dict[str, Any], field: str
) -> None:
    with pytest.raises(Invalid) as refused:
        outbox.put(connection.cursor(), "mail", "x", **options)
    if refused.value.problems:
        assert refused.value.problems[0].field == field
    assert not connection.execute("SELECT 1 FROM delayd_outbox").fetchall()


def test_each_option_of_a_put_is_taken_or_has_its_reason() -> None:
    taken = {name for options, _ in GOOD for name in options}
    assert taken | _NOT_HERE.keys() == PutOptions.__annotations__.keys()


def test_a_topic_a_database_and_marks_that_are_none_are_refused() -> None:
    with pytest.raises(TopicNameInvalid):
        outbox.statement("-mail", "x")
    with pytest.raises(ValueError, match="postgresql and sqlite, and not for 'mysql'"):
        outbox.schema("mysql")
    with pytest.raises(Invalid, match=r"style: must be one of %s, \?, \$, and is 'named'"):
        outbox.statement("mail", "x", style="named")  # type: ignore[arg-type]


def test_a_cursor_that_is_awaited_is_refused() -> None:
    class Awaited:
        async def execute(self, _sql: str, _values: object) -> None:
            """Do nothing."""

    with pytest.raises(TypeError, match=r"await cursor.execute\(\*outbox.statement"):
        outbox.put(Awaited(), "mail", "x")


def test_a_cursor_of_an_application_s_own_class_is_that_of_its_driver(
    connection: sqlite3.Connection,
) -> None:
    class Traced(sqlite3.Cursor):
        """Writes statements down, say."""

    outbox.put(connection.cursor(Traced), "mail", "x")
    assert connection.execute("SELECT count(*) FROM delayd_outbox").fetchone() == (1,)


@pytest.mark.parametrize(("style", "marks"), [("%s", "%s, %s, %s, %s"), ("$", "$1, $2, $3, $4")])
def test_a_statement_has_the_marks_of_the_driver(style: Style, marks: str) -> None:
    sql, values = outbox.statement("mail", "x", style=style)
    assert sql.endswith(f"VALUES ({marks})")
    assert values[1:] == ("mail", b"x", "{}")
