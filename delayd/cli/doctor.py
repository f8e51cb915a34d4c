"""`delayd doctor`: what on this machine is wrong for a daemon, and what to do about it."""

import json

import click

from delayd.cli.config import CONFIG_OPTION
from delayd.cli.help import examples
from delayd.cli.terminal import coloured, load_config, print_lines
from delayd.exits import Exit


@click.command(
    epilog=examples(
        "delayd doctor",
        "sudo -u delayd delayd doctor --config /etc/delayd/delayd.toml",
        "delayd doctor --json | jq 'select(.level != \"ok\")'",
    )
)
@CONFIG_OPTION
@click.option("--data-dir", metavar="DIR", help="The directory of the jobs.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object for each finding.")
def doctor(path: str | None, data_dir: str | None, *, as_json: bool) -> int:
    """Look for what is wrong on this machine, and say what to do.

    The configuration, how long the disk takes to sync, limits, the clock source, ports, free space,
    permissions, systemd. Nothing is changed. Run it as the user of the daemon. Exit code 78 if
    anything is wrong that keeps a daemon from starting or from keeping its jobs.
    """
    from delayd.cli.diagnosis import Severity, findings
    from delayd.cli.machine import machine

    config = load_config(path, {"--data-dir": data_dir})
    found = findings(machine(config, path), config)
    if as_json:
        print_lines(json.dumps(finding._asdict()) for finding in found)
    else:
        colours = {Severity.OK: "green", Severity.WARNING: "yellow", Severity.WRONG: "red"}
        width = max(len(finding.subject) for finding in found)
        lines = []
        for finding in found:
            level = coloured(f"{finding.level:<7}", colours.get(finding.level))
            lines.append(f"{level}  {finding.subject:<{width}}  {finding.said}")
            if finding.advice:
                lines.append(f"{'':7}  {'':{width}}  -> {finding.advice}")
        print_lines(lines)
    is_wrong = any(finding.level is Severity.WRONG for finding in found)
    return Exit.BAD_CONFIGURATION if is_wrong else Exit.OK
