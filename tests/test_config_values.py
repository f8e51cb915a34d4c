import itertools
from pathlib import Path
from typing import Final

import pytest

from delayd.config import Config, load
from delayd.core.policy import FIELDS, PATTERN_RULE
from delayd.durations import DURATION_RULE
from delayd.schedules.definition import NAME_RULE
from tests.config_files import EXAMPLE, errors_of, written

BOTH: Final = """
line = 5 # must be a section
line.listen = 5 # must be HOST:PORT, unix:PATH or off
jobs.jobs_max = 0 # must be a whole number from 1 to 4611686018427387904, or off
topics = 5 # must be sections such as [topics."mail.*"]
topics = "{}" # must be sections such as [topics."mail.*"]
topics."a" = 5 # must be a section
topics."a".exhausted = "$idempotency" # must be another topic: this one is reserved
topics."a".push.topic = "$idempotency" # must be another topic: this one is reserved
auth.tokens = 1 # must be the path of a file, or off
push.sign_with = ["a"] # needs push.secrets
line.tls = true # needs tls.certificate
http.tls = true # needs tls.certificate
tls.key = "/k" # needs tls.certificate
tls.client_ca = "/k" # needs tls.certificate
tls.certificate = "/c" # has no effect while line.tls and http.tls are false
"""
"""What is said of a line is the line and the rule."""
OTHERS: Final = {
    "line.listen.x = 1": 'line.listen = {"x": 1}: must be HOST:PORT, unix:PATH or off',
    "qqq = 1": "qqq: there is no such setting",
    "qqq = {}": "[qqq]: there is no such section",
    "data_dir = 1979-05-27": 'data_dir = "1979-05-27": must be the path of a directory',
    '[topics."a b"]': f'topics."a b": {PATTERN_RULE}',
    'topics."a*".push.topic = "ab"': (
        'topics."a*".push: must not push round in a circle: a*, ab, ab'
    ),
    '[topics."$idempotency"]\npush.url = "https://a.example/"': (
        'topics."$idempotency".push: must be another topic: this one is reserved'
    ),
    '[topic."x"]': "[topic]: there is no such section; did you mean topics?",
    "[topic]": "[topic]: there is no such section; did you mean topics?",
}


@pytest.mark.parametrize(
    ("text", "error"),
    [
        *((line.split(" # ")[0], line.replace(" # ", ": ")) for line in BOTH.split("\n")[1:-1]),
        *OTHERS.items(),
    ],
)
def test_a_wrong_value_is_named_with_the_rule(tmp_path: Path, text: str, error: str) -> None:
    (only,) = errors_of(written(tmp_path, text))
    assert only.startswith(error)


def test_everything_that_is_wrong_with_the_policies_of_topics_is_told_at_once(
    tmp_path: Path,
) -> None:
    text = """
        [topics."mail.*"]
        retry = "15s soon"
        jobs_max = 0
        [topics.orders]
        max_atempts = 3
        exhausted = "a b"
        [topics."?"]
        rate_per_s = 5
        [topics."bad name"]
        jobs_max = 0
        x = 1
        """
    assert errors_of(written(tmp_path, text)) == [
        f'topics."mail.*".retry = "15s soon": step 2, "soon", {DURATION_RULE}',
        f'topics."mail.*".jobs_max = 0: must be a whole number from 1 to {2**62}',
        'topics."orders".max_atempts: there is no such field; did you mean max_attempts?',
        'topics."orders".exhausted = "a b": must be "bury" or the name of a topic',
        f'topics."bad name": {PATTERN_RULE}',
        f'topics."bad name".jobs_max = 0: must be a whole number from 1 to {2**62}',
        'topics."bad name".x: there is no such field',
    ]


@pytest.mark.parametrize(
    ("said", "error"),
    [
        ("retry=15s", ': must be JSON such as {"mail.*": {"retry": "15s 3m"}}: Expec'),
        ("{", ': must be JSON such as {"mail.*": {"retry": "15s 3m"}}: Expec'),
        ("[]", ': must be JSON such as {"mail.*": {"retry": "15s 3m"}}'),
        ("5", ': must be JSON such as {"mail.*": {"retry": "15s 3m"}}'),
        ('{"retry": "15s"}', '."retry" = "15s": must be an object such as {"retry": "15s 3m"}'),
        ('{"a": {"ttr": 0}}', '."a".ttr = 0: must be more than 0'),
    ],
)
def test_wrong_policies_in_the_variable_are_named_with_an_example(said: str, error: str) -> None:
    (only,) = errors_of(environment={"DELAYD_TOPICS": said})
    assert only.startswith(f"environment: DELAYD_TOPICS{error}")


@pytest.mark.parametrize(
    ("said", "name"), [('{"a": {"ttr": 1, "ttr": 2}}', "ttr"), ('{"a": {}, "b": {}, "a": {}}', "a")]
)
def test_what_the_variable_says_twice_is_refused(said: str, name: str) -> None:
    (only,) = errors_of(environment={"DELAYD_TOPICS": said})
    assert only.endswith(f'": {{"retry": "15s 3m"}}}}: {name}: is given twice')


@pytest.mark.parametrize(
    "text",
    [
        'schedules.a = {topic="t", every=5, body="", url="https://h/", HEADERS}',
        'schedules.a = [{url="https://h/?s3cret", HEADERS}]',
        'schedules.a = {topic="t", every=5, body="", url="h/?s3cret"}',
        'topics.a.push = {url="https://h/", HEADERS}',
        'topics.a.push = [{url="h/?s3cret", HEADERS}]',
        'topics.a.push = {url="h/?s3cret"}',
    ],
)
def test_no_error_shows_the_headers_of_a_call_or_the_query_of_a_url(
    tmp_path: Path, text: str
) -> None:
    headers = 'headers={Authorization="Bearer s3cret", "X Bad"="s3cret"}'
    (only,) = errors_of(written(tmp_path, text.replace("HEADERS", headers)))
    assert "s3cret" not in only


@pytest.mark.parametrize("name", ["TOPICS", "SCHEDULES"])
@pytest.mark.parametrize("form", ["[%s]", "%s", "{%s, %s}"])
def test_no_error_quotes_a_variable_that_is_not_json(name: str, form: str) -> None:
    said = form.replace("%s", '"a": {"headers": {"Authorization": "Bearer s3cret"}}')
    (only,) = errors_of(environment={f"DELAYD_{name}": said})
    assert "s3cret" not in only


def uncommented(section: str, directory: Path) -> Config:
    """The configuration with what the example has in comments below a heading."""
    _, _, text = EXAMPLE.read_text().partition(f"\n[{section}]\n")
    rows = itertools.takewhile(lambda row: row.startswith("# "), text.splitlines())
    return load(written(directory, "\n".join(row[2:] for row in rows)), {}, {})


def test_the_policies_and_the_schedule_in_the_example_can_be_uncommented(tmp_path: Path) -> None:
    policies = uncommented("topics", tmp_path).topics
    assert policies is not None
    policy = policies.of("mail.welcome")
    assert policy is not None
    given = {row.name for row in FIELDS if getattr(policy, row.inside) is not None}
    assert given == {row.name for row in FIELDS} - {"exhausted", "on_close"}  # say nothing
    schedules = uncommented("schedules", tmp_path).schedules
    assert schedules is not None
    definition, body = schedules["nightly"]
    assert (definition.topic, definition.limit, body) == ("reports", 100, b"all of yesterday")


def test_everything_that_is_wrong_with_schedules_is_told_at_once_by_its_place(
    tmp_path: Path,
) -> None:
    text = """
        [schedules.nightly]
        topic = "reports"
        cron = "61 2 * * *"
        timezone = "Europe/Berlni"
        body = ""
        [schedules."a b"]
        topic = "reports"
        every = "15m"
        [schedules.c]
        topic = "$schedules"
        evry = "1m"
        key = "k"
        at = 5
        [schedules.".."]
        topic = "t"
        every = "1h"
        body = ""
        """
    minute = 'the minute "61" must be * or 0 to 59, also as 1,2 or 1-5 or */2'
    zone = "there is no such time zone; did you mean Europe/Berlin?"
    assert errors_of(written(tmp_path, text)) == [
        f'schedules.nightly.cron = "61 2 * * *": {minute}',
        f'schedules.nightly.timezone = "Europe/Berlni": {zone}',
        f'schedules."a b": {NAME_RULE}',
        'schedules."a b".body: is missing: give body or body_base64',
        "schedules.c.evry: there is no such field; did you mean every?",
        "schedules.c.key: is not for schedules: the job of a run has the key NAME@TIME",
        "schedules.c.at: is not for schedules: cron or every says when, start from when on",
        "schedules.c.cron: is missing: give cron or every",
        "schedules.c.body: is missing: give body or body_base64",
        f'schedules."..": {NAME_RULE}',
    ]
    long = 'jobs.body_bytes_max = 1\n[schedules.a]\ntopic = "t"\nevery = 5\nbody = [1]'
    assert errors_of(written(tmp_path, long)) == [
        "schedules.a.body: has 3 bytes, and a job may have 1: see jobs.body_bytes_max"
    ]


def test_the_body_of_a_schedule_is_a_text_as_it_is_or_a_value_as_json(tmp_path: Path) -> None:
    text = "".join(
        f'[schedules.{name}]\ntopic = "t"\nevery = 5\n{body}\n'
        for name, body in (
            ("text", 'body = "5 kg"'),
            ("json", "body = '{\"a\": 1}'"),
            ("table", "body.at = 2030-01-01T00:00:00Z"),
            ("bytes", 'body_base64 = "/w=="'),
        )
    )
    read = load(written(tmp_path, text), {}, {}).schedules
    assert read is not None
    assert {name: body for name, (_, body) in read.items()} == {
        "text": b"5 kg",
        "json": b'{"a": 1}',
        "table": b'{"at":"2030-01-01T00:00:00Z"}',
        "bytes": b"\xff",
    }


@pytest.mark.parametrize("body", ["nan", "[1, -inf]", "{ price = [{ euros = inf }] }"])
def test_a_number_that_json_does_not_have_is_no_body_of_a_schedule(
    tmp_path: Path, body: str
) -> None:
    (error,) = errors_of(written(tmp_path, f'[schedules.a]\ntopic = "t"\nevery = 5\nbody = {body}'))
    assert error.startswith("schedules.a.body = ")
    assert error.endswith(": must be a value that can be written as JSON")
