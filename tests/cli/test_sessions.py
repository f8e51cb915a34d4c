"""What is typed and what is printed; sessions.txt says how it is written."""

import io
import json
import os
import re
import shlex
import socket
import sys
from ast import literal_eval
from base64 import b64decode
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

import pytest
from click.shell_completion import ShellComplete
from standardwebhooks.webhooks import Webhook

from delayd.access.scopes import Scope
from delayd.access.signing_secrets import Secrets
from delayd.access.tokens import Tokens
from delayd.cli import ndjson
from delayd.cli.main import delayd
from delayd.client import Client, ConnectionLost
from delayd.config import Config
from delayd.core.throttle import PushBlock
from delayd.exits import Exit
from delayd.journal.disk import RealDisk
from delayd.journal.format import HEADER_BYTES
from delayd.journal.journal import Journal
from delayd.schedules.definition import Definition
from tests.access.secret_samples import text as secret_text
from tests.binlog import binlogs
from tests.binlog.binlogs import BURIED, READY, file_of
from tests.cli.conftest import EXIT_OF_THE_SERVICE, Service
from tests.cli.hook import Hook
from tests.cli.journals import (
    SEGMENT_BYTES,
    START,
    START_MS,
    contents,
    fill,
    fill_with_snapshot,
    flip,
)
from tests.cli.talking import Talk
from tests.cli.test_diagnosis import HEALTHY
from tests.journal.journals import frame_ends
from tests.rigs.written import Fact, covers, facts_of

if TYPE_CHECKING:
    from collections.abc import Callable

NOW_MS: Final = 1_795_256_100_000
"""The wall clock of `delayd token` and `secret`: 2026-11-21T10:15:00Z."""
ENDS: Final = {**Exit.__members__, "SERVES": EXIT_OF_THE_SERVICE}
COLOURS: Final = re.compile(r"\x1b\[[\d;]*m")


class Typed:
    """One session on its way."""

    def __init__(self, talk: Talk, patch: pytest.MonkeyPatch, stack: ExitStack) -> None:
        self.talk = talk
        self.service = Service()
        self.stack = stack
        self.hook = Hook()
        self.patch = patch
        self.names = {"$pid": str(os.getpid())}
        """What `$name` stands for."""
        self.disk = RealDisk()
        self.open: list[Callable[[], object]] = []
        """What `free` closes."""
        self.kept: dict[str, bytes] = {}
        self.output: Callable[[], int] | None = None
        """What opens the standard output of each command, where it is not looked at."""

    def step(self, step: str) -> None:
        step = re.sub(r"\$[a-z]+", lambda match: self.names.get(match[0], match[0]), step)
        word, _, more = step.partition(" ")
        if word == "$":
            typed, _, outcome = more.partition(" -> ")
            self.type(shlex.split(typed), outcome)
        else:
            self.arrange(word, more)

    def arrange(self, word: str, more: str) -> None:
        """What lies in the directory; what was asked, and what came of it."""
        match word:
            case "file":
                name, _, content = more.partition(" ")
                Path(name).write_text(literal_eval(content))
            case "file_is":
                name, _, content = more.partition(" ")
                assert Path(name).read_text() == literal_eval(content)
            case "mode":
                name, mode = more.split()
                assert f"{Path(name).stat().st_mode & 0o777:o}" == mode
            case "service":
                self.patch.setattr("delayd.service.run", self.service.run)
                self.stack.callback(lambda made: made.listeners.close(), self.service)
            case "served":
                self.served(more)
            case "no_file":
                assert not Path(more).exists()
            case "hook" | "hook_says" | "signed" | "got" | "calls":
                self.be_called(word, more)
            case "knows" | "signs":
                self.look_at_entries(word, *more.split())
            case "jobs":
                there = self.talk.rig.engine.store.jobs
                assert [job for job in range(1, 99) if there.get(job)] == [*map(int, more.split())]
            case "requests":
                assert len(self.talk.requests) == int(more)
            case "completes":
                typed, _, offered = more.partition(" ->")
                assert completed(*typed.split()) == offered.split()
            case "sent":
                covers(json.loads(self.talk.requests[-1].body), json.loads(more), self.names)
            case _:
                self.arrange_daemon(word, more)

    def arrange_daemon(self, word: str, more: str) -> None:
        """What the daemon is and holds, and what the token allows."""
        talk, rig = self.talk, self.talk.rig
        match word:
            case "wait":
                rig.pass_ms(round(float(more) * 1_000))
            case "token":
                scopes, *topics = more.split()
                talk.has_token(*map(Scope, scopes.split(",")), topics=tuple(topics) or ("*",))
            case "no_token":
                self.patch.delenv("DELAYD_TOKEN", raising=False)
                rig.authenticator.tokens = rig.authenticator.tokens or Tokens(())
            case "call":
                method, path, body = more.split(" ", 2)
                rig.ok(method, path, json.loads(body))
            case "configured":
                name, cron = more.split()
                wanted = {name: (Definition(topic="t", cron=cron), b"")}
                rig.schedules().configure(wanted, rig.clock.request_ms())
            case "topics":
                for number in range(int(more)):
                    rig.ok("POST", f"/v1/topics/t{number}/jobs", {"body": 1})
            case "push_on":
                rig.engine.vet_target = lambda target: target
            case "breaker_open":
                rig.push_blocks[more] = [PushBlock.OPEN]
            case "no_space":
                rig.engine.log_space.limit(0, lambda *_: -1)
            case "drain":
                rig.engine.draining = True
            case "fill":
                topic, jobs = more.split()
                bodies = [{"body": "x" * 50, "delay": "1d"}] * int(jobs)
                rig.ok("POST", f"/v1/topics/{topic}/jobs", {"jobs": bodies})
            case _:
                self.arrange_process(word, more)

    def served(self, settings: str) -> None:
        """The service was run with these, and the others as usual."""
        config = self.service.configs.pop()
        self.service.listeners.close()
        usual = Config()._asdict()
        changed = (each for each in config._asdict().items() if each[1] != usual[each[0]])
        said = " ".join(f"{name}={value}" for name, value in changed)
        assert said.replace(f"{Path.cwd()}/", "") == settings

    def be_called(self, word: str, more: str) -> None:
        """Be a receiver of calls, or look at those that came."""
        match word:
            case "hook":
                self.answer_calls(*more.split(" ", 1))
            case "hook_says":
                self.hook.body = literal_eval(more).ljust(900, b"o")
            case "signed":
                headers, sample = self.hook.got[-1]
                for secret in map(secret_text, map(int, more.split())):
                    said = Webhook(secret).verify(sample, headers)
                    assert said == {"sample": True, "sent_by": "delayd push test"}
            case "got":
                covers(self.hook.got[-1][0], json.loads(more), self.names)
            case "calls":
                assert len(self.hook.got) == int(more)

    def look_at_entries(self, word: str, file: str, *more: str) -> None:
        """Look at a file of tokens or secrets as a daemon does."""
        match word:
            case "knows":
                (token,) = more
                assert Tokens.load(file).find(token, NOW_MS / 1_000) is not None
                assert token[-40:] not in Path(file).read_text()
            case "signs":
                name, *secrets = more
                keys = (b64decode(secret.removeprefix("whsec_")) for secret in secrets)
                assert {*Secrets.load(file).keys((name,))} == {*keys}

    def arrange_process(self, word: str, more: str) -> None:
        """What the command finds: its streams and variables, the clock, other bounds."""
        match word:
            case "config":
                content, _, outcome = more.partition(" -> ")
                Path("delayd.toml").write_text(literal_eval(content))
                self.type(["config", "check", "--config", "delayd.toml"], outcome)
            case "piped":
                stdin = SimpleNamespace(buffer=io.BytesIO(literal_eval(more)), isatty=bool)
                self.patch.setattr("sys.stdin", stdin)
            case "pipe":
                reader, writer = os.pipe()
                os.write(writer, literal_eval(more))
                os.close(writer)
                self.names["$pipe"] = f"/dev/fd/{reader}"
            case "limit":
                name, most = more.split()
                self.patch.setattr(f"delayd.cli.{name}", int(most))
            case "full" | "unread":
                self.output = full if word == "full" else unread
            case "terminal":
                self.talk.answers(more)
            case "wide":
                self.talk.is_wide(int(more))
            case "now":
                wall_ms = NOW_MS + int(more) * 1_000
                for module in ("token", "secret"):
                    self.patch.setattr(f"delayd.cli.{module}.system_wall_ms", lambda: wall_ms)
            case "env":
                self.patch.setenv(*more.split(" ", 1))
            case "lost":
                last, *maybe = more.split()
                done = ndjson.put_batch

                def lost(client: Client, batch: list[ndjson.JobLine]) -> list[Any]:
                    if batch[0].number > int(last):
                        raise ConnectionLost("http://h", "reset", may_have_happened=bool(maybe))
                    return done(client, batch)

                self.patch.setattr(ndjson, "put_batch", lost)
            case "long":
                self.patch.setattr("delayd.cli.terminal.LONG_BYTES", 1)
            case "resolves":
                # Every name has these addresses.
                places = [
                    (socket.AF_INET, socket.SOCK_STREAM, 6, "", (at, 1)) for at in more.split()
                ]
                self.patch.setattr(socket, "getaddrinfo", lambda *_, **_how: places)
            case "machine":
                found = HEALTHY._replace(**literal_eval(more))
                self.patch.setattr("delayd.cli.machine.machine", lambda *_: found)
            case "watched":
                self.patch.setattr("sys.stderr.isatty", lambda: True)
            case _:
                self.arrange_log(word, *more.split(" ", 2))

    def answer_calls(self, status: str, headers: str = "{}") -> None:
        """Begin to be a receiver of calls, or answer otherwise from now on."""
        if "$port" not in self.names:
            self.stack.enter_context(self.hook)
            self.patch.setattr("delayd.push.connections.PUSH_ANSWER_MS", 60_000)
            self.patch.setenv("DELAYD_CONFIG", str(self.hook.configure(Path.cwd())))
            self.names |= {"$port": str(self.hook.port), "$url": self.hook.url}
        if status == "silent":
            self.hook.may_answer.clear()
        else:
            self.hook.status, self.hook.headers = int(status), json.loads(headers)

    def arrange_log(self, word: str, place: str, *more: str) -> None:
        """Leave a directory as a daemon or a beanstalkd might have, or look at one."""
        path = Path(place)
        match word:
            case "log":  # DIRECTORY FRAMES [killed]
                is_closed = more[1:] != ("killed",)
                self.name_ends(fill(path, int(more[0]), is_closed=is_closed))
            case "record":  # DIRECTORY b'…': a daemon has written that into its log
                journal = Journal.open(place, disk=self.disk, segment_bytes=SEGMENT_BYTES)
                assert not list(journal.replay())
                journal.append(literal_eval(more[0]), START_MS, START_MS)
                journal.close()
            case "snapshot":
                snapshot, log = fill_with_snapshot(path)
                self.name_ends(log)
                self.names |= {"$snapshot": str(snapshot), "$bytes": str(snapshot.stat().st_size)}
            case "binlog":  # DIRECTORY TUBE
                path.mkdir(exist_ok=True)
                first, second = (
                    binlogs.full(number, b"x", more[0], state=number) for number in (READY, BURIED)
                )
                (path / "binlog.1").write_bytes(file_of(first, second, zeros=100))
                (path / "lock").touch()
                ends = len(file_of(first)), len(file_of(first, second))
                self.names |= {"$first": str(ends[0]), "$second": str(ends[1])}
            case "directory":
                path.mkdir()
            case "delete":
                path.unlink()
            case "copy":
                Path(more[0]).write_bytes(path.read_bytes())
            case "rename":
                path.rename(more[0])
            case "link":
                path.symlink_to(Path(more[0]).absolute())
            case "write":  # FILE OFFSET b'…'
                with path.open("r+b") as written:
                    written.seek(sum(map(int, more[0].split("+"))))
                    written.write(literal_eval(more[1]))
            case "flip":  # FILE OFFSET+BYTES
                flip(path, sum(map(int, more[0].split("+"))))
            case "held":  # FILE, or a directory, as a daemon does whose lock file was deleted
                lock = self.disk.lock_directory if path.is_dir() else self.disk.lock
                self.open.append(partial(self.disk.close, lock(place)))
            case "daemon":  # DIRECTORY FRAMES: one plays so many there, and holds it
                journal = Journal.open(place, disk=self.disk, segment_bytes=SEGMENT_BYTES)
                self.open.append(journal.close)
                assert len(list(journal.replay())) == int(more[0])
            case "free":
                self.open.pop()()
            case "keep":
                self.kept = contents(path)
            case "kept":
                assert contents(path) == self.kept
            case "holds":
                assert sorted(contents(path)) == sorted(" ".join(more).split())
            case "parts":
                assert path.read_bytes() == b"".join(Path(name).read_bytes() for name in more)
            case _:
                raise AssertionError(f"no step: {word}")

    def name_ends(self, log: Path) -> None:
        """`$size` is that of the log, `$a`, `$b`, ... are where its frames end."""
        content = log.read_bytes()
        self.names |= {"$log": str(log), "$size": str(len(content)), "$start": START}
        self.names["$rest"] = str(len(content) - HEADER_BYTES)
        ends = zip("abcdefgh", frame_ends(content), strict=False)
        self.names |= {f"${letter}": str(end) for letter, end in ends}

    def run(self, words: list[str]) -> tuple[int, str, str]:
        if self.output is None:
            return self.talk.run(*words)
        with (
            suppress(OSError),
            os.fdopen(self.output(), "w") as stdout,
            self.patch.context() as patch,
        ):
            patch.setattr("sys.stdout", stdout)
            ran = self.talk.run(*words)
        return ran

    def type(self, words: list[str], outcome: str) -> None:
        code, *said = self.run(words)
        out, err = (COLOURS.sub("", text).replace(f"{Path.cwd()}/", "") for text in said)
        parts = outcome.split(" ; ") if outcome else []
        expected = ENDS[parts.pop(0)] if parts and re.fullmatch("[A-Z_]+", parts[0]) else Exit.OK
        assert code == expected, err or out
        for part in parts:
            how, _, text = part.partition(" ")
            match how:
                case "=":
                    assert lines_of(out) == text
                case "!=":
                    assert lines_of(err) == text
                case "~":
                    assert text in lines_of(out)
                case "!":
                    assert text in lines_of(err)
                case "lacks":
                    assert text not in lines_of(out + err)
                case "fits":
                    assert max(map(len, out.splitlines())) <= int(text)
                case "exactly":
                    assert out == literal_eval(text)
                case "is":
                    self.names |= {text: out.strip(), f"{text}end": out.strip()[-40:]}
                case "keeps":
                    Path(text).write_text(out)
                case "json":
                    objects: Any = [json.loads(line) for line in out.splitlines()]
                    wanted = json.loads(text)
                    covers(objects if isinstance(wanted, list) else objects[0], wanted, self.names)
                case _:
                    raise AssertionError(f"no outcome: {part}")


def completed(*words: str) -> list[str]:
    """What is offered for the last word; ? is none yet."""
    asked = ShellComplete(delayd, {}, "delayd", "_DELAYD_COMPLETE")
    return [item.value for item in asked.get_completions([*words[:-1]], words[-1].strip("?"))]


def full() -> int:
    """The disk of it is full."""
    return os.open("/dev/full", os.O_WRONLY)


def unread() -> int:
    """A pipe that nobody reads."""
    reader, writer = os.pipe()
    os.close(reader)
    return writer


def lines_of(text: str) -> str:
    """A text with one space between words, and / between lines."""
    return " / ".join(" ".join(line.split()) for line in text.splitlines())


@pytest.mark.parametrize("session", facts_of(Path(__file__).parent / "sessions.txt"), ids=str)
def test_every_session_goes_as_written(
    session: Fact,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])  # a worker's program is found in the directory
    with Talk(monkeypatch, capsys) as talk, ExitStack() as stack:
        typed = Typed(talk, monkeypatch, stack)
        typed.step("now 0")
        # A shell waits half a second for the daemon, for which this machine may stop.
        monkeypatch.setattr("delayd.cli.connect.COMPLETION_S", 60.0)
        if "orders" in session.options:
            typed.step("$ put orders one --delay 1h --key order-1")
            typed.step("$ put orders two --delay 2h --key order-2")
            typed.step("$ put orders three --delay 3h")
        session.play(typed.step)
