import socket
import subprocess
import sys
import threading

import click
import pytest

from delayd.cli.connect import (
    EXITS,
    URL_VARIABLE,
    exit_of,
    explained,
    tell_outage,
    url_of,
)
from delayd.cli.main import invoke
from delayd.client import errors
from delayd.client.addresses import read_address
from delayd.client.errors import ConnectionLost, DelaydError
from delayd.client.results import TopicInfo
from delayd.client.sync import Client
from delayd.exits import Exit


def lost(url: str, reason: str) -> DelaydError:
    return ConnectionLost(url, reason, may_have_happened=False)


def test_the_url_is_that_of_the_flag_the_variable_or_the_default(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert url_of(None, None) == "http://127.0.0.1:11301"
    assert url_of("https://queue.example", None) == "https://queue.example"
    assert url_of("https://queue.example", "127.0.0.1:3") == "beanstalk://127.0.0.1:3"
    monkeypatch.setenv(URL_VARIABLE, "http://127.0.0.1:2")
    assert invoke(["topics"]) == Exit.UNREACHABLE
    err = capsys.readouterr().err
    assert "http://127.0.0.1:2" in err
    assert "delayd serve" in err


def test_schemes_may_be_in_capitals_and_beside_line_too() -> None:
    assert read_address("HTTP://h:1") == read_address("http://h:1")
    assert url_of(None, "beanstalks://h:1") == "beanstalks://h:1"


@pytest.mark.parametrize("said", ["dlyd_a\ndlyd_b", "dlyd_a dlyd_b", "dlyd_\udcff", "\x1b"])
@pytest.mark.parametrize("command", [["stats"], ["stats", "--line", "127.0.0.1:1"]])
def test_a_variable_that_holds_no_token_is_refused_as_a_file_is(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    said: str,
    command: list[str],
) -> None:
    monkeypatch.setenv("DELAYD_TOKEN", said)
    assert invoke(command) == Exit.USAGE
    assert capsys.readouterr().err == ("delayd: DELAYD_TOKEN holds no token: one line, dlyd_...\n")


@pytest.mark.parametrize(
    ("error", "hint"),
    [
        (lost("http://a:1", "the daemon closed it"), "https:// or beanstalks://"),
        (lost("beanstalk://a:1", "the daemon closed it"), "https:// or beanstalks://"),
        (lost("https://a:1", "the daemon closed it"), "tls.client_ca"),
        (lost("beanstalks://a:1", "tlsv13 alert certificate required"), "tls.client_ca"),
        (lost("beanstalks://a:1", "tlsv1 alert unknown ca"), "tls.client_ca"),
        (lost("http://a:1", "no answer in time"), ""),
        (lost("unix:/a", "the daemon closed it"), ""),
    ],
)
def test_what_may_be_amiss_with_tls_is_said_when_the_daemon_is_asked_again_and_at_the_end(
    error: DelaydError, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    tell_outage(error)
    first, *others = capsys.readouterr().err.splitlines()
    assert first == f"delayd: {error}; trying again"
    assert len(others) == bool(hint)
    assert hint in "".join(others)
    assert [*explained(error)] == [str(error), *(each[len("delayd: ") :] for each in others)]
    with click.Context(click.Command("put")) as ctx:
        ctx.params["cert_file"] = "client.pem"
        is_about_ours = "tls.client_ca" in hint
        assert ("of --cert-file: its log says why" in "".join(explained(error))) is is_about_ours


def test_an_outage_is_told_by_every_command_that_waits_for_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def asked(client: Client) -> list[TopicInfo]:
        assert client.outage.tell is tell_outage
        return []

    monkeypatch.setattr(Client, "topics", asked)
    assert invoke(["topics"]) == Exit.OK


def test_an_unknown_certificate_has_other_advice_than_to_start_a_daemon() -> None:
    said = str(errors.Unreachable("https://a", "certificate verify failed: self-signed"))
    assert said.endswith(
        ". Name the authority of its certificate: --ca-file FILE, or `tls` of a client"
    )


def test_a_port_without_tls_has_other_advice_than_to_start_a_daemon(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            with server.accept()[0] as client:
                client.recv(1_024)
                client.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        threading.Thread(target=answer).start()
        url = f"https://127.0.0.1:{server.getsockname()[1]}"
        assert invoke(["topics", "--url", url]) == Exit.UNREACHABLE
    advice = ". Its port speaks no TLS: the url begins with http:// or beanstalk://\n"
    assert capsys.readouterr().err.endswith(advice)


def test_every_error_of_the_client_has_an_exit_code() -> None:
    kinds = [
        kind
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, DelaydError)
    ]
    assert len(kinds) > 20
    for kind in kinds:
        assert any(issubclass(kind, row) for row, _code in EXITS)
    assert exit_of(errors.Draining("drains")) == Exit.NOT_NOW
    assert exit_of(errors.JobNotFound("none")) == Exit.NOTHING_THERE
    assert exit_of(errors.NotReserved("ended")) == Exit.REFUSED


def test_what_may_succeed_later_says_when() -> None:
    refusal = errors.NotReady("B owns it", retry_after_s=1.0, kind="standing_by")
    ask = "nothing was changed; ask the owner: name it with --url, or all addresses with commas"
    assert list(explained(refusal)) == ["B owns it", ask]
    told = list(explained(errors.Draining("it drains", retry_after_s=5.0)))
    assert told == ["it drains", "nothing was changed; try again in 5 s"]
    done = "2 jobs had been put or changed before"
    told = list(explained(errors.NoRoom("it is full", retry_after_s=5.0, done=2)))
    assert told == ["it is full", f"{done}; try again in 5 s"]
    assert list(explained(errors.BodyTooBig("it is too big", done=2))) == ["it is too big", done]


OF_PYTHON = {
    *("_json", "_locale", "_socket", "array", "atexit", "binascii", "json", "json.decoder"),
    *("json.encoder", "json.scanner", "locale", "select", "selectors", "signal", "socket"),
    *("_struct", "struct"),
}
OF_DELAYD = {
    *("cli", "cli.connect", "cli.main", "cli.parameters", "cli.tables", "cli.terminal"),
    *(
        "cli.job_options",
        "cli.ndjson",
        "cli.put",
        "cli.topics",
        "client",
        "client.addresses",
        "client.answers",
        "client.connection",
    ),
    *("client.errors", "client.limits", "client.schedules"),
    *("client.http1", "client.http_calls", "client.jobs", "client.results"),
    *("client.protocols", "client.signals", "client.steps", "client.sync", "client.values"),
    *("client.attempts", "client.connection_pool", "client.touching"),
    *("access", "access.errors", "durations", "exits", "limits", "moments", "text"),
}


def test_a_whole_command_imports_no_module_but_these_beside_those_of_click() -> None:
    """So its start executes 1.4 times the instructions of that of click alone."""
    command = (
        "import delayd.cli.put; from delayd.cli.main import invoke; "
        "invoke(['topics', '--url', 'http://127.0.0.1:1'])"
    )
    script = (
        f"import sys; sys.path = {sys.path}; import click; before = {{*sys.modules}}; {command}"
    )
    ran = subprocess.run(
        [sys.executable, "-I", "-S", "-c", f"{script}; print(*{{*sys.modules}} - before)"],
        check=True,
        capture_output=True,
        text=True,
    )
    imported = set(ran.stdout.split())
    ours = {name for name in imported if name.startswith("delayd")}
    assert ours == {"delayd", *(f"delayd.{name}" for name in OF_DELAYD)}
    assert imported - ours <= OF_PYTHON
