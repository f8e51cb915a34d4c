import io

import pytest
from rich.console import Console

from delayd.cli.top import COLUMNS, Picture, TopicRow, View, figure, ordered, picture

MAIL = TopicRow("mail", 3, 1, 0, 0, 2, 1.5, 1.0, 1.0, 0.5, 0.99)
ORDERS = TopicRow("orders", 1, 9, 0, 4, 0, 0.0, 0.0, 0.0, None, None)
SEEN = Picture("delayd 0.1.0: 18 jobs in 2 topics", (MAIL, ORDERS), (0, 4, *[0] * 10))


def drawn(view: View, width: int = 140) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(picture(SEEN, view, width))
    return str(console.file.getvalue())  # type: ignore[attr-defined]


def test_numbers_are_sorted_from_the_highest_and_names_from_a() -> None:
    by_delayed = View(sorted_by=COLUMNS.index("delayed"))
    assert ordered(SEEN.rows, by_delayed) == [ORDERS, MAIL]
    assert ordered(SEEN.rows, by_delayed.after("r")) == [MAIL, ORDERS]
    assert ordered(SEEN.rows, View(sorted_by=0)) == [MAIL, ORDERS]
    assert ordered(SEEN.rows, View(sorted_by=COLUMNS.index("late p99"))) == [MAIL, ORDERS]


def test_the_column_that_is_sorted_by_is_marked_and_a_pause_is_said() -> None:
    assert "ready ▼" in drawn(View())
    text = drawn(View().after("s").after("r").after("p"))
    assert "delayed ▲" in text
    assert "[paused]" in text


def test_what_comes_due_is_a_chart() -> None:
    assert "in  5 m  4  " + "█" * 40 in drawn(View())


@pytest.mark.parametrize("width", [80, 40])
@pytest.mark.parametrize("sorted_by", range(len(COLUMNS)))
def test_a_narrow_terminal_loses_whole_columns_and_never_what_is_sorted_by(
    width: int, sorted_by: int
) -> None:
    _head, names, *lines = drawn(View(sorted_by), width).splitlines()
    rows = [line.split() for line in lines if line.startswith(("mail", "orders"))]
    shown = names.replace(" ▼", "").replace("late ", "late-").split()
    figures = {row.topic: dict(zip(COLUMNS, map(figure, row), strict=True)) for row in SEEN.rows}
    for row in rows:
        told = figures[row[0]]
        assert row == [said for name in shown if (said := told[name.replace("-", " ")])]
    assert "▼" in names
    assert max(map(len, (names, *lines))) <= width


def test_sorting_goes_round_and_other_keys_do_nothing() -> None:
    view = View()
    for _ in COLUMNS:
        view = view.after("s")
    assert view == View() == View().after("x")
