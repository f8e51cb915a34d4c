"""Failed attempts and policies on the line: what is said, refused, shown."""

import pytest

from delayd.core.operations.tick import leases_are_caught_up
from delayd.core.operations.topics import configure
from delayd.core.times import PlayedMs
from delayd.limits import POLICY_JSON_BYTES_MAX
from tests.rigs.line import Client, LineRig

SET = b"POLICY_SET\r\n"
BAD = b"BAD_FORMAT\r\n"
NOT_FOUND = b"NOT_FOUND\r\n"
RESERVED = b"RESERVED 1 1\r\nx\r\n"
LADDER = b'{"retry": ["15s", "3m"]}'


@pytest.fixture
def client() -> Client:
    return LineRig(is_virtual=True).client()


def policy(client: Client, text: bytes, tube: bytes = b"default") -> bytes:
    return client.says(b"set-policy %b %d\r\n%b\r\n" % (tube, len(text), text))


def put_and_reserve(client: Client) -> None:
    assert client.says(b"put 0 0 60 1\r\nx\r\n", b"reserve\r\n").endswith(RESERVED)


def stats(client: Client, of: bytes = b"stats-job 1") -> dict[str, str]:
    lines = client.says(of + b"\r\n").decode().split("\r\n")[1].splitlines()[1:]
    return dict(line.split(": ", 1) for line in lines)


def test_a_policy_waits_for_what_ran_out_before_it_and_the_client_with_it(client: Client) -> None:
    client.says(b"put 0 0 1 0\r\n\r\n" * 600)
    assert client.says(b"reserve-batch 600 0\r\n").startswith(b"RESERVED_BATCH 600\r\n")
    engine = client.connection.engine
    engine.store.time_ms = PlayedMs(engine.store.time_ms + 1000)
    assert not leases_are_caught_up(engine)
    command = b"set-policy default %d\r\n%b\r\n" % (len(LADDER), LADDER)
    said = client.says(command + b"get-policy default\r\n")
    assert said == SET + b"OK %d\r\n%b\r\n" % (len(LADDER), LADDER)
    # They ran out before: no attempt has failed.
    assert stats(client, b"stats-tube default")["current-jobs-ready"] == "600"


@pytest.mark.parametrize(
    "text",
    [b"x", b"[]", b'{"retry": 15}', b'{"ladder": ["15s"]}', b'{"jobs_max": 0}', b"\xff", b'{"a'],
)
def test_what_is_no_policy_is_refused_whole(client: Client, text: bytes) -> None:
    assert policy(client, LADDER) == SET
    said = policy(client, text)
    assert said.startswith(b"BAD_FORMAT ")
    assert said.count(b"\n") == 1
    assert b"15s" in client.says(b"get-policy default\r\n")


def test_everything_that_is_wrong_with_a_policy_is_told_on_one_line(client: Client) -> None:
    text = b'{"ttr": 0, "retry": "0s 1q", "a\\r\\n\\u0000b": 1, "gr\xc3\xb6": 1, "ttr": -1}'
    assert policy(client, text).decode() == (
        "BAD_FORMAT ttr: is given twice; ttr = -1: must be from 0 to 4294967295 s; "
        'retry = "0s 1q": step 1, "0s", must be more than 0: what failed would fail again at '
        'once; step 2, "1q", must be seconds, or a duration such as "50ms", "15s" or '
        '"1h30m"; a\\r\\n\\x00b: there is no such field; grö: there is no such field\r\n'
    )


@pytest.mark.parametrize("name", ["x", "ö", "\\u0007", "\\ud800", "\\u2028"])
def test_what_is_told_of_a_wrong_policy_has_a_thousand_bytes_at_most(
    client: Client, name: str
) -> None:
    said = policy(client, b'{"%b": 1}' % (name * 2_000).encode())
    text = said.removeprefix(b"BAD_FORMAT ").removesuffix(b"\r\n")
    assert 990 <= len(text) <= 1_000
    assert text.endswith(b"...")
    assert text.decode().isprintable()
    assert client.says(b"list-tube-used\r\n") == b"USING default\r\n"


def test_a_policy_may_be_only_so_long_and_the_connection_goes_on(client: Client) -> None:
    assert policy(client, b" " * (POLICY_JSON_BYTES_MAX + 1)) == b"JOB_TOO_BIG\r\n"
    assert policy(client, LADDER + b" " * (POLICY_JSON_BYTES_MAX - len(LADDER))) == SET
    said = client.says(b"set-policy default 2\r\n{}x\r\nlist-tube-used\r\n")
    assert said.startswith(b"EXPECTED_CRLF\r\n")


@pytest.mark.parametrize(
    "line",
    [
        *(b"set-policy default", b"set-policy default x", b"set-policy -x", b"set-policy"),
        *(b"set-policy default 4294967296", b"get-policy default x", b"get-policy "),
        *(b"nack x", b"nack ", b"nack 1 delay=x", b"nack -1", b"redrive default", b"redrive no x"),
        *(b"redrive default 0", b"redrive default 1 x", b"redrive default 1 2 3"),
        *(b"redrive default 1 4294967295", b"redrive default 5 0", b"redrive default 5 0.0001"),
        *(b"redrive default 5 .5", b"redrive default 5 1e3", b"redrive default 5 0.0"),
    ],
)
def test_malformed_lines_are_refused_and_the_connection_goes_on(line: bytes) -> None:
    client = LineRig().client()
    put_and_reserve(client)
    said = client.says(line + b"\r\nlist-tube-used\r\n")
    refusal = b"UNKNOWN_COMMAND\r\n" if line == b"set-policy" else BAD
    assert said == refusal + b"USING default\r\n"
    assert stats(client)["state"] == "reserved"


def test_dead_letters_are_revived_at_a_rate(client: Client) -> None:
    client.says(b"put 0 0 60 1\r\nx\r\n" * 4, b"reserve\r\n" * 4)
    client.says(*(b"bury %d 0\r\n" % job_id for job_id in (3, 1, 2, 4)))
    assert client.says(b"redrive default 3 2\r\n") == b"REDRIVEN 3\r\n"
    assert client.says(b"reserve-batch 9 0\r\n").startswith(b"RESERVED_BATCH 1\r\nRESERVED 3 ")
    assert client.says(b"advance-clock 0.5\r\n", b"reserve\r\n").endswith(RESERVED)
    assert client.says(b"advance-clock 0.5\r\n", b"reserve\r\n").endswith(b"RESERVED 2 1\r\nx\r\n")
    assert stats(client, b"stats-job 4")["state"] == "buried"


def test_dead_letters_are_revived_slower_than_one_a_second(client: Client) -> None:
    client.says(b"put 0 0 60 1\r\nx\r\n" * 3, b"reserve\r\n" * 3)
    client.says(*(b"bury %d 0\r\n" % job_id for job_id in (1, 2, 3)))
    assert client.says(b"redrive default 3 0.1\r\n") == b"REDRIVEN 3\r\n"
    shown = [stats(client, b"stats-job %d" % job_id)["delay"] for job_id in (2, 3)]
    assert shown == ["10", "20"]


def test_without_policy_key_and_failure_statistics_are_beanstalkds(client: Client) -> None:
    put_and_reserve(client)
    client.says(b"release 1 0 0\r\n")
    assert list(stats(client)) == [
        *("id", "tube", "state", "pri", "age", "delay", "ttr", "time-left", "file"),
        *("reserves", "timeouts", "releases", "buries", "kicks"),
    ]
    assert list(stats(client, b"stats-tube default"))[-1] == "pause-time-left"


def test_a_tube_with_a_policy_shows_its_use_against_the_caps(client: Client) -> None:
    policy(client, b'{"jobs_max": 2, "bytes_max": 1000, "rate_per_s": 0.5}')
    client.says(b"put 0 0 60 1\r\nx\r\n")
    shown = stats(client, b"stats-tube default")
    assert list(shown)[14:] == [
        *("policy", "current-jobs", "current-bytes", "jobs-max", "bytes-max", "rate-per-s"),
    ]
    assert shown["policy"] == "run-time"
    assert (shown["current-jobs"], shown["jobs-max"]) == ("1", "2")
    assert int(shown["current-bytes"]) == 43
    assert shown["rate-per-s"] == "0.5"


def test_use_against_the_caps_of_all_tubes_is_in_the_statistics_only_where_there_are_any() -> None:
    rig = LineRig()
    client = rig.client()
    assert list(stats(client, b"stats"))[-1] == "delayd-version"
    configure(rig.engine, jobs_max=2)
    client.says(b"put 0 0 60 1\r\nx\r\n")
    shown = stats(client, b"stats")
    assert list(shown)[52:] == ["current-jobs", "current-bytes", "jobs-max"]
    assert [shown[name] for name in list(shown)[52:]] == ["1", "43", "2"]
    said = client.says(b"put 0 0 60 1\r\nx\r\n" * 2)
    assert said == b"INSERTED 2\r\nOUT_OF_MEMORY\r\n"
    assert rig.engine.store.last_id == 3, "a put that is refused takes an id all the same"
