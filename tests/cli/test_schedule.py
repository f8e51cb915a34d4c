import datetime as dt

from delayd.cli.schedule import local_runs
from delayd.exits import Exit
from delayd.schedules.definition import Definition
from tests.cli.talking import Talk

NIGHTLY = ("schedule", "put", "nightly", "x", "--topic", "reports", "--cron", "@daily")


def test_what_the_configuration_has_set_is_changed_there_and_no_token_helps(talk: Talk) -> None:
    wanted = {"nightly": (Definition(topic="t", cron="@daily"), b"")}
    set_by = talk.rig.schedules().configure(wanted, talk.rig.clock.request_ms())
    assert set_by == (["nightly"], [], [], [])
    said = talk.fails(Exit.NOT_ALLOWED, "schedule", "remove", "nightly")
    assert "configuration" in said
    assert "token" not in said
    assert "the configuration\n" in talk.ok("schedule", "show", "nightly")


def test_a_zone_that_this_machine_does_not_know_leaves_utc() -> None:
    (run,) = local_runs([dt.datetime(2030, 1, 1, tzinfo=dt.UTC)], "Mars/Olympus", "@daily")
    assert run[1:] == ("", "")
