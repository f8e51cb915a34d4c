import base64
import datetime as dt
import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from standardwebhooks.webhooks import Webhook, WebhookVerificationError

from delayd.access.errors import SecretsInvalid, redacted, shown
from delayd.clock import system_wall_ms
from delayd.core.targets import NAME_RULE
from delayd.limits import SECRETS_FILE_BYTES_MAX, SECRETS_MAX
from delayd.push.signing import (
    ACTIVE_RULE,
    SECRET_RULE,
    SECRETS_FILE,
    NamedSecret,
    Secrets,
    secret_key,
    secret_text,
    signature,
)
from delayd.text import TIME_RULE
from tests.push.samples import key, named, text, written

GOLDEN = Path(__file__).parent / "data" / "secrets-1.json"
BODY = b'{"hello": "world"}'


def headers(secrets: Secrets, *names: str, epoch_s: int | None = None) -> dict[str, str]:
    epoch_s = system_wall_ms() // 1_000 if epoch_s is None else epoch_s
    return {
        "webhook-id": "00c0ffee00c0ffee_7",
        "webhook-timestamp": str(epoch_s),
        "webhook-signature": secrets.signature(names, "00c0ffee00c0ffee_7", epoch_s, BODY),
    }


# --- Signatures ----------------------------------------------------------------------------------


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


@pytest.mark.parametrize(
    "value",
    [
        *("", "whsec_", "whsec_!!!!", base64.b64encode(bytes(32)).decode(), 7, None),
        *(secret_text(bytes(23)), secret_text(bytes(65)), secret_text(bytes(32))[:-1]),
        *(secret_text(bytes(32)) + "\n", "whsk_" + "A" * 44, "whsec_ü" + "A" * 40),
    ],
)
def test_what_is_no_secret_is_refused(value: object) -> None:
    with pytest.raises(ValueError) as caught:
        secret_key(value)
    assert str(caught.value) == SECRET_RULE


@pytest.mark.parametrize("count", [24, 32, 64])
def test_secrets_of_other_makers_are_taken_too(count: int) -> None:
    assert secret_key(secret_text(bytes(count))) == bytes(count)


# --- The file ------------------------------------------------------------------------------------


def test_the_secrets_file_of_version_1_is_read_and_written_for_ever() -> None:
    data = GOLDEN.read_bytes()
    assert SECRETS_FILE.from_bytes(data, "t") == (named("orders", 1, 2), named("mail.out-2_x", 3))
    assert SECRETS_FILE.to_bytes(SECRETS_FILE.from_bytes(data, "t")) == data


def test_a_secrets_file_that_ends_anywhere_is_refused() -> None:
    data = GOLDEN.read_bytes()
    for count in range(len(data) - 1):
        with pytest.raises(SecretsInvalid):
            SECRETS_FILE.from_bytes(data[:count], "t")


def errors_of_rows(*rows: object) -> list[str]:
    with pytest.raises(SecretsInvalid) as caught:
        SECRETS_FILE.from_bytes(json.dumps({"version": 1, "secrets": rows}).encode(), "t")
    return [error.removeprefix("t: ") for error in caught.value.errors]


ACTIVE = {"secret": text(5), "created": "2026-11-21T10:15:00Z"}


@pytest.mark.parametrize(
    ("row", "error"),
    [
        ({"name": "a b", "active": [ACTIVE]}, f'secrets[0].name = "a b": {NAME_RULE}'),
        ({"name": "", "active": [ACTIVE]}, f'secrets[0].name = "": {NAME_RULE}'),
        ({"name": 7, "active": [ACTIVE]}, f"secrets[0].name = 7: {NAME_RULE}"),
        ({"name": "a"}, "secrets[0].active: is missing"),
        ({"name": "a", "active": []}, f"secrets[0].active: {ACTIVE_RULE}"),
        ({"name": "a", "active": [ACTIVE] * 3}, f"secrets[0].active: {ACTIVE_RULE}"),
        ({"name": "a", "active": text(5)}, f"secrets[0].active: {ACTIVE_RULE}"),
        ({"name": "a", "active": [text(5)]}, f"secrets[0].active: {ACTIVE_RULE}"),
        ({"name": "a", "active": [ACTIVE | {"x": 1}]}, f"secrets[0].active: {ACTIVE_RULE}"),
        (
            {"name": "a", "active": [ACTIVE | {"secret": text(5)[6:]}]},
            f"secrets[0].active: secret: {SECRET_RULE}",
        ),
        (
            {"name": "a", "active": [ACTIVE | {"created": "now"}]},
            f'secrets[0].active: created = "now": {TIME_RULE}',
        ),
        ({"name": "a", "active": [ACTIVE], "x": 1}, "secrets[0].x: there is no such field"),
    ],
)
def test_a_wrong_secret_is_named_with_its_place_and_the_rule(row: object, error: str) -> None:
    assert errors_of_rows(row) == [error]


def test_two_secrets_of_one_name_are_a_mistake() -> None:
    rows = [named(name, 1).fields() for name in ("a", "b", "a")]
    assert errors_of_rows(*rows) == ['secrets[2].name = "a": is the name of another secret too']


def test_as_many_secrets_as_the_limit_says_fit_and_one_more_does_not() -> None:
    many = [named(f"{number:064}", 1, 2) for number in range(SECRETS_MAX)]
    data = SECRETS_FILE.to_bytes(many)
    assert len(data) < SECRETS_FILE_BYTES_MAX
    assert len(Secrets(SECRETS_FILE.from_bytes(data, "t"))) == SECRETS_MAX
    (error,) = errors_of_rows(*[entry.fields() for entry in many], named("x", 1).fields())
    assert error == f"secrets: must be a list of at most {SECRETS_MAX} entries"


def test_secrets_are_loaded_and_read_again_and_a_bad_file_keeps_the_old_ones(
    tmp_path: Path,
) -> None:
    path = tmp_path / "secrets.json"
    secrets = Secrets.load(written(path, named("a", 1)))
    assert secrets.unknown(["a", "b"]) == ("b",)
    written(path, named("b", 2))
    assert secrets.reload() == ()
    assert secrets.unknown(["a", "b"]) == ("a",)
    path.write_text("{")
    (error,) = secrets.reload()
    assert error.startswith(f"{path}: is not JSON")
    assert secrets.unknown(["a", "b"]) == ("a",)
    assert Secrets().reload() == ()


def errors_of(path: Path) -> tuple[str, ...]:
    with pytest.raises(SecretsInvalid) as caught:
        Secrets.load(str(path))
    return caught.value.errors


@pytest.mark.parametrize("mode", [0o604, 0o602, 0o620, 0o666])
def test_a_secrets_file_that_others_can_read_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "secrets.json"
    written(path, named("a", 1))
    path.chmod(mode)
    rule = "others may read it or write to it, and there are secrets in it: chmod 600"
    assert errors_of(path) == (f"{path}: has the mode {mode:04o}: {rule}",)
    path.chmod(0o440)  # systemd's credentials look so
    assert len(Secrets.load(str(path))) == 1


def test_a_secrets_file_that_is_not_there_or_far_too_long_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "secrets.json"
    assert errors_of(path) == (f"{path}: cannot be read: No such file or directory",)
    path.touch(0o600)
    os.truncate(path, SECRETS_FILE_BYTES_MAX + 1)
    assert errors_of(path) == (f"{path}: is longer than {SECRETS_FILE_BYTES_MAX} bytes",)


# --- Nothing tells a secret ----------------------------------------------------------------------


@pytest.mark.parametrize("number", range(8))
def test_no_message_and_no_repr_has_a_secret(number: int) -> None:
    secret = text(number).removeprefix("whsec_")
    entry = named("a", number)
    for pasted in (text(number), secret, [text(number)], {"secret": secret, "created": 7}):
        for row in (
            {"name": pasted, "active": [ACTIVE]},
            {"name": "a", "active": pasted},
            {"name": "a", "active": [pasted]},
            {"name": "a", "active": [ACTIVE | {"created": pasted}]},
            {"name": "a", "active": [ACTIVE], str(pasted): 1},
        ):
            assert secret not in "".join(errors_of_rows(row))
    for said in (repr(entry), str(entry), repr(Secrets([entry])), redacted(text(number))):
        assert secret not in said
    assert secret not in shown({"key": [secret]})
    assert isinstance(entry, NamedSecret)
