"""The kinds of refusals on the line: what `why` tells, and that nothing else is different."""

import pytest

from delayd.http import problems
from delayd.limits import TOPICS_WATCHED_MAX
from delayd.line import replies
from delayd.line.grammar import BadFormat
from tests.http.test_problems import KNOWN
from tests.line.corpus import BODY_BYTES_MAX, EXCHANGES, Exchange
from tests.rigs.line import LineRig

REFUSED = [each for each in EXCHANGES if each.replies and each.replies[-1] in replies.KINDS]


def test_a_full_list_of_tubes_is_no_full_disk() -> None:
    client = LineRig().client()
    client.says(b"".join(b"watch t%d\r\n" % n for n in range(TOPICS_WATCHED_MAX)))
    assert client.says(b"why\r\n") == b"WHY too_many_watched\r\n"


@pytest.mark.parametrize("exchange", REFUSED, ids=str)
def test_every_refusal_of_the_corpus_has_a_kind(exchange: Exchange) -> None:
    client = LineRig(BODY_BYTES_MAX).client()
    said = client.says(exchange.request, b"why\r\n")
    assert said.removeprefix(exchange.response).startswith(b"WHY ")


def test_the_kinds_of_replies_without_a_refusal_are_those_of_the_classes() -> None:
    own = {"expected_crlf", "unknown_command"}
    assert {*replies.KINDS.values()} - own <= KNOWN.keys()
    assert not own & KNOWN.keys()
    kinds = replies.KINDS
    assert kinds[b"UNAUTHORIZED"] == problems.Unauthorized.kind
    assert kinds[b"FORBIDDEN"] == problems.Forbidden.kind
    assert kinds[b"BAD_FORMAT"] == BadFormat.kind
    for word, kind in kinds.items():
        assert kind in own or KNOWN[kind][0].encode() == word
