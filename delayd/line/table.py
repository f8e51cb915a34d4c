"""A row of the command table: the word, its handler, and the scope that it needs.

    (b"kick ", _kick, About.USED, Scope.KICK)

The last two columns are for connections that have to say who they are (`guarded`): what the command
is about, so that its topic is known before anything is done, and which scope that takes. Handlers
know nothing of either.
"""

import enum
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from delayd.access.scopes import Scope

if TYPE_CHECKING:
    from delayd.line.connection import Connection

Handler = Callable[["Connection", bytes, int], bytes]
"""Takes the connection, the bytes after the command's word and the time; returns the reply, or
nothing when the client now waits."""


class About(enum.Enum):
    """Where the topic of a command is found, for which its scope is needed."""

    DOOR = enum.auto()
    """Nothing yet: for clients that have not said who they are, too. No scope."""

    ITSELF = enum.auto()
    """The connection alone. No scope: every authenticated client may."""

    DAEMON = enum.auto()
    """All topics, or none."""

    USED = enum.auto()
    """The topic used."""

    WATCHED = enum.auto()
    """Each of the topics watched."""

    NAMED = enum.auto()
    """The topic whose name is the first argument of the command."""

    JOB = enum.auto()
    """The topic of the job whose id is that word."""


class Command(NamedTuple):
    """A row of the table."""

    word: bytes
    """What its lines begin with; with a space where there are arguments."""
    handle: Handler
    about: About
    scope: Scope | None = None
    """The scope that a client must have; None where none is needed."""
    or_scopes: tuple[Scope, ...] = ()
    """One of these does as well."""
