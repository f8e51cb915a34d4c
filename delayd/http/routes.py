"""The table of calls: what is asked for where, who may, what it says, what it answers.

Router, authorization, OpenAPI and the tests of docs/http.md are made of it. Rows of one path stand
together; those that are called most come first, since paths are tried in this order.
"""

from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from delayd.access.scopes import Scope
from delayd.http import api_docs, openapi
from delayd.http.api import Call
from delayd.http.handlers import health, jobs, leases, many_jobs, puts, reserve, topics
from delayd.http.queries import Horizon, ListJobs, ListTopics, ManyJobs, PolicyBody
from delayd.http.reading import Form
from delayd.http.responses import Reply
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

Handler = Callable[[Call], Awaitable[Reply]]


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
    says: api_docs.Entry | None = None
    """What it is for and what it answers; None: nobody is told that there is such a call."""


ROUTES: Final = (
    Route(
        "POST",
        "/v1/topics/{topic}/jobs",
        puts.put,
        Scope.PUT,
        PutJob,
        PutJobs,
        says=api_docs.PUT_JOB,
    ),
    Route(
        "POST",
        "/v1/topics/{topic}/reserve",
        reserve.reserve,
        Scope.RESERVE,
        Reserve,
        may_be_empty=True,
        says=api_docs.RESERVE,
    ),
    Route(
        "POST",
        "/v1/reserve",
        reserve.reserve_any,
        Scope.RESERVE,
        ReserveAny,
        says=api_docs.RESERVE_ANY,
    ),
    Route("POST", "/v1/ack", leases.ack_many, Scope.DELETE, HeldMany, says=api_docs.ACK_MANY),
    Route("POST", "/v1/nack", leases.nack_many, Scope.RELEASE, NackMany, says=api_docs.NACK_MANY),
    Route("POST", "/v1/jobs/{id}/ack", leases.ack, Scope.DELETE, Held, says=api_docs.ACK),
    Route("POST", "/v1/jobs/{id}/nack", leases.nack, Scope.RELEASE, Nack, says=api_docs.NACK),
    Route("POST", "/v1/jobs/{id}/touch", leases.touch, Scope.RELEASE, Held, says=api_docs.TOUCH),
    Route("POST", "/v1/jobs/{id}/bury", leases.bury, Scope.BURY, Bury, says=api_docs.BURY),
    Route(
        "POST",
        "/v1/jobs/{id}/kick",
        jobs.kick,
        Scope.KICK,
        Nothing,
        may_be_empty=True,
        says=api_docs.KICK_JOB,
    ),
    Route("GET", "/v1/jobs/{id}", jobs.get, Scope.PEEK, says=api_docs.GET_JOB),
    Route("PATCH", "/v1/jobs/{id}", jobs.change, Scope.PUT, ChangeJob, says=api_docs.CHANGE_JOB),
    Route("DELETE", "/v1/jobs/{id}", jobs.cancel, Scope.DELETE, says=api_docs.CANCEL_JOB),
    Route(
        "PUT",
        "/v1/topics/{topic}/keys/{key}",
        puts.put_key,
        Scope.PUT,
        PutKeyed,
        says=api_docs.PUT_KEY,
    ),
    Route("GET", "/v1/topics/{topic}/keys/{key}", jobs.get_key, Scope.PEEK, says=api_docs.GET_KEY),
    Route(
        "PATCH",
        "/v1/topics/{topic}/keys/{key}",
        jobs.change_key,
        Scope.PUT,
        ChangeJob,
        says=api_docs.CHANGE_KEY,
    ),
    Route(
        "DELETE",
        "/v1/topics/{topic}/keys/{key}",
        jobs.cancel_key,
        Scope.DELETE,
        says=api_docs.CANCEL_KEY,
    ),
    Route(
        "POST",
        "/v1/topics/{topic}/keys/{key}/kick",
        jobs.kick_key,
        Scope.KICK,
        Nothing,
        may_be_empty=True,
        says=api_docs.KICK_KEY,
    ),
    Route(
        "GET",
        "/v1/topics/{topic}/jobs",
        many_jobs.list_jobs,
        Scope.PEEK,
        query=ListJobs,
        says=api_docs.LIST_JOBS,
    ),
    Route(
        "DELETE",
        "/v1/topics/{topic}/jobs",
        many_jobs.cancel_jobs,
        Scope.DELETE,
        query=ManyJobs,
        says=api_docs.CANCEL_JOBS,
    ),
    Route(
        "POST",
        "/v1/topics/{topic}/jobs/kick",
        many_jobs.kick_jobs,
        Scope.KICK,
        Nothing,
        query=ManyJobs,
        may_be_empty=True,
        says=api_docs.KICK_JOBS,
    ),
    Route(
        "POST",
        "/v1/topics/{topic}/jobs/reschedule",
        many_jobs.reschedule_jobs,
        Scope.PUT,
        Reschedule,
        query=ManyJobs,
        says=api_docs.RESCHEDULE_JOBS,
    ),
    Route(
        "GET",
        "/v1/topics",
        topics.list_topics,
        Scope.STATS,
        query=ListTopics,
        says=api_docs.LIST_TOPICS,
    ),
    Route("GET", "/v1/topics/{topic}", topics.get_topic, Scope.STATS, says=api_docs.GET_TOPIC),
    Route(
        "GET", "/v1/topics/{topic}/policy", topics.get_policy, Scope.STATS, says=api_docs.GET_POLICY
    ),
    Route(
        "PUT",
        "/v1/topics/{topic}/policy",
        topics.set_policy,
        Scope.ADMIN,
        PolicyBody,
        says=api_docs.SET_POLICY,
    ),
    Route(
        "DELETE",
        "/v1/topics/{topic}/policy",
        topics.drop_policy,
        Scope.ADMIN,
        says=api_docs.DROP_POLICY,
    ),
    Route(
        "POST", "/v1/topics/{topic}/pause", topics.pause, Scope.PAUSE, Pause, says=api_docs.PAUSE
    ),
    Route(
        "POST",
        "/v1/topics/{topic}/resume",
        topics.resume,
        Scope.PAUSE,
        Nothing,
        may_be_empty=True,
        says=api_docs.RESUME,
    ),
    Route(
        "POST",
        "/v1/topics/{topic}/kick",
        topics.kick,
        Scope.KICK,
        Kick,
        may_be_empty=True,
        says=api_docs.KICK,
    ),
    Route(
        "POST",
        "/v1/topics/{topic}/clear",
        topics.clear,
        Scope.ADMIN,
        Nothing,
        may_be_empty=True,
        says=api_docs.CLEAR,
    ),
    Route(
        "GET", "/v1/calendar", many_jobs.calendar, Scope.PEEK, query=Horizon, says=api_docs.CALENDAR
    ),
    Route("GET", "/v1/stats", health.stats, Scope.STATS, says=api_docs.STATS),
    Route("GET", "/metrics", health.metrics, Scope.STATS, says=api_docs.METRICS),
    Route("GET", "/healthz", health.healthz, None, says=api_docs.HEALTHZ),
    Route("GET", "/readyz", health.readyz, None, says=api_docs.READYZ),
    Route("POST", "/v1/clock/advance", health.advance, Scope.ADMIN, Advance, says=api_docs.ADVANCE),
    Route("GET", "/openapi.json", openapi.serve, None, says=api_docs.OPENAPI),
)
