"""Who is let in and how a body may come; stories.txt has the rules that one request shows."""

from dataclasses import replace

import pytest

from delayd import limits
from delayd.access.tokens import Tokens
from delayd.http import admission
from delayd.http.admission import Hosts
from delayd.http.problems import SourceRefused
from tests.rigs.http import JOBS, Client, HttpRig, request

ASKING = request("POST", JOBS, data=b'{"body":1}', headers={"Expect": "100-continue"})


def spoken(rig: HttpRig, data: bytes, method: str = "POST") -> Client:
    client = rig.connect()
    client.say(method, data)
    rig.settle()
    return client


def send_more(rig: HttpRig, client: Client, data: bytes) -> Client:
    rig.loop.call_soon(client.connection.data_received, data)
    rig.settle()
    return client


def test_of_names_that_are_good_so_many_are_remembered() -> None:
    hosts = Hosts(())
    for number in range(2 * limits.HTTP_HOSTS_KNOWN_MAX):
        hosts.check(f"localhost:{number}")
    assert len(hosts._known) == limits.HTTP_HOSTS_KNOWN_MAX
    with pytest.raises(SourceRefused):
        hosts.check("evil.example")
    assert "evil.example" not in hosts._known


# --- Bodies ---------------------------------------------------------------------------------------


@pytest.mark.walk(1, 8)
def test_wherever_requests_are_cut_the_answers_are_the_same(number: int) -> None:
    said = (
        request("POST", JOBS, {"body": "first"}),
        request("PUT", "/v1/topics/mail/keys/a%2Fb", {"body": "second", "delay": 5}),
        request("GET", "/v1/topics/mail/keys/a%2Fb"),
        request("POST", "/v1/topics/mail/reserve", {"max": 2}),
        request("GET", "/v1/jobs/9"),
    )
    whole = b"".join(said)

    def answers_to(*pieces: bytes) -> list[tuple[int, bytes]]:
        """The answers to these requests, sent on one connection in pieces."""
        with HttpRig(is_checked=False) as rig:
            client = rig.connect()
            for one in said:
                client.say(one.split()[0].decode(), b"")
            rig.settle()
            for piece in pieces:
                send_more(rig, client, piece)
            assert client.answer is not None
            return [(answer.status, answer.body) for answer in client._answers]

    expected = answers_to(whole)
    assert [status for status, _ in expected] == [201, 201, 200, 200, 404]
    for at in range(1 + number, len(whole), 8):
        assert answers_to(whole[:at], whole[at:]) == expected
    assert answers_to(*(whole[at : at + 1] for at in range(len(whole)))) == expected


def test_who_asks_before_it_sends_is_told_to_go_ahead(rig: HttpRig) -> None:
    body = b'{"body":1}'
    asking = ASKING.removesuffix(body)
    for head, told in (
        (asking, b"HTTP/1.1 100 Continue\r\n\r\n"),
        (asking.replace(b"HTTP/1.1", b"HTTP/1.0"), b""),  # which has none before the answer
    ):
        client = spoken(rig, head)
        assert client.received == told
        client.received.clear()
        assert send_more(rig, client, body).the_answer.status == 201


# --- Tokens ---------------------------------------------------------------------------------------


@pytest.fixture
def guarded(monkeypatch: pytest.MonkeyPatch) -> HttpRig:
    """A daemon that requires tokens, with the clock of the rig."""
    rig = HttpRig(needs_token=True)
    monkeypatch.setattr(admission, "monotonic_ns", lambda: rig.clock.now_ms() * 1_000_000)
    return rig


def shown(rig: HttpRig, text: str, peer: str = "192.0.2.7") -> Client:
    """A client that shows something as a token, from an address of its own."""
    client = rig.connect((peer, 1))
    head = f"GET /v1/topics HTTP/1.1\r\nHost: localhost\r\nAuthorization: {text}\r\n\r\n"
    client.say("GET", head.encode("latin-1"))
    rig.settle()
    return client


def test_a_token_is_shown_by_its_scheme_in_any_case_and_nothing_else_is_one(
    guarded: HttpRig,
) -> None:
    with guarded as rig:
        token = rig.token()
        for scheme in ("Bearer", "bearer", "BEARER", "Bearer  "):
            client = shown(rig, f"{scheme} {token}")
            assert client.the_answer.status == 200
            assert not client.connection.peer.is_unauthenticated
        for text in ("x", "dlyd_00000001_" + "\xff" * 43, "x" * 5_000):
            client = shown(rig, f"Bearer {text}")
            answer = client.the_answer
            assert (answer.status, answer.word) == (401, "UNAUTHORIZED")
            assert answer.headers["www-authenticate"] == 'Bearer realm="delayd"'
            assert b"dlyd_00000001" not in answer.body
            assert client.connection.peer.is_unauthenticated


@pytest.mark.parametrize("becomes", ["UNAUTHORIZED", "FORBIDDEN"])
def test_a_token_is_good_for_what_it_is_at_the_end_of_the_body(becomes: str) -> None:
    """It is revoked, or good for another topic alone, before the last byte."""
    with HttpRig(needs_token=True) as rig:
        told = request("POST", JOBS, {"body": 1}, token=rig.token())
        client = spoken(rig, told[:-1])
        assert rig.authenticator.tokens is not None
        (entry,) = rig.authenticator.tokens.entries
        left = [replace(entry, topics=("sms",))] if becomes == "FORBIDDEN" else []
        rig.authenticator.tokens = Tokens(left)
        assert send_more(rig, client, told[-1:]).the_answer.word == becomes
        assert rig.engine.log_space.jobs == 0


def test_who_shows_wrong_tokens_again_and_again_is_answered_late(guarded: HttpRig) -> None:
    with guarded as rig:
        token = rig.token()
        for _ in range(2 * limits.AUTH_FAILURES_MAX):
            assert rig.call("GET", "/v1/topics").status == 401
        assert not rig.authenticator._wrong_tokens._times, "no token is no wrong one"
        for _ in range(limits.AUTH_FAILURES_MAX - 1):
            assert shown(rig, "Bearer x").the_answer.status == 401
        late = shown(rig, "Bearer x")
        assert late.answer is None
        assert shown(rig, "Bearer x", "198.51.100.7").the_answer.status == 401
        assert shown(rig, f"Bearer {token}").the_answer.status == 200, "who is right need not"
        rig.pass_ms(limits.AUTH_DELAY_MS - 1)
        assert late.answer is None
        rig.pass_ms(1)
        assert late.the_answer.status == 401
        shown(rig, "Bearer x").hang_up()
        rig.settle()
        rig.pass_ms(limits.AUTH_FAILURES_WINDOW_MS)
        assert shown(rig, "Bearer x").the_answer.status == 401
