"""All errors of the client, as classes.

    DelaydError
      Refused                   the daemon refused it, and nothing has changed
        NotFound                  JobNotFound, TopicNotFound, ScheduleNotFound
        StateConflict             JobAlreadyExists, JobReserved, NotReserved, WrongState,
                                  PolicyChanged, ScheduleOver, NoStandby, NoVirtualClock
        Invalid                   KeyInvalid, TopicNameInvalid, DelayTooLong, PolicyInvalid,
                                  ScheduleInvalid, BodyTooBig, IdempotencyKeyReused, PushIsOff,
                                  TargetRefused, GroupMissing
        NoRoom                    CapReached, GroupFull, GroupsFull, IdempotencyKeysFull,
                                  SchedulesFull, OutOfSpace
        NotNow                    Draining, Stopping, NotReady, Busy, TooManyRequests
        Unauthorized, Forbidden   no valid token; a token without the scope
                                  ScheduleConfigured, which is for no token
      Unreachable               no daemon answers at the address, and nothing was sent
      ConnectionLost            no answer came; it says whether the daemon may have done it
      TimedOut                  no job became ready in time
      NotOnThisProtocol         the line or HTTP cannot do this; the other one can
      WrongProtocol             the address is that of the other protocol, and is named for it
      NotUnderstood             the answer is not of delayd's protocol
      ClientClosed              the client was closed before the call

A refusal's class follows from its `kind`, which never changes, and for some from the wrong field.
On the line, and from daemons that know no kinds, it follows from the `word`, and where several
classes share one, from the title. An unknown kind gets the class of the word.

>>> error = refused("OUT_OF_MEMORY", "jobs_max of topic 'mail' is 5 and 5 are in use")
>>> type(error).__name__, error.word
('NoRoom', 'OUT_OF_MEMORY')
"""

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, Final, NamedTuple


class DelaydError(Exception):
    """Every error that this client raises."""

    results: Sequence[Any] = ()
    """The results of the jobs before, where an operation on many took several requests."""


class FieldProblem(NamedTuple):
    """One mistake in a request."""

    field: str
    """Where: `delay`, `jobs[3].delay`; empty for the whole."""
    detail: str


class Refused(DelaydError):
    """The daemon refused the operation, and nothing has changed but what `done` says."""

    _kinds: ClassVar[Sequence[str]] = ()
    _words: ClassVar[Sequence[str]] = ()

    def __init_subclass__(cls, kinds: str = "", words: str = "") -> None:
        """Note the kinds and words of the daemon's refusals that are of this class."""
        super().__init_subclass__()
        cls._kinds, cls._words = kinds.split(), words.split()

    def __init__(
        self,
        detail: str,
        word: str = "",
        *,
        problems: Sequence[FieldProblem] = (),
        job_id: int | None = None,
        retry_after_s: float | None = None,
        scope: str = "",
        kind: str = "",
        done: int = 0,
    ) -> None:
        super().__init__(detail)
        self.word = word
        """For programs: the same on both protocols, where both can refuse it."""
        self.kind = kind
        """Which refusal of those with this word it is; empty on the line."""
        self.problems = tuple(problems)
        """All mistakes of the request, by field; on the line the first."""
        self.job_id = job_id
        """The job that is in the way."""
        self.retry_after_s = retry_after_s
        """When it may succeed, where nothing is wrong with the request itself."""
        self.scope = scope
        """The scope that the token lacks."""
        self.done = done
        """How many jobs an operation on many had put or changed before it was refused."""


class NotFound(Refused, words="NOT_FOUND"):
    """There is no such job, key, topic or schedule."""


class JobNotFound(NotFound, kinds="job_not_found key_not_found"):
    """The job does not exist, or its state or holder does not allow the operation."""


class TopicNotFound(NotFound, kinds="topic_not_found"):
    """The topic is unused and has no jobs."""


class ScheduleNotFound(NotFound, kinds="schedule_not_found"):
    """There is no schedule of that name, or the token is not for its topic."""


class StateConflict(Refused):
    """The job is there, and something about it does not allow the operation."""


class JobAlreadyExists(StateConflict, kinds="job_already_exists", words="JOB_ALREADY_EXISTS"):
    """A live job of the topic has the key: `job_id`."""


class JobReserved(StateConflict, kinds="job_reserved", words="RESERVED"):
    """A worker holds the job."""


class NotReserved(StateConflict, kinds="reservation_lost", words="NOT_RESERVED"):
    """The reservation has ended: its ttr ran out, or the job went to another worker."""


class WrongState(StateConflict, kinds="wrong_state", words="WRONG_STATE"):
    """The state of the job does not allow this."""


class PolicyChanged(StateConflict, kinds="policy_changed", words="POLICY_CHANGED"):
    """The topic's policy was changed since it was read."""


class ScheduleOver(StateConflict, kinds="schedule_over", words="SCHEDULE_OVER"):
    """The schedule has had as many runs as its limit allows."""


class NoStandby(StateConflict, kinds="no_standby", words="NO_STANDBY"):
    """No standby can take the log over now."""


class NoVirtualClock(StateConflict, kinds="no_virtual_clock", words="NO_VIRTUAL_CLOCK"):
    """The daemon's clock is not virtual, so it cannot be advanced."""


class Invalid(
    Refused,
    ValueError,
    kinds="no_such_call not_json request_malformed request_invalid line_malformed"
    " value_out_of_range",
    words="BAD_FORMAT BAD_JSON UNKNOWN_COMMAND EXPECTED_CRLF",
):
    """The request is wrong, at any time; `problems` lists its mistakes."""


class KeyInvalid(Invalid, kinds="key_invalid"):
    """A key is 1 to 200 bytes of printable UTF-8 without spaces."""


class TopicNameInvalid(Invalid, kinds="topic_name_invalid"):
    """A name is 1 to 200 of `A-Z a-z 0-9 - + / ; . $ _ ( )`, and does not begin with `-`."""


class DelayTooLong(Invalid, kinds="delay_too_long"):
    """The delay is longer than the topic's policy allows."""


class PolicyInvalid(Invalid, kinds="policy_invalid"):
    """The policy has mistakes."""


class ScheduleInvalid(Invalid, kinds="schedule_invalid"):
    """The schedule has mistakes."""


class GroupMissing(Invalid, kinds="group_missing"):
    """The topic takes only jobs with a group."""


class BodyTooBig(Invalid, kinds="body_too_big request_too_long", words="JOB_TOO_BIG"):
    """The body or the request is longer than the daemon, or the topic, accepts."""


class IdempotencyKeyReused(Invalid, kinds="idempotency_key_reused", words="IDEMPOTENCY_KEY_REUSED"):
    """The idempotency key came with another request before."""


class PushIsOff(Invalid, kinds="push_off", words="PUSH_IS_OFF"):
    """This daemon delivers nothing by itself."""


class TargetRefused(Invalid, kinds="not_for_topic target_refused", words="NOT_FOR_TOPIC"):
    """The daemon may not deliver there, or not so."""


class NoRoom(Refused, words="OUT_OF_MEMORY"):
    """A cap is reached, or the disk has no space; what was accepted before is safe."""


class CapReached(NoRoom, kinds="cap_reached"):
    """A cap of the topic or of the daemon is reached."""


class GroupFull(NoRoom, kinds="group_full", words="GROUP_FULL"):
    """The group has as many jobs as the topic's policy allows."""


class GroupsFull(NoRoom, kinds="groups_full"):
    """As many groups of the topic are paused as can be at once."""


class IdempotencyKeysFull(NoRoom, kinds="idempotency_keys_full", words="IDEMPOTENCY_KEYS_FULL"):
    """The daemon remembers as many idempotency keys as it may."""


class SchedulesFull(NoRoom, kinds="schedules_full"):
    """There are as many schedules as there may be."""


class OutOfSpace(NoRoom, kinds="out_of_space"):
    """The daemon's disk has no space for more jobs."""


class NotNow(Refused):
    """The request is right, and may succeed later."""


class Draining(NotNow, kinds="draining", words="DRAINING"):
    """The daemon was told to accept no more jobs."""


class Stopping(NotNow, kinds="stopping", words="STOPPING"):
    """The daemon is stopping."""


class NotReady(NotNow, kinds="not_ready standing_by", words="NOT_READY"):
    """The daemon cannot accept jobs now, or another one owns the log."""


class Busy(NotNow, kinds="busy", words="BUSY"):
    """The daemon cannot do this now."""


class TooManyRequests(NotNow, kinds="too_many_requests", words="TOO_MANY_REQUESTS"):
    """This client has too many connections or requests."""


class Unauthorized(Refused, kinds="unauthorized", words="UNAUTHORIZED"):
    """A valid token is needed."""


class Forbidden(Refused, kinds="forbidden source_refused topic_internal", words="FORBIDDEN"):
    """The token does not allow this: it lacks `scope`; if that is empty, it is for other topics."""


class ScheduleConfigured(Forbidden, kinds="schedule_configured"):
    """The schedule is in the configuration of the daemon, and is changed there."""


class ServerFault(Refused, kinds="internal_error", words="INTERNAL_ERROR"):
    """The daemon made a mistake, which its log describes."""


class Unreachable(DelaydError):
    """No daemon answers at the address; nothing was sent."""

    def __init__(self, where: str, reason: str) -> None:
        advice = (
            "Is one of them running?"  # a new one with a directory would be another queue
            if ", " in where
            else "Is one running there? Start one with `delayd serve --data-dir DIRECTORY`, or name"
            " another url"
        )
        if "certificate" in reason:
            advice = "Name the authority of its certificate: --ca-file FILE, or `tls` of a client"
        elif "WRONG_VERSION_NUMBER" in reason:  # OpenSSL's word for an answer without TLS
            advice = "Its port speaks no TLS: the url begins with http:// or beanstalk://"
        super().__init__(f"no delayd answers at {where}: {reason}. {advice}")
        self.where = where
        self.reason = reason


class ConnectionLost(DelaydError):
    """The connection ended, or time was over, before the whole answer was there.

    `may_have_happened`: the request was sent, so the daemon may have carried it out. It was not
    sent again, because doing it twice would not be the same as doing it once.
    """

    def __init__(self, where: str, reason: str, *, may_have_happened: bool) -> None:
        outcome = "may or may not have been" if may_have_happened else "was not"
        super().__init__(f"the connection to {where} was lost ({reason}); this {outcome} done")
        self.may_have_happened = may_have_happened


class TimedOut(DelaydError):
    """No job became ready in time."""


class ClientClosed(DelaydError):
    """The client was closed before the call; nothing was sent."""

    def __init__(self) -> None:
        super().__init__("the client is closed: make a new one, or call it before the block ends")


class NotOnThisProtocol(DelaydError):
    """The operation exists on the other protocol only."""

    def __init__(self, operation: str, url: str) -> None:
        super().__init__(f"{operation} is not possible over this protocol: use a client of {url}")


class WrongProtocol(DelaydError):
    """The server at the address speaks the other protocol; nothing was done."""

    def __init__(self, where: str, speaks: str, url: str) -> None:
        super().__init__(f"the server at {where} speaks {speaks}: use {url}")
        self.url = url
        """The url to use instead."""


class NotUnderstood(DelaydError):
    """The answer is not one of delayd, or is longer than this client reads.

    The connection is closed then, and nothing is sent again.
    """

    def __init__(self, mistake: str) -> None:
        super().__init__(mistake)
        self.where = ""
        """The url of the server."""
        self.may_have_happened = True
        """Whether the request was sent, so that the daemon may have carried it out."""

    def __str__(self) -> str:
        source = f"the answer of {self.where} is not understood: " if self.where else ""
        outcome = "may or may not have been" if self.may_have_happened else "was not"
        return f"{source}{super().__str__()}; this {outcome} done"


def _classes_by(name: str) -> Mapping[str, type[Refused]]:
    """Return the class for each kind or word of the daemon's refusals."""
    kinds = [kind for kind in globals().values() if isinstance(kind, type)]
    refusals = [kind for kind in kinds if issubclass(kind, Refused)]
    return MappingProxyType({key: kind for kind in refusals for key in getattr(kind, name)})


_BY_KIND: Final = _classes_by("_kinds")
_BY_WORD: Final = _classes_by("_words")
_BY_TITLE: Final[Mapping[str, type[Refused]]] = MappingProxyType(
    {
        "No live job of the topic has the key.": JobNotFound,
        "The job does not exist, or its state or holder does not allow the operation.": JobNotFound,
        "The topic does not exist: it is unused and has no jobs.": TopicNotFound,
        "There is no schedule of that name.": ScheduleNotFound,
        "The key is invalid.": KeyInvalid,
        "The topic's name is invalid.": TopicNameInvalid,
        "The delay is longer than the topic allows.": DelayTooLong,
        "The policy is invalid.": PolicyInvalid,
        "The schedule is invalid.": ScheduleInvalid,
        "The topic takes only jobs with a group, and the put has none.": GroupMissing,
        "The target of a push is refused.": TargetRefused,
        "A cap of the topic or of the daemon is reached.": CapReached,
        "As many groups of the topic are paused as can be at once.": GroupsFull,
        "There are as many schedules as there may be.": SchedulesFull,
        "No space is left beyond what is kept for removals and snapshots.": OutOfSpace,
        (
            "The schedule belongs to the configuration of the daemon, and is changed there."
        ): ScheduleConfigured,
    }
)
"""Where several classes share a word."""
_BY_FIELD: Final = MappingProxyType({"key": KeyInvalid, "topic": TopicNameInvalid})
_SCOPE: Final = r"lacks the scope (\w+)"


def refused(
    word: str,
    detail: str,
    title: str = "",
    *,
    kind: str = "",
    problems: Sequence[FieldProblem] = (),
    **about: Any,  # noqa: ANN401 - as `Refused` takes it
) -> Refused:
    """Return the error for a refusal, by its kind; without one by its word and title."""
    error = _BY_KIND.get(kind) or _BY_TITLE.get(title) or _BY_WORD.get(word, Refused)
    if error is Invalid and len(problems) == 1:
        error = _BY_FIELD.get(problems[0].field, error)
    if error is Forbidden and not about.get("scope") and (found := re.search(_SCOPE, detail)):
        about["scope"] = found[1]
    return error(detail, word, problems=problems, kind=kind, **about)


def counted_from(error: DelaydError, name: str, start: int) -> None:
    """Have the places in an error count from the first of all items, of which `start` went before.

    >>> error = wrong("jobs[3].delay", "must be at least 0")
    >>> counted_from(error, "jobs", 1_000)
    >>> error
    Invalid('jobs[1003].delay: must be at least 0')
    """
    if not isinstance(error, Refused) or not start:
        return
    place = re.compile(rf"^{name}\[(\d+)\]")
    problems = [
        each._replace(field=place.sub(lambda at: f"{name}[{int(at[1]) + start}]", each.field))
        for each in error.problems
    ]
    text = str(error)
    for before, after in zip(error.problems, problems, strict=True):
        text = text.replace(f"{before.field}: {before.detail}", f"{after.field}: {after.detail}", 1)
    error.args, error.problems = (text,), tuple(problems)


def wrong(field: str, detail: str) -> Refused:
    """Return the refusal of an argument that cannot be sent, in the form of the daemon's over HTTP.

    >>> wrong("delay", "must be from 0 to 4294967295 s")
    Invalid('delay: must be from 0 to 4294967295 s')
    """
    text = f"{field}: {detail}" if field else detail
    return refused("BAD_FORMAT", text, problems=[FieldProblem(field, detail)])


def reservation_lost() -> NotReserved:
    """Return the error for a job whose connection is gone, on the line."""
    return NotReserved(
        "the connection that held the job was lost, and its reservation with it", "NOT_RESERVED"
    )
