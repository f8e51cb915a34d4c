"""`delayd work`: one command for each job, its body on standard input.

    0       the job is done: acknowledged
    65      the job can never succeed: buried                   (EX_DATAERR)
    75      not now: tried again after --retry-after            (EX_TEMPFAIL)
    other   the attempt failed: tried again as its retry rule says

One thread reserves, as many jobs as commands may still be started, and one thread for each job
waits for its command; the client extends the reservations meanwhile. The first SIGTERM or SIGINT
ends the reserving, and what runs may finish; the second kills it, and gives its jobs back as if
nobody had tried. The commands are in sessions of their own, so that a Ctrl-C at the terminal is for
the worker alone. What they write on standard error goes on to the worker's, and its last line is
kept as the reason of a failure.
"""

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, Self

import click
from click import Command as ClickCommand

from delayd.cli.connect import URL_VARIABLE, explained, known_topics, url_of, with_client
from delayd.cli.parameters import DURATION, command
from delayd.cli.tables import time_shown
from delayd.cli.terminal import CommandFailed, complain, complain_at_once
from delayd.client.errors import DelaydError, Forbidden, Unauthorized
from delayd.client.results import TEXTS
from delayd.client.signals import handled
from delayd.client.steps import carried_out
from delayd.client.values import seconds
from delayd.client.work_loop import FailurePause, comes_at_once, work_loop
from delayd.exits import Exit

if TYPE_CHECKING:
    from delayd.client.sync import Client, Job

BURY: Final = 65
TRY_LATER: Final = 75
DECIDED: Final = frozenset((0, BURY, TRY_LATER))
"""Exit codes with an outcome of their own; for any other the retry rule decides."""
WAIT: Final = "5s"
"""How long one request waits for a job: the next shows whether the daemon still answers."""
LINE_BYTES_MAX: Final = 1_024
"""So much of a line of standard error is kept as the reason of a failure."""
CHUNK_BYTES: Final = 1 << 16
LAST_LINE_S: Final = 1.0
"""How long the last line is waited for: a child of the command may keep standard error open."""
NOT_NOTED: Final = (
    "job {} was run, and the daemon did not take what came of it, so it comes again: a token for"
    " work needs the scopes reserve, delete, release and bury"
)
PERHAPS_NOT_NOTED: Final = (
    "job {} of {} was run, but reporting what came of it failed, so it may come again: {}"
)
SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


COMMAND_KEY: Final = "delayd.cli.work.command"


class StopReserving(Exception):
    """A signal came while a job was waited for."""


class WithCommand(ClickCommand):
    """Takes the command after `--` from the arguments, unparsed."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments before `--`."""
        at = args.index("--") if "--" in args else len(args)
        ctx.meta[COMMAND_KEY] = args[at + 1 :]
        return super().parse_args(ctx, args[:at])

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """Return the parts of the usage line."""
        return [*super().collect_usage_pieces(ctx), "-- COMMAND..."]


@command(
    "delayd work mail -- ./send-mail",
    "delayd work mail sms --concurrency 8 --timeout 5m -- python handle.py",
    "delayd work reports --drain -- sh -c 'cat > report-$DELAYD_JOB_ID.json'",
    cls=WithCommand,
)
@click.argument("topics", nargs=-1, required=True, metavar="TOPIC...", shell_complete=known_topics)
@click.option("--concurrency", type=click.IntRange(1, 1000), default=1, help="Jobs at once: 1.")
@click.option("--retry-after", type=DURATION, default="1m", help="The delay for exit code 75: 1m.")
@click.option("--timeout", type=DURATION, help="Kill a command that takes longer: it has failed.")
@click.option("--drain", is_flag=True, help="End when no job is ready; 67 if a job failed.")
@with_client
def work(
    client: "Client",
    topics: tuple[str, ...],
    *,
    concurrency: int,
    retry_after: str,
    timeout: str | None,
    drain: bool,
) -> int:
    """Run COMMAND for each job of the TOPICs, with its body on standard input.

    Exit code 0 acknowledges the job, 65 buries it, 75 tries it again after --retry-after; any other
    is a failed attempt. DELAYD_JOB_ID, _TOPIC, _KEY, _GROUP, _ATTEMPT, _PRIORITY, _DUE, _LATENESS,
    _TOKEN and _FAILURE tell about the job. Reservations are extended while commands run. The last
    line on standard error is kept as the reason of a failure. The first SIGTERM or Ctrl-C lets
    commands finish; the second kills them, and gives their jobs back without counting an attempt.
    """
    ctx = click.get_current_context()
    command: list[str] = ctx.meta[COMMAND_KEY]
    if not command:
        raise click.UsageError("which command? Write it behind --: delayd work TOPIC -- COMMAND")
    if not is_there(command[0], os.environ.get("PATH", os.defpath)):
        raise CommandFailed(Exit.USAGE, f"there is no command {command[0]!r}")
    if timeout is not None and not seconds(timeout):
        raise click.UsageError("--timeout must be above 0")
    worker = CommandWorker(
        *(client, topics, command, concurrency, retry_after),
        timeout_s=None if timeout is None else seconds(timeout),
        is_draining=drain,
        environment={**os.environ, **where(ctx.params)},
    )
    with handled(worker.on_signal, *SIGNALS):
        return worker.run()


def is_there(program: str, path: str) -> bool:
    """Tell whether a program can be run, by its name or its path."""
    if os.path.dirname(program):
        return os.access(program, os.X_OK)
    return any(os.access(os.path.join(each, program), os.X_OK) for each in path.split(os.pathsep))


def where(params: Mapping[str, Any]) -> dict[str, str]:
    """Return the variables with which a command's own `delayd` talks to the same daemon."""
    file = params["token_file"]
    found = {
        URL_VARIABLE: url_of(params["url"], params["line"]),
        "DELAYD_TOKEN_FILE": file and os.path.abspath(file.name),
        **{
            f"DELAYD_{name.upper()}": params[name] and os.path.abspath(params[name])
            for name in ("ca_file", "cert_file", "key_file")
        },
    }
    return {name: value for name, value in found.items() if value}


def variables(job: "Job") -> dict[str, str]:
    """Return the environment variables about a job, for its command."""
    reservation = job.reservation
    failure = reservation.failure
    values = {
        "ID": job.id,
        "TOPIC": job.topic,
        "KEY": job.key,
        **{name.upper(): getattr(reservation, name) for name in TEXTS},
        "ATTEMPT": job.attempt,
        "PRIORITY": reservation.priority,
        "DUE": reservation.due and time_shown(reservation.due),
        "LATENESS": reservation.lateness,
        "TOKEN": job.token,
        "FAILURE": failure and (failure.error or failure.reason),
    }
    texts = {name: "" if value is None else str(value) for name, value in values.items()}
    # NUL cannot stand in a variable; without it the job can be done.
    return {f"DELAYD_JOB_{name}": text.replace("\0", "") for name, text in texts.items()}


class CommandWorker:
    """Runs commands for jobs; `run` returns after a signal, or when it has drained."""

    def __init__(
        self,
        client: "Client",
        topics: Sequence[str],
        command: Sequence[str],
        concurrency: int,
        retry_after: str,
        *,
        timeout_s: float | None = None,
        is_draining: bool = False,
        environment: Mapping[str, str],
    ) -> None:
        self._client = client
        self._topics = topics
        self._command = command
        self._concurrency = concurrency
        self._retry_after = retry_after
        self._timeout_s = timeout_s
        self._is_draining = is_draining
        self._is_drained = False
        self._environment = environment
        self._changed = threading.Condition(threading.RLock())
        self._running: dict[threading.Thread, subprocess.Popen[bytes] | None] = {}
        self._is_waiting = False
        self._signals = 0
        self._second_signal = 0
        self._pause = FailurePause()
        self._failed: set[int] = set()
        """Jobs that failed while the topics are drained: they are not tried twice."""
        self._set_aside: list[Job] = []
        """Reserved once more, so that others come; released at the end."""
        self._fault: CommandFailed | None = None
        self._has_failed = False
        """A command has ended with a failure, or its job was buried."""

    def run(self) -> int:
        """Reserve and start commands until the end, and wait for running ones."""
        try:
            carried_out(
                work_loop(
                    self._client.outage,
                    self._pause,
                    goes_on=self._goes_on,
                    reserve=self._reserve,
                    handle=self._start,
                    wait=self._wait,
                )
            )
        except StopReserving:
            pass
        finally:
            self._wait_for_all()
            for job in self._set_aside:
                with contextlib.suppress(DelaydError):
                    job.release()
        if self._fault is not None:
            raise self._fault
        if self._second_signal:
            return 128 + self._second_signal
        return Exit.JOBS_FAILED if self._is_draining and self._has_failed else Exit.OK

    def on_signal(self, number: int, _frame: FrameType | None) -> None:
        """Stop reserving; at the second signal kill the running commands."""
        self._signals += 1
        if self._signals > 1:
            self._second_signal = self._second_signal or number
            complain_at_once("killing what runs")
            for process in list(self._running.values()):
                kill(process)
        else:
            running = len(self._running)
            complain_at_once(f"stopping: {running} running; a second signal kills them")
            if self._is_waiting:
                raise StopReserving

    @property
    def _is_stopping(self) -> bool:
        return self._signals > 0 or self._fault is not None

    def _goes_on(self) -> bool:
        """Tell, once one more command may be started, whether another job is to be reserved."""
        with self._changed:
            while len(self._running) >= self._concurrency and not self._is_stopping:
                self._changed.wait(1.0)  # a signal does not end a wait: check again
        return not (self._is_stopping or self._is_drained)

    def _reserve(self) -> "list[Job]":
        self._is_waiting = True
        try:
            if self._is_stopping:  # since the loop checked
                return []
            topics = self._topics[0] if len(self._topics) == 1 else self._topics
            limit = self._concurrency - len(self._running)
            timeout = "0s" if self._is_draining else WAIT
            jobs = self._client.reserve_many(topics, limit=limit, timeout=timeout)
        finally:
            self._is_waiting = False
        self._is_drained = self._is_draining and not jobs
        return jobs

    def _wait(self, pause_s: float) -> None:
        self._is_waiting = True
        try:
            with self._changed:
                self._changed.wait(pause_s)
        finally:
            self._is_waiting = False

    def _start(self, job: "Job") -> None:
        if job.id in self._failed:
            self._set_aside.append(job)
            return
        thread = threading.Thread(target=self._work, args=(job,), name=f"job-{job.id}")
        with self._changed:
            self._running[thread] = None
        thread.start()

    def _wait_for_all(self) -> None:
        while self._running:
            with self._changed:
                self._changed.wait(0.5)

    # --- In the thread of a job ------------------------------------------------------------------

    def _work(self, job: "Job") -> None:
        try:
            self._client.keep(job)
            try:
                self._finish(job, *self._run_command(job))
            finally:
                self._client.keep_no_more(job)
        except (Forbidden, Unauthorized) as error:
            # It would be run again and again.
            self._fault = CommandFailed(
                Exit.NOT_ALLOWED, NOT_NOTED.format(job.id), *explained(error)
            )
        except DelaydError as error:
            complain(PERHAPS_NOT_NOTED.format(job.id, job.topic, error))
        except OSError as error:
            self._fault = CommandFailed(
                Exit.USAGE, f"{self._command[0]} cannot be run: {error.strerror}"
            )
            with contextlib.suppress(DelaydError):
                job.release()
        finally:
            with self._changed:
                del self._running[threading.current_thread()]
                self._changed.notify_all()

    def _run_command(self, job: "Job") -> tuple[int, str]:
        """Run the command; return its exit code and, if that is not 0, how it ended, and why."""
        with LastLine() as last_line, as_file(job.body) as body:
            process = subprocess.Popen(  # noqa: S603 - it is what the user wants
                self._command,
                stdin=body,
                stderr=last_line.writes,
                env={**self._environment, **variables(job)},
                start_new_session=True,
            )
            last_line.follow()
            with process:
                with self._changed:
                    self._running[threading.current_thread()] = process
                if self._signals > 1:
                    kill(process)
                why = self._wait_for(process)
        how = why or (ended(process.returncode) if process.returncode else "")
        return process.returncode, f"{how}: {last_line}" if how and str(last_line) else how

    def _wait_for(self, process: "subprocess.Popen[bytes]") -> str:
        """Wait for a command's end; return why it was killed, if it was."""
        try:
            process.wait(self._timeout_s)
        except subprocess.TimeoutExpired:
            kill(process)
            process.wait()
            return f"killed after {self._timeout_s:g} s"
        return ""

    def _finish(self, job: "Job", code: int, why: str) -> None:
        if code == -signal.SIGKILL and self._second_signal:
            job.nack(counts=False)
            complain(f"job {job.id} of {job.topic}: given back")
            return
        if code == 0:
            job.ack()
        elif code == BURY:
            job.bury(error=why)
        elif code == TRY_LATER:
            job.nack(delay=self._retry_after, error=why)
        else:
            job.nack(error=why)
        if code not in DECIDED and carried_out(comes_at_once(job)):
            self._pause.failed()
            if self._is_draining:
                self._failed.add(job.id)
        else:
            self._pause.ended()
        if code not in {0, TRY_LATER}:
            self._has_failed = True
        if code:
            complain(f"job {job.id} of {job.topic}: {why}")


def ended(code: int) -> str:
    """Return how a command ended.

    >>> ended(3), ended(-9)
    ('exit code 3', 'killed by SIGKILL')
    """
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"


@contextlib.contextmanager
def as_file(body: bytes) -> Iterator[int]:
    """Open a file in memory that has the body and is read from its start.

    Writing to a pipe blocks while it is full and another process has its other end open: one that
    the command has left behind, and that never reads.
    """
    with open(os.memfd_create("body"), "w+b") as file:
        file.write(body)
        file.seek(0)
        yield file.fileno()


class LastLine:
    """Passes on what a command writes on standard error, and keeps its last line with words.

    `writes` is for the command; after its start `follow` closes it here.
    """

    def __init__(self) -> None:
        self._reads, self.writes = os.pipe()
        self._line = b""
        self._thread = threading.Thread(target=self._pass_on, daemon=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        if self._thread.is_alive():
            self._thread.join(LAST_LINE_S)
        elif self._thread.ident is None:  # the command could not be started
            os.close(self.writes)
            os.close(self._reads)

    def __str__(self) -> str:
        return self._line.decode(errors="replace").strip()

    def follow(self) -> None:
        """Begin to read; the command has its own end now."""
        os.close(self.writes)
        self._thread.start()

    def _pass_on(self) -> None:
        began = b""
        while text := os.read(self._reads, CHUNK_BYTES):
            with contextlib.suppress(OSError):
                os.write(2, text)
            *whole, began = (began + text).split(b"\n")
            began = began[:LINE_BYTES_MAX]
            filled = [line for line in [*whole, began] if line.strip()]
            self._line = filled[-1][:LINE_BYTES_MAX] if filled else self._line
        os.close(self._reads)


def kill(process: subprocess.Popen[bytes] | None) -> None:
    """Kill a command and all processes of its session."""
    if process is not None and process.poll() is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
