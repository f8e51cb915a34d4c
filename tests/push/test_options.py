"""Options that servers have in common: urls, passwords, TLS. No message quotes a secret."""

from pathlib import Path
from typing import Final

import pytest
import trustme

from delayd.fields import Field, Invalid, Wrong, shown, text_of
from delayd.push.options import ServerOptions, server_url

RULE: Final = "must be a url"
SECRET: Final = "s3cret"  # noqa: S105 - of no server
URL: Final = server_url({"redis": 6379, "rediss": 6380, "unix": 0}, RULE)
FIELDS: Final = (URL, Field("list", "list", text_of("must be a text")))


def options(**given: object) -> ServerOptions:
    return ServerOptions({"url": "redis://host", **given}, FIELDS, tls_scheme="rediss")


def errors_of(**given: object) -> list[Wrong]:
    with pytest.raises(Invalid) as caught:
        options(**given)
    return list(caught.value.errors)


@pytest.mark.parametrize(
    ("said", "parts"),
    [
        ("redis://host", ("redis", "host", 6379, "", "", "")),
        ("rediss://host/", ("rediss", "host", 6380, "", "", "")),
        ("redis://[::1]:5/2", ("redis", "::1", 5, "", "", "2")),
        ("redis://a%40b:c%2Fd@host/x%2Fy", ("redis", "host", 6379, "a@b", "c/d", "x/y")),
        ("redis://:pw@host", ("redis", "host", 6379, "", "pw", "")),
        ("unix:///run/redis.sock", ("unix", "", 0, "", "", "run/redis.sock")),
    ],
)
def test_a_url_has_the_parts_of_a_server(said: str, parts: tuple[object, ...]) -> None:
    assert URL.read(said) == parts


@pytest.mark.parametrize(
    "value",
    [
        *(
            "",
            "host",
            "http://host",
            "redis://",
            "redis:///2",
            "redis://host:x",
            "redis://host?a=b",
        ),
        *("redis://host#a", "unix://host/path", "unix://", "redis://host:99999", "redis://[x"),
        *(5, None, ["redis://host"]),
    ],
)
def test_what_is_no_url_of_a_server_is_refused_without_being_quoted(value: object) -> None:
    assert errors_of(url=value) == [Wrong("url", RULE)]


def test_where_a_server_is_is_said_without_user_and_password() -> None:
    assert str(URL.read("redis://ada:s3cret@host/2")) == "host:6379"
    assert str(URL.read("unix:///run/redis.sock")) == "/run/redis.sock"


def test_a_password_comes_from_the_url_or_an_option_or_a_file_as_it_is_then(tmp_path: Path) -> None:
    assert (options().password(), options().has_password) == ("", False)
    assert options(url="redis://:of-the-url@host").password() == "of-the-url"
    assert options(password=SECRET).password() == SECRET
    file = tmp_path / "password"
    file.write_text("of the file\n")
    server = options(password_file=str(file))
    assert (server.password(), server.has_password) == ("of the file", True)
    file.write_text("second\r\n")
    assert server.password() == "second"
    file.unlink()
    with pytest.raises(FileNotFoundError):
        server.password()


def test_a_file_without_a_password_is_refused_with_the_reason(tmp_path: Path) -> None:
    file = tmp_path / "password"
    for content, rule in (
        (None, "cannot be read: No such file or directory"),
        (b"s" * 5_000, "cannot be read: it is longer than 4KiB"),
        (b"\xff", "must be UTF-8"),
    ):
        if content is not None:
            file.write_bytes(content)
        refused = Wrong("password_file", rule, shown(str(file)))
        assert errors_of(password_file=str(file)) == [refused]


def test_a_url_is_needed() -> None:
    with pytest.raises(Invalid) as caught:
        ServerOptions({"list": "due"}, FIELDS, tls_scheme="rediss")
    assert caught.value.errors == (Wrong("url", "is missing"),)


def test_two_passwords_are_refused(tmp_path: Path) -> None:
    one = "must have one password: in url, password or password_file"
    assert errors_of(url="redis://:s3cret@host", password=SECRET) == [Wrong("", one)]
    assert errors_of(password=SECRET, password_file=str(tmp_path)) == [Wrong("", one)]


@pytest.mark.parametrize("value", ["", 5, "\0"])
def test_a_wrong_password_is_not_quoted(value: object) -> None:
    assert errors_of(password=value) == [Wrong("password", "must be a text")]


def test_every_wrong_option_is_told_and_those_that_are_unknown_have_no_values() -> None:
    assert errors_of(list=5, pasword=SECRET, connect_timeout="1ms") == [
        Wrong("list", "must be a text", "5"),
        Wrong("pasword", "there is no such option; did you mean password?"),
        Wrong("connect_timeout", 'must be from "100ms" to "1m"', '"1ms"'),
    ]


def test_tls_checks_the_name_of_the_host_with_the_authorities_that_are_named(
    tmp_path: Path,
) -> None:
    authority, client = tmp_path / "ca.pem", tmp_path / "client.pem"
    ca = trustme.CA()
    ca.cert_pem.write_to_path(authority)
    ca.issue_cert("delayd@example.com").private_key_and_cert_chain_pem.write_to_path(client)
    server = options(url="rediss://host", ca=str(authority), certificate=str(client))
    assert server.tls is not None
    assert server.tls.check_hostname
    assert server.tls.cert_store_stats()["x509"] == 1
    assert server.tls_files == {"ca": str(authority), "certificate": str(client)}
    assert options(url="rediss://host").tls is not None
    assert options().tls is None


def test_files_of_tls_that_cannot_be_used_are_refused_with_the_reason(tmp_path: Path) -> None:
    empty = tmp_path / "empty.pem"
    empty.touch()
    tls = {"url": "rediss://host"}
    for path, why in ("/no/where", "No such file or directory"), ("/dev/zero", "it is not a file"):
        assert errors_of(**tls, ca=path) == [Wrong("ca", f"cannot be used: {why}", f'"{path}"')]
    (wrong,) = errors_of(**tls, certificate=str(empty))
    assert (wrong.place, wrong.value) == ("certificate", shown(str(empty)))
    assert wrong.rule.startswith("cannot be used with its key: ")
    assert errors_of(**tls, key=str(empty)) == [Wrong("key", "needs a certificate")]
    needs = "need a url that begins with rediss://"
    assert errors_of(ca="ca.pem", key="key.pem") == [Wrong("", f"ca, key {needs}")]
