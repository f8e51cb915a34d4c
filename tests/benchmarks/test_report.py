"""The report is made of results: where it says that something is missing or bad, and its pictures.

What it makes of good results stands in docs/benchmarks.md, which tests/test_figures.py compares.
"""

import dataclasses
import json
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks import results
from benchmarks.registry import CHAPTERS, VALUES, Durability, Values, cases_of
from benchmarks.report import files, parts
from benchmarks.report.page import PROMISE_HEADINGS, PROMISED, Pages, pages_of
from benchmarks.results import Measured

DISK, MEMORY = Durability.BEFORE_ANSWER, Durability.IN_MEMORY
MACHINE = {"effort": "full", "runs": 2, "at": "2026-11-27T21:00:00+00:00"}


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


def test_every_promise_says_what_is_lost_at_worst() -> None:
    assert PROMISED.keys() == set(Durability) - {Durability.NOT_APPLICABLE}
    assert {len(cells) for cells in PROMISED.values()} == {len(PROMISE_HEADINGS) - 1}


def test_a_run_stands_once_with_its_command_and_how_often_it_read() -> None:
    again = {**MACHINE, "at": "2026-11-27T22:00:00+00:00"}
    short = {**MACHINE, "effort": "short", "runs": 1, "seconds": 3.0}
    pages = reported(
        measured("delayd", 1.0, 2.0),
        *(
            dataclasses.replace(measured("beanstalkd", 1.0, connections=count), machine=machine)
            for count, machine in ((1, again), (50, short))
        ),
    )
    rows = section(pages, "What was measured, and on what").split("\n\n")[0].splitlines()
    run = "`python -m benchmarks run servers --results benchmarks/results"
    assert [row.split(" | ")[1::3] for row in rows[3:]] == [
        [f"{run} --runs 2`", "2 |"],
        [f"{run} --effort short --seconds 3`", "**short**, 1 |"],
    ]
    assert "**2 of the 3 cases here were read once**" in pages.texts["benchmarks.md"]


def soaked(*readings: Values) -> str:
    """What the page says of a soak with these samples."""
    cases = [
        Measured("soak", "half of the peak", {"minute": at}, "delayd", DISK, "", MACHINE, [one])
        for at, one in enumerate(readings)
    ]
    return section(reported(*cases, chapter="soak"), "An hour of everything")


def test_a_soak_says_what_ran_and_whether_it_is_flat() -> None:
    steady: Values = {"rate": 540.0, "memory_bytes": 60e6, "p99_ms": 9.0}
    told = soaked(*[steady] * 20, {"lost": 0, "doubled": 2})
    assert "21 minutes, 20 samples, 540 jobs of the stream offered a second." in told
    assert "| resident memory, MB | 0 | 8.39 | flat |" in told
    assert "| lateness, p99, ms | 0 | 10 | flat |" in told
    assert "| lost | 0 | 0 | none |" in told
    assert "| doubled | 2 | 0 | **some** |" in told
    rising: list[Values] = [{**steady, "memory_bytes": 60e6 + 1e6 * at} for at in range(20)]
    assert "| resident memory, MB | 15 | 8.39 | **not flat** |" in soaked(*rising)
    silent: Values = {"rate": 540.0, "memory_bytes": 60e6}
    assert "| **not flat**, 1 samples have none |" in soaked(*[steady] * 9, silent)


def test_what_was_lost_doubled_or_early_is_bold_and_nothing_is_a_zero() -> None:
    bad = measured("delayd", 10)
    bad.readings = [{"rate": 10.0, "lost": 0, "early": 3}, {"rate": 10.0, "lost": 0, "early": 1}]
    table = section(reported(bad), "Lost, doubled, early")
    assert "| servers: put | 2 | 0 |  | **4** |" in table


def test_what_was_not_measured_stands_there_with_its_reason() -> None:
    reasons = section(reported(*SERVERS), "Not measured")
    row = "| servers: put | beanstalkd, in memory only | 50 connections, 1 in flight, 100 bytes |"
    assert f"{row} its log is off |" in reasons
    many = [measured(f"peer {each}", connections=50, not_measured="no time") for each in range(7)]
    reasons = section(reported(*SERVERS, *many[:2]), "Not measured")
    assert "| servers: put | peer 0 and peer 1 | 50 connections" in reasons
    reasons = section(reported(*SERVERS, *many), "Not measured")
    assert "| servers: put | 7 subjects | 50 connections" in reasons


def test_a_chapter_without_results_is_said_to_be_missing_and_an_unknown_one_is_shown() -> None:
    pages = reported(measured("delayd", 10, chapter="turtles"), chapter="turtles")
    assert "Not measured yet: `python -m benchmarks run wheel" in section(pages, "The timing wheel")
    assert "wheel" in pages.missing
    assert "turtles" not in pages.missing
    assert "| **delayd** | on disk before the answer | 10 |" in section(pages, "Turtles")


def wheel_cases() -> list[Measured]:
    """Two ways to keep timers, of two sizes, interpreted and compiled."""
    return [
        Measured("wheel", "cancel", {"entries": 10**size}, name, Durability.NOT_APPLICABLE, "",
                 MACHINE, [{"us": us * size}])
        for name, us in (("delayd", 0.1), ("delayd, compiled", 0.05), ("heapq", 9.0))
        for size in (4, 6)
    ]  # fmt: skip


def texts_of(svg: str) -> Sequence[str]:
    """What is written in a picture; raises ParseError if it is no XML."""
    root = ET.fromstring(svg)  # noqa: S314 - it was made here
    return [node.text or "" for node in root.iter("{http://www.w3.org/2000/svg}text")]


@pytest.mark.thorough
def test_a_picture_names_each_subject_and_its_durability_and_is_the_same_each_time() -> None:
    from benchmarks.report import drawing

    (bars,) = reported(*SERVERS).plots
    (curves,) = reported(*wheel_cases(), chapter="wheel").plots
    svg = drawing.draw(bars, "light")
    written = texts_of(svg)
    assert written.count(str(DISK)) == 2
    assert written.count(str(MEMORY)) == 1
    assert {"delayd", "beanstalkd", "1 connection", bars.title, " 57,600"} <= {*written}
    assert drawing.THEMES["light"].ground in svg
    assert bars.fingerprint in svg
    assert drawing.draw(bars, "light") == svg
    in_the_dark = drawing.draw(curves, "dark")
    assert drawing.THEMES["dark"].ground in in_the_dark
    names = {"delayd", "delayd, compiled", "heapq", "entries", "10 k"}
    assert names <= {*texts_of(in_the_dark)}


def test_a_plot_with_another_reading_has_another_fingerprint() -> None:
    (plot,) = reported(*SERVERS).plots
    (other,) = reported(measured("delayd", 4_237.5), *SERVERS[1:]).plots
    assert plot.fingerprint != other.fingerprint


CASE = {"chapter": "wheel", "operation": "insert", "size": {"entries": 10}, "subject": "heapq"}
WHOLE_CASE = {**CASE, "policy": "", "settings": ""}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"case": {"oper', "the line has no end: it was not written whole"),
        ("{]\n", "it is not JSON: Expecting property name enclosed in double quotes, column 2"),
        ("[1]\n", r"the line is not a JSON object: \[1\]"),
        ('{"case": {}, "values": {}}\n', "the case has no 'chapter'"),
        (json.dumps({"case": CASE, "values": {}}) + "\n", "the case has no 'policy'"),
        (json.dumps({"case": {**WHOLE_CASE, "size": 5}}) + "\n", "size is not a JSON object: 5"),
        (json.dumps({"case": {**WHOLE_CASE, "sort": 5}}) + "\n", "a case has no 'sort'"),
        (json.dumps({"case": WHOLE_CASE}) + "\n", "the line has neither 'values' nor 'not_m"),
        (json.dumps({"case": WHOLE_CASE, "values": {"speed": 1}}) + "\n", "there is no value 'spe"),
        (json.dumps({"case": WHOLE_CASE, "values": {"us": "1"}}) + "\n", "us is not a number: '1'"),
    ],
)
def test_a_line_of_results_that_cannot_be_used_is_named_with_what_is_wrong(
    tmp_path: Path, line: str, message: str
) -> None:
    path = tmp_path / "wheel.jsonl"
    path.write_text('{"machine": {}}\n' + line)
    with pytest.raises(results.DamagedResultsError, match=f"wheel.jsonl, line 2: {message}"):
        files.Report(tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"case": {}}\n', "line 1: no line that describes the machine"),
        ("", "line 1: the file is empty"),
    ],
)
def test_results_without_a_machine_are_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "wheel.jsonl").write_text(text)
    with pytest.raises(results.DamagedResultsError, match=message):
        files.Report(tmp_path)


def test_a_file_of_results_is_written_by_one_run_at_a_time_and_kept_meanwhile(
    tmp_path: Path,
) -> None:
    with results.opened(tmp_path, "wheel", anew=True) as file:
        file.write("kept\n")
        file.flush()
        with (
            pytest.raises(results.BusyResultsError, match=r"wheel.jsonl: another run writes it"),
            results.opened(tmp_path, "wheel", anew=True),
        ):
            pass
    with results.opened(tmp_path, "wheel", anew=False) as file:
        file.write("added\n")
    assert (tmp_path / "wheel.jsonl").read_text() == "kept\nadded\n"
    with results.opened(tmp_path, "wheel", anew=True):
        pass
    assert not (tmp_path / "wheel.jsonl").read_text()


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


def test_each_part_is_made_of_cases_that_there_are() -> None:
    values = dict.fromkeys(VALUES, 2.0)
    of_all = {
        chapter: [
            Measured(
                chapter, one.operation, one.size, one.subject, one.policy, "", MACHINE, [values]
            )
            for one in cases_of(chapter)
        ]
        for chapter in CHAPTERS
    }
    text = "".join(f"<!-- report: {name} -->?<!-- end -->" for name in parts.PARTS)
    made, missing = parts.filled(text, of_all)
    assert not missing
    assert "?" not in made


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


def test_each_durability_has_a_hue_of_its_own_in_each_theme() -> None:
    from benchmarks.report import drawing

    assert drawing.THEMES.keys() == {"light", "dark"}
    for theme in drawing.THEMES.values():
        assert theme.hues.keys() == set(Durability)
        assert len({*theme.hues.values()}) == len(Durability) - 1  # where there is none to tell
