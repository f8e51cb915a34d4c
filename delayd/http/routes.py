"""The table of calls: what is asked for where, who may, what it says, what it answers.

Router, authorization, OpenAPI and the tests of docs/http.md are made of it. Rows of one path stand
together; those that are called most come first, since paths are tried in this order.
"""

from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from aiohttp import web

from delayd.access.scopes import Scope
from delayd.http import health, jobs, leases, looking, manual, openapi, puts, reserving, topics
from delayd.http.api import Call
from delayd.http.queries import Horizon, ListJobs, ListTopics, ManyJobs, PolicyBody
from delayd.http.reading import Form
from delayd.http.schemas import (
    Advance,
    Bury,
    ChangeJob,
    Held,
    HeldMany,
    Kick,
    Nack,
    NackMany,
    Nothing,
    Pause,
    PutJob,
    PutJobs,
    PutKeyed,
    Reschedule,
    Reserve,
    ReserveAny,
)

Handler = Callable[[Call], Awaitable[web.StreamResponse]]


class Route(NamedTuple):
    """One call."""

    method: str
    path: str
    handler: Handler
    scope: Scope | None
    """What a token must be good for; None: anybody may, without a token."""
    form: type[Form] | None = None
    """What the body says; None: there is no body."""
    batch: type[Form] | None = None
    """What the body says if it has this form's first field instead: the call for many at once."""
    query: type[Form] | None = None
    """What the query says; None: there is no query."""
    may_be_empty: bool = False
    """No body says the same as `{}`."""
    says: manual.Entry | None = None
    """What it is for and what it answers; None: nobody is told that there is such a call."""


ROUTES: Final = (
    Route(
        "POST", "/v1/topics/{topic}/jobs", puts.put, Scope.PUT, PutJob, PutJobs, says=manual.PUT_JOB
    ),
    Route(
        "POST",
        "/v1/topics/{topic}/reserve",
        reserving.reserve,
        Scope.RESERVE,
        Reserve,
        may_be_empty=True,
        says=manual.RESERVE,
    ),
    Route(
        "POST",
        "/v1/reserve",
        reserving.reserve_any,
        Scope.RESERVE,
        ReserveAny,
        says=manual.RESERVE_ANY,
    ),
    Route("POST", "/v1/ack", leases.ack_many, Scope.DELETE, HeldMany, says=manual.ACK_MANY),
    Route("POST", "/v1/nack", leases.nack_many, Scope.RELEASE, NackMany, says=manual.NACK_MANY),
    Route("POST", "/v1/jobs/{id}/ack", leases.ack, Scope.DELETE, Held, says=manual.ACK),
    Route("POST", "/v1/jobs/{id}/nack", leases.nack, Scope.RELEASE, Nack, says=manual.NACK),
    Route("POST", "/v1/jobs/{id}/touch", leases.touch, Scope.RELEASE, Held, says=manual.TOUCH),
    Route("POST", "/v1/jobs/{id}/bury", leases.bury, Scope.BURY, Bury, says=manual.BURY),
    Route(
        "POST",
        "/v1/jobs/{id}/kick",
        jobs.kick,
        Scope.KICK,
        Nothing,
        may_be_empty=True,
        says=manual.KICK_JOB,
    ),
    Route("GET", "/v1/jobs/{id}", jobs.get, Scope.PEEK, says=manual.GET_JOB),
    Route("PATCH", "/v1/jobs/{id}", jobs.change, Scope.PUT, ChangeJob, says=manual.CHANGE_JOB),
    Route("DELETE", "/v1/jobs/{id}", jobs.cancel, Scope.DELETE, says=manual.CANCEL_JOB),
    Route(
        "PUT",
        "/v1/topics/{topic}/keys/{key}",
        puts.put_key,
        Scope.PUT,
        PutKeyed,
        says=manual.PUT_KEY,
    ),
    Route("GET", "/v1/topics/{topic}/keys/{key}", jobs.get_key, Scope.PEEK, says=manual.GET_KEY),
    Route(
        "PATCH",
        "/v1/topics/{topic}/keys/{key}",
        jobs.change_key,
        Scope.PUT,
        ChangeJob,
        says=manual.CHANGE_KEY,
    ),
    Route(
        "DELETE",
        "/v1/topics/{topic}/keys/{key}",
        jobs.cancel_key,
        Scope.DELETE,
        says=manual.CANCEL_KEY,
    ),
    Route(
        "POST",
        "/v1/topics/{topic}/keys/{key}/kick",
        jobs.kick_key,
        Scope.KICK,
        Nothing,
        may_be_empty=True,
        says=manual.KICK_KEY,
    ),
    Route(
        "GET",
        "/v1/topics/{topic}/jobs",
        looking.list_jobs,
        Scope.PEEK,
        query=ListJobs,
        says=manual.LIST_JOBS,
    ),
    Route(
        "DELETE",
        "/v1/topics/{topic}/jobs",
        looking.cancel_jobs,
        Scope.DELETE,
        query=ManyJobs,
        says=manual.CANCEL_JOBS,
    ),
    Route(
        "POST",
        "/v1/topics/{topic}/jobs/kick",
        looking.kick_jobs,
        Scope.KICK,
        Nothing,
        query=ManyJobs,
        may_be_empty=True,
        says=manual.KICK_JOBS,
    ),
    Route(
        "POST",
        "/v1/topics/{topic}/jobs/reschedule",
        looking.reschedule_jobs,
        Scope.PUT,
        Reschedule,
        query=ManyJobs,
        says=manual.RESCHEDULE_JOBS,
    ),
    Route(
        "GET",
        "/v1/topics",
        topics.list_topics,
        Scope.STATS,
        query=ListTopics,
        says=manual.LIST_TOPICS,
    ),
    Route("GET", "/v1/topics/{topic}", topics.get_topic, Scope.STATS, says=manual.GET_TOPIC),
    Route(
        "GET", "/v1/topics/{topic}/policy", topics.get_policy, Scope.STATS, says=manual.GET_POLICY
    ),
    Route(
        "PUT",
        "/v1/topics/{topic}/policy",
        topics.set_policy,
        Scope.ADMIN,
        PolicyBody,
        says=manual.SET_POLICY,
    ),
    Route(
        "DELETE",
        "/v1/topics/{topic}/policy",
        topics.drop_policy,
        Scope.ADMIN,
        says=manual.DROP_POLICY,
    ),
    Route("POST", "/v1/topics/{topic}/pause", topics.pause, Scope.PAUSE, Pause, says=manual.PAUSE),
    Route(
        "POST",
        "/v1/topics/{topic}/resume",
        topics.resume,
        Scope.PAUSE,
        Nothing,
        may_be_empty=True,
        says=manual.RESUME,
    ),
    Route(
        "POST",
        "/v1/topics/{topic}/kick",
        topics.kick,
        Scope.KICK,
        Kick,
        may_be_empty=True,
        says=manual.KICK,
    ),
    Route(
        "POST",
        "/v1/topics/{topic}/clear",
        topics.clear,
        Scope.ADMIN,
        Nothing,
        may_be_empty=True,
        says=manual.CLEAR,
    ),
    Route("GET", "/v1/calendar", looking.calendar, Scope.PEEK, query=Horizon, says=manual.CALENDAR),
    Route("GET", "/v1/stats", health.stats, Scope.STATS, says=manual.STATS),
    Route("GET", "/metrics", health.metrics, Scope.STATS, says=manual.METRICS),
    Route("GET", "/healthz", health.healthz, None, says=manual.HEALTHZ),
    Route("GET", "/readyz", health.readyz, None, says=manual.READYZ),
    Route("POST", "/v1/clock/advance", health.advance, Scope.ADMIN, Advance, says=manual.ADVANCE),
    Route("GET", "/openapi.json", openapi.serve, None, says=manual.OPENAPI),
)
