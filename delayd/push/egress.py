"""The rules of calls: for a url when it is set, and for an address at each connection.

A url is text from a client, which a daemon inside a network is to call (SSRF). So there are two
checks. `vet_url` reads the text strictly, and returns the one form in which the url is kept and
called; texts that two programs could read in two ways are refused. `vet_address` checks the very
address of a connection, because a name may have another address a second later.

    https://Hooks.Example.com:443/a?b  ─ vet_url ─►  https://hooks.example.com/a?b
    hooks.example.com ─ DNS ─► 10.0.0.7 ─ vet_address ─►  refused: it is private

Public addresses may be called; others if `private_networks` has them. Some never may: addresses
that are not of one machine, those at which clouds serve credentials, and those at which the daemon
itself listens. An IPv6 address that contains an IPv4 one must pass as both.

>>> rules = EgressRules()
>>> rules.vet_url("HTTPS://Hooks.Example.com:443?a=b")
'https://hooks.example.com/?a=b'
>>> rules.vet_address("10.0.0.7", 443, "hooks.example.com")
Traceback (most recent call last):
    ...
delayd.push.egress.AddressRefused: the address 10.0.0.7 of hooks.example.com is private: [push] \
private_networks would have to allow it

The module does not know how names are looked up and connections are made (`push.connections`).
"""

import contextlib
import re
import socket
from collections.abc import Callable, Iterable
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final, NamedTuple, final

from delayd.core.name_patterns import Matcher
from delayd.limits import HOSTS_MATCHED_MAX, TARGET_URL_BYTES_MAX
from delayd.net.addresses import TcpAddress
from delayd.push.special_addresses import IpAddress, IpNetwork, contained, special

DEFAULT_PORTS: Final = {"https": 443, "http": 80}

# --- Rules of a url ------------------------------------------------------------------------------

FORM_RULE: Final = "must be https://HOST/PATH"
LENGTH_RULE: Final = f"must have at most {TARGET_URL_BYTES_MAX} bytes"
CHARACTERS_RULE: Final = (
    "must have nothing but the characters of a url: others are percent-encoded, in the host too"
)
HTTP_RULE: Final = "must be https: [push] allow_http would have to be true"
USER_RULE: Final = "must have no user and no password: send them in a header"
FRAGMENT_RULE: Final = "must have no fragment (#): it would never be sent"
HOST_RULE: Final = "must have a host by name, such as hooks.example.com"
NUMBER_RULE: Final = (
    "must have a host by name, or an address written as 203.0.113.7 or [2001:db8::7]"
)
PORT_RULE: Final = "must have a port from 1 to 65535 after the colon"

_URL: Final = re.compile(r"(https?)://([^/?#]*)([^?#]*)(\?[^#]*)?(#.*)?", re.IGNORECASE | re.DOTALL)
_TAIL: Final = re.compile(r"[A-Za-z0-9\-._~!$&'()*+,;=:@%/?\[\]|]*")
"""A path with its query (RFC 3986), and `[`, `]`, `|`, which many have."""
_LABEL: Final = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)")
_NUMERIC: Final = re.compile(r"[0-9]+|0x[0-9a-f]*")
"""A last label that makes a host an address: `127.1`, `0x7f000001` (url.spec.whatwg.org)."""
_HOST_CHARACTERS_MAX: Final = 253

# --- Addresses that are not public ---------------------------------------------------------------

NEVER: Final = "it may never be called"
MUST_ALLOW: Final = "[push] private_networks would have to allow it"

_NEVER: Final = tuple(
    (ip_network(network), word)
    for network, word in (
        ("0.0.0.0/8", "unspecified"),
        ("224.0.0.0/4", "of a group (multicast)"),
        ("255.255.255.255/32", "of everybody (broadcast)"),
        ("::/128", "unspecified"),
        ("ff00::/8", "of a group (multicast)"),
        *(
            (address, "where a cloud hands out credentials")
            for address in (
                *("169.254.169.254/32", "169.254.169.253/32", "169.254.170.2/32"),
                *("169.254.170.23/32", "100.100.100.200/32", "168.63.129.16/32"),
                *("192.0.0.192/32", "fd00:ec2::254/128", "fd00:ec2::253/128"),
                *("fd00:ec2::23/128", "fd20:ce::254/128"),
            )
        ),
    )
)
_LOCALHOST: Final[tuple[IpAddress, ...]] = (IPv4Address("127.0.0.1"), IPv6Address("::1"))
_IPV4_COMPATIBLE: Final = IPv6Network("::/96")
_IPV4_TRANSLATED: Final = IPv6Network("::ffff:0:0:0/96")


class AddressRefused(OSError):
    """An address may not be connected to; the message is a sentence that names it and the rule."""


class _Url(NamedTuple):
    scheme: str
    host: str
    """Without brackets."""
    port: int
    tail: str
    """Path and query."""

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        port = "" if self.port == DEFAULT_PORTS[self.scheme] else f":{self.port}"
        return f"{self.scheme}://{host}{port}{self.tail}"


@final
class EgressRules:
    """The rules of `[push]` in the configuration."""

    def __init__(
        self,
        *,
        hosts: Iterable[str] = ("*",),
        private_networks: Iterable[IpNetwork] = (),
        allow_http: bool = False,
        ports: Iterable[int] = (443,),
        own: Iterable[TcpAddress] = (),
        is_here: Callable[[str], bool] | None = None,
    ) -> None:
        """Take the values of `[push]`, and the addresses at which the daemon listens.

        `is_here` tells whether this machine has an address.
        """
        self._named = frozenset(host.lower() for host in hosts)
        self._hosts = Matcher(self._named, known_max=HOSTS_MATCHED_MAX)
        self._networks = tuple(private_networks)
        self.allow_http = allow_http
        self._ports = frozenset(ports) | ({80} if allow_http else set())
        self._own = tuple(own)
        self._is_here = is_here or _is_here

    def vet_url(self, url: str) -> str:
        """Return the url in the form in which it is kept and called.

        Raises `ValueError`, whose message is the rule that it breaks.
        """
        read = _read_url(url)
        if read.scheme != "https" and not self.allow_http:
            raise ValueError(HTTP_RULE)
        if read.port not in self._ports:
            allowed = ", ".join(map(str, sorted(self._ports)))
            raise ValueError(f"must have a port of [push] ports ({allowed}), not {read.port}")
        if self._hosts.first(read.host) < 0:
            raise ValueError(f"must have a host that [push] hosts allows: {read.host} is not there")
        address = _address(read.host)
        if address is not None:
            self._vet_literal(address, read)
        elif f".{read.host}".endswith(".localhost") and not any(map(self._is_allowed, _LOCALHOST)):
            # For every resolver it is this machine (RFC 6761), so the url is refused at once.
            raise ValueError(f"{read.host} is this machine: {MUST_ALLOW}")
        normal = str(read)
        if len(normal) > TARGET_URL_BYTES_MAX:
            raise ValueError(LENGTH_RULE)
        return normal

    def _vet_literal(self, address: IpAddress, read: _Url) -> None:
        if refusal := self._refusal(address, read.port):
            raise ValueError(f"the address {read.host} {refusal}")
        if read.host not in self._named and not self._is_allowed(address):
            raise ValueError(
                f"must have a host by name: the address {read.host} would have to be in [push] "
                "hosts, or in private_networks"
            )

    def vet_address(self, address: str, port: int, host: str = "") -> None:
        """Raise `AddressRefused` unless the address may be called; `host` is its name.

        The address is numeric, from the system; other texts are refused.
        """
        read = None
        with contextlib.suppress(ValueError):
            read = ip_address(address)
        refusal = "is none" if read is None else self._refusal(read, port)
        if refusal:
            of = f" of {host}" if host and host != address else ""
            raise AddressRefused(f"the address {address}{of} {refusal}")

    def _refusal(self, address: IpAddress, port: int) -> str:
        """Return why an address may not be called: the end of a sentence. Empty: it may."""
        if isinstance(address, IPv6Address) and address.scope_id is not None:
            return f"is of one link (it has a zone): {NEVER}"
        address = getattr(address, "ipv4_mapped", None) or address
        if address in _IPV4_COMPATIBLE and int(address) > 1:
            return f"contains an IPv4 one (IPv4-compatible): {NEVER}"
        if address in _IPV4_TRANSLATED:
            return f"contains an IPv4 one (IPv4-translated): {NEVER}"
        for network, word in _NEVER:
            if address in network:
                return f"is {word}: {NEVER}"
        if self._is_own(address, port):
            return f"is where this daemon listens (port {port}): {NEVER}"
        if not self._is_allowed(address) and (word := special(address)):
            return f"is {word}: {MUST_ALLOW}"
        for inner in contained(address) if isinstance(address, IPv6Address) else ():
            if refusal := self._refusal(inner, port):
                return f"contains {inner}, which {refusal}"
        return ""

    def _is_allowed(self, address: IpAddress) -> bool:
        return any(address in network for network in self._networks)

    def _is_own(self, address: IpAddress, port: int) -> bool:
        for own in self._own:
            if own.port == port:
                where = _address(own.host)
                if where is None or where == address:
                    return True
                if where.is_unspecified and (address.is_loopback or self._is_here(str(address))):
                    return True
        return False


def _is_here(address: str) -> bool:
    """Tell whether the address is one of this machine: only those can be bound to."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.bind((address, 0))
        return True
    return False


def place_of(url: str) -> tuple[str, str]:
    """Return the origin of a vetted url, and its host and port for people.

    >>> place_of("https://a.example/b?c")
    ('https://a.example', 'a.example:443')
    """
    read = _read_url(url)
    host = f"[{read.host}]" if ":" in read.host else read.host
    return str(read._replace(tail="")), f"{host}:{read.port}"


# --- Reading a url -------------------------------------------------------------------------------


def _read_url(url: str) -> _Url:
    """Take a url apart. Raises `ValueError` with the rule that it breaks."""
    if len(url.encode("utf-8", "replace")) > TARGET_URL_BYTES_MAX:
        raise ValueError(LENGTH_RULE)
    match = _URL.fullmatch(url)
    if match is None:
        raise ValueError(FORM_RULE)
    scheme, authority, path, query, fragment = match.groups()
    if "\\" in url or "@" in authority:
        raise ValueError(USER_RULE if "@" in authority else CHARACTERS_RULE)
    if fragment is not None:
        raise ValueError(FRAGMENT_RULE)
    tail = (path or "/") + (query or "")
    if not _TAIL.fullmatch(tail):
        raise ValueError(CHARACTERS_RULE)
    scheme = scheme.lower()
    host, port = _read_authority(authority, DEFAULT_PORTS[scheme])
    return _Url(scheme, host, port, tail)


def _read_authority(authority: str, default_port: int) -> tuple[str, int]:
    host, colon, port_text = authority.rpartition(":")
    if not colon or authority.endswith("]"):
        return _read_host(authority), default_port
    if not re.fullmatch(r"[0-9]{1,5}", port_text) or not 1 <= int(port_text) <= 65_535:
        raise ValueError(PORT_RULE)
    return _read_host(host), int(port_text)


def _read_host(text: str) -> str:
    """Return a host in lower case: a name in ASCII, or an address in standard form."""
    if text.startswith("[") and text.endswith("]"):
        try:
            inner = IPv6Address(text[1:-1])
        except ValueError:
            raise ValueError(NUMBER_RULE) from None
        if inner.scope_id is not None:
            raise ValueError(NUMBER_RULE)
        return str(inner.ipv4_mapped or inner)
    host = text.lower() if text.isascii() else _in_ascii(text)
    host = host.removesuffix(".")
    labels = host.split(".")
    if len(host) > _HOST_CHARACTERS_MAX or not all(map(_LABEL.fullmatch, labels)):
        raise ValueError(HOST_RULE)
    if _NUMERIC.fullmatch(labels[-1]):
        try:
            return str(IPv4Address(host))
        except ValueError:
            raise ValueError(NUMBER_RULE) from None
    return host


def _in_ascii(host: str) -> str:
    """Return an international name in the form of DNS (IDNA 2008, UTS 46)."""
    import idna  # noqa: PLC0415 - its tables take 10 ms, and few hosts need them

    try:
        return idna.encode(host, uts46=True, std3_rules=True).decode()
    except UnicodeError:
        raise ValueError(HOST_RULE) from None


def _address(host: str) -> IpAddress | None:
    """Return the address that a host is; None: it is a name."""
    try:
        return ip_address(host)
    except ValueError:
        return None
