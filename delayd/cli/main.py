"""`delayd`: the command with its subcommands.

A subcommand reads the command line, the environment and the configuration once, calls the one thing
that does the work, and returns an exit code of `delayd/exits.py`. Each is a function in a module of
this package, found by the table `SECTIONS` and imported when it is called: neither another command
nor the list of all of them waits for what it needs.
"""

import sys
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import click

from delayd import __version__
from delayd.cli.terminal import CommandFailed, cannot_write, complain, complete
from delayd.exits import Exit
from delayd.text import did_you_mean, visible

INTERRUPTED: Final = 128 + 2  # how shells report a process that ended by Ctrl-C

PRINTED_BY_CLICK: Final = frozenset(("-h", "--help", "--version"))
"""Flags that click answers itself, before any command runs; it raises errors of the output."""


class Subcommand(NamedTuple):
    """Where a command is, and its line in the list of all of them."""

    module: str
    """Of delayd.cli; the function in it has the command's name, with `_` for `-`."""
    help: str


SECTIONS: Final[Mapping[str, Mapping[str, Subcommand]]] = {
    "Jobs": {
        "put": Subcommand("put", "Put a job into TOPIC: BODY, a file, or standard input."),
        "schedule": Subcommand("schedule", "Recurring jobs: every night, every 15 minutes."),
        "jobs": Subcommand("jobs", "List jobs in the order in which they are due."),
        "find": Subcommand("jobs", "Find the jobs that have KEY, in all topics and states."),
        "peek": Subcommand("jobs", "Show a job with its body, and why it failed if it did."),
        "change": Subcommand("jobs", "Change a waiting or buried job in one step."),
        "reschedule": Subcommand("jobs", "Give waiting jobs another time."),
        "kick": Subcommand("jobs", "Make delayed or buried jobs ready now."),
        "cancel": Subcommand("jobs", "Delete jobs that wait or are buried."),
        "dead": Subcommand("dead", "Dead letters: list, group by reason, redrive, export."),
    },
    "Work": {
        "reserve": Subcommand("reserve", "Reserve the most urgent ready job and print its body."),
        "ack": Subcommand("reserve", "Acknowledge jobs: they are done and deleted."),
        "nack": Subcommand("reserve", "Report that the attempt failed."),
        "touch": Subcommand("reserve", "Extend reservations by a full ttr from now."),
        "work": Subcommand("work", "Run a command for each job, its body on standard input."),
        "worker": Subcommand("worker", "Work on the tasks of a Python program."),
        "relay": Subcommand("relay", "Put what an application has committed to its outbox."),
        "bury": Subcommand("reserve", "Set jobs aside until they are kicked or redriven."),
    },
    "Topics": {
        "topics": Subcommand("topics", "List the topics with their jobs by state."),
        "group": Subcommand("groups", "The groups of a topic's jobs: list, show, pause, resume."),
        "calendar": Subcommand("calendar", "Show how many delayed jobs come due when."),
        "policy": Subcommand("policy", "List, show, set and remove the policies of topics."),
        "pause": Subcommand("topics", "Hand out no jobs of a topic for a while."),
        "resume": Subcommand("topics", "End the pause of a topic, or of several."),
        "clear": Subcommand("topics", "Delete every job of a topic that is not reserved."),
    },
    "The daemon": {
        "serve": Subcommand("serve", "Run the daemon until it is stopped."),
        "stats": Subcommand("stats", "Show the daemon's figures."),
        "top": Subcommand("top", "Watch topics, rates, lateness and what comes due, live."),
        "handover": Subcommand("handover", "Have a standby take over from the daemon."),
        "config": Subcommand("config", "Check and show the configuration."),
        "doctor": Subcommand(
            "doctor", "Look for what is wrong on this machine, and say what to do."
        ),
        "token": Subcommand("token", "Create, list and revoke the tokens of clients."),
        "secret": Subcommand(
            "secret", "Create and exchange the secrets that calls are signed with."
        ),
        "push": Subcommand("push", "Test the calls that deliver jobs."),
        "journal": Subcommand("journal", "Inspect a journal, copy it, or cut it by hand."),
        "import-beanstalkd": Subcommand(
            "import_beanstalkd", "Import the jobs of a stopped beanstalkd."
        ),
    },
    "To begin with": {
        "demo": Subcommand("demo", "Show what delayd does, in seconds, on a virtual clock."),
        "bench": Subcommand("bench", "Measure delayd on this machine, with a throw-away daemon."),
    },
    "This program": {
        "completion": Subcommand(
            "completion", "Print the completion script for a SHELL: bash, zsh or fish."
        ),
        "version": Subcommand("version", "Show the versions of delayd and Python."),
    },
}
"""All commands, in the order of the help."""

COMMANDS: Final = {
    name: subcommand for section in SECTIONS.values() for name, subcommand in section.items()
}


OTHERS_NAMES: Final = {
    "help": "delayd --help, or delayd COMMAND --help",
    **dict.fromkeys(("ls", "list", "scheduled"), "delayd jobs, or delayd topics"),
    **dict.fromkeys(("rm", "remove", "delete", "del"), "delayd cancel, or delayd clear TOPIC"),
    "revoke": "delayd cancel, or delayd token revoke ID",
    **dict.fromkeys(("start", "run", "daemon", "server"), "delayd serve"),
    **dict.fromkeys(("status", "info", "inspect"), "delayd stats, delayd top, or delayd peek ID"),
    **dict.fromkeys(("add", "enqueue", "publish", "send", "produce"), "delayd put"),
    **dict.fromkeys(("consume", "get"), "delayd work, or delayd reserve"),
    "purge": "delayd clear TOPIC",
    "groups": "delayd group list TOPIC",
    **dict.fromkeys(("cron", "crontab", "every", "repeat", "beat"), "delayd schedule"),
}
"""Names of commands in other programs, with delayd's for the same."""
NEAR: Final = 0.65
"""How similar a mistyped name must be to a command for a hint."""


class Commands(click.Group):
    """The subcommands, each imported when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's
        """Return all names, in the order of the help."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command of that name, if there is one."""
        import importlib

        if cmd_name not in COMMANDS:
            return super().get_command(ctx, cmd_name)
        module = importlib.import_module(f"delayd.cli.{COMMANDS[cmd_name].module}")
        command: click.Command = getattr(module, cmd_name.replace("-", "_"))
        if sys.flags.optimize > 1:
            _restore_help(command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that is called; a wrong name fails with a hint at the nearest."""
        name = args[0]
        if name not in COMMANDS and not name.startswith("-") and not ctx.resilient_parsing:
            known = OTHERS_NAMES.get(name)
            hint = f"; use {known}" if known else did_you_mean(name, COMMANDS, cutoff=NEAR)
            ctx.fail(f"there is no command {name!r}{hint}")
        return super().resolve_command(ctx, args)

    def shell_complete(
        self, ctx: click.Context, incomplete: str
    ) -> "list[click.shell_completion.CompletionItem]":
        """Return the names and flags that begin so, with their lines of help."""
        from click.shell_completion import CompletionItem

        names = [
            CompletionItem(name, help=subcommand.help)
            for name, subcommand in COMMANDS.items()
            if name.startswith(incomplete)
        ]
        return names + click.Command.shell_complete(self, ctx, incomplete)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's
        """Write the list, in sections, from the table alone."""
        longest = max(map(len, COMMANDS))
        for section, subcommands in SECTIONS.items():
            with formatter.section(section):
                formatter.write_dl(
                    [(name.ljust(longest), sub.help) for name, sub in subcommands.items()]
                )


def _restore_help(command: click.Command) -> None:
    """Give a command and those below it the help that Python left out with their docstrings."""
    from delayd.build_kind import docstrings_of

    function = command.callback
    if function is not None and command.help is None:
        command.help = docstrings_of(function.__module__).get(function.__name__)
    if isinstance(command, click.Group):
        for below in command.commands.values():
            _restore_help(below)


@click.group(
    cls=Commands,
    help="Keep jobs safe until they are due, then hand them to workers.",
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, message="%(prog)s %(version)s")
def delayd() -> None:
    """Run the subcommand."""


def invoke(words: Sequence[str]) -> int:
    """Run the command line and return its exit code."""
    try:
        return int(delayd.main(args=list(words), prog_name="delayd", standalone_mode=False) or 0)
    except click.ClickException as wrong:
        vars(wrong)["message"] = visible(wrong.message, keeps="\n\t")  # it quotes the arguments
        wrong.show()
        return Exit.USAGE
    except click.Abort:
        return INTERRUPTED
    except CommandFailed as failed:
        return failed.complain()
    except OSError as error:
        if PRINTED_BY_CLICK.isdisjoint(words):
            raise
        unwritten = cannot_write(error)
        complain(str(unwritten))
        return unwritten.exit_code
    except SystemExit:
        return Exit.OK  # click ends with 1 when the reader of its help stops early


def main() -> None:
    """Run the command."""
    complete()
    sys.exit(invoke(sys.argv[1:]))
