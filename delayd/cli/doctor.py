"""`delayd doctor`: problems of this machine for a daemon, and what to do about them."""

import os
from typing import TYPE_CHECKING

import click

from delayd.cli.config import CONFIG_OPTION
from delayd.cli.connect import OPTIONS, client, exit_of, explained, url_of
from delayd.cli.parameters import takes
from delayd.cli.tables import print_json
from delayd.cli.terminal import coloured, examples, load_config, print_lines, require_psycopg
from delayd.client.errors import DelaydError
from delayd.exits import Exit
from delayd.text import visible

if TYPE_CHECKING:
    from collections.abc import Iterator

    from delayd.cli.diagnosis import Finding

OF_MAKE_RUN = "data"


@click.command(
    epilog=examples(
        "delayd doctor",
        "delayd doctor --url http://127.0.0.1:11301 --data-dir ./data",
        "sudo -u delayd delayd doctor --config /etc/delayd/delayd.toml",
        "delayd doctor --json | jq 'select(.level != \"ok\")'",
    )
)
@CONFIG_OPTION
@click.option("--data-dir", metavar="DIR", help="The directory of the jobs.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object for each finding.")
@takes(*OPTIONS)
def doctor(
    path: str | None,
    data_dir: str | None,
    url: str | None,
    line: str | None,
    token_file: object,
    ca_file: str | None,
    *,
    as_json: bool,
) -> int:
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
    found = findings(machine(config, path), config)
    if config.postgres_url is not None:
        require_psycopg("postgres.url", Exit.BAD_CONFIGURATION)
        from delayd.cli.database_diagnosis import database_findings

        found[:0] = database_findings(config)
    elif not os.path.isdir(str(config.data_dir)):
        found[:0] = of_make_run()
    if url is not None or line is not None:
        found += daemon_findings(url, line, token_file, ca_file)
    if as_json:
        print_json(
            {"level": level, "subject": subject, "said": text, "advice": advice}
            for level, subject, text, advice in found
        )
    else:
        colours = {Severity.OK: "green", Severity.WARNING: "yellow", Severity.WRONG: "red"}
        width = max(len(finding.subject) for finding in found)
        lines = []
        for finding in found:
            level = coloured(f"{finding.level:<7}", colours.get(finding.level))
            lines.append(f"{level}  {finding.subject:<{width}}  {visible(finding.text)}")
            if finding.advice:
                lines.append(f"{'':7}  {'':{width}}  -> {visible(finding.advice)}")
        print_lines(lines)
    is_wrong = any(finding.level is Severity.WRONG for finding in found)
    return Exit.BAD_CONFIGURATION if is_wrong else Exit.OK


def of_make_run() -> "Iterator[Finding]":
    """Name the directory of `make run`, if the configured one does not exist."""
    from delayd.cli.diagnosis import Finding, Severity

    if os.path.isfile(os.path.join(OF_MAKE_RUN, "lock")):
        there = os.path.abspath(OF_MAKE_RUN)
        advice = f"delayd doctor --data-dir {OF_MAKE_RUN}"
        yield Finding(Severity.NOTE, "data directory", f"{there} is one, and not looked at", advice)


def daemon_findings(
    url: str | None, line: str | None, token_file: object, ca_file: str | None
) -> "Iterator[Finding]":
    """Ask the daemon whether it accepts jobs."""
    from delayd.cli.diagnosis import Finding, Severity

    subject = "the daemon"
    try:
        with client(url, line, token_file, ca_file) as daemon:
            health = daemon.health()
    except DelaydError as error:
        level = Severity.NOTE if exit_of(error) == Exit.NOT_ALLOWED else Severity.WRONG
        yield Finding(level, subject, *list(explained(error))[:2])
        return
    where = url_of(url, line)
    if health.is_ready:
        yield Finding(Severity.OK, subject, f"takes jobs at {where}")
    else:
        yield Finding(Severity.WARNING, subject, f"takes no jobs at {where}: {health.reason}")
