import pytest

from delayd.cli.calendar import bar
from delayd.cli.main import invoke
from delayd.client import Client
from delayd.exits import Exit
from delayd.testing.daemon import running_daemon

# --- dead ----------------------------------------------------------------------------------------


def test_over_the_line_dead_letters_say_how_long_ago_they_failed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with running_daemon(clock="virtual") as daemon:
        with Client(f"beanstalk://{daemon.listens_on}") as client:
            client.put("mail", "x", max_attempts=1)
            client.reserve("mail", timeout=0).nack(error="no route")
            client.advance_clock("90s")
        for words, shown in (("list mail", "1m30s ago"), ("show 1", "nacked 1m30s ago")):
            assert invoke(["dead", *words.split(), "--line", daemon.listens_on]) == Exit.OK
            assert shown in capsys.readouterr().out


# --- calendar and stats --------------------------------------------------------------------------


def test_the_longest_bar_fills_its_columns() -> None:
    assert [len(bar(count, 8, 10)) for count in (8, 4, 1)] == [10, 5, 2]
