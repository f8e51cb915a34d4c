"""One call of the API as a row of a table, and finding the row for a request's path.

The paths of the table are a tree of their segments. Each segment of a request leads to the branch
with its text, or else to the one for any text. So the cost does not depend on the number of calls.

>>> router = Router()
>>> router.add("GET", "/v1/jobs/{id}", "show")
>>> router.add("POST", "/v1/jobs/{id}/ack", "acknowledge")
>>> router.find("GET", "/v1/jobs/7?x=1")
('show', {'id': '7'})
>>> router.find("POST", "/v1/jobs/a%2Fb/ack")
('acknowledge', {'id': 'a/b'})
>>> try: router.find("PUT", "/v1/jobs/7")
... except MethodNotAllowed as refusal: print(refusal)
PUT is not supported here: use GET
"""

import enum
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Generic, NamedTuple, TypeVar
from urllib.parse import unquote

import msgspec

from delayd.access.scopes import Scope
from delayd.core.errors import Refusal
from delayd.http.api import Call
from delayd.http.form_reader import Form
from delayd.http.problems import MethodNotAllowed, NoSuchCall
from delayd.http.responses import Reply
from delayd.http.values import Answer
from delayd.limits import TARGET_KNOWN_CHARACTERS, TARGETS_KNOWN_MAX

# --- Rows ----------------------------------------------------------------------------------------

Handler = Callable[[Call], Awaitable[Reply]]


class Section(enum.Enum):
    """The users of calls: a heading, and what their calls are for."""

    PRODUCERS = "Producers", "Put jobs."
    WORKERS = "Workers", "Reserve jobs, and say what became of them."
    JOBS = "Jobs", "Look at jobs and change them, one or many."
    TOPICS = "Topics", "Look at topics, and set what holds for their jobs."
    SCHEDULES = "Schedules", "Have jobs put again and again, by a calendar or an interval."
    DAEMON = "Daemon", "Figures, health and the clock of the daemon."

    def __init__(self, heading: str, about: str) -> None:
        self.heading = heading
        self.about = about


class Response(NamedTuple):
    """An answer to a call that was not refused."""

    when: str
    """In which case it is sent."""
    structs: tuple[type[Answer], ...] = ()
    """The structs that its body may be."""
    media: str = ""
    """The type of a body that `structs` does not describe; empty where there is none."""


class Route(NamedTuple):
    """One call: path, handler, contents, answers and documentation."""

    method: str
    path: str
    handler: Handler
    scope: Scope | None
    """The scope that a token needs; None: any will do, or none."""
    name: str
    """The name in programs made of the OpenAPI document; never changes."""
    section: Section
    summary: str
    about: str
    responses: Mapping[int, Response]
    """By status."""
    refusals: tuple[type[Refusal], ...] = ()
    """Beside those of all calls with such a path, body and query."""
    form: type[Form] | None = None
    """The form of the body; None: there is no body."""
    batch: type[Form] | None = None
    """The form of a body that has this form's first field instead: many items at once."""
    query: type[Form] | None = None
    """The form of the query; None: there is no query."""
    may_be_empty: bool = False
    """No body means the same as `{}`."""
    needs_token: bool = False
    """A call without a scope needs a valid token, whatever its scopes."""

    @property
    def is_of_process(self) -> bool:
        """Whether it tells of the process, and not of jobs that another daemon may own by now."""
        return self.section is Section.DAEMON and self.method == "GET"

    @property
    def is_guarded(self) -> bool:
        """Whether it needs a token, if the daemon has tokens."""
        return self.scope is not None or self.needs_token


# --- Finding one ---------------------------------------------------------------------------------

TargetT = TypeVar("TargetT")


class _Node(msgspec.Struct, Generic[TargetT]):
    """A node of the tree: its targets, and the nodes after it."""

    targets: dict[str, TargetT] = {}
    """By method."""
    next: "dict[str, _Node[TargetT]]" = {}
    any: "_Node[TargetT] | None" = None
    """After a segment of any text."""
    name: str = ""
    """The name of that segment."""


class Router(Generic[TargetT]):
    """The tree of all paths."""

    def __init__(self) -> None:
        self._root: _Node[TargetT] = _Node()
        self._found = lru_cache(maxsize=TARGETS_KNOWN_MAX)(self._walk)

    def add(self, method: str, path: str, target: TargetT) -> None:
        """Add the target of a path; a segment in braces stands for any text."""
        node = self._root
        for segment in path.split("/")[1:]:
            if not segment.startswith("{"):
                node = node.next.setdefault(segment, _Node())
                continue
            name = segment.strip("{}")
            if node.any is None:
                node.any, node.name = _Node(), name
            assert node.name == name, f"{path}: there it is called {node.name}"
            node = node.any
        assert method not in node.targets, f"{method} {path} is there twice"
        node.targets[method] = target

    def find(self, method: str, path: str) -> tuple[TargetT, Mapping[str, str]]:
        """Return the target, and the texts of segments in braces; the path is as sent.

        Results are remembered, since clients repeat paths. Raises `NoSuchCall`, `MethodNotAllowed`.
        """
        if len(path) > TARGET_KNOWN_CHARACTERS:
            return self._walk(method, path)
        return self._found(method, path)

    def _walk(self, method: str, sent: str) -> tuple[TargetT, Mapping[str, str]]:
        path = sent.partition("?")[0]
        if not path.startswith("/"):  # http://host/path, as in requests to proxies
            # Not `urlsplit`, which raises ValueError for some hosts.
            _, is_url, place = path.partition("://")
            if is_url:
                path = place[place.index("/") :] if "/" in place else ""
        allowed: set[str] = set()
        for node, texts in _ends(self._root, path.split("/"), 1, {}):
            if (target := node.targets.get(method)) is not None:
                return target, {
                    name: _unquoted(name, text, path) if "%" in text else text
                    for name, text in texts.items()
                }
            allowed.update(node.targets)
        if not allowed or path in {"", "*"}:
            raise NoSuchCall(path)
        raise MethodNotAllowed(method, sorted(allowed))


def _ends(
    node: _Node[TargetT], segments: Sequence[str], at: int, texts: Mapping[str, str]
) -> Iterator[tuple[_Node[TargetT], Mapping[str, str]]]:
    """Yield the nodes to which the segments from `at` on lead, and the texts in their names.

    A segment that is a word of a path comes before the same one as a name: a schedule may be called
    preview.
    """
    if at == len(segments):
        yield node, texts
        return
    segment = segments[at]
    if (word := node.next.get(segment)) is not None:
        yield from _ends(word, segments, at + 1, texts)
    if node.any is not None and segment:
        yield from _ends(node.any, segments, at + 1, {**texts, node.name: segment})


def _unquoted(name: str, segment: str, path: str) -> str:
    """Return the text of a segment; a key may be any bytes, which are checked later."""
    try:
        return unquote(segment, errors="surrogateescape" if name == "key" else "strict")
    except UnicodeDecodeError:
        raise NoSuchCall(path) from None
