"""`delayd demo`: three examples on a daemon of its own, which is removed afterwards.

The daemon is the real one, on a virtual clock: hours pass in milliseconds. The commands that are
shown do the same on any daemon; here it is done with `delayd.client`.
"""

import signal
from typing import TYPE_CHECKING

from delayd.cli.connect import client_errors
from delayd.cli.parameters import command
from delayd.cli.terminal import CommandFailed, coloured, print_lines
from delayd.client.signals import handled
from delayd.exits import Exit

if TYPE_CHECKING:
    from delayd.client.sync import Client, Job

LADDER = "15s 3m 10m"


@command("delayd demo")
def demo() -> None:
    """Show what delayd does, in seconds: an order, a cancelled one, a notification's retries.

    Starts a daemon with a virtual clock and a directory of its own, and removes both at the end.
    """
    from delayd.client.sync import Client
    from delayd.testing.daemon import DaemonNotStarted, running_daemon

    interrupts = handled(signal.default_int_handler, signal.SIGTERM)  # its daemon would go on
    try:
        with interrupts, running_daemon("--http", "127.0.0.1:0", clock="virtual") as daemon:
            stage = Stage()
            stage.says(
                f"A daemon of its own runs as process {daemon.pid}. Its clock stands still until it"
                " is advanced by the demo, so that there is no waiting."
            )
            with client_errors(), Client(f"http://{daemon.http_listens_on}") as client:
                unpaid_order(stage, client)
                paid_order(stage, client)
                notification(stage, client)
            stage.says(
                "The daemon ends, and its directory is removed. A daemon of your own:",
                "",
                "    delayd serve --data-dir data",
                "",
                "`delayd --help` lists all commands; docs/cli.md has an example of each.",
            )
    except DaemonNotStarted as error:
        raise CommandFailed(Exit.OUR_FAULT, str(error)) from error


class Stage:
    """Prints the examples."""

    def says(self, *lines: str) -> None:
        """Print an explanation."""
        print_lines(["", *lines])

    def title(self, text: str) -> None:
        """Print the title of an example."""
        print_lines(["", coloured(f"-- {text} ", "cyan").rstrip()])

    def types(self, command: str, answer: object = "") -> None:
        """Print a command and its output."""
        prompt = coloured("$", "green")
        lines = [f"  {prompt} {command}", *([f"    {answer}"] if answer != "" else [])]
        print_lines(lines)

    def passes(self, client: "Client", duration: str) -> None:
        """Advance the clock."""
        now = client.advance_clock(duration)
        print_lines([coloured(f"  ... {duration} later: it is {now:%H:%M:%S}", "yellow")])


def unpaid_order(stage: Stage, client: "Client") -> None:
    """Show an order that is not paid, and closed after half an hour."""
    stage.title("1. An order that is not paid is closed after 30 minutes")
    stage.says(
        "With the order a job is put, under the order's name and due in 30 minutes. When the",
        "command ends, the job is on disk: it would survive a kill and a power cut.",
    )
    put = client.put("orders", "close order 17", delay="30m", key="order-17")
    stage.types("delayd put orders 'close order 17' --delay 30m --key order-17", put.id)
    stage.passes(client, "29m59s")
    stage.types("delayd reserve orders", nothing(client, "orders"))
    stage.passes(client, "1s")
    job = client.reserve("orders", timeout=0)
    stage.types("delayd reserve orders", job.text)
    stage.says("On the second, not before it. The worker closes the order and acknowledges:")
    job.ack()
    stage.types(f"delayd ack {job.token}")


def paid_order(stage: Stage, client: "Client") -> None:
    """Show an order that is paid, which cancels its job by the key."""
    stage.title("2. An order that is paid cancels its job")
    put = client.put("orders", "close order 18", delay="30m", key="order-18")
    stage.types("delayd put orders 'close order 18' --delay 30m --key order-18", put.id)
    stage.passes(client, "10m")
    stage.says("The customer pays. Nobody has to remember the job's number: the key is enough.")
    client.cancel("orders", "order-18")
    stage.types("delayd cancel --topic orders --key order-18", "cancelled: 1 job")
    stage.passes(client, "1h")
    stage.types("delayd reserve orders", nothing(client, "orders"))


def notification(stage: Stage, client: "Client") -> None:
    """Show a notification that is retried along its ladder, and then kept with its error."""
    stage.title("3. A notification is tried again, and never lost")
    stage.says("Retries are a policy of the topic, not code of the worker:")
    client.set_policy("notices", {"retry": LADDER})
    stage.types(f"delayd policy set notices retry='{LADDER}'")
    put = client.put("notices", "order 17 was closed")
    stage.types("delayd put notices 'order 17 was closed'", put.id)
    for step in LADDER.split():
        fails(stage, client)
        stage.passes(client, step)
    fails(stage, client)
    stage.says("After the last step the job is set aside as a dead letter, with the reason:")
    (dead,) = client.dead_letters("notices")
    assert dead.failure is not None
    stage.types(
        "delayd dead list notices", f"{dead.id}  {dead.attempts} attempts  {dead.failure.error}"
    )
    stage.says("The mail server is back. The job gets another chance, and succeeds:")
    client.redrive("notices")
    stage.types("delayd dead redrive notices", "redriven: 1 job")
    job = client.reserve("notices", timeout=0)
    job.ack()
    stage.types("delayd reserve notices --ack", job.text)


def fails(stage: Stage, client: "Client") -> None:
    """Reserve the notification, and report that it failed."""
    job: Job = client.reserve("notices", timeout=0)
    became = client.nack(job, error="no route to host")
    until = "" if became.due is None else f" until {became.due:%H:%M:%S}"
    stage.types(
        f"delayd nack {job.token} --error 'no route to host'   # attempt {job.attempt}",
        f"{job.id} {became.state}{until}",
    )


def nothing(client: "Client", topic: str) -> str:
    """Return the message of a reserve without a ready job, after making sure that there is none."""
    jobs = client.reserve_many(topic, limit=1, timeout=0)
    assert not jobs, jobs
    return f"no job of {topic} was ready in time"
