"""The documents name what exists: files, folders, other pages, and what the log says."""

import json
import re
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import click
import pytest
import yaml  # type: ignore[import-untyped]  # comes with openapi-spec-validator

from delayd.cli.main import delayd

ROOT: Final = Path(__file__).parent.parent
PAGES: Final = sorted(
    (
        *ROOT.glob("*.md"),
        *ROOT.glob("*/*.md"),
        *ROOT.glob("docs/internals/**/*.md"),
        ROOT / "config.example.toml",
    )
)
"""Every document of the project; what the tools make stands in folders with a dot."""
PATH: Final = re.compile(
    r"`((?:[\w.-]+/)*[\w-]+\.(?:py|md|toml|json|service|socket|txt)|(?:[\w-]+/)+)`"
)
"""A file with an ending of ours, or a folder, which ends in a slash."""
COMMAND: Final = re.compile(r"`delayd (?!ended while)([a-z][^`]*)`")
"""A command in a sentence, and not what the log says when delayd ended."""
FOLDERS: Final = (
    *("", "delayd", "delayd/core", "delayd/http", "delayd/journal"),
    *("docs", "systemd", "tests"),
)
"""From where a page may name a path: `turns.py`, `core/engine.py`, `delayd/core/engine.py`."""
ELSEWHERE: Final = frozenset(
    (
        *("delayd.toml", "drill.py", "producer.py", "protocol.txt", "receiver.py", "tokens.json"),
        *("shop.py", "shop/orders.py", "shop/settings.py", "shop/tasks.py", "shop/tests.py"),
        *("worker.py", "worker.token"),
    )
)
"""Files of readers and of beanstalkd, not of the project."""
FROM_OPENSSL: Final = "peer did not return a certificate"
READERS: Final[dict[str, Callable[[str], Any]]] = {
    "json": json.loads,
    "toml": tomllib.loads,
    "yaml": yaml.safe_load,
}
"""By the word behind the fence of an example."""


def relative(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def missing_paths(page: Path) -> list[str]:
    places = (*(ROOT / folder for folder in FOLDERS), page.parent)
    named = {*PATH.findall(page.read_text(encoding="utf-8"))} - ELSEWHERE
    return sorted(name for name in named if not any((place / name).exists() for place in places))


def anchor_of(heading: str) -> str:
    """The anchor that Git hosts make of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def wrong_commands(text: str) -> list[str]:
    """Return what is named as a command of delayd, or called with a topic in a number's place."""
    wrong = []
    for called in COMMAND.findall(text):
        command: click.Command | None = delayd
        for word in called.split():
            if command is None or word.startswith("-"):
                break
            if not isinstance(command, click.Group):
                if command.params[0].name == "ids" and re.fullmatch("[a-z]+", word):
                    command = None
                break
            command = command.get_command(click.Context(command), word.partition("|")[0])
        if command is None:
            wrong.append(called)
    return wrong


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page.name != "CHANGELOG.md"], ids=relative
)
def test_every_command_that_a_page_names_exists(page: Path) -> None:
    assert not wrong_commands(page.read_text(encoding="utf-8"))


def test_a_command_that_does_not_exist_is_found() -> None:
    text = "`delayd redrive`, `delayd dead redrive`, `delayd cancel mail 7`, `delayd cancel 7`"
    assert wrong_commands(text) == ["redrive", "cancel mail 7"]


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_every_file_and_folder_that_a_page_names_exists(page: Path) -> None:
    assert not missing_paths(page)


def test_a_path_that_does_not_exist_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "`core/engine.py` and `delayd/core/`, but `core/nowhere.py` and `docs/nothing/`."
    )
    assert missing_paths(page) == ["core/nowhere.py", "docs/nothing/"]


def test_every_folder_and_module_of_delayd_is_in_the_table_of_the_architecture() -> None:
    text = (ROOT / "docs" / "internals" / "architecture.md").read_text(encoding="utf-8")
    table = text.split("## Where things are\n")[1].split("\n## ")[0]
    for path in (ROOT / "delayd").glob("[a-z]*.py"):
        assert f"`delayd/{path.name}`" in table
    for path in (ROOT / "delayd").glob("*/__init__.py"):
        assert f"`delayd/{path.parent.name}/" in table
    for path in (ROOT / "delayd" / "core").glob("[a-z]*.py"):
        assert f"{path.name}`" in table


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_every_link_to_another_page_leads_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for target, anchor in re.findall(r"\]\(([^)#:]*)(?:#([^)]*))?\)", text):
        there = page.parent / target if target else page
        assert there.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.*)$", there.read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor in map(anchor_of, headings), f"{target}#{anchor}"


def examples(page: Path) -> Iterator[tuple[str, str]]:
    """What an example is written in, and the example."""
    fenced = re.compile(r"^```(json|toml|yaml)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
    yield from fenced.findall(page.read_text(encoding="utf-8"))


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_every_example_of_a_file_can_be_read(page: Path) -> None:
    for language, text in examples(page):
        assert READERS[language](text), text


def test_a_page_that_starts_a_daemon_to_try_things_out_does_not_clash_with_the_first() -> None:
    """`make run` has 11300 and 11301, and many readers come from the README."""
    for name in ("push.md", "recipes.md", "testing.md"):
        text = (ROOT / "docs" / name).read_text(encoding="utf-8")
        for command in re.findall(r"^ *delayd serve .*$", text, re.MULTILINE):
            has_others = "--line " in command and "--http " in command
            assert has_others or "which has the same ports" in text, command


def test_prometheus_reads_the_address_of_the_example() -> None:
    page = ROOT / "docs" / "operations.md"
    (text,) = [text for language, text in examples(page) if language == "yaml"]
    (job,) = yaml.safe_load(text)["scrape_configs"]
    assert job == {"job_name": "delayd", "static_configs": [{"targets": ["127.0.0.1:11301"]}]}


def said_by_delayd() -> str:
    """All string literals of delayd, with those that stand behind one another joined."""
    texts = (path.read_text(encoding="utf-8") for path in (ROOT / "delayd").rglob("*.py"))
    return re.sub(r'"\s*\n\s*f?"', "", "\n".join(texts))


@pytest.mark.parametrize(
    ("page", "section"),
    [
        ("operations.md", "## How much disk space it uses\n"),
        ("operations.md", "## When the disk is full, slow or broken\n"),
        ("operations.md", "## Log\n"),
        ("security.md", "## What unauthenticated clients cannot use up\n"),
    ],
)
def test_what_a_page_quotes_of_the_log_is_what_the_log_says(page: str, section: str) -> None:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8").split(section)[1].split("\n## ")[0]
    quoted = [" ".join(each.split()) for each in re.findall(r"`([^`|\n]+(?:\n[^`|]+)?)`", text)]
    events = [each for each in quoted if re.fullmatch(r"[a-z][a-z:,' ]* [a-z:,' ]+(?:: …)?", each)]
    assert events
    said = said_by_delayd() + FROM_OPENSSL
    for event in events:
        assert event.removesuffix(": …") in said, event
