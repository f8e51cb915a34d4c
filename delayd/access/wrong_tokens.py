"""Counts wrong tokens by address, so that further ones can be answered late.

The address of an IPv6 peer counts by its first 64 bits: one owner has all of them. A peer
that fails `AUTH_FAILURES_MAX` times within `AUTH_FAILURES_WINDOW_MS` is answered `AUTH_DELAY_MS`
later until the first of these failures is older than that.

>>> wrong_tokens = WrongTokens()
>>> [wrong_tokens.note("192.0.2.7", second * 1_000) for second in range(10)].index(True)
9
>>> wrong_tokens.delay_ms("192.0.2.7", 10_000), wrong_tokens.delay_ms("192.0.2.8", 10_000)
(1000, 0)
>>> wrong_tokens.delay_ms("192.0.2.7", 60_000)
0

Memory is bounded: of more addresses than `AUTH_PEERS_MAX` the one that was quiet for longest is
forgotten.
"""

from collections import OrderedDict, deque

from delayd.limits import AUTH_DELAY_MS, AUTH_FAILURES_MAX, AUTH_FAILURES_WINDOW_MS, AUTH_PEERS_MAX
from delayd.net.addresses import ip_address_of
from delayd.net.peers import origin_of


def network(peer: str) -> str:
    """Return what a peer's address counts as: itself, or for IPv6 the network it is in.

    >>> network("::ffff:192.0.2.7"), network("2001:db8::1%eth0"), network("127.0.0.5")
    ('192.0.2.7', '2001:db8::', 'this machine')
    """
    if ":" in peer and ip_address_of(peer) is None:
        return "this machine"  # a unix socket's path
    return origin_of((peer, 0)) or "this machine"


class WrongTokens:
    """The latest failures of each address; `now_ms` never goes back."""

    def __init__(self) -> None:
        self._times: OrderedDict[str, deque[int]] = OrderedDict()

    def note(self, peer: str, now_ms: int) -> bool:
        """Count a failure; tell whether this peer is answered late from this one on."""
        was_late = self.delay_ms(peer, now_ms) > 0
        where = network(peer)
        times = self._times.get(where)
        if times is None:
            times = self._times[where] = deque(maxlen=AUTH_FAILURES_MAX)
        times.append(now_ms)
        self._times.move_to_end(where)
        while len(self._times) > AUTH_PEERS_MAX:
            self._times.popitem(last=False)
        return not was_late and self.delay_ms(peer, now_ms) > 0

    def delay_ms(self, peer: str, now_ms: int) -> int:
        """Return how long an answer to this peer has to wait; 0 for most."""
        if not self._times:
            return 0
        times = self._times.get(network(peer))
        if times is None or len(times) < AUTH_FAILURES_MAX:
            return 0
        return AUTH_DELAY_MS if now_ms - times[0] < AUTH_FAILURES_WINDOW_MS else 0
