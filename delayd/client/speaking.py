"""What is spoken at an address: the operations, and how their bytes travel."""

from typing import TYPE_CHECKING

from delayd.client.addresses import HTTP_PORT, Address
from delayd.client.wires import Wire

if TYPE_CHECKING:
    from delayd.client.http_calls import HttpCalls
    from delayd.client.line_calls import LineCalls


def spoken_at(address: Address, token: str) -> tuple["HttpCalls | LineCalls", Wire]:
    """Return the operations and the protocol of an address; the other protocol is not imported."""
    if address.speaks == "http":
        from delayd.client.http1 import HttpWire  # noqa: PLC0415 - see above
        from delayd.client.http_calls import HttpCalls  # noqa: PLC0415

        return HttpCalls(), HttpWire(address, token)
    from delayd.client.beanstalk import LineWire  # noqa: PLC0415 - see above
    from delayd.client.line_calls import LineCalls  # noqa: PLC0415

    scheme = "https" if address.is_tls else "http"
    http = Address("http", address.host or "127.0.0.1", HTTP_PORT)
    return LineCalls(f"{scheme}://{http.authority}"), LineWire(address, token)
