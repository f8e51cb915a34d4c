"""The table of calls: one row each, with its documentation.

Router, authorization, the OpenAPI document and the tests of docs/http.md are made of it. Refusals
that many calls share (no token, no JSON, a wrong field) are found in `openapi` by the row's other
columns.
"""

from collections.abc import Mapping
from functools import cache
from typing import Any, Final

import orjson

from delayd.access.scopes import Scope
from delayd.core import errors
from delayd.http import answer_forms, openapi, problems, request_forms
from delayd.http.api import Call
from delayd.http.handlers import (
    health,
    jobs,
    leases,
    many_jobs,
    puts,
    reserve,
    schedules,
    topics,
)
from delayd.http.responses import Reply
from delayd.http.routing import Response, Route, Section
from delayd.http.values import Answer
from delayd.limits import (
    GROUPS_PAUSED_MAX,
    HTTP_BATCH_MAX,
    HTTP_WAIT_MS_MAX,
    SCHEDULE_BACKFILL_MAX,
    SCHEDULE_MADE_UP_MAX,
)


async def serve_openapi(_call: Call) -> Reply:
    """Answer with the OpenAPI document."""
    return Reply(200, _openapi_text())


@cache
def _openapi_text() -> bytes:
    return orjson.dumps(openapi.document(ROUTES))


def _ok(when: str, *structs: type[Answer]) -> Mapping[int, Response]:
    """Return the only answer of a call that is carried out."""
    return {200: Response(when, structs)}


def _each(when: str, results: type[Answer]) -> Mapping[int, Response]:
    """Return the answers of a call that has a result for each of many jobs."""
    some = Response("Some were refused; each result says why.", (results,))
    return {200: Response(when, (results,)), 207: some}


_NO_BODY: Final[Mapping[str, Any]] = {"form": request_forms.NothingForm, "may_be_empty": True}
"""Of a call that takes `{}` or nothing, which a POST may have."""
_OF_TARGETS: Final = (errors.TargetRefused, errors.NotForTopic, errors.PushIsOff)
_OF_NEW_JOBS: Final = (
    *(errors.BodyTooBig, errors.CapReached, errors.GroupFull, errors.GroupMissing),
    *(errors.OutOfSpace, errors.Draining, *_OF_TARGETS),
)
_PUT_REFUSALS: Final = (
    *(errors.ValueOutOfRange, errors.DelayTooLong, *_OF_NEW_JOBS),
    errors.JobNotFound,  # for `instead_of`
)
_HELD: Final = (errors.JobNotFound, problems.ReservationLost)
_NAMED: Final = _ok("The operation was carried out.", answer_forms.NamedAnswer)
_RESERVED: Final = {
    200: Response("Jobs, the most urgent first.", (answer_forms.ReservedAnswer,)),
    204: Response("No job became ready while the call waited."),
}
_BURIED: Final = _ok("The job is buried.", answer_forms.BecameAnswer)
_BURY_REFUSALS: Final = (
    *(errors.JobNotFound, problems.JobReserved, problems.WrongState),
    errors.OutOfSpace,
)
_MANY_DONE: Final = _ok("How many jobs were changed.", answer_forms.ManyAnswer)
_POLICY: Final = _ok("The policy in force.", answer_forms.PolicyOfTopicAnswer)
_PAUSED: Final = _ok("When the pause ends.", answer_forms.PausedAnswer)
_BULK: Final = (
    "With millions of jobs it takes seconds; other requests are served meanwhile. It stops if the"
    " client disconnects, and what was done by then stays done."
)
_MANY: Final = f"{HTTP_BATCH_MAX:,} at most"

_PRODUCERS: Final = (
    Route(
        *("POST", "/v1/topics/{topic}/jobs", puts.put, Scope.PUT),
        *("put_job", Section.PRODUCERS, "Put a job, or many"),
        'The job is on disk when this is answered. `{"jobs": [...]}`, or one job on each line with'
        f" the Content-Type `application/x-ndjson`, puts {_MANY}: what is malformed"
        " refuses the whole request (a bad line is named by its number), and what is refused"
        " for another reason (a key that is taken, a cap) is reported for that job alone. With an"
        " `Idempotency-Key` the same request, sent again within a day, makes no second job.",
        {
            200: Response(
                "A live job has the key, and was kept or changed as on_conflict says.",
                (answer_forms.PutAnswer,),
            ),
            201: Response(
                "The job was put, or all jobs of the batch.",
                (answer_forms.PutAnswer, answer_forms.PutResultsAnswer),
            ),
            207: Response(
                "Some jobs of the batch were refused; each has its own status.",
                (answer_forms.PutResultsAnswer,),
            ),
        },
        (
            *(*_PUT_REFUSALS, errors.JobAlreadyExists),
            *(problems.KeyReused, problems.IdempotencyKeysFull),
        ),
        form=request_forms.PutJobForm,
        batch=request_forms.PutJobsForm,
    ),
    Route(
        *("PUT", "/v1/topics/{topic}/keys/{key}", puts.put_key, Scope.PUT),
        *("put_job_by_key", Section.PRODUCERS, "Put a job under a key"),
        "It can be repeated safely: the job that has the key gets the new body, time,"
        " priority, ttr and ladder, unless `on_conflict` says otherwise.",
        {
            200: Response(
                "The job that has the key was changed or kept.", (answer_forms.PutAnswer,)
            ),
            201: Response("The job was put.", (answer_forms.PutAnswer,)),
        },
        (*_PUT_REFUSALS, errors.JobAlreadyExists, errors.KeyInvalid),
        form=request_forms.PutKeyedForm,
    ),
)

_WORKERS: Final = (
    Route(
        *("POST", "/v1/topics/{topic}/reserve", reserve.reserve, Scope.RESERVE),
        *("reserve", Section.WORKERS, "Reserve jobs of a topic"),
        "Takes up to `max` ready jobs at once, or waits for the first,"
        f" {HTTP_WAIT_MS_MAX // 1_000} s at most. A job is reserved until its `ttr` has passed; its"
        " `token` identifies the reservation in the calls below. If the client disconnects before"
        " the answer is sent, nothing is reserved and no attempt is counted.",
        _RESERVED,
        (errors.OutOfSpace,),
        form=request_forms.ReserveForm,
        may_be_empty=True,
    ),
    Route(
        *("POST", "/v1/reserve", reserve.reserve_any, Scope.RESERVE),
        *("reserve_any", Section.WORKERS, "Reserve jobs of several topics"),
        "As from one topic; the most urgent jobs of all of them come first.",
        _RESERVED,
        (errors.OutOfSpace, errors.TopicIsInternal),
        form=request_forms.ReserveAnyForm,
    ),
    Route(
        *("POST", "/v1/ack", leases.ack_many, Scope.DELETE),
        *("ack_many", Section.WORKERS, "Acknowledge many jobs"),
        f"{_MANY}; the answer says for each whether it was still reserved.",
        _each("All jobs were acknowledged.", answer_forms.AckResultsAnswer),
        form=request_forms.HeldManyForm,
    ),
    Route(
        *("POST", "/v1/nack", leases.nack_many, Scope.RELEASE),
        *("nack_many", Section.WORKERS, "Report many failed attempts"),
        f"{_MANY}; the answer has the outcome of each.",
        _each("All jobs were given back.", answer_forms.NackResultsAnswer),
        form=request_forms.NackManyForm,
    ),
    Route(
        *("POST", "/v1/jobs/{id}/ack", leases.ack, Scope.DELETE),
        *("ack", Section.WORKERS, "Acknowledge a job"),
        "The job is done, and is deleted. A worker whose reservation has run out has lost the job,"
        " and is refused.",
        _NAMED,
        _HELD,
        form=request_forms.HeldForm,
    ),
    Route(
        *("POST", "/v1/jobs/{id}/nack", leases.nack, Scope.RELEASE),
        *("nack", Section.WORKERS, "Report a failed attempt"),
        "The retry rule of the job or of its topic decides the outcome: the next step of the"
        " ladder, burial, another topic. A `delay` in the request overrides the step. Without a"
        " rule the job is ready again, after that delay.",
        _ok("What became of the job.", answer_forms.BecameAnswer),
        (*_HELD, errors.ValueOutOfRange, errors.OutOfSpace),
        form=request_forms.NackForm,
    ),
    Route(
        *("POST", "/v1/jobs/{id}/touch", leases.touch, Scope.RELEASE),
        *("touch", Section.WORKERS, "Extend a reservation"),
        "It lasts a full `ttr` from now.",
        _ok("The reservation was extended.", answer_forms.TouchedAnswer),
        (*_HELD, errors.OutOfSpace),
        form=request_forms.HeldForm,
    ),
    Route(
        *("POST", "/v1/jobs/{id}/bury", leases.bury, Scope.BURY),
        *("bury", Section.WORKERS, "Bury a job"),
        "It is not handed out until it is kicked. With a `token` the worker that holds it buries"
        " it; without one it must be delayed or ready, and no attempt is counted.",
        _BURIED,
        (problems.ReservationLost, *_BURY_REFUSALS),
        form=request_forms.BuryForm,
        may_be_empty=True,
    ),
)

_JOBS: Final = (
    Route(
        *("GET", "/v1/jobs/{id}", jobs.get, Scope.PEEK),
        *("get_job", Section.JOBS, "Look at a job"),
        "It may be in any state, and is not changed.",
        _ok("The job.", answer_forms.JobAnswer),
        (errors.JobNotFound,),
    ),
    Route(
        *("PATCH", "/v1/jobs/{id}", jobs.change, Scope.PUT),
        *("change_job", Section.JOBS, "Change a job"),
        "A new time, priority, ttr, body or url, in one step; absent fields stay. A new time takes"
        " a buried job out of burial. A reserved job cannot be changed.",
        _ok("The job as it is after the change.", answer_forms.ChangedAnswer),
        (
            *(errors.JobNotFound, problems.JobReserved, errors.ValueOutOfRange),
            *(errors.DelayTooLong, errors.BodyTooBig, errors.CapReached, errors.OutOfSpace),
            *(errors.GroupFull, errors.GroupMissing),
            *_OF_TARGETS,
        ),
        form=request_forms.ChangeJobForm,
    ),
    Route(
        *("DELETE", "/v1/jobs/{id}", jobs.cancel, Scope.DELETE),
        *("cancel_job", Section.JOBS, "Cancel a job"),
        "It is deleted, whether delayed, ready or buried. A reserved job cannot be cancelled.",
        _NAMED,
        (errors.JobNotFound, problems.JobReserved),
    ),
    Route(
        *("POST", "/v1/jobs/{id}/kick", jobs.kick, Scope.KICK),
        *("kick_job", Section.JOBS, "Make a job ready"),
        "A delayed job is ready at once; a buried one too, and its ladder starts again.",
        _NAMED,
        (errors.JobNotFound, problems.JobReserved, problems.WrongState, errors.OutOfSpace),
        **_NO_BODY,
    ),
)
_BY_KEY: Final = tuple(
    route._replace(
        path="/v1/topics/{topic}/keys/{key}" + route.path.removeprefix("/v1/jobs/{id}"),
        name=f"{route.name}_by_key",
        summary=summary,
        refusals=(errors.KeyNotFound, errors.TopicNotFound, *route.refusals[1:]),
    )
    for route, summary in zip(
        _JOBS,
        (
            "Look at the job that has a key",
            "Change the job that has a key",
            "Cancel the job that has a key",
            "Make the job ready that has a key",
        ),
        strict=True,
    )
)
_BURY_BY_KEY: Final = Route(
    *("POST", "/v1/topics/{topic}/keys/{key}/bury", jobs.bury, Scope.BURY),
    *("bury_job_by_key", Section.JOBS, "Bury the job that has a key"),
    "A delayed or ready job is not handed out until it is kicked.",
    _BURIED,
    (errors.KeyNotFound, errors.TopicNotFound, *_BURY_REFUSALS[1:]),
    form=request_forms.BuryWaitingForm,
    may_be_empty=True,
)
_MANY_JOBS: Final = (
    Route(
        *("GET", "/v1/topics/{topic}/jobs", many_jobs.list_jobs, Scope.PEEK),
        *("list_jobs", Section.JOBS, "List jobs of a topic"),
        "One page, in due order. `after` of an answer asks for the next page; a job that does not"
        " change meanwhile is on exactly one page.",
        _ok("A page.", answer_forms.PageAnswer),
        (errors.TopicNotFound,),
        query=request_forms.ListJobsForm,
    ),
    Route(
        *("DELETE", "/v1/topics/{topic}/jobs", many_jobs.cancel_jobs, Scope.DELETE),
        *("cancel_jobs", Section.JOBS, "Cancel many jobs"),
        "All that match, except reserved ones. Without a filter it takes `all=true` and the scope"
        f" `admin`. {_BULK}",
        _MANY_DONE,
        (errors.TopicNotFound,),
        query=request_forms.CancelJobsForm,
    ),
    Route(
        *("POST", "/v1/topics/{topic}/jobs/kick", many_jobs.kick_jobs, Scope.KICK),
        *("kick_jobs", Section.JOBS, "Make many jobs ready"),
        f"All that match and are delayed or buried. {_BULK}",
        _MANY_DONE,
        (errors.TopicNotFound, errors.OutOfSpace),
        form=request_forms.NothingForm,
        query=request_forms.ManyJobsForm,
        may_be_empty=True,
    ),
    Route(
        *("POST", "/v1/topics/{topic}/jobs/reschedule", many_jobs.reschedule_jobs, Scope.PUT),
        *("reschedule_jobs", Section.JOBS, "Reschedule many jobs"),
        "All that match and are delayed or ready come due after the same delay from now, or at the"
        f" same time. {_BULK}",
        _MANY_DONE,
        (errors.TopicNotFound, errors.ValueOutOfRange, errors.DelayTooLong, errors.OutOfSpace),
        form=request_forms.RescheduleForm,
        query=request_forms.ManyJobsForm,
    ),
    Route(
        *("GET", "/v1/keys/{key}", many_jobs.find_key, Scope.PEEK),
        *("find_key", Section.JOBS, "Find the jobs that have a key"),
        "In all topics and states, since keys are unique within a topic only. One page of those"
        " that the token may see, sorted by topic; empty if no job has the key.",
        _ok("A page.", answer_forms.FoundAnswer),
        (errors.KeyInvalid,),
        query=request_forms.FindKeyForm,
    ),
    Route(
        *("GET", "/v1/dead", many_jobs.get_dead, Scope.PEEK),
        *("get_dead", Section.JOBS, "Group dead letters by reason"),
        "All buried jobs, by topic and by why they failed; words with digits, which differ from"
        " job to job, are not compared. Other calls take the `id` of a group as `reason`.",
        _ok("A page.", answer_forms.DeadAnswer),
        (errors.TopicNotFound,),
        query=request_forms.DeadForm,
    ),
    Route(
        *("GET", "/v1/calendar", many_jobs.calendar, Scope.PEEK),
        *("get_calendar", Section.JOBS, "Count what comes due when"),
        "How many delayed jobs are due in each of some spans of time, by topic.",
        _ok("Jobs due, counted by period.", answer_forms.CalendarAnswer),
        (errors.TopicNotFound, errors.TopicNameInvalid, errors.ValueOutOfRange),
        query=request_forms.HorizonForm,
    ),
)

_TOPICS: Final = (
    Route(
        *("GET", "/v1/topics", topics.list_topics, Scope.STATS),
        *("list_topics", Section.TOPICS, "List topics"),
        "One page of those that the token may see, sorted by name.",
        _ok("A page.", answer_forms.TopicPageAnswer),
        query=request_forms.ListTopicsForm,
    ),
    Route(
        *("GET", "/v1/topics/{topic}", topics.get_topic, Scope.STATS),
        *("get_topic", Section.TOPICS, "Look at a topic"),
        "A topic exists as long as it has jobs, waiting consumers, a pause or a policy of its own.",
        _ok("The topic: counts, policy, ages and rates.", answer_forms.TopicAnswer),
        (errors.TopicNotFound,),
    ),
    Route(
        *("GET", "/v1/topics/{topic}/policy", topics.get_policy, Scope.STATS),
        *("get_policy", Section.TOPICS, "See a topic's policy"),
        "The policy in force, or the one that the topic would have if it existed.",
        _POLICY,
    ),
    Route(
        *("PUT", "/v1/topics/{topic}/policy", topics.set_policy, Scope.ADMIN),
        *("set_policy", Section.TOPICS, "Set a topic's own policy"),
        "It replaces the previous one and the configured one, and survives restarts.",
        _POLICY,
        (
            errors.PolicyInvalid,
            errors.PolicyChanged,
            errors.PoliciesFull,
            *_OF_TARGETS,
            errors.OutOfSpace,
        ),
        form=request_forms.PolicyBodyForm,
    ),
    Route(
        *("DELETE", "/v1/topics/{topic}/policy", topics.drop_policy, Scope.ADMIN),
        *("drop_policy", Section.TOPICS, "Remove the topic's own policy"),
        "The configured policy applies again, and is answered.",
        _POLICY,
        (errors.PolicyChanged, errors.OutOfSpace, problems.RequestInvalid),
    ),
    Route(
        *("POST", "/v1/topics/{topic}/pause", topics.pause, Scope.PAUSE),
        *("pause", Section.TOPICS, "Pause a topic"),
        "No jobs are handed out for that long. They still come due.",
        _PAUSED,
        (errors.TopicNotFound, errors.ValueOutOfRange, errors.OutOfSpace),
        form=request_forms.PauseForm,
    ),
    Route(
        *("POST", "/v1/topics/{topic}/resume", topics.pause, Scope.PAUSE),
        *("resume", Section.TOPICS, "End a pause", "At once."),
        _PAUSED,
        (errors.TopicNotFound, errors.OutOfSpace),
        **_NO_BODY,
    ),
    Route(
        *("GET", "/v1/topics/{topic}/groups", topics.list_groups, Scope.STATS),
        *("list_groups", Section.TOPICS, "List the groups of a topic"),
        "Those with most ready jobs, those whose next job has been ready for longest, or one page"
        " in the order of names.",
        _ok("A page.", answer_forms.GroupPageAnswer),
        (errors.TopicNotFound,),
        query=request_forms.ListGroupsForm,
    ),
    Route(
        *("GET", "/v1/topics/{topic}/groups/{group}", topics.get_group, Scope.STATS),
        *("get_group", Section.TOPICS, "Look at a group"),
        "How many jobs it has, and why it hands out none. Every name is that of a group.",
        _ok("The group.", answer_forms.GroupAnswer),
        (errors.TopicNotFound,),
    ),
    Route(
        *("POST", "/v1/topics/{topic}/groups/{group}/pause", topics.pause_group, Scope.PAUSE),
        *("pause_group", Section.TOPICS, "Pause a group"),
        "None of its jobs are handed out for that long, whether it has some now or not. It survives"
        f" restarts; {GROUPS_PAUSED_MAX:,} groups of a topic may be paused.",
        _PAUSED,
        (errors.TopicNotFound, errors.ValueOutOfRange, errors.GroupsFull, errors.OutOfSpace),
        form=request_forms.PauseForm,
    ),
    Route(
        *("POST", "/v1/topics/{topic}/groups/{group}/resume", topics.pause_group, Scope.PAUSE),
        *("resume_group", Section.TOPICS, "End a group's pause", "At once."),
        _PAUSED,
        (errors.TopicNotFound, errors.OutOfSpace),
        **_NO_BODY,
    ),
    Route(
        *("POST", "/v1/topics/{topic}/kick", topics.kick, Scope.KICK),
        *("kick", Section.TOPICS, "Revive buried jobs"),
        "The longest buried first; with `per_second` the first at once and each of the others one"
        " interval later.",
        _MANY_DONE,
        (errors.TopicNotFound, errors.ValueOutOfRange, errors.OutOfSpace),
        form=request_forms.KickForm,
        may_be_empty=True,
    ),
    Route(
        *("POST", "/v1/topics/{topic}/clear", topics.clear, Scope.ADMIN),
        *("clear", Section.TOPICS, "Delete all jobs of a topic"),
        "Except reserved ones. It takes the same time however many there are.",
        _MANY_DONE,
        (errors.TopicNotFound, errors.OutOfSpace),
        **_NO_BODY,
    ),
)

_SCHEDULE: Final = _ok("The schedule.", answer_forms.ScheduleAnswer)
_CHANGED: Final = (answer_forms.ScheduleAnswer, answer_forms.ChangedScheduleAnswer)
_SCHEDULE_CHANGED: Final = {
    200: Response("The schedule; all of it for tokens that may look at it.", _CHANGED)
}
_RUNS: Final = _ok("The next runs.", answer_forms.PreviewAnswer)
_SCHEDULES: Final = (
    Route(
        *("GET", "/v1/schedules", schedules.list_schedules, Scope.PEEK),
        *("list_schedules", Section.SCHEDULES, "List schedules"),
        "A page of those that the token may see, sorted by name; with `topic` those that put jobs"
        " there.",
        _ok("A page.", answer_forms.SchedulePageAnswer),
        query=request_forms.ListSchedulesForm,
    ),
    Route(
        *("PUT", "/v1/schedules/{name}", schedules.set_schedule, Scope.PUT),
        *("set_schedule", Section.SCHEDULES, "Make or change a schedule"),
        "Each run is a job of its topic, under the key `name@time`. The same request twice is one"
        " schedule; another definition changes it, and its history stays. Of the runs that were due"
        " while no daemon ran, `missed` says which are put late: the latest, none, or all, up to"
        f" {SCHEDULE_MADE_UP_MAX}.",
        {
            200: Response(
                "The schedule has this definition now, or had it before; all of it is told to"
                " tokens that may look at it.",
                _CHANGED,
            ),
            201: Response("The schedule was made; the same is told.", _CHANGED),
        },
        (
            *(errors.ScheduleInvalid, errors.ScheduleConfigured, errors.SchedulesFull),
            *(errors.BodyTooBig, errors.CapReached, errors.OutOfSpace),
            *_OF_TARGETS,
        ),
        form=request_forms.ScheduleBodyForm,
    ),
    Route(
        *("GET", "/v1/schedules/{name}", schedules.get, Scope.PEEK),
        *("get_schedule", Section.SCHEDULES, "Look at a schedule"),
        "What it is, when its next run is due, and what has become of the others.",
        _SCHEDULE,
        (errors.ScheduleNotFound,),
    ),
    Route(
        *("DELETE", "/v1/schedules/{name}", schedules.remove, Scope.PUT),
        *("remove_schedule", Section.SCHEDULES, "Remove a schedule"),
        "The jobs of its runs stay.",
        {204: Response("It is removed.")},
        (errors.ScheduleNotFound, errors.ScheduleConfigured),
    ),
    Route(
        *("POST", "/v1/schedules/{name}/pause", schedules.pause, Scope.PUT),
        *("pause_schedule", Section.SCHEDULES, "Pause a schedule"),
        "It has no runs until it is resumed, and they count neither as missed nor as skipped.",
        _SCHEDULE_CHANGED,
        (errors.ScheduleNotFound, errors.ScheduleInvalid, errors.OutOfSpace),
        form=request_forms.NoteForm,
        may_be_empty=True,
    ),
    Route(
        *("POST", "/v1/schedules/{name}/resume", schedules.resume, Scope.PUT),
        *("resume_schedule", Section.SCHEDULES, "End a schedule's pause"),
        "It goes on with the first run after now.",
        _SCHEDULE_CHANGED,
        (errors.ScheduleNotFound, errors.ScheduleInvalid, errors.OutOfSpace, errors.Draining),
        **_NO_BODY,
    ),
    Route(
        *("POST", "/v1/schedules/{name}/run", schedules.run, Scope.PUT),
        *("run_schedule", Section.SCHEDULES, "Run a schedule now"),
        "Besides the runs that are due; its nominal time is now. It counts for `limit`.",
        _ok("The job of the run.", answer_forms.RanAnswer),
        (errors.ScheduleNotFound, errors.ScheduleOver, *_OF_NEW_JOBS),
        **_NO_BODY,
    ),
    Route(
        *("POST", "/v1/schedules/{name}/backfill", schedules.backfill, Scope.PUT),
        *("backfill_schedule", Section.SCHEDULES, "Run a schedule for a past range"),
        "One job for each nominal time from the one moment to the other, both included; at most"
        f" {SCHEDULE_BACKFILL_MAX:,}. Runs whose job is there are left alone.",
        _ok("How many jobs were put.", answer_forms.BackfilledAnswer),
        (errors.ScheduleNotFound, errors.ScheduleInvalid, *_OF_NEW_JOBS),
        form=request_forms.BackfillForm,
    ),
    Route(
        *("GET", "/v1/schedules/{name}/preview", schedules.preview, Scope.PEEK),
        *("preview_schedule", Section.SCHEDULES, "See the next runs of a schedule"),
        "When they are due if all goes well; none while it is paused.",
        _RUNS,
        (errors.ScheduleNotFound, errors.ScheduleInvalid),
        query=request_forms.PreviewForm,
    ),
    Route(
        *("POST", "/v1/schedules/preview", schedules.preview_new, Scope.PEEK),
        *("preview_definition", Section.SCHEDULES, "See the runs of a schedule before it is made"),
        "When they would be due. Nothing is made.",
        _RUNS,
        (errors.ScheduleInvalid,),
        form=request_forms.ScheduleBodyForm,
        query=request_forms.PreviewNewForm,
    ),
)

_DAEMON: Final = (
    Route(
        *("GET", "/v1/stats", health.stats, Scope.STATS),
        *("get_stats", Section.DAEMON, "See the figures of the daemon"),
        "As JSON; for Prometheus there is `/metrics`.",
        _ok("The figures.", answer_forms.StatsAnswer),
    ),
    Route(
        *("GET", "/metrics", health.metrics, Scope.STATS),
        *("get_metrics", Section.DAEMON, "See all figures, for Prometheus"),
        "In the text format of Prometheus.",
        {200: Response("The figures.", media="text/plain")},
    ),
    Route(
        *("GET", "/v1/stats/history", health.history, Scope.STATS),
        *("get_history", Section.DAEMON, "The last hour, minute by minute"),
        "Up to a day with `minutes`; nothing older than the daemon's start.",
        _ok("Figures of each minute.", answer_forms.HistoryAnswer),
        query=request_forms.HistoryForm,
    ),
    Route(
        *("GET", "/v1/access", health.access, None),
        *("get_access", Section.DAEMON, "What this client may do"),
        "The scopes and topics of the token in the request; every token may ask.",
        _ok("The permissions of the token.", answer_forms.AccessAnswer),
        needs_token=True,
    ),
    Route(
        *("GET", "/healthz", health.healthz, None),
        *("healthz", Section.DAEMON, "Liveness: the process answers"),
        "A process that does not answer this should be restarted.",
        _ok("The daemon is alive.", answer_forms.LivesAnswer),
    ),
    Route(
        *("GET", "/readyz", health.readyz, None),
        *("readyz", Section.DAEMON, "Readiness: the daemon accepts jobs"),
        "503 while the daemon drains, stops or stands by, while its disk is full, and while its"
        " disk or database does not answer. With `puts=false` it is 200 also where puts alone are"
        " refused: for load balancers of workers.",
        _ok("The daemon accepts jobs.", answer_forms.ReadyAnswer),
        (problems.NotReady, errors.Draining),
        query=request_forms.ReadyForm,
    ),
    Route(
        *("POST", "/v1/handover", health.hand_over, Scope.ADMIN),
        *("hand_over", Section.DAEMON, "Hand the log over to a standby"),
        "For a daemon whose log is in a database. It shuts down gracefully, and a standby that"
        " has followed the log takes over.",
        _ok("The daemon is shutting down.", answer_forms.HandoverAnswer),
        (problems.NoStandby,),
        **_NO_BODY,
    ),
    Route(
        *("POST", "/v1/clock/advance", health.advance, Scope.ADMIN),
        *("advance_clock", Section.DAEMON, "Advance the virtual clock"),
        "For a daemon with `--clock virtual`. Everything due by then happens before the answer.",
        _ok("The time of the virtual clock.", answer_forms.AdvancedAnswer),
        (problems.NoClock, errors.ValueOutOfRange),
        form=request_forms.AdvanceForm,
    ),
    Route(
        *("GET", "/openapi.json", serve_openapi, None),
        *("get_openapi", Section.DAEMON, "This document", "Needs no token."),
        {200: Response("OpenAPI 3.1.", media=problems.JSON)},
    ),
)

ROUTES: Final = (
    # In the order in which the document has always had them: its readers draw by it.
    *(_PRODUCERS[0], *_WORKERS, _JOBS[3], *_JOBS[:3]),
    *(_PRODUCERS[1], *_BY_KEY, _BURY_BY_KEY, *_MANY_JOBS[:4]),
    *(*_TOPICS, *_MANY_JOBS[4:], *_DAEMON, *_SCHEDULES),
)
