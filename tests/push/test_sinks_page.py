"""docs/sinks.md: its sink of one's own is installed, configured and given a job, line by line."""

import asyncio
import json
import re
import sys
import tomllib
from pathlib import Path
from typing import Final

import pytest

from delayd.config import load
from delayd.push.sinks import DELIVERED, open_sinks
from tests.push.test_sinks import JOB, install

PAGE: Final = (Path(__file__).parent.parent.parent / "docs" / "sinks.md").read_text()


def examples(language: str, section: str = "") -> list[str]:
    """The examples of a section, or of what comes before the first, in order."""
    text = PAGE.split(f"\n## {section}\n")[1] if section else PAGE
    text = text.split("\n## ")[0]
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def test_the_sink_of_your_own_does_what_the_page_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (code,) = examples("python", "A sink of your own")
    entry_points, configuration = examples("toml", "A sink of your own")
    assert len([line for line in code.splitlines() if line]) <= 30
    (tmp_path / "file_sink.py").write_text(code)
    kinds = tomllib.loads(entry_points)["project"]["entry-points"]["delayd.sinks"]
    install(tmp_path, monkeypatch, "file-sink", kinds)
    (tmp_path / "delayd.toml").write_text(configuration)
    monkeypatch.chdir(tmp_path)

    async def deliver() -> None:
        sink = open_sinks(load("delayd.toml", {}, {}))["archive"]
        assert await sink.deliver(JOB) == DELIVERED
        assert await sink.deliver(JOB._replace(id=8, body=b"again")) == DELIVERED
        await sink.close()

    try:
        asyncio.run(deliver())
    finally:
        sys.modules.pop("file_sink", None)
    lines = [json.loads(line) for line in Path("due.jsonl").read_text().splitlines()]
    assert [(line["id"], line["body"]) for line in lines] == [(7, "hi"), (8, "again")]
    assert lines[0] == {**JOB.fields(), "body": "hi"}
