import io
import json
import subprocess
import sys

import pytest

from delayd.log_lines import Log, LogFormat, LogLevel

WALL_MS = 1_795_256_100_123


def logged(
    event: str, log_format: LogFormat = LogFormat.TEXT, **fields: str | float | bool | None
) -> str:
    stream = io.StringIO()
    Log(stream, lambda: WALL_MS, log_format=log_format).info(event, **fields)
    return stream.getvalue()


def test_a_text_line_has_time_level_event_and_fields() -> None:
    line = logged("journal replayed", jobs=3, seconds=0.5, path="a b", torn=False, why=None)
    assert line == (
        "2026-11-21T10:15:00.123Z info journal replayed"
        ' jobs=3 seconds=0.5 path="a b" torn=false why=none\n'
    )


def test_a_json_line_has_the_same_as_keys_in_that_order() -> None:
    line = logged("listening", LogFormat.JSON, on="127.0.0.1:1", jobs=3, why=None)
    assert line == (
        '{"time":"2026-11-21T10:15:00.123Z","level":"info","event":"listening",'
        '"on":"127.0.0.1:1","jobs":3,"why":null}\n'
    )


@pytest.mark.parametrize("log_format", LogFormat)
def test_control_characters_are_escaped(log_format: LogFormat) -> None:
    for code in (*range(32), *range(127, 160), 0x2028, 0x2029, 0x202E, 0xDC80):
        line = logged(f"a{chr(code)}b", log_format, field=f"c{chr(code)}d")
        assert line.count("\n") == 1, code
        assert line.removesuffix("\n").isprintable(), code
        if log_format is LogFormat.JSON:
            assert json.loads(line)["field"] == f"c{chr(code)}d", code


def test_lines_below_the_level_are_not_written() -> None:
    stream = io.StringIO()
    log = Log(stream, lambda: WALL_MS, level=LogLevel.WARNING)
    log.info("no")
    log.warning("yes")
    log.error("yes")
    assert [line.split()[1] for line in stream.getvalue().splitlines()] == ["warning", "error"]


@pytest.mark.thorough
def test_libraries_do_not_write_into_the_log() -> None:
    program = "import logging, delayd.log_lines as lines; {}; logging.error('x')"
    for call, said in (("lines", "x\n"), ("lines.keep_libraries_quiet()", "")):
        done = subprocess.run(
            [sys.executable, "-c", program.format(call)], check=True, capture_output=True, text=True
        )
        assert done.stderr.removeprefix("ERROR:root:") == said


def test_a_log_that_cannot_be_written_is_no_reason_to_stop() -> None:
    stream = io.StringIO()
    stream.close()
    Log(stream, lambda: WALL_MS).error("nobody reads this")
