"""The way of a request to its handler: host, origin, token, media type, body.

    request ─► Host, Origin ─► token ─► Content-Type, -Encoding ─► body ─► form ─► handler
                  403            401          415                413, 400    422

The first two keep out web pages in a browser on this machine: a page cannot choose its `Host` (one
that was rebound to this address has its own name), and its writes have an `Origin` or a media type
other than JSON. There is no CORS, so it could not read the answer either.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any, Final

from aiohttp import hdrs
from aiohttp.streams import EMPTY_PAYLOAD

from delayd.access.authenticator import Authenticator
from delayd.access.principal import EVERYBODY, Principal
from delayd.clock import monotonic_ns
from delayd.core.errors import Refusal
from delayd.http.api import Api, Call
from delayd.http.connections import HttpRequest
from delayd.http.problems import (
    JSON,
    BadRequest,
    BodyTooLong,
    ExpectationWrong,
    MediaTypeWrong,
    RequestInvalid,
    SourceRefused,
    Stopping,
    Unauthorized,
    VersionWrong,
)
from delayd.http.reading import Form, Reader, read_query
from delayd.http.responses import Reply, refused
from delayd.http.routing import Route
from delayd.limits import HTTP_HOSTS_KNOWN_MAX
from delayd.net.addresses import ip_address_of

Names = Mapping[str, str]
"""The variable segments of the path, by name."""
Endpoint = Callable[[HttpRequest, Names], Awaitable[Reply]]

NS_PER_MS: Final = 1_000_000
_BEARER: Final = "bearer "


class Hosts:
    """The host names of this daemon."""

    def __init__(self, names: Collection[str]) -> None:
        """Accept these names, every IP address, and localhost."""
        self._names = {"localhost", *(name.lower() for name in names)}
        self._known: set[str] = set()
        """Accepted values of the header, as they were written."""

    def check(self, host: str | None) -> None:
        """Refuse a request for another host; `SourceRefused`, `BadRequest`."""
        if host in self._known:
            return
        if not host:
            raise BadRequest("the request has no Host")
        name = host.rpartition(":")[0] if ":" in host and not host.endswith("]") else host
        name = name.removeprefix("[").removesuffix("]").lower()
        if name not in self._names and ip_address_of(name) is None:
            raise SourceRefused(f"the Host {host!r} is none of this daemon's names: see http.hosts")
        if len(self._known) < HTTP_HOSTS_KNOWN_MAX:
            self._known.add(host)


class RequestAdmission:
    """Checks each request before its handler is called."""

    def __init__(
        self,
        api: Api,
        authenticator: Authenticator,
        hosts: Hosts,
        body_bytes_max: int,
    ) -> None:
        self._body_bytes_max = body_bytes_max
        self._api = api
        self._authenticator = authenticator
        self._hosts = hosts

    def endpoint(self, route: Route) -> Endpoint:
        """Return what answers the requests of a route."""
        api, handler, authenticator = self._api, route.handler, self._authenticator
        is_guarded, body_bytes_max = route.scope is not None, self._body_bytes_max
        read_body = _body_reader(route)
        query = route.query

        async def answer(request: HttpRequest, names: Names) -> Reply:
            try:
                if api.is_stopping:
                    raise Stopping
                if request.version[0] != 1:
                    raise VersionWrong
                self._check_source(request.headers)
                principal = EVERYBODY
                if is_guarded and authenticator.needs_token:
                    principal = await self._authenticate(request)
                data = b""
                given = None
                if read_body is not None:
                    data = await read_bytes(request, body_bytes_max)
                    given = read_body(data)
                elif not request.body.at_eof():
                    raise BadRequest("this call takes no body")
                asked = None
                if query is not None:
                    asked = read_query(query, request.query)
                elif "?" in request.target:
                    raise BadRequest("this call takes no query")
                return await handler(
                    Call(api, route.scope, request, names, principal, data, given, asked)
                )
            except Refusal as refusal:
                api.refusals.note(refusal.word)
                return refused(refusal)

        return answer

    async def refuse(self, refusal: Refusal) -> Reply:
        """Answer a request for an unknown call."""
        self._api.refusals.note(refusal.word)
        return refused(refusal)

    def _check_source(self, headers: Mapping[str, str]) -> None:
        """Refuse what a web page has sent; `SourceRefused`."""
        self._hosts.check(headers.get(hdrs.HOST))
        if hdrs.ORIGIN in headers:
            raise SourceRefused("requests of web pages (with an Origin) are not served")

    async def _authenticate(self, request: HttpRequest) -> Principal:
        given = request.headers.get(hdrs.AUTHORIZATION, "")
        transport = request.transport
        if transport is None:
            raise Unauthorized
        if given:
            principal = await self._principal_of(given, request)
        else:
            principal = self._authenticator.identify(
                transport.get_extra_info("socket"), transport.get_extra_info("peercert")
            )
        if principal is None:
            raise Unauthorized
        request.connection.has_shown_token()
        return principal

    async def _principal_of(self, given: str, request: HttpRequest) -> Principal | None:
        """Return the principal of the token; after many failures a wrong one is answered late."""
        authenticator, peer = self._authenticator, request.remote
        now_ms = monotonic_ns() // NS_PER_MS
        is_bearer = given[: len(_BEARER)].lower() == _BEARER
        token = given[len(_BEARER) :].strip() if is_bearer else ""
        principal = authenticator.login(token, peer, now_ms)
        if principal is None and (delay_ms := authenticator.delay_ms(peer, now_ms)):
            await asyncio.sleep(delay_ms / 1_000)
        return principal


async def read_bytes(request: HttpRequest, bytes_max: int) -> bytes:
    """Return the body of a request that says it is JSON.

    Raises `MediaTypeWrong`, `BodyTooLong`, `ExpectationWrong`.
    """
    headers = request.headers
    if headers.get(hdrs.CONTENT_ENCODING, "identity") != "identity":
        raise MediaTypeWrong("requests are read as they are: no Content-Encoding")
    stream = request.body
    if stream is EMPTY_PAYLOAD:
        return b""
    kind = headers.get(hdrs.CONTENT_TYPE, "")
    # The usual value. aiohttp would parse it with Python's `email`, which fails for `; a*`.
    if kind != JSON and kind.partition(";")[0].strip().lower() != JSON:
        said = f"is {kind!r}, not" if kind else "is missing; it must be"
        raise MediaTypeWrong(f"the Content-Type {said} {JSON!r}")
    if int(headers.get(hdrs.CONTENT_LENGTH, 0)) > bytes_max:
        raise BodyTooLong(bytes_max)
    if stream.is_eof():  # it came with the head, as short ones do
        data = stream.read_nowait()
        if len(data) > bytes_max:
            raise BodyTooLong(bytes_max)
        return data
    if hdrs.EXPECT in headers:  # the client waits with the body
        if headers[hdrs.EXPECT].lower() != "100-continue":
            raise ExpectationWrong(headers[hdrs.EXPECT])
        request.connection.ask_for_body()
    body = bytearray()
    while chunk := await stream.readany():
        body += chunk
        if len(body) > bytes_max:
            raise BodyTooLong(bytes_max)
    return bytes(body)


def _body_reader(route: Route) -> Callable[[bytes], Any] | None:
    """Return what reads the body of a route's requests; None if they have none."""
    if route.form is None:
        return None
    read_one: Reader[Form] = Reader(route.form)
    read: Callable[[bytes], Any] = read_one.read
    if route.batch is not None:
        read = _either(read, Reader(route.batch))
    if route.may_be_empty:
        return lambda data: read(data or b"{}")
    return read


def _either(read: Callable[[bytes], Any], batch: Reader[Form]) -> Callable[[bytes], Any]:
    """Return what reads one of two forms: the batch begins with the name of its only field."""
    name = next(iter(batch.kind.__struct_fields__))
    start = b'{"%b"' % name.encode()

    def read_either(data: bytes) -> object:
        if data.startswith(start):
            return batch.read(data)
        try:
            return read(data)
        except RequestInvalid as refusal:
            if any(error.field == name for error in refusal.errors):
                return batch.read(data)
            raise

    return read_either
