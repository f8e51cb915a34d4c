"""Which refusals there are that HTTP can answer: classes, found by their family."""

from collections.abc import Iterator

from delayd.core.errors import LastWatched, Refusal
from delayd.http import server  # so that all of HTTP's own are defined
from delayd.http.problems import HttpRefusal

__all__ = ("http_refusals", "server")


def http_refusals(kind: type[Refusal] = Refusal) -> Iterator[type[Refusal]]:
    """Every class of the core and of HTTP; nobody ignores a topic by HTTP."""
    for below in kind.__subclasses__():
        yield from http_refusals(below)
        is_ours = below.__module__.startswith(("delayd.core.", "delayd.http."))
        if is_ours and below not in {HttpRefusal, LastWatched}:
            yield below
