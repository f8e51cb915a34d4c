"""Tokens: what a client shows, and how it is recognised.

    dlyd_0a1b2c3d_MZyx…43 characters
    │    │        └─ the secret: 32 random bytes in base64url; only its SHA-256 is kept
    │    └─ the id: finds the entry, and is no secret
    └─ by which scanners of repositories and logs find leaked tokens

Recognising one takes the same work whether its id is known or not, and comparing takes the same
time wherever the hashes differ, so a wrong one tells nothing of either.

>>> text, entry = issue(bytes(36), "demo", {Scope.PUT}, ["*"], created_s=0)
>>> text
'dlyd_00000000_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA'
>>> tokens = Tokens([entry])
>>> tokens.find(text, 1.0).name, tokens.find(text[:-1] + "B", 1.0)
('demo', None)
"""

import base64
import hashlib
import hmac
import re
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from typing import Final

from delayd.access.principal import Principal
from delayd.access.scopes import Scope
from delayd.access.token_entries import TOKENS_FILE, Entry

ID_BYTES: Final = 4
SECRET_BYTES: Final = 32
TOKEN_BYTES: Final = ID_BYTES + SECRET_BYTES
"""The random bytes of a token."""

TOKEN: Final = re.compile(r"dlyd_([0-9a-f]{8})_([A-Za-z0-9_-]{43})", re.ASCII)

_NO_DIGEST: Final = bytes(32)
"""No known secret has this hash."""


def issue(
    drawn: bytes,
    name: str,
    scopes: AbstractSet[Scope],
    topics: Iterable[str],
    *,
    created_s: int,
    not_after_s: int | None = None,
) -> tuple[str, Entry]:
    """Make a token of `TOKEN_BYTES` random bytes: its text, and what is kept of it."""
    assert len(drawn) == TOKEN_BYTES
    token_id = drawn[:ID_BYTES].hex()
    secret = base64.urlsafe_b64encode(drawn[ID_BYTES:]).decode().rstrip("=")
    digest = hashlib.sha256(secret.encode()).hexdigest()
    entry = Entry(token_id, name, digest, frozenset(scopes), tuple(topics), created_s, not_after_s)
    return f"dlyd_{token_id}_{secret}", entry


class Tokens:
    """The tokens of a file, ready to be recognised. They never change: load others instead."""

    def __init__(self, entries: Iterable[Entry], path: str = "") -> None:
        """Take entries with different ids."""
        self.path = path
        self.entries = tuple(entries)
        self._known = {
            entry.id: (
                Principal(
                    entry.name, entry.id, entry.scopes, entry.topics, bytes.fromhex(entry.sha256)
                ),
                entry,
            )
            for entry in self.entries
        }

    @classmethod
    def load(cls, path: str) -> "Tokens":
        """Read the file. Raises `TokensInvalid` with everything that is wrong with it."""
        return cls(TOKENS_FILE.load(path), path)

    def find(self, secret: str, epoch_s: float) -> Principal | None:
        """Return the principal of this token; None: it is unknown or expired."""
        known = self._known_by(secret)
        return None if known is None or known[1].is_over(epoch_s) else known[0]

    def ended_s(self, secret: str, epoch_s: float) -> int | None:
        """Return when this token expired; None: it is unknown, or good."""
        known = self._known_by(secret)
        return known[1].not_after_s if known is not None and known[1].is_over(epoch_s) else None

    def _known_by(self, secret: str) -> tuple[Principal, Entry] | None:
        match = TOKEN.fullmatch(secret)
        token_id, shown = match.groups() if match else ("", "")
        known = self._known.get(token_id)
        digest = _NO_DIGEST if known is None else known[0].digest
        is_right = hmac.compare_digest(hashlib.sha256(shown.encode()).digest(), digest)
        return known if is_right else None

    def renewed(self, principal: Principal, epoch_s: float) -> Principal | None:
        """Return the principal by its present token; None: revoked, replaced or expired."""
        known = self._known.get(principal.token_id)
        if known is None or known[0].digest != principal.digest or known[1].is_over(epoch_s):
            return None
        return known[0]
