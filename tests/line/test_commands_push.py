"""Jobs with a url on the line: what is said, who may, what is shown, and runs of them."""

import pytest

from delayd.access.scopes import Scope
from delayd.core.errors import TargetRefused
from delayd.core.operations.attempts import fail_call
from delayd.core.operations.push import reserve_call, take_fresh
from delayd.core.session import Session
from delayd.core.targets import Target
from delayd.core.times import RequestMs
from delayd.limits import LONG_LINE_BYTES_MAX
from tests.rigs.line import ALL, Client, LineRig, bytewise

URL = b"https://example.com/due?key=s3"
FORBIDDEN = b"FORBIDDEN\r\n"
BAD = b"BAD_FORMAT\r\n"
CHANGED = b"CHANGED\r\n"


def vet(target: Target) -> Target:
    if not target.url.startswith("https:"):
        raise TargetRefused(f"url {target.url!r}", "must be https")
    return target


def with_push(*, needs_token: bool = False) -> LineRig:
    rig = LineRig(needs_token=needs_token)
    rig.engine.vet_target = vet
    return rig


def put(words: bytes, command: bytes = b"put") -> bytes:
    return b"%b 0 9 60 2 %b\r\nhi\r\n" % (command, words)


def shown(client: Client, job_id: int = 1) -> dict[str, str]:
    """Where `stats-job` says that the job goes."""
    rows = client.says(b"stats-job %d\r\n" % job_id).decode().splitlines()
    pairs = (row.partition(": ") for row in rows)
    return {name: value for name, _, value in pairs if name in {"url", "method"}}


def test_jobs_put_in_a_run_each_have_the_url_that_they_share() -> None:
    commands = b"".join(put(b"key=k%d url=%b" % (number, URL)) for number in range(3))
    together, bit_by_bit = with_push().client(), with_push().client()
    said = together.says(commands)
    assert said == b"INSERTED 1\r\nINSERTED 2\r\nINSERTED 3\r\n"
    assert bit_by_bit.says(*bytewise(commands)) == said
    assert [shown(together, job_id) for job_id in (1, 2, 3)] == [shown(bit_by_bit)] * 3
    assert shown(together)["url"] == f'"{URL.decode()}"'


@pytest.mark.parametrize("words", [b"url=%b", b"key=k url=%b"])
def test_a_url_that_may_not_be_called_is_refused_with_the_rule(words: bytes) -> None:
    client = with_push().client()
    said = client.says(put(words % b"http://a.example/") + b"list-tube-used\r\n")
    assert said == b"BAD_FORMAT url 'http://a.example/' must be https\r\nUSING default\r\n"
    said = client.says(put(words % b"ftp://a.example/") + b"list-tube-used\r\n")
    assert said.startswith(b"BAD_FORMAT url 'ftp://a.example/' must begin with https:// or http://")
    assert said.endswith(b"\r\nUSING default\r\n")


@pytest.mark.parametrize(
    "words",
    [b"method=PUT", b"url=%b method=HEAD" % URL, b"url=%b url=%b" % (URL, URL), b"url= key=k"],
)
def test_words_that_do_not_fit_are_refused_and_the_body_is_discarded(words: bytes) -> None:
    said = with_push().client().says(put(words) + b"list-tube-used\r\n")
    assert said.startswith(b"BAD_FORMAT")
    assert said.count(b"\r\n") == 2
    assert said.endswith(b"\r\nUSING default\r\n")


def test_a_line_with_a_url_may_be_as_long_as_those_of_other_extensions() -> None:
    client = with_push().client()
    head = b"put 0 9 60 2 url=https://example.com/"
    longest = head + b"x" * (LONG_LINE_BYTES_MAX - len(head) - 2)
    assert client.says(longest + b"\r\nhi\r\n") == b"INSERTED 1\r\n"
    assert client.says(longest + b"x\r\nhi\r\n") == BAD


@pytest.mark.parametrize("words", [b"url=%b", b"key=k url=%b"])
@pytest.mark.parametrize("command", [b"put", b"put-in-tube default"])
def test_a_url_needs_the_scope_webhook_besides_put(command: bytes, words: bytes) -> None:
    rig = with_push(needs_token=True)
    line = put(words % URL, command)
    producer = rig.user(Scope.PUT)
    assert producer.says(line + b"list-tube-used\r\n") == FORBIDDEN + b"USING default\r\n"
    assert rig.user(Scope.WEBHOOK).says(line) == FORBIDDEN
    assert rig.user(Scope.PUT, Scope.WEBHOOK, topics=("mail",)).says(line) == FORBIDDEN
    assert rig.user(Scope.PUT, Scope.WEBHOOK, topics=("default",)).says(line) == b"INSERTED 1\r\n"


def test_the_query_of_a_url_is_shown_to_admins_only() -> None:
    rig = with_push(needs_token=True)
    admin = rig.user(*ALL)
    admin.says(put(b"url=" + URL))
    assert shown(admin)["url"] == f'"{URL.decode()}"'
    assert shown(rig.user(Scope.PEEK))["url"] == '"https://example.com/due?***"'


def test_of_a_calls_answer_only_admins_see_more_than_the_first_line() -> None:
    rig = with_push(needs_token=True)
    admin = rig.user(*ALL)
    admin.says(b"put 0 0 60 2 url=%b\r\nhi\r\n" % URL)
    session, now_ms = Session(), RequestMs(rig.now_ms)
    (lane,) = take_fresh(rig.engine)
    assert reserve_call(rig.engine, session, lane, 60_000, now_ms) is not None
    fail_call(rig.engine, session, 1, now_ms, error="503 Service Unavailable\nTraceback: s3")
    ask = b"stats-job 1\r\n"
    assert b'error: "503 Service Unavailable\\nTraceback: s3"\n' in admin.says(ask)
    said = rig.user(Scope.PEEK).says(ask)
    assert b'error: "503 Service Unavailable"\n' in said
    assert b"failure: push-failed\n" in said


def test_another_url_is_refused_where_that_of_a_put_would_be() -> None:
    rig = with_push(needs_token=True)
    may = rig.user(*ALL)
    may.says(put(b"url=" + URL))
    assert may.says(b"change 1 url=http://a.example/\r\n").startswith(BAD[:-2])
    assert may.says(b"change 1 method=PUT\r\n") == BAD
    may_not = rig.user(Scope.PUT)
    for word in (b"url=https://b.example/", b"url="):
        assert may_not.says(b"change 1 %b\r\n" % word) == FORBIDDEN
        assert may_not.says(b"change 1 bytes=1 %b\r\nx\r\n" % word) == FORBIDDEN
    assert shown(may)["url"] == f'"{URL.decode()}"'
    assert may.says(b"change 9 url=\r\n") == b"NOT_FOUND\r\n"


def test_a_url_that_is_refused_is_told_without_password_and_query() -> None:
    client = with_push().client()
    for url in (b"ftp://a.example/?s3cret", b"https://ada:s3cret@a.example/"):
        said = client.says(put(b"url=" + url))
        assert said.startswith(b"BAD_FORMAT url '")
        assert b"s3cret" not in said
