import pytest

from delayd.config import load
from tests.config_files import errors_of


def test_something_must_be_listened_on() -> None:
    (only,) = errors_of(flags={"--line": "off", "--http": "off"})
    assert only == "line.listen and http.listen: must not both be off"


@pytest.mark.parametrize("address", ["0.0.0.0:11300", "[::]:11300", "example.net:1", "10.0.0.1:1"])
def test_addresses_that_others_reach_need_the_users_word(address: str) -> None:
    for front_end in ("line", "http"):
        flags = {"--line": "off", "--http": "off", f"--{front_end}": address}
        (only,) = errors_of(flags=dict(flags))
        assert only.startswith(f'{front_end}.listen = "{address}": must be a loopback address')
        assert "--insecure-no-auth" in only
        config = load(None, {}, {**flags, "--insecure-no-auth": True})
        assert str(config.line_listen or config.http_listen) == address


def test_addresses_that_others_reach_need_no_word_where_tokens_are_asked_for() -> None:
    flags = {"--line": "10.0.0.1:1", "--http": "10.0.0.1:2"}
    config = load(None, {"DELAYD_AUTH_TOKENS": "tokens.json"}, flags)
    assert [str(config.line_listen), str(config.http_listen)] == list(flags.values())


@pytest.mark.parametrize(("with_tls", "without"), [("line", "http"), ("http", "line")])
def test_client_certificates_keep_strangers_from_the_addresses_that_have_tls(
    with_tls: str, without: str
) -> None:
    environment = {
        "DELAYD_TLS_CERTIFICATE": "c",
        "DELAYD_TLS_CLIENT_CA": "a",
        f"DELAYD_{with_tls.upper()}_TLS": "true",
    }
    flags: dict[str, object] = {"--line": "[::]:1", "--http": "[::]:2"}
    (only,) = errors_of(environment=environment, flags=flags)
    assert only.startswith(f"{without}.listen = ")
    environment.pop("DELAYD_TLS_CLIENT_CA")
    assert len(errors_of(environment=environment, flags=flags)) == 2


@pytest.mark.parametrize("address", ["127.0.0.1:0", "[::1]:11300", "localhost:1", "unix:/x"])
def test_addresses_of_this_machine_need_nothing(address: str) -> None:
    for front_end in ("line", "http"):
        flags = {"--line": "off", "--http": "off", f"--{front_end}": address}
        config = load(None, {}, flags)
        assert str(config.line_listen or config.http_listen) == address
