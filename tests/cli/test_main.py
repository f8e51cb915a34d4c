import importlib.util
import json
import os
import platform
import socket
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path

import click
import pytest

from delayd import __version__
from delayd.cli.main import COMMANDS, INTERRUPTED, delayd, invoke
from delayd.exits import Exit
from tests.cli.conftest import EXIT_OF_THE_SERVICE, Service, imported_by


@pytest.fixture(autouse=True)
def _no_http(monkeypatch: pytest.MonkeyPatch) -> None:
    # Unless a test says otherwise: a daemon may run on the machine that tests.
    monkeypatch.setenv("DELAYD_HTTP_LISTEN", "off")


@pytest.mark.parametrize("which", ["line", "http"])
def test_serve_listens_where_a_flag_says(service: Service, which: str) -> None:
    words = ["serve", "--line", "off", "--http", "off", f"--{which}", "127.0.0.1:0"]
    assert invoke(words) == EXIT_OF_THE_SERVICE
    (listener,) = (*service.listeners.line, *service.listeners.http)
    assert getattr(service.listeners, which) == (listener,)
    with socket.create_connection(listener.socket.getsockname()):
        pass


def test_what_was_opened_first_is_closed_when_the_second_cannot_be(
    service: Service, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "line.sock"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        assert invoke(["serve", "--line", f"unix:{path}", "--http", where]) == Exit.CANNOT_LISTEN
    assert capsys.readouterr().err == (f"delayd: cannot listen on {where}: the address is in use\n")
    assert not path.exists()


@pytest.mark.parametrize(
    ("file", "kind"),
    [("turns.py", "not compiled"), ("turns.cpython-311-x86_64-linux-gnu.so", "compiled")],
)
def test_version_names_delayd_and_python_and_whether_delayd_is_compiled(
    file: str, kind: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: ModuleSpec(name, None, origin=file)
    )
    assert invoke(["version"]) == Exit.OK
    assert capsys.readouterr().out.startswith(f"delayd {__version__} ({kind}; Python 3.")
    assert invoke(["version", "--json"]) == Exit.OK
    told = json.loads(capsys.readouterr().out)
    assert (told["version"], told["python"]) == (__version__, platform.python_version())
    assert told["compiled"] == (kind == "compiled")


def test_an_interrupt_is_reported_as_shells_do(service: Service) -> None:
    service.is_interrupted = True
    assert invoke(["serve", "--line", "127.0.0.1:0"]) == INTERRUPTED


def test_the_lists_of_commands_are_true_and_of_whole_sentences(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in COMMANDS:
        command = delayd.get_command(click.Context(delayd), name)
        assert command is not None
        assert command.name == name
        assert command.help
        if isinstance(command, click.Group):
            assert invoke([name, "--help"]) == Exit.OK
            listed = capsys.readouterr().out.partition("Commands:")[2].strip().splitlines()
            assert [line for line in listed if not line.endswith(".") or line.endswith("...")] == []


def every_command(command: click.Command, name: str) -> Iterator[tuple[str, click.Command]]:
    """A command and those below it, with what is typed for each."""
    yield name, command
    if isinstance(command, click.Group):
        ctx = click.Context(command)
        for word in command.list_commands(ctx):
            below = command.get_command(ctx, word)
            assert below is not None
            yield from every_command(below, f"{name} {word}")


LEAVES = {
    name: command
    for name, command in every_command(delayd, "delayd")
    if not isinstance(command, click.Group)
}


def test_every_command_has_an_example_and_every_option_says_what_it_is_for() -> None:
    for name, command in LEAVES.items():
        assert name in (command.epilog or "")
        options = [param for param in command.params if isinstance(param, click.Option)]
        assert not [option.name for option in options if not option.help], name


def test_without_psycopg_commands_say_which_packages_they_need(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    for arguments in (["check", "postgresql://127.0.0.1:1/jobs"], ["schema"]):
        assert invoke(["journal", *arguments]) == Exit.USAGE
        error = capsys.readouterr().err
        assert error == (
            'delayd: a log in PostgreSQL needs more packages: pip install "delayd[postgres]"\n'
        )


# --- Sockets from systemd ------------------------------------------------------------------------


def hand_over(monkeypatch: pytest.MonkeyPatch, host: str, name: str) -> str:
    """Hand a listening socket to this very process and return its address."""
    given = socket.create_server((host, 0))
    port = given.getsockname()[1]
    monkeypatch.setattr("delayd.net.addresses.FIRST_INHERITED_FD", given.detach())
    monkeypatch.setenv("LISTEN_PID", str(os.getpid()))
    monkeypatch.setenv("LISTEN_FDS", "1")
    monkeypatch.setenv("LISTEN_FDNAMES", name)
    return f"{host}:{port}"


@pytest.mark.parametrize(
    ("host", "name", "tokens"),
    [
        ("127.0.0.1", "delayd.socket", "off"),
        ("127.0.0.1", "http", "off"),
        ("0.0.0.0", "", "tokens.json"),  # noqa: S104 - nobody connects
    ],
)
def test_a_socket_from_systemd_takes_the_place_of_the_address(
    service: Service, monkeypatch: pytest.MonkeyPatch, host: str, name: str, tokens: str
) -> None:
    monkeypatch.setenv("DELAYD_AUTH_TOKENS", tokens)
    address = hand_over(monkeypatch, host, name)
    assert invoke(["serve", "--line", "127.0.0.1:0"]) == EXIT_OF_THE_SERVICE
    listeners = service.listeners
    given = listeners.http if name == "http" else listeners.line
    assert [str(listener.address) for listener in given] == [address]
    assert len(listeners.line) == 1


@pytest.mark.parametrize("name", ["", "http"])
def test_a_socket_from_systemd_that_others_reach_needs_the_users_word(
    name: str, service: Service, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    address = hand_over(monkeypatch, "0.0.0.0", name)  # noqa: S104 - refused
    assert invoke(["serve"]) == Exit.BAD_CONFIGURATION
    assert f'systemd = "{address}": must be a loopback address' in capsys.readouterr().err


# --- Imports -------------------------------------------------------------------------------------


def test_no_command_is_imported_for_the_list_of_all() -> None:
    imported = imported_by("delayd.cli.main")
    modules = {f"delayd.cli.{subcommand.module}" for subcommand in COMMANDS.values()}
    assert not modules & imported
