import os
import pwd
import shlex
import socket
from pathlib import Path

import pytest

from delayd import __version__
from delayd.cli import beanstalkd
from delayd.cli.beanstalkd import FLAGS, VERSION, Invocation, UsageError, parse, start
from delayd.config import Config, SyncPolicy
from delayd.exits import Exit
from delayd.log_lines import LogLevel
from delayd.net.addresses import Address, Listener, TcpAddress, open_listener
from tests.cli.conftest import EXIT_OF_THE_SERVICE, Service, imported_by
from tests.cli.journals import Capture

# --- What is typed --------------------------------------------------------------------------------

LINES = (Path(__file__).parent / "beanstalkd.txt").read_text().splitlines()


def meaning(line: str) -> str:
    """The settings that are not the default, or why it is refused."""
    try:
        found = parse(shlex.split(line))
    except UsageError as error:
        return f" ! {error}"
    usual = Invocation()._asdict()
    unusual = {name: value for name, value in found._asdict().items() if value != usual[name]}
    return "".join(f" {name}={value}" for name, value in unusual.items())


@pytest.mark.parametrize("row", [line for line in LINES if line and not line.startswith("#")])
def test_flags_mean_what_they_mean_to_beanstalkd_or_are_refused(row: str) -> None:
    line, _, told = row.partition(" ->")
    assert meaning(line) == told


def test_an_answer_ends_the_reading() -> None:
    request = parse(["-cv", "-x"])
    assert (request.answer, request.warnings) == (VERSION, ("-c is ignored",))


def test_the_configuration_is_that_of_the_request() -> None:
    usual = Config(
        data_dir=None,
        insecure_no_auth=True,
        line_listen=TcpAddress("127.0.0.1", 11300),
        http_listen=None,
        sync=SyncPolicy.INTERVAL,
        sync_interval_ms=50,
        segment_bytes=10_485_760,
        body_bytes_max=65_535,
        push_enabled=False,
    )
    assert beanstalkd.config_of(parse([])) == usual
    for line, wanted in {
        "-b d": usual._replace(data_dir="d"),
        "-f 0": usual._replace(sync=SyncPolicy.ALWAYS),
        "-f 9": usual._replace(sync_interval_ms=9),
        "-F": usual._replace(sync=SyncPolicy.NEVER),
    }.items():
        assert beanstalkd.config_of(parse(line.split())) == wanted, line


# --- Starting ------------------------------------------------------------------------------------


def test_the_service_is_run_with_a_listening_socket(service: Service) -> None:
    assert start(["-V", "-p0"], {}) == EXIT_OF_THE_SERVICE
    (listener,) = service.listeners.line
    with socket.create_connection(listener.socket.getsockname()):
        pass
    assert service.config.log_level is LogLevel.DEBUG


def test_the_service_answers_like_the_version_asked_for_and_prints_nothing(
    service: Service, capsys: Capture
) -> None:
    for flags, version in ((["--compat", "1.12"], "1.12"), ([], "1.13")):
        assert start(["-p0", *flags], {}) == EXIT_OF_THE_SERVICE
        assert service.compat.value == version
        service.listeners.close()
    assert not service.prints
    assert not capsys.readouterr().out


def test_sockets_from_systemd_take_the_place_of_the_flags(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = socket.create_server(("127.0.0.1", 0))
    monkeypatch.setattr("delayd.net.addresses.FIRST_INHERITED_FD", given.fileno())
    port = given.getsockname()[1]
    environment = {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "1"}
    assert start(["-l", "192.0.2.1"], environment) == EXIT_OF_THE_SERVICE
    assert service.addresses() == [f"127.0.0.1:{port}"]
    given.detach()


def answered(capsys: Capture, service: Service, code: Exit, *words: str) -> tuple[str, str]:
    """What a start prints that ends before the service is run."""
    assert start(words, {}) == code
    assert not service.configs
    return capsys.readouterr()


def test_the_version_names_both_and_the_help_lists_every_flag(
    capsys: Capture, service: Service
) -> None:
    told = answered(capsys, service, Exit.OK, "-v")
    assert told == (f"beanstalkd 1.13 (delayd {__version__})\n", "")
    for flag in ("-h", "--help"):
        out, _ = answered(capsys, service, Exit.OK, flag)
        assert " --compat 1.12|1.13 " in out
        assert all(f" -{letter} {argument}" in out for letter, (argument, _) in FLAGS.items())


def test_what_keeps_it_from_starting_has_an_exit_code_and_is_told_and_nothing_listens(
    capsys: Capture, service: Service, tmp_path: Path
) -> None:
    path = tmp_path / "line.sock"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for code, words, message in (
            (Exit.USAGE, ["-x"], "unknown flag: -x; -h shows the flags"),
            (
                *(Exit.CANNOT_LISTEN, ["-p", port]),
                f"cannot listen on 127.0.0.1:{port}: the address is in use",
            ),
            (
                *(Exit.BAD_CONFIGURATION, ["-u", "no-such-user", "-l", f"unix:{path}"]),
                "cannot become 'no-such-user': there is no such user",
            ),
        ):
            told = answered(capsys, service, code, *words)
            assert told == ("", f"delayd-beanstalkd: {message}\n")
    assert not path.exists()


def test_privileges_are_given_up_after_the_bind_groups_first(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[object, ...]] = []
    account = pwd.getpwuid(os.getuid())

    def listen(address: Address) -> Listener:
        calls.append(("listen", address))
        return open_listener(address)

    monkeypatch.setattr(beanstalkd, "open_listener", listen)
    for name in ("initgroups", "setgid", "setuid"):
        monkeypatch.setattr(os, name, lambda *given, name=name: calls.append((name, *given)))
    assert start(["-u", account.pw_name, "-p0"], {}) == EXIT_OF_THE_SERVICE
    assert calls == [
        ("listen", TcpAddress("127.0.0.1", 0)),
        ("initgroups", account.pw_name, account.pw_gid),
        ("setgid", account.pw_gid),
        ("setuid", account.pw_uid),
    ]


def test_a_user_who_cannot_read_the_modules_is_named_with_their_folder(
    capsys: Capture, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(beanstalkd, "become", lambda _user: None)
    monkeypatch.setattr(os, "access", lambda path, _mode: not path.endswith("/delayd"))
    assert start(["-u", "worker", "-p0"], {}) == Exit.BAD_CONFIGURATION
    assert "the user 'worker' cannot read /" in capsys.readouterr().err
    assert not service.configs


@pytest.mark.thorough
def test_what_the_line_alone_does_not_need_is_not_imported_before_it_answers() -> None:
    heavy = {
        *("aiohttp", "asyncio", "click", "json", "logging", "msgspec", "orjson", "ssl", "shlex"),
        *("ctypes.util", "dataclasses", "datetime", "fnmatch", "inspect", "ipaddress", "platform"),
        *("subprocess", "tomllib", "delayd.access.token_entries", "delayd.access.tokens"),
        *("delayd.http", "delayd.commit", "delayd.journal.journal", "delayd.metrics"),
        *("delayd.snapshots", "delayd.net.tls"),
    }
    assert not heavy & imported_by("delayd.cli.beanstalkd", "delayd.service")


@pytest.mark.thorough
def test_what_keeps_jobs_needs_no_dataclasses_either() -> None:
    kept = ("delayd.commit", "delayd.journal.aio", "delayd.journal.journal", "delayd.snapshots")
    heavy = {"asyncio", "dataclasses", "inspect", "json", "logging", "msgspec"}
    assert not heavy & imported_by("delayd.cli.beanstalkd", "delayd.service", *kept)
