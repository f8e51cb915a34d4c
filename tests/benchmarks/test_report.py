"""The report is made of results: what it shows, where it says that something is missing or bad."""

import dataclasses
import json
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks import results
from benchmarks.registry import Durability, Values
from benchmarks.report import drawing, files, parts
from benchmarks.report.page import Pages, pages_of
from benchmarks.report.plots import BarPanel, CurvePanel, Plot
from benchmarks.results import Measured

DISK, MEMORY = Durability.BEFORE_ANSWER, Durability.IN_MEMORY
MACHINE = {
    "commit": "49202dae21",
    "delayd": "0.1.0",
    "effort": "full",
    "runs": 2,
    "at": "2026-11-27T21:00:00+00:00",
    "processor": "a processor",
    "processors": 2,
    "memory_bytes": 8 * 2**30,
    "disk": "ext4",
    "synced_append_ms": 0.21,
    "system": "Linux",
    "python": "3.11.7",
    "peers": ["beanstalkd 1.12"],
}


def measured(
    subject: str,
    *rates: float,
    policy: Durability = DISK,
    connections: int = 1,
    chapter: str = "servers",
    not_measured: str = "",
) -> Measured:
    """A case of the servers with these rates, one in flight."""
    size = {"connections": connections, "in flight": 1, "bytes": 100}
    readings: list[Values] = [{"rate": rate, "lost": 0} for rate in rates]
    how = (subject, policy, "-x", MACHINE)
    return Measured(chapter, "put", size, *how, readings, not_measured)


def reported(*cases: Measured, chapter: str = "servers") -> Pages:
    """The pages of these cases."""
    return pages_of({chapter: cases})


def section(pages: Pages, heading: str) -> str:
    """What stands below a heading of the main page."""
    return pages.texts["benchmarks.md"].split(f"\n## {heading}\n")[1].split("\n## ")[0]


SERVERS = (
    measured("delayd", 4_237, 4_100),
    measured("beanstalkd", 5_800, 5_700),
    measured("beanstalkd", 9_000, 9_100, policy=MEMORY),
    measured("delayd", 57_600, connections=50),
    measured("beanstalkd", 6_400, connections=50),
    measured("beanstalkd", policy=MEMORY, connections=50, not_measured="its log\nis off"),
)


def test_bars_stand_by_durability_with_a_panel_for_each_number_of_connections() -> None:
    (plot,) = reported(*SERVERS).plots
    assert plot.title == "Operations a second: 1 in flight, 100 bytes"
    one, fifty = plot.panels
    assert isinstance(one, BarPanel)
    assert (one.title, fifty.title) == ("1 connection", "50 connections")
    shown = [(bar.subject, bar.policy, bar.value, bar.low, bar.high) for bar in one.bars]
    assert shown == [
        ("delayd", DISK, 4_168.5, 4_100, 4_237),
        ("beanstalkd", DISK, 5_750, 5_700, 5_800),
        ("beanstalkd", MEMORY, 9_050, 9_000, 9_100),
    ]
    table = section(reported(*SERVERS), "Servers").split("</picture>\n\n")[1].split("\n\n")[0]
    assert table.splitlines() == [
        "| subject | an acknowledgement means | 1 connection | 50 connections |",
        "|---|---|--:|--:|",
        "| **delayd** | on disk before the answer | 4,170 | 57,600 |",
        "| beanstalkd | on disk before the answer | 5,750 | 6,400 |",
        "| beanstalkd | in memory only | 9,050 | not measured |",
    ]


def test_every_ratio_below_one_is_listed_against_those_who_promise_as_much_or_the_weakest() -> None:
    pages = reported(*SERVERS)
    rows = [
        row.split(" | ")[3:]
        for row in pages.texts["benchmarks/slower.md"].splitlines()
        if row.startswith("| servers")
    ]
    assert rows == [
        *[["delayd, on disk before the answer", f"beanstalkd, {policy}", ours, theirs, ratio]
          for policy, ours, theirs, ratio in (
              (MEMORY, "4,170", "9,050", "0.46 |"),
              (DISK, "4,170", "5,750", "0.72 |"),
          )],
    ]  # fmt: skip
    short = section(pages, "Where delayd is slower or larger")
    row = (
        "| servers: put | a second | on disk before the answer | 1 of 2: 1 connection, 1 in flight"
    )
    assert f"{row}, 100 bytes | delayd: 4,170 | beanstalkd: 5,750 | 0.72 |" in short


def test_a_delayd_that_promises_more_is_not_compared_if_another_promises_as_much() -> None:
    pages = reported(
        measured("delayd", 10),
        measured("delayd", 20, policy=MEMORY),
        measured("beanstalkd", 30, policy=MEMORY),
    )
    losses = pages.texts["benchmarks/slower.md"]
    assert "delayd, in memory only" in losses
    assert "delayd, on disk" not in losses


def test_what_was_lost_doubled_or_early_is_bold_and_nothing_is_a_zero() -> None:
    bad = measured("delayd", 10)
    bad.readings = [{"rate": 10.0, "lost": 0, "early": 3}, {"rate": 10.0, "lost": 0, "early": 1}]
    table = section(reported(bad), "Lost, doubled, early")
    assert "| servers: put | 2 | 0 |  | **4** |" in table


def test_what_was_not_measured_stands_there_with_its_reason() -> None:
    reasons = section(reported(*SERVERS), "Not measured")
    row = "| servers: put | beanstalkd, in memory only | 50 connections, 1 in flight, 100 bytes |"
    assert f"{row} its log is off |" in reasons


def test_a_chapter_without_results_is_said_to_be_missing_and_an_unknown_one_is_shown() -> None:
    pages = reported(measured("delayd", 10, chapter="turtles"), chapter="turtles")
    assert "Not measured yet: `python -m benchmarks run wheel" in section(pages, "The timing wheel")
    assert "wheel" in pages.missing
    assert "turtles" not in pages.missing
    assert "| **delayd** | on disk before the answer | 10 |" in section(pages, "Turtles")


def test_percentiles_are_curves_from_the_median_to_the_longest() -> None:
    late = [
        Measured("lateness", "steady load", {"load": load}, "delayd", DISK, "", MACHINE, [times])
        for load, times in (
            ("50 %", {"p50_ms": 1.0, "p99_ms": 2.0, "worst_ms": 40.0}),
            ("90 %", {"p50_ms": 2.0, "p99_ms": 9.0, "worst_ms": 50.0}),
        )
    ]
    (plot,) = reported(*late, chapter="lateness").plots
    (panel,) = plot.panels
    assert isinstance(panel, CurvePanel)
    assert [words for _, words in panel.ticks] == ["p50", "p99", "longest"]
    assert panel.y_is_log
    assert [curve.label for curve in panel.curves] == ["load: 50 %", "load: 90 %"]
    assert panel.curves[0].points == ((0, 1), (1, 2), (2, 40))


def wheel_cases() -> list[Measured]:
    """Two ways to keep timers, of two sizes, interpreted and compiled."""
    return [
        Measured("wheel", "cancel", {"entries": 10**size}, name, Durability.NOT_APPLICABLE, "",
                 MACHINE, [{"us": us * size}])
        for name, us in (("delayd", 0.1), ("delayd, compiled", 0.05), ("heapq", 9.0))
        for size in (4, 6)
    ]  # fmt: skip


def test_a_cost_over_sizes_is_a_curve_for_each_subject() -> None:
    (plot,) = reported(*wheel_cases(), chapter="wheel").plots
    (panel,) = plot.panels
    assert isinstance(panel, CurvePanel)
    assert (panel.title, panel.x_axis, panel.x_is_log, panel.y_is_log) == (
        "cancel",
        "entries",
        True,
        True,
    )
    assert [(curve.label, curve.is_ours) for curve in panel.curves] == [
        ("delayd", True),
        ("delayd, compiled", True),
        ("heapq", False),
    ]
    assert [*panel.ticks] == [(10_000.0, "10 k"), (1_000_000.0, "1 M")]
    assert "| cancel | heapq | 36 | 54 |" in section(
        reported(*wheel_cases(), chapter="wheel"), "The timing wheel"
    )


def texts_of(svg: str) -> Sequence[str]:
    """What is written in a picture; raises ParseError if it is no XML."""
    root = ET.fromstring(svg)  # noqa: S314 - it was made here
    return [node.text or "" for node in root.iter("{http://www.w3.org/2000/svg}text")]


@pytest.mark.parametrize("theme", drawing.THEMES)
def test_a_picture_names_each_subject_and_its_durability_and_is_the_same_each_time(
    theme: str,
) -> None:
    bars, curves = (
        reported(*SERVERS).plots[0],
        reported(*wheel_cases(), chapter="wheel").plots[0],
    )
    svg = drawing.draw(bars, theme)
    written = texts_of(svg)
    assert written.count(str(DISK)) == 2
    assert written.count(str(MEMORY)) == 1
    assert {"delayd", "beanstalkd", "1 connection", bars.title, " 57,600"} <= {*written}
    assert drawing.THEMES[theme].ground in svg
    assert bars.fingerprint in svg
    assert drawing.draw(bars, theme) == svg
    assert {"delayd", "delayd, compiled", "heapq", "entries", "10 k"} <= {
        *texts_of(drawing.draw(curves, theme))
    }


def test_each_durability_has_a_hue_of_its_own_in_each_theme() -> None:
    for theme in drawing.THEMES.values():
        assert {*theme.hues} == {*Durability}
        assert len({*theme.hues.values()}) == len(Durability) - 1  # where there is none to tell


def test_a_plot_with_another_reading_has_another_fingerprint() -> None:
    (plot,) = reported(*SERVERS).plots
    other: Plot = reported(measured("delayd", 4_237.5), *SERVERS[1:]).plots[0]
    assert plot.fingerprint != other.fingerprint


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (
            ['{"machine": {}, "at": "", "effort": "full"}\n', '{"case": {"oper'],
            "line 2: ValueError",
        ),
        (['{"machine": {}}\n', "{]\n"], "line 2: JSONDecodeError"),
        (['{"machine": {}}\n', '{"case": {}, "values": {}}\n'], "line 2: KeyError: 'operation'"),
        (['{"case": {}}\n'], "line 1: ValueError: no line that describes the machine"),
        ([], "line 1: the file is empty"),
    ],
)
def test_a_file_that_was_not_written_whole_is_named_with_its_line(
    tmp_path: Path, lines: Sequence[str], message: str
) -> None:
    path = tmp_path / "wheel.jsonl"
    path.write_text("".join(lines))
    with pytest.raises(results.DamagedResultsError, match=f"wheel.jsonl, {message}"):
        files.Report(tmp_path)


def test_a_part_of_a_page_is_made_anew_or_stays_if_its_figure_is_missing() -> None:
    text = "<!-- report: put 50 -->1<!-- end --> and <!-- report: take 50 -->2<!-- end -->"
    made, missing = parts.filled(text, {"servers": SERVERS})
    assert made == text.replace(">1<", ">57,600<")
    short = {**MACHINE, "effort": "short"}
    noisy = [dataclasses.replace(case, machine=short) for case in SERVERS]
    assert parts.filled(text, {"servers": noisy})[0] == text
    (words,) = missing
    assert words.startswith("take 50: rate, servers, reserve + ack, connections=50")
    with pytest.raises(KeyError):
        parts.filled("<!-- report: no such part -->1<!-- end -->", {})


def test_results_without_a_chapter_make_a_report(tmp_path: Path) -> None:
    report = files.Report(tmp_path)
    assert "Nothing has been measured yet" in report.texts[files.DOCS / "benchmarks.md"]
    assert not report.plots


def test_a_file_that_a_report_would_not_write_so_is_outdated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, docs = tmp_path / "results", tmp_path / "docs"
    folder.mkdir()
    monkeypatch.setattr(files, "DOCS", docs)
    monkeypatch.setattr(files, "PICTURES", docs / "benchmarks")
    monkeypatch.setattr(files, "BY_HAND", ())
    case = {
        **dict.fromkeys(("subject", "settings"), "delayd"),
        "chapter": "start",
        "operation": "start",
        "size": {},
        "policy": "",
    }
    lines = ({"machine": MACHINE}, {"case": case, "values": {"p50_ms": 5}})
    (folder / "start.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    files.Report(folder).write()
    (docs / "benchmarks" / "left.svg").touch()
    assert files.Report(folder).outdated() == [docs / "benchmarks" / "left.svg"]
    files.Report(folder).write()
    assert not files.Report(folder).outdated()

    (docs / "benchmarks.md").write_text("by hand")
    (picture,) = (docs / "benchmarks").glob("*-dark.svg")
    picture.write_text("by hand")
    assert files.Report(folder).outdated() == [docs / "benchmarks.md", picture]


def test_every_durability_has_a_colour_in_every_theme() -> None:
    assert all(theme.hues.keys() == set(Durability) for theme in drawing.THEMES.values())
