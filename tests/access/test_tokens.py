import hashlib
import hmac
import random
import re

import pytest

from delayd.access.scopes import Scope
from delayd.access.tokens import TOKEN, TOKEN_BYTES, Tokens, issue
from tests.access.samples import drawn, made


def test_a_token_is_its_prefix_its_id_and_a_secret_of_which_only_a_hash_is_kept() -> None:
    text, entry = made(7)
    assert re.fullmatch(r"dlyd_[0-9a-f]{8}_[A-Za-z0-9_-]{43}", text)
    prefix, secret = f"dlyd_{entry.id}_", text[14:]
    assert text == prefix + secret
    assert entry.id == drawn(7)[:4].hex()
    assert entry.sha256 == hashlib.sha256(secret.encode()).hexdigest()
    assert secret not in repr(entry)
    assert secret not in repr(Tokens([entry]).find(text, 0.0))


def test_every_draw_gives_a_token_that_is_recognised(rng: random.Random) -> None:
    for _ in range(20):
        text, entry = issue(rng.randbytes(TOKEN_BYTES), "x", {Scope.PUT}, ["*"], created_s=0)
        assert TOKEN.fullmatch(text)
        principal = Tokens([entry]).find(text, 0.0)
        assert principal is not None
        assert principal.token_id == entry.id


def test_who_is_found_may_what_the_entry_says() -> None:
    text, entry = made(1, (Scope.PUT, Scope.PEEK), ("mail.*",))
    principal = Tokens([made(2)[1], entry]).find(text, 0.0)
    assert principal is not None
    assert (principal.name, principal.token_id) == ("holder 1", entry.id)
    assert {scope for scope in Scope if principal.may(scope, "mail.x")} == {Scope.PUT, Scope.PEEK}
    assert not principal.may(Scope.PUT, "sms")


def test_what_is_not_a_token_to_the_character_is_nobodys() -> None:
    (text, entry), (other, other_entry) = made(1), made(2)
    wrong = [text[:14] + other[14:], "", "x", "é" * 57, text * 2, f" {text}", f"Bearer {text}"]
    wrong += [text + more for more in (" ", "\n", "=", "\0")]
    for index, char in enumerate(text):
        changed = "A" if char != "A" else "B"
        wrong += [text[:index] + changed + text[index + 1 :], text[:index], text[index + 1 :]]
    tokens = Tokens([entry, other_entry])
    assert not [each for each in wrong if tokens.find(each, 0.0) is not None]


def test_a_token_is_good_up_to_its_last_second() -> None:
    text, entry = made(not_after_s=5_000)
    tokens = Tokens([entry])
    assert tokens.find(text, 5_000.0) is not None
    assert tokens.find(text, 5_000.001) is None


@pytest.mark.parametrize("shown", ["right", "wrong secret", "unknown id", "no token at all"])
def test_every_look_compares_once_and_in_constant_time(
    monkeypatch: pytest.MonkeyPatch, shown: str
) -> None:
    text, entry = made()
    compared: list[tuple[bytes, bytes]] = []

    def compare(one: bytes, other: bytes) -> bool:
        compared.append((one, other))
        return one == other

    monkeypatch.setattr(hmac, "compare_digest", compare)
    texts = {
        "right": text,
        "wrong secret": text[:-1] + ("A" if text[-1] != "A" else "B"),
        "unknown id": made(9)[0],
        "no token at all": "x",
    }
    found = Tokens([entry]).find(texts[shown], 0.0)
    assert (found is not None) is (shown == "right")
    ((one, other),) = compared
    assert len(one) == len(other) == 32


# --- Those who are in already --------------------------------------------------------------------


def test_a_principal_is_renewed_as_the_file_says_now_and_not_when_it_is_revoked_or_over() -> None:
    text, entry = made(1)
    principal = Tokens([entry]).find(text, 0.0)
    assert principal is not None
    renewed = Tokens([made(1, (Scope.STATS,))[1]]).renewed(principal, 0.0)
    assert renewed is not None
    assert renewed.scopes == {Scope.STATS}
    assert Tokens([made(2)[1]]).renewed(principal, 0.0) is None
    assert Tokens([made(1, not_after_s=5)[1]]).renewed(principal, 6.0) is None
    replaced = issue(drawn(1)[:4] + bytes(32), "x", set(Scope), ["*"], created_s=0)[1]
    assert replaced.id == entry.id
    assert Tokens([replaced]).renewed(principal, 0.0) is None


# --- The file ------------------------------------------------------------------------------------
