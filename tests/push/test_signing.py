import pytest

from delayd.access.signing_secrets import Secrets
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
