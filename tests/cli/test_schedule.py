import datetime as dt

from delayd.cli.schedule import local_runs


def test_a_zone_that_this_machine_does_not_know_leaves_utc() -> None:
    (run,) = local_runs([dt.datetime(2030, 1, 1, tzinfo=dt.UTC)], "Mars/Olympus", "@daily")
    assert run[1:] == ("", "")
