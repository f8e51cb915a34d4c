"""Commands about schedules: what is no text of stories.txt."""

import re
import subprocess
import sys
from base64 import b64encode
from typing import Final

import pytest

from delayd.access.scopes import Scope
from delayd.limits import LONG_LINE_BYTES_MAX, SCHEDULE_JSON_BYTES_MAX
from delayd.schedules.definition import Definition
from tests.rigs.line import Client, LineRig

BODY_BYTES: Final = 300
JSON: Final = b'{"topic": "mail", "every": "1h", "body": 1}'
REST_MISSING: Final = (
    "cron: is missing: give cron or every; body: is missing: give body or body_base64\r\n"
)
UNKNOWN: Final = "there is no such field; did you mean body?"


def put(client: Client, name: str, json: bytes) -> bytes:
    client.says(b"schedule-put %b %d\r\n%b\r\n" % (name.encode(), len(json), json))
    return client.in_full


@pytest.mark.thorough
def test_a_daemon_whose_clients_ask_nothing_of_schedules_loads_none_of_it() -> None:
    script = "import sys, delayd.line.server, delayd.line.commands; print(*sys.modules)"
    ran = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    loaded = {name for name in ran.stdout.split() if name.startswith("delayd.schedules.")}
    assert loaded == {"delayd.schedules.opening"}


def test_what_is_too_long_for_any_schedule_or_note_is_discarded() -> None:
    client = LineRig(BODY_BYTES).client()
    longest = SCHEDULE_JSON_BYTES_MAX + 4 * (BODY_BYTES // 3 + 1)
    assert put(client, "n", JSON.ljust(longest)) == b"SCHEDULED created\r\n"
    assert put(client, "m", JSON.ljust(longest + 1)) == b"JOB_TOO_BIG\r\n"
    for length, reply in (
        (500, b"PAUSED"),
        (501, b"BAD_FORMAT"),
        (LONG_LINE_BYTES_MAX + 1, b"JOB_"),
    ):
        client.says(b"schedule-pause n %d\r\n%b\r\n" % (length, b"x" * length))
        assert client.in_full.startswith(reply)
    assert client.says(b"list-tube-used\r\n") == b"USING default\r\n"


@pytest.mark.parametrize(
    ("json", "said"),
    [
        (b'{"body": "\xff"}', "it is not JSON: the byte 0xff at offset 10 is not UTF-8"),
        (b'{"a": "\xff"}', "it is not JSON: the byte 0xff at offset 7 is not UTF-8"),
        (
            b'{"body": %b}' % (b"[" * 5_000),
            "it is not JSON: arrays and objects are nested too deep",
        ),
        (b'{"a": %b}' % (b"[" * 5_000), "it is not JSON: arrays and objects are nested too deeply"),
        (b"{", "it is not JSON: unexpected end of data (character 1)"),
        (b"[1]", "it is not a JSON object"),
        (
            JSON.replace(b"1}", b"1e999}"),
            "body: has a number that is too large, or more than 250000",
        ),
        (b"{}", f"topic: is missing; {REST_MISSING}"),
        (
            b'{"topic": 1, "cron": null, "boddy": 1}',
            f"topic = 1: must be the name of a topic; boddy: {UNKNOWN}; {REST_MISSING}",
        ),
    ],
)
def test_what_is_no_schedule_is_said_in_plain_words_and_all_at_once(json: bytes, said: str) -> None:
    rig = LineRig()
    client = rig.client()
    assert put(client, "n", json).decode().startswith(f"BAD_FORMAT {said}")
    assert client.says(b"why\r\n") == b"WHY schedule_invalid\r\n"
    assert client.says(b"schedules\r\n").startswith(b"OK 29\r\n")


@pytest.mark.parametrize("name", ["a@b", "..", "-a", "x" * 176, "\u00e9", "\udcff"])
def test_a_name_that_no_schedule_can_have_is_refused_with_the_rule(name: str) -> None:
    client = LineRig().client()
    raw = name.encode(errors="surrogateescape")
    client.says(b"schedule-put %b %d\r\n%b\r\n" % (raw, len(JSON), JSON))
    assert re.match(rb'BAD_FORMAT name = ".*": must be 1 to 175 of A-Z', client.in_full)
    assert client.says(b"why\r\n") == b"WHY schedule_invalid\r\n"


def test_a_body_in_base64_may_be_as_long_as_any() -> None:
    client = LineRig(BODY_BYTES).client()
    for length, reply in (
        (BODY_BYTES, b"SCHEDULED created\r\n"),
        (BODY_BYTES + 1, b"JOB_TOO_BIG\r\n"),
    ):
        body = b64encode(b"x" * length)
        json = b'{"topic": "mail", "every": "1h", "body_base64": "%b"}' % body
        assert put(client, f"n-{length}", json) == reply


def test_a_name_that_is_taken_by_others_is_said_to_be() -> None:
    rig = LineRig(needs_token=True)
    assert put(rig.user(Scope.PUT), "n", JSON) == b"SCHEDULED created\r\n"
    other = rig.user(Scope.PUT, topics=("sms",))
    said = put(other, "n", JSON.replace(b"mail", b"sms"))
    assert said == b"FORBIDDEN the name 'n' is that of a schedule which the token may not see\r\n"


def test_a_schedule_of_the_configuration_is_said_to_be() -> None:
    rig = LineRig()
    definition, body = Definition.from_json(JSON)
    rig.context.schedules().set("n", definition, body, rig.now_ms, is_configured=True)
    client = rig.client()
    client.says(b"schedule-delete n\r\n")
    assert client.in_full.startswith(b"FORBIDDEN schedule 'n' is set by the daemon's configuration")
    assert b'"source":"configuration"' in client.says(b"schedule-get n\r\n")
