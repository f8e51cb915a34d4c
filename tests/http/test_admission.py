"""Who is let in and what a request has to look like: rule by rule, each for one call."""

from dataclasses import replace

import pytest

from delayd.access.tokens import Tokens
from delayd.http import admission
from delayd.http.admission import Hosts
from delayd.http.problems import SourceRefused
from delayd.limits import (
    AUTH_DELAY_MS,
    AUTH_FAILURES_MAX,
    AUTH_FAILURES_WINDOW_MS,
    HTTP_HOSTS_KNOWN_MAX,
)
from tests.rigs.http import Client, HttpRig, request

JOBS = "/v1/topics/mail/jobs"


def spoken(rig: HttpRig, data: bytes, method: str = "GET") -> Client:
    """Say something that no client of ours would say."""
    client = rig.connect()
    client.say(method, data)
    rig.settle()
    return client


# --- Host and Origin ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "localhost:11301",
        "LocalHost:80",
        "127.0.0.1",
        "192.0.2.7:11301",
        "[::1]",
        "[::1]:11301",
        "[2001:db8::7]:80",
        "jobs.example.com",
        "JOBS.example.com:443",
    ],
)
def test_a_daemon_is_addressed_by_its_names_and_by_numbers(host: str) -> None:
    with HttpRig(hosts=("Jobs.example.com",)) as rig:
        for _ in range(2):
            assert rig.call("GET", "/healthz", headers={"Host": host}).status == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:11301",
        "localhost.evil.example",
        "evil.localhost",
        "localhost@evil.example",
        "127.0.0.1.evil.example",
        "127.1",
        "2130706433",
        "x.jobs.example.com",
        "jobs.example.com.",
        "localhost:1:2",
        "[evil.example]",
    ],
)
def test_a_name_that_was_rebound_to_this_address_is_not_its_own(host: str) -> None:
    with HttpRig(hosts=("jobs.example.com",)) as rig:
        for _ in range(2):
            answer = rig.call("GET", "/healthz", headers={"Host": host})
            assert (answer.status, answer.word) == (403, "FORBIDDEN")


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"", 400),
        (b"Host:\r\n", 400),
        (b"Host: \xff\r\n", 403),
        (b"Host: localhost\r\nHost: localhost\r\n", 400),
    ],
)
def test_a_host_there_must_be_and_one_alone(head: bytes, status: int) -> None:
    with HttpRig() as rig:
        client = spoken(rig, b"GET /healthz HTTP/1.1\r\n%b\r\n" % head)
        assert client.the_answer.status == status


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
def test_a_probe_of_http_1_0_needs_no_host_for_the_health_of_the_daemon(path: str) -> None:
    with HttpRig(needs_token=True) as rig:
        assert spoken(rig, b"GET %b HTTP/1.0\r\n\r\n" % path.encode()).the_answer.status == 200
        head = b"GET %b HTTP/1.0\r\nHost: evil.example\r\n\r\n" % path.encode()
        assert spoken(rig, head).the_answer.status == 403


def test_whatever_concerns_jobs_needs_a_host_in_http_1_0_too() -> None:
    with HttpRig() as rig:
        answer = spoken(rig, b"GET /v1/topics HTTP/1.0\r\n\r\n").the_answer
        assert (answer.status, answer.word) == (400, "BAD_FORMAT")


def test_of_names_that_are_good_so_many_are_remembered() -> None:
    hosts = Hosts(())
    for number in range(2 * HTTP_HOSTS_KNOWN_MAX):
        hosts.check(f"localhost:{number}")
    assert len(hosts._known) == HTTP_HOSTS_KNOWN_MAX
    with pytest.raises(SourceRefused):
        hosts.check("evil.example")
    assert "evil.example" not in hosts._known


@pytest.mark.parametrize("origin", ["null", "http://localhost:11301", "https://evil.example", ""])
def test_what_a_web_page_sends_is_refused(origin: str) -> None:
    with HttpRig() as rig:
        answer = rig.call("POST", JOBS, {"body": 1}, headers={"Origin": origin})
        assert (answer.status, answer.word) == (403, "FORBIDDEN")
        assert not rig.disk.frames
        assert not [name for name in answer.headers if name.startswith("access-control")]


# --- What a body is -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind",
    [
        *("application/json", "application/json; charset=utf-8", "Application/JSON", None),
        *('application/json;CharSet="UTF-8"', "application/json; charset=utf8; x=y"),
        # What Python's `email` falls over, of which aiohttp would have it read.
        *("application/json; a*", "application/json; a*" + "1" * 5_000 + "=x"),
    ],
)
def test_a_body_is_json_in_whichever_way_that_is_said(kind: str | None) -> None:
    with HttpRig() as rig:
        headers = {} if kind is None else {"Content-Type": kind}
        assert rig.call("POST", JOBS, {"body": 1}, headers=headers).status == 201


@pytest.mark.parametrize(
    "kind",
    [
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
        "application/json-patch+json",
        "application/octet-stream",
        "x",
        "",
    ],
)
def test_what_a_form_of_a_web_page_could_send_is_refused(kind: str) -> None:
    with HttpRig() as rig:
        answer = rig.call("POST", JOBS, {"body": 1}, headers={"Content-Type": kind})
        assert (answer.status, answer.word) == (415, "UNSUPPORTED_MEDIA_TYPE")
        assert not rig.disk.frames


def test_a_body_whose_kind_is_not_said_is_refused() -> None:
    with HttpRig() as rig:
        head = f"POST {JOBS} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n"
        client = spoken(rig, head.encode() + b'{"body":1}', "POST")
        assert client.the_answer.status == 415


@pytest.mark.parametrize("charset", ["utf-16", "iso-8859-1", "ascii", "utf-8; charset=utf-16", ""])
def test_a_body_in_another_charset_than_utf_8_is_refused(charset: str) -> None:
    with HttpRig() as rig:
        headers = {"Content-Type": f"application/json; charset={charset}"}
        answer = rig.call("POST", JOBS, {"body": 1}, headers=headers)
        assert (answer.status, answer.word) == (415, "UNSUPPORTED_MEDIA_TYPE")


def test_a_write_without_a_body_says_that_it_is_json_which_no_web_page_may() -> None:
    with HttpRig() as rig:
        rig.ok("POST", JOBS, {"body": 1, "delay": 9})
        head = "POST /v1/jobs/1/kick HTTP/1.1\r\nHost: localhost\r\n"
        for more, status in (
            ("", 415),
            ("Content-Length: 0\r\n", 415),
            ("Content-Type: text/plain\r\n", 415),
            ("Content-Type: application/json\r\n", 200),
        ):
            client = spoken(rig, f"{head}{more}\r\n".encode(), "POST")
            assert client.the_answer.status == status, more
        assert rig.call("DELETE", "/v1/jobs/1").status == 200


CHUNKED = b'a\r\n{"body":1}\r\n0\r\n\r\n'


@pytest.mark.parametrize("coding", ["chunked", "Chunked"])
def test_a_body_may_come_in_chunks(coding: str) -> None:
    with HttpRig() as rig:
        head = request("POST", JOBS, headers={"Transfer-Encoding": coding})
        assert spoken(rig, head + CHUNKED, "POST").the_answer.status == 201


@pytest.mark.parametrize(
    "coding",
    [
        *("gzip", "identity", "x", "gzip, chunked", "chunked, gzip", "chunked, chunked"),
        *("chunked, identity", ",chunked", "chunked,", "chunked;x=1", '"chunked"'),
        "chunked\r\nTransfer-Encoding: chunked",
    ],
)
def test_a_body_that_comes_in_any_other_coding_is_refused_and_closed(coding: str) -> None:
    with HttpRig() as rig:
        head = request("POST", JOBS, headers={"Transfer-Encoding": coding})
        client = spoken(rig, head + CHUNKED, "POST")
        answer = client.the_answer
        assert (answer.status, answer.word) == (501, "NOT_IMPLEMENTED")
        assert client.is_closed
        assert not rig.disk.frames


def test_a_body_may_be_said_to_be_as_it_is() -> None:
    with HttpRig() as rig:
        headers = {"Content-Encoding": "identity"}
        assert rig.call("POST", JOBS, {"body": 1}, headers=headers).status == 201


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "identity, gzip", ""])
def test_a_body_is_read_as_it_is(encoding: str) -> None:
    with HttpRig() as rig:
        answer = rig.call("POST", JOBS, {"body": 1}, headers={"Content-Encoding": encoding})
        assert (answer.status, answer.word) == (415, "UNSUPPORTED_MEDIA_TYPE")


@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_a_body_may_come_in_pieces(size: int) -> None:
    with HttpRig() as rig:
        body = b'{"body":"%b"}' % (b"x" * 30)
        head = f"POST {JOBS} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        chunks = [body[at : at + size] for at in range(0, len(body), size)]
        chunked = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in (*chunks, b""))
        client = rig.connect()
        client.say("POST", f"{head}Transfer-Encoding: chunked\r\n\r\n".encode())
        for chunk in (chunked[at : at + size] for at in range(0, len(chunked), size)):
            rig.settle()
            assert client.answer is None
            client.protocol.data_received(chunk)
        rig.settle()
        assert client.the_answer.status == 201


def test_wherever_requests_are_cut_the_answers_are_the_same() -> None:
    said = (
        request("POST", JOBS, {"body": "first"}),
        request("PUT", "/v1/topics/mail/keys/a%2Fb", {"body": "second", "delay": 5}),
        request("GET", "/v1/topics/mail/keys/a%2Fb"),
        request("POST", "/v1/topics/mail/reserve", {"max": 2}),
        request("GET", "/v1/jobs/9"),
    )
    whole = b"".join(said)
    expected = answers_to(said, whole)
    assert [status for status, _ in expected] == [201, 201, 200, 200, 404]
    for at in range(1, len(whole)):
        assert answers_to(said, whole[:at], whole[at:]) == expected
    assert answers_to(said, *(whole[at : at + 1] for at in range(len(whole)))) == expected


def answers_to(said: tuple[bytes, ...], *pieces: bytes) -> list[tuple[int, bytes]]:
    """The answers to these requests, sent on one connection in pieces."""
    with HttpRig(is_checked=False) as rig:
        client = rig.connect()
        for one in said:
            client.say(one.split()[0].decode(), b"")
        for piece in pieces:
            rig.settle()
            client.protocol.data_received(piece)
        rig.settle()
        assert client.answer is not None
        return [(answer.status, answer.body) for answer in client._answers]


def test_who_asks_before_it_sends_is_told_to_go_ahead() -> None:
    head = f"POST {JOBS} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with HttpRig() as rig:
        client = rig.connect()
        client.say("POST", f"{head}Content-Length: 10\r\nExpect: 100-continue\r\n\r\n".encode())
        rig.settle()
        assert client.received == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.received.clear()
        client.protocol.data_received(b'{"body":1}')
        rig.settle()
        assert client.the_answer.status == 201


def test_http_1_0_knows_no_answer_before_the_answer() -> None:
    head = f"POST {JOBS} HTTP/1.0\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with HttpRig() as rig:
        client = rig.connect()
        client.say("POST", f"{head}Content-Length: 10\r\nExpect: 100-continue\r\n\r\n".encode())
        rig.settle()
        assert not client.received
        client.protocol.data_received(b'{"body":1}')
        rig.settle()
        assert client.the_answer.status == 201


def test_who_asks_for_something_else_before_it_sends_is_refused() -> None:
    head = f"POST {JOBS} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with HttpRig() as rig:
        data = f"{head}Content-Length: 10\r\nExpect: 200-ok\r\n\r\n".encode()
        answer = spoken(rig, data, "POST").the_answer
        assert (answer.status, answer.word) == (417, "EXPECTATION_FAILED")


def test_who_would_be_refused_is_not_told_to_go_ahead() -> None:
    head = f"POST {JOBS} HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\n"
    with HttpRig() as rig:
        data = f"{head}Content-Length: 10\r\nExpect: 100-continue\r\n\r\n".encode()
        assert spoken(rig, data, "POST").the_answer.status == 415


# --- Where it leads -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        *("/", "/v1", "/v1/", "/v2/topics", "/v1/topics/", "/v1/topics//jobs", "//healthz"),
        *("/healthz/", "/healthz/x", "/v1/jobs", "/v1/jobs/", "/v1/jobs/1/eat", "/HEALTHZ"),
        *("/../healthz", "/v1/../healthz", "/%68ealthz", "/healthz;x", "/healthz#x"),
        *("/v1/jobs/%FF", "/v1/topics/%C3/keys/a", "/v1/topics/mail/keys/a/b"),
        *("http://localhost/", "http://localhost/v1/nothing"),
    ],
)
def test_what_leads_nowhere_is_not_found(path: str) -> None:
    with HttpRig() as rig:
        answer = rig.call("GET", path)
        assert (answer.status, answer.word) == (404, "UNKNOWN_COMMAND")


@pytest.mark.parametrize("method", ["CONNECT", "OPTIONS", "GET"])
@pytest.mark.parametrize(
    "target", ["http://[x@y", "http://[::1]@", "http://[::1]@/healthz", "[", "http://a]b/", "x:y"]
)
def test_a_target_that_is_no_url_is_refused(method: str, target: str) -> None:
    with HttpRig() as rig:
        answer = rig.call(method, target)
        assert answer.status in {400, 404, 405}


def test_a_whole_url_is_a_target() -> None:
    with HttpRig() as rig:
        assert rig.call("GET", "http://localhost/healthz").status == 200
        assert rig.call("GET", "http://localhost/v1/topics?limit=2").json["after"] is None


@pytest.mark.parametrize("key", ["a%FF", "%C3", "a%20b", "%ED%B3%BF"])
def test_a_key_in_a_path_that_is_no_key_is_refused_as_a_key(key: str) -> None:
    with HttpRig() as rig:
        answer = rig.call("PUT", f"/v1/topics/mail/keys/{key}", {"body": 1})
        assert (answer.status, answer.json["title"]) == (422, "The key is invalid.")


def test_a_whole_address_may_stand_in_the_place_of_a_path() -> None:
    with HttpRig() as rig:
        assert rig.call("GET", "http://localhost/healthz").status == 200
        answer = rig.call("GET", "http://localhost:80/v1/topics?limit=1")
        assert answer.status == 200
        answer = rig.call("GET", "http://localhost/healthz", headers={"Host": "evil.example"})
        assert answer.status == 403


@pytest.mark.parametrize(
    "target",
    [
        *(b"http://[::1/healthz", b"http://[x]/healthz", b"http://", b"*", b"localhost:80"),
        *(b"/\xff", b"/v1/jobs/\xd9\xa1", b"/v1/topics?\xff=1", b"healthz", b""),
    ],
)
def test_what_is_no_target_at_all_is_refused(target: bytes) -> None:
    with HttpRig() as rig:
        client = spoken(rig, b"GET %b HTTP/1.1\r\nHost: localhost\r\n\r\n" % target)
        answer = client.the_answer
        assert (answer.status, answer.word) == (400, "BAD_FORMAT")
        assert answer.headers["server"].startswith("delayd/")


@pytest.mark.parametrize("method", ["OPTIONS", "CONNECT", "TRACE", "PROPFIND"])
def test_methods_that_nothing_has_are_refused(method: str) -> None:
    with HttpRig() as rig:
        answer = rig.call(method, "localhost:80" if method == "CONNECT" else "/v1/jobs/1")
        assert answer.status in {404, 405}
        if answer.status == 405:
            assert answer.headers["allow"] == "DELETE, GET, HEAD, PATCH"


@pytest.mark.parametrize(
    ("version", "status"),
    [(b"1.1", 200), (b"1.0", 200), (b"2.0", 505), (b"0.9", 505), (b"1.2", 400), (b"3.0", 400)],
)
def test_two_versions_of_http_are_spoken(version: bytes, status: int) -> None:
    with HttpRig() as rig:
        client = spoken(rig, b"GET /healthz HTTP/%b\r\nHost: localhost\r\n\r\n" % version)
        assert client.the_answer.status == status


# --- Tokens ---------------------------------------------------------------------------------------


@pytest.fixture
def guarded(monkeypatch: pytest.MonkeyPatch) -> HttpRig:
    """A daemon that requires tokens, with the clock of the rig."""
    rig = HttpRig(needs_token=True)
    monkeypatch.setattr(admission, "monotonic_ns", lambda: rig.clock.now_ms() * 1_000_000)
    return rig


def shown(rig: HttpRig, text: str, peer: str = "192.0.2.7") -> Client:
    """Somebody who shows something as a token, from an address of its own."""
    client = rig.connect((peer, 1))
    head = f"GET /v1/topics HTTP/1.1\r\nHost: localhost\r\nAuthorization: {text}\r\n\r\n"
    client.say("GET", head.encode("latin-1"))
    rig.settle()
    return client


@pytest.mark.parametrize(
    "text",
    [
        *("", "Bearer", "Bearer ", "Basic YTpi", "Bearer x", "Bearer dlyd_00000001_x", "\xff"),
        *("Bearer \xff\xfe", "Bearer dlyd_00000001_" + "\xff" * 43, "Bearer " + "x" * 5_000),
    ],
)
def test_what_is_no_token_lets_nobody_in(guarded: HttpRig, text: str) -> None:
    with guarded as rig:
        rig.token()
        answer = shown(rig, text).the_answer
        assert (answer.status, answer.word) == (401, "UNAUTHORIZED")
        assert answer.headers["www-authenticate"] == 'Bearer realm="delayd"'
        assert b"dlyd_00000001" not in answer.body


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER", "Bearer  "])
def test_a_token_is_shown_by_its_scheme_in_any_case(guarded: HttpRig, scheme: str) -> None:
    with guarded as rig:
        assert shown(rig, f"{scheme} {rig.token()}").the_answer.status == 200


def test_two_tokens_in_one_request_are_none(guarded: HttpRig) -> None:
    with guarded as rig:
        token = rig.token()
        for other in (token, "dlyd_00000009_" + "x" * 43, ""):
            answer = shown(rig, f"Bearer {token}\r\nAuthorization: Bearer {other}").the_answer
            assert (answer.status, answer.word) == (400, "BAD_FORMAT")


def test_a_token_that_was_revoked_before_the_end_of_the_body_lets_nobody_in() -> None:
    with HttpRig(needs_token=True) as rig:
        told = request("POST", JOBS, {"body": 1}, token=rig.token())
        client = rig.connect()
        client.say("POST", told[:-1])
        rig.settle()
        rig.authenticator.tokens = Tokens([])
        client.protocol.data_received(told[-1:])
        rig.settle()
        assert client.the_answer.word == "UNAUTHORIZED"
        assert rig.engine.log_space.jobs == 0


def test_a_token_is_good_for_what_it_is_at_the_end_of_the_body() -> None:
    with HttpRig(needs_token=True) as rig:
        told = request("POST", JOBS, {"body": 1}, token=rig.token())
        client = rig.connect()
        client.say("POST", told[:-1])
        rig.settle()
        assert rig.authenticator.tokens is not None
        (entry,) = rig.authenticator.tokens.entries
        rig.authenticator.tokens = Tokens([replace(entry, topics=("sms",))])
        client.protocol.data_received(told[-1:])
        rig.settle()
        assert client.the_answer.word == "FORBIDDEN"


def test_who_shows_wrong_tokens_again_and_again_is_answered_late(guarded: HttpRig) -> None:
    with guarded as rig:
        token = rig.token()
        for _ in range(AUTH_FAILURES_MAX - 1):
            assert shown(rig, "Bearer x").the_answer.status == 401
        late = shown(rig, "Bearer x")
        assert late.answer is None
        assert shown(rig, "Bearer x", "198.51.100.7").the_answer.status == 401
        assert shown(rig, f"Bearer {token}").the_answer.status == 200, "who is right need not"
        rig.pass_ms(AUTH_DELAY_MS - 1)
        assert late.answer is None
        rig.pass_ms(1)
        assert late.the_answer.status == 401
        leaving = shown(rig, "Bearer x")
        leaving.hang_up()
        rig.settle()
        rig.pass_ms(AUTH_FAILURES_WINDOW_MS)
        assert shown(rig, "Bearer x").the_answer.status == 401


def test_who_shows_no_token_has_not_shown_a_wrong_one(guarded: HttpRig) -> None:
    with guarded as rig:
        for _ in range(2 * AUTH_FAILURES_MAX):
            assert rig.call("GET", "/v1/topics").status == 401
        assert not rig.authenticator._wrong_tokens._times


def test_a_client_with_a_token_is_no_longer_counted_as_unauthenticated(guarded: HttpRig) -> None:
    with guarded as rig:
        client = shown(rig, "Bearer x")
        assert client.protocol.peer.is_unauthenticated
        client = shown(rig, f"Bearer {rig.token()}")
        assert not client.protocol.peer.is_unauthenticated
