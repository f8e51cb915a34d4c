"""Daemons for tests of programs that use delayd.

    FakeDelayd        a daemon in memory, on a virtual clock, for programs that use `delayd.client`
    ReceivedCall      a call that a `FakeDelayd` has made
    running_daemon    a daemon in a process of its own, for every other client

The time of both is set by the caller. The daemon never imports this package. The modules of the
daemon are imported when the first `FakeDelayd` is made.
"""

from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from delayd.testing.daemon import running_daemon
    from delayd.testing.fake import FakeDelayd
    from delayd.testing.received import ReceivedCall

__all__ = ("FakeDelayd", "ReceivedCall", "running_daemon")

_HOMES: Final = MappingProxyType(
    {"FakeDelayd": "fake", "ReceivedCall": "received", "running_daemon": "daemon"}
)


def __dir__() -> list[str]:
    """Return the names that are there, loaded or not."""
    return [*__all__]


def __getattr__(name: str) -> Any:  # noqa: ANN401 - any of them
    """Import the module of a name."""
    if name not in _HOMES:
        raise AttributeError(f"delayd.testing has no {name!r}")
    return getattr(import_module(f"delayd.testing.{_HOMES[name]}"), name)
