"""What is spoken at an address: the operations, and how their bytes travel."""

from delayd.client.addresses import HTTP_PORT, Address
from delayd.client.beanstalk import LineWire
from delayd.client.http1 import HttpWire
from delayd.client.http_calls import HttpCalls
from delayd.client.line_calls import LineCalls
from delayd.client.wires import Wire


def spoken_at(address: Address, token: str) -> tuple[HttpCalls | LineCalls, Wire]:
    """Return the operations and the protocol of an address."""
    if address.speaks == "http":
        return HttpCalls(), HttpWire(address.authority, token)
    scheme = "https" if address.is_tls else "http"
    http = Address("http", address.host or "127.0.0.1", HTTP_PORT)
    return LineCalls(f"{scheme}://{http.authority}"), LineWire(token)
