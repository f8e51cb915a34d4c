"""Secrets of webhooks: what calls are signed with (Standard Webhooks 1.0.0), by their names.

    {"version": 1, "secrets": [
      {"name": "orders", "active": [{"secret": "whsec_MZyx…", "created": "2026-11-21T10:15:00Z"}],
       "topics": ["orders", "orders.*"]}]}

A name has one secret, or two while it is exchanged: the one that the receivers have and, after it,
the one that they will have. A secret is `whsec_` and random bytes in base64. It is needed to sign,
so the file has it and not its hash: the file is its owner's alone.

A signature says nothing of the topic, so a client that may choose secrets for one topic could have
calls signed like those of another. `topics` says whose calls a secret signs; without it, all.

>>> secret_text(bytes(24))
'whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA'
>>> secrets = Secrets([NamedSecret("orders", (Active(bytes(24), created_s=0),))])
>>> len(secrets.keys(["orders"])), secrets.unknown(["orders", "mail"])
(1, ('mail',))
>>> secrets.to_sign_with("any", (), ["orders"])
('orders',)

`push.signing` signs with them.
"""

import base64
import binascii
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from delayd.access.entry_file import NOT_READ_BY_OTHERS, EntryFile
from delayd.access.errors import SecretsInvalid, without_secrets
from delayd.access.topic_rule import TopicRule
from delayd.core.policy import PATTERNS
from delayd.core.targets import NAME
from delayd.fields import TIME, Field, ValueKind, list_of, read_all, written
from delayd.limits import SECRETS_FILE_BYTES_MAX, SECRETS_MAX

PREFIX: Final = "whsec_"
SECRET_BYTES: Final = 32
"""The random bytes of a secret that is made here."""
ACTIVE_MAX: Final = 2
"""Secrets of one name: the one that receivers have, and the one that they will have."""

SECRET_RULE: Final = f"must be {PREFIX} and 24 to 64 bytes in base64"
ACTIVE_RULE: Final = f"must be a list of 1 to {ACTIVE_MAX} objects of secret and created"

_KEY_BYTES_MIN: Final = 24
_KEY_BYTES_MAX: Final = 64


def secret_text(drawn: bytes) -> str:
    """Write a secret as its receivers want it."""
    return PREFIX + base64.b64encode(drawn).decode()


def secret_key(value: object) -> bytes:
    """Return the bytes that are signed with. Raises ValueError with the rule."""
    if isinstance(value, str) and value.startswith(PREFIX):
        try:
            key = base64.b64decode(value.removeprefix(PREFIX), validate=True)
        except (binascii.Error, ValueError):  # not ASCII
            raise ValueError(SECRET_RULE) from None
        if _KEY_BYTES_MIN <= len(key) <= _KEY_BYTES_MAX:
            return key
    raise ValueError(SECRET_RULE)


@dataclass(frozen=True, slots=True)
class Active:
    """A secret that calls are signed with."""

    key: bytes
    created_s: int

    def __repr__(self) -> str:
        """The repr without the secret, so that no log and no traceback has it."""
        return f"Active(created_s={self.created_s})"


@dataclass(frozen=True, slots=True)
class NamedSecret:
    """The secrets of one name, the oldest first."""

    name: str
    active: tuple[Active, ...]
    topics: tuple[str, ...] | None = None
    """Globs of the topics whose calls it signs; None: of all."""


_FIELDS: Final = (
    Field("secret", "key", ValueKind(secret_key, secret_text), is_secret=True, is_needed=True),
    Field("created", "created_s", TIME, is_needed=True),
)


def _read_active(value: object) -> Active:
    if not isinstance(value, dict):
        raise ValueError(ACTIVE_RULE)  # noqa: TRY004 - as for all that is wrong
    return Active(**read_all(value, _FIELDS, redact=without_secrets))


SECRETS_FILE: Final = EntryFile(
    plural="secrets",
    key="name",
    fields=(
        Field("name", "name", NAME, is_needed=True),
        Field(
            *("active", "active"),
            list_of(
                ValueKind(_read_active, lambda active: written(_FIELDS, active)),
                ACTIVE_RULE,
                1,
                ACTIVE_MAX,
            ),
            is_secret=True,
            is_needed=True,
        ),
        Field("topics", "topics", PATTERNS),
    ),
    make=NamedSecret,
    invalid=SecretsInvalid,
    entries_max=SECRETS_MAX,
    bytes_max=SECRETS_FILE_BYTES_MAX,
    mode=NOT_READ_BY_OTHERS,
)


class Secrets:
    """The secrets of a file, by their names. They change only when the file is read again."""

    def __init__(self, entries: Iterable[NamedSecret] = (), path: str = "") -> None:
        """Take entries with different names."""
        self.path = path
        self._keys: Mapping[str, tuple[bytes, ...]] = {}
        self._rules: Mapping[str, TopicRule] = {}
        self._take(entries)

    def _take(self, entries: Iterable[NamedSecret]) -> None:
        entries = tuple(entries)
        # The newest first: most receivers compare in this order, and will know it the longest.
        self._keys = {
            entry.name: tuple(each.key for each in reversed(entry.active)) for entry in entries
        }
        self._rules = {entry.name: TopicRule(entry.topics) for entry in entries}

    @classmethod
    def load(cls, path: str) -> "Secrets":
        """Read the file. Raises `SecretsInvalid` with everything that is wrong with it."""
        return cls(SECRETS_FILE.load(path), path)

    def reload(self) -> tuple[str, ...]:
        """Read the file again; a bad one keeps the old secrets. Return what is wrong with it."""
        if self.path:
            try:
                self._take(SECRETS_FILE.load(self.path))
            except SecretsInvalid as error:
                return error.errors
        return ()

    def __len__(self) -> int:
        return len(self._keys)

    def unknown(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return those of the names that no secret has."""
        return tuple(name for name in names if name not in self._keys)

    @property
    def of_all_topics(self) -> tuple[str, ...]:
        """The names of those without topics of their own, which sign calls of all."""
        return tuple(name for name, rule in self._rules.items() if not rule.is_given)

    def to_sign_with(
        self, topic: str, names: Sequence[str], usual: Sequence[str] = ()
    ) -> tuple[str, ...]:
        """Return the names of the secrets that sign calls of the topic.

        They are those that its target names; if it names none, those of the `usual` ones that the
        topic may use. Raises `NotForTopic` if it may not use one that is named, or none of the
        usual ones: no call goes out without a signature that the receiver expects. An unknown name
        is no error here: `keys` raises it.
        """
        for name in names:
            if name in self._rules:
                self._rules[name].require(f"secret {name!r}", topic, "secrets")
        if names:
            return tuple(names)
        usable = [
            name for name in usual if name not in self._rules or self._rules[name].allows(topic)
        ]
        if usual and not usable:
            secret = f"secret {usual[0]!r} of push.sign_with"
            self._rules[usual[0]].require(secret, topic, "url")
        return tuple(usable)

    def keys(self, names: Iterable[str]) -> tuple[bytes, ...]:
        """Return all active secrets of these names. Raises `KeyError` with an unknown one."""
        return tuple(key for name in names for key in self._keys[name])
