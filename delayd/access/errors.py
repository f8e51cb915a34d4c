"""Errors of the files of tokens, secrets and certificates: all at once, and without secrets.

A tokens file edited by hand may hold a whole token where a hash belongs. Messages about
the file go to logs and terminals, so nothing that could be a secret is repeated:

>>> redacted('name = "dlyd_0a1b2c3d_MZyx_0123456789abcdefghijklmnopqrstuvwxyzAB"')
'name = "dlyd_0a1b2c3d_..."'
"""

import re
from collections.abc import Iterable
from typing import Final

# `re` compiles these at their first use, and keeps them.
_WHOLE: Final = r"(dlyd_[0-9a-f]{8}_)[A-Za-z0-9_-]+"
_SIGNING: Final = r"(whsec_)[A-Za-z0-9_+/=-]+"
_LONG: Final = r"[A-Za-z0-9_+/=-]{40,}"
"""As long as a secret, of its characters, with a few lost in copying."""


class AccessInvalid(Exception):
    """Files of tokens, secrets or certificates cannot be used; `errors` lists every problem."""

    def __init__(self, errors: Iterable[str]) -> None:
        """Take one sentence for each; what could be a secret in them is left out."""
        self.errors = tuple(map(redacted, errors))
        super().__init__("\n".join(self.errors))


class TokensInvalid(AccessInvalid):
    """The tokens file cannot be used."""


class SecretsInvalid(AccessInvalid):
    """The file of the secrets of webhooks cannot be used."""


def redacted(text: str) -> str:
    """Leave the secrets of tokens and of webhooks out of a text; the ids of tokens stay."""
    return re.sub(_SIGNING, r"\1...", re.sub(_WHOLE, r"\1...", text))


def shown(value: object) -> str:
    """Write a value on one line, without anything in it that could be a secret."""
    from delayd import fields  # noqa: PLC0415 - only where something is wrong

    return fields.shown(value, without_secrets)


def without_secrets(text: str) -> str:
    """Leave out of a text all that could be a secret."""
    return re.sub(_LONG, "...", redacted(text))
