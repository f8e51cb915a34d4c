"""Addresses that are not one host of the public internet, and IPv4 addresses inside of IPv6 ones.

    special(address)      the name of its block; empty: it is public
    contained(address)    the IPv4 addresses to which a translator or a tunnel sends its packets

The table is of the two registries of special-purpose addresses (IANA; RFC 6890, RFC 8190), as they
were at `REGISTRIES_AS_OF`, and of other documents. Python's own `is_global` is not used, since it
differs between versions. Blocks that IANA calls globally reachable are in it
too: they are of anycast services and translators, and none is a receiver of jobs.

>>> special(IPv6Address("100:0:0:1::7")), special(IPv6Address("2001:4860:4860::8888"))
('reserved', '')
>>> [str(inner) for inner in contained(IPv6Address("64:ff9b:1:a00:0:700::"))]
['10.0.0.7']

The rules of calls are in `push.egress`.
"""

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_network
from typing import Final

IpAddress = IPv4Address | IPv6Address
IpNetwork = IPv4Network | IPv6Network

REGISTRIES_AS_OF: Final = "2025-05"
"""When a block is added to a registry, add its row, and set this."""

_PRIVATE: Final = "private"
_RESERVED: Final = "reserved"
_LOOPBACK: Final = "of this machine (loopback)"
_DOCUMENTS: Final = "reserved for documents"
_BENCHMARKS: Final = "reserved for benchmarks"
_NAT64: Final = "translated to IPv4 (NAT64)"
_AS112: Final = "of a service for reverse names (AS112)"
_AMT: Final = "of a multicast relay (AMT)"

_BLOCKS: Final = (
    # The registry of IPv4, in its order.
    ("0.0.0.0/8", _RESERVED),  # this network, RFC 791
    ("10.0.0.0/8", _PRIVATE),  # RFC 1918
    ("100.64.0.0/10", "private (of a provider's network)"),  # shared address space, RFC 6598
    ("127.0.0.0/8", _LOOPBACK),  # RFC 1122
    ("169.254.0.0/16", "link-local"),  # RFC 3927
    ("172.16.0.0/12", _PRIVATE),  # RFC 1918
    ("192.0.0.0/24", _RESERVED),  # protocol assignments, RFC 6890, with all that is inside
    ("192.0.2.0/24", _DOCUMENTS),  # TEST-NET-1, RFC 5737
    ("192.31.196.0/24", _AS112),  # RFC 7535
    ("192.52.193.0/24", _AMT),  # RFC 7450
    ("192.88.99.0/24", "of a 6to4 relay"),  # RFC 7526; 192.88.99.2, of 6a44, RFC 6751
    ("192.168.0.0/16", _PRIVATE),  # RFC 1918
    ("192.175.48.0/24", _AS112),  # RFC 7534
    ("198.18.0.0/15", _BENCHMARKS),  # RFC 2544
    ("198.51.100.0/24", _DOCUMENTS),  # TEST-NET-2, RFC 5737
    ("203.0.113.0/24", _DOCUMENTS),  # TEST-NET-3, RFC 5737
    ("240.0.0.0/4", _RESERVED),  # RFC 1112; 255.255.255.255, RFC 919
    # The registry of IPv6. What is inside a block with another word stands before it.
    ("::1/128", _LOOPBACK),  # RFC 4291
    ("::/128", _RESERVED),  # the unspecified address, RFC 4291
    ("::ffff:0:0/96", _RESERVED),  # IPv4-mapped, RFC 4291
    ("64:ff9b::/96", _NAT64),  # RFC 6052
    ("64:ff9b:1::/48", _NAT64),  # of local use, RFC 8215
    ("100::/64", _RESERVED),  # discard-only, RFC 6666
    ("100:0:0:1::/64", _RESERVED),  # dummy prefix, RFC 9780
    ("2001::/32", "of a Teredo tunnel"),  # RFC 4380
    ("2001:2::/48", _BENCHMARKS),  # RFC 5180
    ("2001:3::/32", _AMT),  # RFC 7450
    ("2001:4:112::/48", _AS112),  # RFC 7535
    ("2001::/23", _RESERVED),  # protocol assignments, RFC 2928, with all else that is inside:
    ("2001:1::1/128", _RESERVED),  # PCP anycast, RFC 7723
    ("2001:1::2/128", _RESERVED),  # TURN anycast, RFC 8155
    ("2001:1::3/128", _RESERVED),  # DNS-SD SRP anycast, RFC 9665
    ("2001:10::/28", _RESERVED),  # ORCHID, RFC 4843
    ("2001:20::/28", _RESERVED),  # ORCHIDv2, RFC 7343
    ("2001:30::/28", _RESERVED),  # drone remote ids, RFC 9374
    ("2001:db8::/32", _DOCUMENTS),  # RFC 3849
    ("2002::/16", "of a 6to4 tunnel"),  # RFC 3056
    ("2620:4f:8000::/48", _AS112),  # RFC 7534
    ("3fff::/20", _DOCUMENTS),  # RFC 9637
    ("5f00::/16", _RESERVED),  # segment routing (SRv6), RFC 9602
    ("fc00::/7", _PRIVATE),  # unique-local, RFC 4193
    ("fe80::/10", "link-local"),  # RFC 4291
    # Special by other documents.
    ("fec0::/10", "private (site-local)"),  # RFC 3879
)
SPECIAL: Final[tuple[tuple[IpNetwork, str], ...]] = tuple(
    (ip_network(network), word) for network, word in _BLOCKS
)
_GLOBAL_UNICAST: Final = IPv6Network("2000::/3")
"""All else of IPv6 is reserved (RFC 4291)."""


def special(address: IpAddress) -> str:
    """Return the name of the special block of an address; empty: it is public."""
    for network, word in SPECIAL:
        if address in network:
            return word
    return _RESERVED if address.version == 6 and address not in _GLOBAL_UNICAST else ""


# --- IPv4 inside of IPv6 -------------------------------------------------------------------------

_TRANSLATED: Final = IPv6Network("64:ff9b::/32")
"""The prefixes of NAT64: the well-known one (RFC 6052), and those of local use (RFC 8215)."""
_WELL_KNOWN: Final = IPv6Network("64:ff9b::/96")
_PREFIX_BYTES: Final = (6, 7, 8)
"""Prefixes of 48, 56 and 64 bits (RFC 6052); shorter ones end before what a network may choose."""
_SIX_TO_FOUR: Final = IPv6Network("2002::/16")
_TEREDO: Final = IPv6Network("2001::/32")
_ISATAP_MASK: Final = 0xFCFF_FFFF
_ISATAP: Final = 0x0000_5EFE
"""Half an interface identifier, without the two bits that say whether it is unique (RFC 5214)."""
_ALL_ONES: Final = 2**32 - 1
_THIS_NETWORK: Final = IPv4Network("0.0.0.0/8")


def contained(address: IPv6Address) -> tuple[IPv4Address, ...]:
    """Return the IPv4 addresses that an IPv6 address may stand for, beside IPv4-mapped ones.

    Of NAT64 the length of the prefix is not known, so every reading is returned but those of
    0.0.0.0/8, which is what the others have in the place of the address. A prefix that a network
    has made of its own addresses is not known either.
    """
    data = address.packed
    low = int.from_bytes(data[12:])
    if address in _WELL_KNOWN:
        return (IPv4Address(low),)
    if address in _TRANSLATED:
        without_octet = data[:8] + data[9:]  # of 8 bits that are no part of an address
        readings = (without_octet[start : start + 4] for start in _PREFIX_BYTES)
        inner = (*map(IPv4Address, readings), IPv4Address(low))
        return tuple(each for each in dict.fromkeys(inner) if each not in _THIS_NETWORK)
    found = []
    if address in _SIX_TO_FOUR:
        found.append(IPv4Address(data[2:6]))
    elif address in _TEREDO:  # the server, and the client behind it
        found += [IPv4Address(data[4:8]), IPv4Address(low ^ _ALL_ONES)]
    if int.from_bytes(data[8:12]) & _ISATAP_MASK == _ISATAP:
        found.append(IPv4Address(low))
    return tuple(found)
