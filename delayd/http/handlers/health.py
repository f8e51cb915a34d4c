"""The daemon itself: figures, liveness, readiness, and its virtual clock.

    /healthz    200 while the process answers at all: restart it if it does not
    /readyz     200 if a job would be accepted now, else 503 with the reason: send it no jobs;
                with `puts=false` 200 if jobs can be taken and deleted, even while puts are refused
    /metrics    a page for Prometheus, sent in pieces between the turns of other clients

The first two need no token: they are for supervisors and load balancers.
"""

from typing import TYPE_CHECKING

from delayd.core.errors import Draining, OutOfSpace
from delayd.core.stats.figures import daemon_history
from delayd.core.stats.totals import TotalsScan
from delayd.core.virtual_clock import ClockAdvance
from delayd.http import answer_forms
from delayd.http.api import Api, Call
from delayd.http.handlers.figures import minute_answer, stats_answer
from delayd.http.problems import NoClock, NoStandby, NotReady
from delayd.http.responses import Reply, reply
from delayd.limits import READY_BODY_BYTES, TOTALS_STEP_TOPICS
from delayd.moments import moment_text

if TYPE_CHECKING:
    from delayd.http.request_forms import AdvanceForm, HistoryForm, ReadyForm


async def healthz(_call: Call) -> Reply:
    """Answer that the process serves."""
    return reply(200, answer_forms.LivesAnswer(status="ok"))


async def readyz(call: Call) -> Reply:
    """Answer whether a job would be accepted now, and be safe; or else all but puts."""
    api = call.api
    form: ReadyForm = call.query
    if trouble := api.reports.log_trouble():
        raise NotReady(trouble)
    if form.puts:
        _require_puts(api)
    return reply(200, answer_forms.ReadyAnswer(status="ready"))


def _require_puts(api: Api) -> None:
    """See that a job would be accepted; tries a full disk again, which no put may come to do."""
    if api.engine.draining:
        raise Draining
    try:
        api.engine.log_space.require_for_put(READY_BODY_BYTES)
    except OutOfSpace as refusal:
        why = api.reports.space_trouble()
        raise NotReady(f"no file can be made for the log: {why}" if why else str(refusal)) from None


async def stats(call: Call) -> Reply:
    """Answer the figures of the whole daemon, also while nothing becomes durable."""
    call.allow(None)
    api = call.api
    scan = TotalsScan(api.engine.store)
    async with api.slices() as slices:
        while not scan.step(TOTALS_STEP_TOPICS):
            await slices.rest_if_over()
    now_ms = api.now_ms()
    answer = stats_answer(
        api.reports.beside_jobs(now_ms),
        answer_forms.HttpAnswer(connections=api.connections.open_count, waiting=len(api.waiting)),
        api.engine,
        scan,
        api.schedules.opened,
        now_ms,
    )
    return reply(200, answer)


async def history(call: Call) -> Reply:
    """Answer the figures of each of the last minutes."""
    call.allow(None)
    api = call.api
    query: HistoryForm = call.query
    finished = daemon_history(api.engine, query.minutes)
    minutes = []
    async with api.slices(len(finished)) as slices:
        for minute in finished:
            await slices.rest_if_over()
            minutes.append(minute_answer(minute, api.wall_ms(0)))
    start_ms = api.engine.store.counters.history.start_ms
    answer = answer_forms.HistoryAnswer(
        now=moment_text(api.wall_ms(api.now_ms())),
        start=moment_text(api.wall_ms(start_ms)),
        minutes=minutes,
    )
    return reply(200, answer)


async def access(call: Call) -> Reply:
    """Answer the client's scopes and topics."""
    principal = call.principal
    scopes = sorted(scope.value for scope in principal.scopes)
    answer = answer_forms.AccessAnswer(
        name=principal.name, scopes=scopes, topics=[*principal.topics]
    )
    return reply(200, answer)


async def metrics(call: Call) -> Reply:
    """Answer the page for Prometheus."""
    call.allow(None)
    reports = call.api.reports
    pieces = reports.metrics(call.api.now_ms())
    return Reply(200, media_type=reports.metrics_type, pieces=pieces)


async def hand_over(call: Call) -> Reply:
    """Answer which standby takes over from this daemon, which ends now."""
    call.allow(None)
    standby, why = call.api.reports.hand_over()
    if why:
        raise NoStandby(why)
    return reply(200, answer_forms.HandoverAnswer(standby=standby))


async def advance(call: Call) -> Reply:
    """Advance the virtual clock; everything due by then happens before the answer."""
    api = call.api
    call.allow(None)
    if api.standing is None:
        raise NoClock
    form: AdvanceForm = call.form
    work = ClockAdvance(api.engine, api.standing, form.by)
    await call.carry_out(work)
    return reply(200, answer_forms.AdvancedAnswer(now=moment_text(api.wall_ms(work.time_ms))))
