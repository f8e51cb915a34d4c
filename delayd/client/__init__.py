"""A client of delayd: put jobs, work on them, look after them.

    from delayd.client import Client

    with Client("http://127.0.0.1:11301") as client:
        client.put("mail", {"to": "ada"}, delay="15s", key="welcome-ada")
        with client.reserve("mail") as job:
            print(job.json())

Names are loaded when they are first used, so that importing the package costs nothing. The package
imports nothing of the daemon, and nothing that Python does not bring.
"""

from types import MappingProxyType

TYPE_CHECKING = False  # as in typing, which is not imported: it would take longer than all of this
if TYPE_CHECKING:
    from delayd.client.aio import AsyncClient
    from delayd.client.aio_jobs import AsyncJob
    from delayd.client.errors import (
        BodyTooBig,
        Busy,
        CapReached,
        ConnectionLost,
        DelaydError,
        DelayTooLong,
        Draining,
        FieldProblem,
        Forbidden,
        IdempotencyKeyReused,
        Invalid,
        JobAlreadyExists,
        JobNotFound,
        JobReserved,
        KeyInvalid,
        NoRoom,
        NotFound,
        NotNow,
        NotOnThisProtocol,
        NotReady,
        NotReserved,
        NotUnderstood,
        NoVirtualClock,
        OutOfSpace,
        PolicyInvalid,
        PushIsOff,
        Refused,
        ServerFault,
        StateConflict,
        Stopping,
        TargetRefused,
        TimedOut,
        TooManyRequests,
        TopicNameInvalid,
        TopicNotFound,
        Unauthorized,
        Unreachable,
        WrongProtocol,
        WrongState,
    )
    from delayd.client.jobs import Job
    from delayd.client.results import (
        Became,
        Calendar,
        Failure,
        Health,
        JobInfo,
        PolicyInfo,
        PutResult,
        Reservation,
        TopicInfo,
    )
    from delayd.client.sync import Client
    from delayd.client.values import Changes, Filter, NewJob, PutOptions, Timing
    from delayd.client.worker import AsyncWorker, Worker

__all__ = [
    "AsyncClient",
    "AsyncJob",
    "AsyncWorker",
    "Became",
    "BodyTooBig",
    "Busy",
    "Calendar",
    "CapReached",
    "Changes",
    "Client",
    "ConnectionLost",
    "DelayTooLong",
    "DelaydError",
    "Draining",
    "Failure",
    "FieldProblem",
    "Filter",
    "Forbidden",
    "Health",
    "IdempotencyKeyReused",
    "Invalid",
    "Job",
    "JobAlreadyExists",
    "JobInfo",
    "JobNotFound",
    "JobReserved",
    "KeyInvalid",
    "NewJob",
    "NoRoom",
    "NoVirtualClock",
    "NotFound",
    "NotNow",
    "NotOnThisProtocol",
    "NotReady",
    "NotReserved",
    "NotUnderstood",
    "OutOfSpace",
    "PolicyInfo",
    "PolicyInvalid",
    "PushIsOff",
    "PutOptions",
    "PutResult",
    "Refused",
    "Reservation",
    "ServerFault",
    "StateConflict",
    "Stopping",
    "TargetRefused",
    "TimedOut",
    "Timing",
    "TooManyRequests",
    "TopicInfo",
    "TopicNameInvalid",
    "TopicNotFound",
    "Unauthorized",
    "Unreachable",
    "Worker",
    "WrongProtocol",
    "WrongState",
]

_HOMES = MappingProxyType(
    {
        "AsyncClient": "aio",
        "AsyncWorker": "worker",
        "Worker": "worker",
        "AsyncJob": "aio_jobs",
        "Client": "sync",
        "Job": "jobs",
        **dict.fromkeys(
            (
                *("Became", "Calendar", "Failure", "Health", "JobInfo", "PolicyInfo", "PutResult"),
                *("Reservation", "TopicInfo"),
            ),
            "results",
        ),
        **dict.fromkeys(("Changes", "Filter", "NewJob", "PutOptions", "Timing"), "values"),
    }
)
"""In which module a name is; all others are errors."""


def __getattr__(name: str) -> object:
    """Load what is used. Raises AttributeError."""
    from importlib import import_module  # noqa: PLC0415 - only what is used is loaded

    if name.startswith("_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"delayd.client.{_HOMES.get(name, 'errors')}"), name)
