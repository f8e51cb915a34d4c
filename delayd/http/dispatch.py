"""From a request's method and path to what answers it.

The paths of the table are laid out as a tree of their segments, and a request walks down it: a
segment that is there by its own text, or else the one that takes any. So finding costs the same
however many calls there are. aiohttp's own application, with its router, took 6 us more of the 40
that a request without a handler takes, for middlewares, sub-applications and names that nobody here
uses.

>>> tree = Dispatch()
>>> tree.add("GET", "/v1/jobs/{id}", "look")
>>> tree.add("POST", "/v1/jobs/{id}/ack", "acknowledge")
>>> tree.find("GET", "/v1/jobs/7?x=1")
('look', {'id': '7'})
>>> tree.find("POST", "/v1/jobs/a%2Fb/ack")
('acknowledge', {'id': 'a/b'})
>>> try: tree.find("PUT", "/v1/jobs/7")
... except MethodNotAllowed as refusal: print(refusal)
PUT is not among GET
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Generic, TypeVar
from urllib.parse import unquote, urlsplit

from delayd.http.problems import MethodNotAllowed, NoSuchCall
from delayd.limits import TARGET_KNOWN_CHARACTERS, TARGETS_KNOWN_MAX

AnswerT = TypeVar("AnswerT")


class Place(Generic[AnswerT]):
    """A point in the tree: what is there, and what is behind it."""

    __slots__ = ("answers", "anything", "name", "next")

    def __init__(self) -> None:
        """Be empty."""
        self.answers: dict[str, AnswerT] = {}
        """By method."""
        self.next: dict[str, Place[AnswerT]] = {}
        self.anything: Place[AnswerT] | None = None
        """Behind a segment of any text."""
        self.name = ""
        """How that segment is called."""


class Dispatch(Generic[AnswerT]):
    """The tree of all paths."""

    def __init__(self) -> None:
        """Begin with none."""
        self._root: Place[AnswerT] = Place()
        self._found = lru_cache(maxsize=TARGETS_KNOWN_MAX)(self._walk)

    def add(self, method: str, path: str, answer: AnswerT) -> None:
        """Have this answer requests of a path, whose segments in braces may be any."""
        place = self._root
        for segment in path.split("/")[1:]:
            if not segment.startswith("{"):
                place = place.next.setdefault(segment, Place())
                continue
            name = segment.strip("{}")
            if place.anything is None:
                place.anything, place.name = Place(), name
            assert place.name == name, f"{path}: there it is called {place.name}"
            place = place.anything
        assert method not in place.answers, f"{method} {path} is there twice"
        place.answers[method] = answer

    def find(self, method: str, target: str) -> tuple[AnswerT, Mapping[str, str]]:
        """Return what answers, and what stands where any text may; the target is as it was sent.

        Producers say the same again and again: what was found is remembered. Raises `NoSuchCall`,
        `MethodNotAllowed`.
        """
        if len(target) > TARGET_KNOWN_CHARACTERS:
            return self._walk(method, target)
        return self._found(method, target)

    def _walk(self, method: str, target: str) -> tuple[AnswerT, Mapping[str, str]]:
        path = target.partition("?")[0]
        if not path.startswith("/"):  # http://host/path, as proxies are asked
            path = urlsplit(target).path
        place = self._root
        names: dict[str, str] = {}
        for segment in path.split("/")[1:]:
            following = place.next.get(segment)
            if following is None:
                following = place.anything
                if following is None or not segment:
                    raise NoSuchCall(path)
                names[place.name] = _unquoted(segment, path) if "%" in segment else segment
            place = following
        answer = place.answers.get(method)
        if answer is None:
            if not place.answers or path in {"", "*"}:
                raise NoSuchCall(path)
            raise MethodNotAllowed(method, sorted(place.answers))
        return answer, names


def _unquoted(segment: str, path: str) -> str:
    try:
        return unquote(segment, errors="strict")
    except UnicodeDecodeError:
        raise NoSuchCall(path) from None
