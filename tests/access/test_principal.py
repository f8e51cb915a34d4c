import itertools

from hypothesis import given
from hypothesis import strategies as st

from delayd.access.principal import EVERYBODY, Principal
from delayd.access.scopes import Scope
from delayd.core.policy import Patterns, Policy
from delayd.limits import TOKEN_TOPICS_MATCHED_MAX

WORDS = "put reserve delete release bury kick peek pause stats admin webhook"


def holder(scopes: set[Scope], *topics: str) -> Principal:
    return Principal("holder", "0a1b2c3d", frozenset(scopes), topics)


def test_the_words_that_stand_in_files_stay() -> None:
    assert " ".join(Scope) == WORDS


def test_a_scope_is_good_for_itself_alone() -> None:
    for granted, asked in itertools.product(Scope, Scope):
        principal = holder({granted}, "mail.*")
        assert principal.may(asked, "mail.out") is (granted is asked)
        assert not principal.may(asked, "sms")
        assert not principal.may(asked, None)
        assert holder({granted}, "*").may(asked, None) is (granted is asked)


def test_everybody_may_do_everything_and_who_has_no_topics_or_no_scopes_nothing() -> None:
    for scope, topic in itertools.product(Scope, (None, "", "default", "a.b")):
        assert EVERYBODY.may(scope, topic)
        assert not holder(set(Scope)).may(scope, topic)
        assert not holder(set(), "*").may(scope, topic)


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
