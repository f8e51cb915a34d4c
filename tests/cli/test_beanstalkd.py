import os
import pwd
import socket
from pathlib import Path

import pytest

from delayd import __version__, limits
from delayd.cli import beanstalkd
from delayd.cli.beanstalkd import FLAGS, VERSION, Invocation, UsageError, parse, start
from delayd.compat import Compat
from delayd.config import Config, SyncPolicy
from delayd.exits import Exit
from delayd.log_lines import LogLevel
from delayd.net.addresses import Address, Listener, TcpAddress, UnixAddress, open_listener
from tests.cli.conftest import EXIT_OF_THE_SERVICE, Service, imported_by

# --- The forms that are accepted -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("-x", "unknown flag: -x"),
        ("--", "unknown flag: --"),
        ("-", "unknown argument: -"),
        ("serve", "unknown argument: serve"),
        ("-Vp", "flag requires an argument: -p"),
        ("-p 65536", "-l 127.0.0.1 -p 65536 must have a port from 0 to 65535"),
        ("-l unix:", "-l unix: -p 11300 must have a path after unix:"),
        ("-z -1", "-z takes a whole number, not '-1'"),
        ("-s 1MiB", "-s takes a whole number, not '1MiB'"),
        ("-f 0.5", "-f takes a whole number, not '0.5'"),
        ("--compat", "flag requires an argument: --compat"),
        ("--compat=", "flag requires an argument: --compat"),
        ("--compat 1.11", "--compat takes 1.12 or 1.13, not '1.11'"),
        ("--compatible=1.12", "unknown flag: --"),
    ],
)
def test_other_command_lines_are_refused(line: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(line.split())
    assert str(caught.value) == message


def test_an_empty_argument_is_none() -> None:
    with pytest.raises(UsageError, match="flag requires an argument: -b"):
        parse(["-b", ""])


# --- What they mean ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "request_"),
    [
        ("", Invocation(listen=TcpAddress("127.0.0.1", 11300))),
        ("-l ::1 -p 5", Invocation(listen=TcpAddress("::1", 5))),
        ("-l localhost", Invocation(listen=TcpAddress("localhost", 11300))),
        ("-l unix:/run/b.sock -p 5", Invocation(listen=UnixAddress("/run/b.sock"))),
        ("-b dir", Invocation(data_dir="dir", sync_interval_ms=50)),
        ("-F -f 7", Invocation(sync_interval_ms=7)),
        ("-f 7 -F", Invocation(sync_interval_ms=None)),
        ("-p 1 -p 2", Invocation(listen=TcpAddress("127.0.0.1", 2))),
        ("-u nobody", Invocation(user="nobody")),
        ("-z 10", Invocation(body_bytes_max=10)),
        ("-z 1073741824", Invocation(body_bytes_max=1_073_741_824)),
        ("-s 10000", Invocation(segment_bytes=12_288)),
        ("-s 4294967296", Invocation(segment_bytes=limits.JOURNAL_SEGMENT_BYTES_MAX)),
        ("-p11300 -f0", Invocation(sync_interval_ms=0)),
        ("-VFb dir", Invocation(is_verbose=True, sync_interval_ms=None, data_dir="dir")),
        ("-b -p", Invocation(data_dir="-p", sync_interval_ms=50)),
        ("-b --compat=1.12", Invocation(data_dir="--compat=1.12", sync_interval_ms=50)),
        ("-v", Invocation(answer=VERSION)),
        ("--compat=1.12 --compat 1.13", Invocation(compat=Compat.V1_13)),
        ("--compat 1.12", Invocation(compat=Compat.V1_12)),
    ],
)
def test_flags_mean_what_they_mean_to_beanstalkd(line: str, request_: Invocation) -> None:
    assert parse(line.split()) == request_


@pytest.mark.parametrize(
    ("line", "warning"),
    [
        ("-c", "-c is ignored"),
        ("-n", "-n is ignored"),
        ("-z 99999999999999999999", "-z 99999999999999999999 was set to 1073741824"),
        ("-s 512", "-s 512 was set to 4096"),
        ("-f 3600001", "-f 3600001 was set to 3600000"),
        (
            "-l 0.0.0.0",
            "every client that reaches 0.0.0.0:11300 can use every job: there is no authentication",
        ),
    ],
)
def test_what_is_accepted_differently_is_said(line: str, warning: str) -> None:
    assert parse(line.split()).warnings == (warning,)


def test_an_answer_ends_the_reading() -> None:
    request = parse(["-cv", "-x"])
    assert request.answer == VERSION
    assert request.warnings == ("-c is ignored",)


def test_the_defaults_are_those_of_the_request() -> None:
    assert beanstalkd.config_of(parse([])) == Config(
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


@pytest.mark.parametrize(
    ("line", "sync", "sync_interval_ms"),
    [
        ("-b d", SyncPolicy.INTERVAL, 50),
        ("-b d -f 0", SyncPolicy.ALWAYS, 50),
        ("-b d -f 9", SyncPolicy.INTERVAL, 9),
        ("-b d -F", SyncPolicy.NEVER, 50),
    ],
)
def test_the_sync_flags_choose_the_policy(
    line: str, sync: SyncPolicy, sync_interval_ms: int
) -> None:
    config = beanstalkd.config_of(parse(line.split()))
    assert (config.data_dir, config.sync, config.sync_interval_ms) == ("d", sync, sync_interval_ms)


# --- Starting ------------------------------------------------------------------------------------


def test_the_service_is_run_with_a_listening_socket(service: Service) -> None:
    assert start(["-V", "-p0"], {}) == EXIT_OF_THE_SERVICE
    (listener,) = service.listeners.line
    with socket.create_connection(listener.socket.getsockname()):
        pass
    assert service.config.log_level is LogLevel.DEBUG


def test_the_service_answers_like_the_version_asked_for_and_prints_nothing(
    service: Service, capsys: pytest.CaptureFixture[str]
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


def test_the_version_names_both(capsys: pytest.CaptureFixture[str], service: Service) -> None:
    assert start(["-v"], {}) == Exit.OK
    assert capsys.readouterr().out == f"beanstalkd 1.13 (delayd {__version__})\n"
    assert not service.configs


@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_the_help_lists_every_flag(
    flag: str, capsys: pytest.CaptureFixture[str], service: Service
) -> None:
    assert start([flag], {}) == Exit.OK
    printed = capsys.readouterr().out
    for letter, (argument, _) in FLAGS.items():
        assert f" -{letter} {argument}" in printed
    assert " --compat 1.12|1.13 " in printed


def test_a_wrong_command_line_exits_64(
    capsys: pytest.CaptureFixture[str], service: Service
) -> None:
    assert start(["-x"], {}) == Exit.USAGE
    printed = capsys.readouterr().err
    assert printed == "delayd-beanstalkd: unknown flag: -x; -h shows the flags\n"
    assert not service.configs


def test_an_address_in_use_exits_71_and_is_named(
    capsys: pytest.CaptureFixture[str], service: Service
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert start(["-p", str(port)], {}) == Exit.CANNOT_LISTEN
    message = f"cannot listen on 127.0.0.1:{port}: the address is in use"
    assert capsys.readouterr().err == f"delayd-beanstalkd: {message}\n"
    assert not service.configs


def test_a_user_that_does_not_exist_exits_78_and_stops_listening(
    capsys: pytest.CaptureFixture[str], service: Service, tmp_path: Path
) -> None:
    path = tmp_path / "line.sock"
    assert start(["-u", "no-such-user", "-l", f"unix:{path}"], {}) == Exit.BAD_CONFIGURATION
    message = "cannot become 'no-such-user': there is no such user"
    assert capsys.readouterr().err == f"delayd-beanstalkd: {message}\n"
    assert not path.exists()
    assert not service.configs


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
    capsys: pytest.CaptureFixture[str], service: Service, monkeypatch: pytest.MonkeyPatch
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
