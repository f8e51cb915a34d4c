import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delayd.access.principal import EVERYBODY, Principal
from delayd.access.scopes import Scope
from delayd.core.policy import Patterns, Policy
from delayd.limits import TOKEN_TOPICS_MATCHED_MAX

WORDS = "put reserve delete release bury kick peek pause stats admin webhook"
PAGE = Path(__file__).parents[2] / "docs" / "security.md"


def holder(scopes: set[Scope], *topics: str) -> Principal:
    return Principal("holder", "0a1b2c3d", frozenset(scopes), topics)


def test_the_words_are_those_of_the_page() -> None:
    assert " ".join(Scope) == WORDS
    page = PAGE.read_text()
    for scope in Scope:
        assert f"| `{scope}` |" in page


@pytest.mark.parametrize(("granted", "asked"), [*itertools.product(Scope, Scope)])
def test_a_scope_is_good_for_itself_alone(granted: Scope, asked: Scope) -> None:
    principal = holder({granted}, "mail.*")
    assert principal.may(asked, "mail.out") is (granted is asked)
    assert not principal.may(asked, "sms")
    assert not principal.may(asked, None)
    assert holder({granted}, "*").may(asked, None) is (granted is asked)


@pytest.mark.parametrize("scope", list(Scope))
@pytest.mark.parametrize("topic", [None, "default", "a.b"])
def test_everybody_may_do_everything(scope: Scope, topic: str | None) -> None:
    assert EVERYBODY.may(scope, topic)


@pytest.mark.parametrize("scope", list(Scope))
def test_who_has_no_topics_or_no_scopes_may_do_nothing(scope: Scope) -> None:
    for topic in (None, "", "default"):
        assert not holder(set(Scope)).may(scope, topic)
        assert not holder(set(), "*").may(scope, topic)


@pytest.mark.parametrize(
    ("glob", "fits", "does_not"),
    [
        ("mail", ["mail"], ["mail.x", "xmail", "", "MAIL", "mail\n"]),
        ("mail.*", ["mail.", "mail.a.b"], ["mail", "mailx", "xmail.a"]),
        ("?", ["a", "."], ["", "ab"]),
        ("*.dead", [".dead", "a.dead"], ["a.deadx", "adead"]),
        ("a(b)$;+", ["a(b)$;+"], ["ab$;+", "a(b)"]),
    ],
)
def test_a_glob_fits_whole_names(glob: str, fits: list[str], does_not: list[str]) -> None:
    principal = holder({Scope.PUT}, "other", glob)
    for name in fits:
        assert principal.may(Scope.PUT, name)
    for name in does_not:
        assert not principal.may(Scope.PUT, name)


@given(glob=st.text("ab.*?(", min_size=1, max_size=8), name=st.text("ab.(", min_size=1, max_size=8))
def test_a_glob_means_what_it_means_for_policies(glob: str, name: str) -> None:
    policy = Policy(jobs_max=1)
    assert holder({Scope.PUT}, glob).may(Scope.PUT, name) == (
        Patterns({glob: policy}).of(name) is policy
    )


def test_what_was_found_is_remembered_for_a_few_topics_of_each_token() -> None:
    principal = holder({Scope.PUT}, "mail.*")
    for number in range(3 * TOKEN_TOPICS_MATCHED_MAX):
        assert principal.may(Scope.PUT, f"mail.{number}")
        assert not principal.may(Scope.PUT, f"sms.{number}")
        assert principal.may(Scope.PUT, "mail.0")


def test_the_hash_of_a_secret_is_not_shown() -> None:
    assert b"canary".hex() not in repr(Principal("x", digest=b"canary"))
    assert "canary" not in repr(Principal("x", digest=b"canary"))
