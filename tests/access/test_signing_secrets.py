import base64
import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from delayd.access.errors import redacted, shown
from delayd.access.signing_secrets import (
    ACTIVE_RULE,
    SECRET_RULE,
    SECRETS_FILE,
    NamedSecret,
    Secrets,
    secret_key,
    secret_text,
)
from delayd.core.errors import NotForTopic
from delayd.core.targets import NAME_RULE
from delayd.limits import TOKEN_GLOBS_MAX
from delayd.moments import TIME_RULE
from tests.access import samples
from tests.access.secret_samples import key, named, text
from tests.rigs.written import tables_of


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


errors_of_rows = partial(samples.errors_of_rows, SECRETS_FILE)
WRONG = Path(__file__).parent / "wrong_entries.txt"
ACTIVE = {"secret": text(5), "created": "2026-11-21T10:15:00Z"}


@pytest.mark.parametrize(("row", "error"), tables_of(WRONG)["secrets"])
def test_a_wrong_secret_is_named_with_its_place_and_the_rule(row: str, error: str) -> None:
    fields = json.loads(row.replace("GOOD", json.dumps(ACTIVE)).replace("SECRET", text(5)))
    rules = {"name": NAME_RULE, "active": ACTIVE_RULE, "secret": SECRET_RULE, "time": TIME_RULE}
    assert errors_of_rows(fields) == [f"secrets[0].{error.format(**rules)}"]


def test_two_secrets_of_one_name_are_a_mistake() -> None:
    rows = [SECRETS_FILE.row(named(name, 1)) for name in ("a", "b", "a")]
    assert errors_of_rows(*rows) == ['secrets[2].name = "a": is the name of another secret too']


# --- Nothing tells a secret ----------------------------------------------------------------------


def test_no_message_and_no_repr_has_a_secret() -> None:
    secret = text(1).removeprefix("whsec_")
    entry = named("a", 1)
    for pasted in (text(1), secret, [text(1)], {"secret": secret, "created": 7}):
        for row in (
            {"name": pasted, "active": [ACTIVE]},
            {"name": "a", "active": pasted},
            {"name": "a", "active": [pasted]},
            {"name": "a", "active": [ACTIVE | {"created": pasted}]},
            {"name": "a", "active": [ACTIVE], str(pasted): 1},
        ):
            assert secret not in "".join(errors_of_rows(row))
    for said in (repr(entry), str(entry), repr(Secrets([entry])), redacted(text(1))):
        assert secret not in said
        assert repr(key(1))[2:-1] not in said
    assert secret not in shown({"key": [secret]})


# --- For which topics ----------------------------------------------------------------------------


def limited(name: str, *globs: str) -> NamedSecret:
    return replace(named(name, 1), topics=globs)


def test_topics_are_read_and_written_and_their_mistakes_told() -> None:
    entry = limited("b", "b*", "mail.?")
    assert SECRETS_FILE.from_bytes(SECRETS_FILE.to_bytes([entry]), "t") == (entry,)
    for topics in ([], "b*", ["a b"], [7], ["t"] * (TOKEN_GLOBS_MAX + 1), None):
        (error,) = errors_of_rows({"name": "a", "active": [ACTIVE], "topics": topics})
        assert error.startswith("secrets[0].topics = ")


def test_a_topic_signs_with_the_secrets_that_are_for_it() -> None:
    secrets = Secrets([limited("b", "b*"), limited("mail", "mail", "b1"), named("old", 2)])
    assert secrets.to_sign_with("b1", ("b", "mail")) == ("b", "mail")
    assert secrets.to_sign_with("any", ("old",)) == ("old",)
    assert secrets.to_sign_with("any", ()) == ()
    assert secrets.of_all_topics == ("old",)
    assert not Secrets().reload()
    with pytest.raises(NotForTopic) as refused:
        secrets.to_sign_with("a", ("old", "b"))
    assert str(refused.value) == "secret 'b' is for the topics b*, and not for 'a'"
    assert refused.value.field == "secrets"


def test_of_the_usual_secrets_a_topic_uses_its_own_and_never_none_in_their_place() -> None:
    secrets = Secrets([limited("b", "b*"), limited("mail", "mail")])
    usual = ("b", "mail")
    assert secrets.to_sign_with("b1", (), usual) == ("b",)
    assert secrets.to_sign_with("mail", (), usual) == ("mail",)
    with pytest.raises(NotForTopic, match=r"^secret 'b' of push.sign_with is for the topics b\*"):
        secrets.to_sign_with("a", (), usual)
