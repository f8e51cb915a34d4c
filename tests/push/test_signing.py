import datetime as dt

import pytest
from hypothesis import given
from hypothesis import strategies as st
from standardwebhooks.webhooks import Webhook, WebhookVerificationError

from delayd.access.signing_secrets import Secrets, secret_key, secret_text
from delayd.clock import system_wall_ms
from delayd.push.signing import signature
from tests.access.secret_samples import key, named, text

BODY = b'{"hello": "world"}'


def headers(secrets: Secrets, *names: str, epoch_s: int | None = None) -> dict[str, str]:
    epoch_s = system_wall_ms() // 1_000 if epoch_s is None else epoch_s
    return {
        "webhook-id": "00c0ffee00c0ffee_7",
        "webhook-timestamp": str(epoch_s),
        "webhook-signature": signature(secrets.keys(names), "00c0ffee00c0ffee_7", epoch_s, BODY),
    }


def test_the_library_of_the_standard_verifies_a_signature() -> None:
    signed = headers(Secrets([named("a", 1)]), "a")
    assert Webhook(text(1)).verify(BODY, signed) == {"hello": "world"}
    for change in (
        {"webhook-id": "0_8"},
        {"webhook-timestamp": str(system_wall_ms() // 1_000 - 9)},
    ):
        with pytest.raises(WebhookVerificationError):
            Webhook(text(1)).verify(BODY, signed | change)
    with pytest.raises(WebhookVerificationError):
        Webhook(text(1)).verify(BODY + b" ", signed)
    with pytest.raises(WebhookVerificationError):
        Webhook(text(2)).verify(BODY, signed)


def test_while_a_secret_is_exchanged_receivers_with_either_accept() -> None:
    signed = headers(Secrets([named("a", 1, 2)]), "a")
    for known in (1, 2):
        assert Webhook(text(known)).verify(BODY, signed)
    with pytest.raises(WebhookVerificationError):
        Webhook(text(3)).verify(BODY, signed)


def test_a_call_is_signed_with_every_name_it_has_the_newest_secrets_first() -> None:
    secrets = Secrets([named("a", 1, 2), named("b", 3)])
    signed = headers(secrets, "b", "a", epoch_s=5)["webhook-signature"].split(" ")
    assert signed == [
        signature([key(number)], "00c0ffee00c0ffee_7", 5, BODY) for number in (3, 2, 1)
    ]
    assert headers(secrets, epoch_s=5)["webhook-signature"] == ""
    with pytest.raises(KeyError, match="c"):
        headers(secrets, "a", "c")
    assert secrets.unknown(["c", "a", "d"]) == ("c", "d")


@given(st.binary(min_size=24, max_size=64), st.integers(0, 2**33), st.text())
def test_every_signature_is_the_one_of_the_standards_library(
    drawn: bytes, epoch_s: int, body: str
) -> None:
    try:
        data = body.encode()
    except UnicodeEncodeError:
        return
    moment = dt.datetime.fromtimestamp(epoch_s, dt.UTC).replace(tzinfo=None)
    theirs = Webhook(secret_text(drawn)).sign("m_1", moment, body)
    assert signature([secret_key(secret_text(drawn))], "m_1", epoch_s, data) == theirs


def test_a_body_that_is_no_text_is_signed_as_it_is() -> None:
    assert signature([key(1)], "m", 1, b"\xff\0") != signature([key(1)], "m", 1, b"\xfe\0")
