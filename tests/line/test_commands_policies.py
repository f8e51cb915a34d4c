"""Failed attempts and policies on the line: what is said, refused, shown."""

import pytest

from delayd.core.operations.tick import leases_are_caught_up
from delayd.core.times import PlayedMs
from delayd.limits import POLICY_JSON_BYTES_MAX
from tests.rigs.line import Client, LineRig

SET = b"POLICY_SET\r\n"
LADDER = b'{"retry": ["15s", "3m"]}'


@pytest.fixture
def client() -> Client:
    return LineRig(is_virtual=True).client()


def policy(client: Client, text: bytes, tube: bytes = b"default") -> bytes:
    return client.says(b"set-policy %b %d\r\n%b\r\n" % (tube, len(text), text))


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
    assert b"\ncurrent-jobs-ready: 600\n" in client.says(b"stats-tube default\r\n")


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
