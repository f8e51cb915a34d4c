import io
import threading

import pytest
from rich.console import Console

from delayd.cli.asking import Asking, ask_again_and_again
from delayd.cli.top import (
    COLUMNS,
    TROUBLES,
    Picture,
    TopicRow,
    View,
    cells_of,
    fetched,
    ordered,
    picture,
    row_of,
)
from delayd.client.errors import Forbidden, Unreachable
from delayd.client.results import Calendar, TopicInfo

IDLE = TopicRow("", "", 0, None, 0, 0, 0, 0, None, 0.0, 0.0, 0.0, 0.0, None, None)
MAIL = TopicRow("mail", "", 3, 80.0, 0, 1, 0, 2, 7, 1.5, 1.0, 1.0, 0.25, 0.51, 2_500.0)
ORDERS = TopicRow("orders", "buried", 1, 0.2, 4, 9, 0, 0, 12, 0.0, 0.0, 0.0, 0.0, None, None)
DUE = (0, 40, 10, *[0] * 9)
SEEN = Picture("delayd 0.1.0: 18 jobs in 2 topics, 1 with trouble", (MAIL, ORDERS), DUE, 60.0)


def drawn(
    view: View, width: int = 160, height: int = 24, seen: Picture = SEEN, trouble: str = ""
) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(picture(seen, view, width, height, trouble))
    return str(console.file.getvalue())  # type: ignore[attr-defined]


def test_the_topics_with_trouble_come_first_the_worst_and_oldest_of_all() -> None:
    rows = [
        IDLE._replace(topic="idle"),
        IDLE._replace(topic="busy", delayed=9),
        IDLE._replace(topic="failing", trouble="failing", failed_rate=3.0),
        IDLE._replace(topic="behind", trouble="behind", oldest_s=4_000.0),
        IDLE._replace(topic="paused", trouble="paused", oldest_s=70.0),
        IDLE._replace(topic="buried-1", trouble="buried", buried=1),
        IDLE._replace(topic="buried-7", trouble="buried", buried=7),
        IDLE._replace(topic="untaken-1m", trouble="untaken", oldest_s=60.0),
        IDLE._replace(topic="untaken-2m", trouble="untaken", oldest_s=120.0),
    ]
    names = "untaken-2m untaken-1m buried-7 buried-1 paused behind failing busy idle"
    assert [row.topic for row in ordered(rows, View())] == names.split()


def test_numbers_are_sorted_from_the_highest_and_names_from_a() -> None:
    by_delayed = View(sorted_by=COLUMNS.index("delayed"))
    assert ordered(SEEN.rows, by_delayed) == [ORDERS, MAIL]
    assert ordered(SEEN.rows, by_delayed.after("r")) == [MAIL, ORDERS]
    assert ordered(SEEN.rows, View(sorted_by=0)) == [MAIL, ORDERS]
    assert ordered(SEEN.rows, View(sorted_by=COLUMNS.index("late p99"))) == [MAIL, ORDERS]
    view = View()
    for _ in COLUMNS:
        view = view.after("s")
    assert view == View() == View().after("x"), "it goes round, and other keys do nothing"


def test_the_picture_says_what_is_sorted_how_long_and_since_when_what_is_due_and_a_pause() -> None:
    text = drawn(View())
    for said in ("trouble ▼", "1m 20s", "2.5 s", "0.51 ms", "/s, late: last minute"):
        assert said in text
    last = text.splitlines()[-2]
    assert last == "due in the next hour  .█▂.........  50 jobs; most, 40, in 5 to 10 minutes"
    text = drawn(View().after("s").after("r").after("p"), seen=SEEN._replace(window_s=27.4))
    for said in ("ready ▲", "[paused]", "/s, late: last 27 s"):
        assert said in text
    assert "/s, late" not in drawn(View(), seen=SEEN._replace(window_s=None))


def test_three_hundred_topics_fit_a_small_terminal() -> None:
    rows = tuple(MAIL._replace(topic=f"orders.{number}.eu") for number in range(300))
    seen = SEEN._replace(rows=(*rows, ORDERS))
    lines = drawn(View(), width=80, height=24, seen=seen).splitlines()
    assert len(lines) == 24
    assert max(map(len, lines)) <= 80
    assert lines[2].startswith("orders ")
    assert lines[-3] == "and 282 more topics"
    for name in ("trouble", "ready", "oldest", "buried", "taken/s", "late p99"):
        assert name in lines[1]


@pytest.mark.parametrize("width", [80, 40])
@pytest.mark.parametrize("sorted_by", range(len(COLUMNS)))
def test_a_narrow_terminal_loses_whole_columns_and_never_what_is_sorted_by(
    width: int, sorted_by: int
) -> None:
    _head, names, *lines = drawn(View(sorted_by), width).splitlines()
    rows = [line.split() for line in lines if line.startswith(("mail", "orders"))]
    shown = names.replace(" ▼", "").replace("late ", "late-").split()
    figures = {row.topic: dict(zip(COLUMNS, cells_of(row), strict=True)) for row in SEEN.rows}
    for row in rows:
        told = figures[row[0]]
        cells = [said for name in shown if (said := told[name.replace("-", " ")])]
        assert row == " ".join(cells).split()
    assert "▼" in names
    assert max(map(len, (names, *lines))) <= width


# --- What the daemon says ------------------------------------------------------------------------


def info(trouble: str | None, details: dict[str, object]) -> TopicInfo:
    return TopicInfo("mail", 1, 2, 3, 4, 0, 5, details=details, trouble=trouble)


def test_what_the_line_does_not_tell_is_empty_and_it_tells_of_a_pause_by_the_time_left() -> None:
    row = row_of(info(None, {"current-jobs-ready": 2}))
    assert row == TopicRow("mail", "buried", 2, None, 4, 1, 3, 5, *[None] * 7)
    assert cells_of(row)[8:] == [""] * 7
    details: dict[str, object] = {"pause-time-left": 9}
    assert row_of(info(None, details)).trouble == "buried"
    assert row_of(info(None, details)._replace(buried=0)).trouble == "paused"
    assert row_of(info(None, {"pause-time-left": 0})._replace(buried=0)).trouble == ""


def test_the_daemon_says_what_is_wrong_with_a_topic() -> None:
    for trouble in (*TROUBLES, None, "new"):
        row = row_of(info(trouble, {"trouble": trouble}))
        assert row.trouble == (trouble if trouble in TROUBLES else "")


# --- A daemon that is gone -----------------------------------------------------------------------


class Gone:
    """A client whose daemon answers so many questions, and then never again."""

    def __init__(self, is_over: threading.Event, *errors: Exception | None) -> None:
        self.asked: list[str] = []
        self._is_over = is_over
        self._errors = [*errors]

    def _ask(self, what: str) -> None:
        self.asked.append(what)
        error = self._errors.pop(0)
        if not self._errors:
            self._is_over.set()
        if error is not None:
            raise error

    def health(self) -> None:
        self._ask("health")

    def stats(self) -> dict[str, object]:
        self._ask("stats")
        return {}

    def topics(self) -> list[TopicInfo]:
        return []

    def calendar(self, **_: object) -> Calendar:
        return Calendar(None, 300.0, {})


class NoWait(threading.Event):
    """Time passes at once."""

    def wait(self, timeout: float | None = None) -> bool:
        return self.is_set()


def asked(every_s: float, *errors: Exception | None) -> tuple[list[str], Asking[Picture]]:
    is_over, asking = NoWait(), Asking(SEEN, now_s=0.0)
    client = Gone(is_over, *errors)
    fetch = lambda: fetched(client)  # type: ignore[arg-type]  # noqa: E731
    ask_again_and_again(client, fetch, asking, every_s, is_over)  # type: ignore[arg-type]
    return client.asked, asking


def test_between_pictures_the_daemon_is_asked_each_second_whether_it_is_there() -> None:
    assert asked(3.0, *[None] * 6)[0] == ["health", "health", "stats"] * 2
    assert asked(1.0, None, None)[0] == ["stats", "stats"]


def test_a_daemon_that_is_gone_is_told_with_the_reason_until_it_is_back() -> None:
    away = Unreachable("http://127.0.0.1:1", "Connection refused")
    names, asking = asked(3.0, None, away)
    assert "Connection refused" in asking.trouble(1e9)
    assert asking.seen is SEEN
    assert asked(3.0, None, away, away, None)[0] == ["health", "health", "stats", "stats"]
    names, asking = asked(1.0, away, None)
    assert (names, asking.trouble(1e9)) == (["stats", "stats"], "")
    assert asking.seen is not SEEN


def test_a_refusal_ends_it() -> None:
    names, asking = asked(1.0, Forbidden("no"), None)
    assert names == ["stats"]
    assert isinstance(asking.refusal, Forbidden)


def test_a_silent_daemon_is_told_within_two_seconds() -> None:
    asking = Asking(SEEN, now_s=10.0)
    asking.begin(11.0)
    assert asking.trouble(11.6) == ""
    assert asking.trouble(11.8) == "the daemon has not answered for 1 s; what is shown is as old"
    assert drawn(View(), trouble=asking.trouble(11.8)).startswith("the daemon has not answered")
