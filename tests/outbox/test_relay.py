"""The relay: rows that cannot be put, topics that rest, what is away, and what it tells."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from delayd.cli.relay import _print_failed
from delayd.client import PutResult, Unreachable, WrongProtocol
from delayd.outbox import table
from delayd.outbox.permits import DaemonUnfit
from delayd.outbox.relay import REPORT_S, RESTING_MAX
from delayd.outbox.table import ROWS_MAX, TableAway, TableUnfit
from tests.outbox.rig import OutboxRig


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[OutboxRig]:
    made = OutboxRig(tmp_path)
    yield made
    made.close()


def insert(rig: OutboxRig, **columns: object) -> None:
    """Write a row as any program may."""
    values: dict[str, object] = {"topic": "mail", "body": b"bad", **columns}
    marks = ", ".join("?" * len(values))
    names = ", ".join(values)
    rig.sql(f"INSERT INTO delayd_outbox ({names}) VALUES ({marks})", *values.values())  # noqa: S608


def events(rig: OutboxRig, word: str) -> list[dict[str, Any]]:
    return [line for line in rig.told if word in line["event"]]


# --- Rows that cannot be put ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("columns", "error"),
    [
        ({"topic": "-mail"}, "topic"),
        ({"topic": ""}, "the topic name is empty"),
        ({"topic": "$schedules"}, "reserved"),
        ({"body": b"x" * 65_536}, "65535"),
        ({"options": "[]"}, "must be a JSON object"),
        ({"options": "[" * 9_000}, "must be a JSON object"),
        ({"options": '{"delay": []}'}, "delay"),
        ({"options": '{"colour": 1}'}, "colour: there is no such field"),
        ({"options": '{"topic": "sms"}'}, "topic"),
        ({"options": '{"delay": NaN}'}, "delay"),
        ({"options": '{"retry": Infinity}'}, "retry"),
        ({"options": '{"x": "%s"}' % ("x" * 200_000)}, "options"),
        ({"options": '{"key": "taken"}'}, "job"),
        ({"options": '{"url": "https://a.example/"}'}, "nothing is delivered"),
    ],
)
def test_a_row_that_cannot_be_put_is_kept_with_its_error_and_holds_up_no_other(
    rig: OutboxRig, columns: dict[str, Any], error: str
) -> None:
    if "url" in columns.get("options", ""):
        rig.fake._daemon.engine.vet_target = None
    rig.client.put("mail", "x", key="taken", delay="1h")
    rig.commits(("mail", "before"))
    insert(rig, **columns)
    rig.commits(("mail", "after"), ("sms", "other"))
    rig.relays()
    assert rig.order == ["before", "after", "other"]
    assert error in rig.rows("error")
    (told,) = events(rig, "cannot be put")
    assert error in told["why"]


def test_of_many_rows_that_failed_the_first_is_told_and_the_oldest_are_listed(
    rig: OutboxRig, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(table, "FAILED_MAX", 2)
    for topic in ("-a", "-b", "-c"):
        insert(rig, topic=topic)
    rig.relays()
    (told,) = events(rig, "cannot be put")
    assert (told["rows"], told["first"]) == (3, 1)
    failed = rig.relay()._table
    for as_json in (False, True):
        _print_failed(failed, as_json=as_json)
        out, err = capsys.readouterr()
        assert ("-a" in out, "-b" in out, "-c" in out) == (True, True, False)
        assert "more than 2 rows have failed" in err
    failed.drop(1)
    _print_failed(failed, as_json=False)
    assert "more" not in capsys.readouterr().err


def test_a_row_that_failed_is_listed_on_a_line_whatever_is_in_it(
    rig: OutboxRig, capsys: pytest.CaptureFixture[str]
) -> None:
    insert(rig, topic="a\n1  all is well\x1b[31m")
    rig.relays()
    _print_failed(rig.relay()._table, as_json=False)
    out = capsys.readouterr().out
    assert (out.count("\n"), "\x1b" in out) == (1, False)


def test_a_body_that_is_longer_than_memory_should_hold_is_not_read(
    rig: OutboxRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table, "BODY_BYTES_MAX", 3)
    rig.commits(("mail", "four"), ("mail", "abc"))
    rig.relays()
    assert rig.worked == {"abc": 1}
    assert "body: has 4 bytes" in rig.rows("error")


def test_a_row_that_failed_is_listed_tried_again_and_dropped(rig: OutboxRig) -> None:
    rig.client.put("mail", "x", key="taken", delay="1h")
    rig.commits(("mail", "a"), ("mail", "b"), key="taken")
    rig.relays()
    rows = rig.relay()._table
    first, second = rows.failed()
    assert (first.topic, "taken" in first.error) == ("mail", True)
    rig.client.cancel("mail", "taken")
    assert rows.retry(first.id) == 1
    rig.relays()
    assert rig.worked == {"a": 1}
    key = rows.drop(second.id)
    assert key is not None
    rig.relay()._permits.give_back(key)
    assert rows.failed() == []
    assert rows.retry(None) == 0
    assert rows.drop(second.id) is None
    assert [job.key for job in rig.client.jobs("outbox")] == ["mark"]


@pytest.mark.parametrize("is_cleared", [True, False])
def test_of_rows_under_way_to_what_is_gone_it_is_said_that_it_is_not_known(
    rig: OutboxRig, is_cleared: bool
) -> None:
    """The topic of the relay was cleared, or this is another daemon, which has a mark too."""
    relay = rig.started()
    rig.commits(("mail", "a"))
    relay.step()  # and is killed before the row is deleted
    rig.client.clear("outbox")
    if not is_cleared:
        rig.client.put("outbox", "0000", key="mark", delay="1d")
    rig.relays()
    assert "it is not known whether this was put" in rig.rows("error")
    assert rig.worked == {"a": 1}
    rig.sql("UPDATE delayd_outbox SET error = NULL")
    rig.relays()
    assert rig.worked == {"a": 2}
    assert not rig.rows()


def test_a_permit_in_somebody_s_hands_is_waited_for(rig: OutboxRig) -> None:
    relay = rig.started()
    rig.commits(("mail", "a"))
    permits = relay._permits.draw(relay._table.take(table.Settled(), ()))
    relay._table.bind(permits)
    key = next(job.key for job in rig.client.jobs("outbox") if job.key != "mark")
    rig.client.kick("outbox", key)
    job = rig.client.reserve("outbox", timeout=0)
    assert relay.step() == 1
    assert relay.step() == 0
    assert not rig.worked
    job.release()
    rig.now_s += 1
    relay.step()
    assert rig.worked == {"a": 1}


# --- Order, batches, time ------------------------------------------------------------------------


@pytest.mark.thorough
def test_a_step_is_of_so_many_rows_and_bytes(rig: OutboxRig) -> None:
    rig.commits(*(("mail", "x") for _ in range(ROWS_MAX + 1)))
    relay = rig.started()
    assert [relay.step(), relay.step(), relay.step()] == [ROWS_MAX, 1, 0]
    for _ in range(40):
        insert(rig, body=b"x" * 60_000)
    assert [relay.step(), relay.step(), relay.step()] == [18, 18, 4]


def test_a_delay_counts_from_the_put(rig: OutboxRig) -> None:
    rig.commits(("mail", "a"), delay="1h")
    rig.commits(("sms", "b"), delay="1m")
    ago = "strftime('%Y-%m-%dT%H:%M:%fZ', 'now', '-50 minutes')"
    rig.sql(f"UPDATE delayd_outbox SET put_at = {ago}")  # noqa: S608
    rig.relays()
    (job,) = rig.client.jobs("mail")
    assert job.due is not None
    assert 590 < (job.due - rig.fake.now).total_seconds() <= 600
    rig.fake.advance(0.01)
    rig.work()
    assert rig.worked == {"b": 1}


def test_a_topic_that_takes_nothing_now_rests_and_others_go_on(rig: OutboxRig) -> None:
    rig.client.set_policy("mail", {"jobs_max": 1})
    rig.client.put("mail", "full", delay="1h", key="full")
    relay = rig.started()
    rig.commits(("mail", "a"), ("sms", "b"))
    assert (relay.step(), relay.step()) == (2, 0)
    assert rig.worked == {"b": 1}
    assert 0 < relay._idle_s() < 1
    rig.now_s += 1
    assert (relay.step(), relay.step()) == (1, 0)
    rig.client.cancel("mail", "full")
    rig.now_s += 1
    assert (relay.step(), relay.step()) == (1, 0)
    assert rig.worked == {"a": 1, "b": 1}
    assert [line["topic"] for line in events(rig, "topic takes")] == ["mail", "mail"]


def test_a_topic_without_rows_ends_its_rest(rig: OutboxRig) -> None:
    rig.client.set_policy("mail", {"jobs_max": 1})
    rig.client.put("mail", "full", delay="1h")
    rig.commits(("mail", "a"))
    relay = rig.started()
    relay.step()
    rig.sql("DELETE FROM delayd_outbox")
    rig.now_s += 9
    assert not relay.step()
    assert relay._idle_s() > 9, "it does not ask again and again"


def test_a_text_that_is_no_utf8_fails_its_row_alone(rig: OutboxRig) -> None:
    rig.sql("INSERT INTO delayd_outbox (topic, body) VALUES (CAST(x'6dff' AS TEXT), 'x')")
    rig.commits(("mail", "a"))
    rig.relays()
    assert rig.worked == {"a": 1}
    assert rig.rows()


def test_no_more_topics_rest_than_may(rig: OutboxRig) -> None:
    relay = rig.relay()
    topics = [f"t{number}" for number in range(RESTING_MAX + 5)]
    relay._rest(set(topics), dict.fromkeys(topics, "full"))
    assert len(relay._topics_at_rest()) == RESTING_MAX


# --- At the start, and while something is away ---------------------------------------------------


@pytest.mark.parametrize(
    ("scopes", "topics"), [(("put", "peek"), "*"), (("put", "delete"), "*"), (("put",), "mail")]
)
def test_a_token_that_lacks_something_ends_it_at_the_start(
    rig: OutboxRig, scopes: tuple[str, ...], topics: str
) -> None:
    token = rig.fake.token(*scopes, topics=(topics,))
    relay = rig.relay(token=token)
    with pytest.raises(DaemonUnfit, match="put, peek and delete on the topic 'outbox'"):
        relay.start()


def test_a_daemon_that_takes_no_notice_of_instead_of_ends_it_at_the_start(
    rig: OutboxRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    relay = rig.relay()
    put = relay._permits._client.put

    def put_as_before(topic: str, body: object, **options: Any) -> PutResult:  # noqa: ANN401 - as they come
        return put(topic, body, **{**options, "instead_of": None})

    monkeypatch.setattr(relay._permits._client, "put", put_as_before)
    with pytest.raises(DaemonUnfit, match="in the place of one that is not there"):
        relay.start()


def test_a_token_that_is_good_for_some_topics_fails_rows_of_others_alone(rig: OutboxRig) -> None:
    rig.commits(("mail", "a"), ("sms", "b"))
    admin = rig.fake.token()
    relay = rig.relay(token=rig.fake.token("put", "peek", "delete", topics=("outbox", "mail")))
    relay.start()
    relay.step()
    relay.step()
    assert "and not for 'sms'" in rig.rows("error")
    assert rig.fake.client(token=admin).topic("mail").ready == 1


def test_a_table_of_another_version_is_a_sentence(rig: OutboxRig) -> None:
    rig.connection.execute("ALTER TABLE delayd_outbox RENAME COLUMN permit TO ticket")
    with pytest.raises(TableUnfit, match="delayd relay --schema sqlite prints it"):
        rig.relay().start()


class Away:
    """Fails some times, and then ends the relay."""

    def __init__(self, rig: OutboxRig, errors: list[Exception | None]) -> None:
        self._rig, self._errors = rig, errors

    def __call__(self) -> int:
        self._rig.now_s += 1
        if not self._errors:
            self._rig.stop.want()
        elif error := self._errors.pop(0):
            raise error
        return 1


def test_what_is_away_is_told_once_and_so_is_its_return(
    rig: OutboxRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    relay = rig.relay()
    waits: list[float] = []
    monkeypatch.setattr(rig.stop, "wait", lambda seconds, *_: waits.append(seconds))
    gone, lost = Unreachable("here", "refused"), TableAway("no server")
    errors: list[Exception | None] = [gone, gone, gone, lost, lost, gone]
    monkeypatch.setattr(relay, "_turn", Away(rig, errors))
    relay.run()
    assert waits == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2]
    assert [line["event"].partition(";")[0] for line in rig.told] == [
        "relaying",
        "delayd is away",
        "the database is away",
    ]
    relay._is_back("delayd")
    assert rig.told[-1] == {"event": "delayd is back", "after_s": 6.0}
    assert relay._backoff.next_s() == 0.1


def test_a_url_of_the_other_protocol_ends_it_at_the_start(
    rig: OutboxRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    relay = rig.relay()
    wrong = WrongProtocol("http://a:11300", "the line protocol", "beanstalk://a:11300")
    monkeypatch.setattr(relay._permits, "check", Away(rig, [wrong]))
    with pytest.raises(WrongProtocol, match="use beanstalk://a:11300"):
        relay.start()


def test_a_relay_that_is_stopped_while_it_waits_to_start_does_not_say_that_it_relays(
    rig: OutboxRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    relay = rig.relay()
    monkeypatch.setattr(rig.stop, "wait", lambda *_: None)
    monkeypatch.setattr(relay._table, "check", Away(rig, [TableAway("no server")]))
    relay.start()
    relay.run()
    (told,) = rig.told
    assert told["event"] == "the database is away; it is tried again"


def test_it_tells_once_a_minute_what_it_has_done(rig: OutboxRig) -> None:
    relay = rig.started()
    rig.commits(("mail", "a"))
    insert(rig, topic="-")
    relay.step()
    relay.report.tell(rig)
    assert not events(rig, "relayed")
    rig.now_s += REPORT_S
    relay.report.tell(rig)
    relay.report.tell(rig, is_last=True)
    (told,) = events(rig, "relayed")
    assert (told["rows"], told["failed"], told["seconds"]) == (1, 1, 60)
    assert 0 <= told["lag_s"] < 60
