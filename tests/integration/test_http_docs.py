"""docs/http.md is true: its examples are carried out, in their order, and answered as it says.

The daemon has a virtual clock, so that its times are those of the page but for when it began.
"""

import re
from functools import partial
from pathlib import Path
from typing import Final
from urllib.parse import unquote

import msgspec

from delayd.http.problems import ProblemAnswer
from delayd.http.routes import ROUTES
from delayd.http.routing import Route
from delayd.http.values import Answer
from tests.pages import Reader, examples, is_same_answer, needs_curl, text_of
from tests.rigs.http import http_refusals
from tests.rigs.process import daemon_of

PAGE: Final = "http.md"
CALL: Final = re.compile(r"(?:-X (\w+) )?'?localhost:11301([^ ']*)")
VARYING: Final = re.compile("^(Date|Server):.*", re.MULTILINE)


@needs_curl
def test_the_examples_are_answered_as_the_page_says(tmp_path: Path) -> None:
    flags = ("--line", "off", "--http", "127.0.0.1:0", "--clock", "virtual")
    with daemon_of(tmp_path / "data", *flags) as daemon:
        reader = Reader(tmp_path, daemon)
        reader.share_clock()
        for command, told in examples(PAGE):
            typed = reader.here(command).replace("curl ", "curl -sS ", 1)
            answered = reader.said("bash", "-c", typed).replace("\r\n", "\n").removesuffix("\n")
            both = [VARYING.sub(r"\1:", text) for text in (reader.here(told), answered)]
            assert is_same_answer(*both), f"{command}\n{answered}"
            assert is_as_described(command, answered), f"{command}\n{answered}"


def route_of(command: str) -> Route:
    """The call that somebody makes who types this."""
    found = CALL.search(command)
    assert found is not None, command
    method = found[1] or ("POST" if "--json" in command else "GET")
    path = unquote(found[2].partition("?")[0])
    (route,) = (
        route
        for route in ROUTES
        if route.method == method and re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", route.path), path)
    )
    return route


def is_as_described(command: str, answered: str) -> bool:
    """Whether the answer has what its schema says, and no member that is not described."""
    body = answered.rpartition("\n\n")[2].encode()
    responses = route_of(command).responses.values()
    kinds = [ProblemAnswer, *(kind for response in responses for kind in response.structs)]
    if len(kinds) == 1 or not body.startswith(b"{"):
        return True
    return any(map(partial(can_be, body), kinds))


def can_be(body: bytes, kind: type[Answer]) -> bool:
    try:
        msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError:
        return False
    return True


def test_every_call_has_an_example() -> None:
    shown = {route_of(example.command)[:2] for example in examples(PAGE)}
    assert shown == {route[:2] for route in ROUTES}


def errors_table() -> str:
    """The table as the classes say it: one row for each."""
    lines = ["| status | word | kind | | `Retry-After` |", "|---|---|---|---|---|"]
    for refusal in sorted(http_refusals(), key=lambda each: (each.status, each.word, each.kind)):
        said = f"| {refusal.status} | `{refusal.word}` | `{refusal.kind}` | {refusal.title}"
        wait = "" if refusal.retry_after_s is None else f" {refusal.retry_after_s} s"
        lines.append(f"{said} |{wait} |")
    return "\n".join(lines)


def test_the_table_of_errors_is_that_of_the_classes() -> None:
    assert errors_table() in text_of(PAGE)
