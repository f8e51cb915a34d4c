"""The sink of urls: each due job is one HTTP request, whose status decides the result.

    2xx            delivered; the body of the answer is not read for this
    410            exhausted: the receiver wants no further attempt
    anything else  failed; also a redirect, which is never followed

Headers describe the job, and the request is signed (`push.signing`). All attempts of a job have the
same `webhook-id`, because the receiver may have seen a call whose answer was lost. The error of a
failure is one line for people: the status, or the reason why there was no answer. It contains
neither the path nor the query of the url, which may be secret.

`Retry-After` is passed on unchanged; the scheduler keeps it within its bounds. The sender sets
deadlines and limits how many calls are made at once.
"""

import asyncio
import contextlib
import hashlib
import os
import ssl
from collections.abc import Callable, Iterable
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol
from urllib.parse import quote

from delayd import __version__
from delayd.access.signing_secrets import Secrets
from delayd.clock import system_wall_ms
from delayd.core.errors import NotForTopic
from delayd.core.targets import is_taken
from delayd.durations import duration_text
from delayd.limits import DURATION_MS_MAX, PUSH_URLS_KNOWN_MAX
from delayd.moments import moment_text
from delayd.net.tls import client_context
from delayd.push.answer_reader import AnswerReader, NotHttp
from delayd.push.connections import Connections, LookUp, NoAnswer, NoConnection, look_up
from delayd.push.egress import AddressRefused, EgressRules, place_of
from delayd.push.signing import signature
from delayd.push.sinks import AttemptEnd, DueJob, Result

USER_AGENT: Final = f"delayd/{__version__}"

_STATUSES: Final = MappingProxyType(
    {int(status): f"{status.value} {status.phrase}" for status in HTTPStatus}
)
_GONE: Final = 410
_TOO_MANY: Final = 429


class _Vetted(NamedTuple):
    """A url that the egress rules allow."""

    origin: str
    tail: str
    """Path and query."""
    place: str
    """Host and port, for messages."""


class UrlCaller(Protocol):
    """A replacement for `Connections`: a receiver in memory."""

    async def ask(self, origin: str, head: bytes, body: bytes) -> AnswerReader:
        """Send a request and return its answer, as `Connections.ask` does."""


class Webhook:
    """Calls urls. The first call creates the connections."""

    def __init__(
        self,
        rules: EgressRules,
        *,
        secrets: Secrets | None = None,
        sign_with: Iterable[str] = (),
        connect_timeout_ms: int,
        wall_ms: Callable[[], int] = system_wall_ms,
        look_up: LookUp | None = None,
        ssl_context: ssl.SSLContext | None = None,
        caller: UrlCaller | None = None,
    ) -> None:
        """Sign with the secrets `sign_with` for targets that name none."""
        self._rules = rules
        self._secrets = Secrets() if secrets is None else secrets
        self._sign_with = tuple(sign_with)
        self._connect_timeout_ms = connect_timeout_ms
        self._wall_ms = wall_ms
        self._look_up = look_up
        self._ssl_context = ssl_context
        self._connections: Connections | None = None
        self._caller = caller
        self._opening = asyncio.Lock()
        self._vetted: dict[str, _Vetted] = {}

    async def deliver(self, job: DueJob) -> AttemptEnd:
        """Call the job's url once."""
        return (await self.call(job))[0]

    async def close(self) -> None:
        """Close all connections."""
        if self._connections is not None:
            await self._connections.close()
            self._connections = None

    async def call(self, job: DueJob) -> tuple[AttemptEnd, str]:
        """Call the job's url once; return the result, and the status of the answer or ""."""
        try:
            vetted = self._vetted.get(job.target.url) or self._vet(job.target.url)
        except ValueError as error:
            return _not_called(f"the url may not be called: {error}")
        try:
            headers = self._headers(job)
        except KeyError as error:
            return _not_called(f"there is no secret {error.args[0]} to sign with")
        except NotForTopic as refusal:  # since the target was set, or the job was moved
            return _not_called(str(refusal))
        connections = self._caller or self._connections or await self.opened()
        place = vetted.place
        try:
            answer = await connections.ask(vetted.origin, _head(job, vetted, headers), job.body)
        except TimeoutError:
            within = duration_text(self._connect_timeout_ms)
            return _no_answer(f"no connection to {place} within {within}")
        except NoConnection as none:
            if isinstance(none.error, AddressRefused):
                return _not_called(str(none.error))
            reason = _look_up_reason if none.is_look_up else _reason
            return _no_answer(f"no connection to {place}: {reason(none.error)}")
        except NotHttp:
            return _no_answer(f"{place} does not answer in HTTP")
        except NoAnswer:
            return _no_answer(f"{place} closed the connection before it answered")
        return self._judged(answer)

    async def opened(self) -> Connections:
        """Return the connections; the first call reads the system's certificates.

        In a thread: reading them takes up to 0.1 s, during which the loop would serve no client.
        """
        async with self._opening:
            if self._connections is None:
                verified = self._ssl_context
                if verified is None:
                    verified = await asyncio.to_thread(client_context)
                self._connections = Connections(
                    self._rules, self._connect_timeout_ms, verified, self._look_up or look_up
                )
            return self._connections

    def _vet(self, text: str) -> _Vetted:
        """Vet a url: the rules may have changed since it was set. Raises `ValueError`."""
        url = self._rules.vet_url(text)
        if len(self._vetted) >= PUSH_URLS_KNOWN_MAX:
            self._vetted.clear()
        origin, place = place_of(url)
        vetted = self._vetted[text] = _Vetted(origin, url.removeprefix(origin), place)
        return vetted

    def _headers(self, job: DueJob) -> dict[str, str]:
        """Return all headers of the call.

        Raises `KeyError` for a secret that does not exist, and `NotForTopic` for one that may not
        sign jobs of the job's topic.
        """
        wall_ms = self._wall_ms()
        ours = {
            "Content-Type": job.content_type,
            "User-Agent": USER_AGENT,
            "webhook-id": job.message_id,
            "webhook-timestamp": str(wall_ms // 1_000),
            "Idempotency-Key": job.message_id,
            "traceparent": _traceparent(job),
            "Delayd-Id": str(job.id),
            "Delayd-Topic": job.topic,
            "Delayd-Attempt": str(job.attempt),
            "Delayd-Due": moment_text(job.due_ms),
            "Delayd-Lateness-Ms": str(job.lateness_ms),
        }
        if job.key:
            ours["Delayd-Key"] = quote(job.key, safe="")
        names = self._secrets.to_sign_with(job.topic, job.target.secrets, self._sign_with)
        keys = self._secrets.keys(names)
        if keys:
            ours["webhook-signature"] = signature(keys, job.message_id, wall_ms // 1_000, job.body)
        own = {name: text for name, text in job.target.headers if not _is_ours(name)}
        if not any(name.lower() == "accept" for name in own):
            own["Accept"] = "*/*"
        return own | ours

    def _judged(self, answer: AnswerReader) -> tuple[AttemptEnd, str]:
        """Return the result that follows from an answer, and the answer's status."""
        status, error = answer.status, _status_text(answer.status)
        if 200 <= status < 300:
            return AttemptEnd(Result.DELIVERED, answer=answer.beginning), error
        if status == _GONE:
            return AttemptEnd(Result.EXHAUSTED, error, answer.beginning), error
        end = AttemptEnd(
            Result.FAILED,
            f"{error}: redirects are not followed" if 300 <= status < 400 else error,
            answer.beginning,
            retry_after_ms(answer.retry_after, self._wall_ms()),
            is_outage=status >= 500 or status == _TOO_MANY,
        )
        return end, error


def _head(job: DueJob, vetted: _Vetted, headers: dict[str, str]) -> bytes:
    """Write the head of the request, without the empty line at its end."""
    # Headers of a target, and names of topics, were checked when they were set.
    if not all(map(str.isprintable, headers.values())):
        raise AssertionError("a header is not one printable line")
    host = vetted.origin.partition("//")[2]
    lines = [f"{job.target.method} {vetted.tail} HTTP/1.1", f"Host: {host}"]
    lines += [f"{name}: {text}" for name, text in headers.items()]
    if job.body or job.target.method != "GET":
        lines.append(f"Content-Length: {len(job.body)}")
    lines.append("")
    return "\r\n".join(lines).encode()


def _is_ours(name: str) -> bool:
    """Tell whether delayd sets this header itself; older versions let targets set some of them."""
    return name.lower() == "content-type" or is_taken(name)


def retry_after_ms(text: str, wall_ms: int) -> int:
    """Read the header `Retry-After`: seconds, or a date of HTTP; 0 if it is neither, or over.

    >>> retry_after_ms("120", 0), retry_after_ms("Sat, 21 Nov 2026 10:15:30 GMT", 1_795_256_100_000)
    (120000, 30000)
    >>> retry_after_ms("soon", 0), retry_after_ms("-1", 0), retry_after_ms("1.5", 0)
    (0, 0, 0)
    """
    text = text.strip()
    if text.isascii() and text.isdigit():  # of any length, which only a float is read from
        return int(min(float(text) * 1_000, DURATION_MS_MAX))
    with contextlib.suppress(ValueError, OverflowError, TypeError):
        if text.endswith("GMT"):
            after_ms = int(parsedate_to_datetime(text).timestamp()) * 1_000 - wall_ms
            return min(max(after_ms, 0), DURATION_MS_MAX)
    return 0


def _traceparent(job: DueJob) -> str:
    """Return the trace context: one trace for all attempts of a job, one span for each (W3C)."""
    trace = hashlib.sha256(job.message_id.encode()).hexdigest()[:32]
    span = hashlib.sha256(f"{job.message_id}/{job.attempt}".encode()).hexdigest()[:16]
    return f"00-{trace}-{span}-01"


def _status_text(status: int) -> str:
    """Write a status with its standard phrase, not with that of the answer."""
    return _STATUSES.get(status) or str(status)


def _reason(error: OSError) -> str:
    """Return the reason why there is no connection."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"TLS failed: {(error.reason or 'no reason is known').lower().replace('_', ' ')}"
    return os.strerror(error.errno).lower() if error.errno else str(error)


def _look_up_reason(error: OSError) -> str:
    return f"its name cannot be looked up: {(error.strerror or str(error)).lower()}"


def _not_called(error: str) -> tuple[AttemptEnd, str]:
    return AttemptEnd(Result.FAILED, error, is_ours=True), ""


def _no_answer(error: str) -> tuple[AttemptEnd, str]:
    return AttemptEnd(Result.FAILED, error, is_outage=True), ""
