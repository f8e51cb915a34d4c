"""The protocol of a url: its operations, and the way to the daemon."""

from typing import TYPE_CHECKING

from delayd.client.addresses import HTTP_PORT, Address, read_address
from delayd.client.connection_pool import Way, Wire
from delayd.client.limits import ANSWER_BYTES_MAX
from delayd.client.values import Duration, seconds

if TYPE_CHECKING:
    import ssl

    from delayd.client.http_calls import HttpCalls
    from delayd.client.line_calls import LineCalls


def way_to(
    url: str,
    token: str,
    tls: "ssl.SSLContext | None",
    timeout: Duration,
    patience: Duration,
    answer_bytes_max: int = ANSWER_BYTES_MAX,
) -> tuple["HttpCalls | LineCalls", Way]:
    """Return the operations for a url, and the way there. Raises ValueError for a wrong url."""
    address = read_address(url)
    calls, wire = _spoken_at(address, token, answer_bytes_max)
    return calls, Way(address, wire, tls, seconds(timeout), seconds(patience))


def _spoken_at(
    address: Address, token: str, answer_bytes_max: int
) -> tuple["HttpCalls | LineCalls", Wire]:
    """Return the operations and the protocol of an address; the other protocol is not imported."""
    if address.speaks == "http":
        from delayd.client.http1 import HttpWire  # noqa: PLC0415 - see above
        from delayd.client.http_calls import HttpCalls  # noqa: PLC0415

        return HttpCalls(), HttpWire(address, token, answer_bytes_max)
    from delayd.client.beanstalk import LineWire  # noqa: PLC0415 - see above
    from delayd.client.line_calls import LineCalls  # noqa: PLC0415

    scheme = "https" if address.is_tls else "http"
    http = Address("http", address.host or "127.0.0.1", HTTP_PORT)
    return LineCalls(f"{scheme}://{http.authority}"), LineWire(address, token, answer_bytes_max)
