import datetime as dt
import ssl
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

from delayd.net.peers import certificate_name
from delayd.net.tls import (
    AUTHORITIES_RULE,
    BOTH_RULE,
    CERTIFICATE_RULE,
    HTTP_PROTOCOLS,
    KEY_RULE,
    CertificateFiles,
    CertificateInvalid,
    Validity,
    renew,
    server_context,
    validity,
)
from tests.access.handshakes import Authority, encrypted, shake_hands


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def test_a_client_that_trusts_the_authority_meets_the_server(authority: Authority) -> None:
    files = authority.files()
    both = authority.directory / "both.pem"  # a certificate and its key may be in one file
    assert files.key is not None
    both.write_bytes(Path(files.key).read_bytes() + Path(files.certificate).read_bytes())
    for each in (files, CertificateFiles(str(both))):
        met = shake_hands(server_context(each), authority.client())
        assert met.server_name == "localhost"
        assert met.client.version() == "TLSv1.3"
        assert met.server.getpeercert() is None


def test_tls_1_2_is_spoken_and_nothing_older(authority: Authority) -> None:
    server = server_context(authority.files())
    client = authority.client()
    client.maximum_version = ssl.TLSVersion.TLSv1_2
    assert shake_hands(server, client).client.version() == "TLSv1.2"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        client.minimum_version = ssl.TLSVersion.TLSv1
        client.maximum_version = ssl.TLSVersion.TLSv1_1
    client.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.raises(ssl.SSLError, match=r"(?i)protocol"):
        shake_hands(server, client)


@pytest.mark.parametrize(
    ("offered", "wanted", "agreed"),
    [
        (HTTP_PROTOCOLS, ["h2", "http/1.1"], "http/1.1"),
        (HTTP_PROTOCOLS, ["h2"], None),
        ((), ["http/1.1"], None),
    ],
)
def test_http_1_1_is_agreed_on_where_it_is_spoken(
    authority: Authority, offered: tuple[str, ...], wanted: list[str], agreed: str | None
) -> None:
    client = authority.client()
    client.set_alpn_protocols(wanted)
    met = shake_hands(server_context(authority.files(), offered), client)
    assert met.server.selected_alpn_protocol() == agreed


# --- Certificates of clients ---------------------------------------------------------------------


def test_clients_need_a_certificate_of_the_authority_also_after_a_renewal(
    authority: Authority, tmp_path: Path
) -> None:
    server = server_context(authority.files()._replace(client_ca=authority.path))
    for _ in range(2):
        with pytest.raises(ssl.SSLError, match=r"(?i)peer did not return a certificate"):
            shake_hands(server, authority.client())
        met = shake_hands(server, authority.client("worker.example.net"))
        certificate = met.server.getpeercert()
        assert certificate is not None
        assert certificate_name(certificate) == "worker.example.net"
        renew(server, authority.files())
    (tmp_path / "other").mkdir()
    other = Authority(tmp_path / "other")
    server = server_context(authority.files()._replace(client_ca=other.path))
    with pytest.raises(ssl.SSLError, match=r"(?i)certificate verify failed"):
        shake_hands(server, authority.client("worker.example.net"))


# --- Files that are wrong ------------------------------------------------------------------------


def errors_of(files: CertificateFiles) -> tuple[str, ...]:
    with pytest.raises(CertificateInvalid) as caught:
        server_context(files)
    return caught.value.errors


def test_the_file_that_is_wrong_is_the_one_that_is_named(
    authority: Authority, tmp_path: Path
) -> None:
    files = authority.files()
    junk, other = tmp_path / "junk", tmp_path / "other"
    junk.write_text("junk")
    other.mkdir()
    no_certificate = f"tls.certificate = {junk}: {CERTIFICATE_RULE}"
    mismatch = f"tls.key = {Authority(other).files().key}: {KEY_RULE} (KEY_VALUES_MISMATCH)"
    changes: list[tuple[dict[str, Any], tuple[str, ...]]] = [
        ({"certificate": str(junk)}, (no_certificate,)),
        ({"key": str(junk)}, (f"tls.key = {junk}: {KEY_RULE}",)),
        ({"key": str(other / "key.pem")}, (mismatch,)),
        ({"key": None}, (f"tls.certificate = {files.certificate}: {BOTH_RULE}",)),
        (
            {"certificate": str(junk), "client_ca": str(junk)},
            (no_certificate, f"tls.client_ca = {junk}: {AUTHORITIES_RULE}"),
        ),
    ]
    for change, expected in changes:
        for said, begins in zip(errors_of(files._replace(**change)), expected, strict=True):
            assert said.startswith(begins)


def test_a_key_with_a_passphrase_is_refused_and_nobody_is_asked_for_it(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = authority.files()
    assert files.key is not None
    encrypted(files.key)
    monkeypatch.setattr(sys, "stdin", None)
    assert errors_of(files) == (
        f"tls.key = {files.key}: must hold a private key without a passphrase",
    )


# --- New certificates ----------------------------------------------------------------------------


def test_a_context_stays_as_it_was_when_the_new_files_are_wrong(authority: Authority) -> None:
    files = authority.files("old.example.net")
    assert files.key is not None
    server, client = server_context(files), authority.client()
    old_key = Path(files.key).read_bytes()
    authority.files("new.example.net")
    Path(files.key).write_bytes(old_key)  # as when only one of the two has been renewed yet
    with pytest.raises(CertificateInvalid, match="KEY_VALUES_MISMATCH"):
        renew(server, files)
    assert shake_hands(server, client, "old.example.net").server_name == "old.example.net"


# --- Validity ------------------------------------------------------------------------------------


def test_the_validity_of_a_file_is_that_of_all_its_certificates(authority: Authority) -> None:
    files, texts = authority.files(), []
    for first, last in ((1970, 2055), (2001, 2049)):
        spans = (dt.datetime(first, 2, 3, 4, 5, 6), dt.datetime(last, 12, 31, 23, 59, 59))  # noqa: DTZ001 (as trustme takes it)
        files = authority.files(not_before=spans[0], not_after=spans[1])
        texts.append(Path(files.certificate).read_text(encoding="ascii"))
    assert validity(files.certificate) == Validity(981_173_106, 2_524_607_999)
    Path(files.certificate).write_text("".join(texts), encoding="ascii")
    assert validity(files.certificate) == Validity(981_173_106, 2_524_607_999)
    Path(files.certificate).write_text(texts[0], encoding="ascii")
    assert validity(files.certificate) == Validity(2_865_906, 2_713_910_399)


def test_what_is_no_certificate_has_no_validity(authority: Authority) -> None:
    path = authority.directory / "cert.pem"
    assert validity(str(path)) is None
    pem = Path(authority.files().certificate).read_text(encoding="ascii")
    lines = pem.splitlines(keepends=True)
    for text in ("", "nonsense", pem.replace("MII", "!!!"), lines[0] + lines[1] + lines[-1]):
        path.write_text(text, encoding="ascii")
        assert validity(str(path)) is None
