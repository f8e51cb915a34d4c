"""`delayd doctor`: problems of this machine for a daemon, and what to do about them."""

import itertools
import os
from typing import TYPE_CHECKING, Any, Final

import click

from delayd.cli.config import CONFIG_OPTION
from delayd.cli.connect import OPTIONS, client, exit_of, explained, url_of
from delayd.cli.parameters import command, takes
from delayd.cli.tables import duration_shown, print_json
from delayd.cli.terminal import coloured, load_config, print_lines, require_psycopg
from delayd.client.errors import DelaydError, Refused
from delayd.exits import Exit
from delayd.text import counted, visible

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from delayd.cli.diagnosis import Finding
    from delayd.client.sync import Client

OF_MAKE_RUN: Final = "data"
SUBJECT_COLUMNS: Final = len("postgres.password_file")
"""As many as the longest subject has."""
HELD: Final = "held"
"""What a topic says that hands out nothing because of its groups."""
HELD_S: Final = 600.0
"""For how long that is nothing to speak of."""
DAEMON_S: Final = 3.0
"""How long a daemon that is away is looked for."""
ANSWER_S: Final = 5.0
"""How long each of its answers may take."""
COLOURS: Final = {"ok": "green", "warning": "yellow", "wrong": "red"}


@command(
    "delayd doctor",
    "delayd doctor --url http://127.0.0.1:11301 --data-dir ./data",
    "sudo -u delayd delayd doctor --config /etc/delayd/delayd.toml",
    "delayd doctor --json | jq 'select(.level != \"ok\")'",
)
@CONFIG_OPTION
@click.option("--data-dir", metavar="DIR", help="The directory of the jobs.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object for each finding.")
@takes(*OPTIONS)
def doctor(path: str | None, data_dir: str | None, *, as_json: bool, **where: Any) -> int:
    """Look for what is wrong on this machine, and say what to do.

    It looks at the configuration, the time of a sync, limits, the clock source, ports, free space,
    permissions, systemd; or the database of postgres.url in place of the disk. Nothing is changed.
    Run it as the user of the daemon. With --url, --line or DELAYD_URL the daemon there is asked,
    too. Exit code 78 if anything is wrong that keeps a daemon from starting or from keeping its
    jobs.
    """
    from delayd.cli.diagnosis import Severity, findings
    from delayd.cli.machine import machine

    config = load_config(path, {"--data-dir": data_dir})
    found: list[Iterable[Finding]] = []
    if config.postgres_url is None and not os.path.isdir(str(config.data_dir)):
        found.append(of_make_run())
    found.append(findings(machine(config, path), config))
    if config.postgres_url is not None:
        require_psycopg("postgres.url", Exit.BAD_CONFIGURATION)
        from delayd.cli.database_diagnosis import database_findings

        found.append(database_findings(config))
    wrong: set[str] = set()
    if where["url"] is not None or where["line"] is not None:
        found.append(daemon_findings(where, wrong))
    for finding in itertools.chain.from_iterable(found):
        if finding.level is Severity.WRONG:
            wrong.add(finding.subject)
        show(finding, as_json=as_json)  # what is still to be asked may be away
    return Exit.BAD_CONFIGURATION if wrong else Exit.OK


def show(finding: "Finding", *, as_json: bool) -> None:
    """Print a finding, at once."""
    level, subject, text, advice = finding
    if as_json:
        print_json([{"level": level, "subject": subject, "said": text, "advice": advice}])
        return
    written = coloured(f"{level:<7}", COLOURS.get(level))
    lines = [f"{written}  {subject:<{SUBJECT_COLUMNS}}  {visible(text)}"]
    if advice:
        lines.append(f"{'':7}  {'':{SUBJECT_COLUMNS}}  -> {visible(advice)}")
    print_lines(lines)


def of_make_run() -> "Iterator[Finding]":
    """Name the directory of `make run`, if the configured one does not exist."""
    from delayd.cli.diagnosis import note

    if os.path.isfile(os.path.join(OF_MAKE_RUN, "lock")):
        there = os.path.abspath(OF_MAKE_RUN)
        advice = f"delayd doctor --data-dir {OF_MAKE_RUN}"
        text = f"{there} is a data directory too, and was not examined"
        yield note("data directory", text, advice)


def daemon_findings(options: dict[str, Any], wrong: set[str]) -> "Iterator[Finding]":
    """Ask the daemon how it is; `wrong` are subjects of which something is wrong."""
    from delayd.cli.diagnosis import Finding, Severity, ok, warning

    subject = "the daemon"
    try:
        with client(**options, patience_s=DAEMON_S, answer_s=ANSWER_S) as daemon:
            health, held = daemon.health(), held_findings(daemon)
    except DelaydError as error:
        level = Severity.NOTE if exit_of(error) == Exit.NOT_ALLOWED else Severity.WRONG
        yield Finding(level, subject, *list(explained(error))[:2])
        return
    where = url_of(options["url"], options["line"])
    if health.is_ready and "database" in wrong:  # its lease is not over yet
        text = f"says that it takes jobs at {where}, but the database cannot be used from here"
        yield warning(subject, text, "see what is said of the database")
    elif health.is_ready:
        yield ok(subject, f"takes jobs at {where}")
    else:
        yield warning(subject, f"takes no jobs at {where}: {health.reason}")
    yield from held


def held_findings(daemon: "Client") -> "list[Finding]":
    """Look for topics that have long handed out nothing because of the limits of their groups."""
    from delayd.cli.diagnosis import warning

    try:
        topics = daemon.topics()
    except Refused:  # the token is not for that
        return []
    held = [
        (age_s, topic.name)
        for topic in topics
        if isinstance(blocks := topic.details.get("blocks"), list)
        if HELD in blocks and (age_s := topic.oldest_ready_age or 0.0) >= HELD_S
    ]
    if not held:
        return []
    age_s, name = max(held)
    text = (
        f"all groups of {name} are held back, and a job has been ready for {duration_shown(age_s)}"
    )
    if others := len(held) - 1:
        text += f"; {counted(others, 'other topic')} too"
    return [warning("groups", text, f"delayd group list {name} says by what")]
