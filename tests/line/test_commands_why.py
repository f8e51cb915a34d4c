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

WHYS = (
    (b"peek 7", b"job_not_found"),
    (b"peek-ready", b"job_not_found"),
    (b"peek-delayed", b"job_not_found"),
    (b"delete 7", b"job_not_found"),
    (b"peek-key default k", b"key_not_found"),
    (b"peek-key a k", b"topic_not_found"),
    (b"stats-tube nobody", b"topic_not_found"),
    (b"use -a", b"topic_name_invalid"),
    (b"ignore default", b"last_watched"),
    (b"watch $idempotency", b"topic_internal"),
    (b"put 0 0 60 1000000\r\n" + b"x" * 1_000_000, b"body_too_big"),
    (b"put 0 0 60 1\r\nxyzlist-tube-used", b"expected_crlf"),
    (b"set-policy a 2\r\n[]", b"policy_invalid"),
    (b"put 0 0 60 1 url=https://example.com/\r\nx", b"push_off"),
    (b"teapot", b"unknown_command"),
    (b"peek x", b"line_malformed"),
    (b"put 0", b"line_malformed"),
    (b"x" * 1_000, b"line_malformed"),
)


@pytest.mark.parametrize(("line", "kind"), WHYS, ids=[repr(line[:30]) for line, _ in WHYS])
def test_why_tells_the_kind_of_what_was_refused(line: bytes, kind: bytes) -> None:
    before = LineRig().client().says(line + b"\r\n")
    client = LineRig().client()
    assert client.says(line + b"\r\n", b"why\r\n") == before + b"WHY %b\r\n" % kind


def test_why_tells_the_last_refusal_and_none_while_there_was_none() -> None:
    client = LineRig().client()
    assert client.says(b"put 0 0 60 1\r\nx\r\n", b"why\r\n") == b"INSERTED 1\r\nNOT_FOUND\r\n"
    said = client.says(b"teapot\r\npeek-key default k\r\nlist-tube-used\r\nwhy\r\nwhy\r\n")
    assert said.endswith(b"USING default\r\nWHY key_not_found\r\nWHY key_not_found\r\n")
    assert client.says(b"why \r\n", b"why\r\n") == b"BAD_FORMAT\r\nWHY line_malformed\r\n"


def test_why_is_told_to_who_was_refused_and_to_nobody_else() -> None:
    rig = LineRig()
    first, second = rig.client(), rig.client()
    first.says(b"peek 7\r\n")
    assert second.says(b"why\r\n") == b"NOT_FOUND\r\n"


def test_runs_of_commands_are_told_of_as_one_by_one() -> None:
    rig = LineRig()
    assert rig.client().says(b"delete 8\r\ndelete 9\r\nwhy\r\n").endswith(b"WHY job_not_found\r\n")
    rig.engine.log_space.limit(0, lambda *_: -1)
    said = rig.client().says(b"put 0 0 60 1\r\nx\r\n" * 3 + b"why\r\n")
    assert said == b"OUT_OF_MEMORY\r\n" * 3 + b"WHY out_of_space\r\n"


def test_a_full_list_of_tubes_is_no_full_disk() -> None:
    client = LineRig().client()
    client.says(b"".join(b"watch t%d\r\n" % n for n in range(TOPICS_WATCHED_MAX)))
    assert client.says(b"why\r\n") == b"WHY too_many_watched\r\n"


def test_what_a_token_lacks_has_its_kind_too() -> None:
    rig = LineRig(needs_token=True)
    stranger = rig.client()
    assert stranger.says(b"peek 1\r\n", b"why\r\n") == b"UNAUTHORIZED\r\nUNAUTHORIZED\r\n"
    client = rig.user()
    assert client.says(b"stats\r\n", b"why\r\n") == b"FORBIDDEN\r\nWHY forbidden\r\n"


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


def test_a_command_of_many_jobs_that_finds_no_space_is_counted_and_told() -> None:
    rig = LineRig()
    client = rig.client()
    client.says(b"put 0 0 60 1\r\nx\r\nreserve\r\nbury 1 0\r\n")
    rig.engine.log_space.limit(0, lambda *_: -1)
    assert client.says(b"redrive default 9\r\nwhy\r\n") == b"OUT_OF_MEMORY\r\nWHY out_of_space\r\n"
    assert rig.refusals.by_reason["OUT_OF_MEMORY"] == 1
