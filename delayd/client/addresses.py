"""The address of a daemon, as a url: its scheme names the protocol.

    http://127.0.0.1:11301    https://queue.example    http+unix:/run/delayd/http.sock
    beanstalk://127.0.0.1     beanstalks://queue.example:11300     unix:/run/delayd/line.sock

Daemons that share a log (docs/two-machines.md) have several, of which one serves at a time.

>>> read_address("beanstalk://127.0.0.1")
Address(speaks='line', host='127.0.0.1', port=11300, path='', is_tls=False)
>>> read_address("http://[::1]:8080").url
'http://[::1]:8080'
"""

import re
from collections.abc import Sequence
from types import MappingProxyType
from typing import Final, Literal, NamedTuple

Protocol = Literal["http", "line"]

HTTP_PORT: Final = 11301
LINE_PORT: Final = 11300
DEFAULT_URL: Final = f"http://127.0.0.1:{HTTP_PORT}"
ADDRESSES_MAX: Final = 16
"""Of one client. Daemons that share a log are two or three; each may cost a wait to connect."""

_SCHEMES: Final = MappingProxyType(
    {
        "http": ("http", HTTP_PORT, False),
        "https": ("http", 443, True),
        "beanstalk": ("line", LINE_PORT, False),
        "beanstalks": ("line", LINE_PORT, True),
    }
)
_SOCKETS: Final = MappingProxyType({"http+unix": "http", "unix": "line"})
# `re` compiles them at their first use, and keeps them; so elsewhere in this package.
_PLACE: Final = r"([\w+]+)://(?:\[([0-9A-Fa-f:.%\w]+)\]|([^/:@?#,\[\]]+))(?::(\d{1,5}))?/?"
_BETWEEN: Final = r",\s*(?=[\w+]+:)"
_FILE: Final = r"([\w+]+):(?://)?(/.+)"
_RULE: Final = (
    "must be http://HOST:PORT, https://HOST, beanstalk://HOST:PORT, beanstalks://HOST:PORT,"
    " unix:/PATH or http+unix:/PATH"
)


class Address(NamedTuple):
    """A daemon's address and protocol."""

    speaks: Protocol
    host: str
    port: int
    path: str = ""
    """Of a unix socket; `host` is empty then."""
    is_tls: bool = False

    @property
    def url(self) -> str:
        """The address as `read_address` takes it."""
        if self.path:
            return f"{'http+unix' if self.speaks == 'http' else 'unix'}:{self.path}"
        scheme = ("http" if self.speaks == "http" else "beanstalk") + ("s" if self.is_tls else "")
        return f"{scheme}://{self.authority}"

    @property
    def other(self) -> "Address":
        """The same place with the other protocol, for a hint that the ports were mixed up."""
        return self._replace(speaks="line" if self.speaks == "http" else "http")

    @property
    def authority(self) -> str:
        """Host and port, as a Host header has them."""
        if self.path:
            return "localhost"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def read_address(url: str) -> Address:
    """Read a url. Raises ValueError with the rule.

    >>> read_address("127.0.0.1:11301")
    Traceback (most recent call last):
    ValueError: the url '127.0.0.1:11301' has no scheme: http://127.0.0.1:11301 speaks HTTP, \
beanstalk://127.0.0.1:11301 the line protocol
    """
    if (place := re.fullmatch(_PLACE, url)) and place[1].lower() in _SCHEMES:
        speaks, port, is_tls = _SCHEMES[place[1].lower()]
        port = int(place[4]) if place[4] else port
        if 0 < port < 1 << 16:
            host = place[2] or place[3]
            return Address("http" if speaks == "http" else "line", host, port, is_tls=is_tls)
    if (file := re.fullmatch(_FILE, url)) and file[1] in _SOCKETS:
        return Address("http" if _SOCKETS[file[1]] == "http" else "line", "", 0, file[2])
    if "://" not in url and re.fullmatch(_PLACE, f"http://{url}"):
        schemes = f"http://{url} speaks HTTP, beanstalk://{url} the line protocol"
        raise ValueError(f"the url {url!r} has no scheme: {schemes}")
    raise ValueError(f"the url {_shown(url)!r} {_RULE}")


def read_addresses(urls: str | Sequence[str]) -> tuple[Address, ...]:
    """Read urls of daemons that share a log: a sequence, or one text with commas between them.

    They speak one protocol. A comma in the path of a unix socket is part of the path, unless a
    scheme follows. Raises ValueError with the rule.

    >>> [each.url for each in read_addresses("http://db-1:80, http://db-2:80")]
    ['http://db-1:80', 'http://db-2:80']
    >>> read_addresses(["http://db-1", "unix:/run/line.sock"])
    Traceback (most recent call last):
    ValueError: http://db-1:11301 speaks HTTP and unix:/run/line.sock the line protocol: addresses \
of one client speak the same
    """
    texts = re.split(_BETWEEN, urls) if isinstance(urls, str) else urls
    addresses = tuple(dict.fromkeys(read_address(each.strip()) for each in texts))
    if not 0 < len(addresses) <= ADDRESSES_MAX:
        raise ValueError(f"a client has 1 to {ADDRESSES_MAX} addresses, not {len(addresses)}")
    spoken = {each.speaks: each.url for each in addresses}
    if len(spoken) > 1:
        raise ValueError(
            f"{spoken['http']} speaks HTTP and {spoken['line']} the line protocol: addresses of one"
            " client speak the same"
        )
    return addresses


def _shown(url: str) -> str:
    """Return a url for people; a possible password or query is hidden, with all after it.

    >>> _shown("http://ada:s3cret@host"), _shown("ftp://host")
    ('http://***', 'ftp://host')
    """
    return re.sub(r"((?:[\w+]+://)?).*[@?#].*", r"\1***", url, flags=re.DOTALL)
