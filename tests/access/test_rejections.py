"""Who is turned away before anything could be said is told in the log, now and then."""

import io
import os
import socket
import ssl
from pathlib import Path

import pytest
import trustme

from delayd.access.authenticator import Authenticator
from delayd.access.rejections import Rejections
from delayd.access.tokens import Tokens
from delayd.limits import TROUBLE_LOG_MS
from delayd.log_lines import Log
from delayd.net.tls import CertificateFiles, server_context
from tests.access.handshakes import Authority, shake_hands

SOMEBODY_ELSE = os.getuid() + 1
UNLISTED = "a user of a unix socket was turned away: no list of auth has this user"


class Watch:
    """A authenticator, what the log says of those it turns away, and a clock."""

    def __init__(self, authenticator: Authenticator) -> None:
        self.authenticator = authenticator
        self.now_ms = 0
        self._stream = io.StringIO()
        log = Log(self._stream, lambda: 0)
        Rejections(log, lambda: self.now_ms).listen_to(authenticator)

    def told(self) -> list[str]:
        lines = self._stream.getvalue().splitlines()
        return [line.removeprefix("1970-01-01T00:00:00.000Z warning ") for line in lines]

    def unix_user_comes(self) -> None:
        one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with one, other:
            assert self.authenticator.identify(one) is None


def test_a_user_who_is_on_no_list_is_told_with_uid_and_gid() -> None:
    watch = Watch(Authenticator(unix_uids={SOMEBODY_ELSE}))
    watch.unix_user_comes()
    assert watch.told() == [f"{UNLISTED} uid={os.geteuid()} gid={os.getegid()}"]
    watch = Watch(Authenticator(Tokens([]), unix_uids={SOMEBODY_ELSE}))
    watch.unix_user_comes()
    assert not watch.told(), "a token may still be shown"


def test_of_each_kind_there_is_one_line_a_minute() -> None:
    watch = Watch(Authenticator(unix_uids={SOMEBODY_ELSE}))
    for watch.now_ms in range(0, TROUBLE_LOG_MS, 1_000):
        watch.unix_user_comes()
        watch.authenticator.on_failed_handshake(
            "192.0.2.7", ConnectionAbortedError("it took too long")
        )
    assert len(watch.told()) == 2
    watch.now_ms = TROUBLE_LOG_MS
    watch.unix_user_comes()
    assert len(watch.told()) == 3


@pytest.mark.parametrize("error", [ConnectionResetError(), ConnectionError("the client left")])
def test_a_peer_that_leaves_by_itself_is_not_told(error: Exception) -> None:
    watch = Watch(Authenticator())
    watch.authenticator.on_failed_handshake("192.0.2.7", error)
    assert not watch.told()


@pytest.mark.parametrize(
    ("whose", "reason"),
    [
        ("nobody's", "peer did not return a certificate"),
        ("a stranger's", "certificate verify failed: unable to get local issuer certificate"),
    ],
)
def test_a_client_without_a_good_certificate_is_told_with_address_and_reason(
    tmp_path: Path, whose: str, reason: str
) -> None:
    authority = Authority(tmp_path)
    files = authority.files()
    server = server_context(CertificateFiles(files.certificate, files.key, authority.path))
    client = authority.client()
    if whose == "a stranger's":
        trustme.CA().issue_cert("worker").configure_cert(client)
    with pytest.raises(ssl.SSLError) as caught:
        shake_hands(server, client)
    watch = Watch(Authenticator())
    watch.authenticator.on_failed_handshake("192.0.2.7", caught.value)
    assert watch.told() == [f'a TLS handshake failed address="192.0.2.7" reason="{reason}"']
