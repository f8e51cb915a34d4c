"""The protocol of urls: its operations, and the way to the daemon."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from delayd.client.addresses import HTTP_PORT, Address, read_addresses
from delayd.client.attempts import Place, Way, Wire
from delayd.client.errors import wrong
from delayd.client.limits import ANSWER_BYTES_MAX
from delayd.client.values import SECONDS_MAX, Duration, seconds

if TYPE_CHECKING:
    import ssl

    from delayd.client.http_calls import HttpCalls
    from delayd.client.line_calls import LineCalls


def way_to(
    url: str | Sequence[str],
    token: str,
    tls: "ssl.SSLContext | None",
    timeout: Duration,
    patience: Duration,
    answer_bytes_max: int = ANSWER_BYTES_MAX,
) -> tuple["HttpCalls | LineCalls", Way]:
    """Return the operations for urls, and the way there. Raises ValueError for what is wrong."""
    addresses = read_addresses(url)
    timeout_s, patience_s = seconds(timeout, "timeout"), seconds(patience, "patience")
    if not 0 < timeout_s <= SECONDS_MAX:
        raise wrong("timeout", f"must be more than 0, up to {SECONDS_MAX} s")
    if not 0 <= patience_s <= SECONDS_MAX:
        raise wrong("patience", f"must be from 0 to {SECONDS_MAX} s")
    if tls is not None and not hasattr(tls, "wrap_socket"):
        raise wrong("tls", "must be an ssl.SSLContext")
    places = [Place(each, _wire(each, token, answer_bytes_max)) for each in addresses]
    return _calls(addresses[0]), Way(places, tls, timeout_s, patience_s)


def _calls(address: Address) -> "HttpCalls | LineCalls":
    """Return the operations of an address; the other protocol is not imported."""
    if address.speaks == "http":
        from delayd.client.http_calls import HttpCalls  # noqa: PLC0415 - see above

        return HttpCalls()
    from delayd.client.line_calls import LineCalls  # noqa: PLC0415 - see above

    scheme = "https" if address.is_tls else "http"
    http = Address("http", address.host or "127.0.0.1", HTTP_PORT)
    return LineCalls(f"{scheme}://{http.authority}")


def _wire(address: Address, token: str, answer_bytes_max: int) -> Wire:
    """Return the protocol of an address, as `_calls` does."""
    if address.speaks == "http":
        from delayd.client.http1 import HttpWire  # noqa: PLC0415 - see above

        return HttpWire(address, token, answer_bytes_max)
    from delayd.client.beanstalk import LineWire  # noqa: PLC0415 - see above

    return LineWire(address, token, answer_bytes_max)
