# ruff: noqa: RUF001, S104 - digits that look alike are what is tested; nothing is bound to
import ipaddress
from typing import Final
from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st
from yarl import URL

from delayd.limits import TARGET_URL_BYTES_MAX
from delayd.net.addresses import TcpAddress
from delayd.push import egress
from delayd.push.egress import (
    CHARACTERS_RULE,
    FORM_RULE,
    FRAGMENT_RULE,
    HOST_RULE,
    HTTP_RULE,
    LENGTH_RULE,
    NUMBER_RULE,
    PORT_RULE,
    USER_RULE,
    AddressRefused,
    EgressRules,
)
from delayd.push.special_addresses import SPECIAL, IpNetwork


def networks(texts: list[str]) -> list[IpNetwork]:
    return [ipaddress.ip_network(text) for text in texts]


OPEN = EgressRules(
    allow_http=True, ports=[443, 8080], private_networks=networks(["0.0.0.0/0", "::/0"])
)
"""What an operator gets who allows everything that can be allowed."""


def broken_rule(url: str, rules: EgressRules | None = None) -> str:
    with pytest.raises(ValueError) as refused:
        (rules or EgressRules()).vet_url(url)
    return str(refused.value)


def refusal(address: str, rules: EgressRules | None = None, port: int = 443) -> str:
    with pytest.raises(AddressRefused) as refused:
        (rules or EgressRules()).vet_address(address, port, "x.example")
    return str(refused.value)


# --- The form of a url ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "kept"),
    [
        ("https://a.example", "https://a.example/"),
        ("HTTPS://A.Example:443/P?Q=1", "https://a.example/P?Q=1"),
        ("https://a.example?q", "https://a.example/?q"),
        ("https://a.example./", "https://a.example/"),
        ("https://my_service.example/", "https://my_service.example/"),
        ("https://bücher.example/", "https://xn--bcher-kva.example/"),
        ("https://BÜCHER。example/", "https://xn--bcher-kva.example/"),
        ("https://faß.example/", "https://xn--fa-hia.example/"),
        ("https://ⓐ.example/", "https://a.example/"),
        ("https://a.example/%7e/../b//c;d=1/:@!$&'()*+,", "https://a.example/%7e/../b//c;d=1/:@!$&'()*+,"),
        ("https://a.example/?a[]=1&u=https://b.example/", "https://a.example/?a[]=1&u=https://b.example/"),
        ("https://xn--bcher-kva.example/", "https://xn--bcher-kva.example/"),
        ("https://1.example/", "https://1.example/"),
        ("https://10.0.0.1.example/", "https://10.0.0.1.example/"),
    ],
)  # fmt: skip
def test_a_url_is_kept_in_one_form(url: str, kept: str) -> None:
    assert EgressRules().vet_url(url) == kept
    assert EgressRules().vet_url(kept) == kept


BROKEN: Final[dict[str, tuple[str, ...]]] = {
    FORM_RULE: (
        "", "a.example/hook", "//a.example/hook", "https:a.example", "https:/a.example",
        " https://a.example/", "ftp://a.example/", "file:///etc/passwd", "gopher://a.example/",
        "unix:///run/docker.sock", "https\t://a.example/", "https:\\\\a.example/",
    ),
    HOST_RULE: (
        "https://", "https:///hook", "https://./", "https://?q", "https://a..example/",
        "https://a.example../", "https://.a.example/", "https://-a.example/",
        "https://a-.example/", "https://a b.example/", "https://a\0.example/",
        "https://a\n.example/", "https://a%2eexample/", "https://%31%32%37.0.0.1/",
        "https://a,b.example/", "https://*.example/", "https://" + "a" * 64 + ".example/",
        "https://" + "a." * 127 + "example/", "https://\ud800.example/",
        "https://a\u200b\u2044b.example/", "https://\u0301a.example/",
        "https://a.example:443:443/",
    ),
    PORT_RULE: (
        "https://a.example:/", "https://a.example:0/", "https://a.example:65536/",
        "https://a.example:443x/", "https://a.example:-1/", "https://a.example:+443/",
        "https://a.example:４４３/",
    ),
    USER_RULE: (
        "https://me@a.example/", "https://me:pw@a.example/", "https://@a.example/",
        "https://a.example@127.0.0.1/", "https://a.example\\@b.example/",
    ),
    CHARACTERS_RULE: (
        "https://a.example\\.b.example/", "https://a.example/\\b", "https://a.example/a b",
        "https://a.example/\r\nHost: b.example", "https://a.example/\n", "https://a.example/ü",
        "https://a.example/?q=<b>",
    ),
    FRAGMENT_RULE: (
        "https://a.example/#b", "https://a.example#b.example", "https://a.example#@b.example/",
    ),
    LENGTH_RULE: (
        "https://a.example/" + "a" * TARGET_URL_BYTES_MAX,
    ),
    HTTP_RULE: (
        "http://a.example/",
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    ("url", "rule"), [(url, rule) for rule, urls in BROKEN.items() for url in urls]
)
def test_what_can_be_read_in_two_ways_is_refused_with_the_rule(url: str, rule: str) -> None:
    assert broken_rule(url) == rule


def test_a_url_may_be_as_long_as_the_limit_and_no_longer_when_it_is_normalised() -> None:
    def url(host: str, characters: int) -> str:
        start = f"https://{host}/"
        return start + "a" * (characters - len(start))

    longest = url("a.example", TARGET_URL_BYTES_MAX)
    assert EgressRules().vet_url(longest) == longest
    assert broken_rule(url("a.example", TARGET_URL_BYTES_MAX + 1)) == LENGTH_RULE
    assert broken_rule(url("ü.example", TARGET_URL_BYTES_MAX - 1)) == LENGTH_RULE


@given(
    st.text("htps:/@#?\\.[]%-_:0123456789abxz１。ßⓐ\n\t |&=", max_size=40).map("https://".__add__)
    | st.from_regex(r"(https?)://[^/]{1,20}(:[0-9]{1,5})?(/.*)?", fullmatch=True)
)
def test_other_readers_of_an_accepted_url_see_the_same_host_and_port(text: str) -> None:
    rules = EgressRules(
        ports=range(1, 65_536), allow_http=True, private_networks=networks(["0.0.0.0/0", "::/0"])
    )
    try:
        kept = rules.vet_url(text)
    except ValueError:
        return
    read, split = URL(kept, encoded=True), urlsplit(kept)
    default = 443 if split.scheme == "https" else 80
    assert (read.scheme, read.raw_host, read.port) == (
        split.scheme,
        split.hostname,
        split.port or default,
    )
    assert str(read) == kept
    assert read.user is None
    assert rules.vet_url(kept) == kept


# --- What the configuration allows ---------------------------------------------------------------


def test_only_ports_that_are_allowed_are_called() -> None:
    rule = "must have a port of [push] ports (443), not 6379"
    assert broken_rule("https://a.example:6379/") == rule
    rules = EgressRules(ports=[443, 8443], allow_http=True)
    assert rules.vet_url("https://a.example:8443/") == "https://a.example:8443/"
    assert rules.vet_url("http://a.example:80/") == "http://a.example/"
    rule = "must have a port of [push] ports (80, 443, 8443), not 22"
    assert broken_rule("http://a.example:22/", rules) == rule


@pytest.mark.parametrize(
    ("host", "is_allowed"),
    [
        ("a.example.com", True),
        ("a.b.EXAMPLE.com.", True),
        ("hooks.other.net", True),
        ("example.com", False),
        ("evil-example.com", False),
        ("a.example.com.evil.net", False),
        ("xhooks.other.net", False),
        ("hooks-other.net", False),
    ],
)
def test_with_a_list_of_hosts_no_other_is_called(host: str, is_allowed: bool) -> None:
    rules = EgressRules(hosts=["*.Example.com", "hooks.other.net"])
    if is_allowed:
        rules.vet_url(f"https://{host}/")
    else:
        rule = f"must have a host that [push] hosts allows: {host} is not there"
        for each in (rules, EgressRules(hosts=[])):
            assert broken_rule(f"https://{host}/", each) == rule


def test_an_address_in_place_of_a_name_must_be_listed() -> None:
    assert broken_rule("https://93.184.215.14/") == (
        "must have a host by name: the address 93.184.215.14 would have to be in [push] hosts, or "
        "in private_networks"
    )
    rules = EgressRules(hosts=["93.184.215.14", "2606:2800:21f::1", "10.0.0.1", "*.example"])
    assert rules.vet_url("https://93.184.215.14/") == "https://93.184.215.14/"
    assert rules.vet_url("https://[::ffff:93.184.215.14]/") == "https://93.184.215.14/"
    assert rules.vet_url("https://[2606:2800:021F:0::1]/") == "https://[2606:2800:21f::1]/"
    assert "10.0.0.1 is private" in broken_rule("https://10.0.0.1/", rules)
    assert "[push] hosts allows" in broken_rule("https://93.184.215.15/", rules)
    rules = EgressRules(private_networks=networks(["10.0.0.0/8"]))
    assert rules.vet_url("https://10.0.0.1/") == "https://10.0.0.1/"


def test_this_machine_by_name_is_refused_when_it_is_set_unless_it_is_allowed() -> None:
    for host in ("localhost", "LOCALHOST.", "a.localhost"):
        assert "is this machine" in broken_rule(f"https://{host}/")
    allowed = EgressRules(private_networks=networks(["127.0.0.0/8"]))
    assert allowed.vet_url("https://localhost/") == "https://localhost/"


# --- Addresses in a url, in every disguise -------------------------------------------------------

DISGUISES = """
    127.1 127.0.1 2130706433 0x7f000001 0X7F.0.0.1 0x7f.1 0x 017700000001 0177.0.0.1 127.0.0.01
    0300.0250.0.1 3232235521 0xa9fea9fe 169.254.43518 0251.0376.0251.0376 425.510.425.510
    99999999999 1.2.3.4.5 0 0.0.0.0. 127.0.0.1. 127。0。0。1 １２７.０.０.１ ①②⑦.⓪.⓪.① 127．0｡0.1
    𝟣𝟤𝟩.𝟢.𝟢.𝟣 127.0.0.1%00 [::1] [::1]. [0:0:0:0:0:0:0:1] [::] [::ffff:127.0.0.1]
    [::ffff:7f00:1] [0:0:0:0:0:ffff:10.0.0.1] [::127.0.0.1] [::7f00:1] [::ffff:0:127.0.0.1]
    [64:ff9b::127.0.0.1] [64:ff9b::8.8.8.8] [64:ff9b:1::10.0.0.1] [2002:7f00:1::]
    [2001:0:7f00:1::1] [fe80::1] [fe80::1%25eth0] [fe80::1%eth0] [fd00:ec2::254] [ff02::1]
    [v1.a] [127.0.0.1] ::1 0.0.0.0 0.1.2.3 127.0.0.1 127.255.255.254 10.0.0.1 172.16.0.1
    172.31.255.255 192.168.0.1 169.254.169.254 100.64.0.1 100.100.100.200 168.63.129.16
    192.0.0.192 192.88.99.1 198.18.0.1 224.0.0.1 239.255.255.255 240.0.0.1 255.255.255.255
    localhost localhost. LocalHost a.localhost ⓛocalhost
"""


@pytest.mark.parametrize("host", DISGUISES.split())
def test_no_disguise_of_an_address_that_is_not_public_is_accepted(host: str) -> None:
    broken_rule(f"https://{host}/")
    # Nor where every name and address of the public internet is allowed.
    named = EgressRules(hosts=["*", host.strip("[]"), "127.0.0.1", "::1", "10.0.0.1"])
    broken_rule(f"https://{host}/", named)


@pytest.mark.parametrize("host", ["127.1", "0x7f000001", "0177.0.0.1", "[fe80::1%25eth0]", "1.2.3"])
def test_an_address_has_one_way_of_writing_even_where_it_is_allowed(host: str) -> None:
    assert broken_rule(f"https://{host}/", OPEN) == NUMBER_RULE


# --- Addresses that are connected to -------------------------------------------------------------


@pytest.mark.parametrize("address", ["8.8.8.8", "93.184.215.14", "2606:4700::1111", "2a00::1"])
def test_public_addresses_may_be_called(address: str) -> None:
    EgressRules().vet_address(address, 443, "x.example")
    EgressRules().vet_address("::ffff:8.8.8.8", 443)


NOT_PUBLIC = {
    "private": "10.0.0.7 172.20.0.1 192.168.1.1 fc00::1 fd12::1 ::ffff:10.0.0.7",
    "private (of a provider's network)": "100.64.0.1",
    "of this machine (loopback)": "127.0.0.1 127.9.9.9 ::1 ::ffff:127.0.0.1",
    "link-local": "169.254.0.1 fe80::1",
    "reserved": "192.0.0.9 250.0.0.1 100::1 2001:20::1 100:0:0:1::1 4000::1 5f00::1",
    "reserved for documents": "192.0.2.1 198.51.100.1 203.0.113.7 2001:db8::1 3fff::1",
    "of a 6to4 relay": "192.88.99.1",
    "reserved for benchmarks": "198.19.255.255 2001:2::1",
    "translated to IPv4 (NAT64)": "64:ff9b::808:808 64:ff9b:1::1",
    "of a Teredo tunnel": "2001:0:808:808::f7f7:f7f7",
    "of a service for reverse names (AS112)": "192.31.196.1 192.175.48.1 2620:4f:8000::1",
    "of a multicast relay (AMT)": "192.52.193.1",
    "of a 6to4 tunnel": "2002:808:808::1",
    "private (site-local)": "fec0::1",
}


@pytest.mark.parametrize(
    ("address", "word"),
    [(address, word) for word, each in NOT_PUBLIC.items() for address in each.split()],
)
def test_an_address_that_is_not_public_is_refused_unless_its_network_is_allowed(
    address: str, word: str
) -> None:
    assert refusal(address) == (
        f"the address {address} of x.example is {word}: "
        "[push] private_networks would have to allow it"
    )
    OPEN.vet_address(address, 443)
    read = ipaddress.ip_address(address)
    alone = str(getattr(read, "ipv4_mapped", None) or read)
    EgressRules(private_networks=networks(["10.255.0.0/16", alone])).vet_address(address, 443)


NEVER_CALLED = {
    "is unspecified": "0.0.0.0 0.1.2.3 :: ::ffff:0.0.0.0",
    "is of a group (multicast)": "224.0.0.1 ff02::1",
    "is of everybody (broadcast)": "255.255.255.255",
    "contains an IPv4 one (IPv4-compatible)": "::2 ::127.0.0.1 ::808:808",
    "contains an IPv4 one (IPv4-translated)": "::ffff:0:8.8.8.8",
    "is of one link (it has a zone)": "fe80::1%eth0 2606:4700::1%1",
    "is where a cloud hands out credentials": (
        "169.254.169.254 ::ffff:169.254.169.254 169.254.170.2 100.100.100.200 168.63.129.16 "
        "fd00:ec2::254 fd20:ce::254"
    ),
    "contains 169.254.169.254, which is where a cloud hands out credentials": (
        "64:ff9b::a9fe:a9fe 2002:a9fe:a9fe::1"
    ),
    "contains 0.0.0.0, which is unspecified": "2001:0:808:808:0:0:ffff:ffff",
}


@pytest.mark.parametrize(
    ("address", "word"),
    [(address, word) for word, each in NEVER_CALLED.items() for address in each.split()],
)
def test_some_addresses_may_never_be_called_whatever_is_allowed(address: str, word: str) -> None:
    assert refusal(address, OPEN) == (
        f"the address {address} of x.example {word}: it may never be called"
    )


def test_the_address_within_an_address_is_judged_as_well() -> None:
    rules = EgressRules(private_networks=networks(["64:ff9b::/96", "2002::/16", "2001::/32"]))
    rules.vet_address("64:ff9b::8.8.8.8", 443)
    rules.vet_address("2002:808:808::1", 443)
    for address, inner in (
        ("64:ff9b::10.0.0.7", "10.0.0.7"),
        ("2002:a00:7::1", "10.0.0.7"),
        ("2001:0:808:808::f5ff:fff8", "10.0.0.7"),
        ("2001:0:a00:7::f7f7:f7f7", "10.0.0.7"),
    ):
        assert f"contains {inner}, which is private" in refusal(address, rules)


METADATA = int(ipaddress.IPv4Address("169.254.169.254"))


def translated(prefix: str, length: int, inner: int) -> str:
    """An IPv4 address after a prefix of NAT64 (RFC 6052), with ones in all that is ignored."""
    bits = f"{int(ipaddress.IPv6Address(prefix)):0128b}"[:length] + f"{inner:032b}"
    if length < 96:
        bits = bits[:64] + "0" * 8 + bits[64:]
    return str(ipaddress.IPv6Address(int(bits.ljust(128, "1"), 2)))


@pytest.mark.parametrize("length", [48, 56, 64, 96])
def test_a_prefix_of_local_use_hides_no_address_that_may_not_be_called(length: int) -> None:
    for prefix in ("64:ff9b:1::", "64:ff9b:1:abcd::", "64:ff9b:ffff:ab00::"):
        said = refusal(translated(prefix, length, METADATA), OPEN)
        assert "contains 169.254.169.254, which is where a cloud hands out credentials" in said
    rules = EgressRules(private_networks=networks(["64:ff9b:1::/48"]))
    private, public = (int(ipaddress.IPv4Address(each)) for each in ("10.0.0.7", "8.8.8.8"))
    said = refusal(translated("64:ff9b:1::", length, private), rules)
    assert "contains 10.0.0.7, which is private" in said
    rules.vet_address(str(ipaddress.IPv6Address("64:ff9b:1::8.8.8.8")), 443)
    rules.vet_address(translated("64:ff9b:1:3e3e:e:3e3e:3e3e:0", 96, public), 443)


@pytest.mark.parametrize("half", ["0:5efe", "100:5efe", "200:5efe", "300:5efe"])
def test_an_isatap_address_is_judged_by_the_address_in_it_too(half: str) -> None:
    said = refusal(f"2a00:1:2:3:{half}:10.0.0.7")
    assert "contains 10.0.0.7, which is private" in said
    assert "contains 169.254.169.254" in refusal(f"fe80::{half}:169.254.169.254", OPEN)
    EgressRules().vet_address(f"2a00:1:2:3:{half}:8.8.8.8", 443)
    tunnelled = f"2002:808:808:1:{half}:10.0.0.7"
    assert "contains 10.0.0.7" in refusal(
        tunnelled, EgressRules(private_networks=networks(["2002::/16"]))
    )


def test_every_block_of_the_registries_is_refused_at_both_ends() -> None:
    for network, _ in SPECIAL:
        for address in (network[0], network[-1]):
            assert "is" in refusal(str(address))
    for address_text in ("192.31.195.255", "192.31.197.0", "2620:4f:7fff::1", "2620:4f:8001::"):
        EgressRules().vet_address(address_text, 443)


@pytest.mark.parametrize("address", ["", "x.example", "127.1", "1.2.3.4.", "10.0.0.1/8", "/run/x"])
def test_what_is_no_address_is_not_connected_to(address: str) -> None:
    assert refusal(address, OPEN).endswith("is none")


def test_all_that_python_does_not_take_for_public_is_refused_at_both_ends_of_its_networks() -> None:
    four, six = (
        getattr(getattr(ipaddress, name), "_private_networks")  # noqa: B009 - a name of Python's
        for name in ("_IPv4Constants", "_IPv6Constants")
    )
    checked = 0
    for network in (*four, *six):
        for address in (network[0], network[-1], network[network.num_addresses // 2]):
            if not address.is_global:
                refusal(str(address))
                checked += 1
    assert checked > 50


# --- The daemon itself ---------------------------------------------------------------------------


def test_the_daemon_does_not_call_itself_where_it_listens() -> None:
    rules = EgressRules(
        private_networks=networks(["127.0.0.0/8", "10.0.0.0/8", "::1"]),
        allow_http=True,
        ports=[11300, 11301],
        own=[TcpAddress("127.0.0.1", 11300), TcpAddress("::1", 11301)],
    )
    said = (
        "127.0.0.1 of x.example is where this daemon listens (port 11300): it may never be called"
    )
    assert said in refusal("127.0.0.1", rules, 11300)
    assert "this daemon listens" in refusal("::ffff:127.0.0.1", rules, 11300)
    assert "this daemon listens" in refusal("::1", rules, 11301)
    assert "this daemon listens" in broken_rule("http://127.0.0.1:11300/", rules)
    assert "this daemon listens" in broken_rule("http://[::1]:11301/", rules)
    rules.vet_address("127.0.0.1", 443)
    rules.vet_address("127.0.0.2", 11300)
    rules.vet_address("10.0.0.1", 11300)


@pytest.mark.parametrize("everywhere", ["0.0.0.0", "::"])
def test_a_daemon_that_listens_everywhere_calls_no_address_of_its_machine_at_that_port(
    everywhere: str,
) -> None:
    asked: list[str] = []

    def is_here(address: str) -> bool:
        asked.append(address)
        return address in {"203.0.113.9", "10.0.0.1"}

    rules = EgressRules(
        private_networks=networks(["0.0.0.0/0"]),
        own=[TcpAddress(everywhere, 8080)],
        is_here=is_here,
        ports=[8080],
    )
    for address in ("127.0.0.1", "127.9.9.9", "10.0.0.1", "203.0.113.9", "::ffff:10.0.0.1"):
        assert "is where this daemon listens (port 8080)" in refusal(address, rules, 8080)
    rules.vet_address("10.0.0.2", 8080)
    rules.vet_address("8.8.8.8", 8080)
    asked.clear()
    rules.vet_address("10.0.0.1", 443)
    assert asked == []


def test_a_machine_knows_its_own_addresses() -> None:
    assert egress._is_here("127.0.0.1")
    assert not egress._is_here("192.0.2.1")
    assert not egress._is_here("2001:db8::1")
