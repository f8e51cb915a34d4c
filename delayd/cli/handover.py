"""`delayd handover`: have a standby take over from the daemon, for an update of its machine."""

from typing import TYPE_CHECKING

from delayd.cli.connect import with_client
from delayd.cli.parameters import command
from delayd.cli.tables import JSON_OPTION, print_answer
from delayd.text import visible

if TYPE_CHECKING:
    from delayd.client.sync import Client


@command("delayd handover", "delayd handover --url http://db-a:11301")
@JSON_OPTION
@with_client
def handover(client: "Client", *, as_json: bool) -> None:
    """Have a standby take over from the daemon, whose log is in a database.

    The daemon stops gracefully, with exit code 80: where systemd starts it again, it stands by. It
    refuses if no standby follows the log, or if the best one is seconds behind.
    """
    standby = client.hand_over()
    print_answer({"standby": standby}, f"handed over to {visible(standby)}", as_json=as_json)
