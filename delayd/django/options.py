"""The `OPTIONS` of the backend: where the daemon is, and how its topics are used.

>>> wrong = {"urll": "http://queue:11301", "results_ttl": "soon"}
>>> options, problems = read_options(wrong, queues=(), databases=())
>>> for problem in problems:
...     print(problem)
there is no option 'urll': did you mean 'url'?
results_ttl: must be seconds, or a duration such as "50ms", "15s" or "1h30m"
"""

import atexit
import difflib
import functools
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple

from delayd.client.addresses import DEFAULT_URL, read_addresses
from delayd.client.beanstalk import topic_word
from delayd.client.errors import Invalid, Refused
from delayd.client.sync import Client
from delayd.client.values import seconds

TTL_S_MIN: Final = 1.0


class TaskOptions(NamedTuple):
    """What the settings say, with the defaults for the rest."""

    url: str | Sequence[str] = DEFAULT_URL
    """As of `Client`: one, or those of daemons that share a log."""
    token: str = ""
    client: Client | None = None
    """A client in place of url and token: one with TLS of its own, or a double."""
    topic_prefix: str = ""
    """The topic of a queue is this and its name."""
    ttr: float | str | None = None
    """How long a worker holds a task without a sign of life; None: as the topic's policy says."""
    results_ttl: float | str | None = None
    """How long the result of a task is kept after its last change; None: there are no results."""
    results_topic: str = "task-results"
    """Where they are kept. Its name has the prefix too."""
    outbox: str | None = None
    """The database in whose transaction tasks are enqueued, for `delayd relay`; None: at once."""

    def topic_of(self, queue_name: str) -> str:
        """Return the topic of a queue."""
        return self.topic_prefix + queue_name

    @property
    def kept_in(self) -> str:
        """The topic of results; empty: there are none."""
        return "" if self.results_ttl is None else self.topic_of(self.results_topic)


def read_options(
    options: Mapping[str, Any], *, queues: Collection[str], databases: Collection[str]
) -> tuple[TaskOptions, list[str]]:
    """Return the options, and a sentence for each mistake: where there is one, for people alone."""
    problems = [_unknown(name) for name in options if name not in TaskOptions._fields]
    read = TaskOptions(**{name: options[name] for name in TaskOptions._fields if name in options})
    for name in ("token", "topic_prefix", "results_topic"):
        problems += _wrong_text(name, getattr(read, name))
    for name in ("ttr", "results_ttl"):
        problems += _wrong_duration(name, getattr(read, name))
    problems += filter(None, (_wrong_url(read.url), _wrong_client(read.client, options)))
    if read.outbox is not None and read.outbox not in databases:
        there = ", ".join(databases)
        problems.append(f"outbox: DATABASES has no {read.outbox!r:.80}; there are {there}")
    if not problems:
        problems += _wrong_topics(read, queues)
    return read, problems


@functools.lru_cache(maxsize=64)
def client_of(url: str | tuple[str, ...], token: str) -> Client:
    """Return the client of these options; all threads share it.

    Django makes a backend for each thread, which would each have connections of its own.
    """
    client = Client(url, token=token)
    atexit.register(client.close)
    return client


def near(word: str, words: Collection[str]) -> str:
    """Return a question after the word that may have been meant; empty: none is near."""
    found = difflib.get_close_matches(word, words, 1)
    return f": did you mean {found[0]!r}?" if found else ""


def _unknown(name: str) -> str:
    there = ", ".join(TaskOptions._fields)
    return f"there is no option {name!r}{near(name, TaskOptions._fields) or f'; there are {there}'}"


def _wrong_text(name: str, value: object) -> list[str]:
    return [] if isinstance(value, str) else [f"{name}: must be a text, and is {value!r:.80}"]


def _wrong_url(url: object) -> str:
    urls = [url] if isinstance(url, str) else url
    if not isinstance(urls, list | tuple) or not all(isinstance(each, str) for each in urls):
        return f"url: must be a text or a list of texts, and is {url!r:.80}"
    try:
        read_addresses(url if isinstance(url, str) else urls)
    except ValueError as error:
        return f"url: {error}"
    return ""


def _wrong_client(client: object, options: Mapping[str, Any]) -> str:
    if client is None:
        return ""
    if not isinstance(client, Client):
        return f"client: must be a delayd.client.Client, and is {client!r:.80}"
    if beside := [name for name in ("url", "token") if name in options]:
        return f"client: it has its own {' and '.join(beside)}, so leave out {' and '.join(beside)}"
    return ""


def _wrong_duration(name: str, value: object) -> list[str]:
    if value is None:
        return []
    try:
        length_s = seconds(value, name)  # type: ignore[arg-type]  # it says so
    except Invalid as error:
        return [str(error)]
    if length_s < TTL_S_MIN:
        return [f"{name}: must be at least {TTL_S_MIN:g} s, and is {value!r}"]
    return []


def _wrong_topics(read: TaskOptions, queues: Collection[str]) -> list[str]:
    """Check the topics, each with its queue."""
    problems = []
    topics = {read.topic_of(queue): f"queue {queue!r}" for queue in queues}
    if read.kept_in in topics:
        problems.append(
            f"results_topic: {read.kept_in!r} is the topic of {topics[read.kept_in]} too"
        )
    if read.kept_in:
        topics[read.kept_in] = "results_topic"
    for topic, whose in sorted(topics.items()):
        try:
            topic_word(topic)
        except Refused as error:
            problems.append(f"{whose}: {error}")
    return problems
