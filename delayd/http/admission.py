"""The way of a request to its handler: host, origin, token, media type, body.

    request ─► Host, Origin ─► token ─► Content-Type, -Encoding ─► body ─► form ─► handler
                  403            401          415                413, 400    422

The first two keep out web pages in a browser on this machine: a page cannot choose its `Host` (one
that was rebound to this address has its own name), and its writes have an `Origin` or a media type
other than JSON. There is no CORS, so it could not read the answer either. A POST without a body
needs no media type: there is none to say, and every browser sends an `Origin` with it. The
dashboard (`ui_files`) is the exception: it is a page of this very host.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Final

from aiohttp import hdrs
from aiohttp.streams import EMPTY_PAYLOAD

from delayd.access.authenticator import Authenticator
from delayd.access.principal import EVERYBODY, Principal
from delayd.clock import NS_PER_MS, monotonic_ns
from delayd.core.errors import Refusal
from delayd.http.api import Api, Call
from delayd.http.bodies import BodyReader, read_bytes
from delayd.http.connection import HttpRequest
from delayd.http.form_reader import Form, read_query
from delayd.http.problems import (
    ENDED_TOKEN,
    JSON,
    LINES,
    WRONG_TOKEN,
    BadRequest,
    CodingUnknown,
    MediaTypeWrong,
    NotReady,
    SourceRefused,
    Stopping,
    Unauthorized,
    VersionWrong,
)
from delayd.http.responses import HTTP_1_0, Reply, refused
from delayd.http.routing import Route
from delayd.limits import HTTP_BATCH_MAX, HTTP_FREE_BYTES, HTTP_HOSTS_KNOWN_MAX, HTTP_STEP_BYTES
from delayd.net.addresses import ip_address_of

Names = Mapping[str, str]
"""The variable segments of the path, by name."""
Endpoint = Callable[[HttpRequest, Names], Awaitable[Reply]]

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
            raise SourceRefused(f"the Host {host!r} is not a name of this daemon: see http.hosts")
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
        *,
        serves_ui: bool = False,
    ) -> None:
        self._body_bytes_max = body_bytes_max
        self._api = api
        self._authenticator = authenticator
        self._hosts = hosts
        self._serves_ui = serves_ui
        """Requests of the dashboard are accepted, which have an Origin."""

    def endpoint(self, route: Route) -> Endpoint:
        """Return the function that answers requests of a route."""
        api, handler, authenticator = self._api, route.handler, self._authenticator
        is_guarded = route.is_guarded
        body_reader = None
        if route.form is not None:
            body_reader = BodyReader(route.form, route.batch, api.engine.body_bytes_max)
        empty = b"{}" if route.may_be_empty else b""
        query = route.query
        counters = api.counters_of(route.name)
        waits_for_log, cut_off = not route.is_of_process, api.reports.cut_off

        async def respond(request: HttpRequest, names: Names) -> Reply:
            begun_ns = monotonic_ns()
            is_asked = False
            try:
                if api.is_stopping:
                    raise Stopping
                if request.version[0] != 1:
                    raise VersionWrong
                if waits_for_log and (why := cut_off()):
                    raise NotReady(why)
                if hdrs.TRANSFER_ENCODING in request.headers:
                    _check_coding(request)
                self._check_source(request, is_guarded=is_guarded)
                principal = EVERYBODY
                if is_guarded and authenticator.needs_token:
                    principal = await self._authenticate(request)
                data = b""
                form = None
                if body_reader is not None:
                    kind = media_type_of(request, may_be_empty=route.may_be_empty)
                    data, principal = await self._body_of(request, principal)
                    text = data or empty
                    if kind == JSON and len(text) <= HTTP_FREE_BYTES:
                        form = body_reader.read_short(text)
                    else:
                        form = await self._read(body_reader, text, kind)
                elif not request.body.at_eof():
                    raise BadRequest("this call takes no body")
                query_form = None
                if query is not None:
                    query_form = read_query(query, request.query)
                elif "?" in request.target:
                    raise BadRequest("this call takes no query")
                is_asked = True
                reply = await handler(
                    Call(api, route.scope, request, names, principal, data, form, query_form)
                )
            except Refusal as refusal:
                api.refusals.note(refusal.word)
                reply = refused(refusal)
                # It may be due to a change that is not durable yet, such as a deleted job.
                reply.waits_for_log = is_asked and is_guarded and not isinstance(refusal, Stopping)
            reply.counters, reply.begun_ns = counters, begun_ns
            return reply

        return respond

    async def _read(self, reader: BodyReader, data: bytes, kind: str) -> Form:
        """Read a body in slices; `MediaTypeWrong`, and what the reader raises."""
        if kind == LINES and not reader.takes_lines:
            raise MediaTypeWrong(f"the Content-Type is {kind!r}, not {JSON!r}: there is no batch")
        is_short = kind == JSON and len(data) <= HTTP_STEP_BYTES
        async with self._api.slices(1 if is_short else HTTP_BATCH_MAX) as slices:
            if is_short:
                return reader.read_short(data)
            if kind == JSON:
                return await reader.read_long(data, slices)
            return await reader.read_lines(data, slices)

    def page_endpoint(self, make: Callable[[HttpRequest, Names], Reply]) -> Endpoint:
        """Return the function that answers requests for the dashboard, without a token."""

        async def respond(request: HttpRequest, names: Names) -> Reply:
            try:
                self._check_source(request, is_guarded=True)
                return make(request, names)
            except Refusal as refusal:
                self._api.refusals.note(refusal.word)
                return refused(refusal)

        return respond

    async def refuse(self, refusal: Refusal) -> Reply:
        """Answer a request for an unknown call."""
        self._api.refusals.note(refusal.word)
        reply = refused(refusal)
        self._api.counters_of("").note(reply.status, 0)
        return reply

    def _check_source(self, request: HttpRequest, *, is_guarded: bool) -> None:
        """Refuse requests of web pages; `SourceRefused`.

        Probes of load balancers speak HTTP/1.0 without a Host, which every browser sends.
        """
        headers = request.headers
        host = headers.get(hdrs.HOST)
        if host is not None or is_guarded or request.version != HTTP_1_0:
            self._hosts.check(host)
        origin = headers.get(hdrs.ORIGIN)
        if origin is not None and not (self._serves_ui and _is_own(origin, host)):
            raise SourceRefused("requests of other web pages (with an Origin) are not served")

    async def _authenticate(self, request: HttpRequest) -> Principal:
        header = request.headers.get(hdrs.AUTHORIZATION, "")
        if header and len(request.headers.getall(hdrs.AUTHORIZATION)) > 1:
            raise BadRequest("the request has more than one Authorization")
        transport = request.transport
        if transport is None:
            raise Unauthorized
        principal: Principal | None
        if header:
            principal = await self._principal_of(header, request)
        else:
            principal = self._authenticator.identify(
                transport.get_extra_info("socket"), transport.get_extra_info("peercert")
            )
        if principal is None:
            raise Unauthorized
        request.connection.has_shown_token()
        return principal

    async def _body_of(self, request: HttpRequest, principal: Principal) -> tuple[bytes, Principal]:
        """Return the body, and the principal as of when all of it has arrived.

        Raises what `read_bytes` does, and `Unauthorized`.
        """
        is_late = not request.body.is_eof()
        data = await read_bytes(request, self._body_bytes_max)
        if is_late and principal is not EVERYBODY:
            renewed = self._authenticator.renewed(principal)
            if renewed is None:
                raise Unauthorized(ENDED_TOKEN)
            principal = renewed
        return data, principal

    async def _principal_of(self, header: str, request: HttpRequest) -> Principal:
        """Return the principal of the token; after many failures a wrong one is answered late.

        Raises `Unauthorized`.
        """
        authenticator, peer = self._authenticator, request.remote
        now_ms = monotonic_ns() // NS_PER_MS
        is_bearer = header[: len(_BEARER)].lower() == _BEARER
        token = header[len(_BEARER) :].strip() if is_bearer else ""
        principal = authenticator.login(token, peer, now_ms)
        if principal is None:
            if delay_ms := authenticator.delay_ms(peer, now_ms):
                await asyncio.sleep(delay_ms / 1_000)
            if not token:
                raise Unauthorized
            raise Unauthorized(authenticator.expiry(token) or WRONG_TOKEN)
        return principal


def _is_own(origin: str, host: str | None) -> bool:
    """Tell whether a request was sent by a page of the host that it names.

    >>> _is_own("http://localhost:11301", "localhost:11301"), _is_own("http://evil.example", "x")
    (True, False)
    """
    return host is not None and origin in {f"http://{host}", f"https://{host}"}


def media_type_of(request: HttpRequest, *, may_be_empty: bool) -> str:
    """Return the media type of a request's body: JSON, or lines of it; `MediaTypeWrong`."""
    headers = request.headers
    if headers.get(hdrs.CONTENT_ENCODING, "identity") != "identity":
        raise MediaTypeWrong("requests are read as they are: no Content-Encoding")
    content_type = headers.get(hdrs.CONTENT_TYPE, "")
    if content_type == JSON:  # the usual value
        return JSON
    if may_be_empty and request.body is EMPTY_PAYLOAD and hdrs.CONTENT_TYPE not in headers:
        return JSON
    # aiohttp would parse it with Python's `email`, which fails for `; a*`.
    kind, *parameters = (text.strip().lower() for text in content_type.split(";"))
    if kind not in {JSON, LINES}:
        mistake = f"is {content_type!r}, not" if content_type else "is missing; it must be"
        raise MediaTypeWrong(f"the Content-Type {mistake} {JSON!r}")
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name == "charset" and value.strip('"') not in {"utf-8", "utf8"}:
            raise MediaTypeWrong(f"the charset is {value!r}, not 'utf-8'")
    return kind


def _check_coding(request: HttpRequest) -> None:
    """Refuse a body with two codings; the parser has refused unknown ones."""
    if request.headers[hdrs.TRANSFER_ENCODING].lower() != "chunked":
        request.keep_alive = False
        raise CodingUnknown
