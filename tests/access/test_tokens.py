import hashlib
import hmac
import os
import re
from pathlib import Path

import pytest

from delayd.access.errors import TokensInvalid
from delayd.access.scopes import Scope
from delayd.access.tokens import TOKEN, TOKEN_BYTES, Tokens, issue
from delayd.durations import size_text
from delayd.limits import TOKENS_FILE_BYTES_MAX
from tests.access.samples import drawn, made, written


def test_a_token_is_its_prefix_its_id_and_its_secret() -> None:
    text, entry = made(7)
    assert re.fullmatch(r"dlyd_[0-9a-f]{8}_[A-Za-z0-9_-]{43}", text)
    assert text.startswith(f"dlyd_{entry.id}_")
    assert entry.id == drawn(7)[:4].hex()


@pytest.mark.parametrize("_try", range(20))
def test_every_draw_gives_a_token_that_is_recognised(_try: int) -> None:
    text, entry = issue(os.urandom(TOKEN_BYTES), "x", {Scope.PUT}, ["*"], created_s=0)
    assert TOKEN.fullmatch(text)
    principal = Tokens([entry]).find(text, 0.0)
    assert principal is not None
    assert principal.token_id == entry.id


def test_only_a_hash_of_the_secret_is_kept() -> None:
    text, entry = made()
    secret = text.rpartition(f"{entry.id}_")[2]
    assert entry.sha256 == hashlib.sha256(secret.encode()).hexdigest()
    assert secret not in repr(entry)
    assert secret not in repr(Tokens([entry]).find(text, 0.0))


def test_who_is_found_may_what_the_entry_says() -> None:
    text, entry = made(1, (Scope.PUT, Scope.PEEK), ("mail.*",))
    principal = Tokens([made(2)[1], entry]).find(text, 0.0)
    assert principal is not None
    assert (principal.name, principal.token_id) == ("holder 1", entry.id)
    assert {scope for scope in Scope if principal.may(scope, "mail.x")} == {Scope.PUT, Scope.PEEK}
    assert not principal.may(Scope.PUT, "sms")


def test_a_token_that_differs_in_one_character_is_nobodys() -> None:
    text, entry = made()
    tokens = Tokens([entry])
    for index, char in enumerate(text):
        wrong = text[:index] + ("A" if char != "A" else "B") + text[index + 1 :]
        assert tokens.find(wrong, 0.0) is None
    for index in range(len(text)):
        assert tokens.find(text[:index], 0.0) is None
        assert tokens.find(text[index + 1 :], 0.0) is None


@pytest.mark.parametrize(
    "wrong", ["", "x", " {}", "{} ", "{}\n", "{}=", "Bearer {}", "{}{}", "{}\0", "é" * 57]
)
def test_what_only_holds_a_token_is_nobodys(wrong: str) -> None:
    text, entry = made()
    assert Tokens([entry]).find(wrong.replace("{}", text), 0.0) is None


def test_the_secret_of_another_id_is_nobodys() -> None:
    (first, first_entry), (second, second_entry) = made(1), made(2)
    swapped = first[:14] + second[14:]
    assert Tokens([first_entry, second_entry]).find(swapped, 0.0) is None


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


def test_a_renewed_principal_is_as_the_file_says_now() -> None:
    text, entry = made(1)
    before = Tokens([entry]).find(text, 0.0)
    assert before is not None
    less = made(1, (Scope.STATS,))[1]
    after = Tokens([less]).renewed(before, 0.0)
    assert after is not None
    assert after.scopes == {Scope.STATS}


def test_who_is_revoked_replaced_or_over_is_not_renewed() -> None:
    text, entry = made(1)
    principal = Tokens([entry]).find(text, 0.0)
    assert principal is not None
    assert Tokens([made(2)[1]]).renewed(principal, 0.0) is None
    assert Tokens([made(1, not_after_s=5)[1]]).renewed(principal, 6.0) is None
    other = issue(drawn(1)[:4] + bytes(32), "x", set(Scope), ["*"], created_s=0)[1]
    assert other.id == entry.id
    assert Tokens([other]).renewed(principal, 0.0) is None


# --- The file ------------------------------------------------------------------------------------


def test_tokens_are_loaded_from_their_file(tmp_path: Path) -> None:
    text, entry = made()
    tokens = Tokens.load(written(tmp_path / "tokens.json", entry))
    assert tokens.entries == (entry,)
    assert tokens.find(text, 0.0) is not None


def errors_of(path: Path) -> tuple[str, ...]:
    with pytest.raises(TokensInvalid) as caught:
        Tokens.load(str(path))
    return caught.value.errors


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    missing = tmp_path / "missing.json"
    assert errors_of(missing) == (f"{missing}: cannot be read: No such file or directory",)
    assert errors_of(tmp_path) == (f"{tmp_path}: cannot be read: Is a directory",)


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_a_file_that_others_can_write_to_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "tokens.json"
    written(path, made()[1])
    path.chmod(mode)
    (only,) = errors_of(path)
    assert only == (
        f"{path}: has the mode {mode:04o}: others may write to it, and so make tokens: chmod 600"
    )
    path.chmod(0o640)  # a group that reads it is fine
    assert len(Tokens.load(str(path)).entries) == 1


def test_a_file_that_is_far_too_long_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    path.touch(0o600)
    os.truncate(path, TOKENS_FILE_BYTES_MAX + 1)
    assert errors_of(path) == (
        f"{path}: cannot be read: it is longer than {size_text(TOKENS_FILE_BYTES_MAX)}",
    )
