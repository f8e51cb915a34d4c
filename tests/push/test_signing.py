import datetime as dt

import pytest
from hypothesis import given
from hypothesis import strategies as st
from standardwebhooks.webhooks import Webhook

from delayd.access.signing_secrets import Secrets, secret_key, secret_text
from delayd.push.signing import signature
from tests.access.secret_samples import key, named

BODY = b'{"hello": "world"}'


def test_a_call_is_signed_with_every_name_it_has_the_newest_secrets_first() -> None:
    secrets = Secrets([named("a", 1, 2), named("b", 3)])
    signed = signature(secrets.keys(["b", "a"]), "00c0_7", 5, BODY)
    assert signed.split(" ") == [
        signature([key(number)], "00c0_7", 5, BODY) for number in (3, 2, 1)
    ]
    assert signature(secrets.keys([]), "00c0_7", 5, BODY) == ""
    with pytest.raises(KeyError, match="c"):
        secrets.keys(["a", "c"])
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
