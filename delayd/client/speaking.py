"""What is spoken at an address."""

from delayd.client.addresses import Address
from delayd.client.http1 import HttpWire
from delayd.client.http_calls import HttpCalls
from delayd.client.wires import Wire


def spoken_at(address: Address, token: str) -> tuple[HttpCalls, Wire]:
    """Return the operations and the protocol of an address."""
    if address.speaks == "line":
        raise ValueError(f"{address.url}: this client speaks HTTP")
    return HttpCalls(), HttpWire(address.authority, token)
