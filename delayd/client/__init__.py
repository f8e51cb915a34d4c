"""A client of delayd: put jobs, work on them, manage them.

    from delayd.client import Client

    with Client("http://127.0.0.1:11301") as client:
        client.put("mail", {"to": "ada"}, delay="15s", key="welcome-ada")
        with client.reserve("mail") as job:
            print(job.json())

The way of one call, in the order in which to read it; over the line `line_calls` and `beanstalk`
stand in place of `http_calls` and `http1`. Together they are 2,400 lines, over the line 3,000:

    sync               `Client`, with one method for each operation, and `Job`
    http_calls         requests and answers of each operation; generators without a socket
    connection         connecting, sending, receiving, which wait
    connection_pool    which connection is used
    attempts           at which address a call is tried, and when again
    http1              requests and responses as bytes

Jobs in hand are in `jobs`, and `touching` extends their reservations while a handler runs. Workers
are in `work_loop`, the loop of all of them, `crew`, which reserves and acknowledges for the threads
or tasks of one, and `worker`; `tasks` are functions that workers call, `reloader` starts a worker
again when a file has changed, and `job_stream` is for programs with an event loop of their own.
`aio` and `aio_connection` are the same with asyncio: the same generators, pools and attempts,
awaited (`steps`). `values` are arguments, `results` and `errors` the outcomes; `answers` checks a
server's answers before they are used, and `limits` bounds them.

Names are loaded when they are first used, so that importing the package costs nothing. The package
imports nothing of the daemon, and only Python's standard library.
"""

from types import MappingProxyType

TYPE_CHECKING = False  # as in typing, which is not imported: it would take longer than all of this
if TYPE_CHECKING:  # `as` the same name: type checkers take it for a public name
    from delayd.client.aio import AsyncClient as AsyncClient
    from delayd.client.aio import AsyncJob as AsyncJob
    from delayd.client.errors import BodyTooBig as BodyTooBig
    from delayd.client.errors import Busy as Busy
    from delayd.client.errors import CapReached as CapReached
    from delayd.client.errors import ClientClosed as ClientClosed
    from delayd.client.errors import ConnectionLost as ConnectionLost
    from delayd.client.errors import DelaydError as DelaydError
    from delayd.client.errors import DelayTooLong as DelayTooLong
    from delayd.client.errors import Draining as Draining
    from delayd.client.errors import FieldProblem as FieldProblem
    from delayd.client.errors import Forbidden as Forbidden
    from delayd.client.errors import GroupFull as GroupFull
    from delayd.client.errors import GroupMissing as GroupMissing
    from delayd.client.errors import GroupsFull as GroupsFull
    from delayd.client.errors import IdempotencyKeyReused as IdempotencyKeyReused
    from delayd.client.errors import IdempotencyKeysFull as IdempotencyKeysFull
    from delayd.client.errors import Invalid as Invalid
    from delayd.client.errors import JobAlreadyExists as JobAlreadyExists
    from delayd.client.errors import JobNotFound as JobNotFound
    from delayd.client.errors import JobReserved as JobReserved
    from delayd.client.errors import KeyInvalid as KeyInvalid
    from delayd.client.errors import NoRoom as NoRoom
    from delayd.client.errors import NoStandby as NoStandby
    from delayd.client.errors import NotFound as NotFound
    from delayd.client.errors import NotNow as NotNow
    from delayd.client.errors import NotOnThisProtocol as NotOnThisProtocol
    from delayd.client.errors import NotReady as NotReady
    from delayd.client.errors import NotReserved as NotReserved
    from delayd.client.errors import NotUnderstood as NotUnderstood
    from delayd.client.errors import NoVirtualClock as NoVirtualClock
    from delayd.client.errors import OutOfSpace as OutOfSpace
    from delayd.client.errors import PolicyChanged as PolicyChanged
    from delayd.client.errors import PolicyInvalid as PolicyInvalid
    from delayd.client.errors import PushIsOff as PushIsOff
    from delayd.client.errors import Refused as Refused
    from delayd.client.errors import ScheduleConfigured as ScheduleConfigured
    from delayd.client.errors import ScheduleInvalid as ScheduleInvalid
    from delayd.client.errors import ScheduleNotFound as ScheduleNotFound
    from delayd.client.errors import ScheduleOver as ScheduleOver
    from delayd.client.errors import SchedulesFull as SchedulesFull
    from delayd.client.errors import ServerFault as ServerFault
    from delayd.client.errors import StateConflict as StateConflict
    from delayd.client.errors import Stopping as Stopping
    from delayd.client.errors import TargetRefused as TargetRefused
    from delayd.client.errors import TimedOut as TimedOut
    from delayd.client.errors import TooManyRequests as TooManyRequests
    from delayd.client.errors import TopicNameInvalid as TopicNameInvalid
    from delayd.client.errors import TopicNotFound as TopicNotFound
    from delayd.client.errors import Unauthorized as Unauthorized
    from delayd.client.errors import Unreachable as Unreachable
    from delayd.client.errors import WrongProtocol as WrongProtocol
    from delayd.client.errors import WrongState as WrongState
    from delayd.client.results import Attempt as Attempt
    from delayd.client.results import BackfillResult as BackfillResult
    from delayd.client.results import Became as Became
    from delayd.client.results import Calendar as Calendar
    from delayd.client.results import DeadGroup as DeadGroup
    from delayd.client.results import Failure as Failure
    from delayd.client.results import GroupInfo as GroupInfo
    from delayd.client.results import GroupPage as GroupPage
    from delayd.client.results import Health as Health
    from delayd.client.results import JobInfo as JobInfo
    from delayd.client.results import LastRun as LastRun
    from delayd.client.results import PolicyInfo as PolicyInfo
    from delayd.client.results import PutResult as PutResult
    from delayd.client.results import Reservation as Reservation
    from delayd.client.results import RunResult as RunResult
    from delayd.client.results import ScheduleInfo as ScheduleInfo
    from delayd.client.results import SchedulePreview as SchedulePreview
    from delayd.client.results import TopicInfo as TopicInfo
    from delayd.client.sync import Client as Client
    from delayd.client.sync import Job as Job
    from delayd.client.tasks import NotATask as NotATask
    from delayd.client.tasks import Task as Task
    from delayd.client.tasks import Tasks as Tasks
    from delayd.client.values import Changes as Changes
    from delayd.client.values import Filter as Filter
    from delayd.client.values import NewJob as NewJob
    from delayd.client.values import NewSchedule as NewSchedule
    from delayd.client.values import PutOptions as PutOptions
    from delayd.client.values import ScheduleOptions as ScheduleOptions
    from delayd.client.values import Timing as Timing
    from delayd.client.worker import AsyncWorker as AsyncWorker
    from delayd.client.worker import Worker as Worker

_NAMES = MappingProxyType(
    {
        "aio": "AsyncClient AsyncJob",
        "errors": (
            "BodyTooBig Busy CapReached ClientClosed ConnectionLost DelayTooLong DelaydError "
            "Draining FieldProblem Forbidden GroupFull GroupMissing GroupsFull "
            "IdempotencyKeyReused IdempotencyKeysFull Invalid JobAlreadyExists JobNotFound "
            "JobReserved KeyInvalid NoRoom NoStandby NoVirtualClock NotFound NotNow "
            "NotOnThisProtocol NotReady NotReserved "
            "NotUnderstood OutOfSpace PolicyChanged PolicyInvalid PushIsOff Refused "
            "ScheduleConfigured ScheduleInvalid ScheduleNotFound ScheduleOver SchedulesFull "
            "ServerFault StateConflict Stopping TargetRefused TimedOut TooManyRequests "
            "TopicNameInvalid TopicNotFound Unauthorized Unreachable WrongProtocol WrongState"
        ),
        "results": (
            "Attempt BackfillResult Became Calendar DeadGroup Failure GroupInfo GroupPage "
            "Health JobInfo LastRun PolicyInfo PutResult Reservation RunResult ScheduleInfo "
            "SchedulePreview TopicInfo"
        ),
        "sync": "Client Job",
        "tasks": "NotATask Task Tasks",
        "values": "Changes Filter NewJob NewSchedule PutOptions ScheduleOptions Timing",
        "worker": "AsyncWorker Worker",
    }
)
_HOMES = MappingProxyType({name: home for home, names in _NAMES.items() for name in names.split()})
"""The module of each name."""
__all__ = list(_HOMES)


def __dir__() -> list[str]:
    """Return the names that are there, loaded or not."""
    return __all__


def __getattr__(name: str) -> object:
    """Load the module of a name. Raises AttributeError."""
    from importlib import import_module  # noqa: PLC0415 - not before a name is used

    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"delayd.client.{_HOMES[name]}"), name)
