"""Clients that have to say who they are, and a authenticator who knows some tokens.

    house = House()
    worker = house.guest(Scope.RESERVE, Scope.DELETE, topics=("mail.*",))
    worker.says(b"reserve-with-timeout 0\\r\\n")     # has shown its token

`stranger` is one who has not.
"""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from delayd.access.admission import Admission, Peer
from delayd.access.authenticator import Authenticator
from delayd.access.principal import ALL_TOPICS
from delayd.access.scopes import Scope
from delayd.access.tokens import TOKEN_BYTES, Tokens, issue
from delayd.limits import BODY_BYTES_DEFAULT
from delayd.line.guarded import GuardedConnection
from tests.line.talk import Client, Kind, Talk

if TYPE_CHECKING:
    from delayd.access.token_entries import Entry

EPOCH_MS: Final = 1_800_000_000_000
ALL: Final = tuple(Scope)
WRONG: Final = b"dlyd_00000000_" + b"x" * 43


class House(Talk):
    """A talk whose clients are asked for tokens."""

    def __init__(
        self, body_bytes_max: int = BODY_BYTES_DEFAULT, *, is_virtual: bool = False
    ) -> None:
        super().__init__(body_bytes_max, is_virtual=is_virtual)
        self.wall_ms = EPOCH_MS
        self.entries: list[Entry] = []
        self.authenticator = Authenticator(Tokens([]), wall_ms=lambda: self.wall_ms)
        self.admission = Admission(self.authenticator)

    def token(
        self,
        *scopes: Scope,
        topics: Sequence[str] = ALL_TOPICS,
        not_after_s: int | None = None,
    ) -> bytes:
        """A new token, good for this."""
        number = len(self.entries) + 1
        text, entry = issue(
            number.to_bytes(4, "big") + bytes([number]) * (TOKEN_BYTES - 4),
            f"guest {number}",
            set(scopes),
            topics,
            created_s=0,
            not_after_s=not_after_s,
        )
        self.entries.append(entry)
        self.tell()
        return text.encode()

    def tell(self) -> None:
        """Let the authenticator know the tokens that there are now."""
        self.authenticator.tokens = Tokens(self.entries)

    @property
    def guarded(self) -> Kind:
        return partial(GuardedConnection, admission=self.admission, elapsed_ms=lambda: self.now_ms)

    def stranger(self, peer: str = "192.0.2.7") -> Client:
        caller = Peer(peer, peer)
        caller.principal = None
        return self.client(kind=self.guarded, peer=caller)

    def guest(self, *scopes: Scope, topics: Sequence[str] = ALL_TOPICS) -> Client:
        guest = self.stranger()
        assert guest.says(b"auth %b\r\n" % self.token(*scopes, topics=topics)) == b"OK\r\n"
        return guest

    def is_welcome(self, client: Client) -> bool:
        return client.connection.is_welcome
