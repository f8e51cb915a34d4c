"""docs/security.md says what is the case."""

import json
import re
import tomllib
from pathlib import Path

import pytest

from delayd import limits
from delayd.access.scopes import Scope
from delayd.access.token_entries import TOKENS_FILE
from delayd.config import BY_NAME, SECTIONS, load
from delayd.http.routes import ROUTES
from delayd.line.commands import COMMANDS

PAGE = (Path(__file__).parents[2] / "docs" / "security.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize("text", blocks("toml"))
def test_each_piece_of_configuration_is_valid(text: str, tmp_path: Path) -> None:
    path = tmp_path / "delayd.toml"
    path.write_text(text)
    load(str(path), {}, {})
    uncommented = re.sub(r"(?m)^# (\w+ = )", r"\1", text)
    assert tomllib.loads(uncommented).keys() == tomllib.loads(text).keys()
    path.write_text(uncommented)
    load(str(path), {}, {})


def test_the_tokens_file_that_is_shown_is_in_order() -> None:
    (text,) = blocks("json")
    (entry,) = TOKENS_FILE.from_bytes(text.encode(), "page")
    assert entry.scopes == {Scope.RESERVE, Scope.DELETE}
    assert set(json.loads(text)["tokens"][0]) == set(TOKENS_FILE.row(entry))


def test_every_setting_that_is_named_exists() -> None:
    named = set(re.findall(r"`([a-z_]+\.[a-z_]+)`", PAGE))
    settings = {name for name in named if name.partition(".")[0] in SECTIONS}
    assert settings
    assert settings <= set(BY_NAME)


def test_the_table_of_scopes_names_the_commands_of_each_and_nothing_else() -> None:
    rows = re.findall(r"^\| `(\w+)` \| ?(.*?) ?\| .* \|$", PAGE, re.MULTILINE)
    told = {scope: set(re.findall(r"`([a-z-]+)`", cell)) for scope, cell in rows}
    takes: dict[str, set[str]] = {scope.value: set() for scope in Scope}
    takes[Scope.WEBHOOK] = {"put", "push", "admin"}  # beside those, where it is about a url
    takes[Scope.PUT].add("put")  # which the framing reads, before there is a command
    for command in COMMANDS:
        if command.scope is not None:
            for scope in (command.scope, *command.or_scopes):
                takes[scope].add(command.word.decode().strip())
    assert told == takes


def test_a_scope_that_nothing_takes_is_said_to_be_of_no_use_yet() -> None:
    used = {scope for command in COMMANDS for scope in (command.scope, *command.or_scopes)}
    used |= {route.scope for route in ROUTES} | {Scope.PUT, Scope.WEBHOOK}
    for scope in set(Scope) - used:
        assert f"| `{scope}` | | nothing yet" in PAGE
    assert PAGE.count("| nothing yet") == len(set(Scope) - used)


def test_the_bounds_are_those_of_the_limits() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| ")]

    def row(beginning: str) -> str:
        (only,) = (line for line in rows if line.startswith(f"| {beginning}"))
        return only

    assert f"| {limits.AUTH_FAILURES_MAX} a minute |" in row("wrong tokens")
    assert limits.LINE_CONNECTIONS_PER_ADDRESS_MAX == limits.HTTP_CONNECTIONS_PER_IP_DEFAULT
    assert f"| {limits.HTTP_CONNECTIONS_PER_IP_DEFAULT:,} (" in row("connections from one address")
    assert limits.LINE_UNAUTHENTICATED_PER_ADDRESS_MAX == limits.HTTP_UNAUTHENTICATED_PER_IP_DEFAULT
    assert f"| {limits.HTTP_UNAUTHENTICATED_PER_IP_DEFAULT} (" in row("of these, without")
    assert f"| {limits.LINE_BYTES_MAX} bytes, {limits.LONG_LINE_BYTES_MAX:,} for" in row(
        "a command line"
    )
    assert f"| {limits.HTTP_BODY_BYTES_DEFAULT >> 20} MiB" in row("an HTTP request")
    assert f"{limits.HTTP_HEADERS_MAX} headers" in row("an HTTP request")
    assert limits.LINE_INCOMPLETE_S_MAX * 1_000 == limits.HTTP_HEADER_MS_DEFAULT
    assert f"| {limits.LINE_INCOMPLETE_S_MAX} s (" in row("a request or line")
    assert limits.HTTP_BODY_MS_DEFAULT == 60_000
    assert f"| {limits.HTTP_IDLE_MS_DEFAULT // 1_000} s (" in row("an idle HTTP")
    assert f"| {limits.WRITE_BUFFER_BYTES_DEFAULT >> 20} MiB (" in row("answers that are not read")
    assert f"at most {limits.TOKENS_MAX:,} entries" in PAGE
